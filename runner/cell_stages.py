"""The stages of a cell: what each is made of, hence its key, and what its worker is given.

The keys are hashes of inputs all the way down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType

from db.models import MEASUREMENT_VERSION
from runner import checkpoints, code_digest, hashing, overlays, schema
from runner.environments import Resolution

# Raise a stage's number when its output changes for the same inputs; `code_digest` says where its code has changed.
VERSIONS = {
    "checkpoint": 5, "prompts": 5, "reference": 5, "noise": 3, "export": 4, "constants": 4, "candidate": 4,
    "compare": 5,
}  # fmt: skip
# The part of a stage's inputs that says with what, or where, it was made, and not of what.
MADE_WITH = {
    "prompts": {"packages"}, "reference": {"packages", "prompts"}, "noise": {"reference", "other_threads"},
}  # fmt: skip

# Bytes a weight, in a checkpoint and in an export.
WIDTHS = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1.125, "int4": 0.625}

Paths = Mapping[str, Path]
Metas = Mapping[str, dict]


@dataclass(frozen=True)
class Stage:
    """One step of a cell.

    inputs: everything that determines the output (what `key` hashes).
    needs: stages whose artifacts `arguments` turns into the worker's arguments.
    role: whose environment it runs in. module: of the worker, where it is not
    the stage's own name. disk_bytes: about how much it writes, where that is
    known to be much. refusal: asked just before it is made: why this machine
    cannot, or None. found_only: it was made with other packages than these, and
    is never made here.
    """

    name: str
    inputs: dict
    role: str
    needs: tuple[str, ...]
    arguments: Callable[[Paths, Metas], dict]
    module: str = ""
    disk_bytes: int = 0
    refusal: Callable[[], str | None] = lambda: None
    found_only: bool = False

    @cached_property
    def key(self) -> str:
        return hashing.of_value(self.name, VERSIONS[self.name], self.inputs)

    @property
    def code(self) -> str | None:
        """The line that tells of code that its number does not stand for, or None: see `code_digest`."""
        digest = self.inputs.get("code")
        return code_digest.told(self.name, self.module or self.name, digest) if digest else None

    @property
    def loosely(self) -> str:
        """What it is made of, whatever it was made with: how a result of another machine is known for the same."""
        return hashing.of_value({k: v for k, v in self.inputs.items() if k not in MADE_WITH.get(self.name, ())})


@dataclass(frozen=True)
class Parts:
    """What a cell's stages stand on. made: the stage that makes the checkpoint, where one does."""

    config: schema.Factors
    settings: schema.Settings
    backend: ModuleType
    checkpoint: checkpoints.Checkpoint
    layers: int | None
    resolutions: Mapping[str, Resolution]
    overlay: overlays.Overlay | None

    @cached_property
    def dtype(self) -> str:
        return "stored" if self.checkpoint.same_dtype(self.config.dtype) else self.config.dtype

    @cached_property
    def identity(self) -> dict:
        mixed = {"text_only": True} if self.checkpoint.mixed else {}
        return {"checkpoint": self.checkpoint.hash, "dtype": self.dtype, "layers": self.layers, **mixed}

    @property
    def made(self) -> tuple[str, ...]:
        changed = self.dtype != "stored" or self.layers is not None or self.checkpoint.mixed
        return ("checkpoint",) if changed else ()

    @property
    def computed(self) -> dict:
        reference = self.config.reference
        return {"compute_dtype": reference.compute_dtype, "attention": reference.attention}

    @property
    def length(self) -> dict:
        return {"max_new_tokens": self.config.max_new_tokens, "stop_at_end": self.config.prompts.stop_at_end}

    def bytes_as(self, dtype: str) -> int:
        """About how much the checkpoint's weights come to in a dtype or precision."""
        stored = max((WIDTHS.get(name, 1) for name in self.checkpoint.dtypes), default=1)
        share = (self.layers or 1) / (self.checkpoint.layers or 1) if self.layers else 1
        return int(self.checkpoint.bytes * share * WIDTHS.get(dtype, stored) / stored)

    def packages(self, role: str) -> str:
        return self.resolutions[role].hash

    def folder(self, paths: Paths) -> str:
        return str(paths.get("checkpoint", self.checkpoint.path))


def ids(paths: Paths) -> str:
    return str(paths["prompts"] / "prompts.json")


def stages_of(parts: Parts, known: Mapping[str, dict] | None = None) -> dict[str, Stage]:
    """The stages of a cell by name, in the order in which each finds what it needs.

    known: the inputs of stages that are there already, made with other
    packages than these (``reference=cached``).
    """
    stages: dict[str, Stage] = {}

    def add(stage: Stage | None) -> None:
        if stage:
            if code := code_digest.differing(stage.module or stage.name):
                stage = replace(stage, inputs=stage.inputs | {"code": code})
            if inputs := (known or {}).get(stage.name):
                stage = replace(stage, inputs=inputs, found_only=True)
            stages[stage.name] = stage

    add(checkpoint(parts) if parts.made else None)
    add(prompts(parts))
    if parts.settings.stages != "candidate":
        add(reference(parts, stages))
        add(noise(parts, stages))
    add(export(parts) if parts.backend.EXPORT else None)
    add(constants(parts, stages) if parts.backend.CONSTANTS else None)
    add(candidate(parts, stages))
    add(compare(parts, stages))
    return stages


def checkpoint(parts: Parts) -> Stage:
    given = {"dtype": parts.dtype, "layers": parts.layers, "text_only": parts.checkpoint.mixed}
    return Stage(
        "checkpoint", parts.identity, "reference", (),
        lambda paths, meta: {"source": str(parts.checkpoint.path), **given},
        disk_bytes=parts.bytes_as(parts.dtype),
    )  # fmt: skip


