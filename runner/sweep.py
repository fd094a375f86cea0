"""Cells in, rows out: the one call behind every action. It knows nothing of Hydra.

A sweep is planned whole, so that finished cells are known before anything
starts; the others run side by side, each outcome recorded as it comes. A sweep
never ends because a cell did.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sqlalchemy import Engine

from db import engine as database
from db import record
from runner import environments, hashing, machine, paths, schema
from runner.cells import FACTORS, Cell, plain
from runner.checkpoints import Inspector
from runner.failures import Failure, Skipped, StoreFailed
from runner.plan import MEASUREMENT_VERSION, Plan, Planner
from runner.progress import SweepProgress
from runner.stages import StageRun, Stages
from runner.store import Store
from runner.workers import Workers


@dataclass(frozen=True)
class Row:
    """What became of a cell. `found`: the result was there before this sweep."""

    sweep: int
    cell: int
    factors: dict[str, str]
    status: str
    found: bool
    result: int
    error: str = ""
    hint: str = ""


class Interrupted(Exception):
    """The sweep was interrupted; `rows` are those of the cells that were done, `sweep` its id."""

    def __init__(self, sweep: int, rows: list[Row]):
        super().__init__(f"sweep {sweep} was interrupted")
        self.sweep, self.rows = sweep, rows


def run(cells: Sequence[Cell], settings: schema.Settings, overrides: Sequence[str] = ()) -> list[Row]:
    """Run a sweep and return a row for each cell, in order.

    Finished cells are found, not run; equal cells run once. Errors:
    `db.engine.DatabaseProblem` before anything starts; `Interrupted` after
    Ctrl-C, with every cell's row written.
    """
    engine = database.open_database(settings.db.url)
    entries = [
        {"hash": cell.hash, "config": cell.asked(), **dict.fromkeys(FACTORS, ""), **cell.factors} for cell in cells
    ]
    sweep_id, cell_ids = record.begin_sweep(engine, overrides, project_version(), entries)
    job = SweepJob(engine, settings, sweep_id, list(zip(cell_ids, cells, strict=True)))
    state = "failed"
    try:
        asyncio.run(job.run())
        state = "done"
    except (KeyboardInterrupt, asyncio.CancelledError):
        state = "interrupted"
        job.skip_rest("the sweep was interrupted")
        raise Interrupted(sweep_id, job.in_order()) from None
    finally:
        record.end_sweep(engine, sweep_id, state)
        engine.dispose()
    return job.in_order()


class SweepJob:
    """One sweep on its way."""

    def __init__(self, engine: Engine, settings: schema.Settings, sweep_id: int, cells: list[tuple[int, Cell]]):
        self.engine, self.settings, self.sweep_id, self.cells = engine, settings, sweep_id, cells
        self.rows: dict[int, Row] = {}
        self.results: dict[str, asyncio.Future[tuple[int, str, str, str]]] = {}
        root = settings.store.root or os.environ.get("PARITYLAB_STORE")
        self.store = Store(Path(root).expanduser().resolve() if root else paths.state_root() / "store")
        named = settings.store.environments
        self.environments = Path(named).expanduser().resolve() if named else self.store.root / "environments"
        self.progress = SweepProgress(len(cells))

    async def run(self) -> None:
        settings = self.settings
        self.store.sweep_tmp()
        self.planner = Planner(self.store, settings.env.refresh, Inspector(self.store.root))
        jobs = settings.jobs or max(1, (os.cpu_count() or 1) // most_threads(self.cells))
        workers = Workers(jobs, settings.limits.timeout, settings.limits.stall, self.store.root / "logs")
        self.stages = Stages(self.store, self.environments, workers, self.progress.stage, fresh=settings.rerun == "all")
        with self.progress:
            try:
                waiting = await self.plan_all()
                self.progress.planned(len(waiting))
                await in_parallel(waiting, self.run_cell, at_a_time=2 * jobs + 2)
            finally:
                await workers.close()

    async def plan_all(self) -> list[tuple[int, Cell, Plan]]:
        """Plan every cell. Record the failed and the found; return the others."""
        waiting = []
        self.progress.preparing("planning")
        for cell_id, cell in self.cells:
            started = time.monotonic()
            try:
                plan = await self.planner.plan(cell)
            except (Failure, OSError) as error:
                self.fail(cell_id, cell, as_failure(error), None, [], time.monotonic() - started)
                continue
            found = self.look_up(plan)
            if found:
                record.attach(self.engine, cell_id, found[0], True, patch_outcome(cell, plan.overlay.outcomes))
                self.done(cell_id, cell, *found, found=True)
            else:
                waiting.append((cell_id, cell, plan))
        return waiting

    def look_up(self, plan: Plan) -> tuple[int, str, str, str] | None:
        """The finished result of an equal cell, unless it is to be run again."""
        if self.settings.rerun == "all":
            return None
        found = record.find_result(self.engine, plan.result_hash)
        if found and self.settings.rerun == "failed" and found.status != "ok":
            return None
        return (found.id, found.status, found.error_line or "", found.hint or "") if found else None

    async def run_cell(self, item: tuple[int, Cell, Plan]) -> None:
        """Run a cell, or wait for an equal one that runs already and share its result."""
        cell_id, cell, plan = item
        if plan.result_hash in self.results:
            shared = await self.results[plan.result_hash]
            record.attach(self.engine, cell_id, shared[0], False, patch_outcome(cell, plan.overlay.outcomes))
            self.done(cell_id, cell, *shared, found=False)
            return
        future = self.results[plan.result_hash] = asyncio.get_running_loop().create_future()
        started = time.monotonic()
        runs: dict[str, StageRun] = {}
        try:
            artifact = await self.stages.run(cell.name(), plan, runs)
        except (Failure, OSError) as error:
            costs = stage_list(plan, runs)
            outcome = self.fail(cell_id, cell, as_failure(error), plan, costs, time.monotonic() - started)
        else:
            comparison = json.loads((artifact.path / "comparison.json").read_text(encoding="utf-8"))
            outcome = self.succeed(cell_id, cell, plan, comparison, stage_list(plan, runs), time.monotonic() - started)
        future.set_result(outcome)

    def succeed(self, cell_id, cell, plan, comparison, runs, seconds) -> tuple[int, str, str, str]:
        values = base_values("ok", True, plan, seconds) | {
            "measurement_version": comparison["measurement"],
            "reference_dtype": self.meta(plan, "reference").get("loaded_dtype"),
            "candidate_dtype": self.meta(plan, "export").get("loaded_dtype"),
            "peak_memory_bytes": peak(runs),
        }
        new = new_result(values, plan, runs, comparison["prompts"])
        patch = patch_outcome(cell, plan.overlay.outcomes)
        result_id = record.record_result(self.engine, cell_id, new, patch)
        return self.done(cell_id, cell, result_id, "ok", "", "", found=False)

    def fail(self, cell_id, cell, failure: Failure, plan, runs, seconds) -> tuple[int, str, str, str]:
        evidence = failure.evidence
        values = base_values(failure.status, failure.final, plan, seconds) | {
            "measurement_version": MEASUREMENT_VERSION,
            "failed_stage": failure.stage,
            "error_type": failure.error_type or None,
            "error": failure.message,
            "hint": failure.hint or None,
            "exit_code": evidence.exit_code,
            "signal": evidence.signal,
            "stderr_tail": evidence.stderr_tail or None,
            "peak_memory_bytes": evidence.peak_memory_bytes or peak(runs),
        }
        outcomes = plan.overlay.outcomes if plan else getattr(failure, "outcomes", ())
        new = new_result(values, plan, runs)
        result_id = record.record_result(self.engine, cell_id, new, patch_outcome(cell, outcomes))
        return self.done(cell_id, cell, result_id, failure.status, failure.line(), failure.hint, found=False)

    def done(
        self, cell_id: int, cell: Cell, result: int, status: str, error: str, hint: str, found: bool
    ) -> tuple[int, str, str, str]:
        self.rows[cell_id] = Row(self.sweep_id, cell_id, dict(cell.factors), status, found, result, error, hint)
        self.progress.cell(cell.name(), status, found, error)
        return result, status, error, hint

    def meta(self, plan: Plan, stage: str) -> dict:
        artifact = self.store.find(stage, plan.stages[stage].key)
        return artifact.meta if artifact else {}

    def skip_rest(self, why: str) -> None:
        """A row for every cell that has none."""
        for cell_id, cell in self.cells:
            if cell_id not in self.rows:
                failure = Skipped(why, hint="run the same command again: it goes on from here")
                self.fail(cell_id, cell, failure, None, [], 0.0)

    def in_order(self) -> list[Row]:
        return [self.rows[cell_id] for cell_id, _ in self.cells if cell_id in self.rows]


async def in_parallel(items: list, work, at_a_time: int) -> None:
    """`work(item)` for each item, a bounded number at a time; the first error is raised."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_a_time, len(items))):
            group.create_task(worker())


