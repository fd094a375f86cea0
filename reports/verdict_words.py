"""A row's verdict in words, with what the verdict itself does not say: the one way in which tables tell it.

A verdict is on the numbers of the prompts that were run. What else is known to
be wrong with an export is a reservation, and stands beside it wherever it is
shown to people; CSV and JSON have the verdict and the columns of the
reservations by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.reserved import beside, hidden_constants, reservations
from reports.table import multiple, words


def verdict_words(row: Mapping[str, Any]) -> str:
    """A cell's verdict and its reservations: "within noise (1.3 of 4 ×) on these prompts, and a constant is wrong".

    row: a row of `db.query` ("verdict", "noise_floor_largest", and the columns
    that `reservations` reads). Without a reservation it is the verdict alone.
    """
    said = words(row["verdict"], row.get("noise_floor_largest")) + threshold(row)
    if hidden := hidden_constants(row):
        said += f" on these prompts, and {hidden}"
    return "; ".join([said, *reservations(row)])


def threshold(row: Mapping[str, Any]) -> str:
    """What a verdict was given by: " (1.3 of 4 ×)", the largest multiple of the noise and the threshold of what is
    within it; "" without one of them, and where numbers are not finite: the multiple is then that of others."""
    limit, found = limit_of(row), row.get("multiple_largest")
    if limit is None or found is None or row["verdict"] in (None, "non_finite"):
        return ""
    return f" ({multiple(found)} of {limit:g} ×)"


def limit_of(row: Mapping[str, Any]) -> float | None:
    """Up to how many times the noise floor a cell counts as within the noise; None where nothing was judged."""
    return (row.get("thresholds") or {}).get("within")


def reserved(row: Mapping[str, Any]) -> str:
    """What `verdict_words` adds to the verdict, for places that show numbers without it: "; a constant is wrong"."""
    return "".join(f"; {said}" for said in beside(row))
