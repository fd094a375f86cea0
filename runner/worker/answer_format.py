"""The answer in a continuation that also thinks, or writes in channels, as its checkpoint's own format has it.

gpt-oss writes `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…` (the harmony
format), Gemma 4 `<|channel>thought … <channel|>` and then its answer, Qwen 3 and others `<think> … </think>`. Such
tokens are no marker nonsense where the checkpoint's tokenizer or template knows them, and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What opens and what closes a thought; the answer is what stands outside.
PAIRS = (
    ("<|channel>", "<channel|>"), ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"), ("◁think▷", "◁/think▷"), ("<|START_THINKING|>", "<|END_THINKING|>"),
)  # fmt: skip
# What stands around an answer.
AROUND = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
CHANNEL, MESSAGE, END, START = "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant"
HEADER = re.compile(
    r"\s*(?:<\|start\|>[^<]*)?(?:<\|channel\|>(?P<name>\w*)[^<]*)?(?:<\|constrain\|>[^<]*)?"
    r"(?P<message><\|message\|>)?"
)
FINAL = "final"


@dataclass(frozen=True)
class Parts:
    """text: the answer; thoughts: the rest; thinking: it ends before an answer has begun."""

    text: str
    thoughts: tuple[str, ...] = ()
    thinking: bool = False


def known(tokenizer, template: str | None, prompts: list[dict]) -> dict:
    """What of the formats a checkpoint has: {"channels", "pairs", "around", "special" (its special tokens),
    "opening": {prompt name: what of the format the prompt's end has opened already}}."""
    tokens = set(tokenizer.get_added_vocab())
    text = template or getattr(tokenizer, "chat_template", None) or ""
    text = text if isinstance(text, str) else ""

    def has(token: str) -> bool:
        return token in tokens or token in text

    pairs = [list(pair) for pair in PAIRS if all(map(has, pair))]
    found = {
        "channels": has(CHANNEL) and has(MESSAGE),
        "pairs": pairs,
        "around": [token for token in AROUND if has(token)],
        "special": sorted(getattr(tokenizer, "all_special_tokens", ())),
    }
    opened = {prompt["name"]: opening(found, prompt["text"]) for prompt in prompts}
    return found | {"opening": {name: text for name, text in opened.items() if text}}


def opening(found: dict, text: str) -> str:
    """What a prompt has opened at its end, so that the continuation begins inside it."""
    begun = text.rpartition(START)[2] if found["channels"] and START in text else ""
    if begun.startswith(CHANNEL):
        return begun
    return next((one for one, _ in found["pairs"] if text.rstrip().endswith(one)), "")


def parts(raw: str, found: dict | None, name: str) -> Parts | None:
    """A continuation (with its special tokens) taken apart; None where nothing of a format is in it.

    found: as `known` gives it; name: of the prompt. What does not follow the format is left in the text, where its
    markers show.
    """
    if not found:
        return None
    raw = found["opening"].get(name, "") + raw
    if found["channels"] and CHANNEL in raw:
        return channels(raw)
    used = [pair for pair in found["pairs"] if any(token in raw for token in pair)]
    if not used and not any(token in raw for token in found["around"]):
        return None
    thoughts: list[str] = []
    thinking = False
    for one, two in used:
        raw, said, open_ = without_thoughts(raw, one, two)
        thoughts, thinking = thoughts + said, thinking or open_
    for token in found["around"]:
        raw = raw.replace(token, "")
    return Parts(raw, tuple(thoughts), thinking)


def without_thoughts(raw: str, one: str, two: str) -> tuple[str, list[str], bool]:
    """A text without what stands between `one` and `two`, that, and whether the last has no end. What is closed and
    never opened was opened before the text began."""
    if two in raw and (one not in raw or raw.index(two) < raw.index(one)):
        raw = one + raw
    text, thoughts = "", []
    while one in raw:
        before, _, rest = raw.partition(one)
        thought, closed, raw = rest.partition(two)
        text += before
        thoughts.append(thought)
        if not closed:
            return text, thoughts, True
    return text + raw, thoughts, False


def channels(raw: str) -> Parts:
    """Messages in channels: the answer is what the final channel says."""
    answer, thoughts, *pieces = None, [], *raw.split(END)
    for n, piece in enumerate(pieces):
        header = HEADER.match(piece)
        body, last = piece[header.end() :], n == len(pieces) - 1
        if not header["message"]:
            if body or not last:
                return Parts(raw)  # no message of the format
            continue
        if header["name"] == FINAL:
            answer = (answer or "") + body
        else:
            thoughts.append(body)
    return Parts(answer or "", tuple(thoughts), answer is None)


def plain(text: str, found: dict | None) -> str:
    """An answer as a user sees it: without special tokens."""
    for token in (found or {}).get("special", ()):
        text = text.replace(token, "")
    return text
