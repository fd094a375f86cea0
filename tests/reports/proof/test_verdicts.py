"""What a set of cells proves: every verdict, from points made by hand, and no report that contradicts itself."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from points import FAILED, NO_FLOOR, NOT_FINITE, cell, design, point, prompt

from reports.proof.points import OTHER, SAME, WRONG, helps, mends
from reports.proof.shares import shares_of
from reports.proof.verdicts import best_set, judge, together


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        # The wrong text is one change's; the rest of the error hides behind it.
        (dict(none=point(3e6, False), a=point(465), b=point(3e6, False), ab=point(1.3)), ["proven", "masked"]),
        (dict(none=point(5472), a=point(280), b=point(5425), ab=point(1.3)), ["contributes", "masked"]),
        (dict(none=point(280), a=point(280), b=point(1.3), ab=point(1.3)), ["no effect", "proven"]),
        (dict(none=point(900), a=point(300), b=point(250), ab=point(1)), ["contributes", "contributes"]),
        (dict(none=FAILED, a=point(465)), ["proven"]),
        (dict(none=FAILED, a=FAILED, b=FAILED, ab=point(2)), ["needed together", "needed together"]),
        (dict(none=point(500), a=point(490)), ["no effect"]),
        (dict(none=point(2), a=point(2)), ["no effect"]),
        (dict(none=point(500), a=point(1)), ["proven"]),
        (dict(none=point(500, False), a=point(500, False), b=point(1)), ["no effect", "proven"]),
        (dict(none=point(500), a=point(480), b=point(300)), ["not enough cells", "not enough cells"]),
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


NOISY = replace(prompt(None), noisy=True)  # a prompt whose noise floor is too large for a verdict


def test_a_text_of_a_prompt_without_a_verdict_is_not_within_the_noise():
    other, right = cell(1.0, replace(NOISY, text=OTHER)), cell(1.0, NOISY)
    (found,) = judge(design(none=other, a=right), ["a"])
    assert (found.word, "no effect" in found.why) == ("proven", False)
    assert "and another text in 1 of 2 to 1 × noise" in found.why and "residue" not in found.why
    bad = cell(500.0, replace(NOISY, text=OTHER))
    points = design(
        none=bad, a=cell(50.0, replace(NOISY, text=OTHER)), b=cell(60.0, replace(NOISY, text=OTHER)), ab=other
    )
    said = together(points, ["a", "b"], {})
    assert "complete" not in said and "whether something else is wrong is not known" in said


def test_a_floor_that_is_too_large_is_not_a_missing_one():
    (found,) = judge(design(none=cell(NOISY), a=cell(NOISY)), ["a"])
    assert found.word == "not enough cells" and "too large for a verdict" in found.why


def test_what_is_missing_is_named():
    (a, b) = judge(design(none=point(500), ab=point(1)), ["a", "b"])
    assert a.missing == (frozenset("a"), frozenset("b")) and b.missing == (frozenset("b"), frozenset("a"))
    (only,) = judge(design(a=point(1)), ["a"])
    assert only.missing == (frozenset(),)


def test_the_reason_has_the_numbers():
    proven, masked = judge(design(none=point(3e6, False), a=point(465), b=point(3e6, False), ab=point(1.3)), "ab")
    assert "for the wrong text" in proven.why and "a residue of 465 × noise is left" in proven.why
    assert (
        "alone it makes little difference" in masked.why
        and "beside a it takes 465 × noise to 1.3 × noise" in masked.why
    )


def test_a_change_that_leads_out_of_the_noise_is_said_to():
    (verdict,) = judge(design(none=point(2), a=point(300)), ["a"])
    assert verdict.word == "makes it worse" and "2 × noise to 300 × noise" in verdict.why


def test_all_together_is_complete_or_says_what_is_left():
    points = design(none=point(5472), a=point(280), b=point(5425), ab=point(1.3))
    shares = shares_of(points, ["a", "b"], best_set(points), "1, as it is").of
    told = together(points, "ab", shares)
    assert "a and b together are within the noise (1.3 × noise): complete" in told
    assert "Both are needed; a is the larger" in told
    points[frozenset("ab")] = point(70)
    assert "a and b together leave 70 × noise: something else is wrong too." in together(points, "ab", {})


def test_where_one_suffices_not_both_are_needed():
    points = design(none=point(500), a=point(2), b=point(2), ab=point(2))
    assert "needed" not in together(points, "ab", {})


NEITHER = ("no effect", "makes it worse")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        # Two faults that cancel, exactly and in part: each alone makes it worse, both mend it.
        (dict(none=point(100), a=point(1e5), b=point(1e5), ab=point(1)), ["needed together", "needed together"]),
        (dict(none=point(1000), a=point(300), b=point(1e6), ab=point(1)), ["contributes", "needed together"]),
        # A helper that another needs: alone the export fails.
        (dict(none=point(500), a=FAILED, b=point(500), ab=point(1)), ["needed together", "needed together"]),
        (dict(none=point(500), a=FAILED, b=point(50), ab=point(1)), ["needed together", "contributes"]),
        # A pure interaction.
        (dict(none=point(500), a=point(500), b=point(500), ab=point(1)), ["needed together", "needed together"]),
        # Three, one hiding the others, which need each other.
        (
            dict(
                none=point(1e6), a=point(1e3), b=point(1e6), c=point(1e6),
                ab=point(1e3), ac=point(1e3), bc=point(1e6), abc=point(1),
            ),
            ["contributes", "needed together", "needed together"],
        ),
        # Three, each hidden by the one before.
        (
            dict(
                none=point(1e6), a=point(1e4), b=point(1e6), c=point(1e6),
                ab=point(100), ac=point(1e4), bc=point(1e6), abc=point(1),
            ),
            ["contributes", "masked", "masked"],
        ),
        # Each moves it by less than a factor that matters, both by more.
        (dict(none=point(1000), a=point(600), b=point(600), ab=point(360)), ["needed together", "needed together"]),
        # Another way to the same end is not "no effect".
        (
            dict(none=point(500), a=point(500), b=point(500), c=point(1), ab=point(1), ac=point(1), bc=point(1)),
            ["needed together", "needed together", "proven"],
        ),
    ],
)  # fmt: skip
def test_changes_that_need_each_other(cells, words):
    points = design(**cells)
    changes = sorted(set(itertools.chain.from_iterable(points)))
    assert [verdict.word for verdict in judge(points, changes)] == words


def test_what_is_needed_together_says_what_it_does_alone_and_with_what():
    points = design(none=point(100), a=FAILED, b=point(1e5), ab=point(1))
    a, b = judge(points, "ab")
    assert a.why.startswith("alone the export fails; together with b it takes 100 × noise to 1 × noise")
    assert b.why.startswith("alone it takes 100 × noise to 1.0e+05 × noise; together with a")
    assert "Both are needed." in together(points, "ab", {})


def test_a_set_that_has_it_and_was_not_run_without_it_is_not_enough():
    (a, b) = judge(design(none=point(100), b=point(1e5), ab=point(1)), "ab")
    assert b.word == "not enough cells" and b.missing == (frozenset("a"),)
    assert a.word == "contributes"


def test_a_change_that_mends_four_of_five_prompts_contributes():
    points = design(none=cell(8e5, 8e5, 8e5, 8e5, 8e5), a=cell(2, 2, 2, 2, 8e5))
    (verdict,) = judge(points, "a")
    assert verdict.word == "contributes"
    assert verdict.why == "alone 4 of 5 prompts within the noise; on p5 8.0e+05 × noise before and after"


def test_a_change_that_ruins_every_text_is_worse_whatever_one_prompt_cannot_say():
    right, wrong, unsaid = prompt(500), prompt(500, WRONG), prompt(500, None)
    (verdict,) = judge(design(none=cell(right, right, unsaid), a=cell(wrong, wrong, unsaid)), "a")
    assert verdict.word == "makes it worse"
    assert "on p1 and p2 500 × noise to 500 × noise and wrong text" in verdict.why
    (mended,) = judge(design(none=cell(wrong, wrong, unsaid), a=cell(prompt(50), prompt(50), unsaid)), "a")
    assert mended.word == "proven" and "for the wrong text in 2 of 3" in mended.why


def test_on_a_tie_neither_is_the_larger():
    points = design(none=point(1e5), a=point(1e3), b=point(1e3), ab=point(1))
    shares = shares_of(points, ["a", "b"], best_set(points), "1, as it is").of
    assert together(points, "ab", shares).endswith("Both are needed.")


CHANGES = "abc"
SUBSETS = ["none", "a", "b", "c", "ab", "ac", "bc", "abc"]
POINTS = st.one_of(
    st.just(FAILED),
    st.just(NOT_FINITE),
    st.just(NO_FLOOR),
    st.lists(
        st.builds(prompt, st.sampled_from([0.5, 8, 12, 25, 60, 500, 1e4, 1e6]), st.sampled_from([SAME, WRONG, None])),
        min_size=1,
        max_size=3,
    ).map(lambda prompts: cell(*(prompts * 3)[:3])),
)
DESIGNS = st.dictionaries(st.sampled_from(SUBSETS), POINTS, min_size=1)


@given(DESIGNS)
@example(dict(none=point(1000), a=point(600), b=point(600), ab=point(360)))
@example(dict(none=point(1000), a=point(450), b=point(1e6), ab=point(400)))
def test_no_report_contradicts_itself(cells):
    points = design(**cells)
    known = {units: found for units, found in points.items() if found.measured}
    best, base = best_set(known), known.get(frozenset())
    verdicts = {verdict.change: verdict for verdict in judge(points, CHANGES)}
    shares = shares_of(known, list(CHANGES), best, "1, as it is").of
    said = together(points, CHANGES, shares)
    assert list(verdicts) == list(CHANGES)
    assert sum(shares.values()) <= 1 + 1e-9
    for change, verdict in verdicts.items():
        alone = known.get(frozenset(change))
        assert not set(verdict.missing) & set(points)
        assert (verdict.word == "not enough cells") or base is not None
        if verdict.word == "proven":
            assert not base.within and (alone.within or mends(base, alone))
        if verdict.word in ("masked", "needed together"):
            assert alone is not None and not helps(base, alone)
        if verdict.word == "makes it worse":
            assert not (alone and helps(base, alone))
        if verdict.word == "needed together":  # its set is there, and better than the baseline
            assert any(change in units and len(units) > 1 and helps(base, found) for units, found in known.items())
        if change in best and base is not None:
            assert verdict.word not in NEITHER
            assert verdict.word != "not enough cells" or best - {change} not in known or NO_FLOOR in points.values()
    if found := re.search(r"(Both|All|Of them .*) are needed", said):
        named = set(best) if found[1] in ("Both", "All") else {c for c in best if re.search(rf"\b{c}\b", found[1])}
        for change in named:
            assert verdicts[change].word not in NEITHER
    if "complete" in said:
        assert known[best].within
    if base is not None and best and helps(base, known[best]) and len(best) == 1:
        assert verdicts[next(iter(best))].word in ("proven", "contributes", "not enough cells")
    if largest := re.search(r"; (\w) is the larg", said):
        assert all(shares[largest[1]] >= shares[change] for change in best)


@given(DESIGNS)
def test_a_change_is_never_more_than_was_shown(cells):
    points = design(**cells)
    for verdict in judge(points, CHANGES):
        if verdict.word == "contributes":
            base, alone = points[frozenset()], points.get(frozenset(verdict.change))
            sets = [units for units in points if verdict.change in units and points[units].measured]
            assert any(helps(base, points[units]) for units in sets)
            assert alone is None or helps(base, alone)
