"""Two continuations on disk, compared."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from compare import MEASUREMENT_VERSION, ratio, run
from continuation import save

from db import models

WORDS = "abcdefghi"
THRESHOLDS = {"within": 10.0, "broken": 1000.0}


class Tokenizer:
    """Spells a token as a letter; 7 is the end token."""

    def decode(self, tokens, skip_special_tokens):
        return "".join(WORDS[t] for t in tokens if not (skip_special_tokens and t == 7))

    def convert_ids_to_tokens(self, ids):
        return [WORDS[i] for i in ids]


def rows(tokens: list[int], noise: float = 0.0, vocabulary: int = 8, height: float = 5) -> np.ndarray:
    """Logits [steps, vocabulary] whose argmax is each token."""
    logits = np.zeros((len(tokens), vocabulary), np.float32)
    logits[range(len(tokens)), tokens] = height
    return logits + np.float32(noise)


def side(tokens: list[int], logits=None, forced=None) -> tuple:
    return tokens, rows(tokens) if logits is None else logits, forced


@pytest.fixture
def compare(tmp_path):
    """Compare pairs of `side`s; a candidate's forced logits are its free ones unless given."""

    def compare(*pairs, expect=None, floors=None, suspect=(), reject=None, form=None):
        for n in (0, 1):
            (tmp_path / str(n)).mkdir(exist_ok=True)
            for index, pair in enumerate(pairs):
                tokens, logits, forced = pair[n]
                forced = logits if forced is None and n else forced
                save(str(tmp_path / str(n)), index, f"p{index}", tokens, logits, Tokenizer(), {7}, forced)
        if floors is not None:
            prompts = [{"prompt": f"p{index}", "floor": floor} for index, floor in enumerate(floors)]
            (tmp_path / "noise.json").write_text(json.dumps({"prompts": prompts}))
        arguments = {
            "reference": str(tmp_path / "0"), "candidate": str(tmp_path / "1"), "expect": expect or {},
            "reject": reject or {}, "format": form, "noise": None if floors is None else str(tmp_path),
            "suspect": list(suspect), "thresholds": THRESHOLDS,
        }  # fmt: skip
        compare.findings = [finding["evidence"] for finding in run(arguments, str(tmp_path))["findings"]]
        found = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=pytest.fail)
        assert found["measurement"] == MEASUREMENT_VERSION and found["thresholds"] == THRESHOLDS
        return found["prompts"]

    return compare


def values(prompt: dict, name: str) -> list:
    return [number["value"] for number in prompt["steps"][name]]


def value(prompt: dict, name: str):
    return prompt["metrics"][name]["value"]


def test_identical_text_with_a_small_diff(compare):
    tokens = [1, 2, 7]
    (prompt,) = compare((side(tokens), side(tokens, rows(tokens, 0.25))), expect={"p0": "bc"})
    assert prompt["metrics"]["first_logits_max_abs_diff"] == {"value": 0.25, "kind": "finite"}
    assert prompt["tokens_identical"] and prompt["matched_tokens"] == prompt["compared_tokens"] == 3
    assert prompt["outcome"] == "answer" and prompt["sensible"] and prompt["candidate_sensible"]
    assert prompt["reference_text"] == "bc" and prompt["reference_range"]["value"] == 5
    assert prompt["parting"] is None and prompt["vocab"] == [8, 8]


def test_the_step_where_they_part_is_compared_and_what_follows_is_not(compare):
    ours, theirs = rows([1, 2, 3, 4]), rows([1, 5, 3, 4])
    theirs[3] = 1000
    (prompt,) = compare((side([1, 2, 3, 4], ours), side([1, 5, 3, 4], theirs, ours)))
    assert prompt["matched_tokens"] == 1 and prompt["compared_tokens"] == 4
    assert values(prompt, "logits_max_abs_diff") == [0, 5]
    assert value(prompt, "logits_max_abs_diff") == 5
    assert not prompt["tokens_identical"]


def test_forced_every_step_is_compared(compare):
    tokens = [1, 2, 3, 4]
    forced = rows(tokens)
    forced[:, 0] += [0, 1, 2, 4]
    (prompt,) = compare((side(tokens), side([1, 5, 3, 4], None, forced)))
    assert values(prompt, "logits_max_abs_diff") == [0, 5]
    assert values(prompt, "forced_logits_max_abs_diff") == [0, 1, 2, 4]
    assert values(prompt, "forced_logits_mean_abs_diff") == [0, 1 / 8, 2 / 8, 4 / 8]
    assert value(prompt, "forced_logits_max_abs_diff") == 4 and value(prompt, "forced_above_0.1") == 3
    assert value(prompt, "above_0.1") == 2
    free = {name for name in prompt["metrics"] if not name.startswith(("forced_", "first_"))}
    assert {name for name in prompt["metrics"] if name.startswith("forced_")} == {f"forced_{name}" for name in free}
    assert {"kl_p99", "cosine", "total_variation", "top5_overlap", "band_5", "band_all"} <= free


