"""What a continuation is, in a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensible import MARKER, TURN_MARKER, loops, outcome, sensible


def entry(text: str, tokens=(1, 2, 3), ended=True, raw=None) -> dict:
    return {"text": text, "raw_text": text if raw is None else raw, "tokens": list(tokens), "ended": ended}


@pytest.mark.parametrize(
    ("found", "expect", "word"),
    [
        (entry("The capital is Paris."), "Paris", "answer"),
        (entry("the capital\n is  paris."), "The capital is Paris.", "answer"),
        (entry("London"), "Paris", "wrong"),
        (entry("London"), None, "text"),
        (entry(" \n"), "Paris", "empty"),
        (entry("", raw=""), None, "empty"),
        (entry("", raw="<start_of_turn>model\n<start_of_turn>"), "Paris", "markers"),
        (entry("Paris", raw="Paris<|im_end|>"), "Paris", "markers"),
        (entry("model", raw="<|turn>model"), None, "markers"),
        (entry("Paris", raw="Paris<turn|>"), "Paris", "markers"),
        (entry("Paris", raw="Paris<end_of_turn>"), "Paris", "markers"),
        (entry("Paris", raw="<｜User｜>Paris"), "Paris", "markers"),
        (entry("Paris", raw="<｜Assistant｜>Paris"), None, "markers"),
        (entry("Paris", raw="[/INST] Paris"), "Paris", "markers"),
        (entry("a < b | c > d"), None, "text"),
        (entry("<b>Paris</b> <of> <turn> |turn|"), "Paris", "answer"),
        (entry("go go go", tokens=[5, 6] * 9, ended=False), None, "loop"),
        (entry("go go go", tokens=[5, 6] * 9, ended=True), None, "text"),
        (entry("Paris Paris Paris", tokens=[5, 6] * 9, ended=False), "Paris", "answer"),
        (entry("آسمان آبی است."), "آسمان آبی است.", "answer"),
    ],
)
def test_outcome(found, expect, word):
    assert outcome(found, expect) == word


def test_sensible_says_nothing_where_nothing_was_expected():
    assert sensible("answer") is True
    assert sensible("text") is None
    assert not any(sensible(word) for word in ("wrong", "empty", "loop", "markers"))


def test_what_is_said_to_a_suspect_prompt_is_no_answer():
    assert not any(sensible(word, suspect=True) for word in ("answer", "text", "wrong", "empty", "loop", "markers"))
    assert sensible("text", suspect=True) is False
    assert sensible("answer", suspect=False) is True


@pytest.mark.parametrize(
    "marker",
    ["<|turn>", "<turn|>", "<｜User｜>", "<｜begin▁of▁sentence｜>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"],
)
def test_a_turn_marker_is_found_whole(marker):
    assert TURN_MARKER.findall(f"a{marker}b{marker}\n") == [marker, marker]
    assert TURN_MARKER.fullmatch(marker) and MARKER.search(marker)


@pytest.mark.parametrize("text", ["<a b|>", "<|a b|>", "<turn>", "< |turn>", "<||>", "start_of_turn", "a <b> c", "|>"])
def test_other_text_is_no_marker(text):
    assert not MARKER.search(text)


def test_instructions_are_markers_in_an_answer_and_plain_text_in_a_prompt():
    assert MARKER.search("[INST]") and not TURN_MARKER.search("[INST] hello [/INST]")


@given(st.lists(st.integers(0, 9), min_size=2, max_size=4, unique=True), st.integers(3, 6))
def test_a_repeated_tail_is_a_loop(period, repeats):
    assert loops(period * repeats)
    assert loops([42, *period * repeats])


@given(st.lists(st.integers(), unique=True, max_size=30))
def test_tokens_that_never_repeat_are_no_loop(tokens):
    assert not loops(tokens)


def test_a_short_run_of_one_token_is_no_loop():
    assert not loops([1, 7, 7, 7])
    assert loops([1] + [7] * 6)
