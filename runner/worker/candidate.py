"""Stage candidate: the export in ONNX Runtime GenAI, greedy, with the logits of every step."""

from __future__ import annotations

import json
import os

import continuation
import neutral
import numpy as np
import onnxruntime_genai as og
import own_way
import own_way_runtime
from audit import runtime_ids
from generation_settings import compared
from task import StageError
from transformers import AutoTokenizer

HALF = (
    "exports in 16 bits are meant for GPUs: on a CPU many are built and do not run; action=constants compares what"
    " they hold"
)


def run(arguments: dict, out: str) -> dict:
    """Continue each prompt greedily, then force the reference's tokens, and save both to `out`.

    arguments: export (folder), checkpoint (folder, for the tokenizer), prompts
    (path of prompts.json), reference (folder, or None: nothing is forced),
    end_tokens (list of int, or None: the checkpoint's), max_new_tokens,
    stop_at_end, threads, precision (of the export). Both sides stop at the
    same tokens.
    """
    hint = HALF if arguments["precision"] in ("fp16", "bf16") else ""
    try:
        model = og.Model(configured(arguments["export"], arguments["threads"]))
    except Exception as error:
        raise StageError(str(error), kind="LoadFailed", hint=hint) from error
    with open(os.path.join(arguments["export"], "genai_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tokenizer = AutoTokenizer.from_pretrained(arguments["checkpoint"])
    with open(arguments["prompts"], encoding="utf-8") as file:
        given = json.load(file)
    prompts = given["prompts"]
    references = continuation.references(arguments["reference"], prompts)
    try:
        compute(arguments, out, model, config, tokenizer, prompts, references)
    except RuntimeError as error:
        raise StageError(str(error), kind=type(error).__name__, hint=hint) from error
    own = own_way_runtime.run(
        model, config, prompts, given["template_hash"] is not None, arguments["max_new_tokens"],
        lambda length: capacity(config["model"], length),
    )  # fmt: skip
    return {
        **own_way.beside(
            own, arguments["reference"], out, settings=compared(arguments["checkpoint"], arguments["export"])
        ),
        "overridden": neutral.overridden(config.get("search") or {}),
        "findings": runtime_ids(encoder(model), prompts),
    }


def compute(arguments: dict, out: str, model, config: dict, tokenizer, prompts: list, references: list) -> None:
    """Continue each prompt, and force the reference's tokens; `arguments` and `out` are those of `run`."""
    ends = continuation.ends(arguments)
    for index, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
        stops = ends if arguments["stop_at_end"] else set()
        tokens, logits = greedy(model, config["model"], prompt["ids"], stops, arguments["max_new_tokens"])
        fed = forced(model, config["model"], prompt["ids"], reference["tokens"]) if reference else None
        continuation.save(out, index, prompt["name"], tokens, logits, tokenizer, ends, fed)


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


def encoder(model):
    """The runtime's own tokenizer as a function: text in, list of ids out; None where it cannot be made."""
    try:
        tokenizer = og.Tokenizer(model)
    except Exception:  # a kind of tokenizer that the runtime does not know: its numbers stand without it
        return None
    return lambda text: [int(i) for i in tokenizer.encode(text)]


def start(model, config: dict, length: int):
    """A generator for `length` tokens in all, its search options set to what changes nothing."""
    params = og.GeneratorParams(model)
    options = {name: neutral.NEUTRAL[name] for name in neutral.SEARCH}
    params.set_search_options(max_length=capacity(config, length), batch_size=1, **options)
    return og.Generator(model, params)


def greedy(model, config: dict, ids: list[int], ends: set[int], limit: int) -> tuple[list[int], np.ndarray]:
    """Greedy continuation of `ids`: tokens (the end token included), logits [steps, vocab] fp32.

    Tokens are chosen here and appended, so no search option takes part.
    """
    generator = start(model, config, len(ids) + limit)
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


def forced(model, config: dict, ids: list[int], tokens: list[int]) -> np.ndarray:
    """Logits [len(tokens), vocab] fp32 of one pass over the prompt `ids` and the reference's continuation.

    Appended in one go: after `rewind_to` the runtime's logits cannot be relied on.
    """
    generator = start(model, config, len(ids) + len(tokens))
    generator.append_tokens(np.array([[*ids, *tokens[:-1]]], dtype=np.int32))
    every = np.asarray(generator.get_output("logits"))  # [1, prompt and continuation, vocab]
    if every.shape[1] < len(tokens):
        raise StageError(
            f"the export gives {every.shape[1]} positions' logits of a pass over {len(ids) + len(tokens) - 1}",
            kind="PrunedLogits",
            hint="export without prune_lm_head: every position's logits are needed",
        )
    return np.array(every[0, -len(tokens) :], dtype=np.float32)


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
