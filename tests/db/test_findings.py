"""What is a finding: in Python and in SQL alike, and what is said of the rest."""

from __future__ import annotations

import itertools

import pytest
from rows import cell, changed, ok, prompt, store
from sqlalchemy import select

from db import engine as database
from db import findings, history, query, record
from db.models import CellRest, Result
from db.record import NewResult, Provenance
from runner import failures

STAGES = (None, *failures.STAGE_FAILURES, "paritylab", "store", "cell")


@pytest.fixture
def engine(tmp_path):
    return database.open_database(str(tmp_path / "x.db"))


def failed(status: str = "export_failed", final: bool = True, stage: str | None = "export", **values) -> NewResult:
    about = {"status": status, "final": final, "failed_stage": stage, "measurement_version": 1}
    return NewResult({**about, "error": "e", "error_type": "E", **values})


def test_python_and_sql_say_the_same_of_every_status_and_stage(engine):
    every = list(itertools.product(failures.STATUSES, (True, False), STAGES))
    with database.writing(engine) as session:
        session.add_all(
            Result(status=status, final=final, failed_stage=stage, measurement_version=1)
            for status, final, stage in every
        )
    with database.reading(engine) as session:
        columns = (Result.status, Result.final, Result.failed_stage)
        by_sql = {tuple(row) for row in session.execute(select(*columns).where(findings.FINDING))}
    names = ("status", "final", "failed_stage")
    by_python = {row for row in every if findings.is_finding(dict(zip(names, row, strict=True)))}
    assert by_sql == by_python
    assert {row[0] for row in by_python} == set(findings.OF_EXPORT)
    assert {row[2] for row in by_python if row[0] != "ok"} == {None, "export", "candidate"}
    assert all(final for status, final, _ in by_python if status != "ok")


@pytest.mark.parametrize(
    ("status", "final", "stage", "said"),
    [
        ("export_failed", True, "export", ""),
        ("export_failed", False, "export", "export_failed: E: e (another run may end otherwise)"),
        ("killed", False, "export", "killed: E: e"),
        ("timeout", False, "reference", "timeout: E: e"),
        ("reference_failed", True, "noise", "reference_failed: E: e (in the noise stage: not the export's)"),
        ("run_failed", True, "compare", "run_failed: E: e (in the compare stage: not the export's)"),
        ("skipped", False, "cell", "skipped: E: e"),
    ],
)  # fmt: skip
def test_why_a_cell_is_no_finding(engine, status, final, stage, said):
    store(engine, {"builder": "1"}, changed(), failed(status, final, stage))
    (row,) = query.cell_rows(engine)
    assert findings.why_unknown(row) == said


def test_a_cell_without_a_result_is_not_known(engine):
    record.begin_sweep(engine, [], "1", [cell(builder="1")])
    (row,) = query.unknown_rows(engine)
    assert findings.why_unknown(row) == "it has no result yet"


def test_what_was_compared_is_a_finding_even_where_its_constants_are_tried_again(engine):
    store(engine, {"builder": "1"}, changed(), ok(prompt("p", 1, 1), final=False))
    assert query.unknown_rows(engine) == []


def test_not_known_is_what_has_no_finding_among_equal_cells(engine):
    known = store(engine, {"builder": "1"}, changed(), failed())
    store(engine, {"builder": "1"}, changed(), failed(final=False))
    store(engine, {"builder": "2"}, changed(), failed(final=False))
    newest = store(engine, {"builder": "2"}, changed(), failed("killed", False))
    assert [row["cell"] for row in query.unknown_rows(engine)] == [newest]
    assert [row["cell"] for row in findings.unknown(query.cell_rows(engine))] == [newest]
    assert [row["cell"] for row in history.history_rows(engine)] == [known]
    assert query.unknown_rows(engine, {"builder": ["1"]}) == []


def test_only_findings_are_entered_among_pairs(engine):
    found = [
        store(engine, {"builder": "1"}, changed(), failed()),
        store(engine, {"builder": "2"}, changed(), failed("run_failed", True, "candidate")),
    ]
    for n, result in enumerate([failed(final=False), failed("run_failed", True, "compare"), failed("killed", False)]):
        store(engine, {"builder": f"3.{n}"}, changed(), result)
    with database.reading(engine) as session:
        assert set(session.scalars(select(CellRest.cell_id))) == set(found)


def test_a_cell_that_gets_a_result_that_is_no_finding_leaves_the_pairs(engine):
    one = store(engine, {"builder": "1"}, changed(), failed())
    record.record_result(engine, one, failed(final=False), Provenance())
    with database.reading(engine) as session:
        assert session.scalars(select(CellRest.cell_id)).all() == []
