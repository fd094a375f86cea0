"""Whether the newest builder is worse than the one before it, line by line: for a nightly job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from db import history, query
from db.engine import open_database
from db.models import FACTORS
from db.output import markdown_table, markdown_text
from db.reserved import NOT_COMPARED, hidden_constants
from reports import older, unknown
from reports.table import multiple, words
from reports.verdict_words import verdict_words

# A multiple of the noise that has grown by more than this is worse, whatever the verdict.
GROWN = 2.0
NAMES = (
    "model",
    "dtype",
    "backend",
    *(f for f in FACTORS if f not in ("model", "dtype", "backend", "builder")),
    "options",
)
ALWAYS = ("model", "dtype", "backend")


def collect(db: str | None, filters: Mapping[str, Sequence[str]], since: date | None = None) -> dict[str, Any]:
    """The report as data: {"rows": one dict a line, "worse" among its keys}. Errors: `query.NotInDatabase`.

    A line is everything but the builder; its two newest builders are compared
    by their newest cells. since: lines whose newest cell is from before that
    day are left out.
    """
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    rows = history.history_rows(engine, filters)
    remeasure = older.of_builders(engine, filters)
    not_known = unknown.of_builders(engine, filters)
    lines: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(row["line"], []).append(row)
    found = [pair_of(*line[-2:]) for line in lines.values() if len(line) > 1]
    confounded = history.crosses(engine, [row for line in lines.values() for row in line[-2:]])
    for row in found:
        cross = confounded.get(row["newest"]["cell"])
        row["also"] = cross.told() if cross else ""
        row["decided"] = list(cross.decided) if cross else []
    engine.dispose()
    newer = [row for row in found if since is None or row["day"] >= since.isoformat()]
    return {"rows": newer, "older": len(found) - len(newer), "remeasure": remeasure, "unknown": not_known}


def pair_of(before: Mapping[str, Any], newest: Mapping[str, Any]) -> dict[str, Any]:
    """Two builders of a line, and whether the newer is worse."""
    keep = (
        "cell",
        "builder",
        "status",
        "error",
        "verdict",
        "constants_wrong",
        "reservations",
        "multiple_largest",
        "thresholds",
        "identical_count",
        "prompts_count",
    )
    sides = {"before": {k: before.get(k) for k in keep}, "newest": {k: newest.get(k) for k in keep}}
    factors = {name: newest[name] or "" for name in NAMES}
    why = worse(before, newest) if newest["order_known"] else ""
    about = {"worse": why, "order_known": newest["order_known"], "day": str(newest["created"])[:10]}
    return {"factors": factors, **sides, **about}


def worse(before: Mapping[str, Any], newest: Mapping[str, Any]) -> str:
    """Why the newer of two cells is the worse one; "" where it is not."""
    if before["status"] != "ok":
        return ""
    if newest["status"] != "ok":
        return newest["status"]
    same = before["thresholds"] == newest["thresholds"] and None not in (before["verdict"], newest["verdict"])
    if same and history.severity(newest) > history.severity(before):
        return f"verdict {words(before['verdict'])} → {words(newest['verdict'])}"
    one, two = before["multiple_largest"], newest["multiple_largest"]
    if one is not None and two is not None and two > GROWN * one and newest["verdict"] not in history.GOOD:
        return f"{multiple(two / one)} times further from the reference"
    if before.get("constants_wrong") == 0 and (hidden := hidden_constants(newest)):
        return hidden
    known = before.get("reservations")  # None where that was not looked at yet
    now = [said for said in newest.get("reservations") or () if said != NOT_COMPARED]  # that is no fault of a builder
    if known is not None and (more := [said for said in now if said not in known]):
        return "; ".join(more)
    if newest["identical_count"] < before["identical_count"]:
        return f"{before['identical_count'] - newest['identical_count']} texts fewer are the reference's"
    return ""


def markdown(report: dict[str, Any]) -> str:
    """One row a line, the worse ones first."""
    rows = sorted(report["rows"], key=lambda row: not row["worse"])
    if not rows and report.get("older"):
        return f"No line has a result of that day on; {report['older']} have older ones."
    if not rows:
        return "No line of cells has two builders: run `python -m runner +experiment=history` first."
    shown = [name for name in NAMES if name in ALWAYS or len({row["factors"][name] for row in rows}) > 1]
    body = [
        [*(row["factors"][name] for name in shown), side(row["before"]), side(row["newest"]), answer(row)]
        for row in rows
    ]
    count = sum(bool(row["worse"]) for row in rows)
    note = f"- {count} of {len(rows)} lines are worse with their newest builder." if count else "- No line is worse."
    notes = [note, *(f"- {text}" for text in doubts(rows))]
    return "\n".join([markdown_table([*shown, "Before", "Newest", "Worse"], body), "", *notes])


def answer(row: Mapping[str, Any]) -> str:
    if not row["order_known"]:
        return "not known: order"
    return row["worse"] or "no"


def doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know before blaming a builder: no known order, or packages that changed with it."""
    texts = []
    for row in rows:
        names = f"{row['before']['builder']} and {row['newest']['builder']} (cells {row['before']['cell']} and"
        names += f" {row['newest']['cell']})"
        if not row["order_known"]:
            texts.append(f"Nothing tells which of {names} is the newer: neither commits nor dates are known.")
        elif row["worse"] and row.get("also"):
            also = markdown_text(row["also"])
            decided = (
                markdown_text("; ".join(row["decided"])) or "`python -m reports history` has the cells that decide it"
            )
            texts.append(f"Between {names} more than the builder changed: {also}. {decided}.")
    return texts


def side(row: Mapping[str, Any]) -> str:
    if row["status"] != "ok":
        return f"{row['builder']}: {row['error'] or row['status']} (cell {row['cell']})"
    return f"{row['builder']}: {verdict_words(row)} (cell {row['cell']})"
