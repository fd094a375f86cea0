"""Sweeps of one stage: what exports were made (``stages=export``), or what candidates said (``stages=candidate``).

Nothing was compared, so these cells are in no table of results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db import detail, query
from db.engine import open_database
from db.output import gigabytes, markdown_table
from reports import notes
from reports.sweep import ALWAYS, failure_text
from reports.table import NAMES, number, shown_names

EXPORTED = ("Export", "Seconds", "Peak memory", "Measured", "Artifact")
SAID = ("Prompt", "Outcome", "Text")


def collect(db: str | None, sweep: str = "latest") -> dict[str, Any]:
    """The report as data: {"sweep": its row, "action", "rows": a dict a cell, "said": {result: prompts}, "exports":
    {result: stage}}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    sweep_id = query.sweep_id(engine, sweep, query.ONE_STAGE)
    action = query.action_of(engine, sweep_id)
    if action not in query.ONE_STAGE:
        raise query.NotInDatabase(f"sweep {sweep_id} was of more than one stage: see python -m db sweeps")
    (about,) = [row for row in query.sweep_rows(engine) if row["sweep"] == sweep_id]
    rows = notes.with_findings(engine, query.cell_rows(engine, sweep=sweep_id))
    results = sorted({row["result"] for row in rows if row["result"]})
    said = {
        result: [{"prompt": p.prompt, "outcome": p.outcome, "text": p.candidate_text} for p in prompts]
        for result, prompts in detail.prompts_of(engine, results).items()
    }
    exports = detail.stages_of(engine, results, "export")
    engine.dispose()
    return {"sweep": about, "action": action, "rows": rows, "said": said, "exports": exports}


def markdown(report: dict[str, Any]) -> str:
    """The table, and a line for each thing that a reader of it must know."""
    rows = report["rows"]
    if not rows:
        return "No cells."
    shown = shown_names(rows, ALWAYS)
    candidates = report["action"] == "candidate"
    body = []
    for row in rows:
        head = ["" if row[name] is None else row[name] for name in ("cell", *shown)]
        body += [head + columns for columns in columns_of(row, report, candidates)]
    fixed = ", ".join(f"{name} {rows[0][name]}" for name in NAMES if name not in shown and rows[0][name])
    more = "runs them again, beside a reference" if candidates else "finds these and goes on from there"
    lines = [f"All cells: {fixed}.", f"Nothing was compared: the full sweep {more}.", *notes.sources(rows)]
    lines += notes.stand_ins(rows)
    lines += notes.findings(rows) + notes.failures(rows)
    header = ["cell", *shown, *(SAID if candidates else EXPORTED)]
    if not candidates and not any(row[header.index("Measured")] for row in body):
        at = header.index("Measured")
        header, body = header[:at] + header[at + 1 :], [row[:at] + row[at + 1 :] for row in body]
    return "\n".join([markdown_table(header, body), "", *(f"- {line}" for line in lines)])


def columns_of(row: Mapping[str, Any], report: Mapping[str, Any], candidates: bool) -> list[list[str]]:
    """A cell's columns right of its factors: a line a prompt of a candidate, one of an export or a failure."""
    if row["status"] != "ok":
        return [[failure_text(row), *[""] * ((len(SAID) if candidates else len(EXPORTED)) - 1)]]
    if candidates:
        return [[said["prompt"], said["outcome"], said["text"]] for said in report["said"].get(row["result"], [])]
    stage = report["exports"].get(row["result"], {})
    seconds, peak = stage.get("seconds"), stage.get("peak_memory_bytes")
    measured = ", ".join(f"{name} {number(value)}" for name, value in (row["timings"] or {}).items())
    return [
        [
            "found" if stage.get("found") else "made",
            "" if seconds is None else number(seconds),
            "" if peak is None else gigabytes(peak),
            measured,
            stage.get("artifact", ""),
        ]
    ]
