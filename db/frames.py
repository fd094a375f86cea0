"""Stored results as pandas frames, for notebooks: ``import db; db.frame("results", model="tiny_gemma3")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from db import detail, history, query
from db.engine import open_database
from db.models import FACTORS

if TYPE_CHECKING:
    import pandas

KINDS = ("results", "cells", "history", "sweeps", "metrics", "steps")


def frame(
    what: str = "results",
    *,
    db: str | None = None,
    sweep: int | str | None = None,
    status: str | list[str] | None = None,
    cell: int | None = None,
    **factors: str | list[str],
) -> pandas.DataFrame:
    """A frame of what is stored.

    what: "results" (a row a cell and prompt), "cells", "history", "sweeps", or
    "metrics" and "steps" of one `cell` (every number, by prompt or by step).
    db: a URL or path, as PARITYLAB_DB. sweep: a number or "latest". factors:
    ``builder="0.14.1"`` or ``builder=["0.14.1", "0.18.0"]``. Errors:
    `ValueError` for an unknown `what` or factor; `query.NotInDatabase`;
    `db.engine.DatabaseProblem`.
    """
    import pandas

    if what not in KINDS:
        raise ValueError(f"{what!r} is not one of {', '.join(KINDS)}")
    if odd := sorted(set(factors) - set(FACTORS)):
        raise ValueError(f"{odd[0]!r} is no factor: {', '.join(FACTORS)}")
    if what in ("metrics", "steps") and cell is None:
        raise ValueError(f"{what} are those of one cell: cell=NUMBER")
    engine = open_database(db, create=False)
    try:
        if what == "sweeps":
            return pandas.DataFrame(query.sweep_rows(engine))
        if what in ("metrics", "steps"):
            return pandas.DataFrame(detail.metric_rows(engine, cell or 0, steps=what == "steps"))
        filters = {name: [value] if isinstance(value, str) else value for name, value in factors.items()}
        statuses = [status] if isinstance(status, str) else status or []
        query.check_filters(engine, filters, statuses)
        number = query.sweep_id(engine, str(sweep)) if sweep is not None else None
        read = {"results": query.result_rows, "cells": query.cell_rows, "history": history.history_rows}[what]
        return pandas.DataFrame(read(engine, filters, statuses, number))
    finally:
        engine.dispose()