def test_an_end_that_comes_early_is_a_difference(compare):
    forced = rows([1, 2, 7])
    (prompt,) = compare((side([1, 2, 7]), side([1, 7], None, forced)))
    assert prompt["matched_tokens"] == 1 and prompt["compared_tokens"] == 3 and not prompt["tokens_identical"]
    assert values(prompt, "logits_max_abs_diff") == [0, 5] and values(prompt, "forced_logits_max_abs_diff") == [0] * 3
    assert prompt["parting"]["step"] == 1


def test_a_nan_is_kept_as_one_wherever_it_stands(compare):
    broken = rows([1, 2, 3])
    broken[1, 0] = np.nan
    (prompt,) = compare((side([1, 2, 3]), side([1, 2, 3], broken, rows([1, 2, 3]))))
    assert prompt["metrics"]["logits_max_abs_diff"] == {"value": None, "kind": "nan"}
    assert prompt["metrics"]["kl_mean"]["kind"] == "nan" and value(prompt, "above_0.1") == 1
    assert prompt["metrics"]["first_logits_max_abs_diff"]["kind"] == "finite"
    assert value(prompt, "forced_logits_max_abs_diff") == 0 and not prompt["within_bands"]


def test_a_match_on_nonsense_is_called_that(compare):
    (prompt,) = compare((side([3, 7]), side([3, 7])), expect={"p0": "bc"})
    assert prompt["tokens_identical"] and prompt["sensible"] is prompt["candidate_sensible"] is False
    assert prompt["reference_outcome"] == prompt["outcome"] == "wrong"


def test_each_side_is_judged_by_what_it_says(compare):
    (prompt,) = compare((side([1, 7]), side([2, 7])), expect={"p0": "b"})
    assert prompt["reference_outcome"] == "answer" and prompt["outcome"] == "wrong"
    assert prompt["sensible"] is True and prompt["candidate_sensible"] is False
    assert (prompt["reference_text"], prompt["candidate_text"]) == ("b", "c")


def test_what_is_said_to_a_suspect_prompt_is_no_answer(compare):
    pairs = [(side([1, 7]), side([1, 7]))] * 2
    suspect, other = compare(*pairs, expect={"p0": "b", "p1": "b"}, suspect=["p0"])
    assert suspect["sensible"] is suspect["candidate_sensible"] is False and suspect["outcome"] == "answer"
    assert other["sensible"] is other["candidate_sensible"] is True


def test_a_text_that_the_limit_cut_is_neither_right_nor_wrong(compare):
    """Token 7 ends; the expected "abcd" needs more tokens than there were."""
    ours, same, other, late = [0, 1, 2], [0, 1, 2], [5, 6, 4], [0, 1, 7]
    pairs = [(side(ours), side(theirs)) for theirs in (same, other, late)]
    found = compare(*pairs, expect=dict.fromkeys(("p0", "p1", "p2"), "abcd"))
    assert [(p["reference_outcome"], p["outcome"]) for p in found] == [("cut", "cut"), ("cut", "cut"), ("cut", "wrong")]
    assert [p["candidate_sensible"] for p in found] == [None, None, False]
    assert all(p["sensible"] is None for p in found)
    assert [p["tokens_identical"] for p in found] == [True, False, False]


def test_a_candidate_that_parts_from_a_right_answer_and_is_cut_is_not_yet_wrong(compare):
    """It may still come to the expected text; the numbers and the tokens say that it differs."""
    (prompt,) = compare((side([1, 2, 7]), side([3, 4, 5])), expect={"p0": "bc"})
    assert (prompt["reference_outcome"], prompt["outcome"]) == ("answer", "cut")
    assert prompt["sensible"] is True and prompt["candidate_sensible"] is None and not prompt["tokens_identical"]


