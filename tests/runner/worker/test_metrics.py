"""The formulas hold what their docstrings say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from metrics import (
    BANDS,
    COUNTED,
    OVERLAP,
    STEP_METRICS,
    band_error,
    cosine,
    count_above,
    kind,
    kl_divergence,
    least,
    log_softmax,
    matched_tokens,
    max_abs_diff,
    mean_abs_diff,
    over_steps,
    spread,
    top,
    top_gap,
    top_overlap,
    total_variation,
    worst,
)

pytestmark = pytest.mark.filterwarnings("error")

INF, NAN = math.inf, math.nan
TOKENS = st.lists(st.integers(0, 3), max_size=8)
COUNTS = {f"above_{threshold:g}" for threshold in COUNTED}


def pairs_of(elements, most: int = 30):
    return st.integers(1, most).flatmap(
        lambda n: st.tuples(arrays(np.float32, n, elements=elements), arrays(np.float32, n, elements=elements))
    )


ROWS = pairs_of(st.floats(-1e6, 1e6, width=32))
LOGITS = pairs_of(st.floats(-50, 50, width=32))  # of which probabilities can be told apart
HUGE = pairs_of(st.floats(allow_nan=False, allow_infinity=False, width=32))
TIES = arrays(np.float32, st.integers(0, 30), elements=st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.5, -1.0, INF, -INF]))


def wide(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair of rows longer than the widest band, the second near the first."""
    random = np.random.default_rng(seed)
    row = random.normal(0, 5, 1200)
    return row.astype(np.float32), (row + random.normal(0, 0.01, 1200)).astype(np.float32)


def by_hand(row) -> list[int]:
    """All ids, largest value first, the lower of equals first."""
    return sorted(range(len(row)), key=lambda i: (-float(row[i]), i))


def diffs(a, b) -> list[float]:
    return [abs(float(x) - float(y)) for x, y in zip(a, b, strict=True)]


