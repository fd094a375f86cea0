"""The constants and families tables, from rows made by hand and from real cells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from lab import results
from rows import ok, prompt, store

from db import engine as database
from db import history, query
from db.models import Sweep
from db.record import Provenance
from reports import constants, families, sweep
from runner import families as known
from runner import paths


def constant(kind="rope", what="local layers", verdict="same", diff=0.0, says="", **more) -> dict:
    return {
        "kind": kind, "what": what, "layers": [0, 1, 2, 4], "reference": "theta 10000", "export": "theta 10000",
        "max_abs_diff": diff, "positions": 32768 if kind == "rope" else None, "verdict": verdict, "says": says,
    } | more  # fmt: skip


WRONG = constant(verdict="differs", diff=2.0, says="local layers rotate at 1/8 of the reference's frequency")


@pytest.fixture
def engine(tmp_path):
    return database.open_database(str(tmp_path / "x.db"))


def add(engine, *found: dict, factors: dict | None = None, key: str = "k", action: str = "run", **values) -> int:
    rows = [{"constants_key": key, "position": n, **row} for n, row in enumerate(found)]
    result = ok(prompt("p", 1, 1), hash=key, constants_key=key if found else None, **values)
    ident = store(engine, factors or {}, Provenance(), replace(result, constants=rows))
    if action != "run":
        with database.writing(engine) as session:
            session.query(Sweep).order_by(Sweep.id.desc()).first().action = action
    return ident


def url(engine) -> str:
    return str(engine.url.database)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_column_a_kind_and_what_is_wrong_below(engine):
    add(engine, WRONG, constant(what="global layers"), constant("epsilon", "input_layernorm"))
    text = constants.markdown(constants.collect(url(engine), {}, None, every=False))
    header, _, row = text.splitlines()[:3]
    assert cells(header)[4:] == ["Positions", "RoPE, local layers", "RoPE, global layers", "Epsilons", "Constants"]
    assert cells(row)[4:] == ["32,768", "2", "0", "0", "1 of 3 wrong"]
    assert "- Cell 1: RoPE (local layers): local layers rotate at 1/8 of the reference's frequency." in text


def test_what_is_said_alike_of_several_is_said_once(engine):
    says = {"verdict": "differs", "diff": 0.004, "says": "1 + weight rounded to bfloat16"}
    add(engine, *(constant("norm_weight", what, **says) for what in ("q_norm", "final norm")))
    text = constants.markdown(constants.collect(url(engine), {}, None, every=False))
    assert text.count("1 + weight rounded") == 1 and "(q_norm, final norm)" in text


def test_each_constant_has_a_row_where_asked(engine):
    add(engine, WRONG)
    text = constants.markdown(constants.collect(url(engine), {}, None, every=True))
    assert cells(text.splitlines()[-1])[:3] == ["rope", "local layers", "0 – 2, 4"]


def test_what_was_not_compared_is_listed_and_not_counted_as_right(engine):
    unread = {"verdict": "unread", "diff": None, "says": "how tokens are routed to the experts"}
    add(engine, constant("weight", "q_proj"), constant("operators", "MoE", **unread))
    text = constants.markdown(constants.collect(url(engine), {}, None, every=False))
    assert cells(text.splitlines()[2])[-1] == "1 of 2 right, 1 not compared"
    said = "operators MoE, layers 0 – 2, 4: how tokens are routed to the experts"
    assert f"- Not compared, cell 1: {said}." in text
    left = constants.markdown(constants.collect(url(engine), {}, None, every=False, left=True))
    assert cells(left.splitlines()[2])[-2:] == ["1 of 2", said]


def test_matrices_have_one_column_with_the_worst_of_them(engine):
    steps = {"verdict": "rounded", "diff": 0.07, "says": "the nearest steps"}
    add(engine, constant("weight", "q_proj", **steps), constant("weight", "v_proj", **steps), key="right")
    wrong = constant("weight", "k_proj", "differs", 0.3, "holds v_proj", layers=[2])
    add(engine, constant("weight", "q_proj", **steps), wrong, key="wrong")
    text = constants.markdown(constants.collect(url(engine), {}, "1", every=False))
    assert cells(text.splitlines()[2])[-2:] == ["within steps", "2 of 2 right"]
    text = constants.markdown(constants.collect(url(engine), {}, "2", every=False))
    assert cells(text.splitlines()[2])[-2:] == ["0.3", "1 of 2 wrong"]
    assert "- Cell 2: Weights (layer 2's k_proj): holds v_proj." in text


@pytest.mark.parametrize(
    ("verdict", "shown"), [("dropped", "dropped"), ("added", "added"), ("unread", "unread"), ("same", "same")]
)
def test_what_has_no_difference_has_a_word(engine, verdict, shown):
    add(engine, constant("bias", "q_proj", verdict, diff=None))
    text = constants.markdown(constants.collect(url(engine), {}, None, every=False))
    assert cells(text.splitlines()[2])[5] == shown


def test_cells_of_constants_alone_are_in_no_other_table(engine):
    run = add(engine, constant(), key="run")
    alone = add(engine, WRONG, key="alone", action="constants")
    assert [row["cell"] for row in query.cell_rows(engine)] == [run]
    assert [row["cell"] for row in history.history_rows(engine)] == [run]
    assert sweep.collect(url(engine))["sweep"]["sweep"] == 1
    report = constants.collect(url(engine), {}, None, every=False)
    assert [row["cell"] for row in report["rows"]] == [alone]


def test_the_families_table_says_why(engine):
    add(engine, WRONG, factors={"model": "random_llama"})
    failed = {"status": "export_failed", "error": "'rope_type'", "error_type": "KeyError"}
    frame = "builders/base.py:670 in make_rope_init: x = y"
    bad = replace(ok(hash="f", error_frame=frame, **failed), constants=[])
    store(engine, {"model": "random_gemma3"}, Provenance(), bad)
    only = families.collect(url(engine), None)["rows"]
    assert [row["model"] for row in only] == ["random_gemma3"]
    (text,) = [line for line in families.markdown({"rows": only}).splitlines() if "gemma3 " in line]
    assert (
        cells(text)[3] == "no" and cells(text)[-1] == "KeyError: 'rope_type', at builders/base.py:670 in make_rope_init"
    )
    whole = families.collect(url(engine), "1")["rows"]
    (text,) = [line for line in families.markdown({"rows": whole}).splitlines() if "llama" in line]
    assert "local layers rotate at 1/8" in text and cells(text)[3] == "yes"


def test_the_experiment_has_every_family():
    content = yaml.safe_load((paths.CONF / "experiment" / "families.yaml").read_text(encoding="utf-8"))
    listed = content["hydra"]["sweeper"]["params"]["model.family"].replace(" ", "").split(",")
    assert sorted(listed) == known.names()


@pytest.mark.slow
def test_the_constants_of_a_config_name_the_fault_and_no_logits_are_computed(shared_lab, rope, tmp_path):
    folder = tmp_path / "gemma3_real"
    folder.mkdir()
    published = yaml.safe_load((paths.CONF / "model" / "gemma3_4b.yaml").read_text(encoding="utf-8"))["config"]
    (folder / "config.json").write_text(json.dumps(published | {"max_position_embeddings": 4096}))
    before = {p.name for p in (shared_lab.store / "reference").iterdir()}
    runs = results(shared_lab)
    done = shared_lab.run(
        "action=constants", "model=path", f"model.path={folder}", "builder=0.14.1", "patch=none,rope_fix"
    )
    assert done.returncode == 0, done.stderr
    rows = [cells(line) for line in done.stdout.splitlines() if line.startswith("|")]
    local, positions = rows[0].index("RoPE, local layers"), rows[0].index("Positions")
    assert [row[positions] for row in rows[2:]] == ["4,096", "4,096"]
    assert float(rows[2][local]) > 1 and rows[3][local] == "0"
    assert "local layers rotate at 1/8 of the reference's frequency" in done.stdout
    assert {p.name for p in (shared_lab.store / "reference").iterdir()} == before and results(shared_lab) == runs
    again = shared_lab.run(
        "action=constants", "model=path", f"model.path={folder}", "builder=0.14.1", "patch=none,rope_fix"
    )
    assert "2 found, 0 to run" in again.stderr


@pytest.mark.slow
def test_a_run_tells_of_wrong_constants_too(shared_lab, rope):
    warned = [line for line in rope.stdout.splitlines() if line.startswith("- Warning") and "constant" in line]
    assert any("rotate at 1/8" in line for line in warned)
    found = json.loads(shared_lab.call("db", "constants", "1", "--format", "json").stdout)
    assert {"differs"} < {row["verdict"] for row in found}


@pytest.mark.slow
def test_what_is_made_goes_to_the_remote_and_is_not_made_elsewhere(lab, rope, tmp_path):
    remote = tmp_path / "remote"
    asked = (
        "model=random",
        "model.family=llama",
        "prompts=plain",
        "max_new_tokens=2",
        f"store.remote={remote.as_uri()}",
    )
    assert lab.run(*asked).returncode == 0
    (manifest,) = remote.glob("model/*/manifest.json")
    other = type(lab)(tmp_path / "other")
    done = other.run(*asked)
    assert done.returncode == 0 and ": model\n" not in done.stderr
    assert Path(other.store / "model" / manifest.parent.name).is_dir()
    assert results(other)[0]["logits_max_abs_diff"] == results(lab)[0]["logits_max_abs_diff"]
