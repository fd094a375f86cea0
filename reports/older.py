"""Results of an older version of the measuring: which a report leaves out or shows, and what measures them again.

Numbers of two versions do not belong in one table (`db.query.of_one_measurement`), but what is left out is told.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, select

from db import detail, items, query
from db.differences import in_chunks
from db.engine import open_database, reading
from db.models import MEASUREMENT_VERSION, Cell, Result
from db.output import markdown_code
from reports import commands
from reports.table import cells

MOST_COMMANDS = 3


@dataclass(frozen=True)
class Measured:
    """A cell's place: its sweep, what tells it from other cells (`hash`), and the version of its measuring."""

    cell: int
    sweep: int
    hash: str
    version: int


def lines(engine: Engine, rows: Sequence[Mapping[str, Any]], shown: bool | None = None) -> list[str]:
    """A sentence for each sweep with cells of an older version, with the commands that measure them again.

    rows: of `query.cell_rows`, all that the report was asked for, before any is left out. shown: whether the report
    has them all in its table; None: those of the rows' newest version, as `query.of_one_measurement` has it; False:
    those of the newest version that is stored. Of an older version only the
    newest cell of its kind counts, and none that a newer version measured too.
    """
    old = superseded_not(engine, [row["cell"] for row in rows if row["status"] == "ok"])
    if not old:
        return []
    newest = newest_version(engine)
    of_rows = {row["cell"]: row for row in rows}
    asked = commands.asked_of(engine, sorted({one.sweep for one in old}))
    configs = detail.configs_of(engine, [one.cell for one in old])
    groups: dict[tuple[int, int], list[Measured]] = {}
    for one in old:
        groups.setdefault((one.sweep, one.version), []).append(one)
    # The version of the numbers that a report shows, where it shows one version alone.
    here = query.newest_measurement(list(rows)) if shown is None else stored_version(engine)
    told = []
    for (sweep, version), mine in sorted(groups.items()):
        seen = shown or version == here
        what = f"shown, though the newest is {newest}" if seen else f"left out beside those of version {here}"
        how = again(engine, sweep, [of_rows[one.cell] for one in mine], configs, asked[sweep])
        names = cells(one.cell for one in mine).capitalize()
        told.append(f"{names}: measured by version {version}, {what}; measure again: {how}")
    return told


def newest_version(engine: Engine) -> int:
    """The newest version of the measuring: this program's, or a newer one that a result has."""
    return max(MEASUREMENT_VERSION, stored_version(engine))


def stored_version(engine: Engine) -> int:
    """The newest version that any result has; 0 without one."""
    with reading(engine) as session:
        return session.scalar(select(func.max(Result.measurement_version)).where(Result.status == "ok")) or 0


def superseded_not(engine: Engine, ids: Sequence[int]) -> list[Measured]:
    """Of some cells those of an older version that no newer one has measured, the newest of each kind."""
    newest = newest_version(engine)
    columns = select(Cell.id, Cell.sweep_id, Cell.hash, Result.measurement_version).join(Result)
    columns = columns.where(Result.status == "ok")
    with reading(engine) as session:
        found = [Measured(*row) for row in in_chunks(session, columns, Cell.id, sorted(ids))]
        old = {one.hash: one for one in sorted(found, key=lambda one: one.cell) if one.version < newest}
        again = {
            row.hash
            for row in in_chunks(session, columns.where(Result.measurement_version == newest), Cell.hash, sorted(old))
        }
    return sorted((one for hash, one in old.items() if hash not in again), key=lambda one: one.cell)


def again(
    engine: Engine,
    sweep: int,
    rows: Sequence[Mapping[str, Any]],
    configs: Mapping[int, Mapping[str, Any]],
    asked: commands.Asked,
    extra: Sequence[str] = (),
) -> str:
    """The commands that measure some cells of a sweep: the sweep's own where they are all of it. extra: further
    overrides."""
    with reading(engine) as session:
        all_of_it = session.scalar(select(func.count(Cell.id)).where(Cell.sweep_id == sweep)) == len(rows)
    if all_of_it:
        return whole(asked, extra)
    found = list(dict.fromkeys(of_cell(row, configs[row["cell"]], asked, extra) for row in rows))
    more = f" and {len(found) - MOST_COMMANDS} more" if len(found) > MOST_COMMANDS else ""
    return ", ".join(markdown_code(command) for command in found[:MOST_COMMANDS]) + more


def whole(asked: commands.Asked, extra: Sequence[str] = ()) -> str:
    """A sweep's own command."""
    kept = [word for word in asked.overrides if commands.key_of(word) != "rerun"]
    return markdown_code(shlex.join(["python", "-m", "runner", *kept, *extra]))


def of_cell(row: Mapping[str, Any], config: Mapping[str, Any], asked: commands.Asked, extra: Sequence[str] = ()) -> str:
    """The command of one cell, its patch included."""
    value, *settings = commands.patch_words(row["patch"])
    return commands.for_cell(row, config, asked, [f"patch={value}", *settings, *extra])


def below(report: Mapping[str, Any], text: str) -> str:
    """A report's markdown with the sentences of its "unknown" (`reports.unknown`) and "remeasure" below."""
    sentences = [*(report.get("unknown") or ()), *(report.get("remeasure") or ())]
    told = "\n".join(f"- {line}" for line in sentences)
    if not told:
        return text
    last = text.rstrip("\n").rpartition("\n")[2]
    return f"{text}{chr(10) if last.startswith('- ') else chr(10) * 2}{told}"


def of_builders(engine: Engine, filters: Mapping[str, Sequence[str]], sweep: str | None = None) -> list[str]:
    """The sentences about cells that a history leaves out (`db.history.history_rows`)."""
    rows = query.cell_rows(engine, filters, sweep=query.sweep_id(engine, sweep) if sweep else None)
    return lines(engine, [row for row in rows if row["builder"] != "none"], shown=False)


def of_claims(engine: Engine, claims: Sequence[Mapping[str, Any]]) -> list[str]:
    """The sentences about the cells that the filters of claims find."""
    found = {row["cell"]: row for claim in claims for row in query.cell_rows(engine, claim["filters"])}
    return lines(engine, list(found.values()))


def of_claim(db: str | None, name: str) -> list[str]:
    """The sentences about the cells of one claim."""
    engine = open_database(db, create=False)
    told = of_claims(engine, [claim for claim in items.claim_rows(engine) if claim["name"] == name])
    engine.dispose()
    return told
