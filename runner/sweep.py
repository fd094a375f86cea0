"""Cells in, rows out: the one call behind every action. It knows nothing of Hydra.

A sweep is planned whole, so that finished cells are known before anything
starts; the others run side by side, each outcome recorded as it comes. A sweep
never ends because a cell did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Engine

from db import engine as database
from db import record
from runner import backends, paths, recording, schema
from runner.cells import FACTORS, Cell
from runner.checkpoints import Inspector
from runner.failures import (
    ConfigFailed,
    Evidence,
    Failure,
    Fault,
    LoadFailed,
    Preempted,
    PromptsFailed,
    ReferenceFailed,
    RunFailed,
    Skipped,
    StoreFailed,
)
from runner.plan import Plan, Planner
from runner.progress import SweepProgress
from runner.recording import Measured
from runner.sharing import Sharing
from runner.stages import StageRun, Stages, gather
from runner.store import Artifact, Store
from runner.workers import Workers

T = TypeVar("T")
# How long a sweep that is interrupted goes on putting what is complete on the remote: a reclaim notice may give 30 s.
LEAVE_SECONDS = 12.0


@dataclass(frozen=True)
class Ending:
    """How a computation ended: its result's id, status, and the failure's line and hint."""

    result: int
    status: str
    error: str = ""
    hint: str = ""
    fault: bool = False  # of this program itself


@dataclass(frozen=True)
class Row:
    """What became of a cell. `found`: the result was there before this sweep."""

    sweep: int
    cell: int
    factors: dict[str, str]
    found: bool
    ending: Ending

    @property
    def status(self) -> str:
        return self.ending.status


class Interrupted(Exception):
    """The sweep was interrupted; `rows` are its rows, those of skipped cells included."""

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
    job_root(settings)  # a store that cannot be named is told before anything starts
    entries = [
        {
            "hash": cell.hash,
            "config": cell.asked(),
            "options": cell.options,
            **dict.fromkeys(FACTORS, ""),
            **cell.factors,
        }
        for cell in cells
    ]
    action = settings.action if settings.stages == "all" else settings.stages  # no comparison: not among the results
    sweep_id, cell_ids = record.begin_sweep(engine, overrides, project_version(), entries, action)
    job = SweepJob(engine, settings, sweep_id, list(zip(cell_ids, cells, strict=True)))
    state = "failed"
    try:
        asyncio.run(job.run())
        state = "done"
    except (KeyboardInterrupt, asyncio.CancelledError):
        state = "interrupted"
        job.skip_rest()
        raise Interrupted(sweep_id, job.in_order()) from None
    finally:
        record.end_sweep(engine, sweep_id, state)
        engine.dispose()
    return job.in_order()


def job_root(settings: schema.Settings) -> tuple[Path, Path]:
    """The store's folder and the environments'. Errors: `ConfigFailed`."""
    root = settings.store.root or os.environ.get("PARITYLAB_STORE")
    try:
        store = Path(root).expanduser().resolve() if root else paths.state_root() / "store"
        named = settings.store.environments
        return store, Path(named).expanduser().resolve() if named else store / "environments"
    except (RuntimeError, OSError) as error:
        raise ConfigFailed(f"store.root or store.environments: {error}") from error


class SweepJob:
    """One sweep on its way."""

    def __init__(self, engine: Engine, settings: schema.Settings, sweep_id: int, cells: list[tuple[int, Cell]]):
        self.engine, self.settings, self.sweep_id, self.cells = engine, settings, sweep_id, cells
        self.rows: dict[int, Row] = {}
        self.endings: dict[str, asyncio.Future[Ending]] = {}  # by result hash
        root, self.environments = job_root(settings)
        self.store = Store(root)
        self.progress = SweepProgress(len(cells))
        self.left_as: type[Failure] = Skipped  # what the rest is when the sweep is broken off

    async def run(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not on Windows, nor off the main thread
            loop.add_signal_handler(signal.SIGTERM, self.preempt, task)
        settings = self.settings
        self.store.sweep_tmp()
        jobs = jobs_of(settings, [cell for _, cell in self.cells])
        workers = Workers(jobs, settings.limits, self.store.root / "logs", self.environments / "bytecode")
        sharing = Sharing.of(self.store, settings, self.progress.say)
        fresh = settings.rerun == "all"
        self.stages = Stages(self.store, self.environments, workers, self.progress.stage, sharing, fresh)
        inspector = Inspector(self.store.root)
        self.planner = Planner(
            self.store, settings, inspector, self.stages.make_model, self.progress.say, sharing,
            partial(record.reference_keys, self.engine),
        )  # fmt: skip
        with self.progress:
            try:
                waiting = await self.plan_all()
                self.progress.planned(len(waiting))
                await in_parallel(waiting, self.run_cell, at_a_time=2 * jobs + 2)
                await sharing.settle()
            except asyncio.CancelledError:
                self.progress.say("interrupted: stopping")
                self.skip_rest()  # first, since a machine that is reclaimed gives little time
                await asyncio.gather(workers.close(), sharing.settle(LEAVE_SECONDS))
                raise
            finally:
                for task in self.stages.warming.values():
                    task.cancel()
                await workers.close()

    def preempt(self, task: asyncio.Task | None) -> None:
        """Somebody ends this machine or job: leave as Ctrl-C would, and say so in the rows."""
        self.left_as = Preempted
        if task:
            task.cancel()

    async def plan_all(self) -> list[tuple[int, Cell, Plan]]:
        """Plan every cell. Record the failed and the found; return the others."""
        waiting = []
        self.progress.preparing("planning")
        # Checkpoints that are no folders yet are fetched and made side by side; what goes wrong is each cell's to say.
        models = {id(cell.config.model): cell.config for _, cell in self.cells if cell.config}
        await asyncio.gather(*map(self.planner.origin, models.values()), return_exceptions=True)
        for cell_id, cell in self.cells:
            started = time.monotonic()
            plan = await outcome_of(self.planner.plan(cell))
            if isinstance(plan, Failure):
                self.fail(cell_id, cell, plan, None, [], time.monotonic() - started)
            elif found := look_up(self.engine, self.settings, plan):
                self.attach(cell_id, cell, plan, found, found=True)
            else:
                waiting.append((cell_id, cell, plan))
                self.stages.warm_up(plan)
        return waiting

    async def run_cell(self, item: tuple[int, Cell, Plan]) -> None:
        """Run a cell, or wait for an equal one that runs already and share its result."""
        cell_id, cell, plan = item
        if plan.result_hash in self.endings:
            self.attach(cell_id, cell, plan, await self.endings[plan.result_hash], found=False)
            return
        future = self.endings[plan.result_hash] = asyncio.get_running_loop().create_future()
        started = time.monotonic()
        costs: dict[str, StageRun] = {}
        measured = await outcome_of(self.compared(cell, plan, costs))
        runs = [costs[name] for name in plan.stages if name in costs]
        if not isinstance(measured, Failure):  # what a found artifact stands on was not asked for, and is there
            runs = [costs.get(name) or StageRun(name, stage.key, True) for name, stage in plan.stages.items()]
        seconds = time.monotonic() - started
        if isinstance(measured, Failure):
            ending = self.fail(cell_id, cell, measured, plan, runs, seconds)
        else:
            ending = self.succeed(cell_id, cell, plan, measured, runs, seconds)
        future.set_result(ending)

    async def compared(self, cell: Cell, plan: Plan, costs: dict[str, StageRun]) -> Measured:
        """What the cell's stages wrote. Errors: `Failure`."""
        if self.settings.audit == "strict" and "prompts" in plan.stages:
            refuse_findings(await self.stages.produce(cell.name(), plan, "prompts", costs))
        name, odd = cell.name(), []
        if "compare" in plan.results:
            _, odd = await gather(
                (self.stages.produce(name, plan, "compare", costs), self.constants_failures(name, plan, costs))
            )
        # A comparison that was there does not vouch for what it was made of.
        wanted = [stage for stage in plan.stages if not (odd and stage == "constants")]
        made = {stage: await self.stages.produce(name, plan, stage, costs) for stage in wanted}
        metas = {stage: artifact.meta for stage, artifact in made.items()}
        if "compare" in made:
            refuse_disagreement(metas)
        if self.settings.load_audit == "strict":
            refuse_unloaded(metas)
        if self.settings.audit == "strict" and "candidate" in made:
            refuse_findings(made["candidate"])
        files = {stage: read_json(made[stage], file) for stage, file in recording.FILES.items() if stage in made}
        return Measured(metas=metas, constants_failures=odd, loading=loading_of(plan, made), **files)

    async def constants_failures(self, name: str, plan: Plan, costs: dict[str, StageRun]) -> list[Failure]:
        """Compare the constants. What goes wrong there takes no logits away: it is told beside them."""
        if "constants" not in plan.stages:
            return []
        try:
            await self.stages.produce(name, plan, "constants", costs)
        except Failure as failure:
            return [failure]
        return []

    def succeed(self, cell_id: int, cell: Cell, plan: Plan, measured: Measured, runs, seconds: float) -> Ending:
        new = recording.success(plan, measured, runs, seconds)
        made_of = recording.provenance(cell, plan)
        ending = Ending(record.record_result(self.engine, cell_id, new, made_of), "ok")
        return self.done(cell_id, cell, ending, found=False)

    def fail(self, cell_id: int, cell: Cell, failure: Failure, plan: Plan | None, runs, seconds: float) -> Ending:
        stages = plan.stages.items() if plan else ()
        telling = ("prompts", *recording.LOADERS, "constants")
        found = {name: self.store.find(name, stage.key) for name, stage in stages if name in telling}
        made = {name: artifact for name, artifact in found.items() if artifact}
        metas = [made[name].meta for name in telling if name in made]
        told = [finding for meta in metas for finding in meta.get("findings", ())]
        stand_in = next((meta["stand_in"] for meta in metas if meta.get("stand_in")), None)
        constants = read_json(made["constants"], recording.FILES["constants"]) if "constants" in made else None
        loading = loading_of(plan, made) if plan else []
        if plan and failure.loading:
            loading += record.loading_rows(plan.stages[failure.stage].key, failure.loading)
        new = recording.failure(failure, plan, runs, seconds, told, constants, loading, stand_in)
        made_of = recording.provenance(cell, plan, failure)
        result = record.record_result(self.engine, cell_id, new, made_of)
        fault = isinstance(failure, Fault)
        ending = Ending(result, failure.status, failure.line(), failure.hint, fault)
        return self.done(cell_id, cell, ending, found=False)

    def attach(self, cell_id: int, cell: Cell, plan: Plan, ending: Ending, found: bool) -> None:
        record.attach(self.engine, cell_id, ending.result, found, recording.provenance(cell, plan))
        self.done(cell_id, cell, ending, found)

    def done(self, cell_id: int, cell: Cell, ending: Ending, found: bool) -> Ending:
        self.rows[cell_id] = Row(self.sweep_id, cell_id, dict(cell.factors), found, ending)
        self.progress.cell(cell.name(), ending.status, found, ending.error)
        return ending

    def skip_rest(self) -> None:
        """A row for every cell that has none."""
        for cell_id, cell in self.cells:
            if cell_id not in self.rows:
                failure = self.left_as(
                    "the sweep was interrupted", hint="run the same command again: it goes on from here"
                )
                self.fail(cell_id, cell, failure, None, [], 0.0)

    def in_order(self) -> list[Row]:
        return [self.rows[cell_id] for cell_id, _ in self.cells if cell_id in self.rows]


