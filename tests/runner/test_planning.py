"""What a run would do is said before it does anything, and nothing is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import artifacts, results
from omegaconf import OmegaConf
from sqlalchemy import func, select

from db import durations
from db import engine as database
from db.models import FACTORS, Cell, Result, StageRun, Sweep
from db.query import sweep_rows
from runner import main, planning, schema
from runner.cell_stages import VERSIONS, Stage
from runner.cells import Cell as Asked
from runner.checkpoints import Checkpoint
from runner.environments import Resolution
from runner.failures import ConfigFailed, Fault, PatchFailed
from runner.models import Origin
from runner.overlays import Overlay
from runner.plan import Plan
from runner.sources import Source
from runner.store import Store

NEEDS = {
    "prompts": (), "reference": ("prompts",), "noise": ("prompts", "reference"), "export": (),
    "candidate": ("prompts", "reference", "export"), "compare": ("prompts", "reference", "noise", "candidate"),
}  # fmt: skip


@pytest.fixture
def settings(tmp_path) -> schema.Settings:
    given = {
        "action": "plan", "rerun": "none", "stages": "all", "audit": "warn", "load_audit": "warn",
        "allow_failed": False, "jobs": 2,
        "limits": {"timeout_seconds": 1, "stall_seconds": 1},
        "verdict": {"within": 1, "broken": 2, "precision_within": 1, "precision_broken": 2},
        "store": {"root": str(tmp_path / "store")}, "db": {"url": str(tmp_path / "x.db")},
    }  # fmt: skip
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema.Settings), given))


@pytest.fixture
def engine(settings):
    return database.open_database(settings.db.url)


def asked(failure: ConfigFailed | None = None, **factors: str) -> Asked:
    return Asked({**dict.fromkeys(FACTORS, "v"), **factors}, failure=failure)


def plan_of(patch: str) -> Plan:
    """A plan whose export, candidate and comparison are the patch's own."""
    own = ("export", "candidate", "compare")
    stages = {
        name: Stage(name, {"patch": patch if name in own else ""}, "reference", needs, lambda paths, meta: {})
        for name, needs in NEEDS.items()
    }
    resolution = Resolution({}, "e" * 64, "p", base=Path("/usr/bin/python3"))
    return Plan(
        stages, ("compare",), object.__new__(Checkpoint), Origin(Path("x")), {"reference": resolution},
        object.__new__(Source), object.__new__(Overlay), 1,
    )  # fmt: skip


def survey_of(monkeypatch, settings, *pairs) -> planning.Survey:
    async def plan_all(cells, store, settings, known):
        return [plan for _, plan in pairs]

    monkeypatch.setattr(planning, "plan_all", plan_all)
    return planning.survey([cell for cell, _ in pairs], settings)


def make(settings, plan: Plan, *names: str) -> None:
    store = Store(Path(settings.store.root))
    for name in names:
        with store.draft(name) as draft:
            (draft / "out").mkdir()
            store.finish(name, plan.stages[name].key, draft / "out", {}, {})


def add_result(engine, model: str, stages: dict[str, float | None], **values) -> None:
    """A result of a model's cell, whose stages took so long; None: found."""
    values = {"status": "ok", "final": True, "measurement_version": 1, **values}
    with database.writing(engine) as session:
        sweep = Sweep(overrides=[], host="h", pid=1, version="0")
        result = Result(**values)
        result.stages = [
            StageRun(position=n, stage=stage, key="k", found=seconds is None, seconds=seconds)
            for n, (stage, seconds) in enumerate(stages.items())
        ]
        session.add_all([sweep, result])
        session.flush()
        factors = dict.fromkeys(FACTORS, "v") | {"model": model}
        for position in range(2):  # two cells with one result: its stages ran once
            session.add(Cell(sweep_id=sweep.id, position=position, hash="h", config={}, result_id=result.id, **factors))


def test_the_median_is_of_the_models_own_runs_or_else_of_all(engine):
    add_result(engine, "small", {"export": 1.0, "prompts": None})
    add_result(engine, "small", {"export": 3.0})
    add_result(engine, "large", {"export": 90.0})
    assert durations.median_seconds(engine, "export", "small") == 2.0
    assert durations.median_seconds(engine, "export", "large") == 90.0
    assert durations.median_seconds(engine, "export", "new") == 3.0
    assert durations.median_seconds(engine, "prompts", "small") is None


def test_a_stage_of_several_cells_is_the_firsts(monkeypatch, settings, engine):
    add_result(engine, "v", {name: 2.0 for name in NEEDS if name != "noise"})
    found = survey_of(
        monkeypatch, settings,
        (asked(patch="none"), plan_of("none")), (asked(patch="a"), plan_of("a")), (asked(patch="b"), plan_of("a")),
    )  # fmt: skip
    first, second, third = found.cells
    assert list(first.compute) == list(NEEDS) and first.shared == first.cached == ()
    assert list(second.compute) == ["export", "candidate", "compare"]
    assert second.shared == ("prompts", "reference", "noise")
    assert third.compute == {} and third.shared == ("compare",)
    table = planning.table(found)
    assert "| 1    | v     | v       | none  |" in table and "| 10 + ? " in table
    assert "Estimate: 16 + ? s of work, by the medians of past runs; 8 + ? s with 2 at a time" in table
    assert "Not known, for no past run has one: noise." in table
    assert "everything" in table and table.endswith("\n3 cells: 0 found, 3 to run, 0 fail to compose")


