"""Fitting rotary caches, and saying in words how two of them differ."""

from __future__ import annotations

import numpy as np
import pytest
import rope_fit
from hypothesis import given
from hypothesis import strategies as st

THETAS = st.sampled_from([1e4, 2e4, 1e5, 5e5, 1e6, 3e6])
FACTORS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 32.0])
HALVES = st.sampled_from([4, 8, 16, 64, 128])
DTYPES = st.sampled_from([np.float32, np.float16])
POSITIONS = 8192


def plain(pairs: int, theta: float = 1e4, factor: float = 1.0) -> np.ndarray:
    return theta ** (-np.arange(pairs) / pairs) / factor


def fitted(frequencies: np.ndarray, amplitude: float = 1.0, dtype=np.float32, count: int = POSITIONS) -> rope_fit.Fit:
    """The fit of a cache of these frequencies, computed in fp32 and stored in `dtype`."""

    def row(position: int):
        angles = np.float32(position) * frequencies.astype(np.float32)
        return tuple((np.float32(amplitude) * turn(angles)).astype(dtype) for turn in (np.cos, np.sin))

    info = np.finfo(dtype)
    return rope_fit.of_cache(row, count, float(info.eps), float(info.smallest_subnormal))


def llama3(frequencies: np.ndarray, factor: float = 8.0, original: int = 256) -> np.ndarray:
    """Long waves divided, short ones kept, some between."""
    share = np.clip((original * frequencies / (2 * np.pi) - 1) / 3, 0, 1)
    return frequencies * (share + (1 - share) / factor)


@given(THETAS, FACTORS, HALVES, DTYPES)
def test_theta_and_factor_are_found(theta, factor, pairs, dtype):
    fit = fitted(plain(pairs, theta, factor), dtype=dtype)
    assert fit.plain
    assert fit.theta == pytest.approx(theta, rel=1e-5 if dtype is np.float32 else 0.03)
    assert fit.factor == pytest.approx(factor, rel=1e-6 if dtype is np.float32 else 0.01)
    assert rope_fit.difference(fit, fit) == ""


@given(THETAS, FACTORS, HALVES, st.floats(0.5, 2))
def test_every_frequency_is_found_to_the_accuracy_of_fp32(theta, factor, pairs, amplitude):
    frequencies = plain(pairs, theta, factor)
    fit = fitted(frequencies, amplitude)
    np.testing.assert_allclose(fit.frequencies, frequencies, rtol=1e-6)
    assert fit.amplitude == pytest.approx(amplitude, rel=1e-6)


@given(THETAS, HALVES, st.integers(2, 32), DTYPES)
def test_a_scaling_that_only_the_export_has_is_a_fraction_of_the_frequency(theta, pairs, factor, dtype):
    """The fault of Gemma 3's local layers."""
    right, wrong = (fitted(plain(pairs, theta, f), dtype=dtype) for f in (1, factor))
    said = rope_fit.difference(right, wrong)
    assert said == f"rotate at 1/{factor} of the reference's frequency"


@given(THETAS, HALVES, st.integers(2, 32))
def test_a_linear_scaling_that_the_export_lost_is_named(theta, pairs, factor):
    said = rope_fit.difference(fitted(plain(pairs, theta, factor)), fitted(plain(pairs, theta)), "linear")
    assert said == f"have lost the linear scaling by {factor}: they rotate {factor} times as fast"


@given(THETAS, THETAS, HALVES)
def test_another_theta_is_named(ours, theirs, pairs):
    said = rope_fit.difference(fitted(plain(pairs, ours)), fitted(plain(pairs, theirs)))
    assert said == ("" if ours == theirs else f"rotate with theta {theirs:.0f} instead of {ours:.0f}")


def test_theta_and_factor_that_both_differ():
    said = rope_fit.difference(fitted(plain(32, 1e6, 8)), fitted(plain(32, 1e4)), "linear")
    assert said == "rotate with theta 10000 instead of 1000000 and factor 1 instead of 8"


def test_scalings_of_other_kinds():
    base = plain(32, 5e5)
    scaled, other = fitted(llama3(base)), fitted(llama3(base, factor=4))
    assert not scaled.plain
    lost = rope_fit.difference(scaled, fitted(base), "llama3", 5e5)
    assert lost.startswith("have lost the llama3 scaling: largest frequency ratio 8 at pair ")
    changed = rope_fit.difference(scaled, other, "llama3", 5e5)
    assert changed.startswith("have another kind of scaling: largest frequency ratio 2 at pair ")
    assert rope_fit.difference(fitted(base), scaled).startswith("have a scaling that the reference lacks: ")
    another = rope_fit.difference(scaled, fitted(plain(32, 1e4)), "llama3", 5e5)
    assert another.startswith("have another kind of scaling: ")


def test_amplitude_width_and_pairs_that_stand_still():
    base = plain(16)
    still = np.where(np.arange(16) < 4, base, 0)
    assert rope_fit.difference(fitted(base, 1.25), fitted(base)) == "have cos and sin times 1 instead of 1.25"
    assert rope_fit.difference(fitted(base), fitted(base[:8])) == "rotate 16 dimensions instead of 32"
    assert rope_fit.difference(fitted(still), fitted(base)) == "rotate 16 of 16 pairs instead of 4"
    assert rope_fit.difference(fitted(still), fitted(still)) == ""


def test_frequencies_that_grow_instead_of_falling():
    said = rope_fit.difference(fitted(plain(16)), fitted(1 / plain(16)))
    assert said.startswith("turn backwards, or by more than half a turn a position: pair ")


def test_frequencies_too_small_for_fp16_are_no_fault():
    base = plain(16, 1e9)
    assert (fitted(base, dtype=np.float16, count=4).frequencies == 0).any()
    assert rope_fit.difference(fitted(base, count=4), fitted(base, dtype=np.float16, count=4)) == ""


def test_descriptions():
    base = plain(16, 1e6, 8)
    assert rope_fit.describe(fitted(base)) == "theta 1000000, factor 8"
    assert rope_fit.describe(fitted(base, dtype=np.float16)) == "theta 1000000, factor 8"
    assert rope_fit.describe(fitted(base, 1.25)) == "theta 1000000, factor 8, cos and sin times 1.25"
    assert rope_fit.describe(fitted(np.where(np.arange(16) < 4, base, 0))).endswith(", 4 of 16 pairs rotate")
    assert rope_fit.describe(fitted(llama3(plain(16))), "llama3").startswith("llama3 scaling, frequencies 1 to ")
    assert rope_fit.describe(fitted(np.zeros(4))) == "no pair rotates"
