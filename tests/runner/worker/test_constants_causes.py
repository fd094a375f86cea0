"""A cause of a norm's or a number's difference is said where it gives the export's values, and nowhere near."""

from __future__ import annotations

import numpy as np
import pytest
from constants_causes import coarser, cut_to_bfloat16, number_cause, to_bfloat16, weight_cause
from hypothesis import given
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)


def weights(seed: int, size: int = 96) -> tuple[np.ndarray, np.ndarray]:
    """A norm's parameter, and 1 more."""
    stored = np.random.default_rng(seed).normal(0, 0.5, size).astype(np.float32)
    return stored, stored + np.float32(1)


def test_bfloat16_is_rounded_to_the_nearest_and_to_even():
    one = np.float32(1)
    values = np.array([1, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -1.3, 0, 3e38], np.float32)
    assert to_bfloat16(values)[:4].tolist() == [one, one, 1 + 2.0**-6, 1 + 2.0**-7]
    assert to_bfloat16(values)[4] == np.float32(-1.296875) and to_bfloat16(values)[5] == 0
    assert cut_to_bfloat16(values)[2:4].tolist() == [1 + 2.0**-7, one]


@given(SEEDS)
def test_roundings_are_named(seed):
    stored, weight = weights(seed)
    assert weight_cause(weight, stored, 1, "1 + weight", to_bfloat16(weight)) == "1 + weight rounded to bfloat16"
    assert weight_cause(weight, stored, 1, "1 + weight", cut_to_bfloat16(weight)) == "1 + weight cut off to bfloat16"
    half = weight.astype(np.float16).astype(np.float32)
    assert weight_cause(weight, stored, 1, "1 + weight", half) == "1 + weight rounded to float16"
    early = to_bfloat16(stored) + np.float32(1)
    assert weight_cause(weight, stored, 1, "1 + weight", early) == "the weight rounded to bfloat16, and 1 added"
    assert weight_cause(stored, stored, 0, "weight", to_bfloat16(stored)) == "weight rounded to bfloat16"


@given(SEEDS, st.floats(1e-4, 1e-2))
def test_noise_as_large_as_a_rounding_is_none(seed, size):
    stored, weight = weights(seed)
    noisy = weight + np.random.default_rng(seed + 1).normal(0, size, weight.shape).astype(np.float32)
    assert weight_cause(weight, stored, 1, "1 + weight", noisy) == "the weight has other values"
    assert coarser(weight, noisy) == ""


@given(SEEDS, st.integers(0, 95))
def test_one_value_that_a_rounding_does_not_give_is_enough(seed, at):
    stored, weight = weights(seed)
    for near in (to_bfloat16(weight), weight.astype(np.float16).astype(np.float32), stored.copy()):
        near[at] = np.nextafter(near[at], np.float32(9))
        assert weight_cause(weight, stored, 1, "1 + weight", near) == "the weight has other values"


def test_offsets_are_named():
    stored, weight = weights(0)
    assert weight_cause(weight, stored, 1, "1 + weight", stored) == "1 is not added to the weight"
    assert weight_cause(stored, stored, 0, "weight", weight) == "1 is added to the weight"
    assert weight_cause(weight, None, None, "measured", stored) == "the weight has other values"


def test_an_export_in_a_coarse_dtype_has_not_rounded_to_it():
    _, weight = weights(0)
    assert coarser(weight, weight.astype(np.float16)) == ""
    assert coarser(weight, to_bfloat16(weight).astype(np.float16)) == "rounded to bfloat16"


def test_two_roundings_that_give_the_same_are_both_told():
    same = np.array([1.5 + 2.0**-20], np.float32)
    assert coarser(same, np.array([1.5], np.float32)) == "rounded to bfloat16 or rounded to float16"


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (10.198039, 10.2, "rounded to 10.2"),
        (11.313708, 11.31, "rounded to 11.31"),
        (11.313708, 11.3125, "rounded to bfloat16 or rounded to float16"),
        (10.198039, 10.21, ""),
        (10.198039, 10.19, ""),
        (0.31, 0.0, ""),
    ],
)
def test_a_number_is_rounded_where_rounding_gives_it(ours, theirs, said):
    assert number_cause(ours, np.float32(theirs)) == said
