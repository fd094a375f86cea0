"""What a rotary cache computes, and how two of them differ, in words.

A cache holds cos(p f_j) and sin(p f_j) of positions p and pairs of dimensions
j < h, all times an amplitude. Plain rotary embeddings (Su et al. 2021,
arXiv:2104.09864) have f_j = theta ** (-j / h); linear scaling divides by a
factor. NumPy only; knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# A frequency is known to about one part in so many of the cache's own spacing, and a plain rule is fitted within it.
SLACK = 16.0
# The finest that fp32 products of position and frequency allow.
FP32 = 2.0**-23

Row = Callable[[int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Fit:
    """A cache's frequencies, and the plain rule f_j = theta ** (-j / h) / factor that comes nearest to them.

    frequencies: fp64 [h], radians a position, known to the relative accuracy
    `accuracy` from `least` on. theta and factor are None where fewer than two
    pairs rotate. worst: the largest |ln| by which a frequency leaves the rule.
    """

    frequencies: np.ndarray
    amplitude: float
    theta: float | None
    factor: float | None
    worst: float
    accuracy: float
    least: float

    @property
    def plain(self) -> bool:
        return self.theta is not None and self.worst <= self.accuracy


def of_cache(row: Row, count: int, spacing: float = FP32, smallest: float = 0.0) -> Fit:
    """The fit of a cache of `count` positions.

    row: a position -> cos [h] and sin [h]. spacing: of the cache's dtype just
    above 1 (2**-23 for fp32, 2**-10 for fp16); smallest: its smallest positive number (2**-24 for fp16).
    """
    amplitude = float(np.median(np.hypot(*(values.astype(np.float64) for values in row(0)))))
    frequencies, accuracy = unwrapped(row, count), max(SLACK * spacing, 1e-5)
    # At the last position that is looked at, a sine has as many steps.
    least = smallest / accuracy / 2 ** int(np.log2(max(count - 1, 1)))
    return Fit(frequencies, amplitude, *plain_rule(frequencies, least), accuracy, least)


def unwrapped(row: Row, count: int) -> np.ndarray:
    """The frequencies fp64 [h] of a cache, from its positions 1, 2, 4, …: each says more exactly what the one before
    says, and how many whole turns are in it. Between -pi and pi: more in one position looks like less."""
    frequencies = np.zeros(len(row(0)[0]))
    position = 1
    while position < count:
        cos, sin = (values.astype(np.float64) for values in row(position))
        missed = np.arctan2(sin, cos) - position * frequencies
        frequencies = frequencies + (missed - 2 * np.pi * np.round(missed / (2 * np.pi))) / position
        position *= 2
    return frequencies


def plain_rule(frequencies: np.ndarray, least: float) -> tuple[float | None, float | None, float]:
    """theta, factor, and the largest |ln| that is left, of the least-squares fit of
    ln f_j = -ln(factor) - (j / h) ln(theta) over the pairs that rotate by more than `least`."""
    rotating = np.flatnonzero(frequencies > least)
    if len(rotating) < 2 or frequencies.min() < 0:
        return None, None, 0.0
    places = np.stack([np.ones(len(rotating)), rotating / len(frequencies)], axis=1)
    logs = np.log(frequencies[rotating])
    solved = np.linalg.lstsq(places, logs, rcond=None)[0]
    return float(np.exp(-solved[1])), float(np.exp(-solved[0])), float(np.abs(places @ solved - logs).max())


def describe(fit: Fit, scaling: str = "") -> str:
    """A cache in a few words. scaling: what the kind of scaling is called, where it is known."""
    pairs, rotating = len(fit.frequencies), np.count_nonzero(fit.frequencies)
    text = "no pair rotates"
    if fit.plain:
        text = f"theta {theta_text(fit.theta, fit.accuracy)}, factor {number(fit.factor)}"
    elif rotating:
        first, last = fit.frequencies[fit.frequencies != 0][[0, -1]]
        text = f"{scaling + ' scaling' if scaling else 'scaled'}, frequencies {number(first)} to {number(last)}"
    if 0 < rotating < pairs:
        text += f", {rotating} of {pairs} pairs rotate"
    return text + ("" if close(fit.amplitude, 1, fit.accuracy) else f", cos and sin times {number(fit.amplitude)}")


def difference(reference: Fit, export: Fit, scaling: str = "", theta: float | None = None) -> str:
    """How an export's frequencies and amplitude differ from the reference's: "" where they do not.

    A predicate, to follow "local layers": "rotate at 1/8 of the reference's
    frequency". scaling: as for `describe`, the reference's; theta: what it scales, where that is known.
    """
    said = []
    if (width := len(export.frequencies)) != len(reference.frequencies):
        said.append(f"rotate {2 * width} dimensions instead of {2 * len(reference.frequencies)}")
    elif frequency := frequency_difference(reference, export, scaling, theta):
        said.append(frequency)
    if not close(export.amplitude, reference.amplitude, accuracy_of(reference, export)):
        said.append(f"have cos and sin times {number(export.amplitude)} instead of {number(reference.amplitude)}")
    return " and ".join(said)


def frequency_difference(reference: Fit, export: Fit, scaling: str, theta: float | None) -> str:
    """What of `difference` is of frequencies; both have equally many."""
    accuracy = accuracy_of(reference, export)
    if said := standing_difference(reference, export):
        return said
    least = max(reference.least, export.least)
    known = (reference.frequencies > least) & (export.frequencies > least)
    logs = np.log(export.frequencies[known] / reference.frequencies[known])
    if not len(logs) or np.abs(logs).max() <= accuracy:
        return ""
    if logs.max() - logs.min() <= 2 * accuracy:
        return ratio_text(float(np.exp(np.median(logs))), reference, accuracy)
    if reference.plain and export.plain:
        thetas = f"rotate with theta {theta_text(export.theta, accuracy)} instead of {theta_text(reference.theta)}"
        same = close(reference.factor, export.factor, 4 * accuracy)
        return thetas + ("" if same else f" and factor {number(export.factor)} instead of {number(reference.factor)}")
    largest = largest_text(logs, known)
    if reference.plain:
        return f"have a scaling that the reference lacks: {largest}"
    unscaled = export.plain and close(export.factor, 1, 4 * accuracy)
    if unscaled and scaling and theta and close(export.theta, theta, 20 * accuracy):
        return f"have lost the {scaling} scaling: {largest}"
    return f"have another kind of scaling: {largest}"


def standing_difference(reference: Fit, export: Fit) -> str:
    """Pairs that rotate on one side alone, or as none should."""
    if export.frequencies.min() < 0 <= reference.frequencies.min():
        pair = int(export.frequencies.argmin())
        by = number(export.frequencies[pair])
        return f"turn backwards, or by more than half a turn a position: pair {pair} by {by}"
    least = max(reference.least, export.least)
    still = (reference.frequencies > least) & (export.frequencies == 0)
    extra = (export.frequencies > least) & (reference.frequencies == 0)
    if not still.any() and not extra.any():
        return ""
    counts = [np.count_nonzero(fit.frequencies) for fit in (export, reference)]
    return f"rotate {counts[0]} of {len(export.frequencies)} pairs instead of {counts[1]}"


def ratio_text(ratio: float, reference: Fit, accuracy: float) -> str:
    """All frequencies are the reference's times `ratio`."""
    if reference.plain and not close(reference.factor, 1, accuracy) and close(ratio, reference.factor, 4 * accuracy):
        return f"have lost the linear scaling by {number(ratio)}: they rotate {times(ratio)} as fast"
    return f"rotate at {times(ratio)} the reference's frequency"


