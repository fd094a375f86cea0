"""A proof of a factor: cells that differ in it alone, and what each of its values is beside a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from db import detail
from db.differences import Making
from db.findings import why_unknown
from db.models import AXES, FACTORS
from db.output import markdown_code, markdown_table
from reports import commands
from reports.notes import cut
from reports.proof import verdicts
from reports.proof.confounders import Apart, apart, cross
from reports.proof.points import Point, PromptPoint, takes
from reports.proof.reserved import beside_numbers
from reports.proof.verdicts import CONFOUNDED, NOT_ENOUGH, Verdict
from reports.sweep import MEASURED, measured, with_stored

# Factors that each have a noise floor of their own: multiples are compared, not differences.
OWN_FLOOR = {"model", "dtype", "layers", "precision", "prompts", "reference", "max_new_tokens", "threads", "options"}
# Of cells that differ in these too, the report says so; of others it says nothing.
MAKERS = ("builder", "patch", "runtime", "reference", "backend")
SHOWN = 6


@dataclass
class Group:
    """Cells that are asked for alike but for the factor: its values, with their cells, the oldest first; and values of
    which nothing is known, with their newest cell."""

    rest: Mapping[str, str]
    values: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unknown: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Judged:
    """A value of the factor beside the baseline: its cell, its verdict, what changed, and a command where one helps."""

    value: str
    verdict: Verdict
    row: dict[str, Any] | None = None
    apart: Apart | None = None
    command: str = ""


def inside(options: str | None, factor: str) -> tuple[str, str]:
    """Options that reach inside a factor, and the others."""
    words = (options or "").split()
    mine = [word for word in words if word.split(".")[0] == factor]
    return " ".join(mine), " ".join(word for word in words if word not in mine)


def value_of(row: Mapping[str, Any], factor: str) -> str:
    """A cell's value of the factor, what was asked of its insides included."""
    if factor == "options":
        return row["options"] or "as they come"
    mine, _ = inside(row["options"], factor)
    return f"{row[factor]} {mine}".strip()


def rest_of(row: Mapping[str, Any], factor: str) -> dict[str, str]:
    """All that was asked of a cell but the factor."""
    found = {name: row[name] for name in FACTORS if name != factor}
    return found | ({} if factor == "options" else {"options": inside(row["options"], factor)[1]})


def groups_of(rows: Iterable[dict[str, Any]], unknown: Iterable[dict[str, Any]], factor: str) -> list[Group]:
    found: dict[tuple, Group] = {}
    for row in sorted(rows, key=lambda row: row["cell"]):
        rest = rest_of(row, factor)
        group = found.setdefault(tuple(rest.items()), Group(rest))
        group.values.setdefault(value_of(row, factor), []).append(row)
    for row in sorted(unknown, key=lambda row: row["cell"]):
        group = found.get(tuple(rest_of(row, factor).items()))
        if group and value_of(row, factor) not in group.values:
            group.unknown[value_of(row, factor)] = row
    return list(found.values())


def designs_of(
    engine: Engine,
    rows: list[dict[str, Any]],
    unknown: list[dict[str, Any]],
    made: Mapping[int, Making],
    asked: Mapping[int, commands.Asked],
    factor: str,
    baseline: str | None,
) -> list[dict[str, Any]]:
    """A design for each group with more than one value, those with the most values first; where there is none, what
    pairs of cells differ in beside the factor. rows: findings, each with its `point`. unknown: cells that are none."""
    groups = groups_of(rows, unknown, factor)
    keys = {made[row["cell"]].parts.get("prompts") for row in rows} - {None}
    ids = detail.ids_of(engine, sorted(keys))
    configs = detail.configs_of(engine, [row["cell"] for row in [*rows, *unknown]])

    def between(one: Mapping[str, Any], two: Mapping[str, Any]) -> Apart:
        mine, theirs = made[one["cell"]], made[two["cell"]]
        given = [ids.get(making.parts.get("prompts") or "") for making in (mine, theirs)]
        return apart(mine, theirs, factor, one["backend"], given[0] is not None and given[0] == given[1])

    def runs(row: Mapping[str, Any], settings: Sequence[str]) -> str:
        return commands.with_settings(row, configs[row["cell"]], asked[row["sweep"]], settings)

    several = [
        group for group in groups if len(group.values) + len(group.unknown) > 1 and baseline in (None, *group.values)
    ]
    several.sort(key=lambda group: -len(group.values))
    designs = []
    for group in several:
        base = base_of(group, baseline, between)
        judged = [
            judge(value, cells, base, between, runs, factor)
            for value, cells in group.values.items()
            if value != value_of(base, factor)
        ]
        judged += [
            Judged(value, Verdict(value, NOT_ENOUGH, f"cell {row['cell']}: {why_unknown(row)}"), command=runs(row, []))
            for value, row in group.unknown.items()
        ]
        judged += lacking(group, groups, base, runs, configs, factor)
        designs.append(plain(group, base, judged, factor))
    return designs or [
        plain(group, base, [judged], factor)
        for group, base, judged in strangers(groups, between, runs, configs, factor)
    ]


