"""What is known to be wrong with the cells of a proof and stands in none of its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reports.table import cells
from reports.verdict_words import reserved


def beside_numbers(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each reservation (`reports.verdict_words`) that cells have: a proof is of their numbers only."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row["status"] == "ok" and (said := reserved(row).removeprefix("; ")):
            found.setdefault(said, []).append(row["cell"])
    return [f"Beside the numbers of {cells(mine)}: {said}." for said, mine in found.items()]
