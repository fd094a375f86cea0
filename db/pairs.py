"""Stored pairs of cells that differ in one axis alone, and in their verdict: evidence that is there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db.differences import differences, in_chunks, makings
from db.engine import reading
from db.models import AXES, VERDICTS, Cell, CellRest, Result
from db.query import cell_part, filtered, summary_part

GOOD = VERDICTS.index("near_tie")  # up to here a cell is right
# Two multiples of the noise that are nearer than this to each other are one finding, on whichever side of a threshold
# each came to lie.
APART = 2.0


def pair_rows(
    engine: Engine, filters: Mapping[str, Sequence[str]], axes: Sequence[str] = (), limit: int = 50
) -> list[dict[str, Any]]:
    """The newest pairs that flip: {"axis", "better", "worse" (rows of cells), "also" (what else differs)}.

    Of each set of cells that differ in one axis alone one pair is shown: the
    newest best, or, where a filter names values of that axis, the newest with
    one of them; and beside it the newest without a patch if that flips, else
    the newest that is furthest from it. Pairs of a right cell and a wrong one
    come first; `also` is what hashes and packages say beyond the axis. No side
    is the better one where both are right, near ties included, where the verdict is the same, or where a threshold
    alone parts them (`APART`).
    """
    with reading(engine) as session:
        wanted = [AXES.index(axis) for axis in axes or varying(session)]
        newest = func.max(CellRest.cell_id)
        # Numbers of an older version of the measuring are no side of a pair.
        measured = session.scalar(select(func.max(Result.measurement_version)).where(Result.status == "ok"))
        groups = (
            select(CellRest.axis, CellRest.rest)
            .where(CellRest.axis.in_(wanted))
            .group_by(CellRest.axis, CellRest.rest)
            .having(func.min(CellRest.verdict) != func.max(CellRest.verdict), func.max(CellRest.verdict) > GOOD)
            .order_by(newest.desc())
        )
        if any(filters.values()):
            mine = filtered(select(CellRest.rest).join(Cell, Cell.id == CellRest.cell_id), filters, [], None)
            groups = groups.where(CellRest.rest.in_(mine))
        found = [(axis, rest) for axis, rest in session.execute(groups.limit(4 * limit))]
        members: dict[tuple[int, int], list[Member]] = {}
        for axis in wanted:  # one look at the key for each
            value = getattr(Cell, AXES[axis])
            query = select(CellRest.rest, CellRest.verdict, Cell.id, value, Result.multiple_largest).join(
                Cell, Cell.id == CellRest.cell_id
            )
            query = query.join(Result).where((Result.status != "ok") | (Result.measurement_version == measured))
            rests = [rest for one, rest in found if one == axis]
            for rest, *member in in_chunks(session, query.where(CellRest.axis == axis), CellRest.rest, rests):
                members.setdefault((axis, rest), []).append(Member(*member))
        ends = [
            (axis, chosen(members.get((axis, rest), []), filters.get(AXES[axis], ()), apart(AXES[axis])))
            for axis, rest in found
        ]
        ids = sorted({cell for _, pair in ends for cell in pair or ()})
        cells = {
            cell.id: cell_part(cell, result) | summary_part(result)
            for cell, result in in_chunks(session, select(Cell, Result).join(Result), Cell.id, ids)
        }
    kept = [(axis, cells[pair[0]], cells[pair[1]]) for axis, pair in ends if pair]
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


class Member(NamedTuple):
    """A cell of a set: the place of its verdict, its id, its value of the axis, its largest multiple of the noise."""

    verdict: int
    cell: int
    value: str
    multiple: float | None = None


def flips(one: Member, two: Member) -> bool:
    """Whether one of two cells is the better: not among right ones, and not by a threshold alone."""
    if max(one.verdict, GOOD) == max(two.verdict, GOOD):
        return False
    if VERDICTS.index("non_finite") <= max(one.verdict, two.verdict) or None in (one.multiple, two.multiple):
        return True
    low, high = sorted((one.multiple, two.multiple))
    return high > APART * low


def apart(axis: str) -> Callable[[str, str], bool]:
    """Whether two values of an axis are one difference: two of one value are none, and of options only one may be
    another."""
    if axis != "options":
        return lambda one, two: one != two
    return lambda one, two: len({key.partition("=")[0] for key in {*one.split()} ^ {*two.split()}}) == 1


def chosen(
    members: Sequence[Member], asked: Sequence[str], differ: Callable[[str, str], bool]
) -> tuple[int, int] | None:
    """The better and the worse cell of the pair that is shown of a set; None where what was asked for flips nothing.

    differ: whether two values of the axis are a difference, as `apart` gives it.
    """
    if not members:
        return None
    best = max(min(member.verdict for member in members), GOOD)
    ours = [m for m in members if (m.value in asked if asked else m.verdict <= best)]
    if not ours:
        return None
    one = max(ours, key=lambda member: member.cell)
    others = [m for m in members if flips(m, one) and differ(m.value, one.value)]
    if not others:
        return None
    two = max(others, key=lambda member: (member.value == "none", abs(member.verdict - one.verdict), member.cell))
    better, worse = sorted((one, two), key=lambda member: (member.verdict, member.cell))
    return better.cell, worse.cell


def varying(session: Session) -> list[str]:
    """The axes that have more than one value: one look at every cell, which spares many at its rests."""
    columns = [getattr(Cell, axis) for axis in AXES]
    least, most = (session.execute(select(*map(end, columns))).one() for end in (func.min, func.max))
    return [axis for axis, one, two in zip(AXES, least, most, strict=True) if one != two]


def right(row: Mapping[str, Any]) -> bool:
    return row["status"] == "ok" and row["verdict"] is not None and VERDICTS.index(row["verdict"]) <= GOOD
