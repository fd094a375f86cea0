"""Whether a continuation makes sense by itself: a match on nonsense proves nothing."""

from __future__ import annotations

import re

# Turn markers as chat models write them: <start_of_turn>, <|im_end|>, <|turn>, <turn|>, <｜User｜>, [/INST].
TURN_MARKER = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]?>|<[\w]{1,40}[|｜]>|<(?:start|end)_of_turn>")
MARKER = re.compile(TURN_MARKER.pattern + r"|\[/?INST\]")
LOOP_REPEATS = 3


def outcome(entry: dict, expect: str | None) -> str:
    """A continuation in a word.

    entry: {"tokens", "ended", "text", "raw_text"}; expect: text that a sensible
    answer contains, or None. "markers" (it writes turn markers), "empty" (or it
    stops at once), "answer" or "wrong" by `expect`, "loop" (its tail repeats
    and it never ended, without the answer); "text" where nothing was expected.
    """
    text = entry["text"].strip()
    if MARKER.search(entry["raw_text"]):
        return "markers"
    if not text:
        return "empty"
    if expect is not None and normal(expect) in normal(text):
        return "answer"
    if not entry["ended"] and loops(entry["tokens"]):
        return "loop"
    return "text" if expect is None else "wrong"


def sensible(word: str, suspect: bool = False) -> bool | None:
    """What an outcome says of the answer: True, False, or None where nothing was expected.

    suspect: the prompt itself has unknown tokens or markers taken apart; what
    is said to it is no answer to what was meant.
    """
    if suspect:
        return False
    return None if word == "text" else word == "answer"


def loops(tokens: list[int]) -> bool:
    """Whether the tail is one short sequence, at least LOOP_REPEATS times over.

    A single token must fill at least six places: shorter runs occur in plain text.
    """
    for period in range(1, len(tokens) // LOOP_REPEATS + 1):
        repeats = max(LOOP_REPEATS, 6 if period == 1 else 0)
        needed = period * repeats
        if needed <= len(tokens) and tokens[-needed:] == tokens[-period:] * repeats:
            return True
    return False


def normal(text: str) -> str:
    """Case and white space do not make an answer wrong."""
    return " ".join(text.casefold().split())