def times(ratio: float) -> str:
    """A ratio as a reader says it: "1/8 of", "8 times"."""
    inverse = 1 / ratio
    if ratio < 1 and close(inverse, round(inverse), 1e-3):
        return f"1/{round(inverse)} of"
    return f"{number(ratio)} times"


def largest_text(logs: np.ndarray, known: np.ndarray) -> str:
    at = int(np.abs(logs).argmax())
    return f"largest frequency ratio {number(np.exp(logs[at]))} at pair {int(np.flatnonzero(known)[at])}"


def accuracy_of(one: Fit, other: Fit) -> float:
    return max(one.accuracy, other.accuracy)


def close(one: float, other: float, relative: float) -> bool:
    return abs(one - other) <= relative * max(abs(one), abs(other))


def number(value: float) -> str:
    """A number in four digits; whole ones without a point."""
    return f"{round(value):d}" if close(value, round(value), 1e-4) and abs(value) < 1e7 else f"{value:.4g}"


def theta_text(theta: float, accuracy: float = 0.0) -> str:
    """theta in four digits, two where it is not known better, and no exponent: published ones are round numbers."""
    digits = (3 if accuracy < 1e-3 else 1) - int(np.floor(np.log10(theta)))
    return f"{round(theta, digits):.{max(digits, 0)}f}"
