"""The folder's data: prompts, numbers, hashes, where texts part, and the runner's commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from db import detail, query
from db.models import FACTORS
from db.output import markdown_table, markdown_text
from reports.evidence.checkpoints import Given
from reports.table import cells as cells_of
from reports.table import number

PROMPT_COLUMNS = (
    "matched_tokens", "compared_tokens", "tokens_identical", "noise_floor", "noise_ratio", "forced_noise_ratio",
    "verdict", "outcome", "reference_outcome", "sensible", "candidate_sensible", "reference_text", "candidate_text",
)  # fmt: skip
VARIANTS = ["attention", "dtype", "passes", "threads"]  # of a reference whose noise was not measured
OURS = ("store.", "db.", "env.python", "limits.", "hydra", "jobs=", "rerun=")  # overrides that say where and how


def as_json(data: Any) -> str:
    """Indented, but for lists of plain numbers."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\n\s*[\d\s,.e+-]+\]", lambda found: "".join(found[0].split()).replace(",", ", "), text) + "\n"


def prompt_sets(
    engine: Engine, facts: Sequence[Mapping[str, Any]], given: Mapping[int, Given], results: Mapping[int, Mapping]
) -> list[dict[str, Any]]:
    """What both sides were given, once for the cells that share it, with what the scripts need to know."""
    sets: dict[str, dict[str, Any]] = {}
    for fact in facts:
        cell, config = fact["row"]["cell"], fact["config"]
        rows = detail.input_rows(engine, cell)
        if not rows:
            continue
        reference, noise = config.get("reference", {}), fact["noise"]
        settings = {
            "folder": given[cell].folder,
            "max_new_tokens": int(fact["row"]["max_new_tokens"]), "threads": int(fact["row"]["threads"]),
            "stop_at_end": config.get("prompts", {}).get("stop_at_end", True),
            "compute_dtype": reference.get("compute_dtype", "float32"),
            "attention": reference.get("attention", "eager"),
            "template_hash": rows[0]["template_hash"], "template_source": rows[0]["template_source"],
        }  # fmt: skip
        asked = {p.get("name"): p.get("text") for p in config.get("prompts", {}).get("prompts") or []}
        told = [
            {"name": row["prompt"], "user_text": asked.get(row["prompt"]), "text": row["text"], "ids": row["ids"]}
            for row in rows
        ]
        of = fact["environments"].get("reference", {}).get("hash")
        key = json.dumps([settings, fact["hashes"]["prompts"], of], sort_keys=True)
        unmeasured = {"variants": VARIANTS, "left_out": {}, "noise": [], "forced": True}
        one = sets.setdefault(key, {"cells": [], **settings, **unmeasured, "prompts": told})
        one["cells"].append(cell)
        measured = {prompt["prompt"]: prompt for prompt in results[cell]["prompts"]}
        if measured and not one["noise"]:
            one["variants"] = sorted({name for values in noise["prompts"].values() for name in values})
            one["left_out"] = noise["left_out"]
            one["noise"] = [
                {"prompt": name, "variants": noise["prompts"].get(name, {}), "floor": prompt["noise_floor"]}
                for name, prompt in measured.items()
            ]
            one["forced"] = all(p["metrics"].get("forced_logits_max_abs_diff") is not None for p in measured.values())
    return list(sets.values())