def look_up(engine: Engine, settings: schema.Settings, plan: Plan) -> Ending | None:
    """The finished result of an equal cell, unless it is to be run again."""
    if settings.rerun == "all":
        return None
    found = record.find_result(engine, plan.result_hash)
    if found is None or (settings.rerun == "failed" and found.status != "ok"):
        return None
    if settings.audit == "strict" and record.audit_findings(engine, found.id):
        return None  # its prompts are there to fail it
    if settings.load_audit == "strict" and record.loading_faults(engine, found.id):
        return None
    return Ending(found.id, found.status, found.error_line or "", found.hint or "")


def refuse_findings(artifact: Artifact) -> None:
    """Under ``audit=strict`` what is odd about a prompt is a failure. Errors: `PromptsFailed`."""
    if found := [finding for finding in artifact.meta.get("findings", ()) if finding["prompt"]]:
        said = ", ".join(f"{finding['prompt']}: {finding['check']}" for finding in found)
        raise PromptsFailed(said, error_type="PromptAudit", hint="mend the prompts, or run with audit=warn")


def refuse_unloaded(metas: dict[str, dict]) -> None:
    """What a loader left at its default, or filled with something else, is another model. Errors: `LoadFailed`; of the
    reference's loading, which says nothing of a candidate, `ReferenceFailed`."""
    for side in recording.LOADERS:
        if said := metas.get(side, {}).get("loading"):
            kind = ReferenceFailed if side == "reference" else LoadFailed
            raise kind(
                f"{side}: {said}",
                error_type="LoadAudit",
                stage=side,
                hint="python -m db loading CELL shows every key; load_audit=warn compares it all the same",
                transient=True,  # under load_audit=warn it has numbers
            )


