"""The tables. One row a cell as asked; what was computed for it is a result, shared by equal cells.

Numbers that a report reads are typed columns: factors on `Cell`, a summary on
`Result`, the headline metrics on `PromptResult`. Numbers per step, and any
metric beyond the headline ones, are integer-keyed rows of `MetricValue`.
SQLite loses NaN and infinities, so each number has a kind beside it. Rows that
results share by an artifact's key are in `db.artifacts`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from db.artifacts import Base

FACTORS = (
    "model", "dtype", "layers", "builder", "patch", "runtime", "backend", "precision",
    "prompts", "reference", "max_new_tokens", "threads",
)  # fmt: skip


AXES = (*FACTORS, "options")
# What numbers mean by now; a result of a lower version was measured by an older one. `runner/worker/compare.py` has the
# same, since a worker imports nothing of the project.
MEASUREMENT_VERSION = 3
# From best to worst; a cell's verdict is the worst of its prompts', and a failed cell's is the last.
VERDICTS = ("within_noise", "near_tie", "elevated", "broken", "non_finite", "failed")

# What a continuation is, in a word (`PromptResult.outcome`). Of "text" (nothing was expected, or it cannot be decided)
# and "cut" (the limit of tokens came before its end) nothing is known; those after them are no answers.
TEXT_OUTCOMES = ("answer", "text", "cut", "wrong", "empty", "loop", "markers")
OPEN_OUTCOMES = ("text", "cut")


def error_line(error_type: str | None, error: str | None) -> str | None:
    """A failure in one line: its type and the first line that says something."""
    if error is None:
        return None
    lines = [line.strip() for line in error.splitlines() if line.strip()] or [""]
    first = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{error_type}: {first}" if error_type else first


def now() -> datetime:
    return datetime.now(UTC)


class Sweep(Base):
    """One call of the runner: a list of cells."""

    __tablename__ = "sweep"

    id: Mapped[int] = mapped_column(primary_key=True)
    started: Mapped[datetime] = mapped_column(default=now)
    ended: Mapped[datetime | None]
    state: Mapped[str] = mapped_column(default="running")  # running, done, interrupted, failed, died
    action: Mapped[str] = mapped_column(default="run")  # what was done with the cells
    overrides: Mapped[list[Any]]
    host: Mapped[str]
    pid: Mapped[int]
    version: Mapped[str]  # of this project


class Cell(Base):
    """One cell of a sweep: its factor values as asked, and where its result is."""

    __tablename__ = "cell"
    __table_args__ = (
        UniqueConstraint("sweep_id", "position"),
        Index("ix_cell_factors", "model", "builder", "patch", "dtype"),
        Index("ix_cell_result", "result_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    sweep_id: Mapped[int] = mapped_column(ForeignKey("sweep.id"))
    position: Mapped[int]
    hash: Mapped[str] = mapped_column(index=True)  # of the factor values
    model: Mapped[str]
    dtype: Mapped[str]
    layers: Mapped[str]
    builder: Mapped[str]
    patch: Mapped[str]
    runtime: Mapped[str]
    backend: Mapped[str]
    precision: Mapped[str]
    prompts: Mapped[str]
    reference: Mapped[str]
    max_new_tokens: Mapped[str]
    threads: Mapped[str]
    options: Mapped[str] = mapped_column(default="")  # asked of a factor's insides
    config: Mapped[dict[str, Any]]
    checkpoint_origin: Mapped[str | None]  # a hub's commit, a GGUF file, a seed; None for a folder
    source: Mapped[str | None]  # the builder's, in words
    source_commit: Mapped[str | None]
    source_dirty: Mapped[bool | None]
    source_tree: Mapped[str | None]  # hash of the builder's files before the patch
    patch_hash: Mapped[str | None]
    patch_outcome: Mapped[str | None]  # applied, present, not_applicable, failed, none
    result_id: Mapped[int | None] = mapped_column(ForeignKey("result.id"))
    found: Mapped[bool] = mapped_column(default=False)  # the result was there before this sweep
    sweep: Mapped[Sweep] = relationship()
    result: Mapped[Result | None] = relationship()
    changes: Mapped[list[ChangeOutcome]] = relationship(order_by="ChangeOutcome.position", cascade="all")


class CellRest(Base):
    """For each axis of a finished cell a number that stands for all its other axes, and its verdict.

    Cells that share one differ in that axis alone: pairs are found in one pass over this table.
    """

    __tablename__ = "cell_rest"
    __table_args__ = {"sqlite_with_rowid": False}

    axis: Mapped[int] = mapped_column(primary_key=True)  # place in `AXES`
    rest: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    cell_id: Mapped[int] = mapped_column(ForeignKey("cell.id"), primary_key=True)
    verdict: Mapped[int]  # place in `VERDICTS`


class Item(Base):
    """An issue or pull request whose state a status table shows."""

    __tablename__ = "item"

    key: Mapped[str] = mapped_column(primary_key=True)  # as people write it: #2884
    what: Mapped[str]
    link: Mapped[str | None]
    position: Mapped[int]
    states: Mapped[list[ItemState]] = relationship(order_by="ItemState.position", cascade="all")


class ItemState(Base):
    """What was said of an item on a day; the last is the present one."""

    __tablename__ = "item_state"

    item_key: Mapped[str] = mapped_column(ForeignKey("item.key"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str]
    date: Mapped[str]  # YYYY-MM-DD
    recorded: Mapped[datetime] = mapped_column(default=now)


class Claim(Base):
    """What newest cells are held to: a filter, and what is expected of those that it finds."""

    __tablename__ = "claim"

    name: Mapped[str] = mapped_column(primary_key=True)
    item_key: Mapped[str | None] = mapped_column(ForeignKey("item.key"))
    what: Mapped[str]
    filters: Mapped[dict[str, Any]]  # {factor: [values]}
    expect: Mapped[dict[str, Any]]


class Machine(Base):
    """A machine that computed results."""

    __tablename__ = "machine"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    host: Mapped[str]
    system: Mapped[str]
    processor: Mapped[str]
    cores: Mapped[int]
    memory_bytes: Mapped[int]


class Environment(Base):
    """The resolved packages of an interpreter."""

    __tablename__ = "environment"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(unique=True)
    platform: Mapped[str]
    packages: Mapped[list[Package]] = relationship(order_by="Package.name", cascade="all")


class Package(Base):
    __tablename__ = "package"

    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str]


class Result(Base):
    """What a cell's computation gave: numbers, or a typed failure.

    `hash` is of everything that determines the result; None where a cell
    failed before that was known. The summary columns are over its prompts.
    """

    __tablename__ = "result"
    __table_args__ = (Index("ix_result_hash", "hash", "status"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str | None]
    status: Mapped[str]
    final: Mapped[bool]  # a second run would give the same
    created: Mapped[datetime] = mapped_column(default=now)
    seconds: Mapped[float | None]
    measurement_version: Mapped[int]
    stand_in: Mapped[str | None]  # the stand-in that made it, in tests of absent hardware

    failed_stage: Mapped[str | None]
    error_type: Mapped[str | None]
    error: Mapped[str | None]
    error_frame: Mapped[str | None]  # in the builder's sources
    hint: Mapped[str | None]
    exit_code: Mapped[int | None]
    signal: Mapped[str | None]
    stderr_tail: Mapped[str | None]
    stack_dump: Mapped[str | None]  # what each process did when the stage had to be ended
    timings: Mapped[dict[str, Any] | None]  # {"first_token_seconds": 0.1}: what stages measured of themselves
    peak_memory_bytes: Mapped[int | None]

    checkpoint_hash: Mapped[str | None]
    checkpoint_dtype: Mapped[str | None]  # what its files hold
    files_dtype: Mapped[str | None]  # what both sides were given: the same, or what it was cast to
    reference_dtype: Mapped[str | None]  # what transformers loaded
    candidate_dtype: Mapped[str | None]  # what the builder loaded
    layer_count: Mapped[int | None]  # of the reference
    prompts_key: Mapped[str | None]  # of its `PromptInput` rows
    noise_key: Mapped[str | None]  # of its `NoiseValue` rows
    constants_key: Mapped[str | None]  # of its `ConstantValue` rows
    model_key: Mapped[str | None]  # of its checkpoint's artifact, where that was made
    thresholds: Mapped[dict[str, Any] | None]  # of the verdicts, in multiples of the noise floor
    overridden: Mapped[dict[str, Any] | None]  # {side: generation options that took no part}
    overlay_tree: Mapped[str | None]
    machine_id: Mapped[int | None] = mapped_column(ForeignKey("machine.id"))
    builder_environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    runtime_environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))
    reference_environment_id: Mapped[int | None] = mapped_column(ForeignKey("environment.id"))

    prompts_count: Mapped[int] = mapped_column(default=0)
    identical_count: Mapped[int] = mapped_column(default=0)
    sensible_count: Mapped[int | None]
    candidate_sensible_count: Mapped[int | None]
    first_diff_least: Mapped[float | None]
    first_diff_largest: Mapped[float | None]
    diff_least: Mapped[float | None]
    diff_largest: Mapped[float | None]
    forced_diff_largest: Mapped[float | None]
    non_finite_count: Mapped[int] = mapped_column(default=0)
    nonsense_count: Mapped[int | None]  # identical to a reference that is not sensible itself
    noise_floor_largest: Mapped[float | None]
    noise_ratio_largest: Mapped[float | None]
    multiple_largest: Mapped[float | None]  # of the noise, free-running or forced: what the verdict is by
    verdict: Mapped[str | None]
    compared_tokens_least: Mapped[int | None]  # over prompts, of the longer text; None where nothing was compared
    compared_tokens_largest: Mapped[int | None]
    constants_wrong: Mapped[int | None]  # how many; None where the constants were not compared
    settings_key: Mapped[str | None]  # of its `GenerationSetting` rows
    own_way: Mapped[str | None]  # same, never_stops, differs, not_run, …: runner/worker/own_way.py
    own_way_detail: Mapped[dict[str, Any] | None]  # {"outcome", "says", "explained", "generation", "reference"}
    reservations: Mapped[list[Any] | None]  # what else is told beside the verdict, a phrase each

    machine: Mapped[Machine | None] = relationship()
    stages: Mapped[list[StageRun]] = relationship(order_by="StageRun.position", cascade="all")
    prompts: Mapped[list[PromptResult]] = relationship(
        order_by="PromptResult.position", cascade="all", back_populates="result"
    )
    findings: Mapped[list[Finding]] = relationship(order_by="Finding.position", cascade="all")

    @property
    def error_line(self) -> str | None:
        return error_line(self.error_type, self.error)


class SourceCommit(Base):
    """What git knows of a commit that a builder's sources came from: what orders builders, without a repository."""

    __tablename__ = "source_commit"

    commit: Mapped[str] = mapped_column(primary_key=True)
    date: Mapped[datetime]  # of the commit, UTC
    # {version: {"date": of the tag's commit, "side"}}: "before" where the commit stands on the release, "after" where
    # the release holds the commit, None where they parted.
    releases: Mapped[dict[str, Any]]
    ancestors: Mapped[list[Any]]  # the newest, by the first 12 digits of their hashes


