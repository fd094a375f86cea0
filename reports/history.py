"""The history across releases: release by model, and the releases at which something changed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from db import detail, history, query
from db.engine import open_database
from db.models import FACTORS
from db.output import markdown_code, markdown_table, markdown_text
from reports import commands, notes, older, unknown
from reports.table import identical, multiple, span
from reports.verdict_words import reserved

CHANGED = "◀"
ERROR_LENGTH = 48
MOST_LINES = 24  # columns that a reader can still take in


def collect(db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> dict[str, Any]:
    """The report as data: {"rows": as `history.history_rows` has them}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    rows = history.history_rows(engine, filters, sweep=query.sweep_id(engine, sweep) if sweep else None)
    rows = notes.with_findings(engine, rows)
    confounded = {cell: cross_of(engine, cross) for cell, cross in history.crosses(engine, rows).items()}
    remeasure = older.of_builders(engine, filters, sweep)
    not_known = unknown.of_builders(engine, filters, sweep)
    engine.dispose()
    return {"rows": rows, "confounded": confounded, "remeasure": remeasure, "unknown": not_known}


def cross_of(engine: Engine, cross: history.Cross) -> dict[str, Any]:
    """A confounded change as data: what else changed, what cells decide, and the command of the cells that would."""
    asked = commands.asked_of(engine, [cross.after["sweep"]])[cross.after["sweep"]]
    config = detail.configs_of(engine, [cross.after["cell"]])[cross.after["cell"]]
    command = ""
    if cross.versions:
        pair = [f"builder={cross.before['builder']},{cross.after['builder']}"]
        pair.append(f"builder.transformers={','.join(cross.versions)}")
        patch = commands.patch_words(cross.after["patch"])
        words = shlex.split(commands.for_cell(cross.after, config, asked))
        kept = [word for word in words if commands.key_of(word).split(".")[0] != "builder"]
        command = shlex.join([*kept, *pair, f"patch={patch[0]}", *patch[1:]])
    return {
        "builders": [cross.before["builder"], cross.after["builder"]],
        "also": cross.told(),
        "decided": list(cross.decided),
        "whole": cross.whole,
        "command": command,
    }


def markdown(report: dict[str, Any]) -> str:
    """The pivot, a column for each line of factors that do not move, and what changed where."""
    rows = report["rows"]
    if not rows:
        return "No cells: run `python -m runner +experiment=history` first."
    every = sorted({row["line"]: row["cell"] for row in rows}.items(), key=lambda item: -item[1])
    shown = {line for line, _ in every[:MOST_LINES]}
    rows = [row for row in rows if row["line"] in shown]
    lines = list(dict.fromkeys(row["line"] for row in rows))
    places = {row["builder"]: row["place"] for row in rows}
    builders = sorted(places, key=places.__getitem__)
    found = {(row["builder"], row["line"]): row for row in rows}
    titles = titles_of(lines)
    body = [[builder, *(entry(found.get((builder, line))) for line in lines)] for builder in builders]
    return "\n".join(
        [
            markdown_table(["builder", *titles.values()], body),
            "",
            "- First-token max abs diff of the logits over prompts, the largest of all steps in multiples of the noise"
            f" floor (×), and identical continuations. {CHANGED} marks a builder that is another finding than the one"
            f" before it: another verdict, other texts, or a multiple of the noise beyond it that is more than"
            f" {history.HISTORY_FACTOR:g} times another, in any prompt.",
            *(f"- {text}" for text in more_lines(len(every))),
            *(f"- {text}" for text in changes(rows, titles)),
            *(f"- {text}" for text in confounders(rows, titles, report.get("confounded") or {})),
            *(f"- {text}" for text in notes.findings(rows)),
        ]
    )


def era(row: dict[str, Any]) -> str:
    """From which builder on a line is as it is, and what made it another finding."""
    change = f" [{row['change']}]" if row.get("change") and row["status"] == "ok" else ""
    return f"from {row['builder']} {entry({**row, 'changed': False})}{change}"


def confounders(
    rows: Sequence[Mapping[str, Any]], titles: Mapping[tuple[str, ...], str], confounded: Mapping[int, dict[str, Any]]
) -> list[str]:
    """The changes that came with another change of packages: what decides between them, or did."""
    texts = []
    for row in rows:
        if not (cross := confounded.get(row["cell"])):
            continue
        one, two = cross["builders"]
        what = f"{titles[row['line']]}, {one} → {two}: confounded, {cross['also']} changed too."
        if cross["decided"]:
            what += f" {'; '.join(cross['decided'])}."
        if cross["command"] and not cross["whole"]:
            what += " The cells that decide it:"
        text = markdown_text(what)
        if cross["command"] and not cross["whole"]:
            text += f" {markdown_code(cross['command'])}"
        texts.append(text)
    return texts


def more_lines(count: int) -> list[str]:
    return [f"{count - MOST_LINES} older lines more: narrow it by --model or --sweep."] if count > MOST_LINES else []


def titles_of(lines: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """What tells each line from the others: the model, and whatever else is not the same in all."""
    names = [factor for factor in FACTORS if factor != "builder"] + ["options"]
    differing = [n for n, name in enumerate(names) if name == "model" or len({line[n] for line in lines}) > 1]
    return {line: " ".join(part(names[n], line[n]) for n in differing if line[n]) for line in lines}


def part(name: str, value: str) -> str:
    """A factor's value as a title says it: a bare number would be one of many."""
    return f"{name} {value}" if value.isdecimal() else value


def entry(row: dict[str, Any] | None) -> str:
    """One cell of the pivot: the diff range, or the failure's first line."""
    if row is None:
        return ""
    if row["status"] == "ok":
        noise = f" (× {multiple(row['multiple_largest'])})" if row["multiple_largest"] is not None else ""
        text = f"{span(row['first_diff_least'], row['first_diff_largest'])}{noise}, {identical(row)}{reserved(row)}"
    else:
        text = row["error"] or row["status"]
        text = text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"
    return f"{text} {CHANGED}" if row["changed"] else text


def changes(rows: list[dict[str, Any]], titles: Mapping[tuple[str, ...], str]) -> list[str]:
    """For each line its eras: from which release on it is as it is."""
    lines: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(row["line"], []).append(row)
    texts = []
    for line, mine in lines.items():
        eras = [row for n, row in enumerate(mine) if n == 0 or row["changed"]]
        told = "; ".join(era(row) for row in eras)
        texts.append(f"{titles[line]}: {len(eras)} era{'s' * (len(eras) != 1)}: {markdown_text(told)}.")
    return texts