def loading_of(plan: Plan, made: dict[str, Artifact]) -> list[dict]:
    """What became of each key of the checkpoint, where a stage audited it."""
    files = {name: made[name].path / recording.LOADING for name in recording.LOADERS if name in made}
    rows = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items() if path.exists()}
    return recording.loading_of(plan, rows)


def refuse_disagreement(metas: dict[str, dict]) -> None:
    """Two sides that do not have the same number of layers are two models. Errors: `RunFailed`."""
    theirs = "export" if "export" in metas else "candidate"
    counts = {side: metas.get(side, {}).get("layers") for side in ("reference", theirs)}
    if None not in counts.values() and len(set(counts.values())) > 1:
        raise RunFailed(
            f"the reference has {counts['reference']} layers and the {theirs} {counts[theirs]}",
            error_type="LayersDisagree",
            hint="the builder did not export every layer of the checkpoint, or of what layers= left of it",
        )


def read_json(artifact: Artifact, name: str) -> dict:
    return json.loads((artifact.path / name).read_text(encoding="utf-8"))


async def outcome_of(work: Awaitable[T]) -> T | Failure:
    """What `work` gives, or the failure that it raises, this program's own faults included."""
    try:
        return await work
    except Failure as failure:
        return failure
    except OSError as error:
        return StoreFailed(error)
    except Exception as error:
        evidence = Evidence(stderr_tail=traceback.format_exc())
        return Fault(str(error), error_type=type(error).__name__, transient=True, evidence=evidence)


async def in_parallel(items: list, work, at_a_time: int) -> None:
    """`work(item)` for each item, a bounded number at a time; the first error is raised."""
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_a_time, len(items))):
            group.create_task(worker())


def jobs_of(settings: schema.Settings, cells: Sequence[Cell]) -> int:
    """How many stages run at a time: as asked, or one per core and thread."""
    configs = [cell.config for cell in cells if cell.config]
    if any(backends.stages(config.backend.name).ONE_AT_A_TIME for config in configs):
        return settings.jobs or 1
    threads = max((config.threads for config in configs), default=1)
    return settings.jobs or max(1, (os.cpu_count() or 1) // threads)


def project_version() -> str:
    try:
        return version("paritylab")
    except PackageNotFoundError:
        return "source"
