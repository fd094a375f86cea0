"""What a rotary cache computes: its frequencies, and the plain rule that comes nearest to them.

A cache holds cos(p f_j) and sin(p f_j) of positions p and pairs of dimensions
j < h, all times an amplitude. Plain rotary embeddings (Su et al. 2021,
arXiv:2104.09864) have f_j = theta ** (-j / h); linear scaling divides by a
factor. NumPy only; knows nothing of models or files. A fit is a guess:
`rope_causes` says whether it reproduces the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# A frequency is known to about one part in so many of the cache's own spacing, and a plain rule is fitted within it.
SLACK = 16.0
# The finest that fp32 products of position and frequency allow.
FP32 = 2.0**-23
# Steps of fp32 within which two ways to compute a frequency agree; an angle is off by so many at each position.
STEPS = 8 * 2.0**-24

Row = Callable[[int], tuple[np.ndarray, np.ndarray]]
Places = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Fit:
    """A cache's frequencies, and the plain rule f_j = theta ** (-j / h) / factor that comes nearest to them.

    frequencies: fp64 [h], radians a position, known to the relative accuracy
    `accuracy` from `least` on; weights: fp64 [h], how well each is known. theta
    and factor are None where fewer than two pairs rotate. worst: the largest
    |ln| by which a frequency leaves the rule.
    """

    frequencies: np.ndarray
    weights: np.ndarray
    amplitude: float
    theta: float | None
    factor: float | None
    worst: float
    accuracy: float
    least: float

    @property
    def plain(self) -> bool:
        return self.theta is not None and self.worst <= self.accuracy

    def factor_with(self, theta: float) -> float:
        """The factor that goes best with a theta."""
        known = self.frequencies > self.least
        places = np.flatnonzero(known) / len(self.frequencies)
        logs = -np.log(self.frequencies[known]) - places * np.log(theta)
        return float(np.exp((self.weights[known] * logs).sum() / self.weights[known].sum()))

    def shortest_numbers(self) -> tuple[float, float]:
        """theta and factor in the fewest digits that are as near as they are known."""
        theta = shortest(self.theta, lambda value: close(value, self.theta, self.accuracy))
        factor = self.factor_with(theta)
        return theta, shortest(factor, lambda value: close(value, factor, self.accuracy), first=1.0)


def of_cache(row: Row, count: int, spacing: float = FP32, smallest: float = 0.0) -> Fit:
    """The fit of a cache of `count` positions.

    row: a position -> cos [h] and sin [h]. spacing: of the cache's dtype just
    above 1 (2**-23 for fp32, 2**-10 for fp16); smallest: its smallest positive number (2**-24 for fp16).
    """
    amplitude = float(np.median(np.hypot(*(values.astype(np.float64) for values in row(0)))))
    frequencies, accuracy = unwrapped(row, count), max(SLACK * spacing, 1e-5)
    last = max(count - 1, 1)
    # At the last position that is looked at, a sine has as many steps.
    return fitted(frequencies, amplitude, accuracy, smallest / accuracy / last, spacing, last)


def of_frequencies(frequencies: np.ndarray, amplitude: float = 1.0) -> Fit:
    """The fit of frequencies that are known."""
    return fitted(np.asarray(frequencies, np.float64), amplitude, 1e-5, 0.0, FP32, 1)


def fitted(frequencies: np.ndarray, amplitude: float, accuracy: float, least: float, spacing: float, last: int) -> Fit:
    with np.errstate(invalid="ignore"):
        weights = (spacing / np.maximum(1, last * np.abs(frequencies)) + FP32) ** -2.0
    return Fit(frequencies, weights, amplitude, *plain_rule(frequencies, weights, least), accuracy, least)


def unwrapped(row: Row, count: int) -> np.ndarray:
    """The frequencies fp64 [h] of a cache, from its positions 1, 2, 4, … and the last: each says more exactly what the
    one before says, and how many whole turns are in it. Between -pi and pi: more in one position looks like less."""
    frequencies = np.zeros(len(row(0)[0]))
    position = 1
    while position < count:
        cos, sin = (values.astype(np.float64) for values in row(position))
        missed = np.arctan2(sin, cos) - position * frequencies
        frequencies = frequencies + (missed - 2 * np.pi * np.round(missed / (2 * np.pi))) / position
        if position == count - 1:
            break
        position = min(2 * position, count - 1)
    return frequencies


def plain_rule(frequencies: np.ndarray, weights: np.ndarray, least: float) -> tuple[float | None, float | None, float]:
    """theta, factor, and the largest |ln| that is left, of the weighted least-squares fit of
    ln f_j = -ln(factor) - (j / h) ln(theta) over the pairs that rotate by more than `least`."""
    rotating = np.flatnonzero(frequencies > least)
    if len(rotating) < 2 or not np.isfinite(frequencies).all() or frequencies.min() < 0:
        return None, None, 0.0
    places = np.stack([np.ones(len(rotating)), rotating / len(frequencies)], axis=1)
    logs = np.log(frequencies[rotating])
    roots = np.sqrt(weights[rotating])
    solved = np.linalg.lstsq(places * roots[:, None], logs * roots, rcond=None)[0]
    with np.errstate(over="ignore"):
        theta, factor = float(np.exp(-solved[1])), float(np.exp(-solved[0]))
    if not 0 < theta < np.inf or not 0 < factor < np.inf:
        return None, None, 0.0
    return theta, factor, float(np.abs(places @ solved - logs).max())


def offset(cos: np.ndarray, sin: np.ndarray, position: int, frequencies: np.ndarray) -> float | None:
    """By how many positions a row is another's than `position`'s, from the slowest pair to the fastest: each says more
    exactly what the one before says. None where no pair rotates."""
    by, found = 0.0, False
    angles = np.arctan2(sin, cos) - position * frequencies
    for pair in np.argsort(np.abs(frequencies)):
        if np.isfinite(frequencies[pair]) and abs(frequencies[pair]) > 0:
            missed = angles[pair] - by * frequencies[pair]
            by += (missed - 2 * np.pi * np.round(missed / (2 * np.pi))) / frequencies[pair]
            found = True
    return float(by) if found and np.isfinite(by) else None


def allowed(angles: np.ndarray, amplitude: float, dtype: np.dtype) -> np.ndarray:
    """By how much a cache's values may differ from the cos or sin of angles, for rounding alone."""
    step = 0.0 if dtype == np.float32 else steps(dtype)[0]
    return abs(amplitude) * (STEPS * (1 + np.abs(angles)) + step)