def row_of(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@given(ROWS)
def test_the_diff_is_symmetric_and_zero_only_for_equal_rows(rows):
    a, b = rows
    assert max_abs_diff(a, b) == max_abs_diff(b, a) >= 0
    assert (max_abs_diff(a, b) == 0) == bool((a == b).all())
    assert max_abs_diff(a, a) == 0


@given(ROWS)
def test_the_mean_diff_is_symmetric_and_between_nothing_and_the_largest(rows):
    a, b = rows
    mean, most = mean_abs_diff(a, b), max_abs_diff(a, b)
    assert mean == mean_abs_diff(b, a) == pytest.approx(sum(diffs(a, b)) / len(a))
    assert most / len(a) <= mean * (1 + 1e-12) and mean <= most * (1 + 1e-12)


@given(ROWS, st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_diffs_scale_with_their_rows(rows, factor):
    a, b = (row.astype(np.float64) for row in rows)
    assert max_abs_diff(a * factor, b * factor) == factor * max_abs_diff(a, b)
    assert mean_abs_diff(a * factor, b * factor) == factor * mean_abs_diff(a, b)


@given(ROWS, st.sampled_from([*COUNTED, 0.0, 1.0]))
def test_counts_are_symmetric_and_of_what_is_above(rows, threshold):
    a, b = rows
    count = count_above(a, b, threshold)
    assert count == count_above(b, a, threshold) == sum(diff > threshold for diff in diffs(a, b))
    assert count_above(a, b, max_abs_diff(a, b)) == 0
    assert count_above(a, b, threshold * 2) <= count


@given(ROWS)
def test_cosine_is_symmetric_and_between_minus_one_and_one(rows):
    a, b = rows
    found = cosine(a, b)
    assert -1 <= found <= 1 and found == pytest.approx(cosine(b, a), abs=1e-12)
    assert cosine(a, a) == 1
    if a.any():
        assert cosine(a, -a) == pytest.approx(-1)


@given(pairs_of(st.integers(-100, 100).map(float)))
def test_cosine_is_what_its_formula_says(rows):
    a, b = (row.astype(np.float64) for row in rows)
    assume(a.any() and b.any())
    expected = math.fsum(a * b) / math.sqrt(math.fsum(a * a) * math.fsum(b * b))
    assert cosine(a, b) == pytest.approx(expected, abs=1e-12)


@given(ROWS, st.floats(1e-30, 1e30), st.floats(1e-30, 1e30))
def test_cosine_is_blind_to_the_scale_of_either_side(rows, one, other):
    a, b = (row.astype(np.float64) for row in rows)
    assert cosine(a * one, b * other) == pytest.approx(cosine(a, b), abs=1e-9)


def test_cosine_of_zeros():
    assert cosine(row_of(0, 0), row_of(0, 0)) == 1
    assert cosine(row_of(0, 0), row_of(1, 0)) == cosine(row_of(1, 0), row_of(0, 2)) == 0


@given(LOGITS)
def test_kl_is_never_negative_and_what_its_formula_says(rows):
    p, q = (np.exp(log_softmax(row.astype(np.float64))) for row in rows)
    assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    kl = kl_divergence(*rows)
    assert 0 <= kl == pytest.approx(math.fsum(p * np.log(p / q)), abs=1e-9)
    assert kl_divergence(rows[0], rows[0]) == 0


def test_kl_has_a_direction():
    sure, unsure = row_of(math.log(3), 0), row_of(0, 0)  # 3/4 and 1/4; 1/2 each
    assert kl_divergence(sure, unsure) == pytest.approx(math.log(2) - 2 * math.log(2) + 0.75 * math.log(3))
    assert kl_divergence(unsure, sure) == pytest.approx(math.log(2) - 0.5 * math.log(3))


@given(LOGITS)
def test_total_variation_is_symmetric_and_at_most_what_pinsker_allows(rows):
    a, b = rows
    found = total_variation(a, b)
    assert 0 <= found <= 1 and found == pytest.approx(total_variation(b, a), abs=1e-12)
    assert found <= math.sqrt(kl_divergence(a, b) / 2) + 1e-6
    assert found <= math.sqrt(kl_divergence(b, a) / 2) + 1e-6
    assert total_variation(a, a) == 0


def test_total_variation_of_known_probabilities():
    assert total_variation(row_of(math.log(3), 0), row_of(0, 0)) == pytest.approx(0.25)
    assert total_variation(row_of(1000, 0), row_of(0, 1000)) == 1


@given(LOGITS, st.floats(-1000, 1000), st.floats(-1000, 1000))
def test_probabilities_are_blind_to_a_constant_shift_of_either_side(rows, one, other):
    a, b = (row.astype(np.float64) for row in rows)
    assert kl_divergence(a + one, b + other) == pytest.approx(kl_divergence(a, b), abs=1e-9)
    assert total_variation(a + one, b + other) == pytest.approx(total_variation(a, b), abs=1e-9)


@given(LOGITS, st.integers(1, 8))
def test_overlap_is_symmetric_between_nothing_and_one_and_blind_to_scale(rows, k):
    a, b = (row.astype(np.float64) for row in rows)
    found = top_overlap(a, b, k)
    assert found == top_overlap(b, a, k) == top_overlap(a * 8, b / 4, k)
    width = min(k, len(a))
    assert found == len(set(by_hand(a)[:width]) & set(by_hand(b)[:width])) / width
    assert top_overlap(a, a, k) == 1


def test_overlap_counts_five_unless_told():
    row = row_of(9, 8, 7, 6, 5, 4, 3, 2)
    assert top_overlap(row, row_of(9, 8, 7, 6, 4, 5, 3, 2)) == 0.8 == 4 / OVERLAP
    assert top_overlap(row, row[::-1], 4) == 0


@given(TIES, st.integers(0, 32))
def test_top_is_in_order_of_value_and_then_of_id(row, k):
    assert top(row, k).tolist() == by_hand(row)[:k]
    if k and len(row):
        assert top(row, k)[0] == row.argmax()


@pytest.mark.parametrize(("k", "rtol"), [(5, 0.01), (50, 0.02), (1000, 0.03), (None, 0.05)])
def test_the_bands_are_those_of_neuronx(k, rtol):
    assert BANDS[k] == (1e-5, rtol)
    assert list(BANDS) == [5, 50, 1000, None]


@given(st.integers(0, 2**32 - 1).map(wide) | ROWS, st.sampled_from(list(BANDS)))
def test_a_bands_error_is_what_its_formula_says(rows, k):
    a, b = rows
    ids = by_hand(a)[:k]
    off = max(0.0, max(abs(float(a[i]) - float(b[i])) for i in ids) - 1e-5)
    largest = max(abs(float(a[i])) for i in ids)
    expected = off / largest if largest else INF if off else 0
    assert band_error(a, b, k) == expected
    assert band_error(a, a, k) == 0


def test_a_band_looks_at_the_references_best_only_and_forgives_the_absolute_tolerance():
    a = np.arange(10, 0, -1, dtype=np.float64)
    b = a.copy()
    b[9] = 100  # the candidate's best, the reference's last
    assert band_error(a, b, 5) == 0 and band_error(a, b, None) == pytest.approx(9.9)
    assert band_error(a, a + 0.9e-5, 5) == 0 < band_error(a, a + 1.1e-5, 5)


def test_a_shift_is_an_error_to_a_band():
    a = row_of(4, 3, 2)
    assert band_error(a, a + 1, None) == pytest.approx((1 - 1e-5) / 4)


@given(st.integers(0, 2**32 - 1))
def test_the_metrics_of_a_step_are_each_its_own(seed):
    a, b = wide(seed)
    assert next(iter(STEP_METRICS)) == "logits_max_abs_diff"
    found = {name: formula(a, b) for name, formula in STEP_METRICS.items()}
    assert found == {
        "logits_max_abs_diff": max_abs_diff(a, b),
        "logits_mean_abs_diff": mean_abs_diff(a, b),
        "cosine": cosine(a, b),
        "kl": kl_divergence(a, b),
        "total_variation": total_variation(a, b),
        "top5_overlap": top_overlap(a, b, 5),
        "above_0.1": count_above(a, b, 0.1),
        "above_0.01": count_above(a, b, 0.01),
        "band_5": band_error(a, b, 5),
        "band_50": band_error(a, b, 50),
        "band_1000": band_error(a, b, 1000),
        "band_all": band_error(a, b, None),
    }


@given(ROWS, st.data())
def test_one_nan_makes_all_nan_and_is_counted(rows, data):
    a, b = (row.copy() for row in rows)
    agreed = count_above(a, b, 0.1)
    side = data.draw(st.sampled_from([a, b]))
    at = data.draw(st.integers(0, len(a) - 1))
    was_above = count_above(a[at : at + 1], b[at : at + 1], 0.1)
    side[at] = NAN
    found = {name: formula(a, b) for name, formula in STEP_METRICS.items()}
    assert found["above_0.1"] == agreed - was_above + 1
    assert all(math.isnan(value) for name, value in found.items() if name not in COUNTS)


@pytest.mark.parametrize("name", STEP_METRICS)
def test_nan_on_both_sides_is_no_agreement(name):
    row = row_of(1, NAN, 2)
    found = STEP_METRICS[name](row, row)
    assert found == 1 if name in COUNTS else math.isnan(found)


def test_infinities():
    masked = row_of(1, -INF)
    for diff in (max_abs_diff, mean_abs_diff):
        assert diff(masked, row_of(1, 2)) == diff(masked, row_of(1, INF)) == diff(row_of(1, 2), masked) == INF
    assert max_abs_diff(masked, row_of(1.5, -INF)) == 0.5
    assert max_abs_diff(row_of(1, INF), row_of(1, INF)) == 0
    assert count_above(masked, row_of(1, 2), 0.1) == count_above(masked, row_of(1, INF), 0.1) == 1


def test_plus_infinity_has_no_probabilities_and_no_direction():
    infinite, finite = row_of(1, INF), row_of(1, 2)
    for formula in (kl_divergence, total_variation, cosine):
        assert math.isnan(formula(infinite, finite)) and math.isnan(formula(finite, infinite))
        assert math.isnan(formula(infinite, infinite))
    assert band_error(finite, infinite, 5) == INF and math.isnan(band_error(infinite, finite, 5))


@given(LOGITS, st.integers(1, 5), st.randoms())
def test_what_both_mask_differs_by_nothing(rows, count, random):
    a, b = rows
    order = list(range(len(a) + count))
    random.shuffle(order)
    c, d = (np.append(row, row_of(*[-INF] * count))[order] for row in rows)
    assert max_abs_diff(c, d) == max_abs_diff(a, b)
    assert mean_abs_diff(c, d) == pytest.approx(mean_abs_diff(a, b) * len(a) / len(c))
    assert count_above(c, d, 0.1) == count_above(a, b, 0.1)
    assert cosine(c, d) == pytest.approx(cosine(a, b), abs=1e-12)
    assert kl_divergence(c, d) == pytest.approx(kl_divergence(a, b), abs=1e-12)
    assert total_variation(c, d) == pytest.approx(total_variation(a, b), abs=1e-12)
    assert band_error(c, d, None) == band_error(a, b, None)
    assert top_overlap(c, d, 1) == 1.0 or len(a) > 1


def test_all_masked_on_both_sides():
    masked = row_of(-INF, -INF)
    assert max_abs_diff(masked, masked) == mean_abs_diff(masked, masked) == band_error(masked, masked, 5) == 0
    assert cosine(masked, masked) == top_overlap(masked, masked) == 1
    assert math.isnan(kl_divergence(masked, masked)) and math.isnan(total_variation(masked, masked))


@given(pairs_of(st.floats(-50, 50, width=32)).filter(lambda rows: len(rows[0]) > 1), st.data())
def test_what_one_side_masks(rows, data):
    a, b = rows
    at = data.draw(st.integers(0, len(a) - 1))
    masked = b.copy()
    masked[at] = -INF
    others = np.arange(len(a)) != at
    assert max_abs_diff(a, masked) == max_abs_diff(masked, a) == INF
    assert kl_divergence(a, masked) == INF > kl_divergence(masked, a) >= 0
    p = np.exp(log_softmax(a.astype(np.float64)))
    assert p[at] - 1e-12 <= total_variation(a, masked) <= 1
    assert math.isnan(cosine(a, masked)) and math.isnan(cosine(masked, a))
    assert band_error(a, masked, None) == band_error(a[others], b[others], None)


def test_kl_is_infinite_however_unlikely_the_masked_entry_was():
    assert kl_divergence(row_of(0, -700), row_of(0, -INF)) == INF
    assert kl_divergence(row_of(0, -1000), row_of(0, -INF)) == INF


@given(ROWS, arrays(np.float32, st.integers(1, 9), elements=st.floats(width=32)), st.sampled_from(list(STEP_METRICS)))
def test_a_padded_vocabulary_is_compared_where_both_have_entries(rows, padding, name):
    a, b = rows
    formula = STEP_METRICS[name]
    assert formula(a, np.append(b, padding)) == formula(np.append(a, padding), b) == formula(a, b)


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32))
def test_a_vocabulary_of_one_entry(x, y):
    a, b = row_of(x), row_of(y)
    assert max_abs_diff(a, b) == mean_abs_diff(a, b) == abs(x - y)
    assert kl_divergence(a, b) == total_variation(a, b) == 0 and top_overlap(a, b) == 1
    assert cosine(a, b) == pytest.approx(1 if x == y else np.sign(x) * np.sign(y))
    assert top(a, 5).tolist() == [0] and top_gap(a) == INF


