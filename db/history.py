"""The history of a line of cells: the newest finding of each builder in the builders' order, and where it changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, select

from db import builder_order, query
from db.differences import TELLING, Difference, differences, in_chunks, makings
from db.engine import reading
from db.findings import FINDING
from db.models import FACTORS, VERDICTS, Cell, PromptResult, Result
from db.reserved import GOOD, NOT_COMPARED

HISTORY_COLUMNS = (
    "builder", *(factor for factor in FACTORS if factor != "builder"), "options", "changed", "change", "status",
    "first_diff_least", "first_diff_largest", "multiple_largest", "verdict", "constants_wrong", "identical_count",
    "nonsense_count", "prompts_count", "compared_tokens_least", "compared_tokens_largest", "reservations",
    "error", "sweep", "cell",
)  # fmt: skip
# Beyond the noise, two findings are the same while their multiples of the noise are within this factor of each other.
HISTORY_FACTOR = 2.0


@dataclass(frozen=True)
class PromptNumbers:
    """One prompt of a cell as its history needs it. multiple: of the noise, over all steps, free-running and forced."""

    verdict: str | None
    multiple: float | None
    identical: bool


def history_rows(
    engine: Engine,
    filters: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] = (),
    sweep: int | None = None,
) -> list[dict[str, Any]]:
    """The newest finding of each builder and of each line of other factors, builders in their order.

    `change` says in what a row is another finding than the one before it in
    its line (`change_of`), `changed` whether it is; `place` is its builder's
    among all. `order_known` says whether anything tells that this builder is the newer of the two: releases are
    ordered by version, commits by ancestry and date (`db.builder_order`).
    """
    measured = select(func.max(Result.measurement_version)).where(Result.status == "ok").scalar_subquery()
    newest = (
        query.filtered(select(func.max(Cell.id)).join(Result), filters or {}, status, sweep)
        .where(FINDING, (Result.status != "ok") | (Result.measurement_version == measured))
        .where(Cell.builder != "none")  # what has no builder has no place among releases
        .group_by(Cell.hash)
    )
    found = query.told(engine, query.CELLS.where(Cell.id.in_(newest)))
    builders = dict(zip((row["cell"] for row in found), builder_order.builders_of(engine, found), strict=True))
    # A name that moved (main) stands where its newest cell has it.
    named = {row["builder"]: builders[row["cell"]] for row in sorted(found, key=lambda row: row["cell"])}
    names = list(named)
    places = {names[n]: place for place, n in enumerate(builder_order.ordered(list(named.values())))}
    prompts = prompts_of(engine, sorted({row["result"] for row in found if row["status"] == "ok"}))
    lines: dict[tuple, list[dict[str, Any]]] = {}
    for row in found:
        row["line"] = history_line(row)
        lines.setdefault(row["line"], []).append(row)
    rows = []
    for line in sorted(lines):
        order = builder_order.ordered([builders[row["cell"]] for row in lines[line]])
        mine = [lines[line][place] for place in order]
        for before, row in itertools.pairwise([None, *mine]):
            row["change"] = change_of(before, row, prompts) if before else ""
            row["changed"] = bool(row["change"])
            row["place"] = places[row["builder"]]
            row["order_known"] = before is None or builder_order.known(builders[before["cell"]], builders[row["cell"]])
        rows += mine
    return rows


def history_line(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Everything but the builder: what a history holds fixed."""
    return (*(row[factor] for factor in FACTORS if factor != "builder"), row["options"] or "")


def prompts_of(engine: Engine, results: Sequence[int]) -> dict[int, dict[str, PromptNumbers]]:
    """The prompts of some results, by name."""
    names = ("result_id", "prompt", "verdict", "noise_ratio", "forced_noise_ratio", "tokens_identical")
    columns = select(*(getattr(PromptResult, name) for name in names)).order_by(PromptResult.position)
    found: dict[int, dict[str, PromptNumbers]] = {}
    with reading(engine) as session:
        for result, name, verdict, free, forced, identical in in_chunks(
            session, columns, PromptResult.result_id, results
        ):
            multiples = [ratio for ratio in (free, forced) if ratio is not None and verdict != "non_finite"]
            numbers = PromptNumbers(verdict, max(multiples, default=None), identical)
            found.setdefault(result, {})[name] = numbers
    return found


