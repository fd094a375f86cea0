"""Reading what is given as items and claims, from a YAML file or the command line. Errors: `ItemsProblem`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import yaml

from db.items import expect
from db.items.problems import ItemsProblem, keys, refuse, text
from db.models import AXES

ITEM_KEYS, ITEM_MORE = ("key", "what", "state", "date"), ("link",)
CLAIM_KEYS, CLAIM_MORE = ("name", "what", "filters"), ("item", "expect")
MOST_COMBINATIONS = 10_000


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
    return {**told, "item": item, "filters": filters, "expect": expect.checked(given.get("expect"), f"{where}: expect")}


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


def day_of(value: Any, where: str) -> str:
    try:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value.isoformat()
        return datetime.strptime(value, "%Y-%m-%d").date().isoformat()
    except (TypeError, ValueError) as error:
        raise ItemsProblem(f"{where}: {value} is no date; allowed: YYYY-MM-DD") from error
