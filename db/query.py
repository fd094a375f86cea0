"""Reading: what the command line and the reports ask for. Rows are plain dicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version
from sqlalchemy import Engine, Select, case, func, select

from db.engine import reading
from db.findings import FINDINGS_COUNT, PENDING
from db.models import (
    FACTORS,
    Cell,
    PromptResult,
    Result,
    Sweep,
    error_line,
)

# The columns that others rely on, in this order.
RESULT_COLUMNS = (
    "sweep", "cell", *FACTORS[:5], "runtime", "backend", "prompts", "prompt", "status", "error",
    "first_logits_max_abs_diff", "logits_max_abs_diff", "matched_tokens", "compared_tokens",
    "tokens_identical", "match", "forced_logits_max_abs_diff", "noise_floor", "noise_ratio", "verdict",
    "sensible", "candidate_sensible", "outcome", "within_bands", "precision", "reference", "max_new_tokens",
    "threads", "options", "stand_in", "constants_wrong", "reservations",
)  # fmt: skip
SWEEP_COLUMNS = ("sweep", "started", "seconds", "state", "cells", "found", "ok", "failed", "skipped", "command")
CELL_COLUMNS = (
    "sweep", "cell", *FACTORS, "options", "source", "status", "error", "found", "patch_outcome", "first_diff_least",
    "first_diff_largest", "diff_largest", "forced_diff_largest", "noise_floor_largest", "multiple_largest",
    "verdict", "constants_wrong", "identical_count", "nonsense_count", "prompts_count", "compared_tokens_least",
    "compared_tokens_largest", "sensible_count", "candidate_sensible_count", "reservations", "own_way",
    "files_dtype", "reference_dtype", "candidate_dtype", "stand_in", "measurement_version", "seconds",
)  # fmt: skip
FAILURE_COLUMNS = (
    "count", "status", "error", "builders", "models", "patches", "newest_cell", "error_frames",
)  # fmt: skip
KINDS = {"nan": math.nan, "+inf": math.inf, "-inf": -math.inf}


# What sweeps of one stage did (``stages=``): they compared nothing.
ONE_STAGE = ("export", "candidate")
# Of all sweeps those that compared logits: the others' cells are in no table of results.
OF_RUNS = Cell.sweep_id.not_in(select(Sweep.id).where(Sweep.action != "run"))


class NotInDatabase(Exception):
    """A sweep or cell that is asked for and is not there."""


def sweep_id(engine: Engine, sweep: str, actions: Sequence[str] = ("run",)) -> int:
    """The id of a sweep: a number, or "latest", of those that did one of `actions`. Errors: `NotInDatabase`."""
    with reading(engine) as session:
        if sweep == "latest":
            found = session.scalar(select(func.max(Sweep.id)).where(Sweep.action.in_(actions)))
        else:
            asked = int(sweep) if sweep.isdecimal() and len(sweep) < 18 else 0
            found = session.scalar(select(Sweep.id).where(Sweep.id == asked))
        if not found:
            known = session.execute(select(func.min(Sweep.id), func.max(Sweep.id))).one()
            there = f"there are {known[0]} to {known[1]}" if known[0] else "there is none yet"
            if sweep == "latest" and known[0]:
                there += f", and none of them was of this kind ({', '.join(actions)}); name one by its number"
            raise NotInDatabase(f"sweep {sweep!r} is not in the database: {there}")
        return found


def action_of(engine: Engine, sweep: int) -> str:
    """What a sweep did with its cells."""
    with reading(engine) as session:
        return session.scalars(select(Sweep.action).where(Sweep.id == sweep)).one()


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
        raise NotInDatabase(f"{option} {absent[0]}: there is none; there are: {', '.join(sorted(there)) or 'none'}")


def filtered(query: Select, filters: Mapping[str, Sequence[str]], status: Sequence[str], sweep: int | None) -> Select:
    """`query` over cells and results, narrowed: any of the values given for each factor.

    Of all sweeps only those count that compared logits.
    """
    for factor, values in filters.items():
        if values:
            query = query.where(getattr(Cell, factor).in_(values))
    if status:
        query = query.where(func.coalesce(Result.status, PENDING).in_(status))
    if sweep is not None:
        return query.where(Cell.sweep_id == sweep)
    return query.where(OF_RUNS)


def cell_rows(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """One dict a cell: factors, status, failure, and the summary over its prompts."""
    return told(engine, filtered(CELLS, filters or {}, status, sweep).order_by(Cell.sweep_id, Cell.position))


def told(engine: Engine, query: Select) -> list[dict[str, Any]]:
    """The rows of a query over `CELLS`, as `cell_part` and `summary_part` have them; columns are read ten times faster
    than objects."""
    with engine.connect() as connection:
        result = connection.execute(query)
        names = tuple(result.keys())
        rows = [dict(zip(names, row, strict=True)) for row in result]
    for row in rows:
        row["options"] = row["options"] or None
        row["status"] = row["status"] or PENDING
        row["error"] = error_line(row.pop("error_type"), row["error"])
    return rows


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


SUMMARY = (
    "prompts_count", "identical_count", "compared_tokens_least", "compared_tokens_largest", "sensible_count",
    "candidate_sensible_count", "first_diff_least", "first_diff_largest", "diff_least", "diff_largest",
    "forced_diff_largest",
    "non_finite_count", "nonsense_count", "noise_floor_largest", "noise_ratio_largest", "multiple_largest",
    "thresholds", "verdict", "constants_wrong", "reservations", "own_way", "own_way_detail",
    "settings_key", "failed_stage", "checkpoint_dtype", "files_dtype",
    "reference_dtype", "candidate_dtype", "layer_count", "noise_key", "constants_key", "prompts_key", "overridden",
    "seconds", "stand_in", "timings", "measurement_version",
)  # fmt: skip
# The columns of `cell_part` and `summary_part`, of every cell.
CELLS = select(
    Cell.sweep_id.label("sweep"),
    Cell.id.label("cell"),
    *(
        getattr(Cell, name)
        for name in (
            "options",
            "source",
            "source_commit",
            "source_dirty",
            "checkpoint_origin",
            *FACTORS,
            "found",
            "patch_outcome",
        )
    ),
    *(
        getattr(Result, name)
        for name in ("status", "final", "error_type", "error", "hint", "created", "error_frame", *SUMMARY)
    ),
    Result.id.label("result"),
).outerjoin(Result, Cell.result_id == Result.id)


def cell_part(cell: Cell, result: Result | None) -> dict[str, Any]:
    """What is said of a cell whatever became of it."""
    row = {"sweep": cell.sweep_id, "cell": cell.id, "options": cell.options or None, "source": cell.source}
    row["checkpoint_origin"] = cell.checkpoint_origin
    row |= {factor: getattr(cell, factor) for factor in FACTORS}
    row |= {"status": result.status if result else PENDING, "found": cell.found}
    row["final"] = result.final if result else None
    row["patch_outcome"] = cell.patch_outcome
    row |= {"error": result.error_line if result else None, "hint": result.hint if result else None}
    row["created"] = result.created if result else None
    row["stand_in"] = result.stand_in if result else None
    row["error_frame"] = result.error_frame if result else None
    row["constants_wrong"] = result.constants_wrong if result else None
    row["reservations"] = result.reservations if result else None
    return row


def summary_part(result: Result | None) -> dict[str, Any]:
    """The summary columns of a result."""
    return {name: getattr(result, name, None) for name in SUMMARY} | {"result": result.id if result else None}


def prompt_part(prompt: PromptResult) -> dict[str, Any]:
    """A prompt's columns, non-finite numbers restored."""
    columns = (
        "prompt", "first_logits_max_abs_diff", "logits_max_abs_diff", "matched_tokens",
        "compared_tokens", "tokens_identical", "forced_logits_max_abs_diff", "noise_floor",
        "noise_ratio", "verdict", "sensible", "candidate_sensible", "outcome", "within_bands",
    )  # fmt: skip
    row = {name: getattr(prompt, name) for name in columns}
    if not prompt.reference_vocab:  # a candidate alone: there was nothing to compare with
        return row | dict.fromkeys(("matched_tokens", "compared_tokens", "tokens_identical", "match"))
    row |= {name: KINDS[kind] for name, kind in (prompt.non_finite or {}).items() if name in row}
    return row | {"match": match(prompt)}


