"""How long stages took in the past: what an estimate goes by."""

from __future__ import annotations

import statistics

from sqlalchemy import Engine, select

from db.engine import reading
from db.models import Cell, StageRun
from db.query import OF_RUNS

NEWEST = 200  # runs that count: machines and settings change


def median_seconds(engine: Engine, stage: str, model: str) -> float | None:
    """Median seconds of the newest runs of a stage: of cells of this model, or else of any; None if it never ran.

    A stage that was found ran no time and does not count.
    """
    ran = select(StageRun.seconds).where(
        StageRun.stage == stage, StageRun.found.is_(False), StageRun.seconds.is_not(None)
    )
    ran = ran.order_by(StageRun.result_id.desc()).limit(NEWEST)
    # Many cells may share a result, whose stages ran once.
    # A checkpoint that was narrowed for its constants has the model's name and not its size.
    of_the_model = ran.where(StageRun.result_id.in_(select(Cell.result_id).where(Cell.model == model, OF_RUNS)))
    with reading(engine) as session:
        for query in (of_the_model, ran):
            if seconds := session.scalars(query).all():
                return statistics.median(seconds)
    return None
