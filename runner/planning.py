"""What a run would do, before it does anything: what each cell finds, what it computes, how long that takes.

Nothing is run or recorded. Only what a cell's keys are made of is prepared:
resolutions, sources, overlays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from db import durations, record
from db import engine as database
from db.output import markdown_table
from db.scrub import scrub
from reports.sweep import ALWAYS
from reports.table import NAMES, shown_names
from runner import environments, schema
from runner.cells import FACTORS, Cell
from runner.checkpoints import Inspector
from runner.failures import Failure
from runner.models import NotHere
from runner.plan import Plan, Planner
from runner.progress import SweepProgress
from runner.store import Store
from runner.sweep import Ending, job_root, jobs_of, look_up, outcome_of

MOST_REASONS = 3
ERROR_LENGTH = 60
# What is said to be computed of a cell whose checkpoint is not here yet.
UNMADE = ("model", "what stands on it")


@dataclass(frozen=True)
class Planned:
    """What is known of a cell before it runs.

    failure: why it cannot run; found: its finished result; else the stages that
    are cached, that an earlier cell of the sweep computes, and that are its own
    to compute, as {name: estimated seconds or None}.
    """

    cell: Cell
    failure: Failure | None = None
    found: Ending | None = None
    cached: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    compute: dict[str, float | None] | None = None

    @property
    def runs(self) -> bool:
        return not self.failure and not self.found

    @property
    def seconds(self) -> list[float | None]:
        """The estimates of its own stages."""
        return list((self.compute or {}).values())


@dataclass(frozen=True)
class Survey:
    """A sweep's cells as planned; `jobs` at a time; `installs`: environments that are to be made first; `code`: lines
    on code that differs from the released."""

    cells: list[Planned]
    jobs: int
    installs: int
    code: Sequence[str] = ()


def survey(cells: Sequence[Cell], settings: schema.Settings) -> Survey:
    """Plan every cell and look up what is there. Errors: `ConfigFailed`, `db.engine.DatabaseProblem`."""
    root, environments_root = job_root(settings)
    engine, store = database.open_database(settings.db.url), Store(root)
    known = partial(record.reference_keys, engine)
    plans = asyncio.run(plan_all(cells, store, settings, known))
    find = cache(lambda name, key: settings.rerun != "all" and store.find(name, key) is not None)
    estimate = cache(lambda stage, model: durations.median_seconds(engine, stage, model))
    taken: set[str] = set()
    planned, wanted = [], {}  # resolutions by hash
    for cell, plan in zip(cells, plans, strict=True):
        if isinstance(plan, NotHere):  # what follows depends on its bytes
            planned.append(Planned(cell, compute=dict.fromkeys(UNMADE)))
        elif isinstance(plan, Failure):
            planned.append(Planned(cell, failure=plan))
        elif found := look_up(engine, settings, plan):
            planned.append(Planned(cell, found=found))
        else:
            asked = stages_asked(plan, find, taken, strict=settings.audit == "strict")
            compute = {name: estimate(name, cell.factors["model"]) for name in asked["compute"]}
            taken |= {plan.stages[name].key for name in compute}
            roles = {plan.stages[name].role for name in compute}
            wanted |= {plan.resolutions[role].hash: plan.resolutions[role] for role in roles}
            planned.append(Planned(cell, None, None, tuple(asked["cached"]), tuple(asked["shared"]), compute))
    engine.dispose()
    lacking = sum(not installed(resolution, environments_root) for resolution in wanted.values())
    code = list(dict.fromkeys(line for plan in plans if isinstance(plan, Plan) for line in plan.code))
    return Survey(planned, min(jobs_of(settings, cells), max(1, sum(p.runs for p in planned))), lacking, code)


async def plan_all(cells: Sequence[Cell], store: Store, settings: schema.Settings, known) -> list[Plan | Failure]:
    """The plan of each cell, or why there is none. known: see `Planner.known_references`."""
    planner = Planner(store, settings, Inspector(store.root), known_references=known)
    with SweepProgress(len(cells)) as progress:
        progress.preparing("planning")
        return [await outcome_of(planner.plan(cell)) for cell in cells]


def stages_asked(plan: Plan, find: Callable[[str, str], bool], taken: set[str], strict: bool) -> dict[str, list[str]]:
    """The stages that a run of the cell would ask for: {"cached", "shared", "compute": names in order}.

    What a stage needs is asked for only where the stage itself is to be computed. taken: keys of the stages that
    earlier cells compute.
    """
    kinds: dict[str, str] = {}

    def ask(name: str) -> None:
        stage = plan.stages[name]
        if name not in kinds:
            kinds[name] = "cached" if find(name, stage.key) else "shared" if stage.key in taken else "compute"
            for need in stage.needs if kinds[name] == "compute" else ():
                ask(need)

    for name in ("prompts", *plan.results) if strict and "prompts" in plan.stages else plan.results:
        ask(name)
    return {kind: [n for n in plan.stages if kinds.get(n) == kind] for kind in ("cached", "shared", "compute")}


def installed(resolution: environments.Resolution, root: Path) -> bool:
    """Whether an environment is there already."""
    there = resolution.base and not resolution.extras
    return bool(there) or (root / resolution.hash[:32] / environments.STAMP).exists()


def table(found: Survey) -> str:
    """The cells as a table, what all have in common, the whole's estimate, failures, and a last line of counts."""
    rows = [{**dict.fromkeys(FACTORS, ""), **p.cell.factors, "options": p.cell.options} for p in found.cells]
    shown = shown_names(rows, ALWAYS)
    earlier = ["Of an earlier cell"] if any(p.shared for p in found.cells) else []
    header = ["cell", *shown, "Cached", *earlier, "To compute", "Seconds"]
    body = [
        [number, *(row[name] for name in shown), *columns(planned, bool(earlier))]
        for number, (row, planned) in enumerate(zip(rows, found.cells, strict=True), 1)
    ]
    fixed = ", ".join(f"{name} {rows[0][name]}" for name in NAMES if name not in shown and rows[0][name])
    notes = [f"All cells: {fixed}.", *found.code, *whole(found), *failures(found.cells)]
    return scrub("\n".join([markdown_table(header, body), "", *(f"- {note}" for note in notes), "", counts(found)]))


