"""Designs: cells that differ in the changes of their patch alone, to the last hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from db import query
from db.differences import Making, differences
from reports.proof.points import Point
from reports.proof.verdicts import CONFOUNDED, NOT_ENOUGH, Verdict

# What is measured: cells that differ in these are about something else.
OBJECT = ("model", "dtype", "layers", "prompts", "backend", "precision", "max_new_tokens", "threads")
# Numbers of two exports are the same finding while they are within this factor.
SAME = 1.1
SHOWN_DIFFERENCES = 4


@dataclass
class Design:
    """Cells that differ in their patch alone: by the set of changes really made, their rows. units: the changes that
    can be told apart, by the name they are shown under."""

    rows: dict[frozenset[str], dict[str, Any]]
    units: list[str]
    confounded: list[Verdict] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    on_top_of: str = ""  # the patch that all have
    untested: list[dict[str, Any]] = field(default_factory=list)

    @property
    def baseline(self) -> dict[str, Any] | None:
        return self.rows.get(frozenset())

    @property
    def any_row(self) -> dict[str, Any]:
        """A row that stands for what all have in common."""
        return self.baseline or next(iter(self.rows.values()))


def designs_of(rows: list[dict[str, Any]], made: Mapping[int, Making]) -> list[Design]:
    """Every design that the cells make, those with the most cells first."""
    objects: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        objects.setdefault(tuple(row[name] for name in OBJECT), []).append(row)
    found = [design for mine in objects.values() for design in designs_of_object(mine, made)]
    return sorted(found, key=lambda design: -len(design.rows))


def designs_of_object(rows: list[dict[str, Any]], made: Mapping[int, Making]) -> list[Design]:
    """The designs about one thing: one for each context (all but the patch) that has a baseline and a change, and one
    for each change that has a baseline in another context only, which proves nothing."""
    designs = []
    orphans: list[dict[str, Any]] = []
    contexts = contexts_of(rows, made)
    for context in contexts:
        points: dict[frozenset, dict[str, Any]] = {}
        for row in sorted(context, key=lambda row: row["cell"]):  # a later cell of the same changes counts
            points[made[row["cell"]].effective()] = row
        # Where all have some changes, they are proven on top of those.
        common = frozenset.intersection(*points)
        if common in points and len(points) > 1:
            design = design_of({effective - common: row for effective, row in points.items()})
            design.on_top_of = points[common]["patch"] if common else ""
            designs.append(design)
        elif frozenset() not in points:
            orphans += points.values()
    proven = {row["patch"] for design in designs for row in design.rows.values()}
    baselines = [row for context in contexts for row in context if not made[row["cell"]].effective()]
    designs += [confounded_design(row, baselines, made) for row in orphans if row["patch"] not in proven]
    for design in designs:
        design.confirmed = confirmations(design, rows, made)
    return designs


def contexts_of(rows: list[dict[str, Any]], made: Mapping[int, Making]) -> list[list[dict[str, Any]]]:
    """Rows that are the same in all but their patch, to the last hash.

    A failed cell does not know all (what the reference loaded, say); it stands
    in each context that it differs from in nothing that it knows.
    """
    contexts: dict[Any, list[dict[str, Any]]] = {}
    for row in (row for row in rows if row["status"] == "ok"):
        contexts.setdefault(made[row["cell"]].context(), []).append(row)
    whole = list(contexts.values())
    for row in (row for row in rows if row["status"] != "ok"):
        same = [c for c in whole if not differences(made[c[0]["cell"]], made[row["cell"]])]
        for context in same or [contexts.setdefault(made[row["cell"]].context(), [])]:
            context.append(row)
    return list(contexts.values())


def design_of(points: Mapping[frozenset, dict[str, Any]]) -> Design:
    """Changes that always come together are one unit, named by the patch that asks for them."""
    changes = sorted({change for effective in points for change in effective}, key=str)
    members: dict[tuple[bool, ...], list] = {}
    for change in changes:
        members.setdefault(tuple(change in effective for effective in points), []).append(change)
    names: dict[Any, str] = {}
    for group in members.values():
        alone = points.get(frozenset(group))
        name = alone["patch"] if alone is not None else "+".join(sorted(change for change, _ in group))
        if name in names.values():  # the same name for another edit
            name = f"{name} ({(group[0][1] or '')[:6]})"
        names |= dict.fromkeys(group, name)
    rows = {frozenset(names[change] for change in effective): row for effective, row in points.items()}
    order = [name for row in sorted(rows, key=len) for name in sorted(row)]
    return Design(rows, list(dict.fromkeys(order)))


def untested(design: Design, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells about the same thing whose end says nothing: a change among them must not go unmentioned."""
    mine, patches = design.any_row, {row["patch"] for row in design.rows.values()}
    same = (*OBJECT, "builder")
    newest = {row["patch"]: row for row in rows if all(row[name] == mine[name] for name in same)}
    return [row for patch, row in newest.items() if patch not in patches and row["status"] != query.PENDING]


