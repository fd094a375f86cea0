"""The families table: whether each family's small random checkpoint builds, whether it is right, and if not, why."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, select

from db import query
from db.engine import open_database, reading
from db.findings import OF_EXPORT, is_finding
from db.models import Cell, Sweep
from db.output import markdown_table
from db.pairs import right
from db.query import OF_RUNS
from reports import constants, notes, older, unknown
from reports.table import NAMES, identical, largest, multiple, number, shown_names, span
from reports.verdict_words import verdict_words

PREFIX = "random_"
ALWAYS = ("model", "builder")
MEASURED = ("Builds", "First-token max abs diff", "Largest", "Noise floor", "× noise", "Verdict", "Identical", "Why")
BUILDS = {
    "ok": "yes", "export_failed": "no", "load_failed": "yes, does not load", "run_failed": "yes, does not run",
    "checkpoint_failed": "no checkpoint", "reference_failed": "no reference",
}  # fmt: skip
# Warnings, beside constants that are wrong, that say why logits may differ.
TELLING = ("cast_overflow", "constants", "remote_code")
RIGHT = (
    "every constant, weight and activation that was compared is right:"
    " `python -m reports constants --uncompared` lists what was not"
)


def collect(db: str | None, sweep: str | None) -> dict[str, Any]:
    """The report as data: {"rows": a dict a cell, with its "constants"}; of the newest sweep that has families.

    Errors: `query.NotInDatabase`.
    """
    engine = open_database(db, create=False)
    newest = newest_sweep(engine) if sweep is None else query.sweep_id(engine, sweep)
    found = query.cell_rows(engine, sweep=newest) if newest else []
    rows = notes.with_findings(engine, [row for row in found if row["model"].startswith(PREFIX)])
    rows = constants.with_constants(engine, rows)
    remeasure = older.lines(engine, rows, shown=True)
    not_known = unknown.lines(engine, rows)
    engine.dispose()
    return {"rows": rows, "remeasure": remeasure, "unknown": not_known}


def newest_sweep(engine: Engine) -> int | None:
    """The newest sweep of the experiment, or else of any that has families."""
    with reading(engine) as session:
        known = select(Cell.sweep_id, Sweep.overrides).join(Sweep).where(Cell.model.startswith(PREFIX), OF_RUNS)
        found = dict(session.execute(known.order_by(Cell.sweep_id)).all())
    whole = [number for number, asked in found.items() if any("experiment=families" in word for word in asked)]
    return max(whole or found, default=None)


def markdown(report: dict[str, Any]) -> str:
    """A row a family; one that was refused or that failed has its reason."""
    rows = report["rows"]
    if not rows:
        return "No families: run `python -m runner +experiment=families` first."
    shown = shown_names(rows, ALWAYS)
    body = [["" if row[name] is None else row[name] for name in ("cell", *shown)] + measured(row) for row in rows]
    fixed = ", ".join(f"{name} {rows[0][name]}" for name in NAMES if name not in shown and rows[0][name])
    built = sum(row["status"] == "ok" for row in rows)
    good = [row for row in rows if right(row)]
    hidden = sum(bool(constants.told(row)) for row in good)
    of_these = f", {hidden} of these with a wrong constant that no prompt here shows" if hidden else ""
    many = f"{len(rows)} famil{'y' if len(rows) == 1 else 'ies'}"
    lines = [
        f"{many}: {built} build and run, {len(good)} within the noise{of_these}.",
        f"All cells: {fixed}.",
        "Random weights: the texts mean nothing, the logits are what is compared.",
        *notes.noise(rows),
        *notes.failures(rows),
    ]
    return "\n".join([markdown_table(["cell", *shown, *MEASURED], body), "", *(f"- {line}" for line in lines)])


def measured(row: dict[str, Any]) -> list[str]:
    """The columns right of the factors."""
    builds = BUILDS.get(row["status"], row["status"].replace("_", " "))
    # A full disk, say, is no fault of it; that it has no checkpoint or reference is said where that is final.
    if not (is_finding(row) or row["final"]) or (row["status"] in OF_EXPORT and not is_finding(row)):
        builds = "not known"
    if row["status"] != "ok":
        where = f", at {row['error_frame'].split(': ')[0]}" if row["error_frame"] else ""
        return [builds, *[""] * (len(MEASURED) - 2), (row["error"] or "") + where]
    bad = "not finite" if row["non_finite_count"] else ""
    return [
        builds,
        bad or span(row["first_diff_least"], row["first_diff_largest"]),
        bad or number(largest(row)),
        number(row["noise_floor_largest"]),
        bad or multiple(row["multiple_largest"]),
        verdict_words(row),
        identical(row | {"nonsense_count": 0}),
        "; ".join(why(row)),
    ]


def why(row: dict[str, Any]) -> list[str]:
    """What may be why a cell is not within the noise: its wrong constants and its warnings."""
    wrong = constants.told(row)
    said = wrong + [f"{f['check']}: {f['evidence']}" for f in row["findings"] if f["check"] in TELLING]
    if said or right(row):
        return said
    return [RIGHT] if row["constants"] else []
