"""Whole words, as Unicode has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_words import boundary, normal, places

WORDS = st.sampled_from(["Paris", "4", "42", "café", "تهران", "Москва", "naïve_name", "巴黎", "กรุงเทพ", "パリ", "서울"])
# Neither of a word nor of a number, on either side of one.
APART = st.text(st.sampled_from(' \t\n!?()[]{}"«»“”。、！？؟؛…*#<>|=~'), min_size=1, max_size=4)
SPACED = st.sampled_from(["Paris", "café", "Москва", "naïve_name", "Ελλάδα", "42"])
LETTERS = st.text(st.sampled_from("aZé4ж_Ω٤"), min_size=1, max_size=4)


@given(APART, WORDS, APART)
def test_a_word_between_characters_of_no_word_is_found(before, word, after):
    text, wanted = normal(before + word + after), normal(word)
    (place,) = places(wanted, text)
    assert place.whole is True and text[place.start : place.end] == wanted


@given(LETTERS, SPACED)
def test_a_word_with_letters_or_digits_before_or_behind_it_is_not_one(letters, word):
    for text in (letters + word, word + letters, letters + word + letters):
        assert not any(place.whole for place in places(normal(word), normal(text)))


@given(st.text(max_size=8), st.text(max_size=8))
def test_every_place_is_one_and_its_ends_decide(before, after):
    wanted = normal("Paris")
    text = normal(f"{before}Paris{after}")
    for place in places(wanted, text):
        assert text[place.start : place.end] == wanted
        ends = {boundary(text, place.start), boundary(text, place.end)}
        assert place.whole is (False if False in ends else None if None in ends else True), ends


@given(st.text(max_size=12), st.integers(0, 12))
def test_a_boundary_is_known_or_not_known_of_any_text(text, at):
    assert boundary(text, min(at, len(text))) in (True, False, None)
    assert boundary(text, 0) is True and boundary(text, len(text)) is True


@pytest.mark.parametrize(
    ("word", "text", "whole"),
    [
        ("x", "x\u0304 + 1", False),  # another letter
        ("تهران", "تهران\u064e", None),  # the same with its vowel mark
        ("تهران", "تهران\u200f.", True),  # a mark of direction is no part of a word
        ("תל", "ותל", None),
        ("Paris", "it is _Paris_", None),  # emphasis in markdown, or a name
        ("4", "4km", None),
        ("4", "4 000 legs", None),  # or one number, its thousands apart
        ("500", "1\u202f500", None),
        ("4", "4 5", True),
        ("4", "4 0000", True),
        ("1990", "1990 500", True),
        ("5", "5\ufe0f\u20e3", True),  # the key of 5
        ("❤", "❤\ufe0f!", True),
        ("4", "۴", True),
        ("14", "１４", True),
        ("isn't", "isn’t", True),
        ("ایران یک", "ايران يك", True),  # with Arabic's yeh and kaf
        ("Paris.", "Paris.Two", True),
        ("3.", "3.5", False),
        ("4", "4/5", None),
        ("4", "4:30", None),
        ("4", "1'400", False),
        ("4", "٣٫4", False),
        ("4", "4½", False),
        ("ab", "ab.cd", None),
        ("ab", "ab.", True),
        ("ab", "ab-cd", True),
        ("ab", "中ab文", True),
        ("ab", "カabカ", True),
        ("กรุงเทพ", "กรุงเทพ์", False),  # a mark on its last letter
        ("a b", "a \n\tb", True),
    ],
)
def test_boundaries(word, text, whole):
    (place,) = places(normal(word), normal(text))
    assert place.whole is whole


def test_case_and_composition_make_no_other_word():
    assert normal("CAFE\u0301") == normal("café") and normal("STRASSE") == normal("straße")
    assert places("", "text") == places("  ", "text") == []
