"""``python -m db``: look at what is stored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Optional

import typer

from db import output, query
from db.engine import DatabaseProblem, open_database
from db.models import FACTORS

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Db = Annotated[Optional[str], typer.Option("--db", help="An SQLAlchemy URL or a path.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(output.FORMATS)}.")]
SweepOption = Annotated[Optional[str], typer.Option("--sweep", help="A sweep's number, or latest.")]
Status = Annotated[Optional[list[str]], typer.Option("--status", help="ok, or a failure's name.")]


def factor(name: str):
    """The type of a filter option: any of the values given."""
    return Annotated[
        Optional[list[str]],
        typer.Option(f"--{name.replace('_', '-')}", help=f"Cells with this {name}."),
    ]


@app.callback()
def root() -> None:
    """Results of parity sweeps."""


def show_filtered(read: Callable, columns: Sequence[str], options: Mapping[str, Any]) -> None:
    """Print what `read` finds for a command's filter options."""
    engine = open_database(options["db"], create=False)
    sweep = query.sweep_id(engine, options["sweep"]) if options["sweep"] else None
    filters = {name: options[name] or [] for name in FACTORS}
    query.check_filters(engine, filters, options["status"] or [])
    output.show(read(engine, filters, options["status"] or [], sweep), columns, options["format"])


@app.command()
def results(
    sweep: SweepOption = None,
    status: Status = None,
    format: Format = "table",
    db: Db = None,
    model: factor("model") = None,
    dtype: factor("dtype") = None,
    layers: factor("layers") = None,
    builder: factor("builder") = None,
    patch: factor("patch") = None,
    runtime: factor("runtime") = None,
    backend: factor("backend") = None,
    precision: factor("precision") = None,
    prompts: factor("prompts") = None,
    reference: factor("reference") = None,
    max_new_tokens: factor("max_new_tokens") = None,
    threads: factor("threads") = None,
) -> None:
    """One row a cell and prompt; a failed cell has one row. Failures alone are grouped by their error."""
    options = locals()
    grouped = status and "ok" not in status and format in ("table", "md")
    if grouped:
        show_filtered(query.failure_groups, query.FAILURE_COLUMNS, options)
    else:
        show_filtered(query.result_rows, query.RESULT_COLUMNS, options)


@app.command()
def cells(
    sweep: SweepOption = None,
    status: Status = None,
    format: Format = "table",
    db: Db = None,
    model: factor("model") = None,
    dtype: factor("dtype") = None,
    layers: factor("layers") = None,
    builder: factor("builder") = None,
    patch: factor("patch") = None,
    runtime: factor("runtime") = None,
    backend: factor("backend") = None,
    precision: factor("precision") = None,
    prompts: factor("prompts") = None,
    reference: factor("reference") = None,
    max_new_tokens: factor("max_new_tokens") = None,
    threads: factor("threads") = None,
) -> None:
    """One row a cell: how it ended, and the summary over its prompts."""
    show_filtered(query.cell_rows, query.CELL_COLUMNS, locals())


@app.command()
def history(
    sweep: SweepOption = None,
    status: Status = None,
    format: Format = "table",
    db: Db = None,
    model: factor("model") = None,
    dtype: factor("dtype") = None,
    layers: factor("layers") = None,
    builder: factor("builder") = None,
    patch: factor("patch") = None,
    runtime: factor("runtime") = None,
    backend: factor("backend") = None,
    precision: factor("precision") = None,
    prompts: factor("prompts") = None,
    reference: factor("reference") = None,
    max_new_tokens: factor("max_new_tokens") = None,
    threads: factor("threads") = None,
) -> None:
    """Along the releases: each builder's newest cell, and which differ from the one before."""
    show_filtered(query.history_rows, query.HISTORY_COLUMNS, locals())


@app.command()
def show(cell: int, db: Db = None) -> None:
    """All about one cell: its failure with the end of its stderr, what both sides said, its patch, its stages."""
    engine = open_database(db, create=False)
    detail = query.cell_detail(engine, cell)
    output.show_pairs(detail["cell"])
    print()
    output.show_pairs({k: v for k, v in detail["result"].items() if k not in detail["cell"]})
    tables = {"prompts": query.TEXT_COLUMNS, "changes": query.CHANGE_COLUMNS, "stages": query.STAGE_COLUMNS}
    for title, columns in tables.items():
        if detail[title]:
            output.show(detail[title], columns, "table")


@app.command()
def sweeps(format: Format = "table", db: Db = None) -> None:
    """One row a sweep: when, what was asked, and how its cells ended."""
    output.show(query.sweep_rows(open_database(db, create=False)), query.SWEEP_COLUMNS, format)


@app.command()
def env(cell: int, format: Format = "table", db: Db = None) -> None:
    """The resolved packages of a cell's three environments."""
    rows = query.package_rows(open_database(db, create=False), cell)
    output.show(rows, query.PACKAGE_COLUMNS, format)


def main() -> None:
    try:
        app()
    except (DatabaseProblem, query.NotInDatabase, output.UnknownFormat) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
