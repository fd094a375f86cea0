"""Cells of which nothing is known: what reports say of them below their tables, with the commands that run them again.

What is a finding is decided in `db.findings`; no table, proof or sentence takes anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from db import detail, query
from db.findings import unknown, why_unknown
from db.output import markdown_text
from reports import commands, older
from reports.table import cells

MOST_GROUPS = 8
MOST_WHY = 200
TO_CORRECT = ("config_failed", "patch_failed")  # that a second run would only repeat


def lines(engine: Engine, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each sweep and reason, with its cells and the commands that run them again.

    rows: of `query.cell_rows` or `query.unknown_rows`, all that the report was asked for. A cell that has a finding
    among them is known, whatever another run of it gave.
    """
    groups: dict[tuple[int, str, bool], list[Mapping[str, Any]]] = {}
    for row in unknown(rows):
        groups.setdefault((row["sweep"], why_unknown(row), bool(row["final"])), []).append(row)
    shown = sorted(groups.items())[-MOST_GROUPS:]
    asked = commands.asked_of(engine, sorted({sweep for (sweep, _, _), _ in shown}))
    configs = detail.configs_of(engine, [row["cell"] for _, mine in shown for row in mine])
    told = []
    for (sweep, why, final), mine in shown:
        # A final failure is found, and not run again unless that is asked for.
        extra = ["rerun=failed"] if final else []
        if mine[0]["status"] == "config_failed":  # it has no config to name its folders by
            again = older.whole(asked[sweep], extra)
        else:
            again = older.again(engine, sweep, mine, configs, asked[sweep], extra)
        again = f"correct it, then {again}" if mine[0]["status"] in TO_CORRECT else f"run again: {again}"
        cut = why if len(why) <= MOST_WHY else why[: MOST_WHY - 1] + "…"
        told.append(f"Not known: {cells(row['cell'] for row in mine)}: {markdown_text(cut)}; {again}")
    rest = sum(len(mine) for mine in groups.values()) - sum(len(mine) for _, mine in shown)
    return told + ([f"Not known: {rest} older cells more; narrow it by --sweep or a factor"] if rest else [])


def of_builders(engine: Engine, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> list[str]:
    """The sentences about cells that have no place in a history, since nothing is known of them."""
    rows = query.unknown_rows(engine, filters, query.sweep_id(engine, sweep) if sweep else None)
    return lines(engine, [row for row in rows if row["builder"] != "none"])
