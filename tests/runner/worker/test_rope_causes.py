"""A rotary cache has a cause where that reproduces it, and none otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import rope_rules
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rope_causes import Cache, Told, cause
from rotary_caches import FACTORS, HALVES, THETAS, held, llama3, plain

DTYPES = st.sampled_from([np.float32, np.float16])
# The machine that tests run on may be a slow one.
CHECKED = settings(deadline=None, max_examples=40)
COUNTS = st.sampled_from([64, 200, 512, 2048])
YARN = {"rope_theta": 9e5, "factor": 4.0, "original_max_position_embeddings": 512, "max_position_embeddings": 2048}
LLAMA3 = YARN | {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@CHECKED
@given(THETAS, FACTORS, HALVES, DTYPES, COUNTS)
def test_the_reference_itself_needs_no_cause(theta, factor, pairs, dtype, count):
    ours = plain(pairs, theta, factor)
    assert cause(held(ours, dtype=dtype, count=count), Told(ours)) == ""


@CHECKED
@given(THETAS, HALVES, st.integers(2, 32), DTYPES)
def test_a_scaling_that_only_the_export_has_is_a_fraction_of_the_frequency(theta, pairs, factor, dtype):
    """The fault of Gemma 3's local layers."""
    said = cause(held(plain(pairs, theta, factor), dtype=dtype, count=1024), Told(plain(pairs, theta)))
    assert said == f"rotate at 1/{factor} of the reference's frequency"


@CHECKED
@given(THETAS, HALVES, st.integers(1, 40), COUNTS)
def test_a_factor_is_any_number_not_a_power_of_two_alone(theta, pairs, tenths, count):
    assume(tenths % 10 and tenths > 10)
    said = cause(held(plain(pairs, theta, tenths / 10), count=count), Told(plain(pairs, theta)))
    exact = f"1/{tenths / 10:g} of", f"{10 / tenths:.9g} times"
    assert said in [f"rotate at {text} the reference's frequency" for text in exact]


@CHECKED
@given(THETAS, HALVES, st.integers(2, 32))
def test_a_linear_scaling_that_the_export_lost_is_named(theta, pairs, factor):
    told = Told(plain(pairs, theta, factor), scaling="linear", said={"rope_theta": theta, "factor": factor})
    said = cause(held(plain(pairs, theta), count=1024), told)
    assert said == f"have lost the linear scaling by {factor}: they rotate {factor} times as fast"


@CHECKED
@given(st.integers(1000, 3_000_000), st.integers(1000, 3_000_000), st.sampled_from([8, 16, 40, 64]), COUNTS)
def test_another_theta_is_named_in_the_digits_that_it_has(ours, theirs, pairs, count):
    assume(abs(ours - theirs) > 1e-3 * ours)
    said = cause(held(plain(pairs, theirs), count=count), Told(plain(pairs, ours), said={"rope_theta": ours}))
    told = float(said.removeprefix("rotate with theta ").partition(" ")[0])
    assert said.endswith(f" instead of {ours}")
    assert cause(held(plain(pairs, theirs), count=count), Told(plain(pairs, told))) == ""
    assert told == pytest.approx(theirs, rel=1e-4)


def test_theta_and_factor_that_both_differ():
    said = cause(held(plain(32, 1e4)), Told(plain(32, 1e6, 8), scaling="linear", said={"factor": 8.0}))
    assert said == "rotate with theta 10000 instead of 1000000 and factor 1 instead of 8"


@CHECKED
@given(THETAS, HALVES, st.integers(-40, 40).filter(bool), DTYPES)
def test_rows_of_other_positions_are_named(theta, pairs, by, dtype):
    angles = np.clip(np.arange(512, dtype=np.float32) + np.float32(by), -1e3, None)[:, None] * plain(
        pairs, theta
    ).astype(np.float32)
    cache = Cache(np.cos(angles).astype(dtype), np.sin(angles).astype(dtype))
    said = cause(cache, Told(plain(pairs, theta)))
    many = f"{abs(by)} position{'s' * (abs(by) > 1)} {'later' if by > 0 else 'earlier'}"
    assert said == f"have at each position the angle of {many}"


