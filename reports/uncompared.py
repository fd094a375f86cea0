"""What no comparison of an export with transformers looked at, by cell, kind and layers, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db.output import markdown_table, runs

COLUMNS = ("cell", "model", "builder", "precision", "Kinds compared", "Not compared")


def unread(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The constants of a cell that could not be compared."""
    return [constant for constant in row["constants"] if constant["verdict"] == "unread"]


def said(constant: Mapping[str, Any]) -> str:
    """One of them in words: "operators MoE, layers 0 – 3: how tokens are routed to the experts"."""
    kind, what = constant["kind"].replace("_", " "), constant["what"]
    name = what if kind in ("weight", "vector") else f"{kind} {what}" if kind != what else kind
    layers = constant["layers"]
    where = f", layer{'s' if len(layers) > 1 else ''} {runs(layers)}" if layers else ""
    return f"{name}{where}: {constant['says']}"


def lines(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """What was not compared -> the cells of which it was not."""
    found: dict[str, list[int]] = {}
    for row in rows:
        for constant in unread(row):
            found.setdefault(said(constant), []).append(row["cell"])
    return found


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row a cell: how many kinds were compared, and which were not."""
    body = []
    for row in rows:
        if row["constants"]:
            left = unread(row)
            told = "; ".join(said(constant) for constant in left) or "nothing"
            compared = len(row["constants"]) - len(left)
            factors = (row["cell"], row["model"], row["builder"], row["precision"])
            body.append([*factors, f"{compared} of {len(row['constants'])}", told])
    return markdown_table(COLUMNS, body) if body else "No constants were compared."
