"""Whether what a text says where an expected text stands may be its denial: "It is not Paris" holds "Paris".

A word of negation in the same sentence, outside the expected text, makes a place undecided, whatever it negates; so
does a question, and a next sentence that begins with such a word ("Paris. No, Lyon."). The list is short, and a
language that is not in it may deny unseen: only in a script that no listed language is written in is every longer
sentence undecided.
"""

from __future__ import annotations

import re
import unicodedata

from whole_words import Place, normal, places

WORDS = {
    "English": "not no never neither nor cannot none nothing nobody wrong false incorrect untrue dont isnt wasnt",
    "Chinese": "不 没 沒 并非 並非",
    "Persian": "نیست نیستند نبود نه نخیر خیر هرگز",
    "Arabic": "ليس ليست لا لم لن",
    "German": "nicht kein keine keinen nie niemals",
    "French": "pas jamais aucun aucune non",
    "Spanish and Portuguese": "nunca tampoco não jamás",
    "Dutch and Scandinavian": "niet geen inte ikke",
    "Russian": "не нет",
    "Finnish, Hungarian, Polish, Turkish": "ei nem nie değil",
    "Vietnamese and Indonesian": "không bukan tidak",
    "Japanese": "ない ません なく",
    "Thai": "ไม่",
    "Hindi": "नहीं",
    "Hebrew": "לא אין",
    "Greek": "δεν όχι",
}
NEGATIONS = [normal(word) for words in WORDS.values() for word in words.split()]
# English contractions, Persian's and Korean's forms, which are parts of words.
PARTS = re.compile(r"n['’]t(?!\w)|(?<!\w)ن(?:می|مي)|아니|아닙|아닌|않|없")
SCRIPTS = {
    "LATIN", "CJK", "HIRAGANA", "KATAKANA", "ARABIC", "CYRILLIC", "HANGUL", "THAI", "DEVANAGARI", "HEBREW", "GREEK",
}  # fmt: skip
# A full stop ends a sentence before white space, and not after one or two letters (St., e.g.); a line alone does not.
END = re.compile(r"(?<!\b[^\W\d_])(?<!\b[^\W\d_]{2})\.(?=[\s\"'”’»)\]]|$)|[!?。！？؟۔।…]|\n\s*\n")
QUESTION = "?？؟"


def undecided(text: str, place: Place) -> bool:
    """Whether the sentence around a place of the expected text negates, asks, or is in a script without a list."""
    start, end = sentence(text, place)
    around = [text[start : place.start], text[place.end : end]]
    if any(PARTS.search(part) or any(whole(word, part) for word in NEGATIONS) for part in around):
        return True
    after = text[end:].lstrip(" \t\r\n\"'”’»)]*_—–-")
    if any(found.start == 0 and found.whole for word in NEGATIONS for found in places(word, after)):
        return True
    asks = text[end - 1 : end] in tuple(QUESTION) and end > place.end
    return asks or any(script(c) not in SCRIPTS for part in around for c in part if c.isalpha())


def sentence(text: str, place: Place) -> tuple[int, int]:
    """Where the sentence around a place begins and ends; one that runs to the end of the text ends there."""
    start = max((hit.end() for hit in END.finditer(text) if hit.end() <= place.start), default=0)
    if closes(text, place):
        return start, place.end
    return start, next((hit.end() for hit in END.finditer(text) if hit.start() >= place.end), len(text))


def finished(text: str, place: Place) -> bool:
    """Whether the sentence around a place has its end in the text: what has been cut may go on with a denial."""
    after = [hit.end() for hit in END.finditer(text) if hit.start() >= place.end]
    number = text.endswith(".") and text[-2:-1].isdigit()  # its other digits may be what was cut
    return closes(text, place) or any(end < len(text) or not number for end in after)


def closes(text: str, place: Place) -> bool:
    """Whether the expected text has the end of a sentence as its own last character."""
    return any(hit.end() == place.end for hit in END.finditer(text))


def whole(word: str, text: str) -> bool:
    return any(place.whole for place in places(word, text))


def script(letter: str) -> str:
    return unicodedata.name(letter, "?").replace("FULLWIDTH ", "").split()[0]
