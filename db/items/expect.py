"""What a claim expects of the cells that its filters find: given as YAML or words, checked, and held to a cell.

status:            the statuses that a cell may end with; ok unless given
error_type         of a failure: its type ("KeyError"), or one of several
error_contains     of a failure: text that its message has, or one of several
verdict            one or several
identical, sensible  of the prompts: all, none, a number, or {from: N, to: M}
multiple_at_least, multiple_at_most   of the noise (also at_most; above: more than)
first_diff_at_least, first_diff_at_most   the largest over prompts, of the first token's logits
diff_at_least, diff_at_most   the largest over prompts and steps, free-running and forced
outcome            {prompt, or all: a word of `OUTCOMES`, or several}
text               reference or other, of all prompts; or {prompt, or all: text that it contains,
                   or {is: reference or other, equals: TEXT, contains: TEXT}}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from db.items.problems import ItemsProblem, keys, refuse, text
from db.models import TEXT_OUTCOMES, VERDICTS
from db.output import identical

STATUSES = (
    "ok", "config_failed", "source_failed", "env_failed", "patch_failed", "checkpoint_failed", "reference_failed",
    "export_failed", "load_failed", "run_failed", "timeout", "stalled", "killed", "preempted", "skipped",
)  # fmt: skip
OF_FAILURES = ("error_type", "error_contains")
COUNTS = ("identical", "sensible")
# Of a number its bounds by their names: (the number, "least", "most" or "above").
BOUNDS = {
    "multiple_at_least": ("multiple", "least"), "multiple_at_most": ("multiple", "most"),
    "at_most": ("multiple", "most"), "above": ("multiple", "above"),
    "first_diff_at_least": ("first_diff", "least"), "first_diff_at_most": ("first_diff", "most"),
    "diff_at_least": ("diff", "least"), "diff_at_most": ("diff", "most"),
}  # fmt: skip
UNITS = {"multiple": " × noise", "first_diff": " at the first token", "diff": " at the largest step"}
OF_PROMPTS = ("outcome", "text")
EXPECTATIONS = ("status", *OF_FAILURES, "verdict", *COUNTS, *BOUNDS, *OF_PROMPTS)
EVERY = "all"  # in place of a prompt's name
REFERENCE, OTHER = "reference", "other"


@dataclass(frozen=True)
class Count:
    """How many of the prompts; None: as many as there are."""

    least: int | None = None
    most: int | None = None

    def fits(self, count: int, of: int) -> bool:
        least, most = (of if end is None else end for end in (self.least, self.most))
        return of > 0 and least <= count <= most

    def __str__(self) -> str:
        if self.least == self.most:
            return "all" if self.least is None else str(self.least)
        return f"{self.least} to {'all' if self.most is None else self.most}"


@dataclass(frozen=True)
class Text:
    """What a prompt's text is held to; None or empty: not at all."""

    same: bool | None = None  # as the reference's, or another
    equals: str | None = None
    contains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expect:
    """A claim's expectation. bounds: (number, which bound, value)."""

    status: tuple[str, ...] = ("ok",)
    error_type: tuple[str, ...] = ()
    error_contains: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    identical: Count | None = None
    sensible: Count | None = None
    bounds: tuple[tuple[str, str, float], ...] = ()
    outcome: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text: Mapping[str, Text] = field(default_factory=dict)

    @property
    def names_failure(self) -> bool:
        """Whether it says which failure is expected, and not only that there is one."""
        return bool(self.error_type or self.error_contains)

    def against(self, row: Mapping[str, Any]) -> Iterable[tuple[bool | None, str]]:
        """What speaks against a cell of one of these statuses (False), or leaves it open (None): with why.

        row: as `judging.newest_cells` has it.
        """
        if row["status"] != "ok":
            yield from self.against_failure(row)
            return
        if self.verdict and row["verdict"] not in self.verdict:
            yield (False, f"verdict {row['verdict']}") if row["verdict"] else (None, "no noise floor")
        if self.identical and not self.identical.fits(row["identical_count"], row["prompts_count"]):
            yield False, f"identical {identical(row)}" + said(self.identical)
        if self.sensible:
            yield from self.against_answers(row["answers"])
        for number, which, limit in self.bounds:
            value = row[number]
            if value is None:
                yield None, "no noise floor" if number == "multiple" else f"no {number.replace('_', ' ')}"
            elif not {"least": value >= limit, "most": value <= limit, "above": value > limit}[which]:
                wanted = {"least": "at least", "most": "at most", "above": "above"}[which]
                yield False, f"{value:.3g}{UNITS[number]}, expected {wanted} {limit:g}"
        yield from self.against_prompts(row["prompts_by_name"])

    def against_failure(self, row: Mapping[str, Any]) -> Iterable[tuple[bool, str]]:
        told = f"{row['status']}: {row['error']}" if row["error"] else row["status"]
        if self.error_type and row["error_type"] not in self.error_type:
            yield False, f"{told}, expected {' or '.join(self.error_type)}"
        elif self.error_contains and not any(part in (row["message"] or "") for part in self.error_contains):
            yield False, f"{told}, expected {' or '.join(map(repr, self.error_contains))} in it"

    def against_answers(self, answers: Sequence[bool | None]) -> Iterable[tuple[bool | None, str]]:
        assert self.sensible
        right, open_ = sum(answer is True for answer in answers), sum(answer is None for answer in answers)
        possible = [self.sensible.fits(count, len(answers)) for count in range(right, right + open_ + 1)]
        if not any(possible) and answers:
            yield False, f"sensible {right} of {len(answers)}" + said(self.sensible)
        elif not all(possible) or not answers:
            why = f"sensible {right} of {len(answers)}, the others not known (nothing expected, not decided, or cut)"
            yield None, why

    def against_prompts(self, prompts: Mapping[str, Any]) -> Iterable[tuple[bool | None, str]]:
        wanted: list[tuple[str, Any]] = [*self.outcome.items(), *self.text.items()]
        for name, expected in wanted:
            if name != EVERY and name not in prompts:
                yield None, f"no prompt {name}; there are: {', '.join(prompts) or 'none'}"
                continue
            for prompt in prompts.values() if name == EVERY else [prompts[name]]:
                if isinstance(expected, Text):
                    yield from ((False, f"{prompt.prompt}: {why}") for why in against_text(expected, prompt))
                elif prompt.outcome not in expected:
                    yield False, f"{prompt.prompt}: {prompt.outcome}, expected {' or '.join(expected)}"


