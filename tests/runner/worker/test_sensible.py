"""What a continuation is, in a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensible import MARKER, OUTCOMES, TURN_MARKER, Expected, loops, outcome, sensible

from db import models


def entry(text: str, tokens=(1, 2, 3), ended=True, raw=None) -> dict:
    raw = text if raw is None else raw
    return {"name": "p", "text": text, "raw_text": raw, "tokens": list(tokens), "ended": ended}


def word_of(found: dict, expect: str | None, *reject: str, form: dict | None = None) -> str:
    return outcome(found, Expected({"p": expect}, {"p": list(reject)}, form))


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
    assert word_of(found, expect) == word


def cut(text: str) -> dict:
    return entry(text, ended=False)


@pytest.mark.parametrize(
    ("text", "expect", "word"),
    [
        ("The capital of", "The capital of France is Paris.", "cut"),
        ("London is", "Paris", "cut"),
        ("The capital is Paris", "Paris", "cut"),  # it may become Parisian, or go on with a denial
        ("Paris is", "Paris", "cut"),
        ("Paris is big. It", "Paris", "answer"),
        ("The capital of France is Paris.", "The capital of France is Paris.", "answer"),
        ("It is 3.", "3", "cut"),  # or 3.5
        ("It is not Paris. It", "Paris", "text"),
        ("", "Paris", "cut"),
        ("London", None, "text"),
        ("پایتخت ایران تهران", "تهران", "cut"),
    ],
)
def test_what_the_limit_cut_is_neither_right_nor_wrong_until_it_shows(text, expect, word):
    assert word_of(cut(text), expect) == word


@pytest.mark.parametrize(
    ("text", "expect", "word"),
    [
        ("A dog has 14 legs.", "4", "wrong"),
        ("A dog has 4 legs.", "4", "answer"),
        ("4条腿", "4", "answer"),
        ("14条腿", "4", "wrong"),
        ("It is 4.5 or 1,400.", "4", "wrong"),
        ("It is -4.", "4", "text"),
        ("It is 3-4.", "4", "text"),
        ("It is Paris. No, that is wrong.", "Paris", "text"),
        ("پایتخت تهران است. نه، شیراز.", "تهران", "text"),
        ("It is Paris. Nobel lived there.", "Paris", "answer"),
        ("It has 4 000 legs.", "4", "text"),
        ("The Parisian left.", "Paris", "wrong"),
        ("Paris's river.", "Paris", "text"),
        ("The end.Paris.", "Paris", "text"),
        ("Cafe\u0301 au lait", "café", "answer"),
        ("Cafe\u0301 au lait", "cafe", "wrong"),
        ("中文是机器学习。", "机器学习", "answer"),
        ("กรุงเทพมหานครสวย", "กรุงเทพ", "answer"),
        ("پایتخت تهران است.", "تهران", "answer"),
        ("پایتخت تهران\u200cها است.", "تهران", "text"),
        ("تهرانی", "تهران", "text"),
        ("파리입니다", "파리", "text"),
        ("파리 입니다", "파리", "answer"),
        ("パリです", "パリ", "answer"),
        ("パリス", "パリ", "wrong"),
        ("It is Σίσυφος", "ΣΊΣΥΦΟΣ", "answer"),
    ],
)
def test_expectations_match_whole_words(text, expect, word):
    assert word_of(entry(text), expect) == word


@pytest.mark.parametrize(
    ("text", "expect", "word"),
    [
        ("It is not Paris.", "Paris", "text"),
        ("It isn't Paris.", "Paris", "text"),
        ("It isn’t Paris.", "Paris", "text"),
        ("It is no longer Paris.", "Paris", "text"),
        ("Paris is not the capital.", "Paris", "text"),
        ("Paris, not London.", "Paris", "text"),  # which of the two is denied is not decided
        ("It is not London. It is Paris.", "Paris", "answer"),
        ("It is Paris. It is not Paris.", "Paris", "text"),
        ("It is not St. Paris.", "Paris", "text"),
        ("It is not\nParis.", "Paris", "text"),
        ("Is it Paris?", "Paris", "text"),
        ("It is not possible.", "not possible", "answer"),
        ("knot Paris", "Paris", "answer"),
        ("首都不是巴黎。", "巴黎", "text"),
        ("首都是巴黎。", "巴黎", "answer"),
        ("پایتخت ایران تهران نیست.", "تهران", "text"),
        ("نه، تهران است.", "تهران", "text"),
        ("در خانه تهران است.", "تهران", "answer"),
        ("Es ist nicht Paris.", "Paris", "text"),
        ("Это не Париж.", "Париж", "text"),
        ("არ არის Paris", "Paris", "text"),  # a script of which no negation is known
        ("Paris", "Paris", "answer"),
    ],
)
def test_what_may_be_a_denial_is_not_decided(text, expect, word):
    assert word_of(entry(text), expect) == word


@given(st.text(max_size=30))
def test_what_the_limit_cut_is_never_wrong_without_a_rejected_text(text):
    assert word_of(cut(text), "Paris") in ("cut", "answer", "text", "markers")


@given(st.text(max_size=30), st.booleans())
def test_an_answer_has_the_expected_text_and_denies_it_nowhere(text, ended):
    assert word_of(entry(f"{text} not Paris", ended=ended), "Paris") != "answer"
    if word_of(entry(text, ended=ended), "Paris") == "answer":
        assert "paris" in text.casefold()


def test_a_rejected_text_is_wrong_whatever_else_it_has():
    assert word_of(entry("It is not Paris."), "Paris", "not Paris") == "wrong"
    assert word_of(entry("No, it is Paris."), "Paris", "No,") == "wrong"
    assert word_of(entry("It is Paris."), "Paris", "not Paris") == "answer"
    assert word_of(entry("It is not Parisian."), "Paris", "not Paris") == "wrong"
    assert word_of(entry("London"), None, "London") == "wrong"
    assert word_of(entry("Londoner"), None, "London") == "text"
    assert word_of(cut("London is"), "Paris", "London") == "wrong"
    assert word_of(cut("London"), "Paris", "London") == "cut"  # Londonderry


HARMONY = {"channels": True, "pairs": [], "around": [], "special": ["<|end|>"], "opening": {}}
GEMMA4 = {"channels": False, "pairs": [["<|channel>", "<channel|>"]], "around": [], "special": [], "opening": {}}
QWEN3 = {"channels": False, "pairs": [["<think>", "</think>"]], "around": [], "special": [], "opening": {}}
OPENED = QWEN3 | {"opening": {"p": "<think>"}}
ANALYSIS = "<|channel|>analysis<|message|>Not London.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    ("form", "raw", "ended", "word"),
    [
        (HARMONY, ANALYSIS + "<|channel|>final<|message|>It is Paris.", True, "answer"),
        (HARMONY, "<|channel|>final<|message|>It is London.", True, "wrong"),
        (HARMONY, "<|channel|>analysis<|message|>Is it Paris. Yes. So", False, "cut"),
        (HARMONY, ANALYSIS, False, "cut"),
        (HARMONY, ANALYSIS + "<|channel|>fin", False, "cut"),
        (HARMONY, "<|channel|>analysis<|message|>It is Paris.", True, "empty"),
        (HARMONY, ANALYSIS + "<|channel|>final<|message|>Paris<|start|>user", True, "markers"),
        (HARMONY, "It is Paris.", True, "answer"),
        (GEMMA4, "<|channel>thought\nLondon?\n<channel|>It is Paris.", True, "answer"),
        (GEMMA4, "<|channel>thought\nIt is Paris. And", False, "cut"),
        (GEMMA4, "<|channel>thought\n<channel|>London", True, "wrong"),
        (GEMMA4, "<|channel>thought\n<channel|>Paris<|turn>user", True, "markers"),
        (QWEN3, "<think>\nNot London. Paris?\n</think>\n\nParis.", True, "answer"),
        (QWEN3, "<think>\nIt is Paris. So", False, "cut"),
        (QWEN3, "<think>\nIt is Paris.", True, "empty"),
        (OPENED, "It is Paris. So", False, "cut"),
        (OPENED, "It is London.\n</think>\nIt is Paris.", True, "answer"),
        (QWEN3, "It is London.\n</think>\nIt is Paris.", True, "answer"),
        (None, ANALYSIS + "<|channel|>final<|message|>It is Paris.", True, "markers"),
        (None, "<|channel>thought\n<channel|>Paris", True, "markers"),
        (QWEN3, ANALYSIS + "<|channel|>final<|message|>It is Paris.", True, "markers"),
    ],
)
def test_the_answer_in_a_checkpoints_own_format_is_what_is_judged(form, raw, ended, word):
    assert word_of(entry(raw, raw=raw, ended=ended), "Paris", form=form) == word


def test_thinking_that_repeats_is_a_loop_and_without_an_expectation_it_is_text():
    stuck = entry("", tokens=[5, 6] * 9, ended=False, raw="<think>go go go")
    assert word_of(stuck, "Paris", form=QWEN3) == "loop"
    assert word_of(entry("", ended=False, raw="<think>so"), None, form=QWEN3) == "text"


def test_the_words_are_those_of_the_database():
    assert tuple(OUTCOMES) == tuple(models.TEXT_OUTCOMES)


def test_sensible_says_nothing_where_nothing_was_expected():
    assert sensible("answer") is True
    assert sensible("text") is sensible("cut") is None
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
