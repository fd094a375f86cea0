"""Error against layer count: whether a fault is inside one layer, enters at a depth, or builds up."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from db import query
from db.engine import open_database
from db.models import FACTORS
from db.output import markdown_table
from reports import older
from reports.table import identical, largest, multiple, number, span
from reports.verdict_words import verdict_words

ALWAYS = ("model", "builder", "patch")
# An error that is this many times larger than at the depth before has not grown there: it has entered.
ENTERS = 10.0


def collect(db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> dict[str, Any]:
    """The report as data: {"lines": [{"factors", "rows": one dict a depth}]}. Errors: `query.NotInDatabase`.

    A line is everything but the layers; of each depth its newest cell counts.
    """
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    cells = query.cell_rows(engine, filters, sweep=query.sweep_id(engine, sweep) if sweep else None)
    remeasure = older.lines(engine, cells)
    engine.dispose()
    lines: dict[tuple, dict[int, dict[str, Any]]] = {}
    for cell in query.of_one_measurement(cells):
        if cell["status"] == "ok" and cell["layer_count"]:
            lines.setdefault((line_of(cell), str(cell["thresholds"])), {})[cell["layer_count"]] = cell
    return {
        "lines": [
            {"factors": dict(zip(NAMES, line, strict=True)), "rows": [depths[n] for n in sorted(depths)]}
            for (line, _), depths in lines.items()
            if len(depths) > 1
        ],
        "remeasure": remeasure,
    }


NAMES = (*(factor for factor in FACTORS if factor != "layers"), "options")


def line_of(cell: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(cell[name] or "" for name in NAMES)


def markdown(report: dict[str, Any]) -> str:
    """One row a line and depth, and for each line the sentence that its rows support."""
    lines = report["lines"]
    if not lines:
        return "No cells differ in layers alone: run `python -m runner -m layers=1,2,all` first."
    shown = shown_names(lines)
    body = [
        [
            *(line["factors"][name] for name in shown),
            f"{row['layer_count']}{' (all)' * (row['layers'] == 'all')}",
            span(row["first_diff_least"], row["first_diff_largest"]),
            number(largest(row)),
            number(row["noise_floor_largest"]),
            multiple(row["multiple_largest"]),
            verdict_words(row),
            identical(row),
        ]
        for line in lines
        for row in line["rows"]
    ]
    header = [*shown, "Layers", "First-token max abs diff", "Largest", "Noise floor", "× noise", "Verdict", "Identical"]
    fixed = ", ".join(f"{n} {v}" for n, v in lines[0]["factors"].items() if n not in shown and v)
    notes = [f"- All cells: {fixed}."] + [f"- {title(line, shown)}: {sentence(line['rows'])}" for line in lines]
    picture = [f"![error against layer count]({report['plot']})", ""] if report.get("plot") else []
    return "\n".join([*picture, markdown_table(header, body), "", *notes])


def shown_names(lines: list[dict[str, Any]]) -> list[str]:
    return [n for n in NAMES if n in ALWAYS or len({line["factors"][n] for line in lines}) > 1]


def title(line: dict[str, Any], shown: Sequence[str]) -> str:
    return " ".join(filter(None, (line["factors"][name] for name in shown)))


def sentence(rows: list[dict[str, Any]]) -> str:
    """What the depths say about where an error comes from, and no more."""
    if any(row["non_finite_count"] for row in rows):
        first = next(row for row in rows if row["non_finite_count"])
        return f"not finite from {layers(first)} on."
    if any(row["multiple_largest"] is None for row in rows):
        return "no noise floor, so nothing can be said."
    within = rows[0]["thresholds"]["within"]
    beyond = [row for row in rows if row["multiple_largest"] > within]
    if not beyond:
        return f"within the noise at every depth, at most {told(max(rows, key=ratio))}."
    first, last = rows[0], rows[-1]
    if ratio(first) > within:
        grows = ratio(last) / ratio(first)
        where = "the first layer" if depth(first) == 1 else f"the first {depth(first)} layers"
        more = f"; with depth it grows {grows:.0f} times" if grows > ENTERS else ": depth does not build it up"
        return (
            f"from {layers(first)} on: {told(first)}, {told(last)}{more}. It enters with {where}, embedding, last norm"
            f" or head{doubt(first)}."
        )
    before = max((row for row in rows if row["layer_count"] < beyond[0]["layer_count"]), key=depth)
    if ratio(beyond[0]) > ENTERS * ratio(before):
        return (
            f"enters between {layers(before)} and {layers(beyond[0])}: {told(before)}, then {told(beyond[0])};"
            f" look at what is new in layers {before['layer_count']} to {beyond[0]['layer_count'] - 1} (from 0)."
        )
    return f"grows with depth: {told(first)}, {told(last)}; no single layer is beyond the noise."


def doubt(row: Mapping[str, Any]) -> str:
    """Cut models talk nonsense: their logits may be compared, their text says nothing."""
    return f" (cut to {layers(row)} the reference itself makes no sense)" if row["nonsense_count"] else ""


def ratio(row: Mapping[str, Any]) -> float:
    return row["multiple_largest"]


def depth(row: Mapping[str, Any]) -> int:
    return row["layer_count"]


def layers(row: Mapping[str, Any]) -> str:
    return f"{row['layer_count']} layer{'s' * (row['layer_count'] != 1)}"


def told(row: Mapping[str, Any]) -> str:
    return f"{number(largest(row))} ({multiple(ratio(row))} × noise) at {layers(row)}"


def plot(report: dict[str, Any], file: Path) -> None:
    """Largest difference against layer count, a line each, above the noise floor, as PNG or SVG by the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    lines = report["lines"]
    shown = [n for n in shown_names(lines) if len({line["factors"][n] for line in lines}) > 1] or ["model"]
    for line, marker in zip(lines, itertools.cycle("osv^D*Px"), strict=False):
        counts = [depth(row) for row in line["rows"]]
        axes.plot(counts, [largest(row) for row in line["rows"]], marker=marker, label=title(line, shown))
    for model in dict.fromkeys(line["factors"]["model"] for line in lines):
        floors = {
            depth(row): row["noise_floor_largest"]
            for line in lines
            if line["factors"]["model"] == model
            for row in line["rows"]
        }
        counts = sorted(n for n, floor in floors.items() if floor is not None)
        axes.plot(counts, [floors[n] for n in counts], color="grey", linestyle="--", label=f"noise floor of {model}")
    axes.set(xlabel="layers", ylabel="largest abs difference of logits", yscale="log")
    axes.set_xticks(sorted({depth(row) for line in lines for row in line["rows"]}))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
