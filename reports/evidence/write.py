"""`write`: a claim's evidence from the database, and the checkpoint from where it lies, to a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from db import detail, items, query
from db.engine import open_database
from db.findings import why_unknown
from reports import notes, proof, status
from reports import sweep as sweep_report
from reports.evidence import checkpoints, data, packages, readme
from reports.evidence import facts as cell_facts
from reports.evidence import steps as steps_of
from reports.evidence.place import MADE_BY, place, refuse_foreign
from reports.hiding import hidden, hider, labels

# Files that go into the folder as they are.
SCRIPTS = Path(__file__).parent / "folder"
# What a table says of this project's commands.
OURS = re.compile(r"[;:] `python -m db show \d+`| [^.\n]*: `python -m (?:db|reports|runner|benchmarks)\b[^`]*`\.")
ENCLOSE_UP_TO = 20.0  # megabytes, of a checkpoint


def write(
    db: str | None,
    claim: str,
    out: Path,
    store: Path | None = None,
    enclose_up_to: float = ENCLOSE_UP_TO,
    main_diff: Path | None = None,
) -> list[Path]:
    """Write the evidence for a claim to the folder `out`, whole or not at all. Returns its files.

    store: where artifacts lie. enclose_up_to: megabytes; a larger checkpoint's
    origin and hashes are told instead. main_diff: the patch against the
    builder's main, a unified diff of its `models` folder; by default that of
    the newest cell with the same patch on main.
    Errors: `query.NotInDatabase` where there is no such claim, or no cell for
    it yet; `OutRefused` where `out` holds what this command has not written.
    """
    engine = open_database(db, create=False)
    kept = items.one_of(items.claim_rows(engine), "name", claim, "claim")
    rows = items.newest_cells(engine, kept)
    known = [row for row in rows if row["known"]]
    if not known:
        run = " ; ".join(status.commands(kept["filters"]))
        why = "".join(f"cell {row['cell']} is not known: {why_unknown(row)}; " for row in rows)
        raise query.NotInDatabase(f"claim {claim!r} has no cell yet: {why}{run}")
    out = Path(out).absolute()
    refuse_foreign(out)  # before the work, and again when it is done
    designs = cell_facts.designs_with(db, kept, known)
    every = cell_facts.with_proof(engine, kept, known, designs)
    facts = [cell_facts.facts_of(engine, row) for row in every]
    asked = Asked(checkpoints.store_of(store), enclose_up_to, main_diff)
    files, copies = contents(engine, kept, rows, designs, facts, asked)
    engine.dispose()
    place(files, copies, out)
    return [out / name for name in [*files, *copies]]


@dataclass(frozen=True)
class Asked:
    """What the command was given: the store, megabytes of a checkpoint to enclose, a diff against main."""

    store: Path
    enclose_up_to: float
    main_diff: Path | None


def contents(
    engine: Engine,
    claim: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    designs: Sequence[dict[str, Any]],
    facts: Sequence[dict[str, Any]],
    asked: Asked,
) -> tuple[dict[str, str], dict[str, Path]]:
    """The folder's texts by name, without what is personal, and the files that are copied."""
    hide = hider(facts)
    given, of = checkpoints.of_cells(facts, asked.store, asked.enclose_up_to, hide)
    main = {fact["row"]["cell"]: one for fact in facts if (one := main_of(engine, fact, asked.main_diff))}
    for fact, label in zip(facts, labels(facts), strict=True):
        row = {**fact["row"], "model": label}
        fact["row"] = {name: hide(value) if isinstance(value, str) else value for name, value in row.items()}
        fact["against"] = against(fact)
    results = [data.results_of(engine, fact) for fact in facts]
    data.with_checks(results, claim["expect"])
    by_cell = {one["cell"]: one for one in results}
    sets = data.prompt_sets(engine, facts, of, by_cell)
    environments = packages.package_files(facts)
    shown = table(engine, [fact["row"] for fact in facts])
    steps = steps_of.steps(facts, environments, sets, given, of, by_cell)

    diffs = {f"cell-{fact['row']['cell']}.patch.diff": fact["diff"] for fact in facts if fact["diff"]}
    diffs |= {f"cell-{cell}.main.diff": one["diff"] for cell, one in main.items() if one["diff"]}
    altered = [name for name, text in diffs.items() if hide(text, True) != text]
    judged = items.judge(claim, rows)
    judged["commands"] = status.commands(claim["filters"]) if judged["missing"] or judged["unknown"] else []
    item = next((row for row in items.item_rows(engine) if row["key"] == claim["item"]), None)
    proofs = (
        "## What is proven\n\nChanges judged from cells that differ in nothing else: `proof.md`." if designs else ""
    )
    parts = [
        readme.head(judged, item), readme.found(shown, judged), proofs, readme.patches(facts, main, altered),
        readme.reproduce(steps, results), readme.measured(facts), readme.reading(results),
    ]  # fmt: skip
    told = {
        "README.md": "\n\n".join(filter(None, parts)) + "\n",
        "table.md": shown,
        **({"proof.md": proof.markdown({"designs": designs})} if designs else {}),
        "commands.txt": data.commands(facts),
    }
    files = {name: hide(text) for name, text in told.items()}
    files |= {name: hide(text, True) for name, text in diffs.items()}
    # Verbatim: a version of four numbers looks like a machine's address.
    files |= {f"packages/{stem}.txt": hide(packages.lines(entry), True) for stem, entry in environments.items()}
    files["run.sh"] = hide(steps_of.run_script(steps), True)
    files["prompts.json"] = data.as_json(hidden({"sets": sets}, hide))
    files["results.json"] = data.as_json(hidden({"cells": results}, hide))
    files["checkpoints.json"] = data.as_json(hidden({"checkpoints": [one.as_data() for one in given]}, hide))
    files["parting.md"] = hide(data.parting(engine, facts), True)
    files |= {f"{one.folder}/{name}": text for one in given for name, text in one.altered.items() if one.enclosed}
    files |= {path.name: path.read_text(encoding="utf-8") for path in sorted(SCRIPTS.glob("[!_]*.py"))}
    copies = {f"{one.folder}/{name}": path for one in given for name, path in one.copies.items()}
    copies = {name: path for name, path in copies.items() if name not in files}
    cells = [data.hashes(fact) for fact in facts]
    made = {"made_by": MADE_BY, "files": sorted([*files, *copies, "hashes.json"]), "cells": cells}
    return files | {"hashes.json": data.as_json(made)}, copies


