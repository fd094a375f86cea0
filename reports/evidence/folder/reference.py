"""The checkpoint in transformers, on the token ids of prompts.json.

python reference.py CELL    writes made/reference-N.npz, N being the number of the cell's prompt set

Greedy over the raw logits: nothing of a generation config takes part. Beside
it, one generation by transformers' own generate(), as a user runs it.
"""

from __future__ import annotations

import inspect
import json
import os
import sys

import given
import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the checkpoint is a folder; nothing is fetched

import torch
import transformers
import wide

transformers.utils.logging.disable_progress_bar()


def load(wanted: dict, dtype: str | None = None, attention: str | None = None):
    """The model of a prompt set, in its own dtype and attention or in others; one in float64 computes in it."""
    name = dtype or wanted["compute_dtype"]

    def make():
        return transformers.AutoModelForCausalLM.from_pretrained(
            given.HERE / wanted["folder"],
            dtype=getattr(torch, name),
            attn_implementation=attention or wanted["attention"],
        ).eval()

    return wide.load(make) if name == "float64" else make()


def end_tokens(wanted: dict) -> set[int]:
    """The ids that end a continuation, by config.json and generation_config.json."""
    ends: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = given.HERE / wanted["folder"] / name
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id")
            ends.update([value] if isinstance(value, int) else value or [])
    return ends if wanted["stop_at_end"] else set()


@torch.inference_mode()
def greedy(model, ids: list[int], ends: set[int], limit: int) -> tuple[list[int], np.ndarray]:
    """Tokens, the end token included, and the logits of each step [steps, vocab] fp32."""
    new, cache, tokens, rows = torch.tensor([ids]), None, [], []
    while len(tokens) < limit:
        out = model(input_ids=new, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].float().numpy())
        tokens.append(int(rows[-1].argmax()))
        if tokens[-1] in ends:
            break
        new = torch.tensor([tokens[-1:]])
    return tokens, np.stack(rows)


@torch.inference_mode()
def forced(model, ids: list[int], tokens: list[int]) -> np.ndarray:
    """Logits [len(tokens), vocab] fp64 of one pass over a prompt and its continuation."""
    keep = {"logits_to_keep": len(tokens)} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    out = model(input_ids=torch.tensor([[*ids, *tokens[:-1]]]), use_cache=False, **keep)
    return out.logits[0, -len(tokens) :].double().numpy()


@torch.inference_mode()
def own_way(model, tokenizer, prompt: dict, limit: int) -> str:
    """What a user sees: generate() with the checkpoint's own generation config, sampling turned off."""
    ids = torch.tensor([prompt["ids"]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit)
    tokens = out[0, ids.shape[1] :].tolist()
    return given.own_line(tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), len(tokens) < limit)


def main(cell: int) -> None:
    wanted = given.prompt_set(cell)
    torch.set_num_threads(wanted["threads"])
    model, ends = load(wanted), end_tokens(wanted)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.HERE / wanted["folder"])
    found = {"ends": np.array(sorted(ends), dtype=np.int64)}
    for n, prompt in enumerate(wanted["prompts"]):
        tokens, logits = greedy(model, prompt["ids"], ends, wanted["max_new_tokens"])
        found[f"tokens{n}"], found[f"logits{n}"] = np.array(tokens), logits
        text = tokenizer.decode(tokens[:-1] if tokens[-1] in ends else tokens, skip_special_tokens=True)
        print(f"  {prompt['name']}: {text!r}")
    first = wanted["prompts"][0]
    found["own_way"] = np.array(own_way(model, tokenizer, first, given.own_limit(wanted["max_new_tokens"])))
    print(f"generate(), {first['name']}: {found['own_way']}")
    given.MADE.mkdir(exist_ok=True)
    np.savez(given.MADE / f"reference-{wanted['number']}.npz", **found)


if __name__ == "__main__":
    main(int(sys.argv[1]))
