"""From the sweeper to an action, and from an action to an exit code and a table."""

from __future__ import annotations

import math
import os
import sys
import traceback

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from db.engine import DatabaseProblem, url_of
from db.scrub import scrub
from runner import compose, schema, sharding, sweep
from runner.cells import Cell, check_exclude, excluded, one_of
from runner.failures import ConfigFailed, Fault


class Finished(SystemExit):
    """An action that came to its end: how its exit code gets past Hydra, which returns nothing."""


OK, SOME_FAILED, BAD_CONFIG, FAULT, INTERRUPTED = 0, 1, 2, 3, 130


def act(loader: ConfigLoader, config: DictConfig, overrides: list[str]) -> int:
    """Do `action` with the command line's cells. Returns the exit code; prints the sweep's table."""
    try:
        settings = settings_of(config)
        cells = wanted(compose.compose_sweep(loader, config, overrides), settings)
        if settings.action == "plan":
            return plan(cells, settings)
        if settings.action == "sharding":
            return shard(cells, settings)
        rows = sweep.run(cells, settings, [scrub(word) for word in sys.argv[1:]])
        show(rows[0].sweep, settings)
    except (ConfigFailed, DatabaseProblem) as error:
        complain(str(error), getattr(error, "hint", ""))
        return BAD_CONFIG
    except sweep.Interrupted as stop:
        done = sum(row.status not in ("skipped", "preempted") for row in stop.rows)
        complain(f"interrupted: {done} of {len(stop.rows)} cells have a result", "the same command goes on from here")
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the table has read enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except DBAPIError as error:
        complain(f"database {url_of(settings.db.url)}: {error.orig}", "what was recorded before is there; run again")
        return FAULT
    except Exception:
        traceback.print_exc()
        complain("this is a fault of paritylab itself", "what was finished before it is stored")
        return FAULT
    if any(row.ending.fault for row in rows):
        complain("a fault of paritylab itself", "python -m db show CELL has its traceback")
        return FAULT
    return exit_code([row.status for row in rows], settings.allow_failed)


def exit_code(statuses: list[str], allow_failed: bool) -> int:
    """The exit code of a sweep that came to its end."""
    if statuses and all(status == "config_failed" for status in statuses):
        return BAD_CONFIG
    failed = any(status != "ok" for status in statuses)
    return SOME_FAILED if failed and not allow_failed else OK


def wanted(cells: list[Cell], settings: schema.Settings) -> list[Cell]:
    """The cells that `exclude` leaves, told how many it does not. Errors: `ConfigFailed` where none is left."""
    kept = [cell for cell in cells if not excluded(cell, settings.exclude)]
    out = len(cells) - len(kept)
    if not kept:
        raise ConfigFailed(
            f"exclude leaves no cell: {out} of {out} {'are' if out > 1 else 'is'} excluded",
            hint="a cell is left out when it matches every factor of a rule; exclude=[] leaves out none",
        )
    if settings.exclude:
        errors().print(f"{out} cell{'s' * (out != 1)} excluded")
    return kept


def plan(cells: list[Cell], settings: schema.Settings) -> int:
    """Print what a run would compute. Returns the exit code."""
    from runner import planning

    survey = planning.survey(cells, settings)
    print(planning.table(survey))
    failures = [planned.failure for planned in survey.cells]
    for fault in (failure for failure in failures if isinstance(failure, Fault)):
        complain("a fault of paritylab itself", fault.evidence.stderr_tail or "")
        return FAULT
    return exit_code([failure.status if failure else "ok" for failure in failures], allow_failed=True)


def shard(cells: list[Cell], settings: schema.Settings) -> int:
    """Print what each rank would hold. Returns the exit code."""
    from runner import sharding_table

    text, fits = sharding_table.report(cells, settings.sharding)
    print(text)
    return OK if fits or settings.allow_failed else SOME_FAILED


def settings_of(config: DictConfig) -> schema.Settings:
    """The run's settings, checked. Errors: `ConfigFailed`."""
    names = [name for name in schema.Settings.__dataclass_fields__]
    plain = {name: config[name] for name in names}
    settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema.Settings), plain))
    assert isinstance(settings, schema.Settings)
    one_of("action", settings.action, schema.ACTIONS)
    one_of("stages", settings.stages, schema.STAGES)
    if settings.stages != "all" and settings.action not in ("run", "plan"):
        raise ConfigFailed(f"stages={settings.stages} goes with action=run, and not with action={settings.action}")
    one_of("rerun", settings.rerun, schema.RERUNS)
    one_of("audit", settings.audit, schema.AUDITS)
    one_of("load_audit", settings.load_audit, schema.AUDITS)
    check_exclude(settings.exclude)
    for variant in settings.noise.variants:
        one_of("noise.variants", variant, schema.NOISE_VARIANTS)
    for prefix in ("", "precision_"):
        names = f"{prefix}within", f"{prefix}broken"
        within, broken = (getattr(settings.verdict, name) for name in names)
        if not 0 < within < broken < math.inf:
            raise ConfigFailed(
                f"verdict: {names[0]}={within:g}, {names[1]}={broken:g}",
                hint=f"allowed: 0 < {names[0]} < {names[1]}, multiples of the noise floor",
            )
    one_of("sharding.tracer", settings.sharding.tracer, sharding.TRACERS)
    if settings.sharding.tp == []:
        raise ConfigFailed("sharding.tp: it is empty", hint="allowed: a TP degree, or a list of them: [2,4,8]")
    for name in ("core_gb", "host_gb", "batch", "tokens"):
        value = getattr(settings.sharding, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigFailed(f"sharding.{name}: {value} is not allowed", hint="allowed: a number above 0")
    for name, unit in (("timeout_seconds", "seconds"), ("stall_seconds", "seconds"), ("memory_gb", "GB")):
        value = getattr(settings.limits, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigFailed(f"limits.{name}: must be a number of {unit} above 0")
    if settings.jobs is not None and settings.jobs < 1:
        raise ConfigFailed(f"jobs: {settings.jobs} is not allowed", hint="allowed: null, or 1 or more")
    return settings


def show(sweep_id: int, settings: schema.Settings) -> None:
    """Print the table of a sweep, and where it is stored."""
    url = url_of(settings.db.url)
    where = url.removeprefix("sqlite:///")
    flag = "" if where == url_of(None).removeprefix("sqlite:///") else f" --db {where}"
    if settings.action == "constants":
        from reports import constants

        print(constants.markdown(constants.collect(url, {}, str(sweep_id), every=False)))
        more = f"Every constant: python -m reports constants --every --sweep {sweep_id}{flag}"
    elif settings.stages != "all":
        from reports import stages

        print(stages.markdown(stages.collect(url, str(sweep_id))))
        more = f"Again: python -m reports stages --sweep {sweep_id}{flag}"
    else:
        from reports import sweep as report

        print(report.table(report.collect(url, str(sweep_id))))
        more = f"Every number: python -m db results --sweep {sweep_id}{flag}"
    print(f"\nStored as sweep {sweep_id} in {where}")
    print(more)


def errors() -> Console:
    """Standard error, for plain lines."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def complain(what: str, hint: str = "") -> None:
    """Say what is wrong, and what to do about it."""
    console = errors()
    console.print(f"error: {what}")
    if hint:
        console.print(f"  {hint}")
