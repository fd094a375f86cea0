"""Running a cell's stages: each artifact found, or made once, whoever wants it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from runner import environments
from runner.causes import as_failure, disk_is_full
from runner.cell_stages import Stage
from runner.checkpoints import Checkpoint, stamp_of
from runner.environments import Resolution
from runner.failures import (
    DISK_FULL_HINT,
    STAGE_FAILURES,
    CheckpointFailed,
    EnvFailed,
    Failure,
    ReferenceFailed,
)
from runner.models import Recipe
from runner.plan import Plan
from runner.sharing import Sharing
from runner.store import MANIFEST, Artifact, Store
from runner.workers import Task, TaskFailed, Workers

# From how much on a stage's room on the disk is looked at beforehand.
MUCH_BYTES = 100 * 10**6


@dataclass(frozen=True)
class StageRun:
    """What a stage cost a cell: `found` means that it was there already."""

    name: str
    key: str
    found: bool
    seconds: float | None = None
    peak_memory_bytes: int | None = None

    def row(self) -> dict:
        """As the columns of its table."""
        return {("stage" if key == "name" else key): value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Work:
    """What a worker is to do: a stage's name, key and inputs, as the artifact has them, its arguments and module, and
    about how much it will write."""

    name: str
    key: str
    inputs: dict
    arguments: dict
    threads: int
    model_type: str
    module: str = ""
    disk_bytes: int = 0


@dataclass
class Stages:
    """Runs stages. `on_stage(cell, stage)` is called when one starts to work, with "" when a checkpoint is made."""

    store: Store
    environments_root: Path
    workers: Workers
    on_stage: Callable[[str, str], None] = lambda cell, stage: None
    sharing: Sharing | None = None
    fresh: bool = False  # take only artifacts that this run made
    made: set[str] = field(default_factory=set)
    verified: set[str] = field(default_factory=set)
    flights: dict[str, asyncio.Task] = field(default_factory=dict)
    interpreters: dict[str, asyncio.Task] = field(default_factory=dict)
    warming: dict[str, asyncio.Task] = field(default_factory=dict)

    async def interpreter(self, resolution: Resolution) -> Path:
        """The interpreter of an environment, installed once."""
        if resolution.hash not in self.interpreters:
            self.interpreters[resolution.hash] = asyncio.create_task(
                environments.install(self.store, self.environments_root, resolution)
            )
        return await asyncio.shield(self.interpreters[resolution.hash])

    def warm_up(self, plan: Plan) -> None:
        """Begin to start the workers that a plan will want, while others are still being planned."""
        for stage in plan.stages.values():
            resolution = plan.resolutions[stage.role]
            if resolution.hash not in self.warming and not self.store.find(stage.name, stage.key):
                self.warming[resolution.hash] = asyncio.create_task(self.start_worker(resolution))

    async def start_worker(self, resolution: Resolution) -> None:
        """What goes wrong here goes wrong again, and is said, when the first stage wants the worker."""
        with contextlib.suppress(Failure, TaskFailed, OSError):
            await self.workers.of(await self.interpreter(resolution)).start()

    def find(self, stage: Stage) -> Artifact | None:
        """The stage's artifact if it is whole to the last byte; asked once of each by a run."""
        if self.fresh and stage.key not in self.made and not stage.found_only:
            return None
        artifact = self.store.find(stage.name, stage.key)
        if artifact and stage.key not in self.made and stage.key not in self.verified:
            if not self.store.whole(artifact):
                self.store.remove(artifact)
                return None
            self.verified.add(stage.key)
        return artifact

    async def blame_environment(self, failure: Failure, python: Path, resolution: Resolution) -> None:
        """Raise `EnvFailed` where an import failed because a package is gone. An import that fails all the same is
        a finding."""
        lacking = await environments.damaged(self.environments_root, python, resolution)
        if lacking:
            raise EnvFailed(
                f"the environment lacks {', '.join(lacking[:5])}: {failure.line()}",
                hint="something has removed it; the next run makes the environment anew",
                evidence=failure.evidence,
            )

    async def produce(self, cell: str, plan: Plan, name: str, runs: dict[str, StageRun]) -> Artifact:
        """A stage's artifact. Cells that want the same one at the same time share its making."""
        stage = plan.stages[name]
        flight_key = f"{name}/{stage.key}"
        found = self.find(stage)
        if found:
            runs.setdefault(name, StageRun(name, stage.key, True))
            self.share(found, stage)
            return found
        if flight_key not in self.flights:
            task = asyncio.create_task(self.make(cell, plan, stage, runs))
            self.flights[flight_key] = task
            # A failed one stays, so that no cell of this run repeats it.
            task.add_done_callback(lambda t: t.cancelled() or t.exception() or self.flights.pop(flight_key, None))
        artifact = await asyncio.shield(self.flights[flight_key])
        runs.setdefault(name, StageRun(name, stage.key, True))  # another cell of this run made it
        return artifact

    def share(self, artifact: Artifact, stage: Stage) -> None:
        if self.sharing:
            self.sharing.push(artifact, stage.name, stage.key)

    async def pull(self, stage: Stage, runs: dict[str, StageRun]) -> Artifact | None:
        """The stage's artifact as another machine made it; what it stands on need not be here then."""
        if self.sharing is None or self.sharing.remote is None or (self.fresh and not stage.found_only):
            return None
        async with self.store.locked(f"{stage.name}-{stage.key}"):
            pulled = self.find(stage) or await self.sharing.pull(stage.name, stage.key)
        if pulled:
            self.verified.add(stage.key)
            runs[stage.name] = StageRun(stage.name, stage.key, True)
        return pulled

    async def make(self, cell: str, plan: Plan, stage: Stage, runs: dict[str, StageRun]) -> Artifact:
        if pulled := await self.pull(stage, runs):
            return pulled
        if stage.found_only:
            raise ReferenceFailed(
                f"reference=cached: its {stage.name} was there and is not any more, or is damaged",
                stage=stage.name,
                hint="compute it anew where that can be done, or leave reference=cached out",
                transient=True,
            )
        made = await gather(self.produce(cell, plan, need, runs) for need in stage.needs)
        inputs = dict(zip(stage.needs, made, strict=True))
        arguments = stage.arguments(
            {need: artifact.path for need, artifact in inputs.items()},
            {need: artifact.meta for need, artifact in inputs.items()},
        )
        resolution = plan.resolutions[stage.role]
        async with self.store.locked(f"{stage.name}-{stage.key}"):
            found = self.find(stage)
            if found:  # another process was faster
                runs[stage.name] = StageRun(stage.name, stage.key, True)
                return found
            if why := stage.refusal():
                raise STAGE_FAILURES[stage.name](why, stage=stage.name, error_type="HostMemory", transient=True)
            given = stage.inputs, arguments, plan.threads, plan.checkpoint.model_type, stage.module, stage.disk_bytes
            work = Work(stage.name, stage.key, *given)
            done = await self.perform(work, resolution, runs, partial(self.on_stage, cell), plan.checkpoint)
        self.share(done, stage)
        return done

    async def make_model(self, recipe: Recipe, key: str, resolution: Resolution) -> Artifact:
        """A checkpoint by a recipe; whoever asks holds the artifact's lock. Errors: `Failure`."""
        inputs = {**recipe.made_of, "said": recipe.said, "packages": resolution.hash}
        work = Work("model", key, inputs, recipe.arguments, 1, recipe.model_type)
        try:
            return await self.perform(work, resolution, {}, partial(self.on_stage, recipe.said))
        finally:
            self.on_stage(recipe.said, "")

    async def perform(
        self,
        work: Work,
        resolution: Resolution,
        runs: dict[str, StageRun],
        say: Callable[[str], None],
        checkpoint: Checkpoint | None = None,
    ) -> Artifact:
        """Run a stage's work in an environment, and put what comes out into the store. Errors: `Failure`."""
        python = await self.interpreter(resolution)
        refuse_without_room(work, self.store.root)
        with self.store.draft(work.name) as draft:
            out, own = draft / "out", draft / "work"
            out.mkdir()
            own.mkdir()
            task = Task(work.name, work.arguments, out, own, work.threads, work.model_type, work.module)
            try:
                meta, evidence = await self.workers.run(python, task, say)
            except TaskFailed as failed:
                cost = failed.evidence
                runs[work.name] = StageRun(work.name, work.key, False, cost.seconds, cost.peak_memory_bytes)
                # Looked at before the draft is removed, which makes room.
                failure = as_failure(work.name, failed, disk_is_full(self.store.root))
                if failed.error.get("type") in ("ImportError", "ModuleNotFoundError"):
                    await self.blame_environment(failure, python, resolution)
                if checkpoint:
                    refuse_changed(checkpoint)
                if failure.final:
                    refuse_lost(work, self.store.root, failure)
                raise failure from failed
            runs[work.name] = StageRun(work.name, work.key, False, evidence.seconds, evidence.peak_memory_bytes)
            if checkpoint:
                refuse_changed(checkpoint)
            self.made.add(work.key)
            return self.store.finish(work.name, work.key, out, work.inputs, meta)


