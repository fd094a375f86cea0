"""Shared by the benchmarks: cells of a command line, what is prepared before a clock starts, and timed calls."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from db import query
from db.engine import open_database
from db.output import markdown_table
from runner import paths
from runner.cells import Cell
from runner.checkpoints import Inspector
from runner.plan import Plan, Planner
from runner.schema import NOISE_VARIANTS, Limits, Noise, Settings, Verdict
from runner.stages import Stages
from runner.store import Store
from runner.workers import Workers, clean_environment

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Run:
    """A timed command: wall and CPU seconds of it and its children, and what it gave.

    rows: the runner's, one a cell and prompt; a script's, the JSON lines that it printed.
    """

    seconds: float
    cpu_seconds: float
    rows: list[dict]


def default_environments() -> Path:
    """Where the runner keeps environments when nothing else is said."""
    return Path(os.environ.get("PARITYLAB_STORE") or paths.state_root() / "store") / "environments"


def cells_of(overrides: Sequence[str]) -> list[Cell]:
    """The cells that `python -m runner` makes of these overrides."""
    sys.path.insert(0, str(paths.PROJECT / "runner" / "plugins"))
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.types import RunMode
    from hydra_plugins.paritylab import ParitylabSweeper

    from runner import compose, schema

    Plugins.instance().register(ParitylabSweeper)
    ConfigStore.instance().store(name="schema", node=schema.Config, provider="paritylab")
    with initialize_config_dir(str(paths.CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", list(overrides), run_mode=RunMode.MULTIRUN)
        return compose.compose_sweep(loader, master, list(overrides))


def workers_of(root: Path, environments: Path) -> Workers:
    return Workers(1, Limits(600, 600), root / "logs", environments / "bytecode")


def prepare(root: Path, environments: Path, cells: Sequence[Cell]) -> list[Plan]:
    """Resolutions, sources and overlays in a store, and the environments; no artifact of a cell."""

    async def all_of_it() -> list[Plan]:
        store = Store(root)
        judging = Settings(noise=Noise(list(NOISE_VARIANTS)), verdict=Verdict(10.0, 1000.0))
        planner = Planner(store, judging, Inspector(root))
        plans = [await planner.plan(cell) for cell in cells]
        stages = Stages(store, environments, workers_of(root, environments))
        for plan in plans:
            for resolution in plan.resolutions.values():
                await stages.interpreter(resolution)
        return plans

    return asyncio.run(all_of_it())


def harness_cells(root: Path, environments: Path, cells: Sequence[Cell]) -> dict:
    """What `plain_harness.py` and `bare_work.py` are given: overlays, cast checkpoints, the interpreter."""
    plans = prepare(root, environments, cells)

    async def checkpoints() -> tuple[Path, list[Path]]:
        workers = workers_of(root, environments)
        stages = Stages(Store(root), environments, workers)
        try:
            folders = [
                (await stages.produce(cell.name(), plan, "checkpoint", {})).path
                if "checkpoint" in plan.stages
                else plan.checkpoint.path
                for cell, plan in zip(cells, plans, strict=True)
            ]
            return await stages.interpreter(plans[0].resolutions["reference"]), folders
        finally:
            await workers.close()

    python, folders = asyncio.run(checkpoints())
    config = cells[0].config
    assert config is not None
    return {
        "python": str(python),
        "prompts": [prompt.text for prompt in config.prompts.prompts],
        "max_new_tokens": config.max_new_tokens,
        "cells": [
            {"name": name_of(cell), "builder": str(plan.overlay.path / "builder.py"), "checkpoint": str(folder)}
            for cell, plan, folder in zip(cells, plans, folders, strict=True)
        ],
    }


def name_of(cell: Cell) -> str:
    return " ".join(cell.factors[factor] for factor in ("dtype", "layers", "patch"))


def timed(command: Sequence[str], variables: dict[str, str] | None = None) -> tuple[Run, str]:
    """Run a command in the project's folder. Errors: `RuntimeError` with the end of what it said."""
    used, started = children_cpu_seconds(), time.perf_counter()
    done = subprocess.run(command, cwd=paths.PROJECT, env=variables, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-3000:]}")
    return Run(seconds, children_cpu_seconds() - used, []), done.stdout


def children_cpu_seconds() -> float:
    """CPU time of all ended children; what else the machine does is not in it."""
    times = os.times()
    return times.children_user + times.children_system


def call_script(script: str, python: str, asked: dict, folder: Path, byte_code: bool = True) -> Run:
    """Run a script of this folder on `asked`.

    Byte code of everything imported is kept in `folder`, as an installation
    by pip would have left it beside the packages; or, if so asked, nowhere.
    """
    request = folder / "cells.json"
    request.write_text(json.dumps(asked), encoding="utf-8")
    variables = clean_environment(folder / "bytecode")
    if not byte_code:
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    run, printed = timed([python, str(HERE / script), str(request)], variables)
    return replace(run, rows=[json.loads(line) for line in printed.splitlines() if line.startswith("{")])


def run_lab(overrides: Sequence[str], folder: Path, environments: Path) -> Run:
    """`python -m runner` on `folder`'s store and database; every cell must be ok."""
    database = folder / "results.db"
    settings = [f"store.root={folder / 'store'}", f"store.environments={environments}", f"db.url={database}"]
    run, _ = timed([sys.executable, "-m", "runner", "-m", *overrides, *settings])
    engine = open_database(str(database), create=False)
    rows = query.result_rows(engine, sweep=query.sweep_id(engine, "latest"))
    engine.dispose()
    return replace(run, rows=rows)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table; seconds and ratios with the digits that count."""
    return markdown_table(header, [[figure(value) for value in row] for row in rows])


def figure(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def machine_line() -> str:
    """What the figures depend on: cores, and how busy they were when it began."""
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{os.cpu_count()} CPU cores{load} at the start."
