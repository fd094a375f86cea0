"""``python -m db``: look at what is stored."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Optional

import typer

from db import detail, output, query
from db.engine import DatabaseProblem, open_database
from db.models import FACTORS

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Db = Annotated[Optional[str], typer.Option("--db", help="An SQLAlchemy URL or a path.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(output.FORMATS)}.")]
Several = Optional[list[str]]
# The options of every command that lists cells: a name and its type, which is also its help.
FILTERS: dict[str, Any] = {
    "sweep": Annotated[Optional[str], typer.Option("--sweep", help="A sweep's number, or latest.")],
    "status": Annotated[Several, typer.Option("--status", help="ok, or a failure's name.")],
    "db": Db,
    **{
        name: Annotated[Several, typer.Option(f"--{name.replace('_', '-')}", help=f"Cells with this {name}.")]
        for name in FACTORS
    },
}


def listing(name: str, help: str, show: Callable[[Callable, Mapping[str, Any], str], None]) -> None:
    """Add a command that lists cells: ``show(rows of, options, format)`` with the filters of `FILTERS`."""

    def command(format: str = "table", **options: Any) -> None:
        show(partial(filtered_rows, options=options), options, format)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, keyword, default=None, annotation=kind) for n, kind in FILTERS.items()]
    parameters.append(inspect.Parameter("format", keyword, default="table", annotation=Format))
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {**FILTERS, "format": Format}
    app.command(name, help=help)(command)


def filtered_rows(read: Callable, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `read` finds for a command's options. Errors: `query.NotInDatabase`."""
    engine = open_database(options["db"], create=False)
    sweep = query.sweep_id(engine, options["sweep"]) if options["sweep"] else None
    filters = {name: options[name] or [] for name in FACTORS}
    query.check_filters(engine, filters, options["status"] or [])
    return read(engine, filters, options["status"] or [], sweep)


def show_results(rows_of: Callable, options: Mapping[str, Any], format: str) -> None:
    failures_only = options["status"] and "ok" not in options["status"]
    if failures_only and format in ("table", "md"):
        output.show(rows_of(query.failure_groups), query.FAILURE_COLUMNS, format)
    else:
        output.show(rows_of(query.result_rows), query.RESULT_COLUMNS, format)


def show_cells(rows_of: Callable, _options: Mapping[str, Any], format: str) -> None:
    output.show(rows_of(query.cell_rows), query.CELL_COLUMNS, format)


def show_history(rows_of: Callable, _options: Mapping[str, Any], format: str) -> None:
    output.show(rows_of(query.history_rows), query.HISTORY_COLUMNS, format)


listing(
    "results",
    "One row a cell and prompt; a failed cell has one row. Failures alone are grouped by their error.",
    show_results,
)
listing("cells", "One row a cell: how it ended, and the summary over its prompts.", show_cells)
listing(
    "history",
    "Along the releases: each builder's newest cell, and which differ from the one before.",
    show_history,
)


@app.callback()
def root() -> None:
    """Results of parity sweeps."""


@app.command()
def show(cell: int, db: Db = None) -> None:
    """All about one cell: its failure with the end of its stderr, what both sides said, its patch, its stages."""
    engine = open_database(db, create=False)
    found = detail.cell_detail(engine, cell)
    output.show_pairs(found["cell"])
    print()
    output.show_pairs({k: v for k, v in found["result"].items() if k not in found["cell"]})
    tables = {
        "prompts": detail.TEXT_COLUMNS,
        "findings": detail.FINDING_COLUMNS,
        "changes": detail.CHANGE_COLUMNS,
        "stages": detail.STAGE_COLUMNS,
    }
    for title, columns in tables.items():
        if found[title]:
            output.show(found[title], columns, "table")


@app.command()
def sweeps(format: Format = "table", db: Db = None) -> None:
    """One row a sweep: when, what was asked, and how its cells ended."""
    output.show(query.sweep_rows(open_database(db, create=False)), query.SWEEP_COLUMNS, format)


@app.command()
def env(cell: int, format: Format = "table", db: Db = None) -> None:
    """The resolved packages of a cell's three environments."""
    rows = detail.package_rows(open_database(db, create=False), cell)
    output.show(rows, detail.PACKAGE_COLUMNS, format)


@app.command()
def metrics(
    cell: int,
    steps: Annotated[bool, typer.Option("--steps", help="A row a step instead of a row a prompt.")] = False,
    format: Format = "table",
    db: Db = None,
) -> None:
    """Every number of a cell: one row a prompt, free-running and teacher-forced (forced_)."""
    rows = detail.metric_rows(open_database(db, create=False), cell, steps)
    names = dict.fromkeys(name for row in rows for name in row)
    output.show(rows, sorted(names, key=lambda name: name.startswith("forced_")), format)


@app.command()
def prompts(cell: int, format: Format = "table", db: Db = None) -> None:
    """What both sides of a cell were given: each prompt's text after the template, its ids, the template's hash."""
    output.show(detail.input_rows(open_database(db, create=False), cell), detail.INPUT_COLUMNS, format)


def main() -> None:
    try:
        app()
    except (DatabaseProblem, query.NotInDatabase, output.UnknownFormat) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
