"""What the folder's scripts read, and the words in which they say numbers. Needs nothing but Python."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
MADE = HERE / "made"  # what the scripts write


def read(name: str) -> dict:
    """A JSON file of this folder."""
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def prompt_set(cell: int) -> dict:
    """The prompts that a cell was given, with its settings, of prompts.json. "number": of the set, from 1."""
    for number, one in enumerate(read("prompts.json")["sets"], 1):
        if cell in one["cells"]:
            return {**one, "number": number}
    raise SystemExit(f"cell {cell} has no prompts in prompts.json")


def result(cell: int) -> dict:
    """A cell of results.json."""
    found = [one for one in read("results.json")["cells"] if one["cell"] == cell]
    if not found:
        raise SystemExit(f"there is no cell {cell} in results.json")
    return found[0]


def finite(value) -> float | None:
    """A number of results.json, where NaN and infinities are words; None where there is none."""
    return None if value is None else float(value)


def short(value: float | None) -> str:
    """A number with two digits."""
    if value is None:
        return "unknown"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.1e}"
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def times(value: float | None, floor: float | None) -> float | None:
    """A difference in multiples of a noise floor; None where there is none."""
    return None if value is None or not floor else value / floor


def worst(values) -> float | None:
    """The largest; NaN where one is, which `max` would lose; None where there is none."""
    known = [value for value in values if value is not None]
    return next((value for value in known if value != value), max(known, default=None))


def word(largest: float | None, thresholds: dict | None) -> str:
    """The verdict's word for a multiple of the noise."""
    if largest is None or thresholds is None:
        return "no verdict"
    if largest != largest or largest == float("inf"):
        return "not finite"
    if largest <= thresholds["within"]:
        return "within noise"
    return "elevated" if largest <= thresholds["broken"] else "broken"


def line(name: str, numbers: dict, thresholds: dict | None) -> str:
    """One prompt in a line.

    numbers: first, largest, forced (differences of logits), floor, matched and
    compared (tokens), identical, text.
    """
    multiple = worst(times(numbers[what], numbers["floor"]) for what in ("largest", "forced"))
    same = "identical" if numbers["identical"] else f"parts at token {numbers['matched'] + 1}"
    differences = ", ".join(
        f"{what} {short(numbers[what])}" for what in ("first", "largest", "forced") if numbers[what] is not None
    )
    judged = "" if multiple is None else f"{short(multiple)} × noise, "
    judged += word(multiple, thresholds)
    return f"{name}: {differences}; {judged}; {same}, {numbers['compared']} tokens: {numbers['text']!r}"


def of_database(prompt: dict) -> dict:
    """The numbers of a prompt in results.json, as `line` takes them."""
    metrics = prompt["metrics"]
    return {
        "first": finite(metrics.get("first_logits_max_abs_diff")),
        "largest": finite(metrics.get("logits_max_abs_diff")),
        "forced": finite(metrics.get("forced_logits_max_abs_diff")),
        "floor": finite(prompt["noise_floor"]),
        "matched": prompt["matched_tokens"],
        "compared": prompt["compared_tokens"],
        "identical": prompt["tokens_identical"],
        "text": prompt["candidate_text"],
    }


def floor_line(prompt: dict) -> str:
    """One prompt's noise in a line: {"prompt", "variants": {name: largest difference}, "floor"}."""
    variants = ", ".join(f"{name} {short(finite(value))}" for name, value in sorted(prompt["variants"].items()))
    return f"{prompt['prompt']}: {variants}; floor {short(finite(prompt['floor']))}"


def own_limit(max_new_tokens: int) -> int:
    """How many new tokens a generation may have that a user's loop ends by itself."""
    return max(32, min(2 * max_new_tokens, max_new_tokens + 32))


def own_line(text: str, tokens: int, stopped: bool) -> str:
    """A generation in a line."""
    return f"{text.strip()!r}, {'ends by itself after' if stopped else 'does not end within'} {tokens} tokens"


def beside(now: str, before: str) -> str:
    """A line, and what the database has where that is another."""
    return f"  {now}" if now == before else f"  {now}\n    (database: {before})"
