"""How far the reference moves by itself: no export can be asked to be nearer than that.

python noise.py CELL    after reference.py; writes made/noise-N.json, N being the number of the cell's prompt set

The same weights and tokens, computed in float64 throughout (wide.py), with the
other attention, with another number of threads, and in one pass instead of
step by step. A prompt's floor is the largest difference of all of its steps,
and at least the spacing of fp32 at its logits.
"""

from __future__ import annotations

import json
import os
import sys

import given
import numpy as np
import reference
import torch

OTHER_DTYPE = {"float32": "float64", "float64": "float32", "bfloat16": "float32", "float16": "float32"}


def variants(wanted: dict, steps: list[list[int]], stepwise: list[np.ndarray]) -> tuple[list[np.ndarray], dict]:
    """The logits of one pass a prompt, and those of each variant, by its name."""
    pairs = [(prompt["ids"], tokens) for prompt, tokens in zip(wanted["prompts"], steps, strict=True)]

    def passes(model) -> list[np.ndarray]:
        return [reference.forced(model, *pair) for pair in pairs]

    model = reference.load(wanted)
    base, found = passes(model), {}
    if "passes" in wanted["variants"]:
        found["passes"] = stepwise
    if "threads" in wanted["variants"]:
        torch.set_num_threads(1 if wanted["threads"] > 1 else max(2, os.cpu_count() or 1))
        found["threads"] = passes(model)
        torch.set_num_threads(wanted["threads"])
    other = "sdpa" if wanted["attention"] == "eager" else "eager"
    loads = {"dtype": {"dtype": OTHER_DTYPE[wanted["compute_dtype"]]}, "attention": {"attention": other}}
    for name in loads.keys() & set(wanted["variants"]):
        try:
            found[name] = passes(reference.load(wanted, **loads[name]))
        except Exception as error:  # an operator that torch has not in float64, say: the floor stands on the others
            print(f"  left out: {name}: {type(error).__name__}: {error}")
    return base, found


def floors(wanted: dict, base: list[np.ndarray], found: dict) -> list[dict]:
    """A prompt's largest difference for each variant, and its floor."""
    rows = []
    for n, prompt in enumerate(wanted["prompts"]):
        sizes = {name: float(np.abs(logits[n] - base[n]).max()) for name, logits in found.items()}
        spacing = float(np.spacing(np.float32(np.abs(base[n]).max())))
        rows.append({"prompt": prompt["name"], "variants": sizes, "floor": max([spacing, *sizes.values()])})
    return rows


def main(cell: int) -> None:
    wanted = given.prompt_set(cell)
    torch.set_num_threads(wanted["threads"])
    saved = np.load(given.MADE / f"reference-{wanted['number']}.npz")
    count = range(len(wanted["prompts"]))
    base, found = variants(wanted, [saved[f"tokens{n}"].tolist() for n in count], [saved[f"logits{n}"] for n in count])
    rows = floors(wanted, base, found)
    for row, before in zip(rows, wanted["noise"], strict=True):
        print(given.beside(given.floor_line(row), given.floor_line(before)))
    for name, why in wanted["left_out"].items():
        print(f"  left out: {name}: {why}")
    (given.MADE / f"noise-{wanted['number']}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]))
