"""Stage compare: a reference's continuations against a candidate's, prompt by prompt.

One step's logits are read at a time, and one file of each side is mapped.
Results of different `MEASUREMENT_VERSION`s are never put in one table.
"""

from __future__ import annotations

import json
import os

import continuation
import numpy as np
import vocabulary_width
from metrics import BANDS, STEP_METRICS, kind, matched_tokens, over_steps, top_gap
from sensible import Expected, outcome, sensible

MEASUREMENT_VERSION = 3
# Prefixes of the names of numbers.
FREE, FORCED = "", "forced_"
RTOL = {f"band_{k or 'all'}": rtol for k, (_, rtol) in BANDS.items()}


def run(arguments: dict, out: str) -> dict:
    """Compare and write ``comparison.json`` to `out`.

    arguments: reference, candidate, noise (folders; the first and the last may
    be None: a candidate alone is only looked at), expect
    ({prompt name: text or None}), reject ({prompt name: [text]}), format (the
    checkpoint's own, see `answer_format.known`; or None), suspect (names of prompts that
    the audit found to be other than meant), thresholds ({"within", "broken"}: multiples
    of the noise floor). Returns what is odd about the whole in "findings".
    """
    noise, candidates = noise_floors(arguments["noise"]), continuation.load(arguments["candidate"])
    widths = []
    if arguments["reference"] is None:
        prompts = [alone(arguments, candidate) for candidate in candidates]
    else:
        references = continuation.load(arguments["reference"])
        pairs = list(zip(references, candidates, strict=True))
        widths = vocabulary_width.findings(arguments["reference"], arguments["candidate"], pairs)
        prompts = [compare_prompt(arguments, one, two, noise.get(one["name"])) for one, two in pairs]
    content = {"measurement": MEASUREMENT_VERSION, "thresholds": arguments["thresholds"], "prompts": prompts}
    with open(os.path.join(out, "comparison.json"), "w", encoding="utf-8") as file:
        json.dump(content, file)
    return {"findings": coarse(prompts, arguments["thresholds"]["within"]) + widths}


def expected(arguments: dict) -> Expected:
    return Expected(arguments["expect"], arguments["reject"], arguments["format"])


def coarse(prompts: list[dict], within: float) -> list[dict]:
    """A warning where the noise is so large that nothing can be said: see `says_nothing`."""
    found = [
        (prompt["noise_floor"]["value"], prompt["reference_range"]["value"])
        for prompt in prompts
        if says_nothing(prompt["noise_floor"]["value"], prompt["reference_range"]["value"], within)
    ]
    if not found:
        return []
    floor, span = max(found)
    evidence = (
        f"{len(found)} of {len(prompts)} prompts have no verdict: up to {within:g} times the noise floor ({floor:.3g})"
        f" would count as right, which is more than half of what the logits span ({span:.3g})"
    )
    return [{"prompt": None, "check": "coarse_noise", "evidence": evidence}]


def says_nothing(floor: float | None, span: float | None, within: float) -> bool:
    """Whether a difference that counts as right could be half of all that logits differ by: rounding to int4 can ruin a
    small model by itself, and then no error of the export shows beside it."""
    return floor is not None and span is not None and within * floor > span / 2


