"""A folder for an upstream maintainer: what a claim's newest cells measured, and how to see it without this project."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from db import detail, items, query
from db.artifacts import Overlay
from db.engine import open_database, reading
from db.findings import why_unknown
from db.models import FACTORS, Cell, Environment
from db.output import markdown_table, markdown_text
from reports import notes, proof, status
from reports import sweep as sweep_report
from reports.hiding import hidden, hider, labels
from reports.reproduction import COMPARE, package_files, reproduce
from reports.table import cells as cells_of
from reports.table import number

Rows = Sequence[Mapping[str, Any]]
MADE_BY = "python -m reports evidence"
PROMPT_COLUMNS = (
    "matched_tokens", "compared_tokens", "tokens_identical", "noise_floor", "noise_ratio", "forced_noise_ratio",
    "verdict", "outcome", "reference_outcome", "sensible", "candidate_sensible", "reference_text", "candidate_text",
)  # fmt: skip
OURS = ("store.", "db.", "env.python", "limits.", "hydra", "jobs=", "rerun=")  # overrides that say where and how


class OutRefused(FileExistsError):
    """The folder to write has other files than those of this command."""


def write(db: str | None, claim: str, out: Path) -> list[Path]:
    """Write the evidence for a claim to the folder `out`, whole or not at all. Returns its files.

    Errors: `query.NotInDatabase` where there is no such claim, or no cell for
    it yet; `OutRefused` where `out` holds what this command has not written.
    """
    engine = open_database(db, create=False)
    kept = items.one_of(items.claim_rows(engine), "name", claim, "claim")
    rows = items.newest_cells(engine, kept)
    if not any(row["known"] for row in rows):
        run = " ; ".join(status.commands(kept["filters"]))
        why = "".join(f"cell {row['cell']} is not known: {why_unknown(row)}; " for row in rows)
        raise query.NotInDatabase(f"claim {claim!r} has no cell yet: {why}{run}")
    out = Path(out).absolute()
    refuse_foreign(out)  # before the work, and again when it is done
    files = contents(engine, kept, rows, proven(db, kept, rows))
    engine.dispose()
    place(files, out)
    return [out / name for name in files]


def proven(db: str | None, claim: Mapping[str, Any], rows: Rows) -> str:
    """The proof tables that the claim's cells stand in, their baselines beside them."""
    filters = {f: values for f, values in claim["filters"].items() if f in FACTORS and f != "patch"}
    mine = {row["cell"] for row in rows}
    designs = proof.collect(db, filters)["designs"] if filters else []
    designs = [design for design in designs if mine & {row["cell"] for row in design["rows"]}]
    return proof.markdown({"designs": designs}) if designs else ""


def contents(engine: Engine, claim: Mapping[str, Any], rows: Rows, proofs: str) -> dict[str, str]:
    """The folder's files by name, without what is personal."""
    facts = [facts_of(engine, row) for row in rows if row["known"]]
    hide = hider(facts)
    for fact, label in zip(facts, labels(facts), strict=True):
        row = {**fact["row"], "model": label}
        fact["row"] = {name: hide(value) if isinstance(value, str) else value for name, value in row.items()}
    shown = table(engine, [fact["row"] for fact in facts])
    packages = package_files(facts)
    prompts = prompt_sets(engine, facts)
    told = {
        "table.md": shown,
        **({"proof.md": proofs} if proofs else {}),
        **{f"packages/{stem}.txt": lines(packages[stem]["packages"]) for stem in packages},
        "commands.txt": commands(facts),
    }
    files = {name: hide(text) for name, text in told.items()}
    files |= {f"cell-{f['row']['cell']}.patch.diff": hide(f["diff"], True) for f in facts if f["diff"]}
    files["prompts.json"] = as_json(hidden({"sets": prompts}, hide))
    files["results.json"] = as_json(hidden({"cells": [results_of(engine, fact) for fact in facts]}, hide))
    files["parting.md"] = hide(parting(engine, facts), True)
    files["compare.py"] = COMPARE
    judged = items.judge(claim, rows)
    judged = hidden(judged, hide)
    judged["commands"] = status.commands(claim["filters"]) if judged["missing"] or judged["unknown"] else []
    item = next((row for row in items.item_rows(engine) if row["key"] == claim["item"]), None)
    altered = [f"cell-{f['row']['cell']}.patch.diff" for f in facts if hide(f["diff"], True) != f["diff"]]
    shows = "## What is proven\n\nChanges judged from cells that differ in nothing else: `proof.md`." if proofs else ""
    readme = [head(judged, item), measured(facts), found(shown, judged), shows]
    readme = [*filter(None, readme), reproduce(facts, packages, prompts, altered)]
    files = {"README.md": hide("\n\n".join(readme) + "\n"), **files}
    made = {"made_by": MADE_BY, "files": sorted([*files, "hashes.json"]), "cells": [hashes(fact) for fact in facts]}
    return files | {"hashes.json": as_json(made)}


