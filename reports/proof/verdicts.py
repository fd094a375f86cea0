"""What a set of cells proves about each suspected change, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.table import multiple

Units = frozenset[str]
# A change that moves an error by less than this factor has no effect: two runs of an export differ by nothing, and
# the same fault under another fault moves by some per cent.
MATTERS = 2.0
PROVEN, CONTRIBUTES, MASKED, NO_EFFECT = "proven", "contributes", "masked", "no effect"
WORSE, CONFOUNDED, NOT_ENOUGH = "makes it worse", "confounded", "not enough cells"


@dataclass(frozen=True)
class Point:
    """A cell of a design: what it measured, as a proof needs it.

    ok: the export was made and ran. right: every text is the reference's, or
    says nothing since the reference makes no sense itself. within: all is
    within the noise, near ties included. multiple: the largest difference in
    multiples of the noise, None without a floor, or where `finite` is not, or
    where the cell failed.
    """

    ok: bool
    right: bool
    within: bool
    multiple: float | None
    limit: float
    finite: bool = True

    @property
    def measured(self) -> bool:
        """Whether it says anything: a failure does, a cell without a noise floor does not."""
        return not self.ok or not self.finite or self.multiple is not None

    @property
    def log_error(self) -> float | None:
        """How many powers of ten the error is beyond the noise; 0 within it."""
        if self.multiple is None:
            return None
        return max(0.0, math.log10(self.multiple / self.limit)) if self.multiple > 0 else 0.0


def point_of(row: Mapping[str, Any]) -> Point:
    """The point that a cell's row (`db.query.cell_rows`) is."""
    ok = row["status"] == "ok"
    within = ok and row["verdict"] in ("within_noise", "near_tie")
    senseless = ok and row["sensible_count"] is not None and row["sensible_count"] < row["prompts_count"]
    right = ok and (senseless or within or row["identical_count"] == row["prompts_count"])
    finite = not row["non_finite_count"]
    multiple = row["multiple_largest"] if ok and finite else None
    return Point(ok, right, within, multiple, (row["thresholds"] or {}).get("within", 10.0), finite)


@dataclass(frozen=True)
class Verdict:
    """What is shown of one change: the word, the reason, its share of the log error where it has one, and the sets of
    changes whose cells are missing."""

    change: str
    word: str
    why: str
    share: float | None = None
    missing: tuple[Units, ...] = ()


def judge(points: Mapping[Units, Point], changes: Sequence[str]) -> list[Verdict]:
    """A verdict for each change, from the cells there are.

    points: by the set of changes made; the empty set is the baseline. A change
    is judged alone, and last in the best set there is: with it if it is one of
    that set, or added to it. Changes that do nothing or harm take no part in
    the verdicts on others.
    """
    best = best_set(points)
    shares = shares_of(points, best)
    return [judge_one(points, best, change, shares.get(change)) for change in changes]


def best_set(points: Mapping[Units, Point]) -> Units:
    """The changes that together come nearest to the reference; of those within the noise the fewest."""

    def rank(units: Units) -> tuple:
        point = points[units]
        far = math.inf if point.multiple is None else point.multiple
        return not point.ok, not point.within, not point.right, 0.0 if point.within else far, len(units), sorted(units)

    return min(points, key=rank) if points else frozenset()


