"""What can be wrong with a prompt before any model has seen it.

Each finding is {"prompt": name or None, "check", "evidence"}: a warning for a
reader, never an opinion that stops a run by itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from sensible import MARKER, TURN_MARKER

UNKNOWN, SPLIT, WRITTEN, BOS = "unknown_tokens", "split_marker", "marker_in_prompt", "bos"
TEMPLATE = "template_marker"
NO_TURN = re.compile("endoftext|pad|unk|begin.of|end.of.(?:text|sentence)", re.IGNORECASE)  # special, of no turn
CHARACTERS, OUTSIDE, RUNTIME = "token_per_character", "outside_vocabulary", "runtime_tokenizer"
# After these a model reads something else than was meant, so that no answer to it can count.
SUSPECT = (UNKNOWN, SPLIT, OUTSIDE)  # and what is merely doubled shows in the answer
# Words are about four or five characters long, and a trained tokenizer has most of them in one or two tokens. Below
# this many characters a token, over a text of at least so many, it spells.
SPELLS, ENOUGH = 1.1, 24


def findings(tokenizer, prompts: list[dict], vocabulary: int | None) -> list[dict]:
    """All that is odd about the prompts ({"name", "user_text", "text", "ids"}).

    tokenizer: transformers' own; vocabulary: the model's count of embeddings.
    """
    found = []
    adds_bos = adds_its_bos(tokenizer)
    for prompt in prompts:
        for check, evidence in (
            (UNKNOWN, unknown(tokenizer, prompt)),
            *split_markers(tokenizer, prompt),
            (WRITTEN, written_markers(prompt)),
            (BOS, bos(tokenizer, prompt["ids"], adds_bos)),
            (CHARACTERS, spelled(tokenizer, prompt["user_text"])),
            (OUTSIDE, outside(prompt["ids"], vocabulary)),
        ):
            if evidence:
                found.append({"prompt": prompt["name"], "check": check, "evidence": evidence})
    return found


def unknown(tokenizer, prompt: dict) -> str:
    """Which tokens stand for text that the tokenizer does not know."""
    # Where one token is both, it says nothing of what is known.
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    count = 0 if tokenizer.unk_token_id in (None, *ends) else prompt["ids"].count(tokenizer.unk_token_id)
    if not count:
        return ""
    words = [word for word in prompt["text"].split() if tokenizer.unk_token_id in ids_of(tokenizer, word)]
    about = f", in {', '.join(map(repr, words[:3]))}" if words else ""
    return f"{count} of {len(prompt['ids'])} tokens are {tokenizer.unk_token} ({tokenizer.unk_token_id}){about}"


def split_markers(tokenizer, prompt: dict) -> list[tuple[str, str]]:
    """Turn markers in a prompt that are no tokens of their own, as (check, evidence): to the model they are letters.

    What is in the prompt's ids as a token is one, whatever the tokenizer puts
    before it. Where the checkpoint's own template alone writes them, and its
    tokenizer has no turn markers at all, they are told under another check:
    some models are trained with turns that are letters.
    """
    said: dict[str, list[str]] = {}
    markers = TURN_MARKER.findall(prompt["text"])
    known = sorted(t for t in tokenizer.get_added_vocab() if TURN_MARKER.fullmatch(t))
    has = f"; the tokenizer's markers are {', '.join(known[:6])}" if known else ""
    own = any(not NO_TURN.search(token) for token in known)
    for marker in dict.fromkeys(markers):
        ids = ids_of(tokenizer, marker)
        if len(ids) == 1 or pieces_of(tokenizer, prompt["ids"]).count(marker) >= markers.count(marker):
            continue
        written = marker in prompt["user_text"] or not prompt["user_text"] or prompt["text"] == prompt["user_text"]
        check = SPLIT if written or own else TEMPLATE
        said.setdefault(check, []).append(f"{marker} -> {tokenizer.convert_ids_to_tokens(ids)}{has}")
    return [(check, "; ".join(found)) for check, found in said.items()]


def pieces_of(tokenizer, ids: list[int]) -> list[str]:
    """The tokens of ids; none where the tokenizer has not all of them, which is found by itself."""
    try:
        return tokenizer.convert_ids_to_tokens(ids)
    except (IndexError, KeyError, OverflowError, TypeError):
        return []


def written_markers(prompt: dict) -> str:
    """Turn markers in the user's own text, under a template that writes them too: a turn inside a turn."""
    if prompt["text"] == prompt["user_text"]:
        return ""
    found = list(dict.fromkeys(MARKER.findall(prompt["user_text"])))
    return f"the prompt's own text has {', '.join(found[:4])}, and the template writes the turns" if found else ""


