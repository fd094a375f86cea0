"""Stage candidate of backend=tp_cpu: each rank's file in a process of its own, greedy, with every step's logits."""

from __future__ import annotations

import json
import os
import time

import continuation
import layout
import loading
import ranks
import shards
import torch.distributed as distributed
import tp_model
from reference import dtype_of, layers_of
from torch.distributed.device_mesh import init_device_mesh
from transformers_candidate import continue_all


def run(arguments: dict, out: str) -> dict:
    """Continue each prompt greedily, then force the reference's tokens, and save both to `out`.

    arguments: export (folder of the shards), checkpoint (folder), reference (folder, or None: nothing is forced),
    prompts (path of prompts.json), end_tokens (list of int, or None: the checkpoint's), max_new_tokens, stop_at_end,
    compute_dtype, attention, threads (of each rank), copied (whether buffers were copied into the shards). This process
    computes nothing. Returns "timings" ("load_seconds" of the slowest rank, "first_token_seconds" of the first prompt,
    "decode_tokens_per_second"), what the audit found, and the dtype and layers that were loaded.
    """
    with open(os.path.join(arguments["export"], "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    results = ranks.run(plan["tp"], arguments["threads"], lambda rank: compute(rank, plan, arguments, out))
    audited = loading.merged([result["loading"] for result in results])
    load = max(result["load_seconds"] for result in results)
    return {
        "timings": {"load_seconds": load, **results[0]["speed"]},
        **results[0]["model"],
        **loading.save(audited, out),
    }


def compute(rank: int, plan: dict, arguments: dict, out: str) -> dict:
    """What one rank does. Returns {"loading": rows, "load_seconds", "speed", "model"}; rank 0 saves."""
    started = time.perf_counter()
    mesh = init_device_mesh("cpu", (plan["tp"],))
    model = tp_model.build(arguments["checkpoint"], arguments["compute_dtype"], arguments["attention"])
    tp_model.divide(model, plan, mesh)
    defaults = {name: buffer.clone() for name, buffer in tp_model.persistent_buffers(model).items()}
    missing = tp_model.load(model, os.path.join(arguments["export"], shards.FILE.format(rank=rank)))
    seconds = time.perf_counter() - started
    rows = loading.audit(
        model, loading.Stored(arguments["checkpoint"]), "tp_cpu", missing=missing,
        place=lambda name, tensor: layout.placed(name, tensor, plan, rank),
        copied=list(defaults) if arguments["copied"] else (), defaults=defaults,
    )  # fmt: skip
    model.register_forward_hook(follow_the_first)
    passes = timed(model)
    with open(arguments["prompts"], encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    references = continuation.references(arguments["reference"], prompts)
    continue_all(model, arguments, prompts, references, None if rank else out)
    about = {"loaded_dtype": dtype_of(model), **layers_of(model.config.get_text_config())}
    return {"loading": rows, "load_seconds": seconds, "speed": speed(passes), "model": about}


def follow_the_first(model, inputs, output):
    """Give every rank the logits of rank 0, which are the ones that are saved.

    They are the same. Where a plan is wrong they need not be, and ranks that go on with other tokens wait for ever.
    """
    output.logits = output.logits.contiguous()
    distributed.broadcast(output.logits, 0)
    return output


def timed(model) -> list[tuple[str, float]]:
    """A list that grows by each pass of the model: "prompt", "token" or "forced", and its seconds."""
    passes: list[tuple[str, float]] = []
    started: list[float] = []

    def before(*_) -> None:
        started.append(time.perf_counter())

    def after(model, inputs, named, output) -> None:
        seconds = time.perf_counter() - started.pop()
        what = "forced" if not named["use_cache"] else "token" if named["past_key_values"] is not None else "prompt"
        passes.append((what, seconds))

    model.register_forward_pre_hook(before)
    model.register_forward_hook(after, with_kwargs=True)
    return passes


def speed(passes: list[tuple[str, float]]) -> dict:
    """{"first_token_seconds" (of the first prompt), "decode_tokens_per_second" (None where no prompt has a second)}."""
    tokens = [seconds for what, seconds in passes if what == "token"]
    return {
        "first_token_seconds": next(seconds for what, seconds in passes if what == "prompt"),
        "decode_tokens_per_second": len(tokens) / sum(tokens) if tokens else None,
    }
