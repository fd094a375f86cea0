"""The formulas hold what their docstrings say."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from metrics import kind, matched_tokens, max_abs_diff

FINITE = st.floats(-1e6, 1e6, width=32)
ROWS = st.integers(1, 30).flatmap(
    lambda n: st.tuples(arrays(np.float32, n, elements=FINITE), arrays(np.float32, n, elements=FINITE))
)
TOKENS = st.lists(st.integers(0, 3), max_size=8)


@given(ROWS)
def test_the_diff_is_symmetric_and_zero_only_for_equal_rows(rows):
    a, b = rows
    assert max_abs_diff(a, b) == max_abs_diff(b, a) >= 0
    assert (max_abs_diff(a, b) == 0) == bool((a == b).all())
    assert max_abs_diff(a, a) == 0


@given(ROWS, st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_diff_scales_with_its_rows(rows, factor):
    a, b = (row.astype(np.float64) for row in rows)
    assert max_abs_diff(a * factor, b * factor) == factor * max_abs_diff(a, b)


@given(ROWS, st.data())
def test_one_nan_makes_it_nan(rows, data):
    a, b = (row.copy() for row in rows)
    side = data.draw(st.sampled_from([a, b]))
    side[data.draw(st.integers(0, len(a) - 1))] = np.nan
    assert math.isnan(max_abs_diff(a, b))


def test_infinities():
    masked = np.array([1.0, -np.inf], np.float32)
    assert max_abs_diff(masked, np.array([1.5, -np.inf], np.float32)) == 0.5
    assert max_abs_diff(masked, np.array([1.0, 2.0], np.float32)) == math.inf
    assert max_abs_diff(masked, np.array([1.0, np.inf], np.float32)) == math.inf


def test_a_padded_vocabulary_is_compared_where_both_have_entries():
    assert max_abs_diff(np.array([1.0, 2.0]), np.array([1.0, 2.5, 99.0])) == 0.5
    assert max_abs_diff(np.array([1.0]), np.array([3.0])) == 2.0


def test_the_diff_of_float32_rows_is_not_rounded_to_float32():
    a, b = np.array([16777216.0], np.float32), np.array([0.5], np.float32)
    assert max_abs_diff(a, b) == 16777215.5


@given(TOKENS, TOKENS)
def test_matched_tokens_is_the_common_prefix(a, b):
    count = matched_tokens(a, b)
    assert a[:count] == b[:count]
    assert count in (len(a), len(b)) or a[count] != b[count]
    assert matched_tokens(b, a) == count


def test_kinds():
    assert [kind(x) for x in (0.0, None, math.nan, math.inf, -math.inf)] == [
        "finite", "finite", "nan", "+inf", "-inf",
    ]  # fmt: skip
