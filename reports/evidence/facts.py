"""The cells of the evidence, and what the database knows of each beside its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, select

from db import detail, query
from db.artifacts import NoiseValue, Overlay
from db.engine import reading
from db.items.judging import largest_multiple
from db.models import FACTORS, Cell, Environment, Result
from reports import proof

Rows = Sequence[Mapping[str, Any]]


def designs_with(db: str | None, claim: Mapping[str, Any], rows: Rows) -> list[dict[str, Any]]:
    """The proof's designs that the claim's cells stand in."""
    filters = {f: values for f, values in claim["filters"].items() if f in FACTORS and f != "patch"}
    mine = {row["cell"] for row in rows}
    designs = proof.collect(db, filters)["designs"] if filters else []
    return [design for design in designs if mine & {row["cell"] for row in design["rows"]}]


def with_proof(engine: Engine, claim: Mapping[str, Any], rows: Rows, designs: Sequence[dict]) -> list[dict[str, Any]]:
    """The claim's cells and all others that the proof stands on: its baselines, each change alone, other sets."""
    mine = {row["cell"]: dict(row) for row in rows}
    wanted = {row["cell"] for design in designs for row in design["rows"]} - mine.keys()
    filters = {f: values for f, values in claim["filters"].items() if f in FACTORS and f != "patch"}
    more = {row["cell"]: dict(row) for row in query.cell_rows(engine, filters) if row["cell"] in wanted}
    prompts = detail.prompts_of(engine, sorted({row["result"] for row in more.values()}))
    for row in more.values():
        row["multiple"] = largest_multiple(prompts.get(row["result"], []))
    return [row for _, row in sorted((mine | more).items())]


def facts_of(engine: Engine, row: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell's row does not say: config, sweep, hashes, environments, patch, stages, and where it was computed."""
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
            "overrides": list(cell.sweep.overrides), **patch_of(cell, overlay),
            "commit": cell.source_commit, "dirty": cell.source_dirty, "error": result.error,
            "error_type": result.error_type, "error_frame": result.error_frame, "stderr": result.stderr_tail,
            "hosts": {cell.sweep.host, result.machine.host if result.machine else ""},
            "origin": cell.checkpoint_origin, "stages": {stage.stage: stage.key for stage in result.stages},
            "noise": noise_of(session, result.noise_key), "own_way": result.own_way_detail,
            "hashes": {
                "result": result.hash, "checkpoint": result.checkpoint_hash, "prompts": result.prompts_key,
                "overlay_tree": result.overlay_tree, "source_tree": cell.source_tree, "patch": cell.patch_hash,
                "source_commit": cell.source_commit, "measurement_version": result.measurement_version,
            },
        }  # fmt: skip


def noise_of(session, key: str | None) -> dict[str, Any]:
    """A noise artifact's numbers: {"prompts": {prompt: {variant: largest}}, "left_out": {variant: why}}."""
    found: dict[str, Any] = {"prompts": {}, "left_out": {}}
    if key:
        for value in session.scalars(select(NoiseValue).where(NoiseValue.noise_key == key)):
            if value.left_out is not None:
                found["left_out"][value.variant] = value.left_out
            else:
                found["prompts"].setdefault(value.prompt, {})[value.variant] = value.largest
    return found


def patch_of(cell: Cell, overlay: Overlay | None) -> dict[str, Any]:
    """{"diff", "diff_lost"}: what the patch made of the cell's own sources; lost where it is not kept.

    A tree of patched sources is stored once, with the difference from the sources that it was made of first. Another
    cell may come to the same tree from other sources, such as a working copy that has the fault: of it that difference
    would be false.
    """
    if overlay is None or overlay.tree == cell.source_tree:
        return {"diff": "", "diff_lost": False}
    own = cell.source_tree in (None, overlay.source_tree)
    return {"diff": overlay.diff if own else "", "diff_lost": not own}


def against_main(engine: Engine, fact: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same patch on the builder's main, as the newest cell has it.

    {"builder", "commit", "dirty", "diff", "outcome"}; None where there is no such cell.
    """
    row = fact["row"]
    if row["patch"] == "none":
        return None
    newest_first = (
        select(Cell, Overlay)
        .join(Cell.result)
        .join(Overlay, Overlay.tree == Result.overlay_tree)
        .where(Cell.patch == row["patch"])
        .order_by(Cell.id.desc())
    )
    with reading(engine) as session:
        for cell, overlay in session.execute(newest_first):
            builder = (cell.config or {}).get("builder", {})
            if builder.get("kind") == "git" and "main" in (cell.builder, builder.get("ref")):
                found = patch_of(cell, overlay)
                if found["diff_lost"]:
                    continue
                return {
                    "builder": cell.builder, "commit": cell.source_commit, "dirty": cell.source_dirty,
                    "diff": found["diff"], "outcome": cell.patch_outcome,
                }  # fmt: skip
    return None
