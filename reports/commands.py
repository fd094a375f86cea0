"""Commands that would run what is missing, made from those that ran what is there."""

from __future__ import annotations

import re
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


def for_cell(row: Mapping[str, Any], config: Mapping[str, Any], asked: Asked, extra: Iterable[str] = ()) -> str:
    """The command that runs a cell alone: its sweep's, each factor that varied there fixed to the cell's value."""
    inside = [key_of(o).split(".")[0] for o in asked.overrides if "." in key_of(o) and "," in o]
    varying = dict.fromkeys([*asked.varying, *(axis for axis in inside if axis in FACTORS)])
    fixed = [word for factor in varying if factor != "patch" for word in pinned(factor, row, config)]
    kept = [
        override
        for override in asked.overrides
        if key_of(override) not in ABOUT_CELLS and key_of(override).split(".")[0] not in ("patch", *varying)
    ]
    # An experiment may have suspects and rules of its own.
    free = ["suspects=[]", "exclude=[]"] if any("experiment=" in o for o in kept) else []
    multirun = [] if any(o in ("-m", "--multirun") for o in kept) else ["-m"]
    return shlex.join(["python", "-m", "runner", *multirun, *kept, *fixed, *free, *extra])


def with_settings(row: Mapping[str, Any], config: Mapping[str, Any], asked: Asked, settings: Sequence[str]) -> str:
    """The command that runs a cell with its patch and some settings changed: they take the place of what was asked."""
    patch = patch_words(row["patch"]) if row["patch"] != "none" else []
    new = [*([f"patch={patch[0]}", *patch[1:]] if patch else []), *settings]
    keys = {key_of(word) for word in new}
    words = [word for word in shlex.split(for_cell(row, config, asked)) if key_of(word) not in keys]
    keys |= {key_of(word) for word in words}
    # What varied inside a factor is in no list of the sweep's that fits this cell.
    own = [word for word in (row["options"] or "").split() if key_of(word) not in keys]
    return shlex.join([*words, *own, *new])


def pinned(factor: str, row: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The overrides that give a factor the value that a cell has: names alone do not, for folders and refs."""
    part = config.get(factor) or {}
    if factor == "model" and str(part.get("path", "")) != f"checkpoints/{part.get('name')}":
        return ["model=path", f"model.path={quoted(part.get('path') or row['model'])}"]
    if factor == "builder" and row[factor] == "none":
        return []
    if factor == "builder":
        more = [f"builder.{key}={quoted(part[key])}" for key in ("transformers", "as_of") if part.get(key)]
        if part.get("kind") == "git":
            repo = [f"builder.repo={quoted(part['repo'])}"] if part.get("repo") else []
            return ["builder=main", f"builder.ref={quoted(part.get('ref') or row['builder'])}", *repo, *more]
        if part.get("kind") == "path":
            return ["builder=path", f"builder.path={quoted(part.get('path') or row['builder'])}", *more]
        return [f"builder={row[factor]}", *more]
    if factor == "runtime":  # named like its file, with blanks for a reader
        return [f"runtime={quoted(row[factor].replace(' ', '_'))}"]
    return [f"{factor}={quoted(str(row[factor]))}"]


def missing(row: Mapping[str, Any], config: Mapping[str, Any], asked: Asked, wanted: Sequence[Iterable[str]]) -> str:
    """The command for the sets of changes that a design lacks, the cheapest (fewest changes) first.

    A diff has no name that could stand in a list with others: a set with one is
    left to the reader.
    """
    sets = sorted({frozenset(units) for units in wanted}, key=lambda units: (len(units), sorted(units)))
    named = [patch_words("+".join(sorted(units)) or "none") for units in sets]
    plain = [words[0] for words in named if len(words) == 1]
    if plain:
        return for_cell(row, config, asked, [f"patch={','.join(plain)}"])
    single = next((words for units, words in zip(sets, named, strict=True) if len(units) == 1), None)
    return for_cell(row, config, asked, [f"patch={single[0]}", *single[1:]]) if single else ""


def patch_words(label: str) -> list[str]:
    """The value of `patch` that makes a label, and the settings it needs beside it."""
    chosen, settings = [], []
    for name in label.removesuffix(" reversed").split("+"):
        if number := re.fullmatch(r"pr-(\d+)", name):
            chosen.append("pr")
            settings.append(f"patch.number={number[1]}")
        elif ".." in name:
            old, _, new = name.partition("..")
            chosen.append("diff")
            settings += [f"patch.from={quoted(old)}", f"patch.to={quoted(new)}"]
        else:
            chosen.append(quoted(name))
    settings += ["patch.reverse=true"] if label.endswith(" reversed") else []
    return [chosen[0] if len(chosen) == 1 else f"[{','.join(chosen)}]", *settings]


def quoted(value: str) -> str:
    """A value as Hydra's overrides take it."""
    if re.fullmatch(r"[\w.+/:@%-]+", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