def columns(planned: Planned, earlier: bool) -> list[str]:
    """The columns right of the factors."""
    if planned.failure:
        text = f"{planned.failure.status}: {planned.failure.line()}"
        text = text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"
        return ["", *[""] * earlier, text, ""]
    if planned.found:
        status = planned.found.status
        return ["found" if status == "ok" else f"found: {status}", *[""] * earlier, "nothing", "0"]
    shared = ["everything" if "compare" in planned.shared else ", ".join(planned.shared)] if earlier else []
    compute = ", ".join(planned.compute or {}) or "nothing"
    return [", ".join(planned.cached), *shared, compute, about(planned.seconds)]


def about(seconds: Sequence[float | None], jobs: int = 1) -> str:
    """A sum in a few characters; what is not known of is a question mark."""
    known = [value for value in seconds if value is not None]
    total = sum(known) / jobs
    said = f"{total:.0f}" if total >= 10 else f"{total:.2g}"
    return said if len(known) == len(seconds) else f"{said} + ?" if known else "?"


def whole(found: Survey) -> list[str]:
    """Lines on how long the sweep would take."""
    seconds = [value for planned in found.cells for value in planned.seconds]
    if not seconds:
        return ["Nothing is to be computed."]
    unknown = [name for p in found.cells for name, value in (p.compute or {}).items() if value is None]
    new = [name for name in dict.fromkeys(unknown) if name not in UNMADE]
    lines = [
        f"Estimate: {about(seconds)} s of work, by the medians of past runs; {about(seconds, found.jobs)} s with"
        f" {found.jobs} at a time, and the start of the workers."
    ]
    lines += [f"Not known, for no past run has one: {', '.join(new)}."] if new else []
    if UNMADE[0] in unknown:
        lines.append("A checkpoint that is not here is downloaded or made first; how long that takes is not known.")
    if found.installs:
        many = f"{found.installs} environment{'s' * (found.installs > 1)}"
        lines.append(f"{many} would be made first, which is not in the estimate.")
    return lines


def failures(cells: Sequence[Planned]) -> list[str]:
    """Each kind of failure once, with its cells, the whole error, and what to do."""
    kinds: dict[tuple, list[str]] = {}
    for number, planned in enumerate(cells, 1):
        if planned.failure:
            key = (planned.failure.status, planned.failure.line(), planned.failure.hint)
            kinds.setdefault(key, []).append(str(number))
    return [
        f"Cell{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {status}: {line}" + (f" ({hint})" if hint else "")
        for (status, line, hint), numbers in kinds.items()
    ]


def counts(found: Survey) -> str:
    """How many cells are found, run, and fail before they could, and why."""
    cells = found.cells
    unmade = [planned.failure for planned in cells if planned.cell.failure]
    unplanned = [planned.failure for planned in cells if planned.failure and not planned.cell.failure]
    parts = [f"{sum(p.found is not None for p in cells)} found", f"{sum(p.runs for p in cells)} to run"]
    parts.append(f"{len(unmade)} fail{'s' * (len(unmade) == 1)} to compose" + reasons(unmade))
    if unplanned:
        parts.append(f"{len(unplanned)} fail{'s' * (len(unplanned) == 1)} before anything runs" + reasons(unplanned))
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}: {', '.join(parts)}"


def reasons(failed: Sequence[Failure]) -> str:
    """The failures' lines in brackets, each once."""
    lines = list(dict.fromkeys(f"{failure.status}: {failure.line()}" for failure in failed))
    more = [f"and {len(lines) - MOST_REASONS} more"] if len(lines) > MOST_REASONS else []
    return f" ({'; '.join([*lines[:MOST_REASONS], *more])})" if lines else ""
