"""Stage noise: how far the reference moves by itself.

The same weights and the same tokens, computed in another way that ought to
give the same: the other dtype (fp32 against fp64), the other attention (eager
against SDPA), another number of threads, and one pass instead of step by step.
What differs is rounding, and no export can be asked to be nearer than that.
An export in another precision than fp32 rounds more, and what it is held to is
that: the reference with its own weights rounded so, see `precision`.
"""

from __future__ import annotations

import json
import os
from collections import Counter

import continuation
import numpy as np
import precision
import torch
import true_fp64
from metrics import max_abs_diff, worst
from reference import forced, load

OTHER_DTYPE = {"float32": "float64", "float64": "float32", "bfloat16": "float32", "float16": "float32"}
OTHER_ATTENTION = {"eager": "sdpa", "sdpa": "eager"}
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
# A difference between two attentions that is this much larger than every other variant's, and that fp64 shrinks by
# less than this, is no rounding: one of the two leaves something out (SDPA drops the soft cap of Gemma 2's scores).
SYSTEMATIC = 10.0


def run(arguments: dict, out: str) -> dict:
    """Measure the variants and write ``noise.json`` to `out`.

    arguments: checkpoint, reference (folders), prompts (path of prompts.json),
    compute_dtype, attention, threads, other_threads, variants (of "dtype",
    "attention", "threads", "passes"), precision (of the export, where it is not
    fp32: the variant "precision"). ``noise.json``: {"prompts": [{"prompt", "floor",
    "variants": {name: [difference a step]}}], "versus": {name: "a / b"},
    "left_out": {name: why}, "fewer_bits": {operator: times}}, of what was not computed
    in float64 though its model was to be (`true_fp64`). A floor is the largest of
    a prompt's steps and variants; None where none could be measured, or the
    precision's could not.
    """
    dtype, attention, threads = arguments["compute_dtype"], arguments["attention"], arguments["threads"]
    of_export = arguments.get("precision")
    with open(arguments["prompts"], encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    entries = continuation.load(arguments["reference"])
    tokens = [(prompt["ids"], entry["tokens"]) for prompt, entry in zip(prompts, entries, strict=True)]
    more = arguments["other_threads"]
    other = OTHER_DTYPE[dtype], OTHER_ATTENTION.get(attention, "eager")
    versus = {
        "dtype": f"{dtype} / {other[0]}",
        "attention": f"{attention} / {other[1]}",
        "threads": f"{threads} / {more} threads",
        "passes": "steps / one pass",
    }
    model, _ = load(arguments["checkpoint"], dtype, attention)
    base = Rows("base")
    for ids, continued in tokens:
        base.add(forced(model, ids, continued))
    stepwise = [continuation.logits(arguments["reference"], entry["logits"]) for entry in entries]
    measured: dict[str, list[list[float]]] = {}
    left_out: dict[str, str] = {}

    def measure(rows, against: Rows = base) -> list[list[float]]:
        return [difference(one, two) for one, two in zip(against, rows, strict=True)]

    own = {"precision"} if of_export else set()
    wanted = {*arguments["variants"], *own}
    crossing = [entry["name"] for entry in entries if entry["one_pass_differs"]]
    if crossing:
        left_out["passes"] = (
            f"the rotary embedding changes within {', '.join(crossing)}: one pass is another computation"
        )
    elif "passes" in wanted:
        measured["passes"] = measure(stepwise)
    if "threads" in wanted:
        torch.set_num_threads(more)
        measured["threads"] = measure(forced(model, *pair) for pair in tokens)
        torch.set_num_threads(threads)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    fewer_bits: Counter[str] = Counter(true_fp64.left(model) or {})
    del model

    def with_model(name: str, dtype: str, attention: str, change=lambda model: None) -> Rows | None:
        """The rows of another model, changed in place once it is loaded, or None and the reason in `left_out`."""
        needed, free = parameters * BYTES[dtype], free_memory()
        if free is not None and needed * 1.2 > free:
            left_out[name] = f"{dtype} needs {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free"
            return None
        try:
            variant, _ = load(arguments["checkpoint"], dtype, attention)
            change(variant)
            rows = Rows(name)
            for pair in tokens:
                rows.add(forced(variant, *pair))
            fewer_bits.update(true_fp64.left(variant) or {})
        except Exception as error:  # an attention that a model does not know, say
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            return None
        return rows

    in_other_dtype = with_model("dtype", other[0], attention) if {"dtype", "attention"} & wanted else None
    if in_other_dtype and "dtype" in wanted:
        measured["dtype"] = measure(in_other_dtype)
    if "attention" in wanted and (rows := with_model("attention", dtype, other[1])):
        differ = measure(rows)
        why = ""
        if stands_out(differ, measured):
            checks = in_other_dtype and BYTES[other[0]] > BYTES[dtype]
            finer = with_model("attention in the other dtype", *other) if checks else None
            why = no_rounding(differ, measure(finer, in_other_dtype) if finer else None, f"{attention} and {other[1]}")
        if why:
            left_out["attention"] = why
        else:
            measured["attention"] = differ
    if of_export:
        side = precision.dtype_of(of_export, dtype, other[0])
        versus["precision"] = f"{dtype} / {precision.label(of_export, side)}"
        if rows := with_model("precision", side, attention, lambda model: precision.quantise(model, of_export)):
            measured["precision"] = measure(rows)
            pairs = zip(prompts, measured["precision"], strict=True)
            if beyond := [prompt["name"] for prompt, steps in pairs if not np.isfinite(worst(steps))]:
                left_out["precision"] = f"{of_export} gives no finite logits for {', '.join(beyond)}"
    versus["dtype"] = versus["dtype"].replace("float64", true_fp64.label(fewer_bits))
    resolutions = [float(np.spacing(np.float32(np.abs(rows[np.isfinite(rows)]).max(initial=0)))) for rows in base]
    result = {
        "prompts": [of_prompt(prompt["name"], n, measured, resolutions[n], own) for n, prompt in enumerate(prompts)],
        "versus": {name: text for name, text in versus.items() if name in measured},
        "left_out": {name: why for name, why in left_out.items() if name in wanted},
        "fewer_bits": dict(fewer_bits),
    }
    with open(os.path.join(out, "noise.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
    lower = "the noise floor is a lower bound, since its finer side is no true one"
    return {"left_out": result["left_out"], "findings": true_fp64.finding(fewer_bits, lower)}


class Rows:
    """Logits of each prompt, on disk: all prompts of a large vocabulary do not fit beside the model."""

    def __init__(self, name: str):
        self.name, self.count = name, 0

    def add(self, logits: np.ndarray) -> None:
        np.save(f"{self.name}-{self.count}.npy", logits)
        self.count += 1

    def __iter__(self):
        return (np.load(f"{self.name}-{n}.npy", mmap_mode="r") for n in range(self.count))


def difference(one: np.ndarray, two: np.ndarray) -> list[float]:
    """The largest absolute difference of each step of two logits [steps, vocab]."""
    return [max_abs_diff(a, b) for a, b in zip(one, two, strict=True)]


def largest(values: list[list[float]]) -> float:
    return worst([worst(steps) for steps in values])


def stands_out(differ: list[list[float]], measured: dict[str, list[list[float]]]) -> bool:
    """Whether a variant's difference is far larger than every other's, or there is no other to tell by."""
    others = [largest(values) for values in measured.values()]
    return largest(differ) > SYSTEMATIC * max(others, default=0.0)


def no_rounding(differ: list[list[float]], finer: list[list[float]] | None, sides: str) -> str:
    """Why the difference of two attentions is no rounding: "" where a finer dtype shrinks it."""
    size = largest(differ)
    if finer is None:
        return f"{sides} differ by {size:.2g}, and no finer dtype is at hand to tell whether that is rounding"
    if largest(finer) > size / SYSTEMATIC:
        return f"{sides} compute different things: they differ by {size:.2g} in a finer dtype too, which is no rounding"
    return ""


def of_prompt(name: str, index: int, measured: dict[str, list[list[float]]], resolution: float, needed: set) -> dict:
    """A prompt's variants and its floor: at least the spacing of fp32 at the size of its logits, which no side can
    be nearer by. None without a variant of `needed`: what is left would be another precision's floor."""
    variants = {variant: values[index] for variant, values in measured.items()}
    known = variants and needed <= variants.keys()
    return {
        "prompt": name,
        "variants": {variant: [finite(value) for value in values] for variant, values in variants.items()},
        "floor": finite(worst([resolution, *map(worst, variants.values())])) if known else None,
    }


def finite(value: float) -> float | None:
    """A reference that gives no number has no floor."""
    return value if np.isfinite(value) else None


def free_memory() -> int | None:
    """Bytes that can be had without swapping, where the system says."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