def alike(
    cos: np.ndarray, sin: np.ndarray, at: np.ndarray, frequencies: np.ndarray, amplitude: float, places: Places | None
) -> bool:
    """Whether the rows `at` of a cache are amplitude times cos and sin of places(p) * frequencies, to rounding."""
    angles = (at if places is None else places(at))[:, None] * frequencies
    bound = allowed(angles, amplitude, cos.dtype)
    for held, turn in ((cos, np.cos), (sin, np.sin)):
        expected = (amplitude * turn(angles)).astype(held.dtype).astype(np.float32)
        with np.errstate(invalid="ignore"):
            if not (np.abs(held[at].astype(np.float32) - expected) <= bound).all():
                return False
    return True


def steps(dtype: np.dtype) -> tuple[float, float]:
    """The step of a dtype just above 1, and its smallest positive number."""
    bits = np.uint16 if dtype.itemsize == 2 else np.uint32
    one = np.asarray(1, dtype).view(bits)
    return float((one + bits(1)).view(dtype).astype(np.float64)) - 1, float(bits(1).view(dtype).astype(np.float64))


def describe(fit: Fit, scaling: str = "", more: str = "") -> str:
    """A cache in a few words. scaling: what the kind of scaling is called, where it is known; more: of it."""
    pairs, rotating = len(fit.frequencies), np.count_nonzero(fit.frequencies)
    text = "no pair rotates"
    if fit.plain:
        theta, factor = fit.shortest_numbers()
        text = f"theta {plain_text(theta)}, factor {plain_text(factor)}"
    elif rotating:
        first, last = fit.frequencies[fit.frequencies != 0][[0, -1]]
        text = f"{scaling + ' scaling' if scaling else 'scaled'}, frequencies {number(first)} to {number(last)}"
        text += f" ({more})" if more else ""
    if 0 < rotating < pairs:
        text += f", {rotating} of {pairs} pairs rotate"
    return text + ("" if close(fit.amplitude, 1, fit.accuracy) else f", cos and sin times {number(fit.amplitude)}")


def shortest(
    value: float, check: Callable[[float], bool], first: float | None = None, default: float | None = None
) -> float:
    """`value` in the fewest digits that pass `check`; `first` where that does. None passes: `default`, else `value`."""
    if first is not None and check(first):
        return first
    for digits in range(1, 10):
        if check(near := float(f"{value:.{digits}g}")):
            return near
    return value if default is None else default


def close(one: float, other: float, relative: float) -> bool:
    return abs(one - other) <= relative * max(abs(one), abs(other))


def number(value: float) -> str:
    """A number in four digits; whole ones without a point."""
    return f"{round(value):d}" if close(value, round(value), 1e-4) and abs(value) < 1e7 else f"{value:.4g}"


def plain_text(value: float) -> str:
    """A number in all of its digits, without an exponent: published thetas are round numbers."""
    return np.format_float_positional(value, trim="-")
