"""The benchmarks' own parts: what they ask for, and how they print. None of them is run here."""

from __future__ import annotations

import pytest
from lab import ENVIRONMENTS

from benchmarks import common, compare, marginal, million, plain_harness

ROWS = [
    {"cell": 4, "first_logits_max_abs_diff": 0.01},
    {"cell": 4, "first_logits_max_abs_diff": 0.02},
    {"cell": 5, "first_logits_max_abs_diff": 1e-6},
]


@pytest.mark.parametrize("benchmark", [compare, marginal])
def test_arguments(benchmark):
    asked = benchmark.parser().parse_args(["--cells", "4", "model=path", "model.path=DIR"])
    assert asked.cells == 4 and asked.overrides == ["model=path", "model.path=DIR"]
    assert asked.environments.name == "environments"
    with pytest.raises(SystemExit):
        benchmark.parser().parse_args(["--cells", "3"])


def test_so_many_cells_are_asked_for():
    for count in compare.CELLS:
        cells = common.cells_of(compare.overrides_of(count, ["max_new_tokens=3"]))
        assert len({cell.hash for cell in cells}) == count
        assert all(cell.failure is None and cell.config.max_new_tokens == 3 for cell in cells)


def test_the_two_sides_must_agree():
    assert compare.first_diffs(ROWS) == [[0.01, 0.02], [1e-6]]
    assert compare.agree([0.01, 1e-6], [0.01001, 2.5e-6])
    assert not compare.agree([0.01], [0.02])
    assert not compare.agree([0.01], [0.01, 0.01])


def test_the_comparison_s_tables():
    lines = [
        {"name": "bf16 all none", "seconds": 12.5, "first_diffs": [0.01, 0.02]},
        {"name": "fp32 all none", "seconds": 7.5, "first_diffs": [1e-6]},
    ]
    runs = {"as it comes": common.Run(4.0, 6.0, ROWS)}
    text, good = compare.report(common.Run(20.0, 20.0, lines), runs)
    assert good
    assert [cell.strip() for cell in text.splitlines()[3].split("|")[1:-1]] == [
        "runner, as it comes", "4.00", "6.00", "2.00", "5.00",
    ]  # fmt: skip
    lines[0]["first_diffs"] = [1.0, 0.02]
    text, good = compare.report(common.Run(20.0, 20.0, lines), runs)
    assert not good and "NO" in text


def test_the_marginal_tables():
    seconds = {"bare work": 0.4, "runner": 0.5, "runner, jobs=1": 0.8, "finished": 0.012, "stage export": 0.3}
    seconds |= {"runner, the first 8": 1.5, "runner, jobs=1, the first 8": 2.0}
    text = marginal.report({name: common.Run(value, value, []) for name, value in seconds.items()}, 8)
    assert "1.25" in text and "2.00" in text and "0.012" in text and "export" in text
    assert marginal.slope(common.Run(10.0, 12.0, []), common.Run(14.0, 20.0, []), 8) == common.Run(0.5, 1.0, [])


def test_the_harness_compares_first_tokens():
    np = pytest.importorskip("numpy")
    reference = [([1], [7, 8], [np.array([1.0, 2.0]), np.array([0.0, 0.0])])]
    candidate = [([7, 9], [np.array([1.0, 2.5]), np.array([9.0, 9.0])])]
    assert plain_harness.compare(reference, candidate) == {"first_diffs": [0.5], "identical": 0}


@pytest.mark.parametrize(("value", "text"), [(12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012"), ("yes", "yes")])
def test_figures_keep_the_digits_that_count(value, text):
    assert common.figure(value) == text


def test_every_question_is_answered_on_a_small_database_of_its_kind(tmp_path):
    path = tmp_path / "small.db"
    million.make(path, rows=3_000, prompts=5)
    answers = {name: ask() for name, ask in million.questions(str(path)).items()}
    assert all(answer is not None for answer in answers.values())
    assert "proven" in answers["reports proof"] and "model0" in answers["reports history"]
    assert "| patch" in answers["reports pairs"] and answers["db sql (count)"][1] == [{"count(*)": 600}]


@pytest.mark.slow
def test_cells_are_prepared_for_the_plain_harness(rope, tmp_path):
    cells = common.cells_of(["builder=0.14.1", "patch=none,rope_fix", "dtype=fp32,bf16"])
    asked = common.harness_cells(tmp_path, ENVIRONMENTS, cells)
    assert len(asked["cells"]) == 4 and len({cell["checkpoint"] for cell in asked["cells"]}) == 2
