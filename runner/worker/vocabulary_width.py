"""What the entries weigh that one side's logits have and the other's have not: in sampling they take probability."""

from __future__ import annotations

import continuation
import numpy as np
from metrics import mass_beyond

CHECK = "vocabulary_width"
MODES = ("logits", "forced_logits")


def findings(reference: str, candidate: str, pairs: list[tuple[dict, dict]]) -> list[dict]:
    """A warning where the widths differ: the largest probability of the extra entries at temperature 1, over prompts
    and steps, and how often a greedy step chose one of them.

    reference, candidate: the folders; pairs: their entries, prompt by prompt.
    """
    sides = {"reference": (reference, [one for one, _ in pairs]), "candidate": (candidate, [two for _, two in pairs])}
    width = {side: width_of(folder, entries) for side, (folder, entries) in sides.items()}
    if len(set(width.values())) < 2:
        return []
    wide, narrow = sorted(width, key=lambda side: -width[side])
    folder, entries = sides[wide]
    common, masses, chosen, steps = width[narrow], [], [], 0
    for entry in entries:
        for name in (entry[mode] for mode in MODES if mode in entry):
            rows = continuation.logits(folder, name)
            masses += [(mass_beyond(np.asarray(row), common), entry["name"], step) for step, row in enumerate(rows)]
        steps += len(entry["tokens"])
        chosen += [(entry["name"], step) for step, token in enumerate(entry["tokens"]) if token >= common]
    extra = width[wide] - common
    entries_are = f"{extra} extra entries take" if extra > 1 else "1 extra entry takes"
    evidence = (
        f"the {wide} has {width[wide]} logits and the {narrow} {common}: its {entries_are} {share(masses)};"
        f" {picks(chosen, steps)}"
    )
    return [{"prompt": None, "check": CHECK, "evidence": evidence}]


def width_of(folder: str, entries: list[dict]) -> int:
    return int(continuation.logits(folder, entries[0]["logits"]).shape[1]) if entries else 0


def share(masses: list[tuple[float, str, int]]) -> str:
    """The largest share of the probability, and where; steps whose logits have no probabilities are told."""
    known = [found for found in masses if not np.isnan(found[0])]
    unknown = len(masses) - len(known)
    odd = f" (not known at {unknown} steps whose logits have no probabilities)" if unknown else ""
    if not known:
        return "an unknown share of the probability in sampling at temperature 1" + odd
    most, prompt, step = max(known, key=lambda found: found[0])
    if most == 0:
        return "none of the probability in sampling at temperature 1" + odd
    where = f"(prompt {prompt}, step {step})"
    return f"up to {100 * most:.2g} % of the probability in sampling at temperature 1 {where}{odd}"


def picks(chosen: list[tuple[str, int]], steps: int) -> str:
    if not chosen:
        return f"none of its {steps} greedy steps chose one of them"
    prompt, step = chosen[0]
    return f"{len(chosen)} of its {steps} greedy steps chose one of them, the first at prompt {prompt}, step {step}"