def base_of(group: Group, baseline: str | None, between: Any) -> dict[str, Any]:
    """The baseline's cell: of the value asked for, or of the one furthest from the reference, that one whose partners
    differ from it in the least else."""

    def far(row: Mapping[str, Any]) -> tuple:
        return verdicts.rank({frozenset(): row["point"]}, frozenset())[:-2]

    value = baseline or max(group.values, key=lambda value: far(group.values[value][-1]))
    others = [cells for name, cells in group.values.items() if name != value]

    def strange(row: Mapping[str, Any]) -> int:
        return sum(min(len(between(row, other).others) for other in cells) for cells in others)

    return min(group.values[value], key=lambda row: (strange(row), -row["cell"]))


def judge(
    value: str, cells: list[dict[str, Any]], base: dict[str, Any], between: Any, runs: Any, factor: str
) -> Judged:
    """A value's verdict, by that of its cells that differs from the baseline in the least else."""
    found = [(between(base, row), row) for row in cells]
    what, row = min(found, key=lambda pair: (len(pair[0].others), -pair[1]["cell"]))
    points = comparable(base["point"], row["point"])
    if not what.others:
        known = dict(zip((frozenset(), frozenset({value})), points, strict=True))
        (verdict,) = verdicts.judge(known, [value])
        return Judged(value, verdict, row, what)
    settings = cross(factor, what.pins) if len(what.pins) == len(what.others) else []  # else it would decide nothing
    why = f"cells {base['cell']} and {row['cell']} differ in more than the {factor}: {shown(what.others)}"
    if all(point.measured for point in points):
        why += f"; together {takes(*points)}"
    command = runs(row, settings) if settings else ""
    return Judged(value, Verdict(value, CONFOUNDED, why), row, what, command)


def shown(others: Sequence[str]) -> str:
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    return ", ".join(others[:SHOWN]) + more


def comparable(before: Point, after: Point) -> tuple[Point, Point]:
    """Two points with prompts in common; where there are none (two sets of prompts) each by its worst prompt."""
    names = {prompt.name for prompt in before.prompts} & {prompt.name for prompt in after.prompts}
    if names or not (before.ok and after.ok):
        return before, after
    return worst(before), worst(after)


def worst(point: Point) -> Point:
    known = [prompt for prompt in point.prompts if prompt.measured] or list(point.prompts)
    if not known:
        return point
    text = max((prompt.text for prompt in point.prompts if prompt.text is not None), default=None)
    return Point(
        True, (PromptPoint("the worst prompt", point.within, point.multiple, text, known[0].limit, point.finite),)
    )


def lacking(
    group: Group, groups: Sequence[Group], base: dict[str, Any], runs: Any, configs: Mapping[int, dict], factor: str
) -> list[Judged]:
    """Values that cells about the same thing have, and that none of this group has."""
    about = {name: value for name, value in group.rest.items() if name not in MAKERS}
    found: dict[str, dict[str, Any]] = {}
    for other in groups:
        if all(other.rest.get(name) == value for name, value in about.items()):
            found |= {
                value: cells[-1]
                for value, cells in other.values.items()
                if value not in {**group.values, **group.unknown}
            }
    return [
        Judged(
            value,
            Verdict(value, NOT_ENOUGH, f"there is no cell with it beside cell {base['cell']}", (frozenset({value}),)),
            command=runs(base, settings_of(row, configs[row["cell"]], factor)),
        )
        for value, row in found.items()
    ]


def settings_of(row: Mapping[str, Any], config: Mapping[str, Any], factor: str) -> list[str]:
    """The settings that give another cell this one's value of the factor."""
    if factor == "options":
        return (row["options"] or "").split()
    words = commands.pinned(factor, row, config)
    keys = {commands.key_of(word) for word in words}
    return words + [word for word in inside(row["options"], factor)[0].split() if commands.key_of(word) not in keys]