def as_failure(error: Failure | OSError) -> Failure:
    return StoreFailed(error) if isinstance(error, OSError) else error


def base_values(status: str, final: bool, plan: Plan | None, seconds: float) -> dict:
    """The columns that every result has."""
    values = {"status": status, "final": final, "seconds": seconds}
    if plan is None:
        return values
    return values | {
        "hash": plan.result_hash,
        "checkpoint_hash": plan.checkpoint.hash,
        "checkpoint_dtype": ",".join(sorted(plan.checkpoint.dtypes)),
        "prompts_key": plan.stages["prompts"].key,
        "overlay_tree": plan.overlay.tree,
    }


def new_result(values: dict, plan: Plan | None, runs: Sequence[StageRun], prompts=()) -> record.NewResult:
    """A result with what its plan knows: environments and stages."""
    platform = environments.platform_tag()
    return record.NewResult(
        values=values,
        environments={
            role: {"hash": resolution.hash, "platform": platform, "packages": resolution.packages}
            for role, resolution in (plan.resolutions if plan else {}).items()
        },
        machine=machine.describe(),
        stages=[
            {
                "stage": run.name,
                "key": run.key,
                "found": run.found,
                "seconds": run.seconds,
                "peak_memory_bytes": run.peak_memory_bytes,
            }
            for run in runs
        ],
        prompts=prompts,
    )


def patch_outcome(cell: Cell, outcomes: Sequence[dict]) -> record.PatchOutcome:
    """What became of a cell's patch set, in a word: the strongest of its changes' outcomes."""
    if cell.config is None:
        return record.PatchOutcome()
    statuses = {outcome["status"] for outcome in outcomes}
    order = ("failed", "applied", "present", "not_applicable")
    return record.PatchOutcome(
        hash=hashing.of_value(plain(cell.config.patch)),
        word=next((status for status in order if status in statuses), "none"),
        changes=[{key: outcome[key] for key in ("change", "status", "detail")} for outcome in outcomes],
    )


def stage_list(plan: Plan, runs: dict[str, StageRun]) -> list[StageRun]:
    return [runs[name] for name in plan.stages if name in runs]


def peak(runs: Sequence[StageRun]) -> int | None:
    return max((r.peak_memory_bytes for r in runs if r.peak_memory_bytes), default=None)


def most_threads(cells: Sequence[tuple[int, Cell]]) -> int:
    return max((cell.config.threads for _, cell in cells if cell.config), default=1)


def project_version() -> str:
    try:
        return version("paritylab")
    except PackageNotFoundError:
        return "source"
