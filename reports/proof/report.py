"""The table that proves a root cause, a verdict for each suspected change, and what is missing for one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from db import detail, query
from db.differences import makings
from db.engine import open_database
from db.findings import is_finding
from db.output import markdown_code, markdown_table, markdown_text
from db.reserved import hidden_constants, reservations
from reports import commands, older, unknown
from reports.notes import cut
from reports.proof import factors, verdicts
from reports.proof.designs import OBJECT, Design, designs_of, name_of, untested
from reports.proof.points import listed, point_of
from reports.proof.reserved import beside_numbers
from reports.proof.shares import Shares, shares_of
from reports.proof.verdicts import CONFOUNDED
from reports.sweep import MEASURED, from_prompts, measured, with_stored


def collect(
    db: str | None,
    filters: Mapping[str, Sequence[str]],
    sweep: str | None = None,
    experiment: str | None = None,
    factor: str = "patch",
    baseline: str | None = None,
) -> dict[str, Any]:
    """The report as data: {"factor", "designs": [{"object", "rows", "verdicts", "together", …}]}.

    factor: what the cells of a design differ in; of another than the patch, `baseline` is the value that the others are
    held to, by default the one furthest from the reference. Without a filter the latest sweep is taken. Errors:
    `query.NotInDatabase`.
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
    not_known = unknown.lines(engine, rows)
    every, rows = rows, [row for row in rows if is_finding(row)]
    made = makings(engine, [row["cell"] for row in rows])
    # What never came to a patched copy of some sources is not known to be what was asked for.
    rows = [row for row in rows if made[row["cell"]].tree or row["builder"] == "none"]
    prompts = detail.prompts_of(engine, sorted({row["result"] for row in rows if row["result"]}))
    for row in rows:
        mine = prompts.get(row["result"], [])
        row |= {"point": point_of(row, mine)} | from_prompts(mine, row)
    if factor != "patch":
        if baseline is not None:
            query.refuse_absent("--baseline", [baseline], {factors.value_of(row, factor) for row in rows})
        found = factors.designs_of(
            engine, rows, [row for row in every if not is_finding(row)], made, asked, factor, baseline
        )
        engine.dispose()
        return {"factor": factor, "designs": found, "remeasure": remeasure, "unknown": not_known}
    rows = [row for row in rows if row["builder"] != "none"]
    designs = designs_of(rows, made)
    told = {row["cell"] for row in rows}
    for design in designs:
        design.untested = untested(design, [row for row in every if row["cell"] not in told])
    configs = detail.configs_of(engine, [design.any_row["cell"] for design in designs])
    engine.dispose()
    found = [plain(design, asked, configs) for design in designs]
    return {"factor": factor, "designs": found, "remeasure": remeasure, "unknown": not_known}


def plain(design: Design, asked: Mapping[int, commands.Asked], configs: Mapping[int, dict]) -> dict[str, Any]:
    """A design as data, its verdicts decided."""
    points = {units: row["point"] for units, row in design.rows.items()}
    found = design.confounded or verdicts.judge(points, design.units)
    missing = [units for verdict in found for units in verdict.missing]
    any_row = design.any_row
    best = verdicts.best_set({units: point for units, point in points.items() if point.measured})
    named = name_of(any_row, [], design.on_top_of)
    shares = Shares() if design.confounded else shares_of(points, design.units, best, named)
    command = commands.missing(any_row, configs[any_row["cell"]], asked[any_row["sweep"]], missing) if missing else ""
    ordered = sorted(design.rows.items(), key=lambda item: (len(item[0]), item[1]["cell"]))
    return {
        "object": {name: any_row[name] for name in (*OBJECT, "builder", "runtime", "reference", "options")},
        "checkpoint_dtype": any_row["checkpoint_dtype"],
        "rows": [bare(row) | {"units": sorted(units)} for units, row in ordered],
        "on_top_of": design.on_top_of,
        "untested": [{name: row[name] for name in ("cell", "patch", "status", "error")} for row in design.untested],
        "verdicts": [
            {
                "change": v.change,
                "word": v.word,
                "why": v.why,
                "share": shares.of.get(v.change),
                "missing": [sorted(m) for m in v.missing],
            }
            for v in found
        ],
        "together": "" if design.confounded else complete(points, design, shares.of, best),
        "shares": shares.told,
        "confirmed": design.confirmed,
        "command": command,
    }


def complete(points: Mapping, design: Design, shares: Mapping[str, float], best: frozenset[str]) -> str:
    """What the changes come to together; where a constant of the best export is wrong, that is part of it."""
    said = verdicts.together(points, design.units, shares)
    if best not in design.rows:
        return said
    if hidden := hidden_constants(design.rows[best]):
        said = said.replace(verdicts.COMPLETE, f"{verdicts.COMPLETE}, and {hidden} that they do not show")
    if said and (others := reservations(design.rows[best])):
        said = f"{said} Beside its numbers: {'; '.join(others)}."
    return said


def bare(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as plain data, with the prompts on which the reference makes no sense."""
    senseless = [prompt.name for prompt in row["point"].prompts if prompt.text is None]
    return {name: value for name, value in row.items() if name != "point"} | {"senseless": senseless}


def markdown(report: dict[str, Any]) -> str:
    """For each design the seed's table, a verdict for each change, and what is missing."""
    designs = report["designs"]
    if report.get("factor", "patch") != "patch":
        return factors.markdown(report)
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
    said = [design["together"], design["shares"], *design["confirmed"], senseless(design["rows"]), *cut(design["rows"])]
    notes = [note for note in said if note] + beside_numbers(design["rows"])
    notes += [
        f"Not tested: {row['patch']} (cell {row['cell']}): {row['status']}: {markdown_text(row['error'])}."
        for row in design["untested"]
    ]
    if design["command"]:
        then = (
            f"python -m reports proof --model {shlex.quote(about['model'])} --builder {shlex.quote(about['builder'])}"
        )
        notes.append(f"Missing, cheapest first: {markdown_code(design['command'])}, then `{then}`.")
    same = (
        " Compared by hashes: the builder's sources before a patch, packages, checkpoint, prompts and machine are the"
        " same."
    )
    confounded = any(v["word"] == CONFOUNDED for v in design["verdicts"])
    notes.append(f"All: {rest}.{'' if confounded else same}")
    return "\n".join([title, "", table, "", judged, "", *(f"- {note}" for note in notes)])


def senseless(rows: list[dict[str, Any]]) -> str:
    """That a reference makes no sense itself: its logits may be compared, its text shows nothing."""
    names = list(dict.fromkeys(name for row in rows for name in row["senseless"]))
    return (
        f"The reference itself makes no sense on {listed(names)}: the numbers count there, texts do not."
        if names
        else ""
    )


def part(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def line(row: dict[str, Any], on_top_of: str) -> list[Any]:
    """One export: what it is, and its numbers."""
    return [row["cell"], name_of(row, row["units"], on_top_of), *measured(row)]