def test_the_diff_of_float32_rows_is_not_rounded_to_float32():
    a, b = np.array([16777216.0], np.float32), np.array([0.5], np.float32)
    assert max_abs_diff(a, b) == mean_abs_diff(a, b) == 16777215.5
    assert top_gap(row_of(16777216, 0.5)) == 16777215.5


@given(HUGE)
def test_huge_logits_do_not_overflow(rows):
    a, b = rows
    assert max_abs_diff(a, b) == max(diffs(a, b))
    for name, formula in STEP_METRICS.items():
        found = formula(a, b)
        assert math.isfinite(found) or (found == INF and name.startswith("band") and 0 in a)
    assert -1 <= cosine(a, b) <= 1 and 0 <= total_variation(a, b) <= 1


def test_huge_logits_by_hand():
    a, b = row_of(3e38, -3e38), row_of(-3e38, 3e38)
    assert max_abs_diff(a, b) == pytest.approx(6e38) == mean_abs_diff(a, b) == top_gap(a) == kl_divergence(a, b)
    assert cosine(a, b) == pytest.approx(-1) and total_variation(a, b) == 1
    assert band_error(a, b, 5) == pytest.approx(2)


@given(arrays(np.float32, st.integers(2, 20), elements=st.floats(-1e6, 1e6, width=32) | st.just(-INF)))
def test_the_gap_is_between_the_two_best(row):
    first, second = sorted(row.astype(np.float64), reverse=True)[:2]
    assert top_gap(row) == (0 if first == second else first - second) >= 0


