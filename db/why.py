"""Why a cell is what it is: what differs from another, and which input a stage was new for."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, func, select

from db import detail
from db.differences import Difference, Making, change_differences, differences, in_chunks, makings
from db.engine import reading
from db.models import Cell, CellRest, Result, StageRun, Sweep
from db.query import cell_part, summary_part

STAGES = ("checkpoint", "prompts", "reference", "noise", "export", "constants", "candidate", "compare")
DIFF_COLUMNS = ("what", "one", "two")
# Of a row: not what differs, but which row it is, or how long it took.
UNTOLD = (
    "cell", "sweep", "result", "found", "seconds", "created", "noise_key", "constants_key", "prompts_key", "hint",
    "error_frame", "thresholds", "measurement_version", "stand_in", "checkpoint_dtype", "files_dtype", "layer_count",
    "source",
)  # fmt: skip
NEIGHBOURS = 500  # of the newest cells that are looked through where no cell differs in one axis alone


def diff_rows(engine: Engine, one: int, two: int) -> list[dict[str, Any]]:
    """Only what differs between two cells, as `DIFF_COLUMNS`: what they were made of, and what came out."""
    with reading(engine) as session:
        cells = [detail.existing_cell(session, cell) for cell in (one, two)]
        rows = [cell_part(cell, cell.result) | summary_part(cell.result) for cell in cells]
        prompts = [{p.prompt: p for p in cell.result.prompts} if cell.result else {} for cell in cells]
        stages = [{s.stage: s.key for s in cell.result.stages} if cell.result else {} for cell in cells]
        texts = [
            Difference(f"{name}: {side} text", getattr(prompts[0][name], column), getattr(prompts[1][name], column))
            for name in prompts[0]
            if name in prompts[1]
            for side, column in (("reference", "reference_text"), ("candidate", "candidate_text"))
        ]
    made = makings(engine, [one, two])
    found = differences(made[one], made[two]) + change_differences(made[one], made[two])
    told = {difference.what for difference in found}
    found += [Difference(name, rows[0][name], rows[1][name]) for name in rows[0] if name not in {*UNTOLD, *told}]
    found += [Difference(f"stage {name}", stages[0].get(name), stages[1].get(name)) for name in STAGES]
    return [{"what": d.what, "one": d.one, "two": d.two} for d in [*found, *texts] if d.one != d.two]


def neighbour(engine: Engine, cell_id: int) -> tuple[int, list[Difference]] | None:
    """The finished cell that differs least from this one, the newest of equals, and in what; None if there is none."""
    with reading(engine) as session:
        cell = detail.existing_cell(session, cell_id)
        mine = session.execute(select(CellRest.axis, CellRest.rest).where(CellRest.cell_id == cell.id)).all()
        near: set[int] = set()
        for axis, rest in mine:  # one look at the key each
            shared = select(CellRest.cell_id).where(CellRest.axis == axis, CellRest.rest == rest)
            near.update(session.scalars(shared.order_by(CellRest.cell_id.desc()).limit(NEIGHBOURS)))
        finished = (
            select(Cell.id)
            .join(Result)
            .join(Sweep, Sweep.id == Cell.sweep_id)
            .where(Result.status == "ok", Sweep.action == cell.sweep.action)
            .where(Cell.id != cell.id, Cell.result_id.is_distinct_from(cell.result_id))
        )
        nearest = sorted(near, reverse=True)[:NEIGHBOURS]
        candidates = [found for (found,) in in_chunks(session, finished, Cell.id, nearest)]
        # What ran later cannot be why; where nothing ran before, it is something to look at.
        candidates = [found for found in candidates if found < cell_id] or candidates
        if not candidates:
            newest = finished.order_by((Cell.model == cell.model).desc(), Cell.id.desc()).limit(NEIGHBOURS)
            candidates = list(session.scalars(newest))
    made = makings(engine, [cell_id, *candidates])
    if not candidates:
        return None
    ranked = [(all_differences(made[other], made[cell_id]), other) for other in candidates]
    found, other = min(ranked, key=lambda pair: (len(pair[0]), -pair[1]))
    return other, found


def all_differences(one: Making, two: Making) -> list[Difference]:
    return differences(one, two) + change_differences(one, two)


def why(engine: Engine, cell_id: int) -> dict[str, Any]:
    """Why a cell was computed, or found.

    {"found": whether its result was there before, "first": the cell that computed it, "neighbour": the nearest
    finished cell or None, "differences": what differs, "stage": the first stage
    that was not the neighbour's, "made": the stages that ran}.
    """
    found = neighbour(engine, cell_id)
    with reading(engine) as session:
        cell = detail.existing_cell(session, cell_id)
        was_found = cell.found
        first = session.scalar(select(func.min(Cell.id)).where(Cell.result_id == cell.result_id))
        ran = [stage.stage for stage in cell.result.stages if not stage.found] if cell.result else []
    stage = first_new_stage(engine, cell_id, found[0]) if found else None
    return {
        "found": was_found,
        "first": first,
        "neighbour": found[0] if found else None,
        "differences": [difference.told() for difference in found[1]] if found else [],
        "stage": stage,
        "made": ran,
    }


def first_new_stage(engine: Engine, cell_id: int, other: int) -> str | None:
    """The first stage whose key is not the other cell's."""
    with reading(engine) as session:
        query = select(Cell.id, StageRun.stage, StageRun.key).join(StageRun, StageRun.result_id == Cell.result_id)
        keys: dict[int, dict[str, str]] = {cell_id: {}, other: {}}
        for cell, stage, key in in_chunks(session, query, Cell.id, [cell_id, other]):
            keys[cell][stage] = key
    return next((s for s in STAGES if keys[cell_id].get(s) != keys[other].get(s)), None)
