"""Cells as a proof needs them: each prompt by itself, what a cell comes to, and whether one is better than another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.table import multiple
from reports.verdict_words import limit_of

# A change that moves an error by less than this factor has no effect: two runs of an export differ by nothing, and
# the same fault under another fault moves by some per cent.
MATTERS = 2.0
# What a prompt's text is beside the reference's, the better first. None: it says nothing of texts.
SAME, OTHER, WRONG = 0, 1, 2
SHOWN_NAMES = 3


@dataclass(frozen=True)
class PromptPoint:
    """One prompt of a cell.

    within: within the noise, near ties included. multiple: the largest
    difference in multiples of the noise, None without a floor or where it is
    not `finite`. text: SAME, OTHER (not the reference's, and whether it is wrong
    is not known), WRONG (the reference's answer is as expected, this one is not),
    or None where the reference makes no sense itself. limit: the multiple up to
    which it is noise. noisy: its floor is too large for a verdict.
    """

    name: str
    within: bool
    multiple: float | None
    text: int | None
    limit: float
    finite: bool = True
    noisy: bool = False

    @property
    def measured(self) -> bool:
        return not self.finite or self.multiple is not None

    @property
    def log_error(self) -> float | None:
        """How many powers of ten the error is beyond the noise; 0 within it."""
        if self.multiple is None:
            return None
        return max(0.0, math.log10(self.multiple / self.limit)) if self.multiple > 0 and not self.within else 0.0


@dataclass(frozen=True)
class Point:
    """A cell of a design. ok: the export was made and ran; without it there are no prompts."""

    ok: bool
    prompts: tuple[PromptPoint, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether it says anything: a failure does, a cell without a noise floor does not."""
        return not self.ok or any(prompt.measured for prompt in self.prompts)

    @property
    def within(self) -> bool:
        """Whether all prompts that can be judged are within the noise."""
        judged = [prompt.within for prompt in self.prompts if prompt.measured]
        return self.ok and bool(judged) and all(judged)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong as far as is known: within the noise, and no text of a prompt that has no verdict is
        another than the reference's."""
        return self.within and self.right

    @property
    def noisy(self) -> bool:
        """Whether it says nothing since its noise floors are too large for a verdict."""
        return not self.measured and any(prompt.noisy for prompt in self.prompts)

    @property
    def right(self) -> bool:
        """Whether it ran, and no prompt has a text that is not the reference's."""
        return self.ok and not any(prompt.text for prompt in self.prompts)

    @property
    def finite(self) -> bool:
        return all(prompt.finite for prompt in self.prompts)

    @property
    def multiple(self) -> float | None:
        """The largest of its prompts."""
        found = [prompt.multiple for prompt in self.prompts if prompt.multiple is not None]
        return max(found, default=None) if self.finite else None

    @property
    def log_error(self) -> float | None:
        """The mean over prompts of the powers of ten beyond the noise; None where there is no such number."""
        logs = [prompt.log_error for prompt in self.prompts if prompt.measured]
        if not self.ok or not logs or None in logs:
            return None
        return sum(logs) / len(logs)


def point_of(row: Mapping[str, Any], prompts: Iterable[Any]) -> Point:
    """The point that a cell's row (`db.query.cell_rows`) with its prompts (`db.detail.prompts_of`) is."""
    if row["status"] != "ok":
        return Point(False)
    limit = limit_of(row) or 1.0  # where nothing was judged, the floor itself
    return Point(True, tuple(prompt_point(prompt, limit) for prompt in prompts))


def prompt_point(prompt: Any, limit: float) -> PromptPoint:
    finite = prompt.verdict != "non_finite"
    ratios = [ratio for ratio in (prompt.noise_ratio, prompt.forced_noise_ratio) if ratio is not None]
    largest = max(ratios) if ratios and finite and prompt.verdict else None
    within = prompt.verdict in ("within_noise", "near_tie")
    text = text_of(prompt, within)
    if text is None and largest is not None:  # a text that says nothing takes nothing from the numbers
        within = largest <= limit
    noisy = prompt.verdict is None and bool(ratios)
    return PromptPoint(prompt.prompt, within, largest, text, limit, finite, noisy)


def text_of(prompt: Any, within: bool) -> int | None:
    if prompt.sensible is False:
        return None
    if prompt.tokens_identical or within:
        return SAME
    return WRONG if prompt.sensible and prompt.candidate_sensible is False else OTHER


def pairs(before: Point, after: Point) -> Iterator[tuple[PromptPoint, PromptPoint]]:
    """The prompts that two cells have in common, in order."""
    theirs = {prompt.name: prompt for prompt in after.prompts}
    return ((prompt, theirs[prompt.name]) for prompt in before.prompts if prompt.name in theirs)


def prompt_step(before: PromptPoint, after: PromptPoint) -> int:
    """1 where the second is better, -1 where it is worse, 0 where neither: by finiteness, text, noise, then size."""
    if before.finite != after.finite:
        return 1 if after.finite else -1
    if None not in (before.text, after.text) and before.text != after.text:
        return 1 if after.text < before.text else -1
    return number_step(before, after)


def number_step(before: PromptPoint, after: PromptPoint) -> int:
    """`prompt_step` by the multiples alone."""
    if before.multiple is None or after.multiple is None:
        return 0
    if before.within != after.within:
        return 1 if after.within else -1
    if before.within:
        return 0
    if before.multiple > MATTERS * after.multiple:
        return 1
    return -1 if after.multiple > MATTERS * before.multiple else 0


def step(before: Point, after: Point) -> int:
    """1 where the second cell is better, -1 where it is worse, 0 where neither.

    What runs is better than a failure; then the fewer prompts that are not
    finite; then the fewer and less wrong texts; then the numbers, prompt by
    prompt. Where some prompts become better and others worse, the sum of their
    log errors decides, and where that does not move it is worse: what breaks a
    prompt is no fix.
    """
    if before.ok != after.ok:
        return 1 if after.ok else -1
    both = list(pairs(before, after))
    finite = sum(b.finite - a.finite for a, b in both)
    if finite:
        return 1 if finite > 0 else -1
    texts = sum(a.text - b.text for a, b in both if None not in (a.text, b.text))
    if texts:
        return 1 if texts > 0 else -1
    moved = [number_step(a, b) for a, b in both]
    if 1 in moved and -1 in moved:
        known = [(a.log_error, b.log_error) for a, b in both if None not in (a.log_error, b.log_error)]
        return 1 if sum(a - b for a, b in known) > math.log10(MATTERS) else -1
    return max(moved, default=0) or min(moved, default=0)


def helps(before: Point, after: Point) -> bool:
    return step(before, after) > 0


def worsens(before: Point, after: Point) -> bool:
    return step(before, after) < 0


def mends(before: Point, after: Point) -> bool:
    """Whether what failed, was not finite or had another text than the reference's has none of these any more."""
    return not (before.ok and before.finite and before.right) and after.ok and after.finite and after.right


def told(point: Point | None) -> str:
    """A point in a few characters: its largest multiple of the noise, and how many of its texts are not right."""
    if point is None:
        return "no cell"
    return "a failure" if not point.ok else told_prompts(point.prompts)


def told_prompts(prompts: Sequence[PromptPoint]) -> str:
    if not all(prompt.finite for prompt in prompts):
        return "numbers that are not finite"
    found = [prompt.multiple for prompt in prompts if prompt.multiple is not None]
    if not found:
        return "no verdict, too noisy" if any(prompt.noisy for prompt in prompts) else "no noise floor"
    return " and ".join([f"{multiple(max(found))} × noise", *texts(prompts)])


def texts(prompts: Sequence[PromptPoint]) -> list[str]:
    """What is not right about texts: "wrong text" of all prompts, "another text in 2 of 5"."""
    said = []
    for level, words in ((WRONG, "wrong text"), (OTHER, "another text")):
        count = sum(prompt.text == level for prompt in prompts)
        if count:
            said.append(words if count == len(prompts) else f"{words} in {count} of {len(prompts)}")
    return said


def takes(before: Point, after: Point) -> str:
    """What a step does, as a sentence without its subject's name: by the largest multiple where all prompts go the
    same way, else by groups of prompts."""
    both = list(pairs(before, after))
    kinds = {prompt_step(a, b) for a, b in both}
    if not (before.ok and after.ok) or after.within or len(kinds) < 2:
        return f"it takes {told(before)} to {told(after)}"
    within, were = sum(b.within for _, b in both), sum(a.within for a, _ in both)
    parts = []
    if within > were:
        parts.append(f"{within} of {len(both)} prompts within the noise" + (f" ({were} without it)" if were else ""))
    for kind in (1, 0, -1):
        group = [(a, b) for a, b in both if prompt_step(a, b) == kind and not b.within]
        if group:
            one, two = (told_prompts([pair[side] for pair in group]) for side in (0, 1))
            parts.append(f"on {listed([a.name for a, _ in group])} {moved(one, two)}")
    return "; ".join(parts)


def moved(one: str, two: str) -> str:
    return f"{one} before and after" if one == two else f"{one} to {two}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first few of many."""
    if len(names) > SHOWN_NAMES + 1:
        return f"{', '.join(names[:SHOWN_NAMES])} and {len(names) - SHOWN_NAMES} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
