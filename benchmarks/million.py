"""``python -m benchmarks.million``: how fast reports and queries answer on a database of a million prompt rows.

The database is made once (``--db``): sweeps of cells over releases, patches,
dtypes, layers and models, each with its summary, its per-factor hashes and its
prompts. Numbers are drawn at random, so that every report has something to
show; nothing is computed. Timed is each command's own work, in a process that
has its imports behind it, the least of some repeats; and the commands' start.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from db import engine as database
from db import frames, query, record, sql, why
from db import history as releases
from db.models import (
    AXES,
    FACTORS,
    VERDICTS,
    Cell,
    CellRest,
    ChangeOutcome,
    Environment,
    Machine,
    Package,
    PromptResult,
    Result,
    Sweep,
)
from reports import depth, history, noise, pairs, proof, regressions, sweep

BUILDERS = ("0.12.2", "0.13.2", "0.14.1", "0.15.2", "0.16.0", "0.17.1", "0.18.0", "main")
PATCHES = {"none": (), "fix_a": ("a",), "fix_b": ("b",), "fix_a+fix_b": ("a", "b")}
DTYPES, LAYERS = ("bf16", "fp32"), ("1", "2", "6", "all")
PER_SWEEP = len(BUILDERS) * len(PATCHES) * len(DTYPES) * len(LAYERS)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__.splitlines()[0])
    parser.add_argument("--db", type=Path, default=Path("million.db"), help="made where it is not there")
    parser.add_argument("--rows", type=int, default=1_000_000, help="prompt rows")
    parser.add_argument("--prompts", type=int, default=10, help="prompts a cell")
    parser.add_argument("--repeats", type=int, default=3)
    return parser


def make(path: Path, rows: int, prompts: int) -> None:
    """Fill a database with `rows` prompt rows. Deterministic."""
    rng = random.Random(0)
    engine = database.open_database(str(path))
    cells = rows // prompts
    with database.writing(engine) as session:
        packages = [Package(name=f"package{n}", version="1") for n in range(40)]
        session.add(Environment(hash="e", platform="p", packages=packages))
        session.add(Machine(hash="m", host="h", system="s", processor="p", cores=2, memory_bytes=1))
    for start in range(0, cells, PER_SWEEP):
        with database.writing(engine) as session:
            fill_sweep(session, rng, start, min(PER_SWEEP, cells - start), prompts)
    engine.dispose()


def fill_sweep(session, rng: random.Random, start: int, count: int, prompts: int) -> None:
    """One sweep of `count` cells, their ids from `start` + 1 on; a model has two sweeps, newest numbers last."""
    number = start // PER_SWEEP
    when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    session.add(Sweep(started=when, ended=when, state="done", overrides=["-m"], host="h", pid=1, version="1"))
    session.flush()
    found: dict[type, list[dict]] = {table: [] for table in (Result, Cell, ChangeOutcome, CellRest, PromptResult)}
    axes = itertools.islice(itertools.product(BUILDERS, PATCHES, DTYPES, LAYERS), count)
    for position, (builder, patch, dtype, layers) in enumerate(axes):
        ident = start + position + 1
        factors = dict.fromkeys(FACTORS, "x") | {
            "model": f"model{number // 2}", "builder": builder, "patch": patch, "dtype": dtype, "layers": layers,
        }  # fmt: skip
        multiple = 10 ** rng.uniform(-0.3, 6) / (100 ** len(PATCHES[patch]))
        verdict = "within_noise" if multiple <= 10 else "elevated" if multiple <= 1000 else "broken"
        found[Cell].append({
            "id": ident, "sweep_id": number + 1, "position": position, "hash": "/".join(factors.values()),
            "options": "", "config": {}, "source_tree": f"tree{builder}", "result_id": ident, "found": False,
            "patch_outcome": "applied" if PATCHES[patch] else "none", **factors,
        })  # fmt: skip
        found[Result].append({
            "id": ident, "hash": str(ident), "status": "ok", "final": True, "created": when, "measurement_version": 2,
            "checkpoint_hash": f"c{number}", "checkpoint_dtype": dtype, "files_dtype": dtype, "prompts_key": "p",
            "layer_count": 26 if layers == "all" else int(layers), "machine_id": 1,
            "thresholds": {"within": 10.0, "broken": 1000.0},
            "builder_environment_id": 1, "runtime_environment_id": 1, "reference_environment_id": 1,
            "prompts_count": prompts, "identical_count": prompts, "sensible_count": prompts, "nonsense_count": 0,
            "candidate_sensible_count": prompts, "first_diff_least": 1e-6, "first_diff_largest": multiple * 1e-6,
            "diff_least": 1e-6, "diff_largest": multiple * 1e-6, "forced_diff_largest": multiple * 1e-6,
            "non_finite_count": 0, "noise_floor_largest": 1e-6, "noise_ratio_largest": multiple,
            "multiple_largest": multiple, "verdict": verdict, "noise_key": f"n{number}",
            "overlay_tree": builder + patch,
        })  # fmt: skip
        found[ChangeOutcome] += [
            {"cell_id": ident, "position": n, "change": name, "hash": name, "status": "applied", "detail": ""}
            for n, name in enumerate(PATCHES[patch])
        ]
        values = [factors.get(axis, "") for axis in AXES]
        found[CellRest] += [
            {"axis": n, "rest": record.rest_of([*values[:n], *values[n + 1 :]]), "cell_id": ident,
             "verdict": VERDICTS.index(verdict)}
            for n in range(len(AXES))
        ]  # fmt: skip
        found[PromptResult] += [
            {
                "result_id": ident, "position": n, "prompt": f"p{n}", "first_logits_max_abs_diff": multiple * 1e-6,
                "logits_max_abs_diff": multiple * 1e-6, "matched_tokens": 20, "compared_tokens": 20,
                "tokens_identical": True, "noise_floor": 1e-6, "noise_ratio": multiple, "verdict": verdict,
                "sensible": True, "candidate_sensible": True, "outcome": "answer", "reference_range": 12.0,
                "reference_vocab": 8, "candidate_vocab": 8, "reference_text": "Paris.", "candidate_text": "Paris.",
            }
            for n in range(prompts)
        ]  # fmt: skip
    for table, values in found.items():
        session.execute(insert(table), values)


def questions(path: str) -> dict[str, Callable[[], Any]]:
    """What is timed, by its command."""
    engine = database.open_database(path)
    none: dict[str, list[str]] = {}
    model = {"model": ["model1"]}
    return {
        "reports sweep": lambda: sweep.markdown(sweep.collect(path)),
        "reports proof": lambda: proof.markdown(proof.collect(path, none)),
        "reports proof --model": lambda: proof.markdown(proof.collect(path, model)),
        "reports pairs": lambda: pairs.markdown(pairs.collect(path, none)),
        "reports history": lambda: history.markdown(history.collect(path, {"patch": ["none"]})),
        "reports history --model": lambda: history.markdown(history.collect(path, {"patch": ["none"], **model})),
        "reports regressions": lambda: regressions.markdown(regressions.collect(path, {"patch": ["none"]})),
        "reports depth --model": lambda: depth.markdown(depth.collect(path, model)),
        "reports noise --model": lambda: noise.markdown(noise.collect(path, model)),
        "db results --sweep latest": lambda: query.result_rows(engine, sweep=query.sweep_id(engine, "latest")),
        "db cells --model": lambda: query.cell_rows(engine, model),
        "db history --model": lambda: releases.history_rows(engine, model),
        "db sweeps": lambda: query.sweep_rows(engine),
        "db why": lambda: why.why(engine, 77),
        "db diff": lambda: why.diff_rows(engine, 77, 78),
        "db sql (count)": lambda: sql.read(engine, "SELECT count(*) FROM cell"),
        "db.frame('cells', model=…)": lambda: frames.frame("cells", db=path, model="model1"),
    }


def seconds(action: Callable[[], Any], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best


def start_up(repeats: int) -> dict[str, float]:
    """Seconds of a command that does nothing but start."""
    commands = {"db --help": ["-m", "db", "--help"], "reports --help": ["-m", "reports", "--help"]}
    return {
        name: seconds(lambda c=command: subprocess.run([sys.executable, *c], capture_output=True, check=True), repeats)
        for name, command in commands.items()
    }


def main() -> None:
    options = parser().parse_args()
    if not options.db.exists():
        started = time.perf_counter()
        make(options.db, options.rows, options.prompts)
        print(f"made {options.db}: {time.perf_counter() - started:.0f} s, {options.db.stat().st_size / 1e6:.0f} MB")
    print("| command | seconds |\n|---|---|")
    timed = {name: seconds(action, options.repeats) for name, action in questions(str(options.db)).items()}
    for name, value in (timed | start_up(options.repeats)).items():
        print(f"| `{name}` | {value:.3f} |")


if __name__ == "__main__":
    main()
