"""The table of a sweep: one row an export, as the comparison of builds that proves a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from db import detail, query
from db.engine import open_database
from db.models import OPEN_OUTCOMES, TEXT_OUTCOMES
from db.output import markdown_table, markdown_text
from reports import notes, older
from reports.table import NAMES, identical, largest, multiple, number, shown_names, span
from reports.verdict_words import verdict_words

# What a reader wants named first; other factors follow when they vary.
ALWAYS = ("model", "builder", "patch")
MEASURED = ("First-token max abs diff", "Largest", "Noise floor", "× noise", "Verdict", "Identical", "Text")
ERROR_LENGTH = 60


def collect(db: str | None, sweep: str = "latest") -> dict[str, Any]:
    """The report as data: {"sweep": its row, "rows": one dict a cell, "packages"}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    sweep_id = query.sweep_id(engine, sweep)
    (about,) = [row for row in query.sweep_rows(engine) if row["sweep"] == sweep_id]
    if (action := query.action_of(engine, sweep_id)) in query.ONE_STAGE:
        raise query.NotInDatabase(
            f"sweep {sweep_id} compared nothing (stages={action}): python -m reports stages --sweep {sweep_id}"
        )
    found = query.cell_rows(engine, sweep=sweep_id)
    prompts = detail.prompts_of(engine, sorted({cell["result"] for cell in found if cell["result"]}))
    rows = [cell | from_prompts(prompts.get(cell["result"], []), cell) for cell in notes.with_findings(engine, found)]
    packages = versions(engine, [cell["cell"] for cell in found if cell["status"] == "ok"][:1])
    exports = exports_of(engine, rows)
    remeasure = older.lines(engine, found, shown=True)
    engine.dispose()
    return {"sweep": about, "rows": rows, "packages": packages, "exports": exports, "remeasure": remeasure}


def exports_of(engine, rows: list[dict[str, Any]]) -> list[str]:
    """Whether cells share exports, of which nobody would think when prompts vary."""
    keys = detail.stages_of(engine, sorted({row["result"] for row in rows if row["status"] == "ok"}), "export")
    count = sum(row["result"] in keys for row in rows)
    made = len({stage["artifact"] for stage in keys.values()})
    if not 0 < made < count:
        return []
    return [f"These {count} cells stand on {made} export{'s' * (made != 1)}: nothing was exported twice."]


def versions(engine, cells: list[int]) -> dict[str, str]:
    """The versions that a reader of numbers asks for, of the first cell that has some."""
    wanted = {
        "transformers": "reference",
        "onnxruntime-genai": "runtime",
        "onnxruntime": "runtime",
        "torch": "reference",
    }
    found = {row["package"]: row for cell in cells for row in detail.package_rows(engine, cell)}
    return {name: found[name][role] for name, role in wanted.items() if name in found and found[name].get(role)}


def from_prompts(prompts: list, cell: dict[str, Any]) -> dict[str, Any]:
    """What the prompts add to a cell's row: a note on the text, how many texts the limit cut, and the span of the
    reference's logits."""
    said = outcomes_of(prompts)
    senseless = sum(p.sensible is False for p in prompts)
    if senseless:
        said.append(f"reference itself not sensible in {senseless}")
    unsound = sum(p.reference_range is None for p in prompts)
    if unsound:
        said.append(f"reference itself not finite in {unsound}")
    if cell["non_finite_count"]:
        said.append(f"{cell['non_finite_count']} not finite")
    ranges = [p.reference_range for p in prompts if p.reference_range is not None]
    cut = sum("cut" in (p.outcome, p.reference_outcome) for p in prompts)
    return {"texts": ", ".join(said), "cut_count": cut, "logit_range": [min(ranges), max(ranges)] if ranges else None}


