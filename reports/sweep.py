"""The table of a sweep: one row an export, as the comparison of builds that proves a cause."""

from __future__ import annotations

from collections import Counter
from typing import Any

from db import query
from db.engine import open_database
from db.models import FACTORS
from db.output import markdown_table
from reports.table import number, span

# What a reader wants named first; other factors follow when they vary.
ALWAYS = ("model", "builder", "patch")
ODD_WORDS = ("wrong", "empty", "loop", "markers")


def collect(db: str | None, sweep: str = "latest") -> dict[str, Any]:
    """The report as data: {"sweep", "rows": one dict a cell}. Errors: `query.UnknownSweep`."""
    engine = open_database(db, create=False)
    sweep_id = query.sweep_id(engine, sweep)
    cells = query.cell_rows(engine, sweep=sweep_id)
    prompts = query.prompts_of(engine, sorted({c["result"] for c in cells if c["result"]}))
    rows = []
    for cell in cells:
        mine = prompts.get(cell["result"], [])
        rows.append(cell | {"texts": text_note(mine, cell)})
    engine.dispose()
    return {"sweep": sweep_id, "rows": rows}


def text_note(prompts: list, cell: dict[str, Any]) -> str:
    """What went wrong with the text: "2 wrong, 1 empty"; and of a reference that makes no sense."""
    odd = Counter(p.outcome for p in prompts if p.outcome in ODD_WORDS)
    notes = [f"{count} {word}" for word, count in odd.items()]
    senseless = sum(p.sensible is False for p in prompts)
    if senseless:
        notes.append(f"reference not sensible in {senseless}")
    if cell["non_finite_count"]:
        notes.append(f"{cell['non_finite_count']} not finite")
    return ", ".join(notes) or ("as expected" if cell["candidate_sensible_count"] else "")


def markdown(report: dict[str, Any]) -> str:
    """The report as a markdown table, and a line for each thing a reader must know."""
    rows = report["rows"]
    varying = [f for f in FACTORS if len({row[f] for row in rows}) > 1]
    shown = list(dict.fromkeys([*ALWAYS, *varying]))
    shown = [f for f in FACTORS if f in shown]
    fixed = ", ".join(f"{f} {rows[0][f]}" for f in FACTORS if f not in shown) if rows else ""
    header = [
        *shown, "First-token logits max abs diff", "Largest diff", "Greedy continuations identical", "Text",
    ]  # fmt: skip
    body = [[*(row[f] for f in shown), *outcome_columns(row)] for row in rows]
    lines = [markdown_table(header, body), "", f"All cells: {fixed}." if fixed else ""]
    lines += notes(rows)
    return "\n".join(lines).rstrip()


def outcome_columns(row: dict[str, Any]) -> list[str]:
    """The columns right of the factors; a failed export shows its error, not a hole."""
    if row["status"] != "ok":
        return [f"{row['status']}: {row['error']}" if row["error"] else row["status"], "", "", ""]
    return [
        span(row["first_diff_least"], row["first_diff_largest"]),
        number(row["diff_largest"]),
        f"{row['identical_count']} of {row['prompts_count']}",
        row["texts"],
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """Lines below the table: patches that changed nothing, stand-ins, what to do about failures."""
    lines = []
    for row in rows:
        name = f"builder {row['builder']}, patch {row['patch']}"
        if row["patch_outcome"] in ("present", "not_applicable"):
            word = {"present": "is already in", "not_applicable": "has nothing to change in"}
            lines.append(f"- {row['patch']} {word[row['patch_outcome']]} builder {row['builder']}.")
        if row["stand_in"]:
            lines.append(f"- {name}: made by the stand-in {row['stand_in']}.")
        if row["status"] != "ok" and row["hint"]:
            lines.append(f"- {name}: {row['status']}: {row['hint']}.")
    failed = [str(row["cell"]) for row in rows if row["status"] not in ("ok", "config_failed", "skipped")]
    if failed:
        lines.append(f"- All about a failed cell: `python -m db show CELL` (cells {', '.join(failed[:10])}).")
    return ["", *dict.fromkeys(lines)] if lines else []
