"""Pairs of stored cells that differ in exactly one factor and flip the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db import pairs, query
from db.engine import open_database
from db.models import AXES
from db.output import markdown_table
from reports import older, unknown
from reports.verdict_words import verdict_words

SHOWN = 3


def collect(
    db: str | None, filters: Mapping[str, Sequence[str]], axes: Sequence[str] = (), limit: int = 50
) -> dict[str, Any]:
    """The report as data: {"pairs": as `db.pairs.pair_rows` has them}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    query.refuse_absent("--factor", axes, set(AXES))
    rows = pairs.pair_rows(engine, filters, axes, limit)
    remeasure = older.lines(engine, query.cell_rows(engine, filters), shown=False)
    not_known = unknown.lines(engine, query.unknown_rows(engine, filters))
    engine.dispose()
    return {"pairs": rows, "remeasure": remeasure, "unknown": not_known}


def markdown(report: dict[str, Any]) -> str:
    """One row a pair: the factor, its better and its worse value, what each gave, and what else is the same."""
    rows = report["pairs"]
    if not rows:
        return "No two stored cells differ in one factor alone and in their verdict, by more than a threshold."
    body = [
        [
            row["axis"],
            f"{row['better'][row['axis']] or '(none)'}: {gave(row['better'])}",
            f"{row['worse'][row['axis']] or '(none)'}: {gave(row['worse'])}",
            f"{row['better']['cell']}, {row['worse']['cell']}",
            context(row),
            also(row["also"]),
        ]
        for row in rows
    ]
    header = ["Factor", "Better", "Worse", "Cells", "Same in both", "By hash also"]
    notes = (
        "- The two cells were asked for alike but for one factor. `By hash also`: what else differs in sources,"
        " packages, checkpoint or machine.",
        "- Of a set of cells that differ in one factor alone one pair is shown.",
        "- Better: within the noise where the other is not, or of a better verdict, and its error is less than half of"
        " the other's; the threshold of each verdict stands beside it.",
    )
    return "\n".join([markdown_table(header, body), "", *notes])


def gave(row: Mapping[str, Any]) -> str:
    """A cell's end in a few words."""
    if row["status"] != "ok":
        return f"{row['status']} {row['error'] or ''}".strip()
    return verdict_words(row)


def context(row: Mapping[str, Any]) -> str:
    names = [name for name in ("model", "dtype", "layers", "builder", "patch", "prompts") if name != row["axis"]]
    return " ".join(str(row["better"][name]) for name in names)


def also(differences: Sequence[str]) -> str:
    more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return ", ".join(differences[:SHOWN]) + more if differences else "nothing"
