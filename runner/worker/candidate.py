"""Stage candidate: the export in ONNX Runtime GenAI, greedy, with the logits of every step."""

from __future__ import annotations

import json
import os

import numpy as np
import onnxruntime_genai as og
from continuation import save
from task import StageError
from transformers import AutoTokenizer


def run(arguments: dict, out: str) -> dict:
    """Continue each prompt greedily and save the continuations to `out`.

    arguments: export (folder), checkpoint (folder, for the tokenizer), prompts
    (path of prompts.json), end_tokens (list of int), max_new_tokens, threads.
    Both sides stop at the same end tokens.
    """
    try:
        model = og.Model(configured(arguments["export"], arguments["threads"]))
    except Exception as error:
        raise StageError(str(error), kind="LoadFailed") from error
    with open(os.path.join(arguments["export"], "genai_config.json"), encoding="utf-8") as file:
        config = json.load(file)["model"]
    tokenizer = AutoTokenizer.from_pretrained(arguments["checkpoint"])
    ends = set(arguments["end_tokens"])
    with open(arguments["prompts"], encoding="utf-8") as file:
        prompts = json.load(file)
    for index, prompt in enumerate(prompts):
        tokens, logits = greedy(model, config, prompt["ids"], ends, arguments["max_new_tokens"])
        save(out, index, prompt["name"], tokens, logits, tokenizer, ends)
    return {}


def configured(export: str, threads: int) -> str:
    """A folder beside the export's, linked to it, whose genai_config.json sets `threads`."""
    folder = os.path.join(os.getcwd(), "export")
    os.makedirs(folder)
    for name in os.listdir(export):
        if name != "genai_config.json":
            os.symlink(os.path.join(export, name), os.path.join(folder, name))
    with open(os.path.join(export, "genai_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    options = config["model"]["decoder"].setdefault("session_options", {})
    options["intra_op_num_threads"] = threads
    options["inter_op_num_threads"] = 1
    with open(os.path.join(folder, "genai_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder


def greedy(model, config: dict, ids: list[int], ends: set[int], limit: int) -> tuple[list[int], np.ndarray]:
    """Greedy continuation of `ids`: tokens (the end token included), logits [steps, vocab] fp32.

    Tokens are chosen here and appended, so no search option takes part.
    """
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=capacity(config, len(ids) + limit), batch_size=1)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([ids], dtype=np.int32))
    tokens, rows = [], []
    while True:
        row = np.array(generator.get_logits(), dtype=np.float32).reshape(-1)
        token = int(row.argmax())
        rows.append(row)
        tokens.append(token)
        if token in ends or len(tokens) == limit:
            return tokens, np.stack(rows)
        generator.append_tokens(np.array([[token]], dtype=np.int32))


def capacity(config: dict, needed: int) -> int:
    """KV capacity: enough for the tokens, and above the sliding window, or the runtime refuses."""
    window = (config["decoder"].get("sliding_window") or {}).get("window_size") or 0
    context = config["context_length"]
    if needed > context:
        raise StageError(
            f"prompt and continuation need {needed} tokens, the model's context has {context}",
            kind="ContextTooShort",
            hint="use a shorter prompt or a smaller max_new_tokens",
        )
    return min(max(needed, window + 1), context)
