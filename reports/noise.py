"""How far the reference moves by itself: one row a checkpoint and prompt set, a column a variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db import detail, query
from db.engine import open_database
from db.output import markdown_table, markdown_text
from reports import older, unknown
from reports.sweep import with_stored
from reports.table import number, span

# What a floor depends on, and what the reader must know of it when it varies.
NAMES = ("model", "dtype", "layers", "precision", "prompts", "reference", "max_new_tokens", "threads", "options")
ALWAYS = ("model", "dtype")
TITLES = {
    "dtype": "Other dtype",
    "attention": "Other attention",
    "threads": "Other threads",
    "passes": "One pass",
    "precision": "Own precision",
}


def collect(db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> dict[str, Any]:
    """The report as data: {"rows": one dict a noise floor, with its "values"}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    cells = query.cell_rows(engine, filters, sweep=query.sweep_id(engine, sweep) if sweep else None)
    remeasure = older.lines(engine, cells)
    # A failed export leaves its reference's noise as it was measured: what is not known is a floor's.
    not_known = unknown.lines(engine, [cell for cell in cells if not cell["noise_key"]])
    newest = {cell["noise_key"]: cell for cell in query.of_one_measurement(cells) if cell["noise_key"]}
    values = detail.noise_rows(engine, list(newest))
    spans = logit_spans(detail.prompts_of(engine, [cell["result"] for cell in newest.values()]))
    engine.dispose()
    rows = [
        {name: cell[name] or "" for name in NAMES}
        | {"files_dtype": cell["files_dtype"], "span": spans.get(cell["result"]), "values": plain(values.get(key, []))}
        for key, cell in newest.items()
    ]
    return {"rows": rows, "remeasure": remeasure, "unknown": not_known}


def logit_spans(prompts: dict[int, list]) -> dict[int, list[float]]:
    """Least and largest span of the reference's first-token logits, by result."""
    found = {
        result: [p.reference_range for p in rows if p.reference_range is not None] for result, rows in prompts.items()
    }
    return {result: [min(spans), max(spans)] for result, spans in found.items() if spans}


def plain(values: list) -> list[dict[str, Any]]:
    names = ("variant", "versus", "prompt", "first", "largest", "left_out")
    return [{name: getattr(value, name) for name in names} for value in values]


def markdown(report: dict[str, Any]) -> str:
    """The floors side by side, each prompt's where there is one floor only, and what was left out and why."""
    rows = report["rows"]
    if not rows:
        return "No noise floor is stored: run a sweep with noise.variants set, as it is by default."
    shown = [n for n in NAMES if n in ALWAYS or len({row[n] for row in rows}) > 1]
    variants = [v for v in TITLES if any(v in largest(row) for row in rows)]
    header = [*shown, *(TITLES[v] for v in variants), "Noise floor", "Logits span"]
    body = [
        [
            *(label(row, name) for name in shown),
            *(span(*ends(largest(row).get(v, {}).values())) or missing(row, v) for v in variants),
            number(floor(row)),
            span(*row["span"]) if row["span"] else "",
        ]
        for row in rows
    ]
    rounded = [ROUNDED] if any(rounds(row) for row in rows) else []
    notes = [f"- {line}" for line in [HOW, *rounded, *versus(rows), *left_out(rows)]]
    each = ["", each_prompt(rows[0], variants)] if len(rows) == 1 and variants else []
    return "\n".join([markdown_table(header, body), *each, "", *notes])


HOW = (
    "Largest absolute difference of the reference's logits over the steps of the same tokens, computed otherwise;"
    " ranges over prompts. The floor is the largest of them: no export can be asked to be much nearer than that."
)


ROUNDED = (
    "Own precision: the reference with its own weights rounded as those of an export in that precision are. Such an"
    " export is held to this; where it could not be measured there is no floor, and no verdict."
)


def label(row: dict[str, Any], name: str) -> str:
    return with_stored(row[name], row["files_dtype"]) if name == "dtype" else row[name]


def largest(row: dict[str, Any]) -> dict[str, dict[str, float]]:
    """{variant: {prompt: its largest difference}}."""
    found: dict[str, dict[str, float]] = {}
    for value in row["values"]:
        if value["largest"] is not None:
            found.setdefault(value["variant"], {})[value["prompt"]] = value["largest"]
    return found


def ends(values) -> tuple[float | None, float | None]:
    values = list(values)
    return min(values, default=None), max(values, default=None)


def missing(row: dict[str, Any], variant: str) -> str:
    """What stands where a variant has no number: an export in fp32 has no precision of its own to measure."""
    return "" if variant == "precision" and not rounds(row) else "left out"


def rounds(row: dict[str, Any]) -> bool:
    """Whether the floor is one of an export in another precision than fp32."""
    return any(value["variant"] == "precision" for value in row["values"])


def floor_of(row: dict[str, Any], prompt: str) -> float | None:
    """A prompt's largest; None where the export's precision is not among what was measured."""
    found = {variant: prompts[prompt] for variant, prompts in largest(row).items() if prompt in prompts}
    return None if rounds(row) and "precision" not in found else max(found.values(), default=None)


def prompts_of(row: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(value["prompt"] for value in row["values"] if value["prompt"]))


def floor(row: dict[str, Any]) -> float | None:
    floors = [floor_of(row, prompt) for prompt in prompts_of(row)]
    return max((value for value in floors if value is not None), default=None)


def each_prompt(row: dict[str, Any], variants: list[str]) -> str:
    found = largest(row)
    body = [
        [prompt, *(number(found[v].get(prompt)) for v in variants), number(floor_of(row, prompt))]
        for prompt in prompts_of(row)
    ]
    return markdown_table(["prompt", *(TITLES[v] for v in variants), "Noise floor"], body)


def versus(rows: list[dict[str, Any]]) -> list[str]:
    """What each column compares."""
    said: dict[str, set[str]] = {}
    for row in rows:
        for value in row["values"]:
            if value["versus"]:
                said.setdefault(value["variant"], set()).add(value["versus"])
    return [f"{TITLES[v]}: {', '.join(sorted(said[v]))}." for v in TITLES if v in said]


def left_out(rows: list[dict[str, Any]]) -> list[str]:
    """Variants that are no noise, or could not be run: each model's first, with how many more there are."""
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for value in row["values"]:
            if value["left_out"]:
                said.setdefault((row["model"], value["variant"]), []).append(value["left_out"])
    return [
        f"{model}: {TITLES.get(variant, variant)} is left out: {markdown_text(reasons[0])}{others(len(reasons) - 1)}."
        for (model, variant), reasons in said.items()
    ]


def others(count: int) -> str:
    return f" (so it is of {count} more checkpoint{'s' * (count != 1)} of this model)" if count else ""