def noise_floors(folder: str | None) -> dict[str, float]:
    """Each prompt's noise floor, where one was measured."""
    if folder is None:
        return {}
    with open(os.path.join(folder, "noise.json"), encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    return {prompt["prompt"]: prompt["floor"] for prompt in prompts if prompt["floor"] is not None}


def alone(arguments: dict, candidate: dict) -> dict:
    """A prompt's columns where there is nothing to compare with: what the candidate said, and if it is sensible."""
    word = outcome(candidate, expected(arguments))
    numbers = (
        "first_logits_max_abs_diff", "logits_max_abs_diff", "forced_logits_max_abs_diff", "noise_floor", "noise_ratio",
        "forced_noise_ratio", "reference_range",
    )  # fmt: skip
    vocabulary = continuation.logits(arguments["candidate"], candidate["logits"]).shape[1]
    return {
        "prompt": candidate["name"],
        "metrics": {},
        "steps": {},
        **dict.fromkeys(numbers, number(None)),
        **dict.fromkeys(("verdict", "parting", "within_bands", "sensible", "reference_outcome")),
        "vocab": [0, int(vocabulary)],
        "matched_tokens": 0,
        "compared_tokens": 0,
        "tokens_identical": False,
        "candidate_sensible": sensible(word, candidate["name"] in arguments["suspect"]),
        "outcome": word,
        "reference_text": "",
        "candidate_text": candidate["text"],
    }


def compare_prompt(arguments: dict, reference: dict, candidate: dict, floor: float | None) -> dict:
    """One prompt's numbers, free-running and teacher-forced.

    Free-running, the step at which the continuations part still has the same
    context on both sides, so its logits are compared; what follows is not.
    Forced, every step is, save where one pass is rightly another computation.
    """
    matched = matched_tokens(reference["tokens"], candidate["tokens"])
    length = min(matched + 1, len(reference["tokens"]), len(candidate["tokens"]))
    free, rows = steps(arguments, reference, candidate["logits"], length)
    modes = {FREE: free}
    if not reference["one_pass_differs"]:
        modes[FORCED], more = steps(arguments, reference, candidate["forced_logits"], len(reference["tokens"]))
        rows["finite"] = rows["finite"] and more["finite"]
    identical = reference["tokens"] == candidate["tokens"]
    whole = {mode + name: value for mode, numbers in modes.items() for name, value in over_steps(numbers).items()}
    whole["first_logits_max_abs_diff"] = free["logits_max_abs_diff"][0]
    whole.setdefault(FORCED + "logits_max_abs_diff", None)
    ratios = {mode: ratio(whole[mode + "logits_max_abs_diff"], floor) for mode in modes}
    gap = None if identical else rows["gap"]
    judged_by = None if says_nothing(floor, rows["range"], arguments["thresholds"]["within"]) else floor
    suspect = reference["name"] in arguments["suspect"]
    words = [outcome(side, expected(arguments)) for side in (reference, candidate)]
    return {
        "prompt": reference["name"],
        "metrics": {name: number(value) for name, value in whole.items()},
        "steps": {
            mode + name: [number(value) for value in values]
            for mode, numbers in modes.items()
            for name, values in numbers.items()
        },
        "noise_floor": number(floor),
        "noise_ratio": number(ratios[FREE]),
        "forced_noise_ratio": number(ratios.get(FORCED)),
        "verdict": verdict(rows["finite"], list(ratios.values()), identical, gap, judged_by, arguments["thresholds"]),
        "parting": None if identical else parting(reference, candidate, matched, gap),
        "within_bands": all(whole[mode + name] <= rtol for mode in modes for name, rtol in RTOL.items()),
        "reference_range": number(rows["range"]),
        "vocab": rows["vocab"],
        "matched_tokens": matched,
        "compared_tokens": max(len(reference["tokens"]), len(candidate["tokens"])),
        "tokens_identical": identical,
        "sensible": sensible(words[0], suspect),
        "candidate_sensible": sensible(words[1], suspect),
        "reference_outcome": words[0],
        "outcome": words[1],
        "reference_text": reference["text"],
        "candidate_text": candidate["text"],
    }


def steps(arguments: dict, reference: dict, file: str, count: int) -> tuple[dict, dict]:
    """The metrics of `count` steps ({name: [value a step]}), and what is asked of the reference's own rows."""
    ours = continuation.logits(arguments["reference"], reference["logits"])
    theirs = continuation.logits(arguments["candidate"], file)
    numbers = {name: [formula(ours[n], theirs[n]) for n in range(count)] for name, formula in STEP_METRICS.items()}
    first = np.asarray(ours[0])
    about = {
        "gap": top_gap(np.asarray(ours[count - 1])),
        "range": span(first),
        "finite": all(sound(side[n]) for side in (ours, theirs) for n in range(count))
        and bool(np.isfinite(numbers["logits_max_abs_diff"]).all()),
        "vocab": [int(ours.shape[1]), int(theirs.shape[1])],
    }
    return numbers, about


def sound(row: np.ndarray) -> bool:
    """Whether a row of logits is one: -inf masks a token; NaN, +inf, or nothing but masks are faults."""
    row = np.asarray(row)
    return bool(row.max() < np.inf and row.max() > -np.inf)


def span(row: np.ndarray) -> float:
    """Largest minus smallest of a row's logits, masked ones left out; NaN where it is not sound."""
    finite = row[np.isfinite(row)]
    return float(finite.max()) - float(finite.min()) if sound(row) else float("nan")


def ratio(diff: float, floor: float | None) -> float | None:
    """How many times the noise floor a difference is; None where no floor was measured."""
    if floor is None:
        return None
    if diff == 0:
        return 0.0
    return diff / floor if floor else diff * float("inf")


def verdict(
    finite: bool, ratios: list, identical: bool, gap: float | None, floor: float | None, thresholds: dict
) -> str | None:
    """A prompt's verdict, by the larger of its free-running and its forced multiple of the noise.

    "near_tie": all within the noise, and yet the continuations part, where the
    reference's two best tokens are nearer to each other than a difference
    within the noise can move them. None where no floor was measured.
    """
    if not finite:
        return "non_finite"
    if floor is None:
        return None
    largest = max(ratios)
    if largest > thresholds["broken"]:
        return "broken"
    if largest > thresholds["within"]:
        return "elevated"
    if identical:
        return "within_noise"
    return "near_tie" if gap is not None and gap <= 2 * thresholds["within"] * floor else "elevated"


def parting(reference: dict, candidate: dict, step: int, gap: float) -> dict:
    """Where the continuations part, by how little the reference chose, and what each side thought likeliest."""
    sides = {"reference": reference, "candidate": candidate}
    top = {side: entry["top"][step] if step < len(entry["top"]) else [] for side, entry in sides.items()}
    return {"step": step, "gap": number(gap), "top": top}


def number(value: float | None) -> dict:
    """A number as JSON can hold it: value None, and the kind, where it is not finite; None as None."""
    word = kind(value)
    return {"value": value if word == "finite" else None, "kind": word}
