"""The status table: what each issue or pull request is about, its state, and what the newest cells say of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from db import items
from db.engine import open_database
from db.output import markdown_code, markdown_table, markdown_text
from reports import older
from reports.commands import patch_words, quoted
from reports.table import cells, multiple, words

CONF = Path(__file__).resolve().parents[1] / "conf"
ERROR_LENGTH = 80
MOST_REASONS = 3
NO_CLAIM = "no claim: no cell is held to it"
WEAK = "weak: any such failure counts, since the claim gives no error_type or error_contains"


def collect(db: str | None) -> dict[str, Any]:
    """The report as data: {"items": each with its "states" and judged "claims", "claims": those without an item}."""
    engine = open_database(db, create=False)
    judged = [items.judge(claim, items.newest_cells(engine, claim)) for claim in items.claim_rows(engine)]
    for claim in judged:
        claim["commands"] = commands(claim["filters"]) if claim["missing"] or claim["unknown"] else []
    rows = items.item_rows(engine)
    remeasure = older.of_claims(engine, items.claim_rows(engine))
    engine.dispose()
    return {
        "items": [row | {"claims": [claim for claim in judged if claim["item"] == row["key"]]} for row in rows],
        "claims": [claim for claim in judged if claim["item"] is None],
        "remeasure": remeasure,
    }


def markdown(report: dict[str, Any]) -> str:
    """The items' table, that of claims without an item, and the history of states that have changed."""
    rows, claims = report["items"], report["claims"]
    if not rows and not claims:
        return "No items or claims are kept: `python -m db items load docs/status.yaml` for an example."
    parts = []
    if rows:
        body = [
            [
                linked(row),
                markdown_text(row["what"]),
                dated(row),
                "; ".join(named(claim) for claim in row["claims"]) or NO_CLAIM,
            ]
            for row in rows
        ]
        parts.append(markdown_table(["Item", "What", "State (date)", "Newest cells say"], body, markup=True))
    if claims:
        body = [[markdown_text(claim["name"]), markdown_text(claim["what"]), says(claim)] for claim in claims]
        parts.append(markdown_table(["Claim", "What", "Newest cells say"], body, markup=True))
    histories = [
        f"- {markdown_text(row['key'])}: {', '.join(dated(state) for state in row['states'])}."
        for row in rows
        if len(row["states"]) > 1
    ]
    if histories:
        parts.append("\n".join(["States, oldest first:", "", *histories]))
    return "\n\n".join(parts)


def linked(row: Mapping[str, Any]) -> str:
    """An item's key, leading to its address."""
    if not row["link"]:
        return markdown_text(row["key"])
    address = row["link"].replace("(", "%28").replace(")", "%29").replace("|", "%7C")
    return f"[{markdown_text(row['key'])}]({address})"


def dated(state: Mapping[str, Any]) -> str:
    return f"{markdown_text(state['state'])} ({state['date']})" if state["state"] else ""


def named(claim: Mapping[str, Any]) -> str:
    return f"{markdown_text(claim['name'])}: {says(claim)}"


def says(claim: Mapping[str, Any]) -> str:
    """What the newest cells say of a claim (`items.judge`, with "commands"), in a phrase of markdown."""
    run = ", ".join(markdown_code(command).replace("|", "\\|") for command in claim.get("commands", ()))
    if claim["verdict"] == items.NO_CELL:
        return f"{items.NO_CELL}: {run}"
    builders = ", ".join(builder for builder in claim["builders"] if builder != "none")
    where = f"{claim['verdict']} on {markdown_text(builders)}" if builders else claim["verdict"]
    stand_ins = [f"by the stand-in {name}" for name in claim["stand_ins"]]
    if claim["verdict"] in (items.VERIFIED, items.WEAKLY, items.PARTLY):
        count = len(claim["cells"])
        nonsense = [f"{claim['nonsense']} matches on nonsense"] if claim["nonsense"] else []
        but = [f"although {markdown_text(said)}" for said in claim.get("reservations", ())]
        about = ", ".join([f"{count} cell{'s' * (count != 1)}", *numbers(claim), *nonsense, *stand_ins, *but])
        weak = f"; {WEAK} ({cells(claim['weak'])})" if claim["weak"] else ""
        more = f"; no cell yet for the rest: {run}" if claim["missing"] else ""
        return f"{where}, {claim['day']} ({about}){weak}{more}"
    held = f"; as claimed in {cells(claim['held'])}" if claim["held"] else ""
    unknown = f"; not known: {cells(claim['unknown'])}, again: {run}" if claim["unknown"] else ""
    return f"{where}: {reasons(claim)}{''.join(f', {name}' for name in stand_ins)}{held}{unknown}"


