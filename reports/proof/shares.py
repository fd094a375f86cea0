"""How much of the baseline's error each change removes: exact Shapley values, of what has run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from reports.proof.points import Point, listed

Units = frozenset[str]
# Of more changes nobody runs all subsets.
MOST = 12


@dataclass(frozen=True)
class Shares:
    """Each change's share of the baseline's log error (1 is all of it; negative where it adds), and how it was made."""

    of: Mapping[str, float] = field(default_factory=dict)
    told: str = ""


def shares_of(points: Mapping[Units, Point], changes: Sequence[str], best: Units, baseline: str) -> Shares:
    """Shapley values over all subsets of the changes, or where some lack over those of the best set.

    baseline: its name for a reader. No shares where even that lacks a subset,
    or where one has no number.
    """
    base = points.get(frozenset())
    error = base.log_error if base else None
    if not error:
        if base is None:
            return Shares()
        why = "has no number to share" if error is None else "is within the noise: it has no error to share"
        return Shares(told=f"No shares: {baseline}, {why}.")
    lacking = lacks(points, changes)
    among = list(changes) if not lacking else sorted(best, key=changes.index)
    if lacking and (not best or lacks(points, among)):
        return Shares(told=f"No shares: {lacking}.")
    found = {change: value / error for change, value in shapley(points, among).items()}
    number = 2 ** len(among)
    over = f"all {number} subsets" if not lacking else f"the {number} subsets of {listed(among)}"
    left = [change for change in changes if change not in among]
    out = f" {listed(left)} {'is' if len(left) == 1 else 'are'} left out, since {lacking}." if lacking and left else ""
    whole = sum(found.values())
    rest = "" if abs(whole - 1) < 0.005 else f" They add up to {whole:.0%}: the rest is left with all of them made."
    return Shares(
        found,
        f"Shares are of the log error of {baseline} (mean over prompts: {error:.2g} powers of ten beyond the noise):"
        f" Shapley value{'s' * (len(among) > 1)} over {over}.{rest}{out}",
    )


def lacks(points: Mapping[Units, Point], changes: Sequence[str]) -> str:
    """What of all subsets of some changes there is no number of, in a phrase; "" where nothing."""
    number = 2 ** len(changes)
    if len(changes) > MOST:
        return f"of the {number} subsets of {len(changes)} changes only {len(points)} have run"
    absent = [units for units in subsets(changes) if units not in points]
    if absent:
        shown = listed(["+".join(sorted(units)) or "the baseline" for units in absent])
        return f"of the {number} subsets of {listed(list(changes))} {len(absent)} have not run ({shown})"
    unknown = [units for units in subsets(changes) if points[units].log_error is None]
    if unknown:
        return f"{listed(['+'.join(sorted(units)) for units in unknown])} gave no number"
    return ""


def shapley(points: Mapping[Units, Point], changes: Sequence[str]) -> dict[str, float]:
    """The powers of ten that each change removes, mean over all orders in which they could be made."""
    number = len(changes)
    removed = {}
    for change in changes:
        others = [other for other in changes if other != change]
        removed[change] = sum(
            math.factorial(len(before)) * math.factorial(number - len(before) - 1) / math.factorial(number)
            * (points[before].log_error - points[before | {change}].log_error)
            for before in subsets(others)
        )  # fmt: skip
    return removed


def subsets(changes: Sequence[str]) -> Iterator[Units]:
    """All subsets, the smallest first."""
    return (frozenset(chosen) for size in range(len(changes) + 1) for chosen in combinations(changes, size))