def said(count: Count) -> str:
    """What was expected, where it is not simply all."""
    return "" if count == Count() else f", expected {count}"


def against_text(expected: Text, prompt: Any) -> Iterable[str]:
    if expected.same is not None and prompt.tokens_identical != expected.same:
        yield "the reference's text" if prompt.tokens_identical else "not the reference's text"
    if expected.equals is not None and prompt.candidate_text.strip() != expected.equals.strip():
        yield f"it says {short(prompt.candidate_text)}, expected {short(expected.equals)}"
    if expected.contains and not any(part in prompt.candidate_text for part in expected.contains):
        yield f"it says {short(prompt.candidate_text)}, expected {' or '.join(map(short, expected.contains))} in it"


def short(content: str) -> str:
    line = " ".join(content.split())
    return repr(line if len(line) <= 40 else line[:39] + "…")


# Reading


def checked(given: Any, where: str) -> dict[str, Any]:
    """An expectation as it is kept, checked. Errors: `ItemsProblem`."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ItemsProblem(f"{where}: NAME: VALUE pairs are wanted; names: {', '.join(EXPECTATIONS)}")
    found: dict[str, Any] = {"status": ["ok"]}
    for name, value in given.items():
        if name not in EXPECTATIONS:
            refuse(where, name, EXPECTATIONS, "expectation")
        found[name] = CHECKS[name](value, f"{where}: {name}")
    failing = [status for status in found["status"] if status != "ok"]
    if not failing and (odd := [name for name in OF_FAILURES if name in found]):
        raise ItemsProblem(f"{where}: {', '.join(odd)} is of a failure; add status: export_failed, say")
    measured = [name for name in found if name not in ("status", *OF_FAILURES)]
    if "ok" not in found["status"] and measured:
        raise ItemsProblem(
            f"{where}: {', '.join(measured)} cannot be asked of cells that fail; add ok to status, or leave it out"
        )
    refuse_empty_bounds(found, where)
    return found


def refuse_empty_bounds(found: Mapping[str, Any], where: str) -> None:
    """Two bounds between which there is nothing are a slip."""
    for low, high in ((a, b) for a in BOUNDS for b in BOUNDS if a in found and b in found):
        (one, least), (two, most) = BOUNDS[low], BOUNDS[high]
        empty = found[low] >= found[high] if least == "above" else found[low] > found[high]
        if one == two and most == "most" and least != "most" and empty:
            above = f"{low} {found[low]:g} is not below {high} {found[high]:g}"
            raise ItemsProblem(f"{where}: {above}: no number can be both")


def of(kept: Mapping[str, Any]) -> Expect:
    """An expectation from what is kept of it."""
    lists = {name: tuple(kept[name]) for name in ("status", *OF_FAILURES, "verdict") if name in kept}
    counts = {name: count_of(kept[name]) for name in COUNTS if name in kept}
    bounds = tuple((*BOUNDS[name], kept[name]) for name in BOUNDS if name in kept)
    texts = {EVERY: kept["text"]} if isinstance(kept.get("text"), str) else kept.get("text", {})
    return Expect(
        **lists,
        **counts,
        bounds=bounds,
        outcome={name: tuple(words) for name, words in kept.get("outcome", {}).items()},
        text={name: text_of(value, isinstance(kept["text"], str)) for name, value in texts.items()},
    )


def count_of(kept: Any) -> Count:
    if isinstance(kept, Mapping):
        return Count(kept.get("from", 0), kept.get("to"))
    return {"all": Count(), "none": Count(0, 0)}.get(kept) or Count(kept, kept)


def text_of(kept: Any, word: bool) -> Text:
    if word:
        return Text(same=kept == REFERENCE)
    same = None if "is" not in kept else kept["is"] == REFERENCE
    return Text(same, kept.get("equals"), tuple(kept.get("contains", ())))


def one_or_several(allowed: Sequence[str] | None, kind: str):
    """A check of a value, or a list of them. allowed: None for any text."""

    def check(value: Any, where: str) -> list[str]:
        found = value if isinstance(value, list) and value else [value]
        if allowed is None:
            return [text(one, where) for one in found]
        for one in found:
            if one not in allowed:
                refuse(where, one, allowed, kind)
        return found

    return check


def checked_count(value: Any, where: str) -> Any:
    """ "all", "none", a number, or {"from", "to"}."""
    if isinstance(value, Mapping):
        keys(value, (), ("from", "to"), where)
        ends = {name: whole(end, f"{where}: {name}") for name, end in value.items()}
        if ends.get("from", 0) > ends.get("to", math.inf) or not ends:
            raise ItemsProblem(f"{where}: {{from: N, to: M}} is wanted, N not above M, one of them at least")
        return ends
    return value if value in ("all", "none") else whole(value, where, "all, none, ")


def whole(value: Any, where: str, more: str = "") -> int:
    given = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        ranges = ", or {from: N, to: M}" if more else ""
        raise ItemsProblem(f"{where}: {value!r} is no number of prompts; allowed: {more}a whole number{ranges}")
    return given


def checked_number(value: Any, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        what = "multiple of the noise" if BOUNDS[where.rpartition(": ")[2]][0] == "multiple" else "difference"
        raise ItemsProblem(f"{where}: {value!r} is no {what}; allowed: a number, 0 or more")
    return number


def checked_outcome(value: Any, where: str) -> dict[str, list[str]]:
    if not isinstance(value, Mapping) or not value:
        raise ItemsProblem(f"{where}: PROMPT: WORD pairs are wanted; words: {', '.join(TEXT_OUTCOMES)}")
    check = one_or_several(TEXT_OUTCOMES, "outcome")
    return {text(name, where): check(words, f"{where}: {name}") for name, words in value.items()}


def checked_text(value: Any, where: str) -> Any:
    if isinstance(value, str):
        if value not in (REFERENCE, OTHER):
            refuse(where, value, (REFERENCE, OTHER, "PROMPT: TEXT pairs"), "text")
        return value
    if not isinstance(value, Mapping) or not value:
        raise ItemsProblem(f"{where}: reference, other, or PROMPT: TEXT pairs are wanted")
    found: dict[str, dict[str, Any]] = {}
    for name, wanted in value.items():
        wanted = wanted if isinstance(wanted, Mapping) else {"contains": wanted}
        keys(wanted, (), ("is", "equals", "contains"), f"{where}: {name}")
        if not wanted or ("is" in wanted and wanted["is"] not in (REFERENCE, OTHER)):
            raise ItemsProblem(f"{where}: {name}: is: reference, is: other, equals: TEXT or contains: TEXT is wanted")
        kept = {key: value if key == "is" else str(value) for key, value in wanted.items() if key != "contains"}
        if "contains" in wanted:
            kept["contains"] = one_or_several(None, "text")(wanted["contains"], f"{where}: {name}")
        found[text(name, where)] = kept
    return found


CHECKS = {
    "status": one_or_several(STATUSES, "status"),
    **{name: one_or_several(None, "text") for name in OF_FAILURES},
    "verdict": one_or_several(VERDICTS[:-1], "verdict"),  # the last is a failed cell's, which has a status
    **dict.fromkeys(COUNTS, checked_count),
    **dict.fromkeys(BOUNDS, checked_number),
    "outcome": checked_outcome,
    "text": checked_text,
}