def change_of(
    one: Mapping[str, Any], two: Mapping[str, Any], prompts: Mapping[int, Mapping[str, PromptNumbers]]
) -> str:
    """In what the second of two cells is another finding; "" where they are the same.

    A failure is another where its status or its error is. Numbers are judged
    prompt by prompt, over all steps: another verdict, other texts, or, beyond
    the noise, a multiple of it that is more than `HISTORY_FACTOR` times larger
    or smaller. Within the noise no number is a change. A constant that is wrong
    on one side only is one, and so is another reservation.
    """
    if one["status"] != "ok" or two["status"] != "ok":
        same = all(one[name] == two[name] for name in ("status", "error"))
        return "" if same else f"{in_short(one)} → {in_short(two)}"
    mine, theirs = (prompts.get(row["result"], {}) for row in (one, two))
    names = [name for name in mine if name in theirs]
    alike = one["thresholds"] == two["thresholds"]
    moved = [name for name in names if moves(mine[name], theirs[name], alike)]
    said = []
    if moved:
        worst = max(moved, key=lambda name: max(mine[name].multiple or 0, theirs[name].multiple or 0))
        before, after = mine[worst], theirs[worst]
        verdicts = [(side.verdict or "no verdict").replace("_", " ") for side in (before, after)]
        step = " → ".join(dict.fromkeys(verdicts))
        said.append(f"{step} in {len(moved)} of {len(names)} prompts, {numbers(before)} → {numbers(after)} in {worst}")
    counts = [sum(side[name].identical for name in names) for side in (mine, theirs)]
    if any(mine[name].identical != theirs[name].identical for name in names):
        said.append(f"identical texts {counts[0]} → {counts[1]} of {len(names)}")
    wrong = [row["constants_wrong"] for row in (one, two)]
    if None not in wrong and bool(wrong[0]) != bool(wrong[1]):
        said.append(f"wrong constants {wrong[0]} → {wrong[1]}")
    beside = [row.get("reservations") for row in (one, two)]
    if None not in beside and NOT_COMPARED not in beside[0] + beside[1] and beside[0] != beside[1]:
        said.append(" → ".join(" and ".join(phrases) or "nothing beside the numbers" for phrases in beside))
    return "; ".join(said)


def moves(one: PromptNumbers, two: PromptNumbers, alike: bool = True) -> bool:
    """Whether a prompt's numbers are another finding. alike: whether both were held to the same thresholds; where not,
    another verdict alone is none."""
    if one.verdict in GOOD and two.verdict in GOOD:
        return False
    if one.verdict != two.verdict and (alike or None in (one.multiple, two.multiple)):
        return True
    if one.multiple is None or two.multiple is None or one.verdict is None:
        return False  # without a noise floor no size of a difference says anything
    low, high = sorted((one.multiple, two.multiple))
    return high > HISTORY_FACTOR * low


def numbers(prompt: PromptNumbers) -> str:
    if prompt.verdict == "non_finite":
        return "not finite"
    return "no multiple" if prompt.multiple is None else f"{prompt.multiple:.2g} × noise"


def in_short(row: Mapping[str, Any]) -> str:
    if row["status"] != "ok":
        return f"{row['status']}: {row['error']}" if row["error"] else row["status"]
    return (row["verdict"] or "no verdict").replace("_", " ")


def severity(row: Mapping[str, Any]) -> int:
    """From best to worst, a failure the last."""
    if row["status"] != "ok":
        return VERDICTS.index("failed")
    return VERDICTS.index(row["verdict"]) if row["verdict"] else 0


@dataclass(frozen=True)
class Cross:
    """A change of builder that came with other changes, and what would tell them apart, or does.

    also: what else differs between the two cells. package: the one whose
    versions a cross exchanges, with the version on either side; None where the
    builder's environments differ in nothing that a cell can be asked for.
    decided: what cells of the cross say and what follows, a sentence each; empty without any. whole: whether both
    cells are there.
    """

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    also: Sequence[Difference]
    versions: tuple[str, str] | None
    decided: Sequence[str] = ()
    whole: bool = False

    def told(self) -> str:
        """What else changed: what a reader asks for first by name, other packages by their number."""
        named = [d for d in self.also if d.what.partition("'s ")[2] in ("", *TELLING)]
        rest = len(self.also) - len(named)
        said = [d.told() for d in named]
        more = [f"{rest} {'other ' if said else ''}package{'s' * (rest != 1)}"] if rest else []
        return " and ".join(filter(None, [", ".join(said), *more]))


