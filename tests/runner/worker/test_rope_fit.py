"""Fitting rotary caches."""

from __future__ import annotations

import numpy as np
import pytest
import rope_fit
from hypothesis import given
from hypothesis import strategies as st
from rotary_caches import FACTORS, HALVES, THETAS, held, llama3, plain

DTYPES = st.sampled_from([np.float32, np.float16])


def fitted(frequencies: np.ndarray, amplitude: float = 1.0, dtype=np.float32, count: int = 8192) -> rope_fit.Fit:
    return held(frequencies, amplitude, dtype, count).fit()


@given(THETAS, FACTORS, HALVES, DTYPES)
def test_theta_and_factor_are_found(theta, factor, pairs, dtype):
    fit = fitted(plain(pairs, theta, factor), dtype=dtype)
    assert fit.plain
    assert fit.theta == pytest.approx(theta, rel=1e-5 if dtype is np.float32 else 0.03)
    assert fit.factor == pytest.approx(factor, rel=1e-6 if dtype is np.float32 else 0.01)


@given(THETAS, FACTORS, HALVES, st.floats(0.5, 2))
def test_every_frequency_is_found_to_the_accuracy_of_fp32(theta, factor, pairs, amplitude):
    frequencies = plain(pairs, theta, factor)
    fit = fitted(frequencies, amplitude)
    np.testing.assert_allclose(fit.frequencies, frequencies, rtol=1e-6)
    assert fit.amplitude == pytest.approx(amplitude, rel=1e-6)


@given(THETAS, HALVES, st.integers(-500, 500).filter(bool), st.integers(0, 4000))
def test_the_position_of_a_row_is_found(theta, pairs, by, position):
    frequencies = plain(pairs, theta)
    row = held(frequencies).row(position + 501 + by)
    assert rope_fit.offset(*row, position + 501, frequencies) == pytest.approx(by, abs=0.02)


def test_descriptions():
    base = plain(16, 1e6, 8)
    assert rope_fit.describe(fitted(base)) == "theta 1000000, factor 8"
    assert rope_fit.describe(fitted(base, dtype=np.float16)) == "theta 1000000, factor 8"
    assert rope_fit.describe(fitted(base, 1.25)) == "theta 1000000, factor 8, cos and sin times 1.25"
    assert rope_fit.describe(fitted(np.where(np.arange(16) < 4, base, 0))).endswith(", 4 of 16 pairs rotate")
    assert rope_fit.describe(fitted(llama3(plain(16))), "llama3").startswith("llama3 scaling, frequencies 1 to ")
    assert rope_fit.describe(fitted(np.zeros(4))) == "no pair rotates"