def outcomes_of(prompts: list) -> list[str]:
    """What the export's texts are, in words and counts: "as expected" where all are, nothing where none is known."""
    counts = Counter(p.outcome for p in prompts)
    right = sum(p.candidate_sensible is True for p in prompts)
    if prompts and right == len(prompts):
        return ["as expected"]
    known = any(p.outcome not in OPEN_OUTCOMES for p in prompts)
    said = [f"{right} as expected"] if right else []
    said += [f"{counts[word]} {word}" for word in TEXT_OUTCOMES if counts[word] and word not in ("answer", "text")]
    if counts["text"] and known:
        said.append(f"{counts['text']} not judged")
    return said


def markdown(report: dict[str, Any]) -> str:
    """The report as it stands alone: what was run and on what, the table, and its notes."""
    about = report["sweep"]
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    head = [f"Sweep {about['sweep']}, {about['started']} UTC: `{about['command']}`", ""]
    return "\n".join([*head, table(report), *([f"- Packages: {packages}."] if packages else [])])


def table(report: dict[str, Any]) -> str:
    """The table, and a line for each thing that a reader of it must know."""
    rows = report["rows"]
    shown = shown_names(rows, ALWAYS)
    body = [["" if row[n] is None else row[n] for n in ("cell", *shown)] + measured(row) for row in rows]
    fixed = ", ".join(f"{name} {label(name, rows)}" for name in NAMES if name not in shown and rows[0][name])
    lines = [f"- All cells: {fixed}.", *(f"- {text}" for text in report.get("exports", ())), *below(rows)]
    return "\n".join([markdown_table(["cell", *shown, *MEASURED], body), "", *lines])


def label(name: str, rows: list[dict[str, Any]]) -> str:
    """A factor that all cells share; of a dtype that is as stored, what that is."""
    stored = sorted({row["checkpoint_dtype"] for row in rows if row["checkpoint_dtype"]})
    return with_stored(rows[0][name], ", ".join(stored)) if name == "dtype" and stored else rows[0][name]


def with_stored(dtype: str, stored: str | None) -> str:
    """A dtype; of one that is as stored, what that is."""
    return f"stored ({stored})" if dtype == "stored" else dtype


def measured(row: dict[str, Any]) -> list[str]:
    """The columns right of the factors; a failed export shows its error, not a hole."""
    if row["status"] != "ok":
        return [failure_text(row), *[""] * (len(MEASURED) - 1)]
    # One number that is not finite is worse than any that is.
    bad = "not finite" if row["non_finite_count"] else ""
    return [
        bad or span(row["first_diff_least"], row["first_diff_largest"]),
        bad or number(largest(row)),
        number(row["noise_floor_largest"]),
        bad or multiple(row["multiple_largest"]),
        verdict_words(row),
        identical(row),
        row["texts"],
    ]


def failure_text(row: Mapping[str, Any]) -> str:
    """A failure as a table's field shows it; all of it stands below."""
    text = f"{row['status']}: {row['error']}" if row["error"] else row["status"]
    return text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"


def below(rows: list[dict[str, Any]]) -> list[str]:
    """Lines below the table: how to read it, patches that changed nothing, and what to do about failures."""
    lines = []
    ranges = [row["logit_range"] for row in rows if row["logit_range"]]
    if ranges:
        least, most = min(r[0] for r in ranges), max(r[1] for r in ranges)
        lines.append(
            "Differences are of logits, between candidate and reference: the first new token's as a range over prompts,"
            " and the largest of all steps, free-running or fed the reference's tokens. The reference's first-token"
            f" logits span {span(least, most)}."
        )
        lines.append("Identical: on how many prompts both sides gave the same tokens; and over how many tokens.")
    lines += notes.noise(rows) + notes.overridden(rows) + notes.cut(rows) + notes.own_way(rows) + notes.findings(rows)
    lines += [notes.patch(row) for row in rows if row["patch_outcome"] in notes.PATCH_WORDS]
    lines += [
        f"Builder {markdown_text(r['builder'])} is {markdown_text(r['source'])}."
        for r in rows
        if r["source"] and r["builder"] != "none" and not r["source"].startswith("release")
    ]
    lines += notes.sources(rows)
    lines += notes.stand_ins(rows)
    return [f"- {line}" for line in [*dict.fromkeys(lines), *notes.failures(rows)]]
