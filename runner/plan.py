"""From a cell to its plan: its stages and all that they stand on, before anything runs.

A finished cell is known from the database by its stages' keys, without
computing or importing anything heavy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

from runner import (
    backends,
    cells,
    checkpoints,
    diffs,
    environments,
    git,
    hashing,
    overlays,
    references,
    releases,
    schema,
    sources,
)
from runner.cell_stages import Parts, Stage, needed, stages_of
from runner.cells import Cell
from runner.environments import Resolution
from runner.failures import ConfigFailed, EnvFailed, Failure
from runner.models import Maker, Models, Origin
from runner.processes import in_thread
from runner.sharing import Sharing
from runner.store import Store

ROLES = ("builder", "runtime", "reference")


@dataclass(frozen=True)
class Plan:
    """A cell's stages and what they stand on; `source` and `overlay` are None where the backend has no builder.

    results: the stages whose artifacts the cell's result is made of;
    result_hash: of everything that determines it. origin: where the checkpoint
    is from. reference_environment: the database's id of the packages of a
    reference that was found, which are not those of `resolutions`.
    """

    stages: dict[str, Stage]
    results: tuple[str, ...]
    checkpoint: checkpoints.Checkpoint
    origin: Origin
    resolutions: dict[str, Resolution]
    source: sources.Source | None
    overlay: overlays.Overlay | None
    threads: int
    reference_environment: int | None = None

    @property
    def code(self) -> list[str]:
        """Lines that tell of code that differs from the released."""
        return [line for line in (self.origin.code, *(stage.code for stage in self.stages.values())) if line]

    @cached_property
    def result_hash(self) -> str:
        return hashing.of_value("result", [self.stages[name].key for name in self.results])


@dataclass
class Planner:
    """Plans cells; what many cells share (a resolution, an overlay) is worked out once."""

    store: Store
    settings: schema.Settings
    inspector: checkpoints.Inspector
    make: Maker | None = None  # None: what is not there is not made
    say: Callable[[str], None] = lambda text: None
    sharing: Sharing | None = None
    # The keys of the prompts, reference and noise of earlier results of a checkpoint, by its hash.
    known_references: Callable[[str], list[dict[str, Any]]] = lambda checkpoint: []
    shared: dict[str, asyncio.Task] = field(default_factory=dict)

    said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.mirrors = git.Mirrors(self.store, self.once)
        self.sharing = self.sharing or Sharing.of(self.store, self.settings, self.say)
        self.models = Models(self.store, self.sharing, self.inspector, self.resolve, self.make, self.say)

    async def once(self, key: str, make: Callable):
        """The result of `make()`, shared by everyone who asks for `key`."""
        if key not in self.shared:
            self.shared[key] = task = asyncio.create_task(make())
            task.add_done_callback(lambda t: t.cancelled() or t.exception())  # who still waits for it is told
        return await asyncio.shield(self.shared[key])

    def say_once(self, line: str | None) -> None:
        if line and line not in self.said:
            self.said.add(line)
            self.say(line)

    async def resolve(self, environment: schema.Environment) -> Resolution:
        if self.settings.env.python:
            return await self.once("python", lambda: environments.existing(self.store, self.settings.env))
        wanted = releases.requirements(environment)
        constraints = releases.constraints(environment)
        key = hashing.of_value("resolution", wanted, str(constraints), environment.as_of)
        return await self.once(
            key,
            lambda: environments.resolve(self.store, wanted, constraints, environment.as_of, self.settings.env.refresh),
        )

    async def source(self, builder: schema.Builder) -> sources.Source:
        key = hashing.of_value("source", cells.plain(builder), sources.repository(builder))
        return await self.once(key, lambda: sources.fetch(self.store, builder, self.mirrors))

    async def overlay(self, config: schema.Factors, source: sources.Source) -> overlays.Overlay:
        url = sources.repository(config.builder)
        texts = [await self.diff(url, wanted) for wanted in config.patch.diffs]
        key = hashing.of_value(
            "overlay", source.tree, source.version, cells.plain(config.patch), [t.text for t in texts]
        )
        return await self.once(key, lambda: overlays.make(self.store, source, config.patch, texts))

    async def diff(self, url: str, wanted: schema.Diff) -> diffs.DiffText:
        key = hashing.of_value("diff", url, cells.plain(wanted))
        return await self.once(key, lambda: diffs.get(self.mirrors, url, wanted))

    async def origin(self, config: schema.Factors) -> Origin:
        constants = self.settings.action == "constants"
        return await self.once(
            hashing.of_value("model", cells.plain(config.model)), lambda: self.models.origin(config, constants)
        )

    async def find_cached(self, checkpoint: checkpoints.Checkpoint, stages: dict[str, Stage]) -> references.Cached:
        """A reference that is there already. Errors: `ReferenceFailed`."""
        assert self.sharing is not None
        return await references.find(self.store, self.sharing, self.known_references(checkpoint.hash), stages)

    async def plan(self, cell: Cell) -> Plan:
        """Errors: the `Failure` of whatever could not be prepared."""
        if cell.failure:
            raise cell.failure
        config = cell.config
        assert config is not None
        backend = backends.stages(config.backend.name)
        origin = await self.origin(config)
        checkpoint = await self.once(f"inspect {origin.path}", lambda: in_thread(self.inspector.inspect, origin.path))
        layers = checkpoints.keep_layers(config.layers, checkpoint)
        builder = releases.builder_environment(config.builder) if backend.BUILDER else None
        wanted = {
            "builder": builder,
            "runtime": config.runtime.environment or builder,
            "reference": config.reference.environment,
        }
        cached = config.reference.cached
        if cached:  # its packages need not be had here, and what is left to do can be done with the runtime's
            wanted["reference"] = wanted["runtime"]
        source = await self.source(config.builder) if backend.BUILDER else None
        try:
            resolutions = {role: await self.resolve(environment) for role, environment in wanted.items() if environment}
            overlay = await self.overlay(config, source) if source else None
        except Failure as failure:
            failure.source = source  # its row says of what builder it is
            raise
        refuse_lacking(config.backend.name, backend, resolutions["runtime"])
        parts = Parts(config, self.settings, backend, checkpoint, layers, resolutions, overlay)
        results = results_of(self.settings, config.backend.name, backend)
        stages, found = stages_of(parts), None
        if cached and "reference" in needed(stages, results):
            found = await self.find_cached(checkpoint, stages)
            stages = stages_of(parts, found.inputs)
        stages = needed(stages, results)
        plan = Plan(
            stages, results, checkpoint, origin, resolutions, source, overlay, config.threads,
            found.environment if found else None,
        )  # fmt: skip
        for line in plan.code:
            self.say_once(line)
        return plan


def refuse_lacking(name: str, backend: ModuleType, resolution: Resolution) -> None:
    """Errors: `EnvFailed` where the runtime's environment lacks what a backend runs on."""
    if lacking := [package for package in backend.REQUIRES if package not in resolution.packages]:
        where = f"env.python={resolution.base}" if resolution.base else "the runtime's environment"
        raise EnvFailed(f"backend={name} needs {', '.join(lacking)}, and {where} has none", hint=backend.LACKING)


def results_of(settings: schema.Settings, name: str, backend: ModuleType) -> tuple[str, ...]:
    """The stages that a cell's result is made of. Errors: `ConfigFailed` where a backend has none."""
    if settings.action == "constants":
        results = ("constants",) * backend.CONSTANTS
        missing, hint = "constants to compare", "action=constants compares what a builder's export holds: backend=genai"
    elif settings.stages == "export":
        results = ("export",) * bool(backend.EXPORT)
        missing, hint = "export to make", "stages=candidate runs it without a reference"
    else:
        return ("compare",) + ("constants",) * (backend.CONSTANTS and settings.stages == "all")
    if not results:
        raise ConfigFailed(f"backend={name} has no {missing}", hint=hint)
    return results
