"""A row's verdict in words, with what the verdict itself does not say: the one way in which tables tell it.

A verdict is on the numbers of the prompts that were run. What else is known to
be wrong with an export is a reservation, and stands beside it wherever it is
shown to people; CSV and JSON have the verdict and the columns of the
reservations by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.table import words

# Verdicts that a reader takes for "right".
GOOD = ("within_noise", "near_tie")


def verdict_words(row: Mapping[str, Any]) -> str:
    """A cell's verdict and its reservations: "within noise on these prompts, and a constant is wrong".

    row: a row of `db.query` ("verdict", "noise_floor_largest", and the columns
    that `reservations` reads). Without a reservation it is the verdict alone.
    """
    said = words(row["verdict"], row.get("noise_floor_largest"))
    if hidden := hidden_constants(row):
        said += f" on these prompts, and {hidden}"
    return "; ".join([said, *reservations(row)])


def hidden_constants(row: Mapping[str, Any]) -> str:
    """That constants are wrong which the verdict does not show; "" where none is, or where it may be why."""
    count = row.get("constants_wrong") or 0
    if not count or row["verdict"] not in GOOD:
        return ""
    return "a constant is wrong" if count == 1 else f"{count} constants are wrong"


def reservations(row: Mapping[str, Any]) -> list[str]:
    """What else is told beside a verdict, whatever it is, a phrase each."""
    return list(row.get("reservations") or ())


def reserved(row: Mapping[str, Any]) -> str:
    """What `verdict_words` adds to the verdict, for places that show numbers without it: "; a constant is wrong"."""
    hidden = hidden_constants(row)
    return "".join(f"; {said}" for said in [*([hidden] if hidden else []), *reservations(row)])
