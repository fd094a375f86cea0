"""Writing: sweeps, their cells, and results. Plain values in, ids out; knows nothing of the runner."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, delete, func, insert, select, update
from sqlalchemy.orm import Session, aliased

from db.artifacts import (
    CONSTANT_FAULTS,
    LOADING_FAULTS,
    ConstantValue,
    GenerationSetting,
    LoadedTensor,
    NoiseValue,
    Overlay,
    PromptInput,
)
from db.engine import reading, writing
from db.findings import is_finding
from db.models import (
    AXES,
    FACTORS,
    VERDICTS,
    Cell,
    CellRest,
    ChangeOutcome,
    Environment,
    Finding,
    Machine,
    MetricName,
    MetricValue,
    Package,
    PromptResult,
    Result,
    SourceCommit,
    StageRun,
    Sweep,
    now,
)

WHOLE = -1  # the step of a metric over a whole continuation
# Float columns of `PromptResult` that a comparison fills; their kinds go to `non_finite`.
PROMPT_FLOATS = (
    "first_logits_max_abs_diff", "logits_max_abs_diff", "forced_logits_max_abs_diff",
    "noise_floor", "noise_ratio", "forced_noise_ratio", "reference_range",
)  # fmt: skip
# A number of these that is not finite is the export's; a reference without a range is no export's fault.
OF_THE_EXPORT = PROMPT_FLOATS[:3]
PROMPT_PLAIN = (
    "prompt", "matched_tokens", "compared_tokens", "tokens_identical", "sensible", "candidate_sensible", "outcome",
    "reference_text", "candidate_text", "verdict", "within_bands", "parting", "reference_outcome",
)  # fmt: skip


@dataclass(frozen=True)
class NewResult:
    """A result to record.

    values: columns of `Result`. environments: {role: {"hash", "platform",
    "packages": {name: version}}}. machine: columns of `Machine`. stages:
    columns of `StageRun`. prompts: as the comparison wrote them. findings,
    inputs, noise, constants, settings, loading: columns of `Finding`,
    `PromptInput`, `NoiseValue`, `ConstantValue`, `GenerationSetting` and
    `LoadedTensor`, the last of several artifacts.
    """

    values: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] | None = None
    stages: Sequence[Mapping[str, Any]] = ()
    prompts: Sequence[Mapping[str, Any]] = ()
    findings: Sequence[Mapping[str, Any]] = ()
    inputs: Sequence[Mapping[str, Any]] = ()
    noise: Sequence[Mapping[str, Any]] = ()
    constants: Sequence[Mapping[str, Any]] = ()
    loading: Sequence[Mapping[str, Any]] = ()
    settings: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Provenance:
    """What a cell's export was made of: columns of `Cell`, of each patch change, of `Overlay` and of `SourceCommit`.

    The cell's and not the result's: equal results may come from different requests.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[Mapping[str, Any]] = ()
    overlay: Mapping[str, Any] | None = None
    commit: Mapping[str, Any] | None = None


def begin_sweep(
    engine: Engine, overrides: Sequence[str], version: str, cells: Sequence[Mapping[str, Any]], action: str = "run"
) -> tuple[int, list[int]]:
    """A new sweep and its cells, all still without a result. Returns their ids.

    cells: {"hash", "config", and every factor}.
    """
    with writing(engine) as session:
        bury_dead(session)
        about = {"action": action, "host": platform.node(), "pid": os.getpid(), "version": version}
        sweep = Sweep(overrides=list(overrides), **about)
        session.add(sweep)
        session.flush()
        rows = [
            {"sweep_id": sweep.id, "position": position, "found": False, **cell} for position, cell in enumerate(cells)
        ]
        ids = session.scalars(insert(Cell).returning(Cell.id, sort_by_parameter_order=True), rows)
        return sweep.id, list(ids) if rows else []


def bury_dead(session: Session) -> None:
    """Sweeps of this host whose process is gone did not end: say so."""
    running = select(Sweep).where(Sweep.state == "running", Sweep.host == platform.node())
    for sweep in session.scalars(running):
        try:
            os.kill(sweep.pid, 0)
        except ProcessLookupError:
            sweep.state = "died"
        except OSError:
            continue


def end_sweep(engine: Engine, sweep_id: int, state: str) -> None:
    with writing(engine) as session:
        session.execute(update(Sweep).where(Sweep.id == sweep_id).values(state=state, ended=now()))


def find_result(engine: Engine, result_hash: str) -> Result | None:
    """The newest final result with this hash (its own columns; nothing it refers to)."""
    query = select(Result).where(Result.hash == result_hash, Result.final).order_by(Result.id.desc()).limit(1)
    with reading(engine) as session:
        return session.scalar(query)


def attach(engine: Engine, cell_id: int, result_id: int, found: bool, provenance: Provenance) -> None:
    """Point a cell at a result that is there; `found`: it was there before this sweep."""
    with writing(engine) as session:
        finish_cell(session, cell_id, result_id, found, provenance)


