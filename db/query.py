"""Reading: what the command line and the reports ask for. Rows are plain dicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version
from sqlalchemy import Engine, Select, case, func, select
from sqlalchemy.orm import Session

from db.engine import reading
from db.models import FACTORS, Cell, Package, PromptResult, Result, StageRun, Sweep

ROLES = ("builder", "runtime", "reference")
# The columns that others rely on, in this order.
RESULT_COLUMNS = (
    "sweep", "cell", *FACTORS[:5], "runtime", "backend", "prompts", "prompt", "status", "error",
    "first_logits_max_abs_diff", "logits_max_abs_diff", "matched_tokens", "compared_tokens",
    "tokens_identical", "forced_logits_max_abs_diff", "noise_floor", "noise_ratio", "verdict",
    "sensible", "candidate_sensible", "outcome", "precision", "reference", "max_new_tokens", "threads", "options",
)  # fmt: skip
SWEEP_COLUMNS = ("sweep", "started", "seconds", "state", "cells", "found", "ok", "failed", "skipped", "command")
PACKAGE_COLUMNS = ("package", *ROLES)
CHANGE_COLUMNS = ("change", "status", "detail")
STAGE_COLUMNS = ("stage", "found", "seconds", "peak_memory_bytes", "artifact")
TEXT_COLUMNS = ("prompt", "outcome", "reference_text", "candidate_text")
CELL_COLUMNS = (
    "sweep", "cell", *FACTORS, "options", "source", "status", "error", "found", "patch_outcome", "first_diff_least",
    "first_diff_largest", "diff_largest", "identical_count", "prompts_count", "sensible_count",
    "candidate_sensible_count", "verdict", "seconds",
)  # fmt: skip
HISTORY_COLUMNS = (
    "builder", *(factor for factor in FACTORS if factor != "builder"), "options", "changed", "status",
    "first_diff_least", "first_diff_largest", "identical_count", "prompts_count", "error", "sweep", "cell",
)  # fmt: skip
# Two findings are the same while their largest first-token diffs are within this factor of each other.
HISTORY_FACTOR = 2.0
FAILURE_COLUMNS = (
    "count", "status", "error", "builders", "models", "patches", "newest_cell", "error_frames",
)  # fmt: skip
PENDING = "pending"


class NotInDatabase(Exception):
    """A sweep or cell that is asked for and is not there."""


def sweep_id(engine: Engine, sweep: str) -> int:
    """The id of a sweep: a number, or "latest". Errors: `NotInDatabase`."""
    with reading(engine) as session:
        if sweep == "latest":
            found = session.scalar(select(func.max(Sweep.id)))
        else:
            asked = int(sweep) if sweep.isdecimal() and len(sweep) < 18 else 0
            found = session.scalar(select(Sweep.id).where(Sweep.id == asked))
        if not found:
            known = session.execute(select(func.min(Sweep.id), func.max(Sweep.id))).one()
            there = f"there are {known[0]} to {known[1]}" if known[0] else "there is none yet"
            raise NotInDatabase(f"sweep {sweep!r} is not in the database: {there}")
        return found


def check_filters(engine: Engine, filters: Mapping[str, Sequence[str]], status: Sequence[str]) -> None:
    """Refuse a value that no stored cell has. Errors: `NotInDatabase` with the values there are."""
    with reading(engine) as session:
        for factor, values in filters.items():
            if values:
                there = set(session.scalars(select(getattr(Cell, factor)).distinct()))
                refuse_absent(f"--{factor.replace('_', '-')}", values, there)
        if status:
            refuse_absent("--status", status, {PENDING, *session.scalars(select(Result.status).distinct())})


def refuse_absent(option: str, asked: Sequence[str], there: set[str]) -> None:
    absent = sorted(set(asked) - there)
    if absent:
        raise NotInDatabase(f"{option} {absent[0]}: no cell has it; there are: {', '.join(sorted(there)) or 'none'}")


def filtered(query: Select, filters: Mapping[str, Sequence[str]], status: Sequence[str], sweep: int | None) -> Select:
    """`query` over cells and results, narrowed: any of the values given for each factor."""
    for factor, values in filters.items():
        if values:
            query = query.where(getattr(Cell, factor).in_(values))
    if status:
        query = query.where(func.coalesce(Result.status, PENDING).in_(status))
    if sweep is not None:
        query = query.where(Cell.sweep_id == sweep)
    return query


def cell_rows(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """One dict a cell: factors, status, failure, and the summary over its prompts."""
    query = select(Cell, Result).outerjoin(Result, Cell.result_id == Result.id)
    query = filtered(query, filters or {}, status, sweep).order_by(Cell.sweep_id, Cell.position)
    with reading(engine) as session:
        return [cell_part(cell, result) | summary_part(result) for cell, result in session.execute(query)]


def result_rows(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """One dict a cell and prompt, with `RESULT_COLUMNS`; a cell without numbers has one."""
    query = (
        select(Cell, Result, PromptResult)
        .outerjoin(Result, Cell.result_id == Result.id)
        .outerjoin(PromptResult, PromptResult.result_id == Result.id)
    )
    query = filtered(query, filters or {}, status, sweep)
    query = query.order_by(Cell.sweep_id, Cell.position, PromptResult.position)
    with reading(engine) as session:
        rows = []
        for cell, result, prompt in session.execute(query):
            row = dict.fromkeys(RESULT_COLUMNS)
            row |= {k: v for k, v in cell_part(cell, result).items() if k in row}
            row |= prompt_part(prompt) if prompt else {}
            rows.append(row)
        return rows


def cell_part(cell: Cell, result: Result | None) -> dict[str, Any]:
    """What is said of a cell whatever became of it."""
    row = {"sweep": cell.sweep_id, "cell": cell.id, "options": cell.options or None, "source": cell.source}
    row |= {factor: getattr(cell, factor) for factor in FACTORS}
    row |= {"status": result.status if result else PENDING, "found": cell.found}
    row["patch_outcome"] = cell.patch_outcome
    row |= {"error": result.error_line if result else None, "hint": result.hint if result else None}
    row["error_frame"] = result.error_frame if result else None
    return row


def summary_part(result: Result | None) -> dict[str, Any]:
    """The summary columns of a result."""
    names = (
        "prompts_count", "identical_count", "sensible_count", "candidate_sensible_count",
        "first_diff_least", "first_diff_largest", "diff_least", "diff_largest", "non_finite_count",
        "verdict", "failed_stage", "checkpoint_dtype", "seconds", "stand_in", "measurement_version",
    )  # fmt: skip
    return {name: getattr(result, name, None) for name in names} | {"result": result.id if result else None}


def prompt_part(prompt: PromptResult) -> dict[str, Any]:
    """A prompt's columns, non-finite numbers restored."""
    columns = (
        "prompt", "first_logits_max_abs_diff", "logits_max_abs_diff", "matched_tokens",
        "compared_tokens", "tokens_identical", "forced_logits_max_abs_diff", "noise_floor",
        "noise_ratio", "verdict", "sensible", "candidate_sensible", "outcome",
    )  # fmt: skip
    row = {name: getattr(prompt, name) for name in columns}
    kinds = {"nan": math.nan, "+inf": math.inf, "-inf": -math.inf}
    row |= {name: kinds[kind] for name, kind in (prompt.non_finite or {}).items() if name in row}
    return row


