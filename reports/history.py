"""The history across releases: release by model, and the releases at which something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db import query
from db.engine import open_database
from db.models import FACTORS
from db.output import markdown_table, markdown_text
from reports import notes
from reports.table import identical, multiple, span

CHANGED = "◀"
ERROR_LENGTH = 48


def collect(db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> dict[str, Any]:
    """The report as data: {"rows": as `query.history_rows` has them}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    rows = query.history_rows(engine, filters, sweep=query.sweep_id(engine, sweep) if sweep else None)
    rows = notes.with_findings(engine, rows)
    engine.dispose()
    return {"rows": rows}


def markdown(report: dict[str, Any]) -> str:
    """The pivot, a column for each line of factors that do not move, and what changed where."""
    rows = report["rows"]
    if not rows:
        return "No cells: run `python -m runner +experiment=history` first."
    lines = list(dict.fromkeys(row["line"] for row in rows))
    builders = sorted({row["builder"] for row in rows}, key=query.release_order)
    found = {(row["builder"], row["line"]): row for row in rows}
    body = [[builder, *(entry(found.get((builder, line))) for line in lines)] for builder in builders]
    return "\n".join(
        [
            markdown_table(["builder", *(title(line, lines) for line in lines)], body),
            "",
            "- First-token max abs diff of the logits over prompts, the largest of all steps in multiples of the noise"
            f" floor (×), and identical continuations; {CHANGED} marks a release that differs from the one before it.",
            *(f"- {text}" for text in changes(rows, lines)),
            *(f"- {text}" for text in notes.findings(rows)),
        ]
    )


def title(line: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """What tells a line from the others: the model, and whatever else is not the same in all."""
    names = [factor for factor in FACTORS if factor != "builder"] + ["options"]
    differing = [n for n, _ in enumerate(names) if len({other[n] for other in lines}) > 1 or names[n] == "model"]
    return " ".join(line[n] for n in differing if line[n])


def entry(row: dict[str, Any] | None) -> str:
    """One cell of the pivot: the diff range, or the failure's first line."""
    if row is None:
        return ""
    if row["status"] == "ok":
        noise = f" (× {multiple(row['multiple_largest'])})" if row["multiple_largest"] is not None else ""
        text = f"{span(row['first_diff_least'], row['first_diff_largest'])}{noise}, {identical(row)}"
    else:
        text = row["error"] or row["status"]
        text = text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"
    return f"{text} {CHANGED}" if row["changed"] else text


def changes(rows: list[dict[str, Any]], lines: list[tuple[str, ...]]) -> list[str]:
    """For each line its eras: from which release on it is as it is."""
    texts = []
    for line in lines:
        mine = [row for row in rows if row["line"] == line]
        eras = [row for n, row in enumerate(mine) if n == 0 or row["changed"]]
        told = "; ".join(f"from {row['builder']} {entry({**row, 'changed': False})}" for row in eras)
        texts.append(f"{title(line, lines)}: {len(eras)} era{'s' * (len(eras) != 1)}: {markdown_text(told)}.")
    return texts
