"""Numbers and words as the tables of reports show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from db.models import FACTORS
from db.output import identical as identical
from db.output import runs

# What a cell is, by the names of its columns.
NAMES = (*FACTORS, "options")


def shown_names(rows: Sequence[Mapping[str, Any]], always: Sequence[str]) -> list[str]:
    """Of `NAMES` those that a table has columns for: some always, others where they vary. Where no cell has a builder
    neither builder nor patch is one that is always wanted."""
    without = {"builder", "patch"} if {row["builder"] for row in rows} == {"none"} else set()
    wanted = set(always) - without
    return [name for name in NAMES if name in wanted or len({row[name] for row in rows}) > 1]


def number(value: float | None) -> str:
    """A difference with the two digits that count: 1.2e-06, 0.0023, 26.8."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        return f"{value:.1e}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.1f}"


def span(least: float | None, largest: float | None) -> str:
    """A range over prompts."""
    low, high = number(least), number(largest)
    return low if low == high else f"{low} – {high}"


def multiple(ratio: float | None) -> str:
    """How many times the noise floor: 1.3, 465, 2.6e+06."""
    if ratio is None:
        return ""
    if 10 <= ratio < 9999.5:
        return f"{ratio:.0f}"
    return number(ratio) if ratio < 10 else f"{ratio:.1e}" if math.isfinite(ratio) else f"{ratio:g}"


def largest(row: Mapping[str, Any]) -> float | None:
    """A cell's largest difference over all steps, free-running and teacher-forced."""
    return max((row[name] for name in ("diff_largest", "forced_diff_largest") if row[name] is not None), default=None)


def cells(numbers: Iterable[int]) -> str:
    """Cells in a few characters: cell 3, cells 5 – 8, 12."""
    known = set(numbers)
    return f"cell{'s' * (len(known) > 1)} {runs(known)}"


def words(verdict: str | None, floor: float | None = None) -> str:
    """A verdict; where there is none, whether for want of a noise floor (or because it is too large to tell)."""
    return (verdict or ("no noise floor" if floor is None else "none: too noisy")).replace("_", " ")
