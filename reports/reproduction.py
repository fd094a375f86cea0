"""How a cell is made again by somebody who has pip, and not this project."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from db import detail
from db.output import markdown_text
from reports.table import cells

MAIN_PACKAGES = (
    "onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "transformers", "torch", "numpy", "tokenizers",
    "safetensors", "huggingface-hub",
)  # fmt: skip
INSIDE = 'import importlib.util as u; print(u.find_spec("onnxruntime_genai").submodule_search_locations[0])'
PUBLIC_REPOSITORY = "https://github.com/microsoft/onnxruntime-genai"


def package_files(facts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The environments by file name: ROLE, or ROLE-VALUE where cells have different ones; each with its "cells"."""
    files: dict[str, dict[str, Any]] = {}
    for role in detail.ROLES:
        made: dict[str, dict[str, Any]] = {}
        for fact in facts:
            if environment := fact["environments"].get(role):
                entry = made.setdefault(
                    environment["hash"], {**environment, "role": role, "cells": [], "of": fact["row"]}
                )
                entry["cells"].append(fact["row"]["cell"])
        for entry in made.values():
            value = re.sub(r"[^\w.-]", "_", entry["of"][role])
            stem = role if len(made) == 1 else f"{role}-{value}"
            files[stem if stem not in files else f"{stem}-cell-{entry['of']['cell']}"] = entry
    return files


def reproduce(
    facts: Sequence[Mapping[str, Any]],
    packages: Mapping[str, Mapping[str, Any]],
    sets: Sequence[Mapping[str, Any]],
    altered: Sequence[str],
) -> str:
    """Commands that need pip, onnxruntime-genai and transformers only."""
    venvs: dict[str, str] = {}
    for stem, entry in packages.items():
        venvs.setdefault(entry["hash"], stem)
    system = ", ".join(sorted({entry["platform"] for entry in packages.values()}))
    block = [line for stem in venvs.values() for line in install(stem, packages[stem])]
    parts = [
        "## Reproduce it", "",
        f"The environments ({system}); `packages/` has every version, and which cells used which:", "",
        *(f"- `packages/{stem}.txt`: {made['role']}, {cells(made['cells'])}" for stem, made in packages.items()),
        "", "```", *block, "```", "",
        "A torch version that ends in +cpu is PyTorch's CPU build. Each checkpoint is a folder of its model's name.",
    ]  # fmt: skip
    with_prompts = {cell for one in sets for cell in one["cells"]}
    for fact in facts:
        row = fact["row"]
        title = f"{row['model']}, builder {row['builder']}, patch {row['patch']}"
        parts += [
            "",
            f"### Cell {row['cell']}: {markdown_text(title)}",
            "",
            *steps(fact, venvs, row["status"] == "ok" and row["cell"] in with_prompts),
        ]
    if altered:
        parts += ["", f"Names or places are replaced in {', '.join(altered)}, which may not apply for that."]
    return "\n".join(parts)


def install(stem: str, entry: Mapping[str, Any]) -> list[str]:
    packages = entry["packages"]
    named = [f"{name}=={packages[name].split('+')[0]}" for name in MAIN_PACKAGES if name in packages]
    return [f"python -m venv {stem}", f"{stem}/bin/pip install {' '.join(named)}"]