class ChangeOutcome(Base):
    """What became of one single change of a cell's patch set.

    The cell's, not the result's: a builder that has a change already gives the
    same result with the patch and without.
    """

    __tablename__ = "change_outcome"

    cell_id: Mapped[int] = mapped_column(ForeignKey("cell.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    change: Mapped[str]
    hash: Mapped[str | None]  # of what the change does, whatever it is called
    status: Mapped[str]  # applied, present, not_applicable, failed
    detail: Mapped[str]


class StageRun(Base):
    """What one stage cost: nothing but a look-up where `found`."""

    __tablename__ = "stage_run"

    result_id: Mapped[int] = mapped_column(ForeignKey("result.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    stage: Mapped[str]
    key: Mapped[str]  # of its artifact
    found: Mapped[bool]
    seconds: Mapped[float | None]
    peak_memory_bytes: Mapped[int | None]


class PromptResult(Base):
    """One prompt of a result. A float that is not finite is NULL, and named in `non_finite`."""

    __tablename__ = "prompt_result"
    __table_args__ = (UniqueConstraint("result_id", "position"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    result_id: Mapped[int] = mapped_column(ForeignKey("result.id"))
    position: Mapped[int]
    prompt: Mapped[str]
    first_logits_max_abs_diff: Mapped[float | None]
    logits_max_abs_diff: Mapped[float | None]
    matched_tokens: Mapped[int]
    compared_tokens: Mapped[int]
    tokens_identical: Mapped[bool]
    forced_logits_max_abs_diff: Mapped[float | None]
    noise_floor: Mapped[float | None]
    noise_ratio: Mapped[float | None]
    forced_noise_ratio: Mapped[float | None]
    verdict: Mapped[str | None]
    within_bands: Mapped[bool | None]  # the Neuron inference library's tolerances
    parting: Mapped[dict[str, Any] | None]  # where the texts part: {"step", "gap", "top": {side: [[id, token, logit]]}}
    reference_outcome: Mapped[str | None]
    sensible: Mapped[bool | None]
    candidate_sensible: Mapped[bool | None]
    outcome: Mapped[str]
    reference_range: Mapped[float | None]  # max minus min of the first token's logits
    reference_vocab: Mapped[int]
    candidate_vocab: Mapped[int]
    reference_text: Mapped[str]
    candidate_text: Mapped[str]
    non_finite: Mapped[dict[str, Any] | None]  # {column: "nan" | "+inf" | "-inf"}

    result: Mapped[Result] = relationship(back_populates="prompts")


class Finding(Base):
    """A warning that a result carries: of the prompt audit, or of what was loaded, cast or cut."""

    __tablename__ = "finding"

    result_id: Mapped[int] = mapped_column(ForeignKey("result.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]  # prompt, warning
    prompt: Mapped[str | None]
    check: Mapped[str]
    evidence: Mapped[str]


class MetricName(Base):
    """The metrics that `MetricValue` rows refer to by number."""

    __tablename__ = "metric_name"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class MetricValue(Base):
    """A number of one prompt: at a step (0 is the first new token), or of the whole (-1)."""

    __tablename__ = "metric_value"
    __table_args__ = {"sqlite_with_rowid": False}

    prompt_result_id: Mapped[int] = mapped_column(ForeignKey("prompt_result.id"), primary_key=True)
    metric_id: Mapped[int] = mapped_column(ForeignKey("metric_name.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    kind: Mapped[str]  # finite, nan, +inf, -inf
