"""``python -m db``: look at what is stored."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Optional

import typer

from db import detail, history, items, output, query, sql
from db import why as reasons
from db.engine import DatabaseProblem, open_database
from db.items import cli as items_cli
from db.models import FACTORS

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

app.add_typer(items_cli.app, name="items")

Db = Annotated[Optional[str], typer.Option("--db", help="An SQLAlchemy URL or a path.")]
Format = Annotated[str, typer.Option("--format", help=f"One of {', '.join(output.FORMATS)}.")]
Columns = Annotated[Optional[str], typer.Option("--columns", help="Only these, in this order: cell,verdict.")]
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

    def command(format: str = "table", columns: str | None = None, **options: Any) -> None:
        show(partial(filtered_rows, options=options), {**options, "columns": columns}, format)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, keyword, default=None, annotation=kind) for n, kind in FILTERS.items()]
    parameters.append(inspect.Parameter("columns", keyword, default=None, annotation=Columns))
    parameters.append(inspect.Parameter("format", keyword, default="table", annotation=Format))
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {**FILTERS, "columns": Columns, "format": Format}
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
        output.show(rows_of(query.result_rows), chosen(query.RESULT_COLUMNS, options), format)


def show_cells(rows_of: Callable, options: Mapping[str, Any], format: str) -> None:
    output.show(rows_of(query.cell_rows), chosen(query.CELL_COLUMNS, options), format)


def show_history(rows_of: Callable, options: Mapping[str, Any], format: str) -> None:
    output.show(rows_of(history.history_rows), chosen(history.HISTORY_COLUMNS, options), format)


def chosen(known: Sequence[str], options: Mapping[str, Any]) -> Sequence[str]:
    """The columns asked for, or all of them. Errors: `query.NotInDatabase` with those there are."""
    if not options["columns"]:
        return known
    asked = [name.strip() for name in options["columns"].split(",")]
    query.refuse_absent("--columns", asked, set(known))
    return asked


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
        "own way": detail.OWN_WAY_COLUMNS,
        "settings": detail.SETTING_COLUMNS,
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
def constants(cell: int, format: Format = "table", db: Db = None) -> None:
    """What a cell's export holds beside what transformers computes: a row a constant and set of layers."""
    rows = detail.cell_constants(open_database(db, create=False), cell)
    if format in ("table", "md"):
        rows = [row | {"layers": output.runs(row["layers"])} for row in rows]
    output.show(rows, detail.CONSTANT_COLUMNS, format)


@app.command()
def loading(
    cell: int,
    faults: Annotated[
        bool, typer.Option("--faults", help="Only what a side does not hold as the checkpoint has it.")
    ] = False,
    format: Format = "table",
    db: Db = None,
) -> None:
    """What became of each key of the checkpoint when each side loaded it: a row a name and outcome."""
    engine = open_database(db, create=False)
    rows = detail.cell_loading(engine, cell, every=not faults)
    tables = format in ("table", "md")
    if tables:
        shapes = ("shape", "held")
        rows = [
            row | {"layers": output.runs(row["layers"])} | {name: output.shape(row[name]) for name in shapes}
            for row in rows
        ]
    output.show(rows, detail.LOADING_COLUMNS, format)
    if tables and (counts := detail.loading_counts(detail.cell_loading(engine, cell))):
        print(f"\n{counts}" if format == "md" else counts)


@app.command()
def diff(one: int, two: int, format: Format = "table", db: Db = None) -> None:
    """Only what differs between two cells: what they were made of, and what came out."""
    rows = reasons.diff_rows(open_database(db, create=False), one, two)
    output.show(rows, reasons.DIFF_COLUMNS, format)


@app.command()
def why(cell: int, db: Db = None) -> None:
    """Why a cell was computed or found: the first input that differs from its nearest finished neighbour."""
    found = reasons.why(open_database(db, create=False), cell)
    ran = ", ".join(found["made"])
    there = f"its result was there before the sweep, computed for cell {found['first']}"
    said = there if found["found"] else f"computed: {ran}" if ran else "nothing ran"
    print(f"cell {cell}: {said}")
    if found["neighbour"] is None:
        print("no other finished cell to compare it with")
        return
    print(f"nearest finished cell: {found['neighbour']}")
    if found["stage"]:
        print(f"first stage that is another: {found['stage']}")
    for difference in found["differences"] or ["nothing that decides a result"]:
        print(f"differs in (cell {found['neighbour']} / cell {cell}): {output.short(difference)}")


@app.command("sql")
def run_sql(statement: str, format: Format = "table", db: Db = None) -> None:
    """Run a query of your own; the connection can only read."""
    columns, rows = sql.read(open_database(db, create=False), statement)
    output.show(rows, columns, format)


@app.command()
def prompts(cell: int, format: Format = "table", db: Db = None) -> None:
    """What both sides of a cell were given: each prompt's text after the template, its ids, the template's hash."""
    rows = detail.input_rows(open_database(db, create=False), cell)
    if format in ("table", "md"):  # where a template breaks lines is what one looks for
        rows = [row | {"text": row["text"].replace("\n", "\\n")} for row in rows]
    output.show(rows, detail.INPUT_COLUMNS, format)


def main() -> None:
    try:
        app()
    except (DatabaseProblem, query.NotInDatabase, output.UnknownFormat, sql.SqlProblem, items.ItemsProblem) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