def match(prompt: PromptResult) -> str:
    """How the two texts compare, in words: a match on nonsense is called that."""
    if not prompt.tokens_identical:
        return f"parts at {prompt.matched_tokens}"
    return "nonsense" if prompt.sensible is False else "identical"


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


def unknown_rows(
    engine: Engine, filters: Mapping[str, Sequence[str]] | None = None, sweep: int | None = None
) -> list[dict[str, Any]]:
    """Rows of cells (as `cell_rows`) of which nothing is known: for each combination of all factors that has no finding
    (`db.findings`) its newest cell."""
    newest = (
        filtered(select(func.max(Cell.id)).outerjoin(Result, Cell.result_id == Result.id), filters or {}, (), sweep)
        .group_by(Cell.hash)
        .having(FINDINGS_COUNT == 0)
    )
    return told(engine, CELLS.where(Cell.id.in_(newest)).order_by(Cell.id))


def of_one_measurement(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the numbers that an older version of the measuring made: they do not belong in one table."""
    newest = newest_measurement(rows)
    return [row for row in rows if row["status"] != "ok" or row["measurement_version"] == newest]


def newest_measurement(rows: list[dict[str, Any]]) -> int:
    return max((row["measurement_version"] for row in rows if row["status"] == "ok"), default=0)


@cache
def release_order(builder: str) -> tuple:
    """Releases by version; refs and working copies after them, by name."""
    try:
        return (0, Version(builder), "")
    except InvalidVersion:
        return (1, Version("0"), builder)
