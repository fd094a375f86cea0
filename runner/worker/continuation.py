"""How a continuation lies on disk: ``continuations.json`` beside one logits file a prompt."""

from __future__ import annotations

import json
import os

import numpy as np

INDEX = "continuations.json"


def save(out: str, index: int, name: str, tokens, logits: np.ndarray, tokenizer, ends) -> None:
    """Add one prompt's continuation: tokens, text, and logits [steps, vocab] as float32.

    `raw_text` keeps special tokens, save a final end token: what a reader of
    markers needs; `text` is what a user would see.
    """
    np.save(os.path.join(out, f"{index}.npy"), np.ascontiguousarray(logits, dtype=np.float32))
    body = tokens[:-1] if tokens and tokens[-1] in ends else tokens
    entry = {
        "name": name,
        "tokens": [int(token) for token in tokens],
        "ended": len(body) < len(tokens),
        "text": tokenizer.decode(tokens, skip_special_tokens=True),
        "raw_text": tokenizer.decode(body, skip_special_tokens=False),
        "logits": f"{index}.npy",
    }
    entries = load(out) if index else []
    with open(os.path.join(out, INDEX), "w", encoding="utf-8") as file:
        json.dump([*entries, entry], file, ensure_ascii=False, indent=1)


def load(folder: str) -> list[dict]:
    with open(os.path.join(folder, INDEX), encoding="utf-8") as file:
        return json.load(file)


def logits(folder: str, entry: dict) -> np.ndarray:
    """The entry's logits [steps, vocab] float32, mapped from disk, not read."""
    return np.load(os.path.join(folder, entry["logits"]), mmap_mode="r")
