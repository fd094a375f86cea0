"""Whether a text holds another as whole words, by Unicode's word boundaries (UAX #29), with what they leave open named.

Letters, digits and connectors that touch are one word. Chinese, Hiragana, Thai and their like have no such boundaries:
there a sequence of characters is what is looked for, and Latin letters and digits beside it still end where they end.
Where another word may be attached (a particle of Korean, a prefix of Arabic, an ending after a joiner, an apostrophe, a
full stop without a space, a sign before a number, an underscore, a unit behind a number) a boundary is None: not known.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

JOINERS = "\u200c\u200d"
NO_FORMAT = "\u200b"  # the zero-width space separates, though its category is that of format characters
# Between letters these may be inside a word (can't, U.S) or a missing space; UAX #29 joins, and here it is not known.
MID_LETTER = ".'’·․‧﹒＇．"
MID_NUMBER = ".,;'’٬⁄﹐．，"  # between digits they make one number of two
NEAR_NUMBER = ":/-−–"  # and these perhaps
SIGNS = "-−."  # before a number: another number
SPACES = " \u00a0\u2009\u202f"  # between groups of three digits: perhaps one number
GROUPS = re.compile(r"(?<!\d)\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})*$"), re.compile(r"\d{3}(?!\d)")
# What only chooses how the character before it is drawn, a key's frame around a digit among it.
DRAWN = "\ufe0e\ufe0f\u20e3"
SAME = str.maketrans({"’": "'", "ي": "ی", "ك": "ک"})  # Persian text is written with Arabic's yeh and kaf too
# Scripts whose letters write one word without what UAX #29 calls a boundary (Line_Break SA, and Japanese and Chinese).
SEQUENCES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0xA9E0, 0xA9FF),
    (0xAA60, 0xAADF), (0x3005, 0x3007), (0x3021, 0x3029), (0x3041, 0x309F), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0x11700, 0x1174F), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip
# Arabic, Hebrew, Syriac and Hangul attach small words to others.
ATTACHING = ((0x0590, 0x08FF), (0xFB1D, 0xFDFF), (0xFE70, 0xFEFF), (0x1100, 0x11FF), (0x3130, 0x318F), (0xAC00, 0xD7FF))
KATAKANA = ((0x3031, 0x3035), (0x309B, 0x309C), (0x30A0, 0x30FF), (0x31F0, 0x31FF), (0x32D0, 0x32FE), (0xFF66, 0xFF9F))


@dataclass(frozen=True)
class Place:
    """Where a text was found. whole: True as whole words, False inside others, None where that is not known."""

    start: int
    end: int
    whole: bool | None


def normal(text: str) -> str:
    """Case, the way in which a letter is composed, and a script's own decimal digits do not make an answer wrong."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).translate(SAME)
    return "".join(str(unicodedata.decimal(c)) if unicodedata.category(c) == "Nd" else c for c in folded)


def places(wanted: str, text: str) -> list[Place]:
    """Every place of `wanted` in `text`, both `normal`; any white space stands for any other."""
    words = wanted.split()
    if not words:
        return []
    pattern = "(?=(" + r"\s+".join(map(re.escape, words)) + "))"
    spans = [hit.span(1) for hit in re.finditer(pattern, text)]
    return [Place(start, end, both(edge(text, start, start), edge(text, end, end - 1))) for start, end in spans]


def edge(text: str, at: int, own: int) -> bool | None:
    """Whether what was found ends at `at`; a mark of its own, at `own`, ends what might go on after a letter."""
    known = boundary(text, at)
    return True if known is None and kind(text[own]) == "other" else known


def both(one: bool | None, two: bool | None) -> bool | None:
    """Both, as far as that is known."""
    return False if False in (one, two) else None if None in (one, two) else True


def boundary(text: str, at: int) -> bool | None:
    """Whether a word may end or begin between the characters before and at `at`."""
    while at < len(text) and is_format(text[at]):
        at += 1
    before = base(text, at - 1)
    if at == len(text) or before < 0:
        return True
    if extends(text[at]):  # a mark belongs to its letter; vowel marks of Arabic and Hebrew may be left out of a word
        return None if attaches(text[before]) else False
    one, two = text[before], text[at]
    if joined(kind(one), kind(two)):
        mixed = kind(one) != kind(two)  # _Paris_ in markdown, 4km
        return None if mixed or (attaches(one) and attaches(two)) else False
    if grouped(text, at if kind(two) == "other" else before):
        return None
    if kind(two) == "other":
        return across(one, two, text[at + 1 : at + 2])
    if kind(one) == "other":
        left = text[base(text, before - 1)] if base(text, before - 1) >= 0 else ""
        signed = one in SIGNS and kind(two) == "number" and kind(left) == "other"
        return None if signed else across(left, one, two)
    return True


def grouped(text: str, at: int) -> bool:
    """Whether what stands at `at` is a space that may part thousands in one number, as in 4 000."""
    return text[at] in SPACES and bool(GROUPS[0].search(text[:at]) and GROUPS[1].match(text, at + 1))


def base(text: str, at: int) -> int:
    """The place of the character that carries what stands at `at`; -1 where there is none."""
    while at >= 0 and (is_format(text[at]) or extends(text[at])):
        at -= 1
    return at


def across(left: str, mark: str, right: str) -> bool | None:
    """Whether a mark between two characters (or none, "") separates them."""
    kinds = {kind(left), kind(right)}
    if kinds == {"number"}:
        return False if mark in MID_NUMBER else None if mark in NEAR_NUMBER else True
    return None if kinds == {"letter"} and mark in MID_LETTER else True


def joined(one: str, two: str) -> bool:
    """Whether characters of these kinds are in one word where they touch."""
    kinds = {one, two}
    return kinds <= {"letter", "number", "connector"} or kinds <= {"katakana", "connector"}


def kind(character: str) -> str:
    """letter, number, connector (_), katakana, alone (a script without spaces), or other; "" is other."""
    category = unicodedata.category(character) if character else "Zs"
    if category in ("Nd", "No", "Pc") or character == "٫":
        return "connector" if category == "Pc" else "number"
    if within(character, KATAKANA):
        return "katakana"
    if category[0] != "L" and category not in ("Nl", "Mn", "Mc", "Me"):
        return "other"
    return "alone" if within(character, SEQUENCES) else "letter"


def within(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return bool(character) and any(low <= ord(character) <= high for low, high in ranges)


def attaches(character: str) -> bool:
    return within(character, ATTACHING)


def extends(character: str) -> bool:
    """A mark on the character before it, or what joins it to the next."""
    if character in DRAWN:
        return False
    return character in JOINERS or unicodedata.category(character) in ("Mn", "Mc", "Me")


def is_format(character: str) -> bool:
    """Invisible, such as a mark of direction: it neither joins nor separates."""
    return character in DRAWN or (unicodedata.category(character) == "Cf" and character not in JOINERS + NO_FORMAT)
