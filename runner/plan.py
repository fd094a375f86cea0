"""From a cell to its stages: what each is made of, hence its key, before anything runs.

The keys are hashes of inputs all the way down, so a finished cell is known
from the database without computing or importing anything heavy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from runner import backends, cells, checkpoints, diffs, environments, git, hashing, overlays, releases, schema, sources
from runner.cells import Cell
from runner.environments import Resolution
from runner.failures import Failure
from runner.models import Maker, Models, Origin
from runner.processes import in_thread
from runner.remote import Remote
from runner.store import Store

# Raise a stage's number when its output changes for the same inputs.
VERSIONS = {
    "checkpoint": 4, "prompts": 4, "reference": 3, "noise": 2, "export": 3, "constants": 3, "candidate": 3,
    "compare": 4,
}  # fmt: skip
# How results of the comparison are told apart: the number that rows carry.
MEASUREMENT_VERSION = 2
ROLES = ("builder", "runtime", "reference")


@dataclass(frozen=True)
class Stage:
    """One step of a cell.

    inputs: everything that determines the output (what `key` hashes).
    needs: stages whose artifacts `arguments` turns into the worker's arguments.
    role: whose environment it runs in.
    """

    name: str
    inputs: dict
    role: str
    needs: tuple[str, ...]
    arguments: Callable[[dict[str, Path], dict[str, dict]], dict]

    @cached_property
    def key(self) -> str:
        return hashing.of_value(self.name, VERSIONS[self.name], self.inputs)


@dataclass(frozen=True)
class Plan:
    """A cell's stages and what they stand on.

    results: the stages whose artifacts the cell's result is made of;
    result_hash: of everything that determines it. origin: where the checkpoint
    is from, where it is no folder of the user's.
    """

    stages: dict[str, Stage]
    results: tuple[str, ...]
    checkpoint: checkpoints.Checkpoint
    origin: str | None
    resolutions: dict[str, Resolution]
    source: sources.Source
    overlay: overlays.Overlay
    threads: int

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
    shared: dict[str, asyncio.Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mirrors = git.Mirrors(self.store, self.once)
        remote = Remote(self.settings.store.remote) if self.settings.store.remote else None
        self.models = Models(self.store, remote, self.inspector, self.resolve, self.make, self.say)

    async def once(self, key: str, make: Callable):
        """The result of `make()`, shared by everyone who asks for `key`."""
        if key not in self.shared:
            self.shared[key] = task = asyncio.create_task(make())
            task.add_done_callback(lambda t: t.cancelled() or t.exception())  # who still waits for it is told
        return await asyncio.shield(self.shared[key])

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
        builder = releases.builder_environment(config.builder)
        wanted = {
            "builder": builder,
            "runtime": config.runtime.environment or builder,
            "reference": config.reference.environment,
        }
        source = await self.source(config.builder)
        try:
            resolutions = {role: await self.resolve(environment) for role, environment in wanted.items()}
            overlay = await self.overlay(config, source)
        except Failure as failure:
            failure.source = source  # its row says of what builder it is
            raise
        stages = stages_of(config, backend, checkpoint, layers, resolutions, overlay, self.settings)
        results = ("constants",) if self.settings.action == "constants" else ("compare", "constants")
        stages = needed(stages, results)
        return Plan(stages, results, checkpoint, origin.said, resolutions, source, overlay, config.threads)


def stages_of(config, backend, checkpoint, layers, resolutions, overlay, settings) -> dict[str, Stage]:
    """The stages of a cell by name, in the order in which each finds what it needs."""
    dtype = "stored" if checkpoint.same_dtype(config.dtype) else config.dtype
    identity = {"checkpoint": checkpoint.hash, "dtype": dtype, "layers": layers}
    identity |= {"text_only": True} if checkpoint.mixed else {}
    made = ("checkpoint",) if dtype != "stored" or layers is not None or checkpoint.mixed else ()

    def folder(paths: dict[str, Path]) -> str:
        return str(paths.get("checkpoint", checkpoint.path))

    def ids(paths: dict[str, Path]) -> str:
        return str(paths["prompts"] / "prompts.json")

    stages: dict[str, Stage] = {}
    if made:
        stages["checkpoint"] = Stage(
            "checkpoint", identity, "reference", (),
            lambda paths, meta: {
                "source": str(checkpoint.path), "dtype": dtype, "layers": layers, "text_only": checkpoint.mixed,
            },
        )  # fmt: skip
    wanted = config.prompts
    prompts = {
        "template": wanted.template,
        "prompts": [{"name": p.name, "text": p.text} for p in wanted.prompts],
        "boundaries": wanted.boundaries,
    }
    # Token ids depend on the tokenizer's files only, so every dtype and layer count shares them.
    stages["prompts"] = Stage(
        "prompts",
        {"files": checkpoint.text_hash, **prompts, "packages": resolutions["reference"].hash},
        "reference", (),
        lambda paths, meta: {"checkpoint": str(checkpoint.path), **prompts},
    )  # fmt: skip
    computed = {"compute_dtype": config.reference.compute_dtype, "attention": config.reference.attention}
    length = {"max_new_tokens": config.max_new_tokens, "stop_at_end": wanted.stop_at_end}
    stages["reference"] = Stage(
        "reference",
        {**identity, **computed, **length, "prompts": stages["prompts"].key, "threads": config.threads,
         "packages": resolutions["reference"].hash},
        "reference", (*made, "prompts"),
        lambda paths, meta: {"checkpoint": folder(paths), "prompts": ids(paths), **computed, **length},
    )  # fmt: skip
    noise = set(settings.noise.variants)
    many = 1 if config.threads > 1 else max(2, os.cpu_count() or 1)
    other_threads = many if "threads" in noise else None
    # Only where the export rounds more than the reference: the noise of one in fp32 is the reference's alone.
    rounds = {} if config.precision == "fp32" else {"precision": config.precision}
    if noise:
        stages["noise"] = Stage(
            "noise",
            {"reference": stages["reference"].key, "variants": sorted(noise), "other_threads": other_threads,
             **rounds},
            "reference", (*made, "prompts", "reference"),
            lambda paths, meta: {
                "checkpoint": folder(paths), "prompts": ids(paths), "reference": str(paths["reference"]),
                "threads": config.threads, "other_threads": other_threads, "variants": sorted(noise), **computed,
                **rounds,
            },
        )  # fmt: skip
    export = backend.export_settings(config)
    stages["export"] = Stage(
        "export",
        {**identity, **export, "overlay": overlay.tree, "threads": config.threads,
         "packages": resolutions["builder"].hash},
        "builder", made,
        lambda paths, meta: {"overlay": str(overlay.path), "checkpoint": folder(paths), **export},
    )  # fmt: skip
    stages["constants"] = Stage(
        "constants",
        {**identity, "export": stages["export"].key, "packages": resolutions["reference"].hash},
        "reference", (*made, "export"),
        lambda paths, meta: {"checkpoint": folder(paths), "export": str(paths["export"])},
    )  # fmt: skip
    candidate = backend.candidate_settings(config)
    stages["candidate"] = Stage(
        "candidate",
        {**candidate, **length, "export": stages["export"].key, "reference": stages["reference"].key,
         "backend": config.backend.name, "packages": resolutions["runtime"].hash},
        "runtime", (*made, "prompts", "reference", "export"),
        lambda paths, meta: {
            "export": str(paths["export"]), "checkpoint": folder(paths), "prompts": ids(paths),
            "reference": str(paths["reference"]), "end_tokens": meta["reference"]["end_tokens"],
            "precision": config.precision,
            **candidate, **length,
        },
    )  # fmt: skip
    expect = {p.name: p.expect for p in wanted.prompts}
    thresholds = settings.verdict.of(config.precision)
    measured = ("noise",) if noise else ()
    stages["compare"] = Stage(
        "compare",
        {"measurement": MEASUREMENT_VERSION, "expect": expect, "thresholds": thresholds,
         "noise": stages["noise"].key if noise else None, "candidate": stages["candidate"].key},
        "reference", ("prompts", "reference", *measured, "candidate"),
        lambda paths, meta: {
            "reference": str(paths["reference"]), "candidate": str(paths["candidate"]), "expect": expect,
            "noise": str(paths["noise"]) if noise else None, "suspect": meta["prompts"]["suspect"],
            "thresholds": thresholds,
        },
    )  # fmt: skip
    return stages


def needed(stages: dict[str, Stage], results: tuple[str, ...]) -> dict[str, Stage]:
    """The stages that some results stand on, and these, in their order."""
    wanted, open_ = set(), list(results)
    while open_:
        name = open_.pop()
        wanted.add(name)
        open_ += [need for need in stages[name].needs if need not in wanted]
    return {name: stage for name, stage in stages.items() if name in wanted}
