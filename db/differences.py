"""What differs between two cells: everything that could decide a result, from hashes and resolved packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from db.detail import ROLES
from db.engine import reading
from db.models import FACTORS, Cell, ChangeOutcome, Environment, Machine, Package, Result

# The packages that a reader asks for first.
TELLING = ("transformers", "torch", "onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "tokenizers", "numpy")
# Columns of a cell and of its result that say what it was made of, with the word for a reader.
MADE_OF = {
    "source_tree": "builder sources",
    "checkpoint_hash": "checkpoint",
    "files_dtype": "files' dtype",
    "layer_count": "layer count",
    "prompts_key": "prompts",
    "measurement_version": "measurement version",
    "thresholds": "thresholds",
    "noise_key": "noise floor",
}
# A noise floor is another where one of these is: it is told where it differs by itself.
OF_THE_FLOOR = {
    "model", "dtype", "layers", "precision", "prompts", "reference", "max_new_tokens", "threads", "options",
    "checkpoint", "files' dtype", "layer count", "measurement version",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same: its name, and what it is on either side."""

    what: str
    one: Any
    two: Any

    def told(self) -> str:
        return f"{self.what} ({short(self.one)} / {short(self.two)})"


def short(value: Any) -> str:
    """A value as a reader takes it in: hashes by their first eight digits."""
    text = "nothing" if value in (None, "") else str(value)
    return text[:8] if len(text) == 64 and all(c in "0123456789abcdef" for c in text) else text


@dataclass(frozen=True)
class Making:
    """What a cell was made of. `parts` by name; `environments` by role: {package: version}; `changes` by name: what
    became of each, and the hash of what it does."""

    cell: int
    tree: str | None  # of the patched sources
    parts: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, str]]
    changes: Mapping[str, tuple[str, str | None]]

    def context(self) -> tuple:
        """All that a cell was made of save its patch, as one value."""
        parts = tuple(sorted((name, str(value)) for name, value in self.parts.items()))
        return parts, *(tuple(sorted(self.environments[role].items())) for role in ROLES)

    def effective(self) -> frozenset[tuple[str, str | None]]:
        """The changes that the patch really made, each with the hash of what it does."""
        return frozenset((name, hash) for name, (status, hash) in self.changes.items() if status == "applied")


def makings(engine: Engine, cell_ids: Sequence[int]) -> dict[int, Making]:
    """What some cells were made of, by cell. A cell without a result has its factors only."""
    with reading(engine) as session:
        cells = in_chunks(
            session, select(Cell, Result).outerjoin(Result, Cell.result_id == Result.id), Cell.id, cell_ids
        )
        changes: dict[int, dict[str, tuple[str, str | None]]] = {}
        for (row,) in in_chunks(session, select(ChangeOutcome), ChangeOutcome.cell_id, cell_ids):
            changes.setdefault(row.cell_id, {})[row.change] = (row.status, row.hash)
        wanted = {getattr(result, f"{role}_environment_id") for _, result in cells if result for role in ROLES}
        packages: dict[int, dict[str, str]] = {
            row.id: {"platform": row.platform}
            for (row,) in in_chunks(session, select(Environment), Environment.id, sorted(wanted - {None}))
        }
        for (row,) in in_chunks(session, select(Package), Package.environment_id, sorted(wanted - {None})):
            packages.setdefault(row.environment_id, {})[row.name] = row.version
        machines = {machine.id: machine_of(machine) for machine in session.scalars(select(Machine))}
        return {
            cell.id: Making(
                cell.id,
                result.overlay_tree if result else None,
                parts_of(cell, result) | {"machine": machines.get(result.machine_id) if result else None},
                {role: packages.get(getattr(result, f"{role}_environment_id"), {}) if result else {} for role in ROLES},
                changes.get(cell.id, {}),
            )
            for cell, result in cells
        }


def in_chunks(session: Session, query: Any, column: Any, values: Sequence[int]) -> list[Any]:
    """The rows of `query` whose `column` is one of `values`; a database takes so many at a time only."""
    rows: list[Any] = []
    for start in range(0, len(values), 500):
        rows += session.execute(query.where(column.in_(values[start : start + 500]))).all()
    return rows


def parts_of(cell: Cell, result: Result | None) -> dict[str, Any]:
    factors = {name: getattr(cell, name) for name in FACTORS if name != "patch"}
    made = {"options": cell.options or "", "stand-in": (result and result.stand_in) or ""}
    if result and result.status != "ok":  # a failure has no numbers to be measured by a version, or held to thresholds
        made |= {"measurement version": None, "thresholds": None}
    kept = {
        word: getattr(cell, name, None) if name == "source_tree" else getattr(result, name, None)
        for name, word in MADE_OF.items()
    }
    return factors | kept | made


def machine_of(machine: Machine) -> str:
    """A machine by what could change a number, not by its name."""
    return f"{machine.system}, {machine.processor}, {machine.cores} cores"


def differences(one: Making, two: Making, ignore: Iterable[str] = ()) -> list[Difference]:
    """What is not the same in two makings, changes of the patch apart. What one side does not know is no difference."""
    ignored = set(ignore)
    found = [
        Difference(name, value, two.parts[name])
        for name, value in one.parts.items()
        if name not in ignored and None not in (value, two.parts[name]) and value != two.parts[name]
    ]
    # The factor and what it stands for are one difference to a reader.
    named = {difference.what for difference in found}
    found = [d for d in found if not (d.what == "builder sources" and "builder" in named)]
    if named & OF_THE_FLOOR or one.environments["reference"] != two.environments["reference"]:
        found = [d for d in found if d.what != "noise floor"]
    if "precision" in named:  # each is held to thresholds of its own
        found = [d for d in found if d.what != "thresholds"]
    for role in ROLES:
        mine, theirs = one.environments[role], two.environments[role]
        if mine and theirs and mine != theirs:
            for name in sorted(mine.keys() | theirs.keys(), key=lambda name: (name not in TELLING, name)):
                if mine.get(name) != theirs.get(name):
                    found.append(Difference(f"{role}'s {name}", mine.get(name), theirs.get(name)))
    return found


def change_differences(one: Making, two: Making) -> list[Difference]:
    """Changes of the patch that one has and the other has not, or has otherwise."""
    found = []
    for name in dict.fromkeys([*one.changes, *two.changes]):
        (mine, my_hash), (theirs, their_hash) = one.changes.get(name, ("", None)), two.changes.get(name, ("", None))
        if mine != theirs:
            found.append(Difference(f"change {name}", mine or "not asked", theirs or "not asked"))
        elif my_hash != their_hash:
            found.append(Difference(f"change {name}", my_hash, their_hash))
    return found