def strangers(
    groups: Sequence[Group], between: Any, runs: Any, configs: Mapping[int, dict], factor: str
) -> list[tuple[Group, dict[str, Any], Judged]]:
    """Where no cells differ in the factor alone: for each group the nearest that has another value of it, which proves
    nothing, with the command of the cell that would."""
    found, seen = [], set()
    for group in groups:
        (value, cells), *_ = group.values.items()
        others = [
            (sum(other.rest[name] != group.rest[name] for name in group.rest), other)
            for other in groups
            if value not in other.values
        ]
        if not others:
            continue
        _, other = min(others, key=lambda pair: pair[0])
        (theirs, rows), *_ = other.values.items()
        if frozenset({value, theirs}) in seen:
            continue
        seen.add(frozenset({value, theirs}))
        base, row = cells[-1], rows[-1]
        what = between(base, row)
        why = f"cells {base['cell']} and {row['cell']} differ in more than the {factor}: {shown(what.others)}"
        command = runs(base, settings_of(row, configs[row["cell"]], factor))
        found.append((group, base, Judged(theirs, Verdict(theirs, CONFOUNDED, why), row, what, command)))
    return found


def plain(group: Group, base: dict[str, Any], judged: Sequence[Judged], factor: str) -> dict[str, Any]:
    """A design as data."""
    rows = [base, *(one.row for one in judged if one.row)]
    return {
        "object": dict(group.rest),
        "checkpoint_dtype": base["checkpoint_dtype"],
        "baseline": value_of(base, factor),
        "rows": [
            {name: value for name, value in row.items() if name != "point"} | {"value": value_of(row, factor)}
            for row in rows
        ],
        "verdicts": [
            {
                "change": one.value,
                "word": one.verdict.word,
                "why": one.verdict.why,
                "changed": list(one.apart.own) if one.apart else [],
                "confounders": list(one.apart.others) if one.apart else [],
                "along": list(one.apart.along) if one.apart else [],
                "command": one.command,
            }
            for one in judged
        ],
    }


def markdown(report: Mapping[str, Any]) -> str:
    """For each design its cells, a verdict for each value beside the baseline, and what decides what is not decided."""
    factor = report["factor"]
    if not report["designs"]:
        example = f"{factor}=A,B" if factor in AXES[:-1] else "backend.attention=eager,sdpa backend=transformers"
        return (
            f"No cells differ in their {factor}: a proof of it needs two values of it with all else the same, such as"
            f" `python -m runner -m {example}`, and a filter such as `--model` to take more than the latest sweep."
        )
    return "\n\n".join(section(design, factor) for design in report["designs"])


def section(design: Mapping[str, Any], factor: str) -> str:
    about = design["object"]
    dtype = [with_stored(about["dtype"], design["checkpoint_dtype"])] if "dtype" in about else []
    head = ", ".join([*([about["model"]] if "model" in about else []), *dtype])
    title = f"## {head}: {factor}, beside {design['baseline']}"
    table = markdown_table(
        ["cell", factor.capitalize(), *MEASURED],
        [[row["cell"], row["value"], *measured(row)] for row in design["rows"]],
    )
    judged = [[v["change"], v["word"], shown(v["changed"]), v["why"]] for v in design["verdicts"]]
    notes = [f"The baseline is {factor} {design['baseline']}; each value is one change from it, and judged alone."]
    if factor in OWN_FLOOR:
        notes.append("Each cell is in multiples of its own reference's noise floor.")
    if along := list(dict.fromkeys(told.partition(" (")[0] for v in design["verdicts"] for told in v["along"])):
        notes.append(f"Changed along, and computing none of these numbers: {shown(along)}.")
    notes += beside_numbers(design["rows"]) + cut(design["rows"])
    for verdict in design["verdicts"]:
        if verdict["command"]:
            does = "decides between them" if verdict["word"] == CONFOUNDED else "is missing"
            notes.append(f"{verdict['change']}: what {does} is {markdown_code(verdict['command'])}.")
    rest = ", ".join(f"{name} {value}" for name, value in about.items() if value and name not in ("model", "dtype"))
    same = any(verdict["word"] not in (CONFOUNDED, NOT_ENOUGH) for verdict in design["verdicts"])
    hashes = " Where nothing is confounded all else is the same, by hashes and resolved packages." if same else ""
    notes.append(f"All: {rest}.{hashes}")
    table2 = markdown_table([factor.capitalize(), "Verdict", "What changed", "Why"], judged)
    return "\n".join([title, "", table, "", table2, "", *(f"- {note}" for note in notes)])
