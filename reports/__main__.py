"""``python -m reports``: tables from what is stored, as markdown on standard output."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from db.engine import DatabaseProblem
from db.models import AXES
from db.query import NotInDatabase
from reports import constants as constants_report
from reports import depth as depth_report
from reports import evidence as evidence_report
from reports import families as families_report
from reports import history as history_report
from reports import loading as loading_report
from reports import noise as noise_report
from reports import older
from reports import pairs as pairs_report
from reports import proof as proof_report
from reports import regressions as regressions_report
from reports import stages as stages_report
from reports import status as status_report
from reports import sweep as sweep_report

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Db = Annotated[Optional[str], typer.Option("--db", help="An SQLAlchemy URL or a path.")]
Out = Annotated[Optional[Path], typer.Option("--out", help="Write here instead of standard output.")]
Format = Annotated[str, typer.Option("--format", help="md, or json for machines.")]

Several = Optional[list[str]]
Model = Annotated[Several, typer.Option("--model", help="Only this model.")]
Builder = Annotated[Several, typer.Option("--builder", help="Only cells with this builder.")]
Patch = Annotated[Several, typer.Option("--patch", help="Only cells with this patch.")]
Dtype = Annotated[Several, typer.Option("--dtype", help="Only cells with this dtype.")]
Prompts = Annotated[Several, typer.Option("--prompts", help="Only cells with this prompt set.")]
OneSweep = Annotated[Optional[str], typer.Option("--sweep", help="Of one sweep: a number, or latest.")]


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
def stages(
    sweep: Annotated[str, typer.Option("--sweep", help="A sweep's number, or latest.")] = "latest",
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """What a sweep of one stage made (stages=export), or what its candidates said (stages=candidate)."""
    write(stages_report, stages_report.collect(db, sweep), format, out)


@app.command()
def history(
    model: Model = None,
    patch: Annotated[Several, typer.Option("--patch", help="Cells with this patch; none by default.")] = None,
    dtype: Dtype = None,
    sweep: OneSweep = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """Release by model: the diff range or the failure, and where something changed."""
    filters = chosen(model=model, patch=patch or ["none"], dtype=dtype)
    write(history_report, history_report.collect(db, filters, sweep), format, out)


@app.command()
def proof(
    model: Model = None,
    builder: Builder = None,
    patch: Patch = None,
    dtype: Dtype = None,
    prompts: Prompts = None,
    sweep: OneSweep = None,
    experiment: Annotated[Optional[str], typer.Option("--experiment", help="Of this experiment's sweeps.")] = None,
    factor: Annotated[
        str, typer.Option("--factor", help=f"What is suspected: {', '.join(AXES)}; a change of another than the patch.")
    ] = "patch",
    baseline: Annotated[
        Optional[str],
        typer.Option("--baseline", help="With --factor: the value that others are held to; else the worst."),
    ] = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """What is proven of each suspected change, from the baseline, each alone, all but each, and all; the latest sweep
    where nothing is asked.

    With --factor reference (or runtime, builder, dtype, precision, …): whether a change of that factor is the cause,
    from cells that differ in it alone, by hashes and resolved packages."""
    if factor not in AXES:
        raise typer.BadParameter(f"{factor!r} is not one of {', '.join(AXES)}", param_hint="--factor")
    if baseline is not None and factor == "patch":
        raise typer.BadParameter(
            "it is of a --factor; of patches the baseline is what has none", param_hint="--baseline"
        )
    filters = chosen(model=model, builder=builder, patch=patch, dtype=dtype, prompts=prompts)
    write(proof_report, proof_report.collect(db, filters, sweep, experiment, factor, baseline), format, out)


@app.command()
def noise(
    model: Model = None,
    dtype: Dtype = None,
    prompts: Prompts = None,
    sweep: OneSweep = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """How far the reference moves by itself: other dtype, attention, threads, one pass for many."""
    filters = chosen(model=model, dtype=dtype, prompts=prompts)
    write(noise_report, noise_report.collect(db, filters, sweep), format, out)


@app.command()
def constants(
    model: Model = None,
    builder: Builder = None,
    patch: Patch = None,
    dtype: Dtype = None,
    sweep: OneSweep = None,
    every: Annotated[bool, typer.Option("--every", help="A row for each constant of each cell.")] = False,
    left: Annotated[bool, typer.Option("--uncompared", help="What could not be compared, by cell.")] = False,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """What exports hold beside what transformers computes; of the latest sweep where none is asked for."""
    filters = chosen(model=model, builder=builder, patch=patch, dtype=dtype)
    write(constants_report, constants_report.collect(db, filters, sweep, every, left), format, out)


@app.command()
def loading(
    sweep: Annotated[str, typer.Option("--sweep", help="A sweep's number, or latest.")] = "latest",
    every: Annotated[bool, typer.Option("--every", help="A row for each key of the checkpoint.")] = False,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """What each side made of the checkpoint's keys as it loaded them: lost buffers first, then what to do."""
    write(loading_report, loading_report.collect(db, sweep, every), format, out)