def steps(fact: Mapping[str, Any], venvs: Mapping[str, str], compared: bool) -> list[str]:
    """How one cell is made again: its notes, then its commands."""
    row, config, made = fact["row"], fact["config"], fact["environments"]
    cell, builder, backend = row["cell"], config.get("builder", {}), config.get("backend", {})
    if row["builder"] == "none":
        return [
            f"No builder's export: backend {row['backend']}, {row['source'] or row['status']}. The command in"
            " `commands.txt` computes it again."
        ]
    if "builder" not in made:
        return [f"No export that could be made again: {row['status']} on backend {row['backend']}."]
    python = {role: f"{venvs[environment['hash']]}/bin/python" for role, environment in made.items()}
    notes, block, model, patch = [], [], row["model"], f"< cell-{cell}.patch.diff"
    if builder.get("kind", "release") == "release":
        script, folder = "-m onnxruntime_genai.models.builder", '"$models"'
        block += [f"models=$({python['builder']} -c {shlex.quote(INSIDE)})", 'models="$models"/models'] * bool(
            fact["diff"]
        )
    else:
        folder = "sources/src/python/py/models"
        script = f"{folder}/builder.py"
        block += [f"git clone {PUBLIC_REPOSITORY} sources", f"git -C sources checkout {fact['commit'] or 'COMMIT'}"]
        if fact["dirty"] or not fact["commit"]:
            notes.append("The builder's sources are a working copy that is no commit; `hashes.json` has its hash.")
    if row["files_dtype"] and row["files_dtype"] != row["checkpoint_dtype"]:
        model = f"{model}-{row['files_dtype']}"
        notes.append(f"`{model}` is the checkpoint with every tensor cast to {row['files_dtype']}, config.json too.")
    if row["layers"] != "all":
        model = f"{model}-{row['layers']}-layers"
        notes.append(f"`{model}` is the checkpoint without the tensors after layer {row['layers']}, config.json too.")
    extra = [shlex.quote(f"{key}={value}") for key, value in (backend.get("extra_options") or {}).items()]
    options = f" --extra_options {' '.join(extra)}" if extra else ""
    block += [f"patch -p1 -d {folder} {patch}"] * bool(fact["diff"])
    block.append(
        f"{python['builder']} {script} -i {shlex.quote(model)} -o export-{cell} -p {row['precision']}"
        f" -e {backend.get('execution_provider', 'cpu')} -c cache-{cell}{options}"
    )
    block += [f"patch -R -p1 -d {folder} {patch}"] * bool(fact["diff"])
    if compared:
        block.append(f"{python['reference']} compare.py reference {shlex.quote(model)} {cell}")
        block.append(f"{python['runtime']} compare.py export export-{cell} {cell}")
    return [*(note + "\n" for note in notes), "```", *block, "```"]


# Written beside the evidence, with the prompts' ids: both sides as the runner measures them, in few lines.
COMPARE = '''"""Greedy on both sides from the ids in prompts.json.

python compare.py reference MODEL_FOLDER CELL    writes reference-CELL.npz
python compare.py export EXPORT_FOLDER CELL      compares with it and prints a line a prompt
"""

import json
import sys
from pathlib import Path

import numpy as np

side, folder, cell = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
sets = json.loads(Path("prompts.json").read_text(encoding="utf-8"))["sets"]
wanted = next(one for one in sets if cell in one["cells"])
saved = f"reference-{cell}.npz"


def greedy(step, ids, ends):
    """Tokens, and the logits of each step; step(new ids) gives the last position's."""
    tokens, rows, new = [], [], ids
    while len(tokens) < wanted["max_new_tokens"]:
        rows.append(step(new))
        tokens.append(int(rows[-1].argmax()))
        if tokens[-1] in ends:
            break
        new = tokens[-1:]
    return tokens, np.stack(rows)


def reference():
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(wanted["threads"])
    dtype = getattr(torch, wanted["compute_dtype"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=wanted["attention"]).eval()
    ends = set()
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text(encoding="utf-8")) if (folder / name).exists() else {}
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id")
            ends.update([value] if isinstance(value, int) else value or [])
    ends = ends if wanted["stop_at_end"] else set()
    found = {"ends": np.array(sorted(ends), dtype=np.int64)}
    for n, prompt in enumerate(wanted["prompts"]):
        cache = [None]

        def step(new):
            with torch.inference_mode():
                out = model(input_ids=torch.tensor([new]), past_key_values=cache[0], use_cache=True)
            cache[0] = out.past_key_values
            return out.logits[0, -1].float().numpy()

        found[f"tokens{n}"], found[f"logits{n}"] = greedy(step, prompt["ids"], ends)
    np.savez(saved, **found)


def export():
    import onnxruntime_genai as og

    config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    window = (config["decoder"].get("sliding_window") or {}).get("window_size") or 0
    model, ours = og.Model(str(folder)), np.load(saved)
    for n, prompt in enumerate(wanted["prompts"]):
        params = og.GeneratorParams(model)
        length = max(len(prompt["ids"]) + wanted["max_new_tokens"], window + 1)
        params.set_search_options(max_length=min(length, config["context_length"]), batch_size=1)
        generator = og.Generator(model, params)

        def step(new):
            generator.append_tokens(np.array([new], dtype=np.int32))
            return np.array(generator.get_logits(), dtype=np.float32).reshape(-1)

        tokens, logits = greedy(step, prompt["ids"], set(ours["ends"].tolist()))
        right = ours[f"tokens{n}"].tolist()
        same = next((i for i, (a, b) in enumerate(zip(tokens, right)) if a != b), min(len(tokens), len(right)))
        count = min(same + 1, len(tokens), len(right))
        diffs = np.abs(ours[f"logits{n}"][:count] - logits[:count]).max(axis=1)
        words = "identical" if tokens == right else f"parts at {same}"
        print(f"{prompt['name']}: first token {diffs[0]:.2g}, largest {diffs.max():.2g}, {words}")


{"reference": reference, "export": export}[side]()
'''