def test_the_gap_of_odd_rows():
    assert top_gap(row_of()) == top_gap(row_of(3)) == top_gap(row_of(3, -INF)) == top_gap(row_of(INF, 3)) == INF
    assert top_gap(row_of(INF, INF, 1)) == top_gap(row_of(-INF, -INF)) == 0
    assert math.isnan(top_gap(row_of(1, NAN, 2)))


@given(TOKENS, TOKENS)
def test_matched_tokens_is_the_common_prefix(a, b):
    count = matched_tokens(a, b)
    assert a[:count] == b[:count]
    assert count in (len(a), len(b)) or a[count] != b[count]
    assert matched_tokens(b, a) == count


def test_kinds():
    assert [kind(x) for x in (0.0, None, NAN, INF, -INF)] == ["finite", "finite", "nan", "+inf", "-inf"]


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.data())
def test_one_nan_is_the_worst_wherever_it_stands(values, data):
    assert worst(values) == max(values) and least(values) == min(values)
    values.insert(data.draw(st.integers(0, len(values))), NAN)
    assert math.isnan(worst(values)) and math.isnan(least(values))


def test_the_worst_of_nothing_is_nothing():
    assert worst([]) == least([]) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.data())
def test_spread_is_numpys(values, data):
    expected = [np.mean(values), np.median(values), np.percentile(values, 99), max(values)]
    assert list(spread(values)) == ["mean", "median", "p99", "max"]
    assert list(spread(values).values()) == pytest.approx(expected, rel=1e-12, abs=0)
    values.insert(data.draw(st.integers(0, len(values))), NAN)
    assert all(math.isnan(value) for value in spread(values).values())


