"""The table of a sweep: one row an export, as the comparison of builds that proves a cause."""

from __future__ import annotations

from collections import Counter
from typing import Any

from db import detail, query
from db.engine import open_database
from db.models import FACTORS
from db.output import markdown_table
from reports.table import identical, multiple, number, span, words

# What a reader wants named first; other factors follow when they vary.
ALWAYS = ("model", "builder", "patch")
MEASURED = ("First-token max abs diff", "Largest", "Noise floor", "× noise", "Verdict", "Identical", "Text")
ODD_WORDS = ("wrong", "empty", "loop", "markers")
ERROR_LENGTH = 60
MOST_FINDINGS = 12
PATCH_WORDS = {"present": "is already in", "not_applicable": "has nothing to change in"}
REVERSED_WORDS = {"present": "has been taken out already of", "not_applicable": "has nothing to take out of"}


def collect(db: str | None, sweep: str = "latest") -> dict[str, Any]:
    """The report as data: {"sweep": its row, "rows": one dict a cell, "packages"}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    sweep_id = query.sweep_id(engine, sweep)
    (about,) = [row for row in query.sweep_rows(engine) if row["sweep"] == sweep_id]
    cells = query.cell_rows(engine, sweep=sweep_id)
    results = sorted({c["result"] for c in cells if c["result"]})
    prompts, findings = detail.prompts_of(engine, results), detail.findings_of(engine, results)
    left_out = noise_left_out(engine, cells)
    rows = [
        cell
        | from_prompts(prompts.get(cell["result"], []), cell)
        | {"findings": [plain(finding) for finding in findings.get(cell["result"], [])]}
        | {"noise_left_out": left_out.get(cell["noise_key"], [])}
        for cell in cells
    ]
    packages = versions(engine, [cell["cell"] for cell in cells if cell["status"] == "ok"][:1])
    engine.dispose()
    return {"sweep": about, "rows": rows, "packages": packages}


def plain(finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in detail.FINDING_COLUMNS}


def noise_left_out(engine, cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Why variants of the reference are no part of a noise floor, by its key."""
    rows = detail.noise_rows(engine, sorted({cell["noise_key"] for cell in cells if cell["noise_key"]}))
    return {key: [f"{row.variant}: {row.left_out}" for row in values if row.left_out] for key, values in rows.items()}


def versions(engine, cells: list[int]) -> dict[str, str]:
    """The versions that a reader of numbers asks for, of the first cell that has some."""
    wanted = {
        "transformers": "reference",
        "onnxruntime-genai": "runtime",
        "onnxruntime": "runtime",
        "torch": "reference",
    }
    found = {row["package"]: row for cell in cells for row in detail.package_rows(engine, cell)}
    return {name: found[name].get(role) for name, role in wanted.items() if name in found}


def from_prompts(prompts: list, cell: dict[str, Any]) -> dict[str, Any]:
    """What the prompts add to a cell's row: a note on the text, and the span of the reference's logits."""
    odd = Counter(p.outcome for p in prompts if p.outcome in ODD_WORDS)
    notes = [f"{count} {word}" for word, count in odd.items()]
    senseless = sum(p.sensible is False for p in prompts)
    if senseless:
        notes.append(f"reference itself not sensible in {senseless}")
    if cell["non_finite_count"]:
        notes.append(f"{cell['non_finite_count']} not finite")
    text = ", ".join(notes) or ("as expected" if cell["candidate_sensible_count"] else "")
    ranges = [p.reference_range for p in prompts if p.reference_range is not None]
    return {"texts": text, "logit_range": [min(ranges), max(ranges)] if ranges else None}


def markdown(report: dict[str, Any]) -> str:
    """The report as it stands alone: what was run and on what, the table, and its notes."""
    about = report["sweep"]
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    head = [f"Sweep {about['sweep']}, {about['started']} UTC: `{about['command']}`", ""]
    return "\n".join([*head, table(report), *([f"- Packages: {packages}."] if packages else [])])


def table(report: dict[str, Any]) -> str:
    """The table, and a line for each thing that a reader of it must know."""
    rows = report["rows"]
    names = [*FACTORS, "options"]
    varying = [name for name in names if len({row[name] for row in rows}) > 1]
    shown = [name for name in names if name in (*ALWAYS, *varying)]
    body = [["" if row[n] is None else row[n] for n in ("cell", *shown)] + measured(row) for row in rows]
    fixed = ", ".join(f"{name} {label(name, rows)}" for name in names if name not in shown and rows[0][name])
    return "\n".join([markdown_table(["cell", *shown, *MEASURED], body), "", f"- All cells: {fixed}.", *notes(rows)])


def label(name: str, rows: list[dict[str, Any]]) -> str:
    """A factor that all cells share; of a dtype that is as stored, what that is."""
    value = rows[0][name]
    stored = {row["checkpoint_dtype"] for row in rows if row["checkpoint_dtype"]}
    return f"stored ({', '.join(sorted(stored))})" if name == "dtype" and value == "stored" and stored else value