def confounded_design(row: dict, baselines: list[dict], made: Mapping[int, Making]) -> Design:
    """A cell with a change whose only baselines differ in something else too."""
    name = row["patch"]
    if not baselines:
        verdict = Verdict(name, NOT_ENOUGH, "the baseline is missing", (frozenset(),))
        return Design({frozenset({name}): row}, [], [verdict])
    pairs = [(differences(made[base["cell"]], made[row["cell"]]), base) for base in baselines]
    others, base = min(pairs, key=lambda pair: (len(pair[0]), -pair[1]["cell"]))
    told = ", ".join(difference.told() for difference in others[:SHOWN_DIFFERENCES])
    more = f" and {len(others) - SHOWN_DIFFERENCES} more" if len(others) > SHOWN_DIFFERENCES else ""
    why = f"cell {base['cell']} and cell {row['cell']} differ in more than the patch: {told}{more}"
    return Design({frozenset(): base, frozenset({name}): row}, [], [Verdict(name, CONFOUNDED, why)])


def confirmations(design: Design, rows: list[dict[str, Any]], made: Mapping[int, Making]) -> list[str]:
    """Other builders that give the same numbers as a mended cell of a design, its changes made or there already."""
    if design.baseline is None or design.confounded:
        return []
    found = []
    for units, row in design.rows.items():
        point: Point = row["point"]
        if not units or not point.right or point.multiple is None:
            continue
        wanted = {name for name, _ in made[row["cell"]].effective()}
        for other in rows:
            theirs = made[other["cell"]]
            only_builder = all(d.what.startswith("builder") for d in differences(made[row["cell"]], theirs))
            has = {name for name, (status, _) in theirs.changes.items() if status in ("applied", "present")}
            if other["builder"] == row["builder"] or not only_builder or not wanted <= has:
                continue
            if same_numbers(row, other):
                what = f"nothing else in {row['builder']} contributed" if point.within else "what is left is in both"
                found.append(
                    f"{other['builder']} with {other['patch']} gives the numbers of {row['builder']} with"
                    f" {row['patch']} (cells {other['cell']} and {row['cell']}): {what}."
                )
    return list(dict.fromkeys(found))


def same_numbers(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two cells measured the same, rounding apart."""
    names = ("first_diff_least", "first_diff_largest", "diff_largest")
    if two["status"] != "ok" or any(row[name] is None for row in (one, two) for name in names):
        return False
    pairs = [sorted((one[name], two[name])) for name in names]
    return one["identical_count"] == two["identical_count"] and all(high <= SAME * low for low, high in pairs)


def name_of(row: Mapping[str, Any], units: Sequence[str], on_top_of: str) -> str:
    """An export of a design as a reader knows it: "0.14.1, as it is", "0.14.1 with only rope_fix"."""
    made = [on_top_of, *units] if on_top_of else list(units)
    only = "only " if len(made) == 1 and not on_top_of else ""
    return f"{row['builder']} with {only}{' and '.join(made)}" if made else f"{row['builder']}, as it is"