def test_rows_that_wrap_around_or_are_there_twice():
    ours = plain(16, 1e6)
    right = held(ours, count=300)
    rolled = Cache(np.roll(right.cos, 1, 0), np.roll(right.sin, 1, 0))
    assert cause(rolled, Told(ours)) == "have at each position the angle of 1 position earlier, and wrap around"
    twice = Cache(*(np.concatenate([values[:1], values[:-1]]) for values in (right.cos, right.sin)))
    assert cause(twice, Told(ours)).endswith("1 position earlier, and the row at the end again")


def test_rows_of_other_positions_at_other_frequencies():
    angles = (np.arange(400) + 3)[:, None] * plain(16, 1e4, 4)
    said = cause(Cache(np.cos(angles).astype("f4"), np.sin(angles).astype("f4")), Told(plain(16)))
    assert said == (
        "have at each position the angle of 3 positions later and rotate at 1/4 of the reference's frequency"
    )


def test_cos_and_sin_swapped_and_sin_turned_round():
    right = held(plain(16), count=300)
    assert cause(Cache(right.sin, right.cos), Told(plain(16))) == "have cos and sin swapped"
    assert cause(Cache(right.cos, -right.sin), Told(plain(16))) == "turn backwards: sin has the other sign"


def test_the_other_layers_parameters():
    local, whole = plain(16), plain(16, 1e6, 8)
    told = Told(local, others=(("rotate as global layers should", whole, 1.0),))
    assert cause(held(whole), told) == "rotate as global layers should"
    assert cause(held(plain(16, 1e4, 8)), told) == "rotate at 1/8 of the reference's frequency"


def test_kinds_of_scaling_lost_changed_and_swapped():
    def of(kind, said, export):
        ours = rope_rules.frequencies(kind, said, 32).astype(np.float64)
        return cause(held(export, count=2048), Told(ours, scaling=kind, said=said))

    unscaled = plain(32, 9e5)
    assert of("llama3", LLAMA3, unscaled).startswith("have lost the llama3 scaling: largest frequency ratio 8 at pair ")
    assert of("yarn", YARN, unscaled).startswith("have lost the yarn scaling: largest frequency ratio 4 at pair ")
    exact = rope_rules.frequencies("yarn", YARN | {"truncate": False}, 32)
    assert of("yarn", YARN, exact).startswith(
        "have the yarn scaling with correction bounds that are not rounded (truncate False instead of True, the default"
    )
    rounded = rope_rules.frequencies("yarn", YARN, 32)
    assert "rounded correction bounds (truncate True instead of False)" in of(
        "yarn", YARN | {"truncate": False}, rounded
    )
    betas = YARN | {"beta_fast": 16.0}
    assert "with beta_fast 32 instead of 16" in of("yarn", betas, rounded)
    assert of("yarn", YARN, rope_rules.frequencies("linear", YARN, 32)).startswith(
        "have linear scaling by 4 instead of yarn"
    )
    whole = rope_rules.frequencies("llama3", LLAMA3 | {"original_max_position_embeddings": 2048}, 32)
    assert "with an original length of 2048 instead of 512" in of("llama3", LLAMA3, whole)
    odd = plain(32, 9e5) * (1 + 0.3 * np.sin(np.arange(32)))
    assert of("yarn", YARN, odd).startswith("rotate at other frequencies, by no rule that was tried: largest frequency")
    assert of("yarn", YARN, plain(32, 1e4)) == "rotate with theta 10000, factor 1, without the yarn scaling"


def test_amplitudes():
    ours = plain(16)
    assert (
        cause(held(ours), Told(ours, 1.25)) == "have cos and sin times 1 instead of 1.25 (the attention factor is lost)"
    )
    assert cause(held(ours, 1.139), Told(ours)) == "have cos and sin times 1.139 instead of 1"
    both = cause(held(plain(16, 1e4, 2), 1.25), Told(ours))
    assert both == "rotate at 1/2 of the reference's frequency and have cos and sin times 1.25 instead of 1"


