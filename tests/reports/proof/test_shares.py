"""Shares of the baseline's error: exact, of a named baseline, and what was left out of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from points import FAILED, LIMIT, cell, design, point

from reports.proof.shares import shares_of
from reports.proof.verdicts import best_set


def shares(points, changes="ab"):
    return shares_of(points, list(changes), best_set(points), "1, as it is")


def test_of_all_subsets_they_are_shapley_values_and_say_so():
    found = shares(design(none=point(1e5), a=point(1e3), b=point(1e5), ab=point(5)))
    # Orders: a then b removes 2 and 2 powers of ten, b then a 0 and 4.
    assert found.of == pytest.approx({"a": 3 / 4, "b": 1 / 4})
    assert "log error of 1, as it is (mean over prompts: 4 powers of ten beyond the noise)" in found.told
    assert "Shapley values over all 4 subsets" in found.told and "left" not in found.told


def test_what_harms_has_a_negative_share():
    found = shares(design(none=point(1e5), a=point(5), b=point(1e6), ab=point(1e3)))
    assert found.of["b"] < 0 < found.of["a"]
    assert "They add up to 50%: the rest is left with all of them made." in found.told


def test_where_subsets_lack_it_is_said_which_and_what_was_left_out():
    found = shares(design(none=point(1e5), a=point(5), b=point(1e5)))
    assert found.of == {"a": pytest.approx(1)}
    assert "over the 2 subsets of a" in found.told
    assert "b is left out, since of the 4 subsets of a and b 1 have not run (a+b)" in found.told
    none = shares(design(none=point(1e5), ab=point(5)))
    assert none.of == {} and none.told == "No shares: of the 4 subsets of a and b 2 have not run (a and b)."


def test_a_failure_has_no_number():
    found = shares(design(none=point(1e5), a=FAILED, b=point(1e5), ab=point(5)))
    assert found.of == {} and "a gave no number" in found.told
    assert shares(design(none=FAILED, a=point(5)), "a").told == "No shares: 1, as it is, has no number to share."
    right = shares(design(none=point(5), a=point(5)), "a").told
    assert right == "No shares: 1, as it is, is within the noise: it has no error to share."


def test_the_error_is_the_mean_over_prompts():
    found = shares(design(none=cell(1e5, 1e5, 1e5, 1e5, 1e5), a=cell(5, 5, 5, 5, 1e5)), "a")
    assert found.of == pytest.approx({"a": 0.8})


@given(st.lists(st.floats(0.01, 1e8), min_size=8, max_size=8))
def test_they_add_up_to_what_all_changes_remove(multiples):
    names = ["none", "a", "b", "c", "ab", "ac", "bc", "abc"]
    points = design(**dict(zip(names, map(point, multiples), strict=True)))
    found = shares(points, "abc")
    if multiples[0] <= LIMIT:
        assert found.of == {}
    else:
        base, all_made = points[frozenset()].log_error, points[frozenset("abc")].log_error
        assert sum(found.of.values()) == pytest.approx((base - all_made) / base)
        assert sum(found.of.values()) <= 1 + 1e-9
