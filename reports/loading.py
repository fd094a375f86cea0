"""What became of each key of a checkpoint when the sides of a sweep's cells loaded it: the faults first, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from db import detail, query
from db.artifacts import LOADING_FAULTS, OUTCOMES
from db.engine import open_database
from db.output import markdown_table, markdown_text, runs, shape
from reports import notes
from reports.table import NAMES, cells

HEADER = ("Cells", "Side", "Name", "Layers", "Tensors", "Kind", "Outcome", "Shape", "Dtype", "What it says")
# Outcomes that need no row: the counts below the table have them.
PLAIN = ("loaded", "cast", "tied", "computed")
# Of an outcome that is no fault so many names have rows of their own; of more, one row stands for all.
MOST_NAMES = 4
MOST_LINES = 8
# Factors that decide how a checkpoint is loaded.
TOLD = ("model", "dtype", "layers", "backend", "precision", "reference", "options")
# What to do about a fault of a side.
ADVICE = {
    "candidate": "A tensor that does not hold what the checkpoint has: look for its name in the checkpoint, for a"
    " rename or a missing rule of the loader, then for the division and the cast.",
    "reference": "A reference that does not hold what the checkpoint has is no reference: no diff against it says"
    " anything of the candidate.",
    "checkpoint": "A checkpoint that lost something when it was made gave both sides the same wrong tensor: no"
    " diff shows it.",
}
# A buffer's, where the loader is one that may leave buffers out.
BUFFER = (
    "A buffer is no parameter: a loader that walks parameters only leaves it as the model made it."
    " backend.copy_buffers=true copies buffers too."
)
DROPPED = (
    "Dropped: the model has no place for the key. Another prefix, another class of model, or a part that this one"
    " leaves out on purpose, as a vision tower."
)


def collect(db: str | None, sweep: str = "latest", every: bool = False) -> dict[str, Any]:
    """The report as data: {"sweep": its number, "rows": a dict a cell with its "loading", "every": whether each key
    has a row}. Errors: `query.NotInDatabase`."""
    engine = open_database(db, create=False)
    sweep_id = query.sweep_id(engine, sweep, ("run", *query.ONE_STAGE))
    rows = query.cell_rows(engine, sweep=sweep_id)
    found = detail.loading_of(engine, sorted({row["result"] for row in rows if row["result"]}))
    rows = [row | {"loading": found.get(row["result"], [])} for row in rows]
    engine.dispose()
    return {"sweep": sweep_id, "rows": rows, "every": every}


def markdown(report: dict[str, Any]) -> str:
    """A row a side, name and outcome, with the cells that have it so; below it what is at fault, what to do, and how
    much was loaded."""
    rows = report["rows"]
    if not rows:
        return "No cells."
    found: dict[str, tuple[list[int], list[Mapping[str, Any]]]] = {}
    for row in rows:
        for group in groups(row["loading"], report["every"]):
            found.setdefault(repr(group), ([], group))[0].append(row["cell"])
    ordered = sorted(found.values(), key=lambda item: rank(item[1][0]["outcome"]))
    body = [entries(numbers, together(group)) for numbers, group in ordered]
    head = [markdown_table(HEADER, body), ""] if body else []
    return "\n".join([*head, *(f"- {line}" for line in below(report))])


def rank(outcome: str) -> int:
    """Faults before warnings before what is as it should be."""
    return 0 if outcome in LOADING_FAULTS else OUTCOMES.index(outcome)


def groups(loading: Sequence[Mapping[str, Any]], every: bool) -> Iterator[list[Mapping[str, Any]]]:
    """What of a cell's rows stands in one row of the table: each fault alone, others with their like where they are
    many, and nothing that was plainly loaded; each alone where every one is asked for."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in loading:
        if every or row["outcome"] not in PLAIN:
            alike.setdefault((row["side"], row["outcome"]), []).append(row)
    for (_, outcome), mine in alike.items():
        if every or outcome in LOADING_FAULTS or len(mine) <= MOST_NAMES:
            yield from ([row] for row in mine)
        else:
            yield mine