def test_a_rejected_text_is_wrong_cut_or_not(compare):
    found = compare(
        (side([1, 2, 7]), side([3, 4, 7])), (side([1, 2, 7]), side([3, 4, 7])),
        expect={"p0": "de", "p1": "de"}, reject={"p0": ["de"]},
    )  # fmt: skip
    assert [p["outcome"] for p in found] == ["wrong", "answer"]


def test_where_nothing_is_expected_nothing_is_said_of_sense(compare):
    suspect, other = compare(*[(side([1, 7]), side([1, 7]))] * 2, suspect=["p0"])
    assert other["sensible"] is None and other["outcome"] == "text" and suspect["sensible"] is False


def test_each_prompt_has_its_own_numbers(compare):
    found = compare((side([1]), side([1])), (side([2]), side([2], rows([2], 1))), floors=[0.5, 0.25])
    assert [p["prompt"] for p in found] == ["p0", "p1"]
    assert [value(p, "logits_max_abs_diff") for p in found] == [0, 1]
    assert [p["noise_floor"]["value"] for p in found] == [0.5, 0.25]
    assert [p["noise_ratio"]["value"] for p in found] == [0, 4]


@pytest.mark.parametrize(
    ("free", "forced", "verdict"),
    [
        (0, 0, "within_noise"),
        (0.625, 0, "within_noise"),
        (0, 0.625, "within_noise"),
        (0.75, 0, "elevated"),
        (0, 0.75, "elevated"),
        (62.5, 0, "elevated"),
        (0, 62.5, "elevated"),
        (63, 0, "broken"),
        (0, 63, "broken"),
    ],
)
def test_the_verdict_is_by_the_larger_multiple_of_the_noise(compare, free, forced, verdict):
    tokens = [1, 2, 7]
    (prompt,) = compare((side(tokens), side(tokens, rows(tokens, free), rows(tokens, forced))), floors=[0.0625])
    assert prompt["verdict"] == verdict
    assert prompt["noise_floor"] == {"value": 0.0625, "kind": "finite"}
    assert prompt["noise_ratio"]["value"] == free / 0.0625 and prompt["forced_noise_ratio"]["value"] == forced / 0.0625


def near(second: float) -> tuple:
    """Sides that part at step 1, where the reference's best two are 5 and `second`; each moves by half of that gap."""
    ours, theirs = rows([1, 2, 7]), rows([1, 3, 7])
    ours[1, 3], theirs[1, [2, 3]] = second, [(5 + second) / 2 - 2**-10, (5 + second) / 2]
    return side([1, 2, 7], ours), side([1, 3, 7], theirs, ours)


def test_a_near_tie_that_the_noise_can_turn_is_no_error(compare):
    (prompt,) = compare(near(4.0), floors=[0.0625])
    assert 8 < prompt["noise_ratio"]["value"] < 10 and not prompt["tokens_identical"]
    assert prompt["verdict"] == "near_tie"
    assert prompt["parting"]["gap"] == {"value": 1, "kind": "finite"}


def test_a_parting_beyond_the_noise_is_elevated(compare):
    (prompt,) = compare(near(3.0), floors=[0.0625])
    assert prompt["verdict"] == "elevated" and prompt["parting"]["gap"]["value"] == 2


def test_a_parting_that_no_difference_explains_is_elevated(compare):
    """The candidate's token is in the padding of its vocabulary, which the reference has not."""
    theirs = rows([1, 8], vocabulary=9, height=6)
    theirs[:, :8] = rows([1, 2])
    (prompt,) = compare((side([1, 2]), side([1, 8], theirs)), floors=[0.0625])
    assert value(prompt, "logits_max_abs_diff") == 0 and prompt["parting"]["gap"]["value"] == 5
    assert prompt["verdict"] == "elevated"


def test_no_noise_no_verdict_unless_a_number_is_none(compare):
    broken = rows([2, 7])
    broken[1, 0] = np.inf
    pairs = [(side([1, 7]), side([1, 7], rows([1, 7], 100))), (side([2, 7]), side([2, 7], broken))]
    for floors in (None, [None, None]):
        fine, infinite = compare(*pairs, floors=floors)
        assert fine["verdict"] is None and infinite["verdict"] == "non_finite"
        empty = {"value": None, "kind": "finite"}
        assert fine["noise_floor"] == fine["noise_ratio"] == fine["forced_noise_ratio"] == empty


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["free", "forced"])
def test_one_number_that_is_none_is_the_verdict(compare, odd, mode):
    broken = rows([1, 2, 7])
    broken[2, 0] = odd
    both = (broken, rows([1, 2, 7])) if mode == "free" else (rows([1, 2, 7]), broken)
    (prompt,) = compare((side([1, 2, 7]), side([1, 2, 7], *both)), floors=[0.1])
    assert prompt["verdict"] == "non_finite"
    assert prompt["noise_ratio" if mode == "free" else "forced_noise_ratio"]["value"] is None


