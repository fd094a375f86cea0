"""The table that proves a root cause, a verdict for each suspected change, and what is missing for one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from db import detail, query
from db.differences import Making, differences, makings
from db.engine import open_database
from db.findings import is_finding
from db.output import markdown_code, markdown_table, markdown_text
from reports import commands, older
from reports.proof import verdicts
from reports.proof.verdicts import CONFOUNDED, NOT_ENOUGH, Verdict
from reports.sweep import MEASURED, from_prompts, measured, with_stored

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


def collect(
    db: str | None, filters: Mapping[str, Sequence[str]], sweep: str | None = None, experiment: str | None = None
) -> dict[str, Any]:
    """The report as data: {"designs": [{"object", "rows", "verdicts", "together", …}]}. Errors: `query.NotInDatabase`.

    Without a filter the latest sweep is taken.
    """
    engine = open_database(db, create=False)
    query.check_filters(engine, filters, [])
    wanted = sweep or (None if experiment or any(filters.values()) else "latest")
    sweep_id = query.sweep_id(engine, wanted) if wanted else None
    rows = query.cell_rows(engine, filters, sweep=sweep_id)
    remeasure = older.lines(engine, rows)
    rows = query.of_one_measurement(rows)
    asked = commands.asked_of(engine, sorted({row["sweep"] for row in rows}))
    if experiment:
        rows = [row for row in rows if commands.of_experiment(asked[row["sweep"]], experiment)]
    every, rows = rows, [row for row in rows if is_finding(row)]
    made = makings(engine, [row["cell"] for row in rows])
    # What never came to a patched copy of some sources is not known to be what was asked for.
    rows = [row for row in rows if made[row["cell"]].tree]
    prompts = detail.prompts_of(engine, sorted({row["result"] for row in rows if row["result"]}))
    designs = designs_of(rows, made)
    told = {row["cell"] for row in rows}
    for design in designs:
        design.untested = untested(design, [row for row in every if row["cell"] not in told])
    configs = detail.configs_of(engine, [design.any_row["cell"] for design in designs])
    engine.dispose()
    for row in rows:
        row |= from_prompts(prompts.get(row["result"], []), row)
    return {"designs": [plain(design, asked, configs) for design in designs], "remeasure": remeasure}


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
        verdict = Verdict(name, NOT_ENOUGH, "the baseline is missing", missing=(frozenset(),))
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
        point = verdicts.point_of(row)
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


def plain(design: Design, asked: Mapping[int, commands.Asked], configs: Mapping[int, dict]) -> dict[str, Any]:
    """A design as data, its verdicts decided."""
    points = {units: verdicts.point_of(row) for units, row in design.rows.items()}
    found = design.confounded or verdicts.judge(points, design.units)
    missing = [units for verdict in found for units in verdict.missing]
    any_row = design.any_row
    command = commands.missing(any_row, configs[any_row["cell"]], asked[any_row["sweep"]], missing) if missing else ""
    ordered = sorted(design.rows.items(), key=lambda item: (len(item[0]), item[1]["cell"]))
    return {
        "object": {name: any_row[name] for name in (*OBJECT, "builder", "runtime", "reference", "options")},
        "checkpoint_dtype": any_row["checkpoint_dtype"],
        "rows": [{**row, "units": sorted(units)} for units, row in ordered],
        "on_top_of": design.on_top_of,
        "untested": [{name: row[name] for name in ("cell", "patch", "status", "error")} for row in design.untested],
        "verdicts": [
            {
                "change": v.change,
                "word": v.word,
                "why": v.why,
                "share": v.share,
                "missing": [sorted(m) for m in v.missing],
            }
            for v in found
        ],
        "together": "" if design.confounded else verdicts.together(points, found),
        "confirmed": design.confirmed,
        "command": command,
    }


def markdown(report: dict[str, Any]) -> str:
    """For each design the seed's table, a verdict for each change, and what is missing."""
    designs = report["designs"]
    if not designs:
        return (
            "No cells differ in their patch: a proof needs a baseline and a change alone, such as"
            " `python -m runner -m builder=0.14.1 patch=none,rope_fix`."
        )
    return "\n\n".join(section(design) for design in designs)


def section(design: dict[str, Any]) -> str:
    about = design["object"]
    dtype = with_stored(about["dtype"], design["checkpoint_dtype"])
    title = f"## {about['model']}, {dtype}, builder {about['builder']}"
    rest = ", ".join(f"{n} {v}" for n, v in about.items() if n not in ("model", "dtype", "builder") and v)
    header = ["cell", "Export of the same checkpoint", *MEASURED]
    table = markdown_table(header, [line(row, design["on_top_of"]) for row in design["rows"]])
    verdict_rows = [[v["change"], v["word"], part(v["share"]), v["why"]] for v in design["verdicts"]]
    judged = markdown_table(["Change", "Verdict", "Share of log error", "Why"], verdict_rows)
    notes = [note for note in [design["together"], *design["confirmed"], senseless(design["rows"])] if note]
    notes += [
        f"Not tested: {row['patch']} (cell {row['cell']}): {row['status']}: {markdown_text(row['error'])}."
        for row in design["untested"]
    ]
    if design["command"]:
        then = (
            f"python -m reports proof --model {shlex.quote(about['model'])} --builder {shlex.quote(about['builder'])}"
        )
        notes.append(f"Missing, cheapest first: {markdown_code(design['command'])}, then `{then}`.")
    same = " Compared by hashes: sources, packages, checkpoint, prompts and machine are the same."
    confounded = any(v["word"] == CONFOUNDED for v in design["verdicts"])
    notes.append(f"All: {rest}.{'' if confounded else same}")
    return "\n".join([title, "", table, "", judged, "", *(f"- {note}" for note in notes)])


def senseless(rows: list[dict[str, Any]]) -> str:
    """That a reference makes no sense itself: its logits may be compared, its text shows nothing."""
    count = max((row["nonsense_count"] or 0 for row in rows), default=0)
    return (
        f"The reference itself makes no sense in {count} prompts: numbers count there, texts do not." if count else ""
    )


def part(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def line(row: dict[str, Any], on_top_of: str) -> list[Any]:
    """One export: what it is, and its numbers."""
    units = [on_top_of, *row["units"]] if on_top_of else row["units"]
    made = ("only " if len(units) == 1 and not on_top_of else "") + " and ".join(units)
    name = f"{row['builder']} with {made}" if made else f"{row['builder']}, as it is"
    return [row["cell"], name, *measured(row)]
