"""Results made by hand, as a comparison writes them, for tests of what is stored and shown."""

from __future__ import annotations

import math
from dataclasses import replace

from db import record
from db.models import FACTORS, MEASUREMENT_VERSION
from db.record import NewResult, Provenance


def cell(**factors: str) -> dict:
    values = dict.fromkeys(FACTORS, "v") | factors
    return {"hash": "/".join(values.values()), "config": {"a": 1}, **values}


def number(value: float) -> dict:
    kinds = {math.inf: "+inf", -math.inf: "-inf"}
    kind = "nan" if math.isnan(value) else kinds.get(value, "finite")
    return {"value": value if kind == "finite" else None, "kind": kind}


def prompt(name: str, first: float, worst: float, identical: bool = True, sensible: bool | None = True) -> dict:
    return {
        "prompt": name,
        "metrics": {
            "first_logits_max_abs_diff": number(first),
            "logits_max_abs_diff": number(worst),
            "forced_logits_max_abs_diff": number(worst),
        },
        "noise_floor": number(0.5),
        "noise_ratio": number(worst / 0.5),
        "forced_noise_ratio": number(worst / 0.5),
        "verdict": "within_noise" if worst < 2 else "broken",
        "within_bands": True,
        "parting": None,
        "reference_outcome": "answer",
        "steps": {"logits_max_abs_diff": [number(first), number(worst)]},
        "reference_range": number(10.0),
        "vocab": [8, 8],
        "matched_tokens": 2,
        "compared_tokens": 3,
        "tokens_identical": identical,
        "sensible": sensible,
        "candidate_sensible": sensible,
        "outcome": "answer",
        "reference_text": "a",
        "candidate_text": "b",
    }


def tensor(name: str = "model.layers.*.mlp.up_proj.weight", outcome: str = "cast", **more) -> dict:
    """A row of a loader audit."""
    return {
        "loader": "transformers", "name": name, "layers": [0, 1, 2] if "*" in name else None,
        "count": 3 if "*" in name else 1, "kind": "parameter", "outcome": outcome, "shape": [64, 128],
        "held": [64, 128], "stored": "bfloat16", "loaded": "float32", "says": "",
    } | more  # fmt: skip


def with_loading(result: NewResult, key: str = "k", **sides: list[dict]) -> NewResult:
    """A result with the loader audits of its sides, of "checkpoint" too; `key` tells its artifacts from others'."""
    stages = [
        {"stage": side, "key": f"{side}-{key}", "found": False, "seconds": 1.0, "peak_memory_bytes": 5}
        for side in sides
        if side != "checkpoint"
    ]
    made = f"checkpoint-{key}" if "checkpoint" in sides else None
    rows = [row for side, found in sides.items() for row in record.loading_rows(f"{side}-{key}", found)]
    return replace(result, values={**result.values, "model_key": made}, stages=stages, loading=rows)


PATCH = Provenance({"patch_outcome": "applied"}, [{"change": "c", "status": "applied", "detail": "d"}])


def ok(*prompts: dict, hash: str = "r", **values) -> NewResult:
    common = {"hash": hash, "status": "ok", "final": True, "measurement_version": MEASUREMENT_VERSION}
    environment = {"hash": "e", "platform": "p", "packages": {"torch": "2", "numpy": "1"}}
    return NewResult(
        common | values,
        {"builder": environment, "runtime": environment, "reference": environment},
        {"hash": "m", "host": "h", "system": "s", "processor": "p", "cores": 2, "memory_bytes": 1},
        [{"stage": "export", "key": "k", "found": False, "seconds": 1.0, "peak_memory_bytes": 5}],
        prompts,
    )


def environment(**packages: str) -> dict:
    return {"hash": str(packages), "platform": "p", "packages": packages}


def changed(*names: str, hash: str = "h", status: str = "applied", **values) -> Provenance:
    outcomes = [{"change": n, "hash": f"{n}-{hash}", "status": status, "detail": ""} for n in names]
    return Provenance({"source_tree": "s", "patch_outcome": status if names else "none", **values}, outcomes)


def store(engine, factors: dict, made: Provenance, result=None, **packages: str) -> int:
    """One cell; its builder's packages by name. Returns its id."""
    _, (ident,) = record.begin_sweep(engine, ["-m"], "1", [cell(**factors)])
    new = result or ok(prompt("p", 1, 1), hash=str(ident))
    new = replace(new, values={"overlay_tree": "t", **new.values})
    if packages:
        new = replace(new, environments={**new.environments, "builder": environment(**packages)})
    record.record_result(engine, ident, new, made)
    return ident
