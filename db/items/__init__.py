"""Items (issues and pull requests with a state) and claims (what newest cells are held to), kept and judged.

Both come from a YAML file or the command line and are checked alike; a file is
taken whole or not at all. `checking` reads what is given, `expect` is what a
claim expects, `judging` holds cells to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from db import query
from db.engine import reading, writing
from db.items.checking import checked_claim, checked_item, read_file
from db.items.expect import EXPECTATIONS, STATUSES
from db.items.judging import (
    CONTRADICTED,
    NO_CELL,
    PARTLY,
    UNDECIDED,
    VERIFIED,
    WEAKLY,
    judge,
    newest_cells,
)
from db.items.problems import ItemsProblem, refuse
from db.models import Claim, Item, ItemState, now

__all__ = (
    "CONTRADICTED", "EXPECTATIONS", "NO_CELL", "PARTLY", "STATUSES", "UNDECIDED", "VERIFIED", "WEAKLY",
    "ItemsProblem", "add_claim", "checked_claim", "claim_rows", "item_rows", "judge", "load", "newest_cells", "one_of",
    "set_state",
)  # fmt: skip


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
