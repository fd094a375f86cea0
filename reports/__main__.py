"""``python -m reports``: tables from what is stored, as markdown on standard output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from db.engine import DatabaseProblem
from db.query import NotInDatabase
from reports import history as history_report
from reports import sweep as sweep_report

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Db = Annotated[Optional[str], typer.Option("--db", help="An SQLAlchemy URL or a path.")]
Out = Annotated[Optional[Path], typer.Option("--out", help="Write here instead of standard output.")]
Format = Annotated[str, typer.Option("--format", help="md, or json for machines.")]


@app.callback()
def root() -> None:
    """Reports on parity sweeps."""


@app.command()
def sweep(
    sweep: Annotated[str, typer.Option("--sweep", help="A sweep's number, or latest.")] = "latest",
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """One row an export: first-token diff over prompts, identical n of m, what went wrong."""
    write(sweep_report, sweep_report.collect(db, sweep), format, out)


@app.command()
def history(
    model: Annotated[Optional[list[str]], typer.Option("--model", help="Only this model.")] = None,
    patch: Annotated[Optional[list[str]], typer.Option("--patch", help="Cells with this patch.")] = None,
    dtype: Annotated[Optional[list[str]], typer.Option("--dtype", help="Cells with this dtype.")] = None,
    sweep: Annotated[Optional[str], typer.Option("--sweep", help="Of one sweep: a number, or latest.")] = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """Release by model: the diff range or the failure, and where something changed."""
    filters = {"model": model or [], "patch": patch or ["none"], "dtype": dtype or []}
    write(history_report, history_report.collect(db, filters, sweep), format, out)


def write(report_module: Any, report: dict[str, Any], format: str, out: Path | None) -> None:
    """Print a report, or write it to a file, whole or not at all."""
    if format not in ("md", "json"):
        raise typer.BadParameter(f"{format!r} is not one of md, json", param_hint="--format")
    text = (
        json.dumps(report, indent=1, ensure_ascii=False, default=str)
        if format == "json"
        else report_module.markdown(report)
    )
    if out is None:
        print(text)
        return
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder", param_hint="--out")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent}", param_hint="--out")
    part = out.with_name(out.name + ".part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(out)


def main() -> None:
    try:
        app()
    except (DatabaseProblem, NotInDatabase, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
