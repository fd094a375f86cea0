"""Stage compare: a reference's continuations against a candidate's, prompt by prompt.

One prompt's logits of each side are mapped at a time. Results of different
`MEASUREMENT_VERSION`s are never put in one table.
"""

from __future__ import annotations

import json
import os

import continuation
from metrics import kind, matched_tokens, max_abs_diff
from sensible import outcome, sensible

MEASUREMENT_VERSION = 1


def run(arguments: dict, out: str) -> dict:
    """Compare and write ``comparison.json`` to `out`.

    arguments: reference, candidate (folders), expect ({prompt name: text or None}).
    """
    pairs = zip(
        continuation.load(arguments["reference"]),
        continuation.load(arguments["candidate"]),
        strict=True,
    )
    prompts = [
        compare_prompt(arguments, reference, candidate, arguments["expect"].get(reference["name"]))
        for reference, candidate in pairs
    ]
    with open(os.path.join(out, "comparison.json"), "w", encoding="utf-8") as file:
        json.dump({"measurement": MEASUREMENT_VERSION, "prompts": prompts}, file, indent=1)
    return {}


def compare_prompt(arguments: dict, reference: dict, candidate: dict, expect: str | None) -> dict:
    """One prompt's numbers.

    The step at which the continuations part still has the same context on both
    sides, so its logits are compared; what follows is not.
    """
    ours = continuation.logits(arguments["reference"], reference)
    theirs = continuation.logits(arguments["candidate"], candidate)
    matched = matched_tokens(reference["tokens"], candidate["tokens"])
    steps = min(matched + 1, len(ours), len(theirs))
    diffs = [max_abs_diff(ours[step], theirs[step]) for step in range(steps)]
    words = outcome(reference, expect), outcome(candidate, expect)
    # Python's max is order-dependent with NaN, and one NaN is the worst there is.
    worst = next((diff for diff in diffs if diff != diff), max(diffs))
    return {
        "prompt": reference["name"],
        "metrics": {
            "first_logits_max_abs_diff": number(diffs[0]),
            "logits_max_abs_diff": number(worst),
        },
        "steps": {"logits_max_abs_diff": [number(diff) for diff in diffs]},
        "reference_range": number(float(ours[0].max()) - float(ours[0].min())),
        "vocab": [int(ours.shape[1]), int(theirs.shape[1])],
        "matched_tokens": matched,
        "compared_tokens": max(len(reference["tokens"]), len(candidate["tokens"])),
        "tokens_identical": reference["tokens"] == candidate["tokens"],
        "sensible": sensible(words[0]),
        "candidate_sensible": sensible(words[1]),
        "outcome": words[1],
        "reference_text": reference["text"],
        "candidate_text": candidate["text"],
    }


def number(value: float) -> dict:
    """A number as JSON can hold it: value None, and the kind, where it is not finite."""
    word = kind(value)
    return {"value": value if word == "finite" else None, "kind": word}
