"""What a cell says, prompt by prompt, and whether one is better than another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from points import FAILED, cell, point, prompt

from reports.proof.points import OTHER, SAME, WRONG, helps, mends, point_of, step, takes, told, worsens

ROW = {"status": "ok", "thresholds": {"within": 10.0}}


def stored(**columns):
    """A prompt's row, as `db.models.PromptResult` has it."""
    right = {
        "prompt": "p", "verdict": "broken", "noise_ratio": 500.0, "forced_noise_ratio": 400.0, "sensible": True,
        "candidate_sensible": True, "tokens_identical": True,
    }  # fmt: skip
    return SimpleNamespace(**right | columns)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({}, SAME),
        ({"tokens_identical": False, "candidate_sensible": False}, WRONG),
        ({"tokens_identical": False}, OTHER),  # another right answer
        ({"tokens_identical": False, "sensible": None, "candidate_sensible": None}, OTHER),  # nothing was expected
        ({"tokens_identical": False, "sensible": None, "candidate_sensible": False}, OTHER),  # it loops, say
        ({"tokens_identical": False, "sensible": False, "candidate_sensible": False}, None),
        ({"sensible": False, "candidate_sensible": False}, None),
        ({"tokens_identical": False, "candidate_sensible": False, "verdict": "near_tie"}, SAME),
    ],
)
def test_what_a_prompt_says_of_its_text(columns, text):
    (found,) = point_of(ROW, [stored(**columns)]).prompts
    assert found.text == text and found.multiple == 500


def test_a_prompt_without_expectation_takes_nothing_from_the_others():
    wrong = {"tokens_identical": False, "candidate_sensible": False}
    none = {"tokens_identical": False, "sensible": None, "candidate_sensible": None}
    point = point_of(ROW, [*(stored(prompt=f"p{n}", **wrong) for n in range(4)), stored(prompt="plain", **none)])
    assert not point.right and told(point) == "500 × noise and wrong text in 4 of 5 and another text in 1 of 5"
    nonsense = point_of(ROW, [stored(**wrong), stored(prompt="q", sensible=False, tokens_identical=False)])
    assert not nonsense.right and told(nonsense) == "500 × noise and wrong text in 1 of 2"


def test_a_text_that_says_nothing_takes_nothing_from_numbers_within_the_noise():
    parted = stored(sensible=False, tokens_identical=False, verdict="elevated", noise_ratio=5.0, forced_noise_ratio=5.0)
    assert point_of(ROW, [parted]).within


def test_failures_and_prompts_without_a_number():
    assert not point_of(ROW | {"status": "export_failed"}, []).ok
    assert not point_of(ROW, [stored(verdict="non_finite")]).finite
    unjudged = point_of(ROW, [stored(verdict=None)])
    assert not unjudged.measured and not unjudged.within
    both = point_of(ROW, [stored(verdict=None), stored(prompt="q", verdict="within_noise", noise_ratio=2.0)])
    assert both.measured


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (cell(500, 500), cell(2, 500), 1),
        (cell(500, 500), cell(500, 490), 0),
        (cell(500, 500), cell(100, 2000), -1),  # what breaks a prompt is no fix
        (cell(500, 500, 20), cell(2, 2, 60), 1),
        (cell(500, prompt(500, WRONG)), cell(2, prompt(500, WRONG)), 1),
        (cell(500, prompt(500, WRONG)), cell(20, prompt(500, WRONG), 5), 1),
        (cell(500, 500), cell(2, prompt(500, WRONG)), -1),
        (cell(prompt(500, WRONG), prompt(500, WRONG)), cell(prompt(900), prompt(900)), 1),
        (cell(prompt(500, None)), cell(prompt(500, WRONG)), 0),
        (FAILED, cell(500), 1),
        (cell(prompt(None, finite=False)), cell(500), 1),
    ],
)
def test_a_cell_is_better_or_worse_than_another(before, after, expected):
    assert step(before, after) == expected


def test_a_step_is_told_by_prompts_where_they_do_not_go_the_same_way():
    before, after = cell(8e5, 8e5, 8e5, 8e5, 8e5), cell(2, 2, 2, 2, 8e5)
    said = takes(before, after)
    assert said == "4 of 5 prompts within the noise; on p5 8.0e+05 × noise before and after"
    said = takes(cell(500, 3, 500), cell(50, 3, 500))
    assert said == "on p1 500 × noise to 50 × noise; on p3 500 × noise before and after"
    assert takes(cell(500, 3), cell(2, 60)).endswith("on p2 3 × noise to 60 × noise")
    assert takes(point(500), point(50)) == "it takes 500 × noise to 50 × noise"
    assert takes(FAILED, point(50)) == "it takes a failure to 50 × noise"
    assert takes(cell(500, 3), cell(2, 3)) == "it takes 500 × noise to 3 × noise"


def test_what_is_mended_has_no_wrong_text_left_on_any_prompt():
    broken = cell(prompt(500, WRONG), prompt(500, WRONG))
    assert mends(broken, cell(prompt(50), prompt(50)))
    assert not mends(broken, cell(prompt(50), prompt(50, WRONG)))
    assert mends(broken, cell(prompt(50), prompt(50, None)))
    assert not mends(cell(500), cell(50))


CELLS = st.one_of(
    st.just(FAILED),
    st.lists(
        st.builds(prompt, st.floats(0.1, 1e7), st.sampled_from([SAME, OTHER, WRONG, None])), min_size=3, max_size=3
    ).map(lambda prompts: cell(*prompts)),
)


@given(CELLS, CELLS)
def test_no_step_helps_both_ways(one, two):
    assert not (helps(one, two) and helps(two, one))
    assert not (helps(one, two) and worsens(one, two))
    assert step(one, one) == 0
