"""Writing: sweeps, their cells, and results. Plain values in, ids out; knows nothing of the runner."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import Session

from db.engine import reading, writing
from db.models import (
    FACTORS,
    Cell,
    ChangeOutcome,
    Environment,
    Machine,
    MetricName,
    MetricValue,
    Package,
    PromptResult,
    Result,
    StageRun,
    Sweep,
    now,
)

# Float columns of `PromptResult` that a comparison fills; their kinds go to `non_finite`.
PROMPT_FLOATS = ("first_logits_max_abs_diff", "logits_max_abs_diff", "reference_range")
PROMPT_PLAIN = (
    "prompt", "matched_tokens", "compared_tokens", "tokens_identical", "sensible",
    "candidate_sensible", "outcome", "reference_text", "candidate_text",
)  # fmt: skip


@dataclass(frozen=True)
class NewResult:
    """A result to record.

    values: columns of `Result`. environments: {role: {"hash", "platform",
    "packages": {name: version}}}. machine: columns of `Machine`. stages:
    columns of `StageRun`. prompts: as the comparison wrote them.
    """

    values: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    machine: Mapping[str, Any] | None = None
    stages: Sequence[Mapping[str, Any]] = ()
    prompts: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Provenance:
    """What a cell's export was made of: columns of `Cell`, and each patch change's columns.

    The cell's and not the result's: equal results may come from different requests.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[Mapping[str, Any]] = ()


def begin_sweep(
    engine: Engine, overrides: Sequence[str], version: str, cells: Sequence[Mapping[str, Any]]
) -> tuple[int, list[int]]:
    """A new sweep and its cells, all still without a result. Returns their ids.

    cells: {"hash", "config", and every factor}.
    """
    with writing(engine) as session:
        bury_dead(session)
        sweep = Sweep(overrides=list(overrides), host=platform.node(), pid=os.getpid(), version=version)
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
        result = Result(**new.values, **summary(new.prompts))
        for role, environment in new.environments.items():
            setattr(result, f"{role}_environment_id", environment_id(session, environment))
        if new.machine:
            result.machine_id = machine_id(session, new.machine)
        result.stages = [StageRun(position=n, **stage) for n, stage in enumerate(new.stages)]
        result.prompts = [prompt_row(n, prompt) for n, prompt in enumerate(new.prompts)]
        session.add(result)
        session.flush()
        add_steps(session, result.prompts, new.prompts)
        finish_cell(session, cell_id, result.id, False, provenance)
        return result.id


def finish_cell(session: Session, cell_id: int, result_id: int, found: bool, provenance: Provenance) -> None:
    values = {"result_id": result_id, "found": found, **provenance.values}
    session.execute(update(Cell).where(Cell.id == cell_id).values(values))
    rows = [{"cell_id": cell_id, "position": n, **change} for n, change in enumerate(provenance.changes)]
    if rows:
        session.execute(insert(ChangeOutcome), rows)


def summary(prompts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a result that summarise its prompts, so that reports need not read them."""
    columns: dict[str, Any] = {"prompts_count": len(prompts)}
    for name, metric in (("first_diff", "first_logits_max_abs_diff"), ("diff", "logits_max_abs_diff")):
        values = [p["metrics"][metric]["value"] for p in prompts if p["metrics"][metric]["value"] is not None]
        columns[f"{name}_least"] = min(values, default=None)
        columns[f"{name}_largest"] = max(values, default=None)
    columns["identical_count"] = sum(p["tokens_identical"] for p in prompts)
    columns["non_finite_count"] = sum(
        any(number["kind"] != "finite" for number in (*p["metrics"].values(), p["reference_range"])) for p in prompts
    )
    for name in ("sensible", "candidate_sensible"):
        judged = [p[name] for p in prompts if p[name] is not None]
        columns[f"{name}_count"] = sum(judged) if judged else None
    return columns


def prompt_row(position: int, prompt: Mapping[str, Any]) -> PromptResult:
    numbers = {**prompt["metrics"], "reference_range": prompt["reference_range"]}
    odd = {name: number["kind"] for name, number in numbers.items() if number["kind"] != "finite"}
    return PromptResult(
        position=position,
        **{name: prompt[name] for name in PROMPT_PLAIN},
        **{name: numbers[name]["value"] for name in PROMPT_FLOATS},
        reference_vocab=prompt["vocab"][0],
        candidate_vocab=prompt["vocab"][1],
        non_finite=odd or None,
    )


def add_steps(session: Session, rows: list[PromptResult], prompts: Sequence[Mapping[str, Any]]) -> None:
    """The numbers per step, as integer-keyed rows."""
    names = {name for prompt in prompts for name in prompt["steps"]}
    ids = {name: metric_id(session, name) for name in sorted(names)}
    values = [
        {"prompt_result_id": row.id, "metric_id": ids[name], "step": step, **number}
        for row, prompt in zip(rows, prompts, strict=True)
        for name, numbers in prompt["steps"].items()
        for step, number in enumerate(numbers)
    ]
    if values:
        session.execute(insert(MetricValue), values)


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
