"""The rows of a loader audit: folded over layers, joined over ranks, put into words. Knows nothing of torch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

FAULTS = ("defaulted", "differs")
ABSENT = "not in the checkpoint"
IGNORED = "the class ignores it"
NUMBER = re.compile(r"(^|\.)(\d+)(?=\.|$)")
# Of one line: it names so many rows, and counts the rest.
MOST_NAMED = 12


def entry(name: str, kind: str, outcome: str, says: str = "", numbers: tuple[float, ...] = (), **sizes) -> dict:
    """One tensor, before it is folded.

    says: with ``{}`` where `numbers` go. sizes: shape, held, stored, loaded, as a row has them.
    """
    absent = {"shape": None, "held": None, "stored": None, "loaded": None}
    return {"name": name, "kind": kind, "outcome": outcome, "says": says, "numbers": numbers, **absent, **sizes}


def starred(name: str) -> str:
    """`name` with ``*`` for each number that is a part of it: a layer's, an expert's."""
    return NUMBER.sub(r"\1*", name)


def layer_of(name: str) -> int | None:
    """The first number in a name: its layer's."""
    match = NUMBER.search(name)
    return int(match.group(2)) if match else None


def folded(entries: Iterable[dict], loader: str) -> list[dict]:
    """Rows from entries: those that differ in layer, expert and numbers only are one, at the first one's place."""
    groups: dict[str, list[dict]] = {}
    for each in entries:
        alike = {key: value for key, value in each.items() if key != "numbers"}
        alike["name"] = starred(each["name"])
        groups.setdefault(json.dumps(alike), []).append(each)
    rows = []
    for key, members in groups.items():
        alike = json.loads(key)
        layers = sorted({layer for each in members if (layer := layer_of(each["name"])) is not None})
        numbers = zip(*(each["numbers"] for each in members), strict=True)
        rows.append({
            "loader": loader, "name": alike["name"], "layers": layers or None, "count": len(members),
            "kind": alike["kind"], "outcome": alike["outcome"], "shape": alike["shape"], "held": alike["held"],
            "stored": alike["stored"], "loaded": alike["loaded"], "says": alike["says"].format(*map(spread, numbers)),
        })  # fmt: skip
    return rows


def spread(values: Iterable[float]) -> str:
    """``0.359 – 0.656``, or one number where all are the same."""
    values = list(values)
    known = [value for value in values if not math.isnan(value)]
    ends = [min(known), max(known)] if known else []
    ends += [math.nan] if len(known) < len(values) else []
    return " – ".join(dict.fromkeys(f"{value:.3g}" for value in ends))


def merged(audits: list[list[dict]]) -> list[dict]:
    """The audits of several ranks as one: a row that all have once, others with the ranks that have it.

    Rows keep the order of the first rank that has them.
    """
    order: list[str] = []
    ranks: dict[str, list[int]] = {}
    for rank, rows in enumerate(audits):
        place = 0
        for row in rows:
            key = json.dumps(row)
            if key not in ranks:
                while place < len(order) and json.loads(order[place])["name"] == row["name"]:
                    place += 1
                order.insert(place, key)
            ranks.setdefault(key, []).append(rank)
            place = order.index(key) + 1
    joined = []
    for key in order:
        row, having = json.loads(key), ranks[key]
        if len(having) < len(audits):
            word = "rank" if len(having) == 1 else "ranks"
            row["says"] = f"{word} {', '.join(map(str, having))}: {row['says'] or row['outcome']}"
        joined.append(row)
    return joined


def faults(rows: list[dict]) -> list[dict]:
    """The rows that make another model of it: kept defaults, and values that are not the checkpoint's."""
    return [row for row in rows if row["outcome"] in FAULTS]


def fault_line(rows: list[dict]) -> str:
    """The faults in one line, with layers and values; "" where there are none."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in faults(rows):
        if row["outcome"] == "differs":
            said = ("has another value than the checkpoint", "have other values than the checkpoint")
        elif row["shape"] is None:
            said = ("has no value in the checkpoint", "have no value in the checkpoint")
        else:
            said = ("keeps its default while the checkpoint has a value",
                    "keep their default while the checkpoint has a value")  # fmt: skip
        groups.setdefault((row["kind"], said), []).append(row)
    return "; ".join(f"{counted(of, kind)} {said[of_all(of) > 1]}: {named(of)}" for (kind, said), of in groups.items())


def finding(rows: list[dict]) -> list[dict]:
    """Warnings: {"prompt": None, "check": "loading", "evidence"} for the faults, and for keys that nothing took."""
    dropped = [row for row in rows if row["outcome"] == "dropped" and not row["says"].endswith(IGNORED)]
    is_are = "is" if of_all(dropped) == 1 else "are"
    lines = [fault_line(rows)]
    if dropped:
        lines.append(f"{counted(dropped, 'key')} of the checkpoint {is_are} dropped: {named(dropped)}")
    return [{"prompt": None, "check": "loading", "evidence": line} for line in lines if line]


def of_all(rows: list[dict]) -> int:
    return sum(row["count"] for row in rows)


def counted(rows: list[dict], word: str) -> str:
    count = of_all(rows)
    return f"{count} {word}{'' if count == 1 else 's'}"


def named(rows: list[dict]) -> str:
    """Each row's name, with its layers and words in brackets."""
    parts = []
    for row in rows[:MOST_NAMED]:
        says = "" if row["says"] == ABSENT else row["says"]
        inside = ": ".join(filter(None, (layers_in_words(row["layers"]), says)))
        parts.append(f"{row['name']} ({inside})" if inside else row["name"])
    rest = f"; and {of_all(rows[MOST_NAMED:])} more" if len(rows) > MOST_NAMED else ""
    return ", ".join(parts) + rest


def layers_in_words(layers: list[int] | None) -> str:
    """``layers 0 – 2, 5``, ``layer 3``, "" for None."""
    if not layers:
        return ""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], layer]
        else:
            runs.append([layer])
    words = ", ".join(" – ".join(map(str, run)) for run in runs)
    return f"layer{'' if len(layers) == 1 else 's'} {words}"