def prompts(parts: Parts) -> Stage:
    """Token ids depend on the tokenizer's files only, so every dtype and layer count shares them."""
    wanted = parts.config.prompts
    asked = {
        "template": wanted.template,
        "prompts": [{"name": p.name, "text": p.text} for p in wanted.prompts],
        "boundaries": wanted.boundaries,
    }
    return Stage(
        "prompts",
        {"files": parts.checkpoint.text_hash, **asked, "packages": parts.packages("reference")},
        "reference", (),
        lambda paths, meta: {"checkpoint": str(parts.checkpoint.path), **asked},
    )  # fmt: skip


def reference(parts: Parts, stages: Mapping[str, Stage]) -> Stage:
    given = {**parts.computed, **parts.length}
    return Stage(
        "reference",
        {**parts.identity, **given, "prompts": stages["prompts"].key, "threads": parts.config.threads,
         "packages": parts.packages("reference")},
        "reference", (*parts.made, "prompts"),
        lambda paths, meta: {"checkpoint": parts.folder(paths), "prompts": ids(paths), **given},
    )  # fmt: skip


def noise(parts: Parts, stages: Mapping[str, Stage]) -> Stage | None:
    variants, config = sorted(set(parts.settings.noise.variants)), parts.config
    if not variants:
        return None
    many = 1 if config.threads > 1 else max(2, os.cpu_count() or 1)
    # Only where the export rounds more than the reference: the noise of one in fp32 is the reference's alone.
    rounds = {} if config.precision == "fp32" else {"precision": config.precision}
    given = {"variants": variants, "other_threads": many if "threads" in variants else None, **rounds}
    return Stage(
        "noise",
        {"reference": stages["reference"].key, **given},
        "reference", (*parts.made, "prompts", "reference"),
        lambda paths, meta: {
            "checkpoint": parts.folder(paths), "prompts": ids(paths), "reference": str(paths["reference"]),
            "threads": config.threads, **parts.computed, **given,
        },
    )  # fmt: skip


def export(parts: Parts) -> Stage:
    given = parts.backend.export_settings(parts.config, parts.checkpoint, parts.layers)
    overlay, role = parts.overlay, "builder" if parts.overlay else "runtime"
    by = {"overlay": overlay.tree} if overlay else {"backend": parts.config.backend.name}
    sources = {"overlay": str(overlay.path)} if overlay else {}
    return Stage(
        "export",
        {**parts.identity, **given, **by, "threads": parts.config.threads, "packages": parts.packages(role)},
        role, parts.made,
        lambda paths, meta: {**sources, "checkpoint": parts.folder(paths), **given},
        parts.backend.EXPORT,
        refusal=partial(parts.backend.host_refusal, parts.config, parts.checkpoint, parts.layers),
        disk_bytes=parts.bytes_as(parts.config.precision if overlay else "stored"),
    )  # fmt: skip


def constants(parts: Parts, stages: Mapping[str, Stage]) -> Stage:
    return Stage(
        "constants",
        {**parts.identity, "export": stages["export"].key, "packages": parts.packages("reference")},
        "reference", (*parts.made, "export"),
        lambda paths, meta: {"checkpoint": parts.folder(paths), "export": str(paths["export"])},
    )  # fmt: skip


def candidate(parts: Parts, stages: Mapping[str, Stage]) -> Stage:
    """Without a reference (``stages=candidate``) it is only continued, and its end tokens are the checkpoint's own."""
    config, beside = parts.config, [name for name in ("reference", "export") if name in stages]
    given = {**parts.backend.candidate_settings(config), **parts.length}
    # Where there is a reference its key says what checkpoint and prompts are.
    own = {} if "reference" in stages else {**parts.identity, "prompts": stages["prompts"].key}
    return Stage(
        "candidate",
        {**given, **own, "export": None, "reference": None, **{name: stages[name].key for name in beside},
         "backend": config.backend.name, "packages": parts.packages("runtime")},
        "runtime", (*parts.made, "prompts", *beside),
        lambda paths, meta: {
            "export": None, "reference": None, **{name: str(paths[name]) for name in beside},
            "checkpoint": parts.folder(paths), "prompts": ids(paths),
            "end_tokens": meta["reference"]["end_tokens"] if "reference" in stages else None,
            "precision": config.precision, **given,
        },
        parts.backend.CANDIDATE,
    )  # fmt: skip


def compare(parts: Parts, stages: Mapping[str, Stage]) -> Stage:
    measured = [name for name in ("reference", "noise") if name in stages]
    wanted = parts.config.prompts.prompts
    judged_by = {
        "expect": {p.name: p.expect for p in wanted},
        "reject": {p.name: list(p.reject) for p in wanted if p.reject},
    }
    thresholds = parts.settings.verdict.of(parts.config.precision)
    return Stage(
        "compare",
        {"measurement": MEASUREMENT_VERSION, **judged_by, "thresholds": thresholds,
         "noise": stages["noise"].key if "noise" in stages else None, "candidate": stages["candidate"].key},
        "reference", ("prompts", *measured, "candidate"),
        lambda paths, meta: {
            "reference": None, "noise": None, **{name: str(paths[name]) for name in measured},
            "candidate": str(paths["candidate"]), **judged_by, "suspect": meta["prompts"]["suspect"],
            "format": meta["prompts"].get("format"), "thresholds": thresholds,
        },
    )  # fmt: skip


def needed(stages: dict[str, Stage], results: tuple[str, ...]) -> dict[str, Stage]:
    """The stages that some results stand on, and these, in their order."""
    wanted, open_ = set(), list(results)
    while open_:
        name = open_.pop()
        wanted.add(name)
        open_ += [need for need in stages[name].needs if need not in wanted]
    return {name: stage for name, stage in stages.items() if name in wanted}
