"""How a continuation lies on disk: ``continuations.json`` beside the logits files of each prompt."""

from __future__ import annotations

import json
import os

import numpy as np
from metrics import top

INDEX = "continuations.json"
TOP = 5


def save(
    out: str, index: int, name: str, tokens, logits: np.ndarray, tokenizer, ends, forced=None, one_pass_differs=False
) -> None:
    """Add one prompt's continuation: tokens, text, and logits [steps, vocab] as float32.

    forced: logits [reference's steps, vocab] when fed the reference's tokens;
    the reference, which feeds itself, has none. `text` is what a user would
    see, up to the first end token; `raw_text` keeps its special tokens, what a
    reader of markers needs. `top` has each step's likeliest tokens:
    [id, as the tokenizer writes it, logit]. one_pass_differs: the continuation
    computed in one pass is rightly another, so that forcing it compares nothing.
    """
    entry = {"name": name, "tokens": [int(token) for token in tokens], "logits": f"{index}.npy"}
    np.save(os.path.join(out, entry["logits"]), np.ascontiguousarray(logits, dtype=np.float32))
    if forced is not None:
        entry["forced_logits"] = f"{index}.forced.npy"
        np.save(os.path.join(out, entry["forced_logits"]), np.ascontiguousarray(forced, dtype=np.float32))
    end = next((n for n, token in enumerate(tokens) if token in ends), None)
    body = entry["tokens"][:end]
    entry |= {
        "ended": end is not None,
        "text": tokenizer.decode(body, skip_special_tokens=True),
        "raw_text": tokenizer.decode(body, skip_special_tokens=False),
        "top": [likeliest(row, tokenizer) for row in logits],
        "one_pass_differs": one_pass_differs,
    }
    entries = load(out) if index else []
    with open(os.path.join(out, INDEX), "w", encoding="utf-8") as file:
        json.dump([*entries, entry], file, ensure_ascii=False)


def references(folder: str | None, prompts: list[dict]) -> list[dict | None]:
    """The reference's entries, one a prompt; None for each where there is no reference."""
    return load(folder) if folder else [None] * len(prompts)


def ends(arguments: dict) -> set[int]:
    """The ids that end a continuation: the reference's, or where there is none the checkpoint's own."""
    given = arguments["end_tokens"]
    return end_tokens(arguments["checkpoint"]) if given is None else set(given)


def end_tokens(folder: str) -> set[int]:
    """The end-of-sequence ids that config.json and generation_config.json name."""
    ends: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id")
            ends.update([value] if isinstance(value, int) else value or [])
    return ends


def likeliest(row: np.ndarray, tokenizer) -> list[list]:
    """The TOP largest logits of a row [vocab]: [id, token, logit]; a logit that is no number is None."""
    ids = [int(i) for i in top(np.nan_to_num(row, nan=-np.inf, posinf=np.inf, neginf=-np.inf), TOP)]
    logits = [float(row[i]) if np.isfinite(row[i]) else None for i in ids]
    return [list(entry) for entry in zip(ids, tokenizer.convert_ids_to_tokens(ids), logits, strict=True)]


def load(folder: str) -> list[dict]:
    with open(os.path.join(folder, INDEX), encoding="utf-8") as file:
        return json.load(file)


def logits(folder: str, name: str) -> np.ndarray:
    """A logits file of an entry [steps, vocab] float32, mapped from disk, not read."""
    return np.load(os.path.join(folder, name), mmap_mode="r")
