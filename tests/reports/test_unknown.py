"""Each cause of the moment in each report: no table, verdict or sentence takes it for a finding, and each lists it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rows import changed, ok, prompt, store

from db import engine as database
from db import items, query
from db.record import NewResult
from reports import depth, evidence, families, history, older, pairs, proof, regressions, status

MODEL = "random_llama"  # what the table of families has
SHAPE = {"model": MODEL, "builder": "1.0", "patch": "none", "layers": "2"}
# As the runner records them (tests/runner/test_causes.py).
CAUSES = {
    "no space": ("export_failed", "DiskFull", "no space left while writing export"),
    "SIGKILL": ("killed", None, "export was ended by SIGKILL"),
    "MemoryError": ("export_failed", "MemoryError", "MemoryError"),
    "time-out": ("timeout", None, "export took longer than allowed and was ended"),
    "worker": ("killed", None, "the worker that ran export ended (exit code 1)"),
    "not the export's": ("reference_failed", "KeyError", "'layer_types'"),
    "the comparison's": ("run_failed", "ValueError", "shapes differ"),
}


def failure(name: str) -> NewResult:
    status, kind, error = CAUSES[name]
    stage = {"not the export's": "reference", "the comparison's": "compare"}.get(name)
    return failed(status, kind, error, stage or "export", final=bool(stage))


def failed(status: str, kind: str | None, error: str, stage: str = "export", final: bool = True) -> NewResult:
    about = {"status": status, "final": final, "error_type": kind, "error": error, "failed_stage": stage}
    # What a failed cell knows of what it stands on, as the runner records it.
    known = replace(measured(1.0), prompts=())
    values = {key: value for key, value in known.values.items() if key not in ("status", "final", "hash", "thresholds")}
    return replace(known, values=values | about)


def measured(worst: float, **values) -> NewResult:
    numbers = prompt("p", worst, worst, identical=worst < 2)
    given = {"thresholds": {"within": 10.0, "broken": 1000.0}, "checkpoint_hash": "c", "layer_count": 2}
    return ok(numbers, hash=f"{worst}{values}", **given, **values)


@pytest.fixture
def lab(tmp_path):
    """(store a cell by its result and factors, the database's path)."""
    path = str(tmp_path / "x.db")
    engine = database.open_database(path)

    def add(result: NewResult, **factors: str) -> int:
        patch = factors.get("patch", "none")
        made = changed(*([patch] if patch != "none" else []))
        return store(engine, SHAPE | factors, made, result)

    return add, path, engine


def told(report: dict, module) -> str:
    return older.below(report, module.markdown(report))


every_cause = pytest.mark.parametrize("cause", CAUSES)


@every_cause
def test_a_baseline_that_failed_for_the_moment_proves_no_fix(lab, cause):
    add, path, _ = lab
    bad = add(failure(cause))
    add(measured(1.0), patch="fix")
    report = proof.collect(path, {"model": [MODEL]})
    assert not [v for design in report["designs"] for v in design["verdicts"] if v["word"] != "not enough cells"]
    text = told(report, proof)
    assert f"Not known: cell {bad}: {CAUSES[cause][0]}" in text and "run again: `python -m runner" in text
    assert "proven" not in text.replace("is proven", "")


def test_a_baseline_that_failed_for_good_does_prove_it(lab):
    """The same cells, final: what the tests above would find if a cause were taken for a finding."""
    add, path, _ = lab
    add(failed("export_failed", "KeyError", "'rope_type'"))
    add(measured(1.0), patch="fix")
    (design,) = proof.collect(path, {"model": [MODEL]})["designs"]
    assert [v["word"] for v in design["verdicts"]] == ["proven"]


@every_cause
def test_a_change_that_failed_for_the_moment_has_no_verdict(lab, cause):
    add, path, _ = lab
    add(measured(900.0))
    bad = add(failure(cause), patch="fix")
    report = proof.collect(path, {"model": [MODEL]})
    assert not [v for design in report["designs"] for v in design["verdicts"]]
    assert f"Not known: cell {bad}" in told(report, proof)


@every_cause
def test_pairs_take_no_cause_of_the_moment(lab, cause):
    add, path, _ = lab
    bad = add(failure(cause))
    add(measured(1.0), patch="fix")
    report = pairs.collect(path, {})
    assert report["pairs"] == []
    assert f"Not known: cell {bad}" in told(report, pairs)
    add(failed("export_failed", "KeyError", "'rope_type'"))
    report = pairs.collect(path, {})
    assert [pair["axis"] for pair in report["pairs"]] == ["patch"] and report["unknown"] == []


@every_cause
def test_history_has_no_era_of_the_moment(lab, cause):
    add, path, _ = lab
    good = add(measured(1.0))
    bad = add(failure(cause), builder="2.0")
    report = history.collect(path, {})
    assert [row["cell"] for row in report["rows"]] == [good]
    assert f"Not known: cell {bad}" in told(report, history)


@every_cause
def test_no_builder_is_worse_for_a_cause_of_the_moment(lab, cause):
    add, path, _ = lab
    add(measured(1.0))
    bad = add(failure(cause), builder="2.0")
    report = regressions.collect(path, {})
    assert report["rows"] == [] and f"Not known: cell {bad}" in told(report, regressions)
    add(measured(1.0), builder="2.0")
    add(failure(cause), builder="2.0")  # a newer run that gave nothing hides no older finding
    report = regressions.collect(path, {})
    assert [row["worse"] for row in report["rows"]] == [""] and report["unknown"] == []


@every_cause
def test_status_neither_verifies_nor_contradicts(lab, cause):
    add, path, engine = lab
    items.add_claim(engine, {"name": "fails", "what": "w", "filters": {"patch": "none"},
                             "expect": {"status": ["export_failed", "run_failed"]}})  # fmt: skip
    items.add_claim(engine, {"name": "right", "what": "w", "filters": {"patch": "none"}})
    bad = add(failure(cause))
    claims = status.collect(path)["claims"]
    assert [(claim["verdict"], claim["unknown"]) for claim in claims] == [("undecided", [bad])] * 2
    text = status.markdown(status.collect(path))
    assert f"not known: cell {bad}, again: `python -m runner" in text and "verified" not in text


@every_cause
def test_evidence_is_of_findings(lab, cause, tmp_path):
    add, path, engine = lab
    items.add_claim(engine, {"name": "c", "what": "w", "filters": {"patch": ["none", "fix"]}})
    bad = add(failure(cause))
    with pytest.raises(query.NotInDatabase, match=f"cell {bad} is not known: {CAUSES[cause][0]}"):
        evidence.write(path, "c", tmp_path / "none")
    good = add(measured(1.0), patch="fix")
    rows = items.newest_cells(engine, items.claim_rows(engine)[0])
    assert [(row["cell"], row["known"]) for row in rows] == [(bad, False), (good, True)]


@every_cause
def test_families_and_depths_say_that_it_is_not_known(lab, cause):
    add, path, _ = lab
    bad = add(failure(cause))
    text = told(families.collect(path, None), families)
    assert f"Not known: cell {bad}" in text
    assert ("| no reference " if cause == "not the export's" else "| not known ") in text
    report = depth.collect(path, {})
    assert report["lines"] == [] and f"Not known: cell {bad}" in told(report, depth)


def test_a_final_failure_that_is_not_the_exports_has_a_command_that_runs_it_again(lab):
    add, path, _ = lab
    add(failure("not the export's"))
    (line,) = history.collect(path, {})["unknown"]
    assert line.endswith("(in the reference stage: not the export's); run again: `python -m runner -m rerun=failed`")


def test_many_cells_are_summed_up(lab):
    add, path, _ = lab
    for n in range(12):
        add(failed("killed", None, f"reason {n}", final=False), builder=f"{n}.0")
    unknown = history.collect(path, {})["unknown"]
    assert len(unknown) == 9 and unknown[-1].startswith("Not known: 4 older cells more")


def test_what_a_second_run_would_only_repeat_is_to_be_corrected_first(lab):
    add, path, _ = lab
    bad = add(failed("patch_failed", None, "an anchor was not found"), patch="fix")
    odd = add(failed("config_failed", None, "Could not find 'patch/typo'"), patch="typo")
    text = told(pairs.collect(path, {}), pairs)
    assert f"Not known: cell {bad}: patch_failed" in text and f"Not known: cell {odd}: config_failed" in text
    assert text.count("; correct it, then `python -m runner") == 2 and "run again" not in text