@app.command()
def families(
    sweep: OneSweep = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """Of each family's small random checkpoint: builds or not, within the noise or not, why."""
    write(families_report, families_report.collect(db, sweep), format, out)


@app.command()
def depth(
    model: Model = None,
    builder: Builder = None,
    patch: Patch = None,
    dtype: Dtype = None,
    prompts: Prompts = None,
    sweep: OneSweep = None,
    plot: Annotated[Optional[Path], typer.Option("--plot", help="Draw it here too: a .png or .svg file.")] = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """Error against layer count: inside one layer, entering at a depth, or growing."""
    filters = chosen(model=model, builder=builder, patch=patch, dtype=dtype, prompts=prompts)
    report = depth_report.collect(db, filters, sweep)
    if plot and report["lines"]:
        check_file(plot, "--plot", (".png", ".svg", ".pdf"))
        depth_report.plot(report, plot)
        report["plot"] = str(plot)
    write(depth_report, report, format, out)


@app.command()
def pairs(
    factor: Annotated[Several, typer.Option("--factor", help="Only pairs that differ in this one.")] = None,
    model: Model = None,
    builder: Builder = None,
    patch: Patch = None,
    dtype: Dtype = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the telling ones first.")] = 50,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """Stored pairs that differ in exactly one factor and flip the verdict: the cheapest evidence."""
    filters = chosen(model=model, builder=builder, patch=patch, dtype=dtype)
    write(pairs_report, pairs_report.collect(db, filters, factor or [], limit), format, out)


@app.command()
def regressions(
    model: Model = None,
    patch: Annotated[Several, typer.Option("--patch", help="Cells with this patch; none by default.")] = None,
    dtype: Dtype = None,
    since: Annotated[
        Optional[datetime], typer.Option("--since", formats=["%Y-%m-%d"], help="Lines with a result of that day on.")
    ] = None,
    out: Out = None,
    format: Format = "md",
    db: Db = None,
) -> None:
    """Is the newest builder worse than the one before? Exit code 1 if it is, for a nightly job."""
    filters = chosen(model=model, patch=patch or ["none"], dtype=dtype)
    report = regressions_report.collect(db, filters, since.date() if since else None)
    write(regressions_report, report, format, out)
    if any(row["worse"] for row in report["rows"]):
        raise typer.Exit(1)


@app.command()
def status(out: Out = None, format: Format = "md", db: Db = None) -> None:
    """Items and their states, and what the newest cells say of the claims tied to them."""
    write(status_report, status_report.collect(db), format, out)


@app.command()
def evidence(
    claim: Annotated[str, typer.Argument(help="Its name: python -m db items list --claims.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to make.")],
    enclose_up_to: Annotated[
        float,
        typer.Option("--enclose-up-to", min=0, help="Megabytes: of a larger checkpoint origin and hashes are told."),
    ] = evidence_report.ENCLOSE_UP_TO,
    store: Annotated[
        Optional[Path], typer.Option("--store", help="Where artifacts lie; PARITYLAB_STORE or the project's otherwise.")
    ] = None,
    main_diff: Annotated[
        Optional[Path],
        typer.Option(
            "--main-diff",
            exists=True,
            dir_okay=False,
            help="The patch against the builder's main, a unified diff; else that of the newest cell on main.",
        ),
    ] = None,
    db: Db = None,
) -> None:
    """A folder that an upstream maintainer can use without this project: README.md with a block of commands a step,
    checkpoint, patches, exact packages, prompts, numbers, noise floor, and a unit test that fails on the fault."""
    for file in evidence_report.write(db, claim, out, store, enclose_up_to, main_diff):
        print(file)
    for line in older.of_claim(db, claim):
        print(line, file=sys.stderr)


def chosen(**options: list[str] | None) -> dict[str, list[str]]:
    """The filters asked for; an option that was not given asks for nothing."""
    return {name: values or [] for name, values in options.items()}


def check_file(file: Path, option: str, endings: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written. Errors: `typer.BadParameter`."""
    if endings and file.suffix.lower() not in endings:
        raise typer.BadParameter(f"{file} must end in {', '.join(endings)}", param_hint=option)
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder", param_hint=option)
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent}", param_hint=option)


def write(report_module: Any, report: dict[str, Any], format: str, out: Path | None) -> None:
    """Print a report, or write it to a file, whole or not at all."""
    if format not in ("md", "json"):
        raise typer.BadParameter(f"{format!r} is not one of md, json", param_hint="--format")
    text = (
        json.dumps(report, indent=1, ensure_ascii=False, default=str)
        if format == "json"
        else older.below(report, report_module.markdown(report))
    )
    if out is None:
        print(text)
        return
    check_file(out, "--out")
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