def facts_of(engine: Engine, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell's row does not say: config, sweep, hashes, environments, patch, and where it was computed."""
    with reading(engine) as session:
        cell = session.get_one(Cell, row["cell"])
        result = cell.result
        overlay = session.get(Overlay, result.overlay_tree) if result.overlay_tree else None
        environments = {}
        for role in detail.ROLES:
            made = session.get(Environment, getattr(result, f"{role}_environment_id") or 0)
            if made:
                packages = {package.name: package.version for package in made.packages}
                environments[role] = {"hash": made.hash, "platform": made.platform, "packages": packages}
        return {
            "row": dict(row), "config": cell.config or {}, "sweep": cell.sweep_id, "environments": environments,
            "overrides": list(cell.sweep.overrides), "diff": overlay.diff if overlay else "",
            "commit": cell.source_commit, "dirty": cell.source_dirty, "error": result.error,
            "error_frame": result.error_frame, "stderr": result.stderr_tail,
            "hosts": {cell.sweep.host, result.machine.host if result.machine else ""},
            "hashes": {
                "result": result.hash, "checkpoint": result.checkpoint_hash, "prompts": result.prompts_key,
                "overlay_tree": result.overlay_tree, "source_tree": cell.source_tree, "patch": cell.patch_hash,
                "source_commit": cell.source_commit, "measurement_version": result.measurement_version,
            },
        }  # fmt: skip


# The files


def as_json(data: Any) -> str:
    """Indented, but for lists of plain numbers."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\n\s*[\d\s,.e+-]+\]", lambda found: "".join(found[0].split()).replace(",", ", "), text) + "\n"


def lines(packages: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in packages.items())


def prompt_sets(engine: Engine, facts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What both sides were given, once for the cells that share it, with what `compare.py` needs to know."""
    sets: dict[str, dict[str, Any]] = {}
    for fact in facts:
        rows, config = detail.input_rows(engine, fact["row"]["cell"]), fact["config"]
        if not rows:
            continue
        reference = config.get("reference", {})
        settings = {
            "max_new_tokens": int(fact["row"]["max_new_tokens"]), "threads": int(fact["row"]["threads"]),
            "stop_at_end": config.get("prompts", {}).get("stop_at_end", True),
            "compute_dtype": reference.get("compute_dtype", "float32"),
            "attention": reference.get("attention", "eager"),
            "template_hash": rows[0]["template_hash"], "template_source": rows[0]["template_source"],
        }  # fmt: skip
        told = [{"name": row["prompt"], "text": row["text"], "ids": row["ids"]} for row in rows]
        key = json.dumps([settings, fact["hashes"]["prompts"]], sort_keys=True)
        sets.setdefault(key, {"cells": [], **settings, "prompts": told})["cells"].append(fact["row"]["cell"])
    return list(sets.values())


def results_of(engine: Engine, fact: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's outcome and every number of each prompt."""
    row = fact["row"]
    prompts = detail.prompts_of(engine, [row["result"]]).get(row["result"], [])
    numbers = {n["prompt"]: n for n in detail.metric_rows(engine, row["cell"], steps=False)}
    factors = {name: row[name] for name in (*FACTORS, "options")}
    failure = {name: fact[name] for name in ("error", "error_frame", "stderr") if fact[name]}
    each = [
        {"prompt": p.prompt}
        | {
            name: query.KINDS[p.non_finite[name]] if name in (p.non_finite or {}) else getattr(p, name)
            for name in PROMPT_COLUMNS
        }
        | {"metrics": {k: v for k, v in numbers.get(p.prompt, {}).items() if k not in ("prompt", "step")}}
        for p in prompts
    ]
    head = {"cell": row["cell"], **factors, "status": row["status"], "verdict": row["verdict"], **failure}
    return {**head, "multiple_of_noise": row["multiple"], "thresholds": row["thresholds"], "prompts": each}


def hashes(fact: Mapping[str, Any]) -> dict[str, Any]:
    environments = {role: made["hash"] for role, made in fact["environments"].items()}
    return {"cell": fact["row"]["cell"], **fact["hashes"], "environments": environments}


def parting(engine: Engine, facts: Sequence[Mapping[str, Any]]) -> str:
    """Where texts part: the step, by how little the reference chose, and what each side thought likeliest."""
    parts = []
    for fact in facts:
        row = fact["row"]
        for prompt in detail.prompts_of(engine, [row["result"]]).get(row["result"], []):
            if prompt.parting is None:
                continue
            gap = prompt.parting["gap"] or {}
            value = number(gap["value"]) if gap.get("kind") == "finite" else gap.get("kind", "unknown")
            sides = [prompt.parting["top"].get(side) or [] for side in ("reference", "candidate")]
            body = [
                [n + 1, *(cell for side in sides for cell in (side[n] if n < len(side) else [None] * 3))]
                for n in range(max(map(len, sides)))
            ]
            header = ["", "reference: id", "token", "logit", "export: id", "token", "logit"]
            parts.append(
                f"## Cell {row['cell']}, prompt {markdown_text(prompt.prompt)}\n\nThe texts part at step"
                f" {prompt.parting['step']} (from 0). There the reference's two best tokens are {value} apart.\n\n"
                + markdown_table(header, body)
            )
    return "\n\n".join(["# Where the texts part", *(parts or ["They part nowhere."])]) + "\n"


def commands(facts: Sequence[Mapping[str, Any]]) -> str:
    """The runner's commands of the cells' sweeps, without what says where they ran."""
    found = {}
    for fact in facts:
        kept = [word for word in fact["overrides"] if not word.lstrip("+~").startswith(OURS)]
        found.setdefault(shlex.join(["python", "-m", "runner", *kept]), []).append(fact["row"]["cell"])
    return "".join(f"# {cells_of(cells)}\n{command}\n" for command, cells in found.items())


def table(engine: Engine, rows: Rows) -> str:
    """The table of a sweep, of these cells, without what only this project's commands can show."""
    prompts = detail.prompts_of(engine, sorted({row["result"] for row in rows}))
    shown = [
        row | sweep_report.from_prompts(prompts.get(row["result"], []), row)
        for row in notes.with_findings(engine, [dict(row) for row in rows])
    ]
    return re.sub(r"[;:] `python -m db show \d+`", "", sweep_report.table({"rows": shown})) + "\n"


# README.md


def head(judged: Mapping[str, Any], item: Mapping[str, Any] | None) -> str:
    about = f"{status.linked(item)}: {markdown_text(item['what'])}: {status.dated(item)}.\n\n" if item else ""
    name, what = (markdown_text(judged[key]) for key in ("name", "what"))
    return f"# {name}\n\n{about}Claimed: {what}.\n\nFound: {status.says(judged)}."


def measured(facts: Sequence[Mapping[str, Any]]) -> str:
    """How, in five lines."""
    row, config = facts[0]["row"], facts[0]["config"]
    reference = config.get("reference", {})
    versions = {
        name: ", ".join(
            sorted({made["packages"].get(name, "?") for f in facts if (made := f["environments"].get(role))})
        )
        or "?"
        for name, role in (("transformers", "reference"), ("onnxruntime-genai", "runtime"))
    }
    return "\n".join([
        "## How it was measured", "",
        "1. Both sides are given the same token ids (`prompts.json`), made once by the checkpoint's own tokenizer.",
        f"2. Reference: the checkpoint in transformers {versions['transformers']},"
        f" {reference.get('compute_dtype', 'float32')}, {reference.get('attention', 'eager')} attention."
        f" {candidates(facts, versions['onnxruntime-genai'])} Threads: {row['threads']}.",
        f"3. Greedy over the raw logits, up to {row['max_new_tokens']} new tokens; nothing of a generation config.",
        "4. The largest absolute difference of logits: at the first token, at each step while the texts agree, and at"
        " each step when both are fed the reference's tokens (forced).",
        "5. Noise floor: how far the reference moves when computed otherwise (fp64, other attention, other threads, one"
        " pass); verdicts are by multiples of it. Identical: the same tokens, the end token included, and how many"
        " tokens were compared. Cut: the limit came before a text's end, and its answer is not known.", "",
        "`compare.py` prints the first-token and free-running differences; the forced ones and the noise floors, hence"
        " × noise, are in `results.json`.",
    ])  # fmt: skip


def candidates(facts: Sequence[Mapping[str, Any]], runtime: str) -> str:
    """What the candidates were computed by: a sentence for exports, and one for each backend without."""
    rows = [fact["row"] for fact in facts]
    said = [f"Export: on ONNX Runtime GenAI {runtime}."] * any(row["builder"] != "none" for row in rows)
    own = dict.fromkeys((row["backend"], row["source"]) for row in rows if row["builder"] == "none")
    return " ".join([*said, *(f"Backend {backend}: {source}." for backend, source in own)])


def found(shown: str, judged: Mapping[str, Any]) -> str:
    words = {True: "as claimed", False: "not as claimed", None: "cannot say"}
    each = [
        f"- Cell {o['cell']}: {'not known' if o['cell'] in judged['unknown'] else words[o['holds']]}"
        f"{': ' * bool(o['why'])}{markdown_text(o['why'])}."
        for o in judged["each"]
    ]
    return "\n".join(["## What was found", "", shown, *each])


# The folder


def refuse_foreign(out: Path) -> None:
    """Errors: `OutRefused` unless `out` is absent, empty, or this command's with no file added."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_dir():
        raise OutRefused(f"--out {out}: it is no folder; name one that is not there yet")
    there = {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()}
    try:
        about = json.loads((out / "hashes.json").read_text(encoding="utf-8"))
        ours = set(about["files"]) if about["made_by"] == MADE_BY else set()
    except (OSError, ValueError, KeyError, TypeError):
        ours = set()
    if there - ours:
        odd = ", ".join(sorted(there - ours)[:3])
        raise OutRefused(f"--out {out}: it has files that this command did not write ({odd}); name another folder")


def place(files: Mapping[str, str], out: Path) -> None:
    """Write a folder aside and rename it into its place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part, old = (out.with_name(f".{out.name}.{word}-{os.getpid()}") for word in ("part", "old"))
    try:
        for name, text in files.items():
            file = part / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        refuse_foreign(out)
        if out.exists():
            out.rename(old)
        part.rename(out)
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        for folder in (part, old):
            shutil.rmtree(folder, ignore_errors=True)
