"""A row's verdict in words, with what the verdict itself does not say: the one way in which tables tell it.

A verdict is on the numbers of the prompts that were run. What else is known to
be wrong with an export is a reservation, and stands beside it wherever it is
shown to people; CSV and JSON have the verdict and the columns of the
reservations by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.reserved import GOOD, beside, hidden_constants, reservations
from reports.table import words


def verdict_words(row: Mapping[str, Any]) -> str:
    """A cell's verdict and its reservations: "within noise (up to 3 ×) on these prompts, and a constant is wrong".

    row: a row of `db.query` ("verdict", "noise_floor_largest", and the columns
    that `reservations` reads). Without a reservation it is the verdict alone.
    """
    said = words(row["verdict"], row.get("noise_floor_largest")) + threshold(row)
    if hidden := hidden_constants(row):
        said += f" on these prompts, and {hidden}"
    return "; ".join([said, *reservations(row)])


def threshold(row: Mapping[str, Any]) -> str:
    """The threshold a verdict was given by, in multiples of the noise: " (up to 3 ×)", " (over 1000 ×)"; "" where
    it was not by a multiple."""
    limits, found, verdict = row.get("thresholds") or {}, row.get("multiple_largest"), row["verdict"]
    if not limits or found is None:
        return ""
    within = limits["within"]
    if verdict in GOOD:
        return f" (up to {within:g} ×)"
    if verdict == "elevated":
        return f" (over {within:g} ×)" if found > within else f" (up to {within:g} ×, but the texts part)"
    return f" (over {limits['broken']:g} ×)" if verdict == "broken" and "broken" in limits else ""


def limit_of(row: Mapping[str, Any]) -> float | None:
    """Up to how many times the noise floor a cell counts as within the noise; None where nothing was judged."""
    return (row.get("thresholds") or {}).get("within")


def reserved(row: Mapping[str, Any]) -> str:
    """What `verdict_words` adds to the verdict, for places that show numbers without it: "; a constant is wrong"."""
    return "".join(f"; {said}" for said in beside(row))
