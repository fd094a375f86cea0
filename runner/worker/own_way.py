"""One generation as a user of an export runs it, beside the one of a user of the checkpoint.

The comparison of logits gives both sides the same ids, takes the largest raw
logit and ends where the checkpoint says. A user's export has its own tokenizer,
chat template, loop, search options and end tokens: here all take part, on the
first prompt that is a text. Sampling alone is turned off, on both sides, for
two samples cannot be compared; penalties and other options stay. The reference
is transformers' own ``generate()`` with the checkpoint's generation config.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import continuation

FILE = "own_way.json"
RAN, NOT_RUN, NOT_KNOWN = "ran", "not_run", "not_known"
# What can come of it, beside NOT_RUN and NOT_KNOWN.
SAME, NEVER_STOPS, STOPS_EARLY, STOPS_LATE, DIFFERS = "same", "never_stops", "stops_early", "stops_late", "differs"
NO_TEMPLATE, OTHER_IDS, DECODES, ALONE = "no_template", "other_ids", "decodes_otherwise", "alone"
# New tokens at least, and how many more than were asked for at most: what stops by itself has stopped by then.
LEAST, MORE = 32, 32
NO_TEXT = "\N{REPLACEMENT CHARACTER}"  # what a decoder puts for bytes that are no UTF-8


@dataclass(frozen=True)
class Generation:
    """A generation and how it was run.

    prompt: its name. ids: of the prompt. tokens: the new ones, the end token
    included. stopped: it ended by itself; limit: the new tokens after which it
    was ended. end_tokens: those it stops at. rendered_by: whose chat template
    made the prompt's text. template_error: why it was not its own. sampled:
    sampling was asked for, and turned off. why: of a state other than `RAN`.
    """

    state: str = RAN
    why: str = ""
    prompt: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    stopped: bool = False
    limit: int = 0
    end_tokens: list[int] = field(default_factory=list)
    rendered_by: str = ""
    template_error: str = ""
    sampled: bool = False

    @property
    def body(self) -> list[int]:
        """The new tokens without the end token."""
        ended = self.stopped and self.tokens and self.tokens[-1] in self.end_tokens
        return self.tokens[:-1] if ended else self.tokens


def chosen(prompts: Sequence[Mapping]) -> int | None:
    """The place of the prompt that is run: the first that is a text; None where all are made of ids."""
    return next((n for n, prompt in enumerate(prompts) if prompt["user_text"]), None)


def limit_of(max_new_tokens: int, prompt: int, context: int | None) -> int:
    """How many new tokens a generation may have: well beyond what was asked for, and within the context."""
    wanted = max(LEAST, min(2 * max_new_tokens, max_new_tokens + MORE))
    return wanted if context is None else min(wanted, context - prompt)


def save(generation: Generation, out: str, **more) -> dict:
    """Write a generation, and what else is to stand beside it, to `out`. Returns what was written."""
    content = {"generation": asdict(generation), **more}
    with open(os.path.join(out, FILE), "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=1)
    return content


def of_reference(folder: str | None) -> Generation | None:
    """The reference's generation; None where there is no reference."""
    if not folder:
        return None
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return Generation(NOT_KNOWN, "the reference has none")
    with open(path, encoding="utf-8") as file:
        return Generation(**json.load(file)["generation"])


def beside(own: Generation, reference: str | None, out: str, **more) -> dict:
    """Save a candidate's generation with what came of it, and return that for the artifact's meta.

    reference: its folder, or None. The continuations of both sides over raw
    logits are there already.
    """
    theirs = of_reference(reference)
    judged = judge(own, theirs, parted(own.prompt, reference, out))
    content = save(own, out, reference=asdict(theirs) if theirs else None, **judged, **more)
    return {"own_way": {name: value for name, value in content.items() if name not in more}, **more}


def parted(prompt: str, reference: str | None, out: str) -> bool | None:
    """Whether the greedy tokens over raw logits differ at a prompt; None where there is nothing to compare."""
    if not reference or not prompt:
        return None
    one, two = (
        next((entry["tokens"] for entry in continuation.load(folder) if entry["name"] == prompt), None)
        for folder in (reference, out)
    )
    return None if None in (one, two) else one != two


