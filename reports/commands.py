"""Commands that would run what is missing, made from those that ran what is there."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, select

from db.differences import in_chunks
from db.engine import reading
from db.models import FACTORS, Cell, Sweep

# Keys that decide which cells a sweep has, and how often they are run: a command for other cells says that itself.
ABOUT_CELLS = ("patch", "suspects", "exclude", "rerun", "action", "allow_failed")


@dataclass(frozen=True)
class Asked:
    """A sweep's command line, and the factors that its cells differ in."""

    overrides: Sequence[str]
    varying: Sequence[str]


def asked_of(engine: Engine, sweeps: Sequence[int]) -> dict[int, Asked]:
    """What some sweeps were asked, by sweep."""
    columns = [getattr(Cell, factor) for factor in FACTORS]
    with reading(engine) as session:
        overrides = {row.id: row.overrides for (row,) in in_chunks(session, select(Sweep), Sweep.id, sweeps)}
        values: dict[int, list[set[str]]] = {}
        query = select(Cell.sweep_id, *columns).distinct()
        for sweep, *found in in_chunks(session, query, Cell.sweep_id, sweeps):
            sets = values.setdefault(sweep, [set() for _ in FACTORS])
            for n, value in enumerate(found):
                sets[n].add(value)
    return {
        sweep: Asked(
            overrides[sweep], [f for f, there in zip(FACTORS, values.get(sweep, []), strict=False) if len(there) > 1]
        )
        for sweep in sweeps
    }


def of_experiment(asked: Asked, name: str) -> bool:
    """Whether a sweep was that of an experiment file."""
    return any(override.lstrip("+") == f"experiment={name}" for override in asked.overrides)


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def for_cell(row: Mapping[str, Any], asked: Asked, extra: Iterable[str] = ()) -> str:
    """The command that runs a cell alone: its sweep's, each factor that varied there fixed to the cell's value."""
    kept = [o for o in asked.overrides if key_of(o) not in (*ABOUT_CELLS, *asked.varying)]
    fixed = [f"{factor}={row[factor]}" for factor in asked.varying if factor != "patch"]
    multirun = [] if any(o in ("-m", "--multirun") for o in kept) else ["-m"]
    return shlex.join(["python", "-m", "runner", *multirun, *kept, *fixed, *extra])


def missing(row: Mapping[str, Any], asked: Asked, wanted: Sequence[Iterable[str]]) -> str:
    """The command for the sets of changes that a design lacks, the cheapest (fewest changes) first."""
    sets = sorted({frozenset(units) for units in wanted}, key=lambda units: (len(units), sorted(units)))
    values = []
    for units in sets:
        names = [part for unit in sorted(units) for part in unit.split("+")]
        values.append("none" if not names else names[0] if len(names) == 1 else f"[{','.join(names)}]")
    return for_cell(row, asked, [f"patch={','.join(values)}"])
