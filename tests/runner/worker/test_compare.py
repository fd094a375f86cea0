"""Two continuations on disk, compared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from compare import MEASUREMENT_VERSION, run
from continuation import save

from runner import plan

WORDS = "abcdefgh"


class Tokenizer:
    """Spells a token as a letter; 7 is the end token."""

    def decode(self, tokens, skip_special_tokens):
        return "".join(WORDS[t] for t in tokens if not (skip_special_tokens and t == 7))


def rows(tokens: list[int], noise: float = 0.0) -> np.ndarray:
    """Logits [steps, 8] whose argmax is each token."""
    logits = np.zeros((len(tokens), 8), np.float32)
    logits[range(len(tokens)), tokens] = 5
    return logits + np.float32(noise)


@pytest.fixture
def compare(tmp_path):
    def compare(*pairs, expect=None):
        for side in (0, 1):
            (tmp_path / str(side)).mkdir(exist_ok=True)
            for index, pair in enumerate(pairs):
                tokens, logits = pair[side]
                save(str(tmp_path / str(side)), index, f"p{index}", tokens, logits, Tokenizer(), {7})
        arguments = {"reference": str(tmp_path / "0"), "candidate": str(tmp_path / "1"), "expect": expect or {}}
        run(arguments, str(tmp_path))
        return json.loads((tmp_path / "comparison.json").read_text())

    return compare


def test_identical_text_with_a_small_diff(compare):
    tokens = [1, 2, 7]
    found = compare(((tokens, rows(tokens)), (tokens, rows(tokens, 0.25))), expect={"p0": "bc"})
    (prompt,) = found["prompts"]
    assert prompt["metrics"]["first_logits_max_abs_diff"] == {"value": 0.25, "kind": "finite"}
    assert prompt["tokens_identical"] and prompt["matched_tokens"] == prompt["compared_tokens"] == 3
    assert prompt["outcome"] == "answer" and prompt["sensible"] and prompt["candidate_sensible"]
    assert prompt["reference_text"] == "bc" and prompt["reference_range"]["value"] == 5


def test_the_step_where_they_part_is_compared_and_what_follows_is_not(compare):
    ours, theirs = rows([1, 2, 3, 4]), rows([1, 5, 3, 4])
    theirs[3] = 1000
    (prompt,) = compare((([1, 2, 3, 4], ours), ([1, 5, 3, 4], theirs)))["prompts"]
    assert prompt["matched_tokens"] == 1 and prompt["compared_tokens"] == 4
    assert [n["value"] for n in prompt["steps"]["logits_max_abs_diff"]] == [0, 5]
    assert prompt["metrics"]["logits_max_abs_diff"]["value"] == 5
    assert not prompt["tokens_identical"]


def test_an_end_that_comes_early_is_a_difference(compare):
    (prompt,) = compare((([1, 2, 7], rows([1, 2, 7])), ([1, 7], rows([1, 7]))))["prompts"]
    assert prompt["matched_tokens"] == 1 and prompt["compared_tokens"] == 3 and not prompt["tokens_identical"]


def test_a_nan_is_kept_as_one_wherever_it_stands(compare):
    broken = rows([1, 2, 3])
    broken[1, 0] = np.nan
    (prompt,) = compare((([1, 2, 3], rows([1, 2, 3])), ([1, 2, 3], broken)))["prompts"]
    assert prompt["metrics"]["logits_max_abs_diff"] == {"value": None, "kind": "nan"}
    assert prompt["metrics"]["first_logits_max_abs_diff"]["kind"] == "finite"


def test_a_match_on_nonsense_is_called_that(compare):
    (prompt,) = compare((([3, 7], rows([3, 7])), ([3, 7], rows([3, 7]))), expect={"p0": "bc"})["prompts"]
    assert prompt["tokens_identical"] and prompt["sensible"] is False and prompt["outcome"] == "wrong"


def test_each_prompt_has_its_own_numbers(compare):
    one, two = (([1], rows([1])), ([1], rows([1]))), (([2], rows([2])), ([2], rows([2], 1)))
    found = compare(one, two)["prompts"]
    assert [p["prompt"] for p in found] == ["p0", "p1"]
    assert [p["metrics"]["logits_max_abs_diff"]["value"] for p in found] == [0, 1]


def test_the_runner_knows_the_measurement_version():
    assert plan.MEASUREMENT_VERSION == MEASUREMENT_VERSION