def prompts_of(engine: Engine, result_ids: Sequence[int]) -> dict[int, list[PromptResult]]:
    """The prompts of some results, in order."""
    query = (
        select(PromptResult)
        .where(PromptResult.result_id.in_(result_ids))
        .order_by(PromptResult.result_id, PromptResult.position)
    )
    found: dict[int, list[PromptResult]] = {}
    with reading(engine) as session:
        for prompt in session.scalars(query):
            found.setdefault(prompt.result_id, []).append(prompt)
    return found


def sweep_rows(engine: Engine) -> list[dict[str, Any]]:
    """One dict a sweep, with `SWEEP_COLUMNS`."""
    ok = func.sum(case((Result.status == "ok", 1), else_=0))
    skipped = func.sum(case((Result.status == "skipped", 1), else_=0))
    failed = func.sum(case((Result.status.not_in(("ok", "skipped")), 1), else_=0))
    query = (
        select(Sweep, func.count(Cell.id), func.sum(case((Cell.found, 1), else_=0)), ok, failed, skipped)
        .outerjoin(Cell, Cell.sweep_id == Sweep.id)
        .outerjoin(Result, Cell.result_id == Result.id)
        .group_by(Sweep.id)
        .order_by(Sweep.id)
    )
    with reading(engine) as session:
        return [
            {
                "sweep": sweep.id,
                "started": sweep.started.strftime("%Y-%m-%d %H:%M:%S"),
                "seconds": (sweep.ended - sweep.started).total_seconds() if sweep.ended else None,
                "state": sweep.state,
                "cells": cells,
                "found": found or 0,
                "ok": good or 0,
                "failed": bad or 0,
                "skipped": left or 0,
                "command": " ".join(["python -m runner", *sweep.overrides]),
            }
            for sweep, cells, found, good, bad, left in session.execute(query)
        ]


