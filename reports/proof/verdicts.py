"""What a set of cells proves about each suspected change, and what it does not.

The word of a change is decided in this order; what it does alone comes first,
then the sets in which it is needed, then what it does beside the best set:

alone \\ needed in a set of changes | yes             | not known    | no
within the noise, or mends         | proven          | proven       | proven
better                             | contributes     | contributes  | contributes
nothing                            | masked where the others help without it, else needed together
                                   |                 | not enough   | no effect, or makes it worse beside the best set
worse, or fails                    | needed together | not enough   | makes it worse
not run                            | contributes     | not enough   | not enough cells

So a change of a needed set is never "no effect" or "makes it worse".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.proof.points import (
    OTHER,
    WRONG,
    Point,
    helps,
    listed,
    mends,
    step,
    takes,
    told,
    worsens,
)

Units = frozenset[str]
NONE: Units = frozenset()
COMPLETE = "complete, as far as these prompts show"
PROVEN, CONTRIBUTES, NEEDED, MASKED = "proven", "contributes", "needed together", "masked"
NO_EFFECT, WORSE, CONFOUNDED, NOT_ENOUGH = "no effect", "makes it worse", "confounded", "not enough cells"


@dataclass(frozen=True)
class Verdict:
    """What is shown of one change: the word, the reason, and the sets of changes whose cells are missing."""

    change: str
    word: str
    why: str
    missing: tuple[Units, ...] = ()


def judge(points: Mapping[Units, Point], changes: Sequence[str]) -> list[Verdict]:
    """A verdict for each change, from the cells there are.

    points: by the set of changes made; the empty set is the baseline. Cells
    without a noise floor take no part, save that a verdict that wants one says
    so.
    """
    known = {units: point for units, point in points.items() if point.measured}
    unjudged = {units: point for units, point in points.items() if not point.measured}
    best = best_set(known)
    return [judge_one(known, unjudged, best, change, frozenset(changes)) for change in changes]


def best_set(points: Mapping[Units, Point]) -> Units:
    """The fewest changes that come as near to the reference as any do, and nearer than the baseline; none where no set
    is better than it."""
    if not points:
        return NONE
    nearest = min(points, key=lambda units: rank(points, units))
    base = points.get(NONE, points[nearest])
    if base is not points[nearest] and not helps(base, points[nearest]):
        return NONE
    fits = [
        units
        for units, point in points.items()
        if not helps(point, points[nearest]) and (base is points[nearest] or helps(base, point))
    ]
    return min(fits, key=lambda units: (len(units), rank(points, units)))


def rank(points: Mapping[Units, Point], units: Units) -> tuple:
    """The order of cells from the nearest to the reference."""
    point = points[units]
    error = math.inf if point.log_error is None else point.log_error
    not_finite = sum(not prompt.finite for prompt in point.prompts)
    text = sum(prompt.text or 0 for prompt in point.prompts)
    return not point.ok, not_finite, text, not point.within, error, len(units), sorted(units)


def needed_in(points: Mapping[Units, Point], best: Units, change: str) -> Units | None:
    """The best set of several changes in which one is needed: with it the set is better than the baseline, and without
    it not as good. None where there is none, or none is known."""
    found = [
        units
        for units in points
        if change in units
        and len(units) > 1
        and units - {change} in points
        and helps(points[NONE], points[units])
        # Without one of its changes the best set is not as good, or no better than the baseline: it is the smallest.
        and (units == best or helps(points[units - {change}], points[units]))
    ]
    return min(found, key=lambda units: (units != best, rank(points, units)), default=None)


def hidden(points: Mapping[Units, Point], among: Units, change: str) -> bool:
    """Whether a change does something once others of the set are made that help without it: what they mend hides it."""
    return any(
        others
        and others <= among - {change}
        and others | {change} in points
        and helps(points[NONE], points[others])
        and helps(points[others], points[others | {change}])
        and all(helps(points[rest], points[others]) for rest in (others - {one} for one in others) if rest in points)
        for others in points
    )


def judge_one(
    points: Mapping[Units, Point], unjudged: Mapping[Units, Point], best: Units, change: str, every: Units
) -> Verdict:
    """points: those that say something. unjudged: those of cells without a verdict. every: all changes."""
    alone = frozenset({change})
    rest = best - alone
    wanted = (NONE, alone, rest, rest | alone)
    base, mine, without, full = (points.get(units) for units in wanted)

    def missing(*wanted: Units) -> tuple[Units, ...]:
        return tuple(dict.fromkeys(units for units in wanted if units not in points))

    if mute := [unjudged[units] for units in (*wanted, *([] if best else [every])) if units in unjudged]:
        why = "a cell has no noise floor: run it with noise.variants as they come"
        if all(point.noisy for point in mute):
            why = "a cell's noise floor is too large for a verdict on any of its prompts"
        return Verdict(change, NOT_ENOUGH, why)
    if base is None:
        return Verdict(change, NOT_ENOUGH, "the baseline is missing", missing(NONE, alone))
    if mine is not None and (found := good_alone(change, base, mine)):
        return found
    among = needed_in(points, best, change)
    if among:
        return in_a_set(points, among, change)
    worse = mine is not None and worsens(base, mine)
    if worse and change not in best:
        return Verdict(change, WORSE, f"alone {takes(base, mine)}")
    if mine is not None and base.good:
        return Verdict(change, NO_EFFECT, f"the baseline is within the noise already ({told(base)})")
    others = listed(sorted(rest))
    if mine is not None and not best and every not in points:
        why = maybe_hidden(base, mine)
        return Verdict(change, NOT_ENOUGH, why, (every,))
    if mine is not None and not best:
        return Verdict(
            change, NO_EFFECT, f"{told(base)} without it and {told(mine)} with it" + elsewhere(points, change, rest)
        )
    if mine is not None and without is not None and without.within and full is None:
        why = f"alone {told(base)} to {told(mine)}, and {others} without it {'brings' if len(rest) == 1 else 'bring'}"
        return Verdict(change, NO_EFFECT, f"{why} all within the noise ({told(without)})")
    if without is None or full is None:
        why = "it was not run alone"
        if worse:
            why = f"alone {takes(base, mine)}, but the best set has it, and that set was not run without it"
        elif mine is not None:
            why = maybe_hidden(base, mine)
        return Verdict(change, NOT_ENOUGH, why, missing(alone, rest, rest | alone))
    if worsens(without, full):
        return Verdict(change, WORSE, f"beside {others} {takes(without, full)}")
    in_the_set = f"beside {others} {told(without)} to {told(full)}"
    if mine is None:
        return Verdict(change, NOT_ENOUGH, f"{in_the_set}; alone it was not run", missing(alone))
    return Verdict(
        change, NO_EFFECT, f"alone {told(base)} to {told(mine)}, {in_the_set}" + elsewhere(points, change, rest)
    )


def maybe_hidden(base: Point, mine: Point) -> str:
    between = f"{told(base)} to {told(mine)}"
    return f"alone it makes little difference ({between}), which may be since another fault hides it"


def good_alone(change: str, base: Point, mine: Point) -> Verdict | None:
    """The verdict on a change that makes it better alone; None where it does not."""
    if base.good or not helps(base, mine):
        return None
    if mine.good:
        more = " and makes the wrong text right" if any(prompt.text == WRONG for prompt in base.prompts) else ""
        return Verdict(change, PROVEN, f"alone {takes(base, mine)}, within the noise{more}")
    if mends(base, mine):
        mended = f"alone it mends it, {told(base)} to {told(mine)}; a residue of {told(mine)} is left"
        return Verdict(change, PROVEN, f"for {fault(base)}: {mended}")
    return Verdict(change, CONTRIBUTES, f"alone {takes(base, mine)}")


def fault(point: Point) -> str:
    """What is wrong with a cell beside its numbers."""
    if not point.ok:
        return "the failure"
    if not point.finite:
        return "what was not finite"
    for level, words in ((WRONG, "the wrong text"), (OTHER, "a text that is not the reference's")):
        count = sum(prompt.text == level for prompt in point.prompts)
        if count:
            return words if count == len(point.prompts) else f"{words} in {count} of {len(point.prompts)}"
    raise ValueError("nothing is wrong beside the numbers")


def in_a_set(points: Mapping[Units, Point], among: Units, change: str) -> Verdict:
    """The verdict on a change that does no good alone, and that a set needs."""
    base, mine = points[NONE], points.get(frozenset({change}))
    others = among - {change}
    names = listed(sorted(others))
    beside = f"beside {names} {takes(points[others], points[among])}"
    if mine is None:
        return Verdict(change, CONTRIBUTES, f"{beside}; alone it was not run", (frozenset({change}),))
    if not worsens(base, mine) and hidden(points, among, change):
        return Verdict(change, MASKED, f"alone it makes little difference ({told(base)} to {told(mine)}); {beside}")
    does = "the export fails" if not mine.ok else takes(base, mine)
    if not worsens(base, mine):
        does = f"it makes little difference ({told(base)} to {told(mine)})"
    return Verdict(change, NEEDED, f"alone {does}; together with {names} {takes(base, points[among])}; {beside}")


def elsewhere(points: Mapping[Units, Point], change: str, rest: Units) -> str:
    """Where a change without effect does something all the same: beside changes that are not in the best set."""
    for others in sorted(points, key=lambda units: (len(units), sorted(units))):
        both = others | {change}
        if (
            others not in (NONE, rest)
            and change not in others
            and both in points
            and step(points[others], points[both])
        ):
            return f"; only beside {listed(sorted(others))} {takes(points[others], points[both])}"
    return ""


def together(points: Mapping[Units, Point], changes: Sequence[str], shares: Mapping[str, float]) -> str:
    """What the best set comes to, which of its changes are needed, and which has the largest share."""
    points = {units: point for units, point in points.items() if point.measured}
    best = best_set(points)
    if len(best) < 2 or NONE not in points:
        return ""
    ordered = [change for change in changes if change in best]
    full, names = points[best], listed(ordered)
    if full.good:
        whole = f"{names} together are within the noise ({told(full)}): {COMPLETE}."
    elif full.within:  # what is left is in prompts without a verdict: rounding may do that, and so may a fault
        whole = f"{names} together leave {told(full)}: whether something else is wrong is not known."
    else:
        whole = f"{names} together leave {told(full)}: something else is wrong too."
    needed = [change for change in ordered if best - {change} in points]
    if len(needed) < 2:
        return whole
    every = "Both" if len(best) == 2 else "All"
    number = every if len(needed) == len(best) else f"Of them {listed(needed)}"
    part = ""
    if set(needed) <= shares.keys():
        first, second, *_ = sorted(needed, key=lambda change: -shares[change])
        if f"{shares[first]:.0%}" != f"{shares[second]:.0%}":  # on a tie neither is the larger
            part = (
                f"; {first} is the {'larger' if len(needed) == 2 else 'largest'}, {shares[first]:.0%} of the log error"
            )
    return f"{whole} {number} are needed{part}."
