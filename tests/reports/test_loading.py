"""The loading table: faults by name, cells that loaded alike together, what to do below."""

from __future__ import annotations

import json

import pytest
from rows import PATCH, cell, ok, prompt, tensor, with_loading
from typer.testing import CliRunner

from db import engine as database
from db import record
from reports import __main__ as command
from reports import loading

SCALAR = tensor(
    "model.layers.*.layer_scalar", "defaulted", loader="tp_cpu", kind="buffer", shape=[], held=[],
    says="holds 1, the checkpoint has 0.0693 to 0.871",
)  # fmt: skip
REFERENCE = [tensor(), tensor("model.norm.weight"), tensor("inv_freq", "computed", shape=None, stored=None)]
SHARDED = tensor(outcome="sharded", loader="tp_cpu", held=[32, 128], says="rows / 2")
COPIED = SCALAR | {"outcome": "copied", "says": ""}


@pytest.fixture
def engine(tmp_path):
    return database.open_database(str(tmp_path / "x.db"))


def add(engine, *audits: dict, factors: tuple = ()) -> None:
    """A sweep with a cell for each of some audits by side."""
    given = factors or [{} for _ in audits]
    _, ids = record.begin_sweep(engine, [], "1", [cell(**f) for f in given])
    for one, sides in zip(ids, audits, strict=True):
        result = ok(prompt("p", 1, 1), hash=str(one))
        record.record_result(engine, one, with_loading(result, str(one), **sides), PATCH)


def report(engine, every: bool = False) -> str:
    return loading.markdown(loading.collect(str(engine.url.database), every=every))


def rows(text: str) -> list[list[str]]:
    """The table's rows, escapes taken out."""
    lines = [line for line in text.replace("\\", "").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_lost_buffer_is_first_and_named_with_its_values_and_what_to_do(engine):
    add(engine, {"reference": REFERENCE, "candidate": [SHARDED, SCALAR]})
    text = report(engine)
    assert rows(text) == [
        ["1", "candidate (tp_cpu)", "model.layers.*.layer_scalar", "0 – 2", "3", "buffer", "defaulted", "scalar",
         "bfloat16 → float32", "holds 1, the checkpoint has 0.0693 to 0.871"],
        ["1", "candidate (tp_cpu)", "model.layers.*.mlp.up_proj.weight", "0 – 2", "3", "parameter", "sharded",
         "64 × 128 → 32 × 128", "bfloat16 → float32", "rows / 2"],
    ]  # fmt: skip
    assert "- Cell 1: 3 tensors of the candidate are not what the checkpoint has: model.layers.\\*.layer" in text
    assert "`python -m db loading 1 --faults`" in text and "backend.copy_buffers=true" in text
    assert "- Cell 1, reference: 4 tensors cast, 1 computed." in text and "No fault" not in text


def test_cells_that_loaded_alike_are_together(engine):
    good = {"reference": REFERENCE, "candidate": [SHARDED, COPIED]}
    bad = {"reference": REFERENCE, "candidate": [SHARDED, SCALAR]}
    add(engine, good, bad, good, factors=({"options": "x"}, {}, {"builder": "2"}))
    text = report(engine)
    assert [(row[0], row[6]) for row in rows(text)] == [
        ("2", "defaulted"), ("1 – 3", "sharded"), ("1, 3", "copied"),
    ]  # fmt: skip
    assert "- Cells 1 – 3, reference: 4 tensors cast, 1 computed." in text
    assert "- Cell 1: builder v, options x." in text and "- Cell 3: builder 2." in text


def test_cells_of_many_kinds_are_left_to_a_command(engine):
    many = [{"builder": str(n)} for n in range(loading.MOST_LINES + 1)]
    add(engine, *({"candidate": [COPIED]} for _ in many), factors=many)
    text = report(engine)
    assert [row[0] for row in rows(text)] == ["1 – 9"]
    assert "- Cells differ in builder: `python -m db cells --sweep 1`." in text


def test_many_names_of_an_outcome_are_one_row_and_faults_never(engine):
    names = [f"model.layers.*.part{n}.weight" for n in range(loading.MOST_NAMES + 1)]
    many = [tensor(name, "sharded", layers=[n], says="rows / 2") for n, name in enumerate(names)]
    wrong = [tensor(name, "differs") for name in names]
    add(engine, {"candidate": [*many, *wrong]})
    *faults, last = rows(report(engine))
    assert [row[2] for row in faults] == names and {row[6] for row in faults} == {"differs"}
    assert last[2:5] == ["model.layers.*.part0.weight and 4 more names", "0 – 4", "15"] and last[-1] == "rows / 2"
    assert len(rows(report(engine, every=True))) == 2 * len(names)


def test_no_fault_is_said_and_plain_outcomes_have_no_row(engine):
    add(engine, {"reference": REFERENCE})
    text = report(engine)
    assert rows(text) == [] and "No fault" in text and "backend.copy_buffers" not in text
    assert [row[6] for row in rows(report(engine, every=True))] == ["cast", "cast", "computed"]


def test_a_parameter_of_the_candidate_is_looked_for_by_name(engine):
    add(engine, {"candidate": [tensor("lm_head.weight", "defaulted", loader="tp_cpu")]})
    text = report(engine)
    assert "- Cell 1: 1 tensor of the candidate is not what the checkpoint has: lm_head.weight;" in text
    assert "look for its name" in text and "backend.copy_buffers" not in text


def test_what_was_dropped_is_a_warning(engine):
    gone = tensor("model.vision.patch.weight", "dropped", kind="", held=None, loaded=None)
    add(engine, {"reference": [gone, *REFERENCE]})
    text = report(engine)
    assert rows(text)[0][6:9] == ["dropped", "64 × 128 → none", "bfloat16 → none"]
    assert "- Dropped: the model has no place" in text and "No fault" in text


def test_a_reference_or_checkpoint_at_fault_says_what_that_means(engine):
    add(
        engine,
        {
            "checkpoint": [tensor("token_embd.weight", "differs", loader="GGUF")],
            "reference": [tensor("a", "defaulted")],
        },
    )
    text = report(engine)
    assert "is no reference" in text and "gave both sides the same wrong tensor" in text
    assert "backend.copy_buffers" not in text


def test_a_cell_without_an_audit_is_named_and_a_failed_one_says_why(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(), cell()])
    record.record_result(engine, ids[0], ok(prompt("p", 1, 1)), PATCH)
    record.record_result(engine, ids[1], ok(status="load_failed", error="no room", error_type="E", hash="f"), PATCH)
    text = report(engine)
    assert "- Cell 1: nothing is stored" in text and "- Cell 2: load_failed: E: no room" in text


def test_the_command_writes_both_formats(engine, tmp_path):
    add(engine, {"candidate": [SCALAR]})
    options = ["loading", "--sweep", "latest", "--db", str(engine.url.database)]
    done = CliRunner().invoke(command.app, [*options, "--format", "json"])
    assert [row["name"] for row in json.loads(done.stdout)["rows"][0]["loading"]] == [SCALAR["name"]]
    out = tmp_path / "loading.md"
    assert CliRunner().invoke(command.app, [*options, "--every", "--out", str(out)]).exit_code == 0
    assert "layer_scalar" in out.read_text(encoding="utf-8")