def record_result(engine: Engine, cell_id: int, new: NewResult, provenance: Provenance) -> int:
    """Store a result and point the cell at it, in one transaction. Returns the result's id."""
    with writing(engine) as session:
        result = Result(**new.values, **summary(new.prompts), constants_wrong=constants_wrong(new.constants))
        for role, environment in new.environments.items():
            setattr(result, f"{role}_environment_id", environment_id(session, environment))
        if new.machine:
            result.machine_id = machine_id(session, new.machine)
        result.stages = [StageRun(position=n, **stage) for n, stage in enumerate(new.stages)]
        result.prompts = [prompt_row(n, prompt) for n, prompt in enumerate(new.prompts)]
        result.findings = [Finding(position=n, **finding) for n, finding in enumerate(new.findings)]
        session.add(result)
        session.flush()
        add_metrics(session, result.prompts, new.prompts)
        add_shared(session, PromptInput, "prompts_key", new.inputs)
        add_shared(session, NoiseValue, "noise_key", new.noise)
        add_shared(session, ConstantValue, "constants_key", new.constants)
        add_shared(session, GenerationSetting, "settings_key", new.settings)
        for key in dict.fromkeys(row["loading_key"] for row in new.loading):
            mine = [row for row in new.loading if row["loading_key"] == key]
            add_shared(session, LoadedTensor, "loading_key", mine)
        finish_cell(session, cell_id, result.id, False, provenance)
        return result.id


def finish_cell(session: Session, cell_id: int, result_id: int, found: bool, provenance: Provenance) -> None:
    values = {"result_id": result_id, "found": found, **provenance.values}
    session.execute(update(Cell).where(Cell.id == cell_id).values(values))
    cell = session.get_one(Cell, cell_id)
    if cell.sweep.action == "run":
        add_rests(session, cell, session.get_one(Result, result_id))
    rows = [{"cell_id": cell_id, "position": n, **change} for n, change in enumerate(provenance.changes)]
    if rows:
        session.execute(insert(ChangeOutcome), rows)
    add_shared(session, Overlay, "tree", [provenance.overlay] if provenance.overlay else [])
    if provenance.commit:
        session.merge(SourceCommit(**provenance.commit))  # a later look may know of more releases


def add_rests(session: Session, cell: Cell, result: Result) -> None:
    """Enter a cell among those that differ from it in one axis alone."""
    session.execute(delete(CellRest).where(CellRest.cell_id == cell.id))
    about = {"status": result.status, "final": result.final, "failed_stage": result.failed_stage}
    word = result.verdict if result.status == "ok" else "failed"
    if word is None or not is_finding(about):
        return
    verdict = VERDICTS.index(word)
    values = [getattr(cell, axis) or "" for axis in AXES]
    rows = [
        {"axis": n, "rest": rest_of([*values[:n], *values[n + 1 :]]), "cell_id": cell.id, "verdict": verdict}
        for n in range(len(AXES))
    ]
    session.execute(insert(CellRest), rows)


