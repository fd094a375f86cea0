"""The history of a line of cells: the newest cell of each builder, in the builders' order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, func, select

from db import query
from db.findings import FINDING
from db.models import FACTORS, Cell, Result

HISTORY_COLUMNS = (
    "builder", *(factor for factor in FACTORS if factor != "builder"), "options", "changed", "status",
    "first_diff_least", "first_diff_largest", "multiple_largest", "verdict", "constants_wrong", "identical_count",
    "nonsense_count", "prompts_count", "compared_tokens_least", "compared_tokens_largest", "reservations",
    "error", "sweep", "cell",
)  # fmt: skip
# Two findings are the same while their largest first-token diffs are within this factor of each other.
HISTORY_FACTOR = 2.0


def history_rows(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """The newest finding of each builder and of each line of other factors, releases in order.

    `changed` says that a cell differs from the release before it in its line:
    another status or error, other identical counts, or a largest first-token
    diff that is more than `HISTORY_FACTOR` times larger or smaller.
    """
    measured = select(func.max(Result.measurement_version)).where(Result.status == "ok").scalar_subquery()
    newest = (
        query.filtered(select(func.max(Cell.id)).join(Result), filters or {}, status, sweep)
        .where(FINDING, (Result.status != "ok") | (Result.measurement_version == measured))
        .where(Cell.builder != "none")  # what has no builder has no place among releases
        .group_by(Cell.hash)
    )
    lines: dict[tuple, list[dict[str, Any]]] = {}
    for row in query.told(engine, query.CELLS.where(Cell.id.in_(newest))):
        row["line"] = history_line(row)
        lines.setdefault(row["line"], []).append(row)
    rows = []
    for line in sorted(lines):
        mine = sorted(lines[line], key=lambda row: query.release_order(row["builder"]))
        for before, row in itertools.pairwise([None, *mine]):
            row["changed"] = before is not None and differs(before, row)
        rows += mine
    return rows


def history_line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything but the builder: what a history holds fixed."""
    return (*(row[factor] for factor in FACTORS if factor != "builder"), row["options"] or "")


def differs(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two results are not the same finding."""
    if any(one[name] != two[name] for name in ("status", "error", "identical_count")):
        return True
    if one["status"] != "ok":
        return False
    low, high = sorted((one["first_diff_largest"] or 0.0, two["first_diff_largest"] or 0.0))
    return high > HISTORY_FACTOR * low
