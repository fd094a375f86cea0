"""What a set of cells proves: every verdict, from points made by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.proof.verdicts import Point, best_set, judge, point_of, shares_of, together

LIMIT = 10.0


def point(multiple: float | None, right: bool = True) -> Point:
    within = multiple is not None and multiple <= LIMIT
    return Point(True, right, within, multiple, LIMIT)


FAILED = Point(False, False, False, None, LIMIT)
NOT_FINITE = Point(True, False, False, None, LIMIT, finite=False)
NO_FLOOR = point(None)


def design(**cells: Point) -> dict[frozenset[str], Point]:
    """By the letters of the changes made: none=…, a=…, ab=…."""
    return {frozenset(name) if name != "none" else frozenset(): found for name, found in cells.items()}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        # The wrong text is one change's; the rest of the error hides behind it.
        (dict(none=point(3e6, False), a=point(465), b=point(3e6, False), ab=point(1.3)), ["proven", "masked"]),
        (dict(none=point(5472), a=point(280), b=point(5425), ab=point(1.3)), ["contributes", "masked"]),
        (dict(none=point(280), a=point(280), b=point(1.3), ab=point(1.3)), ["no effect", "proven"]),
        (dict(none=point(900), a=point(300), b=point(250), ab=point(1)), ["contributes", "contributes"]),
        (dict(none=FAILED, a=point(465)), ["proven"]),
        (dict(none=FAILED, a=FAILED, b=FAILED, ab=point(2)), ["masked", "masked"]),
        (dict(none=point(500), a=point(490)), ["no effect"]),
        (dict(none=point(2), a=point(2)), ["no effect"]),
        (dict(none=point(500), a=point(1)), ["proven"]),
        (dict(none=point(500, False), a=point(500, False), b=point(1)), ["no effect", "proven"]),
        (dict(none=point(500), a=point(480), b=point(300)), ["not enough cells", "no effect"]),
        # A wrong guess neither takes from the right one nor leaves something else to look for.
        (dict(none=point(3e6, False), a=point(465), b=point(3e6, False), ab=point(1e6)), ["proven", "makes it worse"]),
        # What more was tried does not make less of what was shown.
        (
            dict(none=point(5472), a=point(280), b=point(5425), ab=point(1.3), c=point(5472)),
            ["contributes", "masked", "no effect"],
        ),
        (dict(a=point(1)), ["not enough cells"]),
        (dict(none=point(500), ab=point(1)), ["not enough cells", "not enough cells"]),
        (dict(none=point(500), b=point(480), ab=point(1)), ["contributes", "not enough cells"]),
        (dict(none=point(500), a=FAILED), ["makes it worse"]),
        (dict(none=point(2), a=FAILED), ["makes it worse"]),
        (dict(none=point(500), a=point(5e6, False)), ["makes it worse"]),
        (dict(none=point(500), a=NOT_FINITE), ["makes it worse"]),
        (dict(none=NOT_FINITE, a=point(500)), ["proven"]),
        (dict(none=point(9), a=NO_FLOOR), ["not enough cells"]),
        (dict(none=NO_FLOOR, a=NO_FLOOR), ["not enough cells"]),
        (dict(none=point(3), a=point(2.5)), ["no effect"]),  # near ties are within the noise
        (dict(none=point(500), a=point(2), b=point(2), ab=point(2)), ["proven", "proven"]),
    ],
)
def test_verdicts(cells, words):
    points = design(**cells)
    changes = sorted(set(itertools.chain.from_iterable(points)))
    assert [verdict.word for verdict in judge(points, changes)] == words


def test_what_is_missing_is_named():
    (a, b) = judge(design(none=point(500), ab=point(1)), ["a", "b"])
    assert a.missing == (frozenset("a"), frozenset("b")) and b.missing == (frozenset("b"), frozenset("a"))
    (only,) = judge(design(a=point(1)), ["a"])
    assert only.missing == (frozenset(),)


def test_the_reason_has_the_numbers():
    proven, masked = judge(design(none=point(3e6, False), a=point(465), b=point(3e6, False), ab=point(1.3)), "ab")
    assert "for the wrong text" in proven.why and "a residue of 465 × noise is left" in proven.why
    assert "alone it changes nothing" in masked.why and "beside a it takes 465 × noise to 1.3 × noise" in masked.why


def test_a_change_that_leads_out_of_the_noise_is_said_to():
    (verdict,) = judge(design(none=point(2), a=point(300)), ["a"])
    assert verdict.word == "makes it worse" and "2 × noise to 300 × noise" in verdict.why


def test_all_together_is_complete_or_says_what_is_left():
    points = design(none=point(5472), a=point(280), b=point(5425), ab=point(1.3))
    told = together(points, judge(points, "ab"))
    assert "a and b together are within the noise (1.3 × noise): complete" in told
    assert "Both are needed; a is the larger" in told
    points[frozenset("ab")] = point(70)
    assert "a and b together leave 70 × noise: something else is wrong too." in together(points, judge(points, "ab"))


def test_where_one_suffices_not_both_are_needed():
    points = design(none=point(500), a=point(2), b=point(2), ab=point(2))
    assert "needed" not in together(points, judge(points, "ab"))


def test_shares_of_changes_that_undo_each_other_stay_shares():
    points = design(none=point(100), a=point(100), b=point(1e6), ab=point(5))
    assert all(0 <= share <= 1 for share in shares_of(points, best_set(points)).values())
    three = {frozenset(units): point(1e6) for units in ("", "a", "b", "c", "ab", "ac", "bc")}
    shares = shares_of(three | {frozenset("abc"): point(1)}, frozenset("abc"))
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({}, True),
        ({"identical_count": 3}, False),
        ({"identical_count": 3, "verdict": "near_tie"}, True),
        ({"identical_count": 3, "sensible_count": 0}, True),  # its text says nothing, so it is not wrong
        ({"status": "export_failed", "verdict": None}, False),
    ],
)
def test_what_a_cell_says_of_its_text(row, right):
    base = {
        "status": "ok", "verdict": "broken", "identical_count": 5, "prompts_count": 5, "sensible_count": 5,
        "thresholds": {"within": 10.0}, "multiple_largest": 500.0, "non_finite_count": 0,
    }  # fmt: skip
    assert point_of(base | row).right is right


MULTIPLES = st.floats(0.01, 1e8)


@given(MULTIPLES, MULTIPLES, MULTIPLES, MULTIPLES)
def test_shares_are_parts_of_the_baseline_and_whole_where_all_is_mended(none, a, b, ab):
    points = design(none=point(none), a=point(a), b=point(b), ab=point(ab))
    shares = shares_of(points, best_set(points))
    assert all(share >= 0 for share in shares.values())
    if none <= LIMIT:
        assert shares == {}
    elif min(a, b, ab) <= LIMIT and a <= none and b <= none:
        assert sum(shares.values()) == pytest.approx(1)


@given(st.lists(st.sampled_from(["none", "a", "b", "ab"]), unique=True), st.data())
def test_whatever_is_there_each_change_gets_one_verdict_and_never_more_than_was_shown(names, data):
    points = design(**{n: data.draw(st.sampled_from([FAILED, point(1), point(50), point(50, False)])) for n in names})
    verdicts = judge(points, "ab")
    assert [verdict.change for verdict in verdicts] == ["a", "b"]
    for verdict in verdicts:
        alone = points.get(frozenset(verdict.change))
        if verdict.word in ("proven", "masked"):
            assert alone is not None and frozenset() in points
        if verdict.word == "proven":
            assert alone.within or (alone.right and not points[frozenset()].right)
            assert not points[frozenset()].within
        assert not set(verdict.missing) & set(points)
