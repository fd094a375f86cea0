"""Stage reference: the checkpoint in transformers, greedy, with the logits of every step."""

from __future__ import annotations

import inspect
import json
from functools import partial

import boundaries
import loading
import neutral
import numpy as np
import own_way
import own_way_reference
import torch
import true_fp64
from continuation import end_tokens, save
from task import StageError
from transformers import AutoModelForCausalLM, AutoTokenizer

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run(arguments: dict, out: str) -> dict:
    """Continue each prompt greedily and save the continuations to `out`.

    arguments: checkpoint (folder), prompts (path of prompts.json), compute_dtype,
    attention, max_new_tokens, stop_at_end. Logits are taken straight from the
    forward pass, so nothing of the generation config takes part.
    """
    folder = arguments["checkpoint"]
    model, told = load(folder, arguments["compute_dtype"], arguments["attention"])
    missing = sorted(told["missing_keys"])
    audited = loading.audit(model, loading.Stored(folder), "transformers", missing=missing)
    if missing:
        # transformers fills them with random numbers and a warning, and would be no reference at all.
        left = [row["name"] for row in audited if row["outcome"] == "dropped"]
        also = f", and has what its model does not take: {', '.join(left[:5])}" if left else ""
        raise StageError(
            f"the checkpoint lacks {len(missing)} tensors of its model: {', '.join(missing[:5])}{also}",
            kind="MissingTensors",
            hint="config.json and the weights do not belong together, a shard is incomplete, or keys are named"
            " otherwise; python -m db loading CELL has every key",
            loading=audited,
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ends = end_tokens(folder)
    with open(arguments["prompts"], encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    for index, prompt in enumerate(prompts):
        stops = ends if arguments["stop_at_end"] else set()
        tokens, logits = greedy(model, prompt["ids"], stops, arguments["max_new_tokens"])
        crosses = boundaries.crosses(model.config.get_text_config(), len(prompt["ids"]), len(tokens))
        save(out, index, prompt["name"], tokens, logits, tokenizer, ends, one_pass_differs=crosses)
    own_way.save(own_way_reference.run(model, tokenizer, prompts, arguments["max_new_tokens"]), out)
    return {
        "loaded_dtype": dtype_of(model),
        "end_tokens": sorted(ends),
        "overridden": neutral.of_checkpoint(folder),
        "unexpected_tensors": sorted(told["unexpected_keys"])[:20],
        **layers_of(model.config.get_text_config()),
        **true_fp64.with_finding(loading.save(audited, out), model, "the reference is not one of float64"),
    }


def load(folder: str, dtype: str, attention: str):
    """The model in `dtype` with this attention, and what transformers says of its loading.

    One in float64 computes in it throughout, see `true_fp64`.
    Errors: `StageError` for tensors of another shape than the model's.
    """
    loading_of = partial(
        AutoModelForCausalLM.from_pretrained,
        folder,
        dtype=DTYPES[dtype],
        attn_implementation=attention,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are told of here, by name
    )
    model, told = true_fp64.loaded(loading_of, DTYPES[dtype])
    if odd := sorted(told.get("mismatched_keys") or ()):
        said = ", ".join(f"{name} is {list(stored)} and not {list(own)}" for name, stored, own in odd[:3])
        raise StageError(
            f"{len(odd)} of the checkpoint's tensors have another shape than config.json says: {said}",
            kind="MismatchedShapes",
            hint="config.json and the weights do not belong together",
        )
    return model.eval(), told


def dtype_of(model) -> str:
    """The dtypes of a model's parameters: "bfloat16", or several with commas."""
    return ",".join(sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()}))


def layers_of(config) -> dict:
    """How many layers a text config has, and which look at a sliding window only; None where it says nothing."""
    kinds, count = getattr(config, "layer_types", None), getattr(config, "num_hidden_layers", None)
    if kinds:
        sliding = [n for n, kind in enumerate(kinds) if kind == "sliding_attention"]
    else:  # Mistral, say: one window for all
        sliding = list(range(count)) if boundaries.window(config) and count else None
    return {"layers": count, "sliding_layers": sliding}


@torch.inference_mode()
def greedy(model, ids: list[int], ends: set[int], limit: int) -> tuple[list[int], np.ndarray]:
    """Greedy continuation of `ids`: tokens (the end token included), logits [steps, vocab] fp32."""
    inputs, cache = torch.tensor([ids]), None
    tokens, rows = [], []
    while len(tokens) < limit:
        output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        row = output.logits[0, -1].float().numpy()
        token = int(row.argmax())
        rows.append(row)
        tokens.append(token)
        if token in ends:
            break
        inputs = torch.tensor([[token]])
    return tokens, np.stack(rows)


@torch.inference_mode()
def forced(model, ids: list[int], tokens: list[int]) -> np.ndarray:
    """Logits [len(tokens), vocab] fp64 of one pass over the prompt `ids` and its continuation `tokens`."""
    inputs = torch.tensor([[*ids, *tokens[:-1]]])
    # Only the continuation's rows, where the model can be told so: those of a long prompt would fill the memory.
    keep = {"logits_to_keep": len(tokens)} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    return model(input_ids=inputs, use_cache=False, **keep).logits[0, -len(tokens) :].double().numpy()
