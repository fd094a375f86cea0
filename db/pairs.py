"""Stored pairs of cells that differ in one axis alone, and in their verdict: evidence that is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db.differences import differences, in_chunks, makings
from db.engine import reading
from db.models import AXES, VERDICTS, Cell, CellRest, Result
from db.query import cell_part, summary_part

GOOD = VERDICTS.index("near_tie")  # up to here a cell is right


def pair_rows(
    engine: Engine, filters: Mapping[str, Sequence[str]], axes: Sequence[str] = (), limit: int = 50
) -> list[dict[str, Any]]:
    """The newest pairs that flip: {"axis", "better", "worse" (rows of cells), "also" (what else differs)}.

    Of each set of cells that differ in one axis alone, its newest best and its
    newest worst. Pairs of a right cell and a wrong one come first; `also` is
    what hashes and packages say beyond the axis.
    """
    with reading(engine) as session:
        wanted = [AXES.index(axis) for axis in axes or varying(session)]
        newest = func.max(CellRest.cell_id)
        groups = (
            select(CellRest.axis, CellRest.rest, newest)
            .where(CellRest.axis.in_(wanted))
            .group_by(CellRest.axis, CellRest.rest)
            .having(func.min(CellRest.verdict) != func.max(CellRest.verdict))
            .order_by(newest.desc())
        )
        if not any(filters.values()):
            groups = groups.limit(4 * limit)  # the newest: a filter may want others
        found = [(axis, rest) for axis, rest, _ in session.execute(groups)]
        members: dict[tuple[int, int], list[tuple[int, int]]] = {}
        rests = sorted({rest for _, rest in found})
        query = select(CellRest.axis, CellRest.rest, CellRest.cell_id, CellRest.verdict)
        for axis, rest, cell, verdict in in_chunks(session, query, CellRest.rest, rests):
            members.setdefault((axis, rest), []).append((verdict, cell))
        ends = [(axis, *ends_of(members[axis, rest])) for axis, rest in found]
        ids = sorted({cell for _, *pair in ends for cell in pair})
        cells = {
            cell.id: cell_part(cell, result) | summary_part(result)
            for cell, result in in_chunks(session, select(Cell, Result).join(Result), Cell.id, ids)
        }
    kept = [
        (axis, cells[better], cells[worse])
        for axis, better, worse in ends
        if all(not values or {cells[better][f], cells[worse][f]} & set(values) for f, values in filters.items())
    ]
    kept = sorted(kept, key=lambda pair: not (right(pair[1]) and not right(pair[2])))[:limit]
    made = makings(engine, sorted({row["cell"] for _, *pair in kept for row in pair}))
    return [
        {
            "axis": AXES[axis],
            "better": better,
            "worse": worse,
            "also": [d.told() for d in differences(made[better["cell"]], made[worse["cell"]], (AXES[axis],))],
        }
        for axis, better, worse in kept
    ]


def varying(session: Session) -> list[str]:
    """The axes that have more than one value: one look at every cell, which spares many at its rests."""
    columns = [getattr(Cell, axis) for axis in AXES]
    least, most = (session.execute(select(*map(end, columns))).one() for end in (func.min, func.max))
    return [axis for axis, one, two in zip(AXES, least, most, strict=True) if one != two]


def ends_of(members: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The newest of the best and the newest of the worst of (verdict, cell) members."""
    best, worst = min(v for v, _ in members), max(v for v, _ in members)
    return max(c for v, c in members if v == best), max(c for v, c in members if v == worst)


def right(row: Mapping[str, Any]) -> bool:
    return row["status"] == "ok" and row["verdict"] is not None and VERDICTS.index(row["verdict"]) <= GOOD