def results_of(engine: Engine, fact: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's outcome and every number of each prompt."""
    row = fact["row"]
    prompts = detail.prompts_of(engine, [row["result"]]).get(row["result"], [])
    numbers = {n["prompt"]: n for n in detail.metric_rows(engine, row["cell"], steps=False)}
    factors = {name: row[name] for name in (*FACTORS, "options")}
    failure = {name: fact[name] for name in ("error", "error_type", "error_frame", "stderr") if fact[name]}
    each = [
        {"prompt": p.prompt}
        | {
            name: query.KINDS[p.non_finite[name]] if name in (p.non_finite or {}) else getattr(p, name)
            for name in PROMPT_COLUMNS
        }
        | {"metrics": {k: v for k, v in numbers.get(p.prompt, {}).items() if k not in ("prompt", "step")}}
        for p in prompts
    ]
    head = {"cell": row["cell"], **factors, "status": row["status"], "verdict": row["verdict"], **failure}
    head |= {"multiple_of_noise": row["multiple"], "thresholds": row["thresholds"]}
    own = {"own_way": fact["own_way"]} if fact["own_way"] else {}
    return {**head, **own, "prompts": each}


def with_checks(results: Sequence[dict[str, Any]], expect: Mapping[str, Any]) -> None:
    """Say of each cell what the unit test of it gives: {"bound" in multiples of the noise, "expected", "why"}."""
    bound = bound_of(results, expect)
    thresholds = next((one["thresholds"] for one in results if one["thresholds"]), None)
    for one in results:
        one["thresholds"] = one["thresholds"] or thresholds
        check = {"bound": bound, "expected": None, "why": ""}
        if one["builder"] == "none":
            pass  # nothing that a builder made
        elif one["status"] == "export_failed":
            check |= {"expected": "fails", "why": "the builder does not export this checkpoint"}
        elif one["status"] in ("load_failed", "run_failed"):
            word = "load" if one["status"] == "load_failed" else "run"
            check |= {"expected": "fails", "why": f"the runtime does not {word} this export"}
        elif one["status"] == "ok" and one["prompts"] and bound is not None and one["multiple_of_noise"] is not None:
            parted = [prompt["prompt"] for prompt in one["prompts"] if not prompt["tokens_identical"]]
            multiple = one["multiple_of_noise"]
            why = [f"{len(parted)} of {len(one['prompts'])} texts part from the reference's"] if parted else []
            why += [f"up to {number(multiple)} × noise is above {bound:g} ×"] if multiple > bound else []
            right = f"the tokens are the reference's, and the logits within {bound:g} × noise ({number(multiple)} ×)"
            check |= {"expected": "fails" if why else "passes", "why": ", and ".join(why) or right}
        one["check"] = check


def bound_of(results: Sequence[Mapping[str, Any]], expect: Mapping[str, Any]) -> float | None:
    """The multiple of the noise that a right export stays within: what the claim allows, else a verdict's threshold."""
    if asked := [float(expect[name]) for name in ("at_most", "multiple_at_most") if name in expect]:
        return min(asked)
    thresholds = next((one["thresholds"] for one in results if one["thresholds"]), None)
    if thresholds is None:
        return None
    if "verdict" in expect:
        return thresholds["broken" if "elevated" in expect["verdict"] else "within"]
    within = any(one["verdict"] == "within_noise" for one in results)
    return thresholds["within" if within else "broken"]


def hashes(fact: Mapping[str, Any]) -> dict[str, Any]:
    environments = {role: made["hash"] for role, made in fact["environments"].items()}
    return {"cell": fact["row"]["cell"], **fact["hashes"], "environments": environments}


def parting(engine: Engine, facts: Sequence[Mapping[str, Any]]) -> str:
    """Where texts part: the step, by how little the reference chose, and what each side thought likeliest."""
    parts = []
    for fact in facts:
        row = fact["row"]
        for prompt in detail.prompts_of(engine, [row["result"]]).get(row["result"], []):
            if prompt.parting is None:
                continue
            gap = prompt.parting["gap"] or {}
            value = number(gap["value"]) if gap.get("kind") == "finite" else gap.get("kind", "unknown")
            sides = [prompt.parting["top"].get(side) or [] for side in ("reference", "candidate")]
            body = [
                [n + 1, *(cell for side in sides for cell in (side[n] if n < len(side) else [None] * 3))]
                for n in range(max(map(len, sides)))
            ]
            header = ["", "reference: id", "token", "logit", "export: id", "token", "logit"]
            parts.append(
                f"## Cell {row['cell']}, prompt {markdown_text(prompt.prompt)}\n\nThe texts part at step"
                f" {prompt.parting['step']} (from 0). There the reference's two best tokens are {value} apart.\n\n"
                + markdown_table(header, body)
            )
    return "\n\n".join(["# Where the texts part", *(parts or ["They part nowhere."])]) + "\n"


def commands(facts: Sequence[Mapping[str, Any]]) -> str:
    """The runner's commands of the cells' sweeps, without what says where they ran."""
    found = {}
    for fact in facts:
        kept = [word for word in fact["overrides"] if not word.lstrip("+~").startswith(OURS)]
        found.setdefault(shlex.join(["python", "-m", "runner", *kept]), []).append(fact["row"]["cell"])
    return "".join(f"# {cells_of(cells)}\n{command}\n" for command, cells in found.items())