def judge(own: Generation, reference: Generation | None, parts_raw: bool | None) -> dict:
    """What came of an export's own way: {"outcome", "says", "explained"}.

    parts_raw: whether the two sides' greedy tokens over raw logits differ at
    this prompt too; then another text is no finding of its own ("explained").
    """
    if own.state != RAN:
        return told(own.state, f"{own.state.replace('_', ' ')}: {own.why}")
    if reference is None:
        return told(ALONE, f"{stopping(own)}; there is no reference to compare it with")
    if reference.state != RAN:
        return told(NOT_KNOWN, f"not known: the reference's own generation: {reference.why}")
    found = [
        *stops_elsewhere(own, reference), *other_text(own, reference),
        *([(NO_TEMPLATE, f"no chat template of its own ({own.template_error})")] if own.template_error else []),
        *other_ids(own, reference),
    ]  # fmt: skip
    if not found:
        how = "stops" if own.stopped else f"neither stops within {own.limit} tokens"
        what = "same tokens (bytes that are no text)" if broken(reference) else "same text"
        found = [(SAME, f"{what}, {how}")]
    outcome = found[0][0]
    passed = bool(set(own.body) & set(reference.end_tokens))
    # An end token that it went past is a fault whatever the text is.
    explained = bool(parts_raw) and outcome in (NEVER_STOPS, STOPS_EARLY, STOPS_LATE, DIFFERS) and not passed
    says = "; ".join(said for _, said in found) + ("; its greedy text over raw logits differs too" if explained else "")
    says += " (sampling turned off on both sides)" if own.sampled or reference.sampled else ""
    return told(outcome, says, explained)


def told(outcome: str, says: str, explained: bool = False) -> dict:
    return {"outcome": outcome, "says": says, "explained": explained}


def stopping(one: Generation) -> str:
    return f"stops after {len(one.tokens)} tokens" if one.stopped else f"does not stop within {one.limit} tokens"


def stops_elsewhere(own: Generation, reference: Generation) -> list[tuple[str, str]]:
    """That one side goes on where the other ends, as far as the texts are the same or the export never ends."""
    shared = min(len(own.body), len(reference.body))
    if not own.stopped and reference.stopped and own.limit >= len(reference.tokens):
        passed = next((token for token in own.body if token in reference.end_tokens), None)
        past = "" if passed is None else f" (it goes past the end token {passed})"
        return [(NEVER_STOPS, f"{stopping(own)}{past} where the reference {stopping(reference)}")]
    if own.body[:shared] != reference.body[:shared] or len(own.body) == len(reference.body):
        return []
    how = f"{stopping(own)} where the reference {stopping(reference)}"
    if len(own.body) < len(reference.body):
        return [(STOPS_EARLY, how if own.stopped else f"the export's context has {own.limit} tokens left, {how}")]
    return [(STOPS_LATE, how)] if reference.stopped else []


def other_text(own: Generation, reference: Generation) -> list[tuple[str, str]]:
    """Where the two bodies part, other than by one of them going on."""
    pairs = zip(own.body, reference.body, strict=False)
    at = next((n for n, (one, two) in enumerate(pairs) if one != two), None)
    if at is not None:
        return [(DIFFERS, f"another text from token {at} on")]
    if len(own.body) == len(reference.body) and letters(own.text) != letters(reference.text) and not broken(reference):
        return [(DECODES, "the same tokens, which its own tokenizer decodes to another text")]
    return []


def letters(text: str) -> str:
    """A text without white space, which tokenizers clean up or not when they decode."""
    return "".join(text.split())


def broken(one: Generation) -> bool:
    """Whether tokens are no text: bytes that are no UTF-8, as random weights give, at which GenAI's decode ends."""
    return NO_TEXT in one.text


def other_ids(own: Generation, reference: Generation) -> list[tuple[str, str]]:
    """How the prompt's ids differ."""
    ours, theirs = own.ids, reference.ids
    if ours == theirs:
        return []
    if ours == theirs[1:]:
        how = f"no {theirs[0]} at the start"
    elif ours[1:] == theirs:
        how = f"one more, {ours[0]}, at the start"
    else:
        at = next(
            (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        how = f"from place {at} on {ours[at : at + 3]} and not {theirs[at : at + 3]}"
    return [(OTHER_IDS, f"{len(ours)} prompt ids instead of {len(theirs)} ({how})")]