def test_a_floor_of_nothing_makes_any_difference_broken(compare):
    pairs = [(side([1]), side([1])), (side([2]), side([2], rows([2], 2**-10)))]
    same, other = compare(*pairs, floors=[0.0, 0.0])
    assert same["verdict"] == "within_noise" and same["noise_ratio"]["value"] == 0
    assert other["verdict"] == "broken" and other["noise_ratio"] == {"value": None, "kind": "+inf"}


def test_ratio():
    assert ratio(3.0, None) is None
    assert ratio(3.0, 2.0) == 1.5 and ratio(0.0, 0.0) == ratio(0.0, 1.0) == 0
    assert ratio(1.0, 0.0) == np.inf and np.isnan(ratio(np.nan, 0.0)) and np.isnan(ratio(np.nan, 1.0))


def test_a_parting_has_the_step_the_gap_and_what_each_side_thought_likeliest(compare):
    ours, theirs = rows([1, 2, 7]), rows([1, 3, 7])
    ours[1] = [0, 1, 5, 4.5, -1, -2, -3, -np.inf]
    theirs[1] = [-1, 1, 4, 4.75, 2, -2, 3, np.nan]
    (prompt,) = compare((side([1, 2, 7], ours), side([1, 3, 7], theirs)))
    assert prompt["parting"] == {
        "step": 1,
        "gap": {"value": 0.5, "kind": "finite"},
        "top": {
            "reference": [[2, "c", 5.0], [3, "d", 4.5], [1, "b", 1.0], [0, "a", 0.0], [4, "e", -1.0]],
            "candidate": [[3, "d", 4.75], [2, "c", 4.0], [6, "g", 3.0], [4, "e", 2.0], [1, "b", 1.0]],
        },
    }


def test_what_both_sides_mask_is_no_difference(compare):
    tokens = [1, 2, 7]
    ours, theirs = rows(tokens), rows(tokens, 0.25)
    ours[:, [0, 4]] = theirs[:, [0, 4]] = -np.inf
    (prompt,) = compare((side(tokens, ours), side(tokens, theirs)), floors=[0.25])
    assert value(prompt, "logits_max_abs_diff") == value(prompt, "forced_logits_max_abs_diff") == 0.25
    assert value(prompt, "above_0.1") == 18 and value(prompt, "kl_max") == pytest.approx(0, abs=1e-12)
    assert prompt["verdict"] == "within_noise" and prompt["reference_range"]["value"] == 5
    assert all(number["kind"] == "finite" for number in prompt["metrics"].values())


def test_a_padded_vocabulary_is_compared_where_both_have_entries(compare):
    tokens = [1, 2, 7]
    padded = np.append(rows(tokens, 0.25), np.full((3, 1), 4, np.float32), axis=1)
    for ours, theirs, sizes in ((rows(tokens), padded, [8, 9]), (padded, rows(tokens), [9, 8])):
        (prompt,) = compare((side(tokens, ours), side(tokens, theirs)), floors=[0.25])
        assert prompt["vocab"] == sizes and prompt["verdict"] == "within_noise"
        assert value(prompt, "logits_max_abs_diff") == value(prompt, "forced_logits_max_abs_diff") == 0.25


def wider(tokens: list[int], heights: list[float]) -> np.ndarray:
    """Rows of width 8 with two entries more, of these heights above all others' 0; their probabilities are plain."""
    return np.append(np.zeros((len(tokens), 8), np.float32), np.array([heights] * len(tokens), np.float32), axis=1)


def test_widths_that_differ_are_a_warning_with_what_the_extra_entries_take_in_sampling(compare):
    """Of ten equal entries the two extra ones have a fifth of the probability."""
    tokens = [1, 2, 7]
    compare((side(tokens, rows(tokens, height=0)), side(tokens, wider(tokens, [0, 0]))))
    (said,) = compare.findings
    assert said == (
        "the candidate has 10 logits and the reference 8: its 2 extra entries take up to 20 % of the probability in"
        " sampling at temperature 1 (prompt p0, step 0); none of its 3 greedy steps chose one of them"
    )
    compare((side(tokens, wider(tokens, [-np.inf] * 2)), side(tokens, rows(tokens, height=0))))
    (said,) = compare.findings
    assert said.startswith("the reference has 10 logits and the candidate 8: its 2 extra entries take none of the prob")
    compare((side(tokens), side(tokens)))
    assert compare.findings == []