def refuse_without_room(work: Work, root: Path) -> None:
    """A stage that is known to write much is not begun where that does not fit: hours later it would fail all the same.

    Errors: the stage's failure.
    """
    if work.disk_bytes < MUCH_BYTES:
        return
    free = shutil.disk_usage(root).free
    if work.disk_bytes > free:
        raise STAGE_FAILURES[work.name](
            f"{work.name} will write about {work.disk_bytes / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free in {root}",
            stage=work.name,
            error_type="DiskFull",
            hint=DISK_FULL_HINT,
            transient=True,
        )


def refuse_changed(checkpoint: Checkpoint) -> None:
    """What was made from a checkpoint that changed meanwhile must not get its old hash."""
    if stamp_of(checkpoint.path) != checkpoint.stamp:
        raise CheckpointFailed(
            f"{checkpoint.path} changed while it was used", hint="run again once nothing writes to it", transient=True
        )


def refuse_lost(work: Work, store: Path, failure: Failure) -> None:
    """A stage whose input went from the store, or lost a file, while it ran has said nothing of the cell.

    Errors: the stage's failure, as one of the moment.
    """
    given = [
        Path(value) for value in work.arguments.values() if isinstance(value, str) and value.startswith(str(store))
    ]
    for path in given:
        folder = next((p for p in (path, *path.parents) if (p / MANIFEST).exists()), None)
        if path.exists() and (folder is None or Store(store).find(folder.parent.name, folder.name)):
            continue
        raise STAGE_FAILURES[work.name](
            f"an input of {work.name} was lost or damaged while it ran: {path.relative_to(store)} ({failure.line()})",
            stage=work.name,
            error_type="LostInput",
            hint="something removes files of the store; the next run makes what is missing anew",
            transient=True,
            evidence=failure.evidence,
        )


async def gather(awaitables) -> list:
    """Await all side by side; the first failure is raised once every one has ended."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
