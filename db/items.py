"""Items (issues and pull requests with a state) and claims (what newest cells are held to), kept and judged.

Both come from a YAML file or the command line and are checked alike; a file is
taken whole or not at all.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db import detail, query
from db.engine import reading, writing
from db.models import AXES, VERDICTS, Claim, Item, ItemState, PromptResult, Result, now
from db.output import identical
from db.record import OF_THE_EXPORT
from db.reserved import beside

ITEM_KEYS, ITEM_MORE = ("key", "what", "state", "date"), ("link",)
CLAIM_KEYS, CLAIM_MORE = ("name", "what", "filters"), ("item", "expect")
EXPECTATIONS = ("status", "verdict", "identical", "sensible", "at_most", "above")
STATUSES = (
    "ok", "config_failed", "source_failed", "env_failed", "patch_failed", "checkpoint_failed", "reference_failed",
    "export_failed", "load_failed", "run_failed", "timeout", "stalled", "killed", "preempted", "skipped",
)  # fmt: skip
# Ends by which a cell was not tried to its end: an older cell of the same factors counts.
NOT_TRIED = ("skipped", "preempted", "killed", "config_failed")
MOST_COMBINATIONS = 10_000
VERIFIED, PARTLY, CONTRADICTED, UNDECIDED, NO_CELL = (
    "verified", "partly verified", "contradicted", "undecided", "no cell yet",
)  # fmt: skip


class ItemsProblem(Exception):
    """An item or a claim that cannot be kept: where, what, and what is allowed."""


def load(engine: Engine, file: Path) -> dict[str, int]:
    """Keep the items and claims of a YAML file, all or none.

    Items and claims that are there already are brought up to date; states are
    added to their history. Returns how many there were, and how many states
    were new: {"items", "states", "claims"}. Errors: `ItemsProblem`.
    """
    items, claims = read_file(file)
    with writing(engine) as session:
        added = sum(put_state(session, item) for item in items)
        for claim in claims:
            put_claim(session, claim, f"{file}: claim {claim['name']}")
    return {"items": len(items), "states": added, "claims": len(claims)}


def set_state(
    engine: Engine, key: str, state: str, day: str | None = None, what: str | None = None, link: str | None = None
) -> bool:
    """Say what an item's state is since `day` (today); what and link are kept from its first use on.

    Returns whether that was new. Errors: `ItemsProblem`.
    """
    given = {"key": key, "what": what, "state": state, "date": day or now().date(), "link": link}
    with writing(engine) as session:
        known = session.get(Item, key.strip())
        if known is None and not what:
            raise ItemsProblem(f"item {key}: it is not known yet; say what it is the first time: --what TEXT")
        item = checked_item({**given, "what": what or known.what} if known else given, f"item {key}")
        return put_state(session, item)


def add_claim(engine: Engine, given: Mapping[str, Any]) -> None:
    """Keep a claim ({"name", "what", "item", "filters", "expect"}), in the place of one of that name.

    Errors: `ItemsProblem`.
    """
    claim = checked_claim(given, f"claim {given.get('name')}")
    with writing(engine) as session:
        put_claim(session, claim, f"claim {claim['name']}")


def put_state(session: Session, item: Mapping[str, Any]) -> bool:
    row = session.get(Item, item["key"])
    if row is None:
        last = session.scalar(select(func.max(Item.position)))
        row = Item(key=item["key"], position=0 if last is None else last + 1, states=[])
        session.add(row)
    row.what, row.link = item["what"], item["link"] or row.link
    if any((state.state, state.date) == (item["state"], item["date"]) for state in row.states):
        return False
    row.states.append(ItemState(position=len(row.states), state=item["state"], date=item["date"]))
    session.flush()
    return True


def put_claim(session: Session, claim: Mapping[str, Any], where: str) -> None:
    known = session.scalars(select(Item.key).order_by(Item.position)).all()
    if claim["item"] is not None and claim["item"] not in known:
        refuse(f"{where}: item", claim["item"], known, "item")
    values = {key: value for key, value in claim.items() if key != "item"}
    session.merge(Claim(item_key=claim["item"], **values))
    session.flush()


def item_rows(engine: Engine) -> list[dict[str, Any]]:
    """One dict an item: key, what, link, the present state and date, and "states", oldest first.

    The present state is that of the latest date; on one day the one said last.
    """
    with reading(engine) as session:
        rows = []
        for item in session.scalars(select(Item).order_by(Item.position)):
            states = sorted(item.states, key=lambda state: (state.date, state.position))
            told = [{"state": s.state, "date": s.date, "recorded": s.recorded} for s in states]
            last = told[-1] if told else {"state": None, "date": None}
            row = {"key": item.key, "what": item.what, "link": item.link, "state": last["state"], "date": last["date"]}
            rows.append(row | {"states": told})
        return rows


def claim_rows(engine: Engine) -> list[dict[str, Any]]:
    """One dict a claim: name, item, what, filters, expect."""
    with reading(engine) as session:
        return [
            {"name": c.name, "item": c.item_key, "what": c.what, "filters": c.filters, "expect": c.expect}
            for c in session.scalars(select(Claim).order_by(Claim.name))
        ]


def one_of(rows: Iterable[dict[str, Any]], key: str, value: str, kind: str) -> dict[str, Any]:
    """The row of this name. Errors: `query.NotInDatabase` with the names there are."""
    there = {row[key]: row for row in rows}
    if value not in there:
        raise query.NotInDatabase(f"{kind} {value!r} is not kept; there are: {', '.join(there) or 'none'}")
    return there[value]


# Checking


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML would silently keep the last."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_file(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The items and claims of a YAML file, checked. Errors: `ItemsProblem`."""
    try:
        content = yaml.load(Path(file).read_text(encoding="utf-8"), StrictLoader) or {}
    except (OSError, UnicodeError) as error:
        raise ItemsProblem(f"{file}: it cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError is YAML's for a date that is none
        raise ItemsProblem(f"{file}: no YAML that can be read: {error}") from error
    try:
        return checked_file(content, file)
    except (ValueError, OverflowError) as error:  # numbers that no float or text can hold
        raise ItemsProblem(f"{file}: a number is too large: {error}") from error


def checked_file(content: Any, file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The items and claims of a file's content. Errors: `ItemsProblem`."""
    keys(content, (), ("items", "claims"), f"{file}")
    parts = []
    for section, check, name in (("items", checked_item, "key"), ("claims", checked_claim, "name")):
        given = content.get(section) or []
        if not isinstance(given, list):
            raise ItemsProblem(f"{file}: {section}: a list is wanted, each entry beginning with '-'")
        found = [check(entry, f"{file}: {section}[{n}]") for n, entry in enumerate(given)]
        names = [entry[name] for entry in found]
        if twice := [n for n in names if names.count(n) > 1]:
            raise ItemsProblem(f"{file}: {section}: {name} {twice[0]!r} stands twice; each may stand once")
        parts.append(found)
    return parts[0], parts[1]


def checked_item(given: Any, where: str) -> dict[str, Any]:
    keys(given, ITEM_KEYS, ITEM_MORE, where)
    link = given.get("link")
    if link is not None and not (
        isinstance(link, str) and re.fullmatch(r"https?://[^\s<>]+", link) and link.isprintable()
    ):
        raise ItemsProblem(f"{where}: link {link!r} is no address; allowed: https://…")
    told = {key: text(given[key], f"{where}: {key}") for key in ("key", "what", "state")}
    return {**told, "date": day_of(given["date"], f"{where}: date"), "link": link}


def checked_claim(given: Any, where: str) -> dict[str, Any]:
    keys(given, CLAIM_KEYS, CLAIM_MORE, where)
    told = {key: text(given[key], f"{where}: {key}") for key in ("name", "what")}
    item = text(given["item"], f"{where}: item") if given.get("item") is not None else None
    filters = checked_filters(given["filters"], f"{where}: filters")
    return {**told, "item": item, "filters": filters, "expect": checked_expect(given.get("expect"), f"{where}: expect")}


def checked_filters(given: Any, where: str) -> dict[str, list[str]]:
    if not isinstance(given, Mapping) or not given:
        raise ItemsProblem(f"{where}: FACTOR: VALUE pairs are wanted; factors: {', '.join(AXES)}")
    found = {}
    for factor, values in given.items():
        if factor not in AXES:
            refuse(where, factor, AXES, "factor")
        several = values if isinstance(values, list) else [values]
        for value in several:
            if isinstance(value, float):
                raise ItemsProblem(f"{where}: {factor}: {value} may not be what was meant; put it in quotes")
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise ItemsProblem(f"{where}: {factor}: {value!r} is no value; allowed: text, a whole number, a list")
        if not several:
            raise ItemsProblem(f"{where}: {factor}: the list is empty; allowed: one value or more")
        found[factor] = list(dict.fromkeys(text(value, f"{where}: {factor}") for value in several))
    if math.prod(map(len, found.values())) > MOST_COMBINATIONS:
        raise ItemsProblem(f"{where}: more than {MOST_COMBINATIONS} combinations of values; make several claims of it")
    return found


def checked_expect(given: Any, where: str) -> dict[str, Any]:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ItemsProblem(f"{where}: NAME: VALUE pairs are wanted; names: {', '.join(EXPECTATIONS)}")
    found: dict[str, Any] = {"status": ["ok"]}
    for name, value in given.items():
        if name not in EXPECTATIONS:
            refuse(where, name, EXPECTATIONS, "expectation")
        if name in ("status", "verdict"):
            allowed = STATUSES if name == "status" else VERDICTS[:-1]  # the last is a failed cell's, which has a status
            found[name] = value if isinstance(value, list) and value else [value]
            for one in found[name]:
                if one not in allowed:
                    refuse(f"{where}: {name}", one, allowed, name)
        elif name in ("identical", "sensible"):
            if value != "all":
                refuse(f"{where}: {name}", value, ("all",), "value")
            found[name] = value
        else:
            found[name] = multiple_of(value, f"{where}: {name}")
    if "ok" not in found["status"] and len(found) > 1:
        odd = ", ".join(name for name in found if name != "status")
        raise ItemsProblem(f"{where}: {odd} cannot be asked of cells that fail; add ok to status, or leave it out")
    return found


def multiple_of(value: Any, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ItemsProblem(f"{where}: {value!r} is no multiple of the noise; allowed: a number, 0 or more")
    return number


def keys(given: Any, needed: Sequence[str], more: Sequence[str], where: str) -> None:
    """Refuse unknown keys and missing ones."""
    known = (*needed, *more)
    if not isinstance(given, Mapping):
        raise ItemsProblem(f"{where}: KEY: VALUE pairs are wanted; keys: {', '.join(known)}")
    for key in given:
        if key not in known:
            refuse(where, key, known, "key")
    if missing := [key for key in needed if given.get(key) is None]:
        quoted = "; what begins with # needs quotes" if missing == ["key"] else ""
        raise ItemsProblem(f"{where}: {', '.join(missing)} is missing; needed: {', '.join(needed)}{quoted}")


def refuse(where: str, value: Any, allowed: Sequence[str], kind: str) -> None:
    near = difflib.get_close_matches(str(value), allowed, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ItemsProblem(f"{where}: there is no {kind} {value!r}{meant}; allowed: {', '.join(allowed) or 'none yet'}")


def text(value: Any, where: str) -> str:
    """Text of one line."""
    found = " ".join(str(value).split()) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not found or not found.isprintable():
        raise ItemsProblem(f"{where}: {value!r} is not allowed; allowed: text that can be printed")
    return found


def day_of(value: Any, where: str) -> str:
    try:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value.isoformat()
        return datetime.strptime(value, "%Y-%m-%d").date().isoformat()
    except (TypeError, ValueError) as error:
        raise ItemsProblem(f"{where}: {value} is no date; allowed: YYYY-MM-DD") from error


# Judging


def newest_cells(engine: Engine, claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The newest cell of each combination of all factors that a claim's filters find.

    A row is that of `query.cell_rows` with "day" (of the result), "final",
    "multiple" of the noise, and "answers" (`candidate_sensible` of each prompt).
    """
    asked = claim["expect"]["status"]
    ended = [
        row
        for row in query.cell_rows(engine, claim["filters"])
        if row["status"] != query.PENDING and (row["status"] not in NOT_TRIED or row["status"] in asked)
    ]
    newest = {tuple(row[axis] or "" for axis in AXES): row for row in query.of_one_measurement(ended)}
    results = {row["result"] for row in newest.values()}
    prompts = detail.prompts_of(engine, list(results))
    with reading(engine) as session:
        found = session.execute(select(Result.id, Result.created, Result.final).where(Result.id.in_(results)))
        about = {id: {"day": created.date().isoformat(), "final": final} for id, created, final in found}
    return [
        row
        | about[row["result"]]
        | {
            "multiple": largest_multiple(prompts.get(row["result"], [])),
            "answers": [prompt.candidate_sensible for prompt in prompts.get(row["result"], [])],
        }
        for row in sorted(newest.values(), key=lambda row: row["cell"])
    ]


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
    "held": cells that hold where others do not, "nonsense": matches on a
    reference that is nonsense itself, "stand_ins",
    "reservations" (what is wrong beside these cells' numbers), "each": {"cell", "builder",
    "day", "holds": True, False or None, "why"} of every cell, "filters", and
    "missing": how many combinations of their values have no cell}.
    """
    each = [
        {"cell": row["cell"], "builder": row["builder"], "day": row["day"]} | held_to(claim["expect"], row)
        for row in rows
    ]
    there = {tuple(row[factor] or "" for factor in claim["filters"]) for row in rows}
    missing = math.prod(len(values) for values in claim["filters"].values()) - len(there)
    against, open_ones, good = ([one for one in each if one["holds"] is held] for held in (False, None, True))
    words = ((against, CONTRADICTED), (open_ones, UNDECIDED), (good, PARTLY if missing else VERIFIED))
    about, word = next(((cells, word) for cells, word in words if cells), ([], NO_CELL))
    shown = {one["cell"] for one in about}
    return {
        "name": claim["name"], "item": claim["item"], "what": claim["what"], "verdict": word,
        "cells": [one["cell"] for one in about],
        "builders": sorted({one["builder"] for one in about}, key=query.release_order),
        "day": max((one["day"] for one in about), default=None),
        "why": about[0]["why"] if about else "",
        "held": [one["cell"] for one in good if one["cell"] not in shown],
        "nonsense": sum(row["nonsense_count"] or 0 for row in rows if row["cell"] in shown),
        "stand_ins": sorted({row["stand_in"] for row in rows if row["stand_in"]}),
        "reservations": sorted({said for row in rows if row["cell"] in shown for said in beside(row)}),
        "each": each, "filters": claim["filters"], "missing": missing,
    }  # fmt: skip


def held_to(expect: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a cell is as expected: {"holds": True, False, or None where it cannot say, "why"}."""
    if row["status"] not in expect["status"]:
        why = f"{row['status']}: {row['error']}" if row["error"] else f"status {row['status']}"
        # What another run may give, and what is not the export's, is no finding.
        finding = row["status"] == "ok" or (row["final"] and row["status"] != "reference_failed")
        return {"holds": False if finding else None, "why": why}
    if row["status"] != "ok":
        return {"holds": True, "why": ""}
    said = list(shortfalls(expect, row))
    against = [why for holds, why in said if holds is False]
    return {
        "holds": False if against else None if said else True,
        "why": ", ".join(against or [why for _, why in said]),
    }


def shortfalls(expect: Mapping[str, Any], row: Mapping[str, Any]) -> Iterable[tuple[bool | None, str]]:
    """What speaks against a compared cell (False), or leaves it open (None)."""
    if "verdict" in expect and row["verdict"] not in expect["verdict"]:
        yield (False, f"verdict {row['verdict']}") if row["verdict"] else (None, "no noise floor")
    if "identical" in expect and not 0 < row["prompts_count"] == row["identical_count"]:
        yield False, f"identical {identical(row)}"
    if "sensible" in expect:
        right = sum(answer is True for answer in row["answers"])
        if False in row["answers"]:
            yield False, f"sensible {right} of {len(row['answers'])}"
        elif right < len(row["answers"]) or not row["answers"]:
            count = len(row["answers"])
            yield None, f"sensible {right} of {count}, the others not known (nothing expected, not decided, or cut)"
    for name, allowed in (("at_most", lambda x, n: x <= n), ("above", lambda x, n: x > n)):
        if name in expect and row["multiple"] is None:
            yield None, "no noise floor"
        elif name in expect and not allowed(row["multiple"], expect[name]):
            yield False, f"{row['multiple']:.3g} × noise, expected {name.replace('_', ' ')} {expect[name]:g}"
