"""What exports hold beside what transformers computes: rotary caches, norms, scales, caps, biases, multipliers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from db import detail, query
from db.engine import open_database
from db.output import markdown_table, markdown_text, runs
from reports import notes, older, uncompared, unknown
from reports.sweep import ALWAYS, failure_text, with_stored
from reports.table import NAMES, cells, number, shown_names

ACTIONS = ("run", "constants")
# Verdicts that say something is wrong, from the worst on.
WRONG = ("dropped", "added", "differs")
# Every kind of constant, in the order of the columns.
TITLES = {
    "layers": "Layers", "rope": "RoPE", "rope_layout": "RoPE layout", "norm_kind": "Kind of norm",
    "norm_weight": "Norm weights", "norm_bias": "Norm biases", "epsilon": "Epsilons",
    "embedding_scale": "Embedding scale", "attention_scale": "Attention scale", "soft_cap": "Soft caps",
    "window": "Sliding window", "clip": "Clip", "sinks": "Sinks", "logit_scale": "Logit scale",
    "logit_soft_cap": "Logit soft cap", "bias": "Biases", "multiplier": "Multipliers", "vector": "Other vectors",
    "weight": "Weights", "activation": "Activations", "operators": "Operators",
}  # fmt: skip
MOST_ORIGINS = 4
MOST_MATRICES = 8
# Factors that no constant depends on.
ELSEWHERE = ("runtime", "prompts", "max_new_tokens", "threads")
ALL_COLUMNS = ("kind", "what", "layers", "reference", "export", "max_abs_diff", "verdict", "says")


def collect(
    db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None, every: bool, left: bool = False
) -> dict[str, Any]:
    """The report as data: {"rows": a dict a cell with its "constants", "every": whether each has a row of its own,
    "uncompared": whether only those are shown that could not be compared}; left: the last of these.

    Errors: `query.NotInDatabase`.
    """
    engine = open_database(db, create=False)
    number_of = query.sweep_id(engine, sweep or "latest", ACTIONS)
    query.check_filters(engine, filters, [])
    rows = query.cell_rows(engine, filters, sweep=number_of)
    rows = with_constants(engine, notes.with_findings(engine, rows))
    remeasure = older.lines(engine, rows, shown=True)
    not_known = unknown.lines(engine, [row for row in rows if not row["constants"]])
    engine.dispose()
    return {"rows": rows, "every": every, "uncompared": left, "remeasure": remeasure, "unknown": not_known}


def with_constants(engine: Engine, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of cells with their "constants"."""
    found = detail.constant_rows(engine, sorted({row["constants_key"] for row in rows if row["constants_key"]}))
    return [row | {"constants": found.get(row["constants_key"], [])} for row in rows]


def markdown(report: dict[str, Any]) -> str:
    """A row a cell with a column for each kind of constant, and below it what is wrong with those that are."""
    rows = report["rows"]
    compared = [row for row in rows if row["constants"]]
    if not rows:
        return "No cells: run `python -m runner action=constants` first."
    if report["uncompared"]:
        return uncompared.markdown(compared)
    if report["every"]:
        return "\n\n".join(every_constant(row) for row in compared) or "No constants were compared."
    columns = columns_of(compared)
    shown = shown_names(rows, ALWAYS)
    header = ["cell", *shown, "Positions", *columns, "Constants"]
    body = [
        ["" if row[name] is None else row[name] for name in ("cell", *shown)] + measured(row, columns) for row in rows
    ]
    return "\n".join([markdown_table(header, body), "", *(f"- {line}" for line in below(rows, shown))])


