"""What is wrong with an item or a claim that is given: where, what, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn


class ItemsProblem(Exception):
    """An item or a claim that cannot be kept: where, what, and what is allowed."""


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


def refuse(where: str, value: Any, allowed: Sequence[str], kind: str) -> NoReturn:
    near = difflib.get_close_matches(str(value), allowed, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ItemsProblem(f"{where}: there is no {kind} {value!r}{meant}; allowed: {', '.join(allowed) or 'none yet'}")


def text(value: Any, where: str) -> str:
    """Text of one line."""
    found = " ".join(str(value).split()) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not found or not found.isprintable():
        raise ItemsProblem(f"{where}: {value!r} is not allowed; allowed: text that can be printed")
    return found