def adds_its_bos(tokenizer) -> bool:
    """Whether the tokenizer, left to itself, begins a text with its BOS token."""
    ids = tokenizer("a")["input_ids"]
    return bool(ids) and tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id


def bos(tokenizer, ids: list[int], expected: bool) -> str:
    """A BOS token that the tokenizer would have put and is not there, or that stands twice."""
    wanted, name = tokenizer.bos_token_id, f"{tokenizer.bos_token} (id {tokenizer.bos_token_id})"
    if wanted is None:
        return ""
    if wanted == tokenizer.eos_token_id:  # one token for both: it stands between turns too
        return ""
    places = [n for n, i in enumerate(ids) if i == wanted]
    # Where it is also what begins a turn, as in SmolLM2, only two in a row are one too many.
    begins_turns = TURN_MARKER.fullmatch(tokenizer.bos_token) is not None
    doubled = any(two == one + 1 for one, two in itertools.pairwise(places))
    if len(places) > 1 and (doubled or not begins_turns):
        return f"{name} stands {len(places)} times, at {places[:4]}: the ids begin {ids[: places[1] + 2]}"
    if expected and ids[:1] != [wanted]:
        return f"no {name} at the start, which the tokenizer itself would put: the ids begin {ids[:4]}"
    return ""


def spelled(tokenizer, text: str) -> str:
    """Text of ASCII words that comes out at about one token a character.

    Other scripts may rightly take a token a character, or more.
    """
    letters = sum(character.isalpha() for character in text)
    if len(text) < ENOUGH or not text.isascii() or letters < 0.7 * len(text):  # digits may rightly be tokens each
        return ""
    ids = ids_of(tokenizer, text)
    if len(text) >= SPELLS * len(ids):
        return ""
    pieces = tokenizer.convert_ids_to_tokens(ids[:8])
    return f"{len(ids)} tokens for {len(text)} characters: {pieces} …; a trained tokenizer needs about a quarter"


def outside(ids: list[int], vocabulary: int | None) -> str:
    """Ids for which the model has no embedding."""
    odd = sorted({i for i in ids if vocabulary is not None and not 0 <= i < vocabulary})
    return f"ids {odd[:5]} are outside the model's vocabulary of {vocabulary}" if odd else ""


def runtime_ids(encode: Callable[[str], list[int]] | None, prompts: list[dict]) -> list[dict]:
    """Prompts to which the runtime's own tokenizer gives other ids than transformers'."""
    found = []
    for prompt in prompts if encode else ():
        if not prompt["user_text"]:  # made of ids, not of text
            continue
        try:
            ids = encode(prompt["text"])
        except Exception as error:
            found.append({"prompt": prompt["name"], "check": RUNTIME, "evidence": f"{type(error).__name__}: {error}"})
            continue
        if ids != prompt["ids"]:
            at = next((n for n, (a, b) in enumerate(zip(ids, prompt["ids"], strict=False)) if a != b), None)
            at = min(len(ids), len(prompt["ids"])) if at is None else at
            evidence = f"from token {at} on the runtime's own has {ids[at : at + 4]} ({len(ids)} in all), transformers'"
            evidence += f" {prompt['ids'][at : at + 4]} ({len(prompt['ids'])} in all); both sides were given the latter"
            found.append({"prompt": prompt["name"], "check": RUNTIME, "evidence": evidence})
    return found


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
