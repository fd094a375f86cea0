"""Whether a continuation makes sense by itself: a match on nonsense proves nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import answer_format
import denial
from whole_words import Place, kind, normal, places

# Turn markers as chat models write them: <start_of_turn>, <|im_end|>, <|turn>, <turn|>, <｜User｜>, [/INST].
TURN_MARKER = re.compile(r"<[|｜][^<>|｜\s]{1,40}[|｜]?>|<[\w]{1,40}[|｜]>|<(?:start|end)_of_turn>")
MARKER = re.compile(TURN_MARKER.pattern + r"|\[/?INST\]")
LOOP_REPEATS = 3

# Of a continuation in a word; the same words are in `db.models.TEXT_OUTCOMES`.
ANSWER, TEXT, CUT, WRONG, EMPTY, LOOP, MARKERS = OUTCOMES = (
    "answer", "text", "cut", "wrong", "empty", "loop", "markers",
)  # fmt: skip
# Of these nothing is known: neither right nor wrong.
OPEN = (TEXT, CUT)


@dataclass(frozen=True)
class Expected:
    """What is wanted of answers. answers: {prompt: text that a sensible answer contains, or None}; rejects: {prompt:
    texts that none contains}; form: the checkpoint's own format, as `answer_format.known` has it."""

    answers: dict[str, str | None] = field(default_factory=dict)
    rejects: dict[str, list[str]] = field(default_factory=dict)
    form: dict | None = None


def outcome(entry: dict, expected: Expected) -> str:
    """A continuation in a word of `OUTCOMES`.

    entry: {"name", "tokens", "ended", "text", "raw_text"}. "markers": it writes
    turn markers that are not of its checkpoint's own format. "wrong": it has a
    text that is rejected, or ends without the expected one. "answer": it has
    it, as whole words, in a sentence that denies nothing. "text": nothing was
    expected, or whether it says so cannot be decided. "empty": it ends without
    an answer. "loop": its tail repeats, and it never ended. "cut": the limit
    came before its end, and so far it is neither right nor wrong.
    """
    expect, rejects = expected.answers.get(entry["name"]), expected.rejects.get(entry["name"], [])
    found = answer_format.parts(entry["raw_text"], expected.form, entry["name"])
    shown = entry["text"] if found is None else answer_format.plain(found.text, expected.form)
    if any(MARKER.search(part) for part in ((found.text, *found.thoughts) if found else (entry["raw_text"],))):
        return MARKERS
    text, ended = normal(shown.strip()), entry["ended"]
    stuck = not ended and loops(entry["tokens"])
    if found and found.thinking and not ended:
        return LOOP if stuck else CUT if expect is not None else TEXT
    if not text:
        return EMPTY if ended or stuck or expect is None else CUT
    refused = [place.whole for reject in rejects for place in certain(reject, text, ended)]
    if True in refused:
        return WRONG
    if expect is None:
        return LOOP if stuck else TEXT
    return judged(text, certain(expect, text, ended), ended, stuck, None in refused)


def judged(text: str, found: list[Place], ended: bool, stuck: bool, doubted: bool) -> str:
    """What the places of the expected text in a continuation make of it. doubted: it may hold a rejected text."""
    stated = [place for place in found if place.whole]
    if stated:
        if doubted or any(denial.undecided(text, place) for place in stated):
            return TEXT
        # A sentence that the limit cut may go on to deny; one that repeats has shown how it goes on.
        return ANSWER if ended or stuck or any(denial.finished(text, place) for place in stated) else CUT
    if not ended:
        return LOOP if stuck else CUT
    return TEXT if doubted or any(place.whole is None for place in found) else WRONG


def certain(wanted: str, text: str, ended: bool) -> list[Place]:
    """The places of a text; one at the end of what was cut may be the beginning of a longer word."""
    wanted = normal(wanted)
    found = places(wanted, text)
    open_end = not ended and wanted.rstrip() and kind(wanted.rstrip()[-1]) != "other"
    return [place for place in found if not (open_end and place.end == len(text))]


def sensible(word: str, suspect: bool = False) -> bool | None:
    """What an outcome says of the answer: True, False, or None where that is not known.

    suspect: the prompt itself has unknown tokens or markers taken apart; what
    is said to it is no answer to what was meant.
    """
    if suspect:
        return False
    return None if word in OPEN else word == ANSWER


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