def test_widths_and_layouts():
    ours = plain(16)
    assert cause(held(ours[:8]), Told(ours)) == "rotate 16 dimensions instead of 32, the reference's first"
    narrow = cause(held(plain(8)), Told(ours, said={"rope_theta": 1e4}))
    assert narrow == "rotate 16 dimensions instead of 32, by the same rule over that width"
    assert cause(held(np.tile(ours, 2)), Told(ours)).endswith("each frequency is there twice, in halves")
    assert cause(held(np.repeat(ours, 2)[:16]), Told(ours)).startswith("have each of the first frequencies twice")
    assert cause(held(ours[::-1]), Told(ours)) == "have the frequencies in reverse order"


def test_pairs_that_stand_still():
    base = plain(16)
    still = np.where(np.arange(16) < 4, base, 0)
    assert cause(held(base), Told(still)) == "rotate 16 of 16 pairs instead of 4"
    assert cause(held(still), Told(base)) == "rotate 4 of 16 pairs instead of 16"
    assert cause(held(still), Told(still)) == ""


def test_frequencies_too_small_for_fp16_are_no_fault():
    base = plain(16, 1e9)
    narrow = held(base, dtype=np.float16, count=4)
    assert (narrow.fit().frequencies == 0).any() and cause(narrow, Told(base)) == ""


CORRUPTIONS = {
    "rows from 60 on are one": lambda cos, sin, rng: (cos[60:].fill(0.5), sin[60:].fill(0.5)),
    "rows from 60 on are the one before": lambda cos, sin, rng: (
        cos.__setitem__(slice(60, None), cos[59]), sin.__setitem__(slice(60, None), sin[59]),
    ),
    "noise": lambda cos, sin, rng: cos.__iadd__(rng.normal(0, 1e-3, cos.shape).astype(cos.dtype)),
    "three entries": lambda cos, sin, rng: cos.__setitem__(
        (rng.integers(0, len(cos), 3), rng.integers(0, cos.shape[1], 3)), 2.0
    ),
    "one pair": lambda cos, sin, rng: sin[:, 1].__imul__(np.asarray(1.5, sin.dtype)),
    "not a number": lambda cos, sin, rng: cos.__setitem__((5, 1), np.nan),
    "the last row": lambda cos, sin, rng: sin.__setitem__(-1, 0.25),
    "the later half shifted": lambda cos, sin, rng: cos.__setitem__(slice(100, -1), cos[101:].copy()),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
@CHECKED
@given(THETAS, st.sampled_from([1.0, 8.0]), st.sampled_from([4, 16, 64]), st.integers(0, 2**32 - 1))
def test_a_cache_that_is_no_rotation_has_no_cause(name, theta, factor, pairs, seed):
    """Neither of the right rotation spoilt, nor of a wrong one spoilt."""
    right = held(plain(pairs, theta, factor), count=300)
    CORRUPTIONS[name](right.cos, right.sin, np.random.default_rng(seed))
    assert cause(right, Told(plain(pairs, theta))) is None


@CHECKED
@given(st.floats(1e3, 1e7), st.floats(0.3, 40), st.sampled_from([8, 24, 64]), COUNTS, DTYPES)
def test_whatever_rotates_is_told_by_numbers_that_reproduce_it(theta, factor, pairs, count, dtype):
    cache, ours = held(plain(pairs, theta, factor), dtype=dtype, count=count), plain(pairs)
    said = cause(cache, Told(ours))
    assert said is not None
    for start, told in (("rotate with theta ", True), ("rotate at ", False)):
        if said.startswith(start) and told:
            by = said.removeprefix(start).split(" ")
            found = plain(pairs, float(by[0]), float(by[by.index("factor") + 1]) if "factor" in by else 1.0)
            assert cause(cache, Told(found)) == ""


def test_scalings_of_a_config_that_says_too_little_are_none():
    assert rope_rules.frequencies("yarn", {"rope_theta": 1e4}, 16) is None
    assert rope_rules.frequencies("linear", {}, 16) is None
    assert rope_rules.defaults_taken("yarn", {"beta_fast": 32.0}) == "beta_slow 1 by default"
    assert llama3(plain(16)).shape == (16,)
