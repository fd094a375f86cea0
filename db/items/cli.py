"""``python -m db items``: the issues and pull requests that a status table shows, and what cells are held to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from db import items, output
from db.engine import open_database

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Db = Annotated[Optional[str], typer.Option("--db", help="An SQLAlchemy URL or a path.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(output.FORMATS)}.")]
Pairs = Optional[list[str]]
ITEM_COLUMNS = ("key", "what", "state", "date", "link", "claims")
CLAIM_COLUMNS = ("name", "item", "what", "filters", "expect")
STATE_COLUMNS = ("date", "state", "recorded")


@app.command()
def load(file: Path, db: Db = None) -> None:
    """Keep the items and claims of a YAML file, all or none; what is there already is brought up to date."""
    found = items.load(open_database(db), file)
    print(f"kept: items {found['items']} (new states {found['states']}), claims {found['claims']}")


@app.command(name="set")
def set_state(
    key: str,
    state: Annotated[str, typer.Option("--state", help="In a few words: In review, Merged, …")],
    date: Annotated[Optional[str], typer.Option("--date", help="Since when, YYYY-MM-DD; today by default.")] = None,
    what: Annotated[Optional[str], typer.Option("--what", help="What it is about; needed the first time.")] = None,
    link: Annotated[Optional[str], typer.Option("--link", help="Its address.")] = None,
    db: Db = None,
) -> None:
    """Say what an item's state is. Earlier states are kept."""
    added = items.set_state(open_database(db), key, state, date, what, link)
    print(f"{key}: {state}{'' if added else ' (it was known)'}")


@app.command(name="list")
def show_list(
    claims: Annotated[bool, typer.Option("--claims", help="The claims, with what they ask, instead.")] = False,
    format: Format = "table",
    db: Db = None,
) -> None:
    """One row an item, with its present state and the names of its claims."""
    engine = open_database(db, create=False)
    kept = items.claim_rows(engine)
    if claims:
        rows = [row | {name: pairs_of(row[name]) for name in ("filters", "expect")} for row in kept]
        output.show(kept if format == "json" else rows, CLAIM_COLUMNS, format)
        return
    names: dict[str, list[str]] = {}
    for claim in kept:
        names.setdefault(claim["item"], []).append(claim["name"])
    rows = [row | {"claims": ", ".join(names.get(row["key"], []))} for row in items.item_rows(engine)]
    output.show(rows, ITEM_COLUMNS, format)


@app.command()
def history(key: str, format: Format = "table", db: Db = None) -> None:
    """One row a state that an item has had, oldest first."""
    engine = open_database(db, create=False)
    states = items.one_of(items.item_rows(engine), "key", key, "item")["states"]
    rows = [state | {"recorded": state["recorded"].strftime("%Y-%m-%d %H:%M:%S")} for state in states]
    output.show(rows, STATE_COLUMNS, format)


@app.command()
def claim(
    name: str,
    what: Annotated[str, typer.Option("--what", help="What is claimed, in a sentence.")],
    filter: Annotated[Pairs, typer.Option("--filter", help="factor=value; again for more values or factors.")] = None,
    expect: Annotated[
        Pairs,
        typer.Option(
            "--expect",
            help=f"name=value, or name.key=value (identical.from=2, text.PROMPT.contains=X); names:"
            f" {', '.join(items.EXPECTATIONS)}.",
        ),
    ] = None,
    item: Annotated[Optional[str], typer.Option("--item", help="The key of the item that it is about.")] = None,
    db: Db = None,
) -> None:
    """Keep a claim: what the newest cells that its filters find are held to."""
    filters, expected = several(filter, "--filter"), several(expect, "--expect")
    given = {"name": name, "what": what, "item": item, "filters": filters, "expect": nested(expected)}
    items.add_claim(open_database(db), given)
    print(f"{name} is kept")


def several(pairs: Pairs, option: str) -> dict[str, list[str]]:
    """{name: its values} of ``name=value`` words. Errors: `typer.BadParameter`."""
    found: dict[str, list[str]] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not name=value", param_hint=option)
        found.setdefault(key, []).append(value)
    return found


def nested(values: dict[str, list[str]]) -> dict[str, Any]:
    """{"a": v, "b": {"c": v}} of {"a": [v], "b.c": [v]}: a list of one is its value. Errors: `typer.BadParameter`."""
    found: dict[str, Any] = {}
    for path, given in values.items():
        *folders, last = path.split(".")
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
            if not isinstance(place, dict):
                raise typer.BadParameter(f"{folder} has a value already; {path} asks for its inside")
        if isinstance(place.get(last), dict):
            raise typer.BadParameter(f"{last} has an inside already; {path} gives it a value")
        place[last] = given[0] if len(given) == 1 else given
    return found


def pairs_of(values: dict[str, Any], above: str = "") -> str:
    """What `nested` was made of, in words."""
    told = []
    for key, value in values.items():
        if isinstance(value, dict):
            told.append(pairs_of(value, f"{above}{key}."))
        else:
            told.append(f"{above}{key}={', '.join(map(str, value)) if isinstance(value, list) else value}")
    return "; ".join(told)
