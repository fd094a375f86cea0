"""What is said of an export that ran its own way beside the reference that ran its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_way import (
    ALONE,
    DECODES,
    DIFFERS,
    NEVER_STOPS,
    NO_TEMPLATE,
    NOT_KNOWN,
    NOT_RUN,
    OTHER_IDS,
    SAME,
    STOPS_EARLY,
    STOPS_LATE,
    Generation,
    chosen,
    judge,
    limit_of,
    of_reference,
    save,
)

RIGHT = Generation(
    prompt="p", ids=[2, 8, 9], tokens=[11, 12, 13, 1], text="a b c", stopped=True, limit=40, end_tokens=[1, 5]
)
GOES_ON = replace(RIGHT, stopped=False, end_tokens=[7])


@pytest.mark.parametrize(
    ("own", "outcome", "says"),
    [
        (RIGHT, SAME, "same text, stops"),
        (
            replace(GOES_ON, tokens=[11, 12, 13, 1, *[11] * 36]), NEVER_STOPS,
            "does not stop within 40 tokens (it goes past the end token 1) where the reference stops after 4 tokens",
        ),
        (
            replace(RIGHT, tokens=[11, 12, 1], text="a b"), STOPS_EARLY,
            "stops after 3 tokens where the reference stops after 4 tokens",
        ),
        (
            replace(RIGHT, tokens=[11, 12, 13, 1, 11, 7], end_tokens=[7]), STOPS_LATE,
            "stops after 6 tokens where the reference stops after 4 tokens",
        ),
        (replace(RIGHT, tokens=[11, 14, 13, 1], text="a d c"), DIFFERS, "another text from token 1 on"),
        (
            replace(RIGHT, text="aĠbĠc"), DECODES,
            "the same tokens, which its own tokenizer decodes to another text",
        ),
        (replace(RIGHT, ids=[8, 9]), OTHER_IDS, "2 prompt ids instead of 3 (no 2 at the start)"),
        (replace(RIGHT, ids=[2, 2, 8, 9]), OTHER_IDS, "4 prompt ids instead of 3 (one more, 2, at the start)"),
        (
            replace(RIGHT, ids=[2, 7, 9]), OTHER_IDS,
            "3 prompt ids instead of 3 (from place 1 on [7, 9] and not [8, 9])",
        ),
        (
            replace(RIGHT, template_error="Empty"), NO_TEMPLATE, "no chat template of its own (Empty)",
        ),
        (Generation(NOT_RUN, "no tokenizer"), NOT_RUN, "not run: no tokenizer"),
        (Generation(NOT_KNOWN, "it crashed"), NOT_KNOWN, "not known: it crashed"),
    ],
)  # fmt: skip
def test_each_outcome_in_words(own, outcome, says):
    assert judge(own, RIGHT, False) == {"outcome": outcome, "says": says, "explained": False}


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ("a b", "a b\N{REPLACEMENT CHARACTER}c", "same tokens (bytes that are no text), stops"),
        (" a b\nc", "a b c", "same text, stops"),
    ],
)
def test_bytes_that_are_no_text_and_white_space_are_no_other_text(ours, theirs, says):
    found = judge(replace(RIGHT, text=ours), replace(RIGHT, text=theirs), False)
    assert (found["outcome"], found["says"]) == (SAME, says)


def test_two_that_both_go_on_are_the_same_as_far_as_they_went():
    long = replace(GOES_ON, tokens=[11] * 40)
    assert judge(long, long, False)["says"] == "same text, neither stops within 40 tokens"


def test_what_the_raw_logits_show_too_is_no_finding_of_its_own():
    other = replace(RIGHT, tokens=[11, 14, 13, 1], text="a d c")
    assert judge(other, RIGHT, True)["explained"] and not judge(other, RIGHT, False)["explained"]
    # Past an end token no text would stop.
    past = replace(GOES_ON, tokens=[11, 14, 1, *[14] * 37])
    found = judge(past, RIGHT, True)
    assert (found["outcome"], found["explained"]) == (NEVER_STOPS, False)
    without = replace(GOES_ON, tokens=[14] * 40)
    assert judge(without, RIGHT, True)["explained"]


def test_where_there_is_nothing_to_compare_with_that_is_said():
    assert judge(RIGHT, None, None)["outcome"] == ALONE
    unknown = judge(RIGHT, Generation(NOT_KNOWN, "generate() failed"), None)
    assert unknown["outcome"] == NOT_KNOWN and "the reference's own generation: generate() failed" in unknown["says"]


def test_sampling_that_was_turned_off_is_told():
    assert judge(replace(RIGHT, sampled=True), RIGHT, False)["says"].endswith("(sampling turned off on both sides)")


def test_a_context_that_ends_first_is_no_export_that_never_stops():
    short = replace(GOES_ON, tokens=[11, 12], limit=2)
    found = judge(short, RIGHT, False)
    assert found["outcome"] == STOPS_EARLY and "the export's context has 2 tokens left" in found["says"]


GENERATIONS = st.builds(
    Generation,
    prompt=st.just("p"), ids=st.lists(st.integers(0, 3), max_size=3), tokens=st.lists(st.integers(0, 3), max_size=5),
    text=st.just(""), stopped=st.booleans(), limit=st.integers(5, 6),
    end_tokens=st.lists(st.integers(0, 3), max_size=2),
)  # fmt: skip


@given(own=GENERATIONS, reference=GENERATIONS)
def test_the_same_is_said_only_of_the_same(own, reference):
    if judge(own, reference, False)["outcome"] != SAME:
        return
    shared = min(len(own.body), len(reference.body))
    assert own.ids == reference.ids and own.body[:shared] == reference.body[:shared]
    assert own.body == reference.body or not reference.stopped
    assert own.stopped or not reference.stopped


@given(own=GENERATIONS)
def test_each_is_the_same_as_itself(own):
    assert judge(own, own, False)["outcome"] == SAME


def test_the_first_prompt_that_is_a_text_is_run():
    assert chosen([{"user_text": ""}, {"user_text": "b"}, {"user_text": "c"}]) == 1
    assert chosen([{"user_text": ""}]) is None


@pytest.mark.parametrize(
    ("asked", "prompt", "context", "limit"),
    [(20, 10, 1024, 40), (7, 10, 1024, 32), (200, 10, None, 232), (20, 1000, 1024, 24), (20, 1024, 1024, 0)],
)
def test_the_limit_is_well_beyond_what_was_asked_for_and_within_the_context(asked, prompt, context, limit):
    assert limit_of(asked, prompt, context) == limit


def test_a_generation_comes_back_from_its_file(tmp_path):
    save(RIGHT, str(tmp_path))
    assert of_reference(str(tmp_path)) == RIGHT and of_reference(None) is None
    (tmp_path / "own_way.json").unlink()
    assert of_reference(str(tmp_path)).state == NOT_KNOWN