def test_what_is_cached_is_not_computed_nor_what_it_was_made_of(monkeypatch, settings):
    plan = plan_of("none")
    make(settings, plan, "reference", "noise", "export", "candidate")
    found = survey_of(monkeypatch, settings, (asked(), plan))
    assert found.cells[0].cached == ("reference", "noise", "candidate")
    assert list(found.cells[0].compute) == ["prompts", "compare"]  # the comparison wants the prompts
    assert found.cells[0].seconds == [None, None] and "| ?       |" in planning.table(found)
    assert "Of an earlier cell" not in planning.table(found)


def test_rerun_is_respected(monkeypatch, settings, engine):
    good, bad = plan_of("none"), plan_of("a")
    make(settings, good, *NEEDS)
    make(settings, bad, "prompts", "reference", "noise")
    add_result(engine, "v", {}, hash=good.result_hash)
    add_result(engine, "v", {}, hash=bad.result_hash, status="export_failed")
    pairs = (asked(patch="none"), good), (asked(patch="a"), bad)

    found = survey_of(monkeypatch, settings, *pairs)
    assert [planned.found.status for planned in found.cells] == ["ok", "export_failed"]
    table = planning.table(found)
    assert "found: export_failed" in table and "Nothing is to be computed." in table
    assert table.endswith("2 cells: 2 found, 0 to run, 0 fail to compose")

    settings.rerun = "failed"
    found = survey_of(monkeypatch, settings, *pairs)
    assert found.cells[0].found and not found.cells[1].found
    assert list(found.cells[1].compute) == ["export", "candidate", "compare"]

    settings.rerun = "all"
    found = survey_of(monkeypatch, settings, *pairs)
    assert list(found.cells[0].compute) == list(NEEDS) and found.cells[0].cached == ()
    assert list(found.cells[1].compute) == ["export", "candidate", "compare"]


def test_a_cell_that_cannot_be_planned_shows_why(monkeypatch, settings, capsys):
    unmade = ConfigFailed("no such builder", hint="there are others")
    pairs = [
        (asked(failure=unmade), unmade), (asked(failure=unmade), unmade), (asked(), PatchFailed("the anchor is gone")),
        (asked(), plan_of("none")),
    ]  # fmt: skip
    table = planning.table(survey_of(monkeypatch, settings, *pairs))
    assert "patch_failed: the anchor is gone" in table
    assert "- Cells 1, 2: config_failed: no such builder (there are others)" in table
    assert table.endswith(
        "\n4 cells: 0 found, 1 to run, 2 fail to compose (config_failed: no such builder),"
        " 1 fails before anything runs (patch_failed: the anchor is gone)"
    )
    assert main.plan([cell for cell, _ in pairs], settings) == main.OK
    survey_of(monkeypatch, settings, *pairs[:2])
    assert main.plan([cell for cell, _ in pairs[:2]], settings) == main.BAD_CONFIG
    survey_of(monkeypatch, settings, (asked(), Fault("oh")))
    assert main.plan([asked()], settings) == main.FAULT and "a fault of paritylab itself" in capsys.readouterr().err


def test_nothing_is_recorded(monkeypatch, settings, engine):
    survey_of(monkeypatch, settings, (asked(), plan_of("none")))
    with database.reading(engine) as session:
        assert [session.scalar(select(func.count()).select_from(t)) for t in (Sweep, Cell, Result)] == [0, 0, 0]
    assert {path.name for path in Path(settings.store.root).glob("*")}.isdisjoint(VERSIONS)


def test_more_jobs_than_cells_do_not_help(monkeypatch, settings):
    settings.jobs = 8
    assert survey_of(monkeypatch, settings, (asked(), plan_of("none")), (asked(), plan_of("a"))).jobs == 2


def test_a_bad_config_alone_is_exit_code_2(lab):
    done = lab.run("action=plan", "layers=0")
    assert done.returncode == 2
    assert "1 cell: 0 found, 0 to run, 1 fails to compose (config_failed: layers: '0' is not allowed)" in done.stdout


@pytest.mark.slow
def test_a_plan_says_what_the_run_then_does(shared_lab, rope):
    """Two cells are there, two would share what the first of them computes; then they are run."""
    arguments = ("builder=0.14.1", "patch=none,rope_fix", "max_new_tokens=5,20")
    before = {stage: artifacts(shared_lab, stage) for stage in VERSIONS}
    engine = database.open_database(str(shared_lab.db))
    sweeps = sweep_rows(engine)
    done = shared_lab.run("action=plan", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("4 cells: 2 found, 2 to run, 0 fail to compose")
    rows = [[field.strip() for field in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "|"]
    assert rows[0] == [
        "cell", "model", "builder", "patch", "max_new_tokens", "Cached", "Of an earlier cell", "To compute", "Seconds",
    ]  # fmt: skip
    assert rows[2][5:8] == ["prompts, export, constants", "", "reference, noise, candidate, compare"]
    assert rows[4][5:8] == ["prompts, export, constants", "reference, noise", "candidate, compare"]
    assert [row[5] for row in rows[3::2]] == ["found", "found"]
    assert 0 < float(rows[4][8]) < float(rows[2][8])
    assert "worker" not in done.stderr
    assert sweep_rows(engine) == sweeps and {stage: artifacts(shared_lab, stage) for stage in VERSIONS} == before

    run = shared_lab.run(*arguments)
    assert run.returncode == 0 and "4 cells: 2 found, 2 to run" in run.stderr
    (latest,) = [row["sweep"] for row in sweep_rows(engine)][-1:]
    made = {stage: len(artifacts(shared_lab, stage)) - len(before[stage]) for stage in VERSIONS}
    assert {stage: count for stage, count in made.items() if count} == {
        "reference": 1, "noise": 1, "candidate": 2, "compare": 2,
    }  # fmt: skip
    assert len(results(shared_lab, "--sweep", str(latest))) == 20