def cell_detail(engine: Engine, cell_id: int) -> dict[str, Any]:
    """Everything about one cell but its numbers and packages.

    {"cell": its row, "result": the result's columns, "prompts", "changes", "stages": rows}.
    """
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        result = cell.result
        return {
            "cell": cell_part(cell, result) | {"sweep started": cell.sweep.started},
            "result": columns_of(result) if result else {},
            "prompts": [{c: getattr(row, c) for c in TEXT_COLUMNS} for row in (result.prompts if result else [])],
            "changes": [{c: getattr(row, c) for c in CHANGE_COLUMNS} for row in cell.changes],
            "stages": [stage_part(row) for row in (result.stages if result else [])],
        }


def stage_part(stage: StageRun) -> dict[str, Any]:
    """A stage's columns, with its artifact's place in the store."""
    columns = {c: getattr(stage, c) for c in ("stage", "found", "seconds", "peak_memory_bytes")}
    return columns | {"artifact": f"{stage.stage}/{stage.key}"}


def columns_of(row: Any) -> dict[str, Any]:
    """A row's own columns, references to other tables left out."""
    return {c.key: getattr(row, c.key) for c in row.__table__.columns if not c.foreign_keys}


def existing_cell(session: Session, cell_id: int) -> Cell:
    cell = session.get(Cell, cell_id) if abs(cell_id) < 2**63 else None
    if cell is None:
        raise NotInDatabase(f"cell {cell_id} is not in the database: see python -m db results")
    return cell


def package_rows(engine: Engine, cell_id: int) -> list[dict[str, Any]]:
    """One dict a package, with its version in each of a cell's environments."""
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        versions: dict[str, dict[str, Any]] = {}
        for role in ROLES:
            environment = getattr(cell.result, f"{role}_environment_id") if cell.result else None
            for package in session.scalars(select(Package).where(Package.environment_id == environment)):
                versions.setdefault(package.name, {})[role] = package.version
        return [{"package": name, **versions[name]} for name in sorted(versions)]


def failure_groups(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """Failed cells grouped by status and the first line of their error, the most frequent first."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in cell_rows(engine, filters, status, sweep):
        groups.setdefault((row["status"], row["error"]), []).append(row)
    return [
        {
            "count": len(rows),
            "status": kind,
            "error": error,
            "error_frames": "; ".join(sorted({row["error_frame"] for row in rows if row["error_frame"]})[:3]),
            "builders": ", ".join(sorted({row["builder"] for row in rows}, key=release_order)),
            "models": ", ".join(sorted({row["model"] for row in rows})),
            "patches": ", ".join(sorted({row["patch"] for row in rows})),
            "newest_cell": max(row["cell"] for row in rows),
        }
        for (kind, error), rows in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def history_rows(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """The newest cell of each builder and of each line of other factors, releases in order.

    `changed` says that a cell differs from the release before it in its line:
    another status or error, other identical counts, or a largest first-token
    diff that is more than `HISTORY_FACTOR` times larger or smaller.
    """
    newest: dict[tuple, dict[str, Any]] = {}
    for row in cell_rows(engine, filters, status, sweep):
        if row["status"] not in (PENDING, "skipped"):
            newest[(*history_line(row), row["builder"])] = row
    rows = sorted(newest.values(), key=lambda row: (history_line(row), release_order(row["builder"])))
    before: dict[str, Any] = {}
    for row in rows:
        row["line"] = history_line(row)
        row["changed"] = bool(before) and before["line"] == row["line"] and differs(before, row)
        before = row
    return rows


def history_line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything but the builder: what a history holds fixed."""
    return (*(row[factor] for factor in FACTORS if factor != "builder"), row["options"] or "")


def release_order(builder: str) -> tuple:
    """Releases by version; refs and working copies after them, by name."""
    try:
        return (0, Version(builder), "")
    except InvalidVersion:
        return (1, Version("0"), builder)


def differs(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two results are not the same finding."""
    if any(one[name] != two[name] for name in ("status", "error", "identical_count")):
        return True
    if one["status"] != "ok":
        return False
    low, high = sorted((one["first_diff_largest"] or 0.0, two["first_diff_largest"] or 0.0))
    return high > HISTORY_FACTOR * low