def measured(row: dict[str, Any]) -> list[str]:
    """The columns right of the factors; a failed export shows its error, not a hole."""
    if row["status"] != "ok":
        text = f"{row['status']}: {row['error']}" if row["error"] else row["status"]
        text = text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"
        return [text, *[""] * (len(MEASURED) - 1)]
    # One number that is not finite is worse than any that is.
    bad = "not finite" if row["non_finite_count"] else ""
    return [
        bad or span(row["first_diff_least"], row["first_diff_largest"]),
        bad or number(row["diff_largest"]),
        number(row["noise_floor_largest"]),
        bad or multiple(row["noise_ratio_largest"]),
        words(row["verdict"]),
        identical(row),
        row["texts"],
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """Lines below the table: how to read it, patches that changed nothing, and what to do about failures."""
    lines = []
    ranges = [row["logit_range"] for row in rows if row["logit_range"]]
    if ranges:
        least, largest = min(r[0] for r in ranges), max(r[1] for r in ranges)
        lines.append(
            "Differences are of logits, between export and reference, ranges over prompts;"
            f" the reference's first-token logits span {span(least, largest)}."
        )
    lines += noise_notes(rows) + override_notes(rows) + finding_notes(rows)
    lines += [patch_note(row) for row in rows if row["patch_outcome"] in PATCH_WORDS]
    lines += [
        f"Builder {r['builder']} is {r['source']}."
        for r in rows
        if r["source"] and not r["source"].startswith("release")
    ]
    lines += [f"Made by the stand-in {r['stand_in']}: cell {r['cell']}." for r in rows if r["stand_in"]]
    return [f"- {line}" for line in [*dict.fromkeys(lines), *failures(rows)]]


def noise_notes(rows: list[dict[str, Any]]) -> list[str]:
    """What the multiples are of, what the verdicts stand for, and what was no noise."""
    measured = [row for row in rows if row["noise_floor_largest"] is not None and row["thresholds"]]
    if not measured:
        return []
    limits = measured[0]["thresholds"]
    lines = [
        "Noise floor: how far the reference moves by itself, at most; × noise: the largest difference in multiples of"
        f" its own prompt's floor. Within noise is up to {limits['within']:g}, broken above {limits['broken']:g}."
    ]
    left_out = {(row["model"], why.split(":")[0]): why for row in reversed(measured) for why in row["noise_left_out"]}
    return lines + [f"Left out of {model}'s noise floor: {why}." for (model, _), why in sorted(left_out.items())]


def override_notes(rows: list[dict[str, Any]]) -> list[str]:
    """What a generation config asked for, and greedy decoding over raw logits left out."""
    cells: dict[str, list[str]] = {}
    for row in rows:
        for side, found in (row["overridden"] or {}).items():
            said = ", ".join(f"{name} {value}" for name, value in found.items())
            cells.setdefault(f"the {side}'s {said}", []).append(str(row["cell"]))
    return [f"Left out of decoding, {these(found)}: {said}." for said, found in cells.items()]


def finding_notes(rows: list[dict[str, Any]]) -> list[str]:
    """Each warning once, with the cells that it is about."""
    cells: dict[tuple, list[str]] = {}
    for row in rows:
        for finding in row["findings"]:
            about = f"prompt {finding['prompt']}" if finding["prompt"] else ""
            key = (finding["kind"], finding["check"], finding["evidence"], about)
            cells.setdefault(key, []).append(str(row["cell"]))
    lines = []
    for (kind, check, evidence, about), found in list(cells.items())[:MOST_FINDINGS]:
        title = "Prompt audit" if kind == "prompt" else "Warning"
        lines.append(f"{title}, {', '.join(filter(None, [about, these(found)]))}: {check}: {evidence}.")
    if len(cells) > MOST_FINDINGS:
        lines.append(f"{len(cells) - MOST_FINDINGS} more findings: `python -m db show {rows[0]['cell']}`.")
    return lines


def these(cells: list[str]) -> str:
    return f"cell{'s' * (len(cells) > 1)} {', '.join(cells[:8])}{' …' * (len(cells) > 8)}"


def patch_note(row: dict[str, Any]) -> str:
    """That a patch changed nothing, and why."""
    words = REVERSED_WORDS if row["patch"].endswith(" reversed") else PATCH_WORDS
    return f"{row['patch']} {words[row['patch_outcome']]} builder {row['builder']}."


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """Each kind of failure once, with its cells, the whole error, and what to do."""
    kinds: dict[tuple, list[str]] = {}
    for row in rows:
        if row["status"] not in ("ok", query.PENDING):
            kinds.setdefault((row["status"], row["error"], row["hint"]), []).append(str(row["cell"]))
    lines = []
    for (status, error, hint), cells in kinds.items():
        lines.append(
            f"{these(cells).capitalize()}: {status}: {error}"
            + (f" ({hint})" if hint else "")
            + f"; `python -m db show {cells[0]}`"
        )
    return lines
