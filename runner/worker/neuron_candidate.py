"""Stage candidate of backend=neuron: the compiled model, greedy, with the logits of every step.

Written to neuronx-distributed 0.18.0; no device has run it. A stand-in for the package says so in `stand_in`.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import boundaries
import continuation
import neuron_shim  # noqa: F401
import neuronx_distributed
import numpy as np
import torch
import torch_neuronx  # noqa: F401  what torch.jit.load needs to know is in it
from neuron_compile import INPUTS, MADE, MODEL, SHARD, WEIGHTS, example
from safetensors.torch import load_file
from task import StageError
from transformers import AutoConfig, AutoTokenizer


def run(arguments: dict, out: str) -> dict:
    """Continue each prompt greedily, then force the reference's tokens, and save both to `out`.

    arguments: export (folder), checkpoint (folder, for config and tokenizer), prompts (path of prompts.json),
    reference (folder, or None: nothing is forced), end_tokens (list of int, or None: the checkpoint's),
    max_new_tokens, stop_at_end. Returns {"timings": {"load_seconds", "first_token_seconds" (of the first prompt),
    "decode_tokens_per_second"}, "stand_in"}. Errors: `StageError` ContextTooShort.
    """
    with open(os.path.join(arguments["export"], MADE), encoding="utf-8") as file:
        made = json.load(file)
    with open(arguments["prompts"], encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    references = continuation.references(arguments["reference"], prompts)
    for prompt, reference in zip(prompts, references, strict=True):
        refuse(made, prompt, reference, arguments["max_new_tokens"])
    started = time.perf_counter()
    session = Session(load(arguments["export"], made), made)
    seconds = time.perf_counter() - started
    continue_all(session, arguments, prompts, references, out)
    tokens = session.tokens
    return {
        "timings": {
            "load_seconds": seconds,
            "first_token_seconds": session.prompts[0],
            "decode_tokens_per_second": len(tokens) / sum(tokens) if tokens else None,
        },
        "stand_in": getattr(neuronx_distributed, "STAND_IN", None),
    }


def refuse(made: dict, prompt: dict, reference: dict | None, limit: int) -> None:
    """Errors: `StageError` for a prompt that no graph is long enough for, before any is loaded."""
    start, largest = len(prompt["ids"]), made["buckets"][-1]
    forced = start + len(reference["tokens"]) - 1 if reference else 0
    stepwise = made["model_builder"] == "parallel_model_trace"
    one_pass = max(start, forced, start + limit - 1 if stepwise else 0)
    if one_pass > largest:
        raise StageError(
            f"prompt {prompt['name']} needs {one_pass} tokens in one pass, and the largest bucket has {largest}",
            kind="ContextTooShort",
            hint=f"backend.buckets needs one of {one_pass} or more: prompt and continuation are forced in one pass",
        )
    if not stepwise and start + limit - 1 > made["max_len"]:
        raise StageError(
            f"prompt {prompt['name']} and continuation need {start + limit - 1} tokens, backend.max_len is"
            f" {made['max_len']}",
            kind="ContextTooShort",
            hint="raise backend.max_len, or lower max_new_tokens",
        )


def load(export: str, made: dict) -> Any:
    """The model with its weights on the device, as a function of tokens and positions."""
    path, weights = os.path.join(export, MODEL), os.path.join(export, WEIGHTS)
    if made["model_builder"] == "parallel_model_trace":
        from neuronx_distributed.trace import parallel_model_load

        return parallel_model_load(weights)
    if made["model_builder"] == "v2":
        from neuronx_distributed import NxDModel

        model = NxDModel.load(path)
        model.set_weights([load_file(os.path.join(weights, SHARD.format(rank=rank))) for rank in range(made["tp"])])
        model.to_neuron()
        if isinstance(model, torch.jit.ScriptModule):  # which `load` falls back to, and which takes two lists
            return lambda *inputs: model(list(inputs), None)
        return lambda *inputs: model(**dict(zip(INPUTS, inputs, strict=True)))
    model = torch.jit.load(path)
    # Without it: "This model is not initialized". The number is the first rank's.
    getattr(model, "nxd_model", model).initialize_with_saved_weights(torch.tensor([0], dtype=torch.int32))
    return model if hasattr(model, "nxd_model") else lambda *inputs: model(list(inputs))


class Session:
    """A loaded model; how long each of its passes took, in seconds."""

    def __init__(self, model: Any, made: dict):
        self.model, self.made = model, made
        self.prompts: list[float] = []
        self.tokens: list[float] = []

    def prefill(self, ids: list[int]) -> np.ndarray:
        """Logits [len(ids), vocab] of a pass from position 0, padded on the right to the next bucket."""
        length = next(bucket for bucket in self.made["buckets"] if bucket >= len(ids))
        tokens, positions = example(self.made["batch"], length)
        tokens[:, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        return self.run(tokens, positions, self.prompts)[: len(ids)]

    def step(self, ids: list[int]) -> np.ndarray:
        """Logits [vocab] after the last of `ids`, where those before it have been passed."""
        if self.made["model_builder"] == "parallel_model_trace":
            row = self.prefill(ids)[-1]
            self.tokens.append(self.prompts.pop())
            return row
        shape = self.made["batch"], 1
        tokens = torch.full(shape, ids[-1], dtype=torch.int32)
        return self.run(tokens, torch.full(shape, len(ids) - 1, dtype=torch.int32), self.tokens)[-1]

    def run(self, tokens: torch.Tensor, positions: torch.Tensor, times: list[float]) -> np.ndarray:
        started = time.perf_counter()
        output = self.model(tokens, positions)
        logits = (output[0] if isinstance(output, tuple | list) else output)[0].float().numpy()
        times.append(time.perf_counter() - started)
        return logits


@torch.inference_mode()
def continue_all(session: Session, arguments: dict, prompts: list[dict], references: list, out: str) -> None:
    """Continue each prompt, force its reference's tokens if there is one, and save; `arguments` as `run`'s."""
    folder = arguments["checkpoint"]
    ends = continuation.ends(arguments)
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder).get_text_config()
    for index, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
        ids = prompt["ids"]
        stops = ends if arguments["stop_at_end"] else set()
        tokens, logits = greedy(session, ids, stops, arguments["max_new_tokens"])
        fed = None
        if reference is not None:
            forced = reference["tokens"]
            fed = session.prefill([*ids, *forced[:-1]])[-len(forced) :]
        crosses = boundaries.crosses(config, len(ids), len(tokens))
        continuation.save(out, index, prompt["name"], tokens, logits, tokenizer, ends, fed, crosses)


def greedy(session: Session, ids: list[int], ends: set[int], limit: int) -> tuple[list[int], np.ndarray]:
    """Greedy continuation of `ids`: tokens (the end token included), logits [steps, vocab] fp32."""
    tokens, rows = [], [session.prefill(ids)[-1]]
    while True:
        tokens.append(int(rows[-1].argmax()))
        if tokens[-1] in ends or len(tokens) == limit:
            return tokens, np.stack(rows)
        rows.append(session.step([*ids, *tokens]))