def test_greedy_steps_beyond_the_common_width_are_told_with_the_first(compare):
    theirs = wider([1, 8], [5, 0])
    compare(
        (side([1, 2]), side([1, 2], np.append(rows([1, 2]), [[0], [0]], axis=1))), (side([1, 2]), side([1, 8], theirs))
    )
    (said,) = compare.findings
    assert "1 of its 4 greedy steps chose one of them, the first at prompt p1, step 1" in said
    assert "(prompt p1, step 0)" in said


def test_a_step_without_probabilities_is_told_as_not_known(compare):
    theirs = wider([1, 2], [0, 0])
    theirs[1, 0] = np.nan
    compare((side([1, 2], rows([1, 2], height=0)), side([1, 2], theirs)))
    (said,) = compare.findings
    assert "up to 20 %" in said and "(not known at 2 steps whose logits have no probabilities)" in said


@pytest.mark.parametrize(("mode", "within"), [("neither", True), ("free", False), ("forced", False)])
def test_the_bands_hold_in_both_modes_or_do_not(compare, mode, within):
    tokens = [1, 2, 7]
    off, near = rows(tokens, 0.06), rows(tokens, 0.04)  # 1% of the largest, 5, is 0.05
    both = (off if mode == "free" else near, off if mode == "forced" else near)
    (prompt,) = compare((side(tokens), side(tokens, *both)))
    assert prompt["within_bands"] is within


def test_the_sides_have_the_same_number_of_prompts(compare, tmp_path):
    compare((side([1]), side([1])), (side([2]), side([2])))
    entries = tmp_path / "1" / "continuations.json"
    entries.write_text(json.dumps(json.loads(entries.read_text())[:1]))
    arguments = {"reference": str(tmp_path / "0"), "candidate": str(tmp_path / "1"), "expect": {}, "noise": None}
    arguments |= {"reject": {}, "format": None}
    with pytest.raises(ValueError, match="zip"):
        run({**arguments, "suspect": [], "thresholds": THRESHOLDS}, str(tmp_path))


def test_the_runner_knows_the_measurement_version():
    assert models.MEASUREMENT_VERSION == MEASUREMENT_VERSION


GROWTH = """
import compare
arguments = {"reference": "0", "candidate": "1", "noise": None, "expect": {}, "suspect": [],
             "reject": {}, "format": None,
             "thresholds": {"within": 10, "broken": 1000}}
grew = grown(lambda: compare.run(arguments, "."))
with open("comparison.json") as file:
    prompts = json.load(file)["prompts"]
print(json.dumps([grew, [len(prompt["steps"]["forced_kl"]) for prompt in prompts]]))
"""


@pytest.mark.slow
def test_memory_does_not_hold_the_logits_of_all_prompts(run_script, tmp_path):
    vocabulary, steps, prompts = 262_144, 20, 3
    random = np.random.default_rng(0)
    tokenizer = type("Numbers", (), {"decode": lambda *_, **__: "a", "convert_ids_to_tokens": lambda _, ids: ids})()
    for n in (0, 1):
        (tmp_path / str(n)).mkdir()
        for index in range(prompts):
            free, forced = random.normal(size=(2, steps, vocabulary)).astype(np.float32)
            save(str(tmp_path / str(n)), index, f"p{index}", [1] * steps, free, tokenizer, {7}, forced if n else None)
    grew, compared = run_script(sys.executable, GROWTH)
    assert compared == [steps] * prompts
    one_prompt = 3 * steps * vocabulary * 4  # both sides' own steps, and the forced ones
    assert grew < 2 * one_prompt


@pytest.mark.parametrize(("floor", "verdict"), [(0.2, "within_noise"), (0.3, None)])
def test_a_floor_so_large_that_half_of_what_logits_span_would_be_right_tells_nothing(compare, floor, verdict):
    """Logits span 5, and up to ten floors would be within the noise."""
    (prompt,) = compare((side([1, 2, 7]), side([1, 2, 7])), floors=[floor])
    assert prompt["verdict"] == verdict and prompt["noise_ratio"]["value"] == 0
    assert bool(compare.findings) == (verdict is None)
    if verdict is None:
        assert compare.findings[0].startswith("1 of 1 prompts have no verdict: up to 10 times the noise floor (0.3)")