# What a change of builder is, however it is described.
THE_BUILDER = ("builder", "builder sources", "builder's onnxruntime-genai", "noise floor")
CROSSED = "builder's transformers"


def crosses(engine: Engine, rows: Sequence[Mapping[str, Any]]) -> dict[int, Cross]:
    """Of the rows that changed, by cell, those in which something else changed with the builder.

    rows: of `history_rows`, whole lines. Cells of the cross are looked for
    among all findings, whatever the rows were narrowed to.
    """
    pairs = [(one, two) for one, two in itertools.pairwise(rows) if two["changed"] and one["line"] == two["line"]]
    made = makings(engine, sorted({row["cell"] for pair in pairs for row in pair}))
    found = {}
    for one, two in pairs:
        also = [d for d in differences(made[one["cell"]], made[two["cell"]]) if d.what not in THE_BUILDER]
        if not also:
            continue
        versions = next(((d.one, d.two) for d in also if d.what == CROSSED and d.one and d.two), None)
        decided = decide(engine, one, two, versions, len(also) > 1) if versions else Decided()
        found[two["cell"]] = Cross(one, two, also, versions, decided.told, decided.whole)
    return found


@dataclass(frozen=True)
class Decided:
    """What the cells of a cross say: a sentence each and what follows from all. whole: none of them is missing."""

    told: Sequence[str] = ()
    whole: bool = False


def decide(
    engine: Engine, one: Mapping[str, Any], two: Mapping[str, Any], versions: tuple[str, str], others: bool
) -> Decided:
    """What the cells say in which one builder has the other's transformers. others: whether more packages changed."""
    said: list[str] = []
    alike: list[bool | None] = []  # whether each is as the other builder; None: as neither, or there is none
    found = 0
    for own, other, version in ((one, two, versions[1]), (two, one, versions[0])):
        row = crossed(engine, own, version)
        alike.append(None)
        if row is None:
            continue
        found += 1
        prompts = prompts_of(engine, [r["result"] for r in (row, own, other) if r["result"]])
        name = f"{own['builder']} with transformers {version} (cell {row['cell']})"
        if not change_of(other, row, prompts):
            alike[-1] = True
            said.append(f"{name} is as {other['builder']}")
        elif not change_of(own, row, prompts):
            alike[-1] = False
            said.append(f"{name} is as {own['builder']} with its own packages")
        else:
            said.append(f"{name} is as neither ({in_short(row)})")
    return Decided([*said, follows(*alike, others)] if said else (), found == 2)


def follows(older: bool | None, newer: bool | None, others: bool) -> str:
    """What makes a change, from whether the older builder with the newer transformers is as the newer, and the newer
    one with the older transformers as the older. A sentence is never of more than these cells show."""
    builder = "the builder, or another package that came with it," if others else "the builder"
    package = "transformers"
    sentences = {
        (True, True): f"{package} makes the change, not {builder.rstrip(',')}",
        (False, False): f"{builder} makes the change, not {package}",
        (True, False): f"each alone makes the change, {package} and {builder.rstrip(',')}",
        (False, True): f"neither {package} nor {builder} makes the change alone: it needs both",
        (True, None): f"{package} alone makes the change; whether {builder} does so too is not known",
        (False, None): f"{package} alone does not make the change: {builder} has a part in it",
        (None, False): f"{builder} makes the change without {package}; whether that does so too is not known",
        (None, True): f"{builder} does not make the change alone: {package} has a part in it",
        (None, None): "that decides nothing",
    }
    return sentences[older, newer]


def crossed(engine: Engine, row: Mapping[str, Any], version: str) -> dict[str, Any] | None:
    """The newest finding that is a row's but for the transformers of its builder's environment."""
    same = [getattr(Cell, factor) == row[factor] for factor in FACTORS]
    option = f"builder.transformers={version}"
    chosen = query.CELLS.where(*same, FINDING, Cell.options.contains(option)).order_by(Cell.id.desc())
    for found in query.told(engine, chosen.limit(20)):
        options = set((found["options"] or "").split())
        enough = found["status"] != "ok" or found["measurement_version"] == row["measurement_version"]
        if options == {*(row["options"] or "").split(), option} and enough:
            return found
    return None