def against(fact: Mapping[str, Any]) -> str:
    """The sources that a cell's patch was applied to, in words."""
    if fact["config"].get("builder", {}).get("kind", "release") == "release":
        return f"the release {fact['row']['builder']}"
    return fact["row"]["builder"] + f" at {fact['commit']}" * bool(fact["commit"])


def main_of(engine: Engine, fact: Mapping[str, Any], diff: Path | None) -> dict[str, Any] | None:
    """The patch of a release's cell against main: what was given, or what the database has."""
    row = fact["row"]
    if fact["config"].get("builder", {}).get("kind", "release") != "release" or row["patch"] == "none":
        return None
    folder = steps_of.MODELS
    if diff:
        text = Path(diff).read_text(encoding="utf-8")
        # A diff of the whole repository names the folder itself.
        folder = "." if f"/{folder}/" in text else folder
        return {"builder": "main", "commit": None, "dirty": None, "diff": text, "outcome": None, "folder": folder}
    found = cell_facts.against_main(engine, fact)
    return found and {**found, "folder": folder}


def table(engine: Engine, rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of a sweep, of these cells, without what only this project's commands can show."""
    prompts = detail.prompts_of(engine, sorted({row["result"] for row in rows}))
    shown = [
        row | sweep_report.from_prompts(prompts.get(row["result"], []), row)
        for row in notes.with_findings(engine, [dict(row) for row in rows])
    ]
    return OURS.sub("", sweep_report.table({"rows": shown})) + "\n"
