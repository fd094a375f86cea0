"""Which cells a sweep has: those that `suspects` makes, without those that `exclude` leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import ENVIRONMENTS

from runner import cells, compose
from runner.cells import FACTORS, Cell
from runner.failures import ConfigFailed

NAMES = st.lists(st.text(st.characters(categories=["Ll"]), min_size=1, max_size=5), unique=True, max_size=8)


@given(NAMES)
def test_suspect_sets_are_each_alone_and_all_but_each_and_nothing_twice(suspects):
    sets = compose.suspect_sets(suspects)
    assert len(sets) == len(set(sets)) == {0: 1, 1: 2, 2: 4}.get(len(suspects), 2 * len(suspects) + 2)
    assert sets[0] == () and sets[-1] == tuple(suspects)
    for suspect in suspects:
        assert (suspect,) in sets
        assert tuple(other for other in suspects if other != suspect) in sets
    sizes = {0, 1, len(suspects) - 1, len(suspects)}
    assert all(len(names) in sizes and list(names) == sorted(names, key=suspects.index) for names in sets)


def cell(**factors: str) -> Cell:
    return Cell({**dict.fromkeys(FACTORS, "x"), "builder": "0.14.1", "dtype": "bf16", "layers": "1", **factors})


@pytest.mark.parametrize(
    ("rules", "out"),
    [
        ([], False),
        ([{"builder": "0.14.1"}], True),
        ([{"builder": "0.14.*"}], True),
        ([{"builder": "0.14.*", "dtype": "fp32"}], False),
        ([{"builder": "0.14.*", "dtype": ["fp32", "bf16"]}], True),
        ([{"builder": "0.12.*"}, {"layers": 1}], True),
        ([{"builder": ["0.12.*", "0.13.?"]}], False),
        ([{"builder": "0.14"}], False),
        ([{"model": "[x]"}], True),
        ([{"dtype": "BF16"}], False),
    ],
)
def test_a_cell_that_matches_every_factor_of_a_rule_is_left_out(rules, out):
    cells.check_exclude(rules)
    assert cells.excluded(cell(), rules) is out


def test_a_label_with_brackets_is_matched_by_itself():
    assert cells.excluded(cell(model="/a/[b]"), [{"model": "/a/[b]"}])


@given(st.lists(st.sampled_from(["fp32", "bf16", "fp16"]), min_size=1, unique=True), st.sampled_from(["fp32", "bf16"]))
def test_a_list_leaves_out_what_one_rule_for_each_value_does(values, dtype):
    one = [{"dtype": values}]
    assert cells.excluded(cell(dtype=dtype), one) == cells.excluded(cell(dtype=dtype), [{"dtype": v} for v in values])


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("builder", "no list"),
        (None, "no list"),
        (["builder"], "no rule"),
        ([{}], "no rule"),
        ([{"bilder": "0.14.1"}], "'bilder' is no factor"),
        ([{"options": "x"}], "'options' is no factor"),
        ([{"builder": []}], "neither a value"),
        ([{"builder": None}], "neither a value"),
        ([{"builder": [["0.14.1"]]}], "neither a value"),
        ([{"builder": {"name": "0.14.1"}}], "neither a value"),
    ],
)
def test_a_rule_that_is_none_says_what_is_allowed(rules, says):
    with pytest.raises(ConfigFailed, match=says) as caught:
        cells.check_exclude(rules)
    assert "or list of values" in caught.value.hint and ", ".join(FACTORS) in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (['exclude=[{builder: "0.1*"}]'], "exclude leaves no cell: 2 of 2 are excluded"),
        (["exclude=[{bilder: x}]"], "'bilder' is no factor"),
        (["suspects=[rope]"], "allowed: a list of some of"),
        (["suspects=[rope_fix]", "patch=none"], "both given"),
    ],
)
def test_what_leaves_no_sweep_is_exit_code_2(lab, arguments, says):
    done = lab.run("builder=0.14.1,0.18.0", *arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert not lab.db.exists()


def experiment(root, text: str) -> str:
    (root / "experiment").mkdir(exist_ok=True)
    (root / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}", encoding="utf-8")
    return str(root)


def test_one_value_among_an_experiments_axes_is_no_axis_and_counts(lab, tmp_path):
    text = "hydra: {sweeper: {params: {layers: 0, threads: '1,2', suspects: '[rope_fix]'}}}\n"
    done = lab.call("runner", "-m", "--config-dir", experiment(tmp_path, text), "+experiment=mine", "action=plan")
    assert done.returncode == 2, done.stderr
    assert "4 cells: 0 found, 0 to run, 4 fail to compose" in done.stdout and "layers: '0'" in done.stdout


@pytest.mark.slow
def test_an_experiment_with_suspects_and_exclude_runs(shared_lab, rope, tmp_path):
    text = (
        "suspects: [rope_fix]\nexclude: [{builder: '0.18.*', patch: none}]\n"
        "hydra: {sweeper: {params: {builder: '0.14.1,0.18.0'}}}\n"
    )
    mine = ["--config-dir", experiment(tmp_path, text), "+experiment=mine", f"store.environments={ENVIRONMENTS}"]
    done = shared_lab.call("runner", "-m", *mine)
    assert done.returncode == 0, done.stderr
    assert "1 cell excluded" in done.stderr and "3 cells: 3 found, 0 to run" in done.stderr
    all_of_them = shared_lab.call("runner", "-m", *mine, "exclude=[]", "action=plan")
    assert "4 cells: 4 found, 0 to run" in all_of_them.stdout and "excluded" not in all_of_them.stderr
