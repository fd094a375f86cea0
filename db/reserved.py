"""What is known to be wrong with an export beside its verdict, in phrases: for every table that shows one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Verdicts that a reader takes for "right".
GOOD = ("within_noise", "near_tie")
# The reservation of an export whose constants the stage could not compare: whether one is wrong is not known.
NOT_COMPARED = "constants not compared"


def hidden_constants(row: Mapping[str, Any]) -> str:
    """That constants are wrong which the verdict does not show; "" where none is, or where they may be why."""
    count = row.get("constants_wrong") or 0
    if not count or row["verdict"] not in GOOD:
        return ""
    return "a constant is wrong" if count == 1 else f"{count} constants are wrong"


def reservations(row: Mapping[str, Any]) -> list[str]:
    """What else is told beside a verdict, whatever it is, a phrase each."""
    return list(row.get("reservations") or ())


def beside(row: Mapping[str, Any]) -> list[str]:
    """All of it, a phrase each; nothing of a cell that was not compared."""
    return [*filter(None, [hidden_constants(row)]), *reservations(row)]
