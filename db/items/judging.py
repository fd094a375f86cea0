"""Holding a claim to the newest cells that its filters find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, select

from db import detail, query
from db.engine import reading
from db.findings import NOT_RUN, OF_EXPORT, is_finding, why_unknown
from db.items import expect as expectations
from db.items.expect import Expect
from db.models import AXES, PromptResult, Result
from db.output import identical
from db.record import OF_THE_EXPORT
from db.reserved import beside

VERIFIED, WEAKLY, PARTLY, CONTRADICTED, UNDECIDED, NO_CELL = (
    "verified", "weakly verified", "partly verified", "contradicted", "undecided", "no cell yet",
)  # fmt: skip


def newest_cells(engine: Engine, claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The newest cell of each combination of all factors that a claim's filters find, of those that say something.

    Where none does, the newest that was tried: it is not known. A row is that
    of `query.cell_rows` with "day" (of the result), "error_type" and "message"
    of a failure, "known" (whether it says something), "multiple" of the noise, "first_diff" and "diff" (the largest
    over prompts), "answers" (`candidate_sensible` of each prompt), and
    "prompts_by_name".
    """
    asked = expectations.of(claim["expect"]).status
    newest: dict[tuple, dict[str, Any]] = {}
    for row in query.of_one_measurement(query.cell_rows(engine, claim["filters"])):
        key = tuple(row[axis] or "" for axis in AXES)
        says = counts(row, asked)
        if says or (row["status"] not in (query.PENDING, *NOT_RUN) and not counts(newest.get(key), asked)):
            newest[key] = row
    results = {row["result"] for row in newest.values()}
    prompts = detail.prompts_of(engine, list(results))
    with reading(engine) as session:
        columns = select(Result.id, Result.created, Result.error_type, Result.error).where(Result.id.in_(results))
        about = {
            id: {"day": created.date().isoformat(), "error_type": kind, "message": message}
            for id, created, kind, message in session.execute(columns)
        }
    return [
        row | about[row["result"]] | {"known": counts(row, asked)} | numbers_of(prompts.get(row["result"], []))
        for row in sorted(newest.values(), key=lambda row: row["cell"])
    ]


def counts(row: Mapping[str, Any] | None, asked: Sequence[str]) -> bool:
    """Whether a cell says something of a claim that asks for some statuses: a finding does, and an end that says
    nothing of an export (a patch that does not apply) where the claim is about that."""
    if row is None:
        return False
    return is_finding(row) or (row["status"] in asked and row["status"] not in OF_EXPORT)


def numbers_of(prompts: Sequence[PromptResult]) -> dict[str, Any]:
    """A cell's numbers over its prompts, as `newest_cells` has them."""
    return {
        "multiple": largest_multiple(prompts),
        "first_diff": largest(prompts, ("first_logits_max_abs_diff",)),
        "diff": largest(prompts, ("logits_max_abs_diff", "forced_logits_max_abs_diff")),
        "answers": [prompt.candidate_sensible for prompt in prompts],
        "prompts_by_name": {prompt.prompt: prompt for prompt in prompts},
    }


def largest(prompts: Sequence[PromptResult], names: Sequence[str]) -> float | None:
    """The largest of some columns over prompts; infinite where one is not finite."""
    if any(name in (prompt.non_finite or {}) for prompt in prompts for name in names):
        return math.inf
    found = [getattr(prompt, name) for prompt in prompts for name in names]
    return max((value for value in found if value is not None), default=None)


def largest_multiple(prompts: Sequence[PromptResult]) -> float | None:
    """Of the noise, free-running or forced; infinite where one is not finite, None where a prompt has no floor."""
    found = []
    for prompt in prompts:
        if (prompt.non_finite or {}).keys() & {"noise_ratio", "forced_noise_ratio", *OF_THE_EXPORT}:
            return math.inf
        if prompt.noise_ratio is None:
            return None
        found.append(max(prompt.noise_ratio, prompt.forced_noise_ratio or 0.0))
    return max(found, default=None)


def judge(claim: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a claim's newest cells (`newest_cells`) say of it, as data.

    {"name", "item", "what", "verdict": one of the words above, "cells" and
    "builders" that it is about, "day" of the newest of their results, "why",
    "held": cells that hold where others do not, "weak": cells that failed as
    claimed, where the claim says of no failure which, "multiples" (of the
    noise), "identical" and "errors": what these cells gave, "nonsense": matches
    on a reference that is nonsense itself, "stand_ins",
    "reservations" (what is wrong beside these cells' numbers), "each": {"cell",
    "builder", "day", "holds": True, False or None, "why"} of every cell,
    "unknown": cells of which nothing is known, "filters", and "missing": how
    many combinations of their values have no cell}.
    """
    wanted = expectations.of(claim["expect"])
    each = [{"cell": row["cell"], "builder": row["builder"], "day": row["day"]} | held_to(wanted, row) for row in rows]
    there = {tuple(row[factor] or "" for factor in claim["filters"]) for row in rows}
    missing = math.prod(len(values) for values in claim["filters"].values()) - len(there)
    against, open_ones, good = ([one for one in each if one["holds"] is held] for held in (False, None, True))
    failed = {row["cell"] for row in rows if row["status"] != "ok"}
    weak = [] if wanted.names_failure else [one["cell"] for one in good if one["cell"] in failed]
    best = PARTLY if missing else WEAKLY if weak else VERIFIED
    words = ((against, CONTRADICTED), (open_ones, UNDECIDED), (good, best))
    about, word = next(((cells, word) for cells, word in words if cells), ([], NO_CELL))
    shown = {one["cell"] for one in about}
    shown_rows = [row for row in rows if row["cell"] in shown]
    measured = [row for row in shown_rows if row["status"] == "ok"]
    return {
        "name": claim["name"], "item": claim["item"], "what": claim["what"], "verdict": word,
        "cells": [one["cell"] for one in about],
        "builders": sorted({one["builder"] for one in about}, key=query.release_order),
        "day": max((one["day"] for one in about), default=None),
        "why": about[0]["why"] if about else "",
        "held": [one["cell"] for one in good if one["cell"] not in shown],
        "weak": weak,
        "multiples": sorted({row["multiple"] for row in measured if row["multiple"] is not None}),
        "identical": list(dict.fromkeys(identical(row) for row in measured)),
        "errors": list(dict.fromkeys(row["error"] or row["status"] for row in shown_rows if row["status"] != "ok")),
        "nonsense": sum(row["nonsense_count"] or 0 for row in shown_rows),
        "stand_ins": sorted({row["stand_in"] for row in rows if row["stand_in"]}),
        "reservations": sorted({said for row in shown_rows for said in beside(row)}),
        "each": each, "filters": claim["filters"], "missing": missing,
        "unknown": [row["cell"] for row in rows if not counts(row, wanted.status)],
    }  # fmt: skip


def held_to(wanted: Expect, row: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a cell is as expected: {"holds": True, False, or None where it cannot say, "why"}."""
    if not counts(row, wanted.status):
        return {"holds": None, "why": why_unknown(row)}
    if row["status"] not in wanted.status:
        why = f"{row['status']}: {row['error']}" if row["error"] else f"status {row['status']}"
        return {"holds": False, "why": why}
    found = list(wanted.against(row))
    against = [why for holds, why in found if holds is False]
    return {
        "holds": False if against else None if found else True,
        "why": ", ".join(against or [why for _, why in found]),
    }