def judge_one(points: Mapping[Units, Point], best: Units, change: str, share: float | None) -> Verdict:
    none, alone = frozenset(), frozenset({change})
    rest = best - alone
    every = rest | alone
    base, mine, without, full = (points.get(units) for units in (none, alone, rest, every))

    def missing(*wanted: Units) -> tuple[Units, ...]:
        return tuple(dict.fromkeys(units for units in wanted if units not in points))

    if base is None:
        return Verdict(change, NOT_ENOUGH, "the baseline is missing", missing=missing(none, alone))
    if not all(point.measured for point in (base, mine, without, full) if point is not None):
        return Verdict(change, NOT_ENOUGH, "a cell has no noise floor: run it with noise.variants as they come")
    if mine is not None and worsens(base, mine):
        return Verdict(change, WORSE, f"alone it takes {told(base)} to {told(mine)}")
    if mine is not None and base.within:
        return Verdict(change, NO_EFFECT, f"the baseline is within the noise already ({told(base)})")
    if mine is not None and mine.within:
        more = " and makes the wrong text right" if base.ok and not base.right else ""
        return Verdict(change, PROVEN, f"alone it takes {told(base)} to {told(mine)}, within the noise{more}", share)
    if mine is not None and mine.right and not base.right:
        what = "the failure" if not base.ok else "the wrong text" if base.finite else "what was not finite"
        residue = f"; a residue of {told(mine)} is left"
        return Verdict(change, PROVEN, f"for {what}: alone it mends it, {told(base)} to {told(mine)}{residue}", share)
    if mine is not None and helps(base, mine):
        return Verdict(change, CONTRIBUTES, f"alone it takes {told(base)} to {told(mine)}", share)
    others = " and ".join(sorted(rest))
    if mine is not None and not rest:
        return Verdict(change, NO_EFFECT, f"{told(base)} without it and {told(mine)} with it")
    if without is not None and without.within and change not in best and full is None:
        why = f"alone {told(base)} to {told(mine)}, and {others} alone bring all within the noise ({told(without)})"
        if mine is not None:
            return Verdict(change, NO_EFFECT, why)
    if without is None or full is None:
        why = "it was not run alone"
        if mine is not None:
            why = f"alone it changes nothing ({told(mine)}), which may be since another fault hides it"
        return Verdict(change, NOT_ENOUGH, why, missing=missing(alone, rest, every))
    if worsens(without, full):
        return Verdict(change, WORSE, f"beside {others} it takes {told(without)} to {told(full)}")
    if helps(without, full):
        taken = f"beside {others} it takes {told(without)} to {told(full)}"
        if mine is None:
            return Verdict(change, CONTRIBUTES, f"{taken}; alone it was not run", share, missing(alone))
        return Verdict(change, MASKED, f"alone it changes nothing ({told(base)} to {told(mine)}); {taken}", share)
    in_the_set = f"beside {others} {told(without)} to {told(full)}"
    if mine is None:
        return Verdict(change, NOT_ENOUGH, f"{in_the_set}; alone it was not run", missing=missing(alone))
    return Verdict(change, NO_EFFECT, f"alone {told(base)} to {told(mine)}, {in_the_set}")


def helps(before: Point, after: Point) -> bool:
    """Whether the step from one cell to the other makes it better by more than `MATTERS`, or right."""
    if not after.ok or before.within:
        return False
    if not before.ok or (after.right and not before.right) or after.within or (after.finite and not before.finite):
        return True
    return before.multiple is not None and after.multiple is not None and before.multiple > MATTERS * after.multiple


def worsens(before: Point, after: Point) -> bool:
    """Whether a change breaks what there was."""
    if not before.ok:
        return False
    if not after.ok or (before.within and not after.within) or (before.finite and not after.finite):
        return True
    if before.right and not after.right:
        return True
    both = before.multiple is not None and after.multiple is not None
    return both and not after.within and after.multiple > MATTERS * before.multiple and not (after.right > before.right)


def shares_of(points: Mapping[Units, Point], best: Units) -> dict[str, float]:
    """Each change's share of the baseline's log error, of those in the best set.

    The mean of what it removes alone and what it removes last: for two changes
    their Shapley values, which add up to one where both together are within the
    noise. Of more changes, where several are needed at once, the sum can come
    out above one and is scaled back. Empty where a cell is missing, failed, or
    without a number.
    """
    base = points[frozenset()].log_error if frozenset() in points else None
    if not base:
        return {}
    shares: dict[str, float] = {}
    for change in best:
        drops = []
        for before, after in ((frozenset(), frozenset({change})), (best - {change}, best)):
            logs = [points[units].log_error if units in points else None for units in (before, after)]
            if None in logs:
                return {}
            drops.append(min(base, max(0.0, logs[0] - logs[1])))
        shares[change] = sum(drops) / len(drops) / base
    total = max(1.0, sum(shares.values()))
    return {change: share / total for change, share in shares.items()}


def together(points: Mapping[Units, Point], verdicts: Sequence[Verdict]) -> str:
    """What the best set comes to, and which of its changes are needed: those without which it is worse."""
    best = best_set(points)
    if len(best) < 2:
        return ""
    full, names = points[best], " and ".join(v.change for v in verdicts if v.change in best)
    if not full.ok:
        return ""
    whole = (
        f"{names} together are within the noise ({told(full)}): complete, as far as these prompts show."
        if full.within
        else f"{names} together leave {told(full)}: something else is wrong too."
    )
    needed = [
        v
        for v in verdicts
        if v.change in best and best - {v.change} in points and helps(points[best - {v.change}], full)
    ]
    if len(needed) < 2:
        return whole
    largest = max(needed, key=lambda v: v.share or 0.0)
    part = f"; {largest.change} is the larger, {largest.share:.0%} of the log error" if largest.share else ""
    number = {len(best): "Both" if len(best) == 2 else "All"}.get(len(needed), f"{len(needed)} of them")
    return f"{whole} {number} are needed{part}."


def told(point: Point | None) -> str:
    """A point in a few characters: its multiple of the noise, and whether its text is right."""
    if point is None:
        return "no cell"
    if not point.ok:
        return "a failure"
    if not point.finite:
        return "numbers that are not finite"
    if point.multiple is None:
        return "no noise floor"
    return f"{multiple(point.multiple)} × noise{'' if point.right else ' and wrong text'}"