def column_of(constant: Mapping[str, Any]) -> str:
    """The column that a constant is told in: its kind's, and of a rotary embedding that of its layers."""
    of = TITLES[constant["kind"]]
    return f"{of}, {constant['what']}" if constant["kind"] == "rope" else of


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that any of the cells has something for, rotary embeddings first."""
    found = dict.fromkeys(column_of(constant) for row in rows for constant in row["constants"])
    order = [*TITLES.values()]
    return sorted(found, key=lambda column: order.index(column.split(",")[0]))


def measured(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """The columns right of the factors."""
    if not row["constants"]:
        text = failure_text(row)
        return ["", *([""] * len(columns)), text if row["status"] != "ok" else "none compared"]
    by_column: dict[str, list[Mapping[str, Any]]] = {}
    for constant in row["constants"]:
        by_column.setdefault(column_of(constant), []).append(constant)
    positions = max((c["positions"] or 0 for c in row["constants"]), default=0)
    wrong = [c for c in row["constants"] if c["verdict"] in WRONG]
    unread, total = len(uncompared.unread(row)), len(row["constants"])
    said = f"{len(wrong)} of {total} wrong" if wrong else f"{total - unread} of {total} right"
    said += f", {unread} not compared" if unread else ""
    return [f"{positions:,}" if positions else "", *(entry(by_column.get(column, [])) for column in columns), said]


def entry(constants: Sequence[Mapping[str, Any]]) -> str:
    """The largest difference of some constants, or the word for one that is not there on both sides."""
    verdicts = [constant["verdict"] for constant in constants]
    for word in ("dropped", "added"):
        if word in verdicts:
            return word
    wrong = [constant for constant in constants if constant["verdict"] in WRONG]
    # Of whole numbers in blocks what is off by their steps is right.
    if not wrong and any(constant["verdict"] == "rounded" and "steps" in constant["says"] for constant in constants):
        return "within steps"
    known = [c["max_abs_diff"] for c in wrong or constants if c["max_abs_diff"] is not None]
    if known:
        return number(max(known))
    if "differs" in verdicts:
        return "differs"
    return "unread" if "unread" in verdicts else "same" if verdicts else ""


def below(rows: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """Lines below the table: how to read it, what is wrong, and what failed."""
    stored = {row["checkpoint_dtype"] for row in rows if row["checkpoint_dtype"]}
    first = rows[0] | ({"dtype": with_stored(rows[0]["dtype"], ", ".join(sorted(stored)))} if stored else {})
    told_once = [name for name in NAMES if name not in (*shown, *ELSEWHERE) and first[name]]
    fixed = ", ".join(f"{name} {first[name]}" for name in told_once)
    lines = [
        f"All cells: {fixed}.",
        "Largest absolute difference between what the export holds and what transformers computes; nothing was run.",
    ]
    origins = list(dict.fromkeys(row["checkpoint_origin"] for row in rows if row["checkpoint_origin"]))
    more = f", and {len(origins) - MOST_ORIGINS} more" if len(origins) > MOST_ORIGINS else ""
    lines += [f"Checkpoints: {markdown_text('; '.join(origins[:MOST_ORIGINS]))}{more}."] if origins else []
    wrong: dict[str, list[int]] = {}
    for row in rows:
        for text in told(row):
            wrong.setdefault(text, []).append(row["cell"])
    lines += [f"{cells(mine).capitalize()}: {markdown_text(text)}." for text, mine in wrong.items()]
    left = uncompared.lines(rows)
    lines += [f"Not compared, {cells(mine)}: {markdown_text(text)}." for text, mine in left.items()]
    return lines + notes.failures([dict(row) for row in rows])


def told(row: Mapping[str, Any]) -> list[str]:
    """What is wrong with a cell's constants, in words: what is said alike of several is said once.

    Of matrices no more than `MOST_MATRICES` are told, those that differ most.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    wrong = [constant for constant in row["constants"] if constant["verdict"] in WRONG]
    matrices = sorted((c for c in wrong if c["kind"] == "weight"), key=lambda c: -(c["max_abs_diff"] or math.inf))
    alike = list(dict.fromkeys(constant["says"] for constant in matrices))
    cut = set(alike[MOST_MATRICES:]) if len(alike) > MOST_MATRICES + 1 else set()
    for constant in wrong:
        if constant["kind"] == "weight" and constant["says"] in cut:
            continue
        values = f"{constant['reference']} in transformers, {constant['export']} in the export"
        where = found.setdefault((constant["kind"], constant["says"] or values), {})
        where[place(constant)] = None
    said = [f"{TITLES[kind]} ({', '.join(where)}): {says}" for (kind, says), where in found.items()]
    if cut:
        more = sum(constant["says"] in cut for constant in matrices)
        said.append(f"{TITLES['weight']}: {more} more differ; `python -m db constants {row['cell']}` lists them")
    return said


def place(constant: Mapping[str, Any]) -> str:
    """What a constant is of; of a matrix, an activation or operators also in which layers."""
    what, layers = constant["what"], constant["layers"]
    if constant["kind"] not in ("weight", "activation", "operators") or not layers:
        return what
    return f"layer {layers[0]}'s {what}" if len(layers) == 1 else f"{what} in layers {runs(layers)}"


def every_constant(row: Mapping[str, Any]) -> str:
    """A table of each constant of a cell."""
    body = [
        [number(c[name]) if name == "max_abs_diff" else runs(c[name]) if name == "layers" else c[name] or ""
         for name in ALL_COLUMNS]
        for c in row["constants"]
    ]  # fmt: skip
    head = f"## cell {row['cell']}: {row['model']} {row['dtype']}, {row['builder']} {row['patch']}, {row['precision']}"
    return "\n".join([head, "", markdown_table(ALL_COLUMNS, body)])