def numbers(claim: Mapping[str, Any]) -> list[str]:
    """What a claim's cells gave: the multiples of the noise, the identical texts, the failures."""
    found = claim["multiples"]
    least, most = (multiple(end) for end in (found[0], found[-1])) if found else ("", "")
    told = [f"{least if least == most else f'{least} – {most}'} × noise"] if found else []
    told += [f"identical {' and '.join(claim['identical'])}"] if claim["identical"] else []
    return told + [markdown_text(cut(error)) for error in claim["errors"]]


def reasons(claim: Mapping[str, Any]) -> str:
    """Each reason with the cells that have it; the first with the day of the newest result."""
    found: dict[str, list[int]] = {}
    for one in claim["each"]:
        if one["cell"] in claim["cells"]:
            found.setdefault(one["why"], []).append(one["cell"])
    days = [f", {claim['day']}", *[""] * MOST_REASONS]
    told = [
        f"{markdown_text(cut(why))}{day} ({cells(those)})"
        for (why, those), day in zip(found.items(), days, strict=False)
    ]
    rest = len(found) - MOST_REASONS
    more = [f"{rest} more reason{'s' * (rest != 1)}"] if rest > 0 else []
    return "; ".join(told[:MOST_REASONS] + more)


def cut(why: str) -> str:
    why = words(why) if why.startswith("verdict") else why
    return why if len(why) <= ERROR_LENGTH else why[: ERROR_LENGTH - 1] + "…"


def commands(filters: Mapping[str, Sequence[str]]) -> list[str]:
    """The commands for the cells that filters ask for: one, and one for each patch that has settings of its own."""

    # What a backend without a builder says of it is no value to ask for. A model or a builder that no file of `conf/`
    # names was a folder, and a filter has its name alone.
    filters = {factor: v for factor, v in filters.items() if not (factor == "builder" and set(v) == {"none"})}
    fixed = [word for factor, v in filters.items() if factor not in ("patch", "options") for word in asked(factor, v)]
    fixed += [word for value in filters.get("options", ()) for word in value.split()]
    parts = [patch_words(label) for label in filters.get("patch", ())]
    plain = [words[0] for words in parts if len(words) == 1]
    several = [[f"patch={','.join(plain)}"]] if plain else [[]] * (not parts)
    several += [[f"patch={words[0]}", *words[1:]] for words in parts if len(words) > 1]
    return [shlex.join(["python", "-m", "runner", "-m", *fixed, *words]) for words in several]


def asked(factor: str, values: Sequence[str]) -> list[str]:
    """The words that ask for some values of a factor; of a folder's name the place stays open (FOLDER/NAME)."""
    name = values[0]
    if factor in ("model", "builder") and len(values) == 1 and not is_named(factor, name):
        if factor == "model" and (CONF / "family" / f"{name.removeprefix('random_')}.yaml").is_file():
            return ["model=random", f"model.family={name.removeprefix('random_')}"]
        return [f"{factor}=path", f"{factor}.path={quoted(f'FOLDER/{name}')}"]
    return [f"{factor}={','.join(map(quoted, values))}"]


def is_named(factor: str, name: str) -> bool:
    """Whether a model or builder can be asked for by its name: a file of `conf/`, or a release's version."""
    return (CONF / factor / f"{name}.yaml").is_file() or (
        factor == "builder" and re.fullmatch(r"[\d.]+", name) is not None
    )
