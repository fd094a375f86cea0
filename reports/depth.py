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
from reports import older, unknown
from reports.table import identical, largest, multiple, number, span
from reports.verdict_words import verdict_words

ALWAYS = ("model", "builder", "patch")
# An error that is this many times larger than at the depth before has not grown there: it has entered.
ENTERS = 10.0
# What is less than this many times larger has not grown.
GROWS = 2.0


def collect(db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> dict[str, Any]:
    """The report as data: {"lines": [{"factors", "rows": one dict a depth}]}. Errors: `query.NotInDatabase`.

    A line is everything but the layers; of each depth its newest cell counts.
    """
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    cells = query.cell_rows(engine, filters, sweep=query.sweep_id(engine, sweep) if sweep else None)
    remeasure = older.lines(engine, cells)
    not_known = unknown.lines(engine, cells)
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
        "unknown": not_known,
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
    """What the depths say about where an error comes from, and no more.

    Each step from one depth to the next is judged by itself, so that a small
    error in the first layer does not hide a large one that a later layer adds.
    """
    if any(row["non_finite_count"] for row in rows):
        first = next(n for n, row in enumerate(rows) if row["non_finite_count"])
        bad = [row for row in rows if row["non_finite_count"]]
        if bad == rows[first:]:
            return f"not finite from {layers(bad[0])} on."
        return f"not finite at {', '.join(map(layers, bad))}, and finite deeper."
    if any(row["multiple_largest"] is None for row in rows):
        return "no noise floor, so nothing can be said."
    if coarse := [row for row in rows if row["verdict"] is None]:
        return f"too noisy at {', '.join(map(layers, coarse))} for a verdict, so nothing can be said."
    within = rows[0]["thresholds"]["within"]
    if all(ratio(row) <= within for row in rows):
        return f"within the noise at every depth, at most {told(max(rows, key=ratio))}."
    said = []
    if ratio(rows[0]) > within:
        where = "the first layer" if depth(rows[0]) == 1 else f"the first {depth(rows[0])} layers"
        said.append(f"{told(rows[0])} already: an error is in {where}, embedding, last norm or head{doubt(rows[0])}")
    steps = list(itertools.pairwise(rows))
    jumps = [(one, two) for one, two in steps if jumped(one, two, within)]
    said += [jump(one, two, within) for one, two in jumps]
    if len(jumps) + (ratio(rows[0]) > within) > 1:
        said.append("so more than one error may be there: run the depths between, and prove each by one change")
    risen = list(filter(None, (growth(run, within) for run in between(rows, jumps))))
    said += risen
    sunk = fall(rows, within)
    if len(said) == 1 and not jumps and not risen and not sunk:
        said.append("depth does not build it up, though the same fault may be in every layer")
    said += [sunk] if sunk else []
    if not said:  # it crosses the threshold, and by no step that would say where
        worst = max(rows, key=ratio)
        said.append(f"beyond the noise with {told(worst)}, and no step is large enough to say where from")
    return f"{'; '.join(said)}."


def jumped(one: Mapping[str, Any], two: Mapping[str, Any], within: float) -> bool:
    """Whether what lies between two depths adds an error, or multiplies the one there is beyond any mere growth."""
    return ratio(two) > within and ratio(two) > ENTERS * ratio(one)


def jump(one: Mapping[str, Any], two: Mapping[str, Any], within: float) -> str:
    """A step that is more than growth, and where to look."""
    first, last = one["layer_count"], two["layer_count"] - 1
    place = f"layer {first}" if first == last else f"layers {first} to {last}"
    what = f"between {layers(one)} and {layers(two)} it goes from {told(one)} to {told(two)}"
    if ratio(one) <= within:
        return f"{what}: an error enters in {place} (counted from 0)"
    return f"{what}, {ratio(two) / ratio(one):.0f} times: {place} (counted from 0) adds an error, or amplifies that one"


def growth(run: Sequence[Mapping[str, Any]], within: float) -> str:
    """The largest rise in a run of depths without a jump; "" where it does not grow beyond the noise."""
    pairs = [(one, two) for n, one in enumerate(run) for two in run[n + 1 :] if ratio(two) > within]
    pairs = [(one, two) for one, two in pairs if ratio(two) > GROWS * ratio(one)]
    if not pairs:
        return ""
    one, two = max(pairs, key=lambda pair: (ratio(pair[1]) - ratio(pair[0]), -depth(pair[0])))
    steps = itertools.pairwise([row for row in run if depth(one) <= depth(row) <= depth(two)])
    small = all(ratio(after) <= ENTERS * ratio(before) for before, after in steps)
    how = f", no step of it more than {ENTERS:g} times" if small else ""
    size = f"from {multiple(ratio(one))} to {multiple(ratio(two))} × noise"
    return f"from {layers(one)} to {layers(two)} it grows {size}{how}"


def fall(rows: Sequence[Mapping[str, Any]], within: float) -> str:
    """That a deeper model, with the layers of the worst one and more, has less of its error; "" where none has."""
    worst = max(rows, key=lambda row: (ratio(row), -depth(row)))
    later = [row for row in rows if depth(row) > depth(worst)]
    least = min(later, key=ratio, default=None)
    if least is None or not (ratio(least) <= within or ratio(worst) > ENTERS * ratio(least)):
        return ""
    told_multiple = f"{multiple(ratio(least))} × noise"
    if ratio(least) > within:
        return f"at {layers(least)} it is less again, {told_multiple}"
    return (
        f"but at {layers(least)}, with the same layers and more, it is within the noise ({told_multiple}): the error is"
        " the shallower model's alone, or does not reach the logits there"
    )


def between(rows: list[dict[str, Any]], jumps: Sequence[tuple]) -> list[list[dict[str, Any]]]:
    """The runs of depths that no jump parts."""
    runs: list[list[dict[str, Any]]] = [[]]
    starts = {id(two) for _, two in jumps}
    for row in rows:
        if id(row) in starts:
            runs.append([])
        runs[-1].append(row)
    return [run for run in runs if len(run) > 1]


def doubt(row: Mapping[str, Any]) -> str:
    """Cut models talk nonsense: their logits may be compared, their text says nothing."""
    if not row["nonsense_count"]:
        return ""
    where = f"on {row['nonsense_count']} or more of {row['prompts_count']} prompts"
    return f" (cut to {layers(row)} the reference itself makes no sense {where}: their text shows nothing)"


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