def rest_of(values: Sequence[str]) -> int:
    """A number of 63 bits for some values: databases have no larger integers."""
    digest = hashlib.sha256("\0".join(values).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def summary(prompts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a result that summarise its prompts, so that reports need not read them."""
    numbers = [numbers_of(prompt) for prompt in prompts]

    def finite(name: str) -> list[float]:
        return [found[name]["value"] for found in numbers if found[name]["value"] is not None]

    columns: dict[str, Any] = {"prompts_count": len(prompts)}
    for column, name in (("first_diff", "first_logits_max_abs_diff"), ("diff", "logits_max_abs_diff")):
        columns[f"{column}_least"] = min(finite(name), default=None)
        columns[f"{column}_largest"] = max(finite(name), default=None)
    for column, name in (
        ("forced_diff_largest", "forced_logits_max_abs_diff"),
        ("noise_floor_largest", "noise_floor"),
        ("noise_ratio_largest", "noise_ratio"),
    ):
        columns[column] = max(finite(name), default=None)
    multiples = finite("noise_ratio") + finite("forced_noise_ratio")
    columns["multiple_largest"] = max(multiples, default=None)
    columns["identical_count"] = sum(p["tokens_identical"] for p in prompts)
    lengths = [p["compared_tokens"] for p in prompts if p["compared_tokens"]]  # none where there was no reference
    columns["compared_tokens_least"] = min(lengths, default=None)
    columns["compared_tokens_largest"] = max(lengths, default=None)
    columns["nonsense_count"] = sum(p["tokens_identical"] and p["sensible"] is False for p in prompts)
    columns["non_finite_count"] = sum(any(n[name]["kind"] != "finite" for name in OF_THE_EXPORT) for n in numbers)
    for name in ("sensible", "candidate_sensible"):
        judged = [p[name] for p in prompts if p[name] is not None]
        columns[f"{name}_count"] = sum(judged) if judged else None
    verdicts = [p["verdict"] for p in prompts if p["verdict"]]
    columns["verdict"] = max(verdicts, key=VERDICTS.index, default=None)
    return columns


def constants_wrong(constants: Sequence[Mapping[str, Any]]) -> int | None:
    """How many constants of an export are wrong; None where none was compared."""
    return sum(row["verdict"] in CONSTANT_FAULTS for row in constants) if constants else None


def numbers_of(prompt: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """A prompt's numbers by column, as {"value", "kind"}."""
    return {name: prompt["metrics"][name] if name in prompt["metrics"] else prompt[name] for name in PROMPT_FLOATS}


def prompt_row(position: int, prompt: Mapping[str, Any]) -> PromptResult:
    numbers = numbers_of(prompt)
    odd = {name: number["kind"] for name, number in numbers.items() if number["kind"] != "finite"}
    return PromptResult(
        position=position,
        **{name: prompt[name] for name in PROMPT_PLAIN},
        **{name: number["value"] for name, number in numbers.items()},
        reference_vocab=prompt["vocab"][0],
        candidate_vocab=prompt["vocab"][1],
        non_finite=odd or None,
    )


def add_metrics(session: Session, rows: list[PromptResult], prompts: Sequence[Mapping[str, Any]]) -> None:
    """The numbers of whole prompts (step -1) and of each step, as integer-keyed rows."""
    names = {name for prompt in prompts for part in ("metrics", "steps") for name in prompt[part]}
    ids = {name: metric_id(session, name) for name in sorted(names)}
    values = [
        {"prompt_result_id": row.id, "metric_id": ids[name], "step": step, **number}
        for row, prompt in zip(rows, prompts, strict=True)
        for name, step, number in metrics_of(prompt)
    ]
    if values:
        session.execute(insert(MetricValue), values)


def metrics_of(prompt: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """(metric, step, number): the whole's at step -1."""
    for name, number in prompt["metrics"].items():
        yield name, WHOLE, number
    for name, numbers in prompt["steps"].items():
        for step, number in enumerate(numbers):
            yield name, step, number


def add_shared(session: Session, table: type, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows of an artifact that many results share, once; made anew where it came out otherwise."""
    if not rows:
        return
    mine = getattr(table, key) == rows[0][key]
    names = list(rows[0])
    there = {tuple(map(str, row)) for row in session.execute(select(*(getattr(table, n) for n in names)).where(mine))}
    if there != {tuple(str(row[name]) for name in names) for row in rows}:
        session.execute(delete(table).where(mine))
        session.execute(insert(table), list(rows))


def loading_rows(key: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an artifact's loader audit as columns of `LoadedTensor`; `key` is the artifact's."""
    return [{**row, "loading_key": key, "position": n} for n, row in enumerate(rows)]


def reference_keys(engine: Engine, checkpoint_hash: str) -> list[dict[str, Any]]:
    """The references of a checkpoint's results, newest first, each once with each noise: {"prompts", "reference",
    "noise": keys, "environment": the id of what the reference was computed with}."""
    stages = {name: aliased(StageRun) for name in ("prompts", "reference", "noise")}
    keys = [stage.key.label(name) for name, stage in stages.items()]
    query = select(func.max(Result.id), func.max(Result.reference_environment_id), *keys)
    for name, stage in stages.items():
        query = query.join(stage, (stage.result_id == Result.id) & (stage.stage == name), isouter=name == "noise")
    query = query.where(Result.checkpoint_hash == checkpoint_hash, Result.status == "ok").group_by(*keys)
    with reading(engine) as session:
        rows = sorted(session.execute(query), key=lambda row: -row[0])
    return [
        {"environment": row[1], **{name: getattr(row, name) for name in stages if getattr(row, name)}} for row in rows
    ]


def audit_findings(engine: Engine, result_id: int) -> int:
    """How many findings of the prompt audit a result carries."""
    query = select(func.count()).where(Finding.result_id == result_id, Finding.kind == "prompt")
    with reading(engine) as session:
        return session.scalar(query) or 0


def loading_faults(engine: Engine, result_id: int) -> int:
    """How many rows of a result's loader audits say that a side does not hold what the checkpoint has."""
    key = LoadedTensor.loading_key
    stages = select(StageRun.key).where(StageRun.result_id == result_id)
    made = select(Result.model_key).where(Result.id == result_id)
    query = select(func.count()).where(key.in_(stages) | key.in_(made), LoadedTensor.outcome.in_(LOADING_FAULTS))
    with reading(engine) as session:
        return session.scalar(query) or 0


def metric_id(session: Session, name: str) -> int:
    found = session.scalar(select(MetricName.id).where(MetricName.name == name))
    return found or add(session, MetricName(name=name))


def environment_id(session: Session, environment: Mapping[str, Any]) -> int:
    found = session.scalar(select(Environment.id).where(Environment.hash == environment["hash"]))
    packages = [Package(name=name, version=v) for name, v in environment["packages"].items()]
    return found or add(
        session,
        Environment(hash=environment["hash"], platform=environment["platform"], packages=packages),
    )


def machine_id(session: Session, machine: Mapping[str, Any]) -> int:
    found = session.scalar(select(Machine.id).where(Machine.hash == machine["hash"]))
    return found or add(session, Machine(**machine))


def add(session: Session, row: Any) -> int:
    session.add(row)
    session.flush()
    return row.id


assert set(FACTORS) <= {column.key for column in Cell.__table__.columns}
