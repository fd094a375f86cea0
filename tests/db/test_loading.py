"""What became of each key of a checkpoint is stored once an artifact, and shown by side and outcome."""

from __future__ import annotations

import json

import pytest
from rows import PATCH, cell, ok, prompt, tensor, with_loading
from sqlalchemy import func, select
from typer.testing import CliRunner

from db import __main__ as command
from db import detail, query, record
from db import engine as database
from db.artifacts import LoadedTensor

SCALAR = tensor(
    "model.layers.*.layer_scalar", "defaulted", loader="tp_cpu", kind="buffer", shape=[], held=[],
    says="holds 1, the checkpoint has 0.0693 to 0.871",
)  # fmt: skip
REFERENCE = [tensor(), tensor("model.norm.weight"), tensor("inv_freq", "computed", shape=None, stored=None)]
CANDIDATE = [tensor(outcome="sharded", loader="tp_cpu", held=[32, 128]), SCALAR]


@pytest.fixture
def engine(tmp_path):
    return database.open_database(str(tmp_path / "x.db"))


def add(engine, *results) -> list[int]:
    _, ids = record.begin_sweep(engine, [], "1", [cell() for _ in results])
    for one, result in zip(ids, results, strict=True):
        record.record_result(engine, one, result, PATCH)
    return ids


def result(**sides):
    return with_loading(ok(prompt("p", 1, 1)), **sides)


def shown(engine, *arguments: str) -> str:
    done = CliRunner().invoke(command.app, ["loading", *arguments, "--db", str(engine.url.database)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_cells_audits_come_back_in_the_order_of_its_stages(engine):
    made = [tensor("token_embd.weight", "converted", loader="GGUF", kind="")]
    (one,) = add(engine, result(reference=REFERENCE, candidate=CANDIDATE, checkpoint=made))
    rows = detail.cell_loading(engine, one)
    assert all(tuple(row) == detail.LOADING_COLUMNS for row in rows)
    assert rows == [
        {"side": side, **row}
        for side, found in (("checkpoint", made), ("reference", REFERENCE), ("candidate", CANDIDATE))
        for row in found
    ]
    assert detail.cell_loading(engine, one, every=False) == [{"side": "candidate", **SCALAR}]
    assert detail.loading_counts(rows) == (
        "checkpoint: 1 tensor converted; reference: 4 tensors cast, 1 computed;"
        " candidate: 3 tensors defaulted, 3 sharded"
    )


def test_rows_of_an_artifact_are_stored_once_and_anew_where_they_are_others(engine):
    ids = add(engine, result(reference=REFERENCE), result(reference=REFERENCE))
    with database.reading(engine) as session:
        assert session.scalar(select(func.count(LoadedTensor.name))) == len(REFERENCE)
    ids += add(engine, result(reference=REFERENCE[:1]))
    assert [len(detail.cell_loading(engine, one)) for one in ids] == [1, 1, 1]


def test_rows_of_several_artifacts_may_be_mixed(engine):
    given = result(reference=REFERENCE, candidate=CANDIDATE)
    mixed = sorted(given.loading, key=lambda row: (row["position"], row["loading_key"]))
    (one,) = add(engine, with_rows(given, mixed))
    assert [row["name"] for row in detail.cell_loading(engine, one)] == [r["name"] for r in REFERENCE + CANDIDATE]


def with_rows(new, rows):
    return record.NewResult(**{**vars(new), "loading": rows})


@pytest.mark.parametrize(
    ("sides", "faults"),
    [
        ({}, 0),
        ({"reference": REFERENCE}, 0),
        ({"reference": REFERENCE, "candidate": [*CANDIDATE, tensor("a", "differs"), tensor("b", "dropped")]}, 2),
        ({"reference": REFERENCE, "checkpoint": [tensor("a", "differs")]}, 1),
    ],
)
def test_faults_are_counted(engine, sides, faults):
    add(engine, with_loading(ok(hash="other"), "other", candidate=CANDIDATE))  # of another result
    add(engine, result(**sides))
    newest = query.cell_rows(engine)[-1]["result"]
    assert record.loading_faults(engine, newest) == faults


def test_a_cell_without_a_result_has_no_audit(engine):
    _, (one,) = record.begin_sweep(engine, [], "1", [cell()])
    assert detail.cell_loading(engine, one) == [] and shown(engine, str(one)) == ""
    with pytest.raises(query.NotInDatabase, match="cell 99"):
        detail.cell_loading(engine, 99)


def test_the_table_shows_layers_and_shapes_and_counts_all(engine):
    add(engine, result(reference=REFERENCE, candidate=CANDIDATE))
    for format in ("table", "md"):
        text = shown(engine, "1", "--format", format)
        assert "0 – 2" in text and "32 × 128" in text and "scalar" in text and "0.0693 to 0.871" in text
        assert text.splitlines()[-1] == detail.loading_counts(detail.cell_loading(engine, 1))


def test_faults_alone_are_shown_where_asked_and_all_are_counted(engine):
    add(engine, result(reference=REFERENCE, candidate=CANDIDATE))
    text = shown(engine, "1", "--faults")
    assert "layer_scalar" in text and "up_proj" not in text and "reference: 4 tensors cast, 1 computed;" in text
    assert [row["name"] for row in json.loads(shown(engine, "1", "--faults", "--format", "json"))] == [SCALAR["name"]]


def test_for_machines_a_row_is_as_it_is_stored(engine):
    add(engine, result(candidate=CANDIDATE))
    assert json.loads(shown(engine, "1", "--format", "json")) == [{"side": "candidate", **row} for row in CANDIDATE]