def together(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One row for several: the first one's name, how many there are, and what they share."""
    first = rows[0]
    if len(rows) == 1:
        return first
    shared = {name: value if all(row[name] == value for row in rows) else None for name, value in first.items()}
    more = len({row["name"] for row in rows}) - 1  # a name has a row for each shape
    return shared | {
        "name": f"{first['name']} and {more} more names" if more else first["name"],
        "count": sum(row["count"] for row in rows),
        "layers": [layer for row in rows for layer in row["layers"] or ()],
    }


def entries(numbers: Sequence[int], row: Mapping[str, Any]) -> list[Any]:
    """The fields of a row of the table."""
    return [
        runs(numbers), f"{row['side']} ({row['loader']})", row["name"], runs(row["layers"]), row["count"], row["kind"],
        row["outcome"], moved(shape(row["shape"]), shape(row["held"])),
        moved(row["stored"] or "", row["loaded"] or ""), row["says"],
    ]  # fmt: skip


def moved(stored: str, held: str) -> str:
    """What the checkpoint has and what the model holds: once where they are the same."""
    return stored if stored == held else f"{stored or 'none'} → {held or 'none'}"


def below(report: Mapping[str, Any]) -> list[str]:
    """Lines below the table: what is at fault and what to do, how much was loaded, what the cells are."""
    rows = report["rows"]
    faults: dict[str, list[int]] = {}
    counts: dict[str, list[int]] = {}
    advice: dict[str, None] = {}
    for row in rows:
        for side, mine in sides(row["loading"]).items():
            counts.setdefault(detail.loading_counts(mine), []).append(row["cell"])
            if wrong := [tensor for tensor in mine if tensor["outcome"] in LOADING_FAULTS]:
                faults.setdefault(fault_text(side, wrong), []).append(row["cell"])
                advice |= dict.fromkeys(advice_for(tensor) for tensor in wrong)
    if any(tensor["outcome"] == "dropped" for row in rows for tensor in row["loading"]):
        advice[DROPPED] = None
    lines = [
        f"{cells(mine).capitalize()}: {said}; `python -m db loading {mine[0]} --faults`."
        for said, mine in faults.items()
    ]
    if counts and not faults:
        lines.append("No fault: each side holds what the checkpoint has for it.")
    lines += advice
    lines += [f"{cells(mine).capitalize()}, {said}." for said, mine in counts.items()]
    if without := [row["cell"] for row in rows if row["status"] == "ok" and not row["loading"]]:
        lines.append(f"{cells(without).capitalize()}: nothing is stored of how its sides loaded the checkpoint.")
    return lines + what_cells_are(rows, report["sweep"]) + notes.failures([dict(row) for row in rows])


def sides(loading: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in loading:
        found.setdefault(row["side"], []).append(row)
    return found


def fault_text(side: str, wrong: Sequence[Mapping[str, Any]]) -> str:
    """How many tensors of a side are at fault, and which."""
    count = sum(row["count"] for row in wrong)
    names = markdown_text(", ".join(dict.fromkeys(row["name"] for row in wrong)))
    many = f"tensor of the {side} is" if count == 1 else f"tensors of the {side} are"
    return f"{count} {many} not what the checkpoint has: {names}"


def advice_for(fault: Mapping[str, Any]) -> str:
    left_out = fault["kind"] == "buffer" and fault["loader"] == "tp_cpu"
    return BUFFER if left_out else ADVICE.get(fault["side"], ADVICE["candidate"])


def what_cells_are(rows: Sequence[Mapping[str, Any]], sweep: int) -> list[str]:
    """The factors that all cells share, and of cells that differ what they differ in."""
    varying = [name for name in NAMES if len({row[name] for row in rows}) > 1]
    fixed = ", ".join(f"{name} {rows[0][name]}" for name in TOLD if name not in varying and rows[0][name])
    differ: dict[str, list[int]] = {}
    for row in rows:
        differ.setdefault(", ".join(f"{n} {row[n]}" for n in varying if row[n]), []).append(row["cell"])
    lines = [f"All cells: {markdown_text(fixed)}."] if fixed else []
    if len(differ) > MOST_LINES:
        return [*lines, f"Cells differ in {', '.join(varying)}: `python -m db cells --sweep {sweep}`."]
    return lines + [f"{cells(mine).capitalize()}: {markdown_text(said)}." for said, mine in differ.items() if said]