def test_spread_with_infinities_takes_a_step_and_never_what_lies_between():
    assert spread([INF, 1, 2, 3]) == {"mean": INF, "median": 3, "p99": INF, "max": INF}
    assert spread([0.0] * 200 + [INF]) == {"mean": INF, "median": 0, "p99": 0, "max": INF}
    assert spread([INF]) == spread([INF, INF]) == dict.fromkeys(("mean", "median", "p99", "max"), INF)
    assert all(math.isnan(value) for value in spread([INF, NAN]).values())


def test_the_numbers_of_a_continuation_are_of_the_worst_step_save_some():
    steps = {name: [1.0, 3.0, 2.0] for name in STEP_METRICS}
    steps["logits_mean_abs_diff"] = [1.0, 3.0, 5.0]
    assert over_steps(steps) == {
        "logits_max_abs_diff": 3,
        "logits_mean_abs_diff": 3,
        "cosine": 1,
        "kl_mean": 2,
        "kl_median": 2,
        "kl_p99": pytest.approx(2.98),
        "kl_max": 3,
        "total_variation": 3,
        "top5_overlap": 1,
        "above_0.1": 6,
        "above_0.01": 6,
        "band_5": 3,
        "band_50": 3,
        "band_1000": 3,
        "band_all": 3,
    }


@given(st.permutations([1.0, 2.0, NAN]))
def test_one_step_that_is_nan_makes_the_continuation_so(values):
    whole = over_steps({name: values for name in STEP_METRICS if name not in COUNTS})
    assert len(whole) == 13 and all(math.isnan(value) for value in whole.values())
