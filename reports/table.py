"""Numbers as the tables of reports show them."""

from __future__ import annotations

import math


def number(value: float | None) -> str:
    """A difference with the two digits that count: 1.2e-06, 0.0023, 26.8."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.1f}"


def span(least: float | None, largest: float | None) -> str:
    """A range over prompts."""
    low, high = number(least), number(largest)
    return low if low == high else f"{low} – {high}"
