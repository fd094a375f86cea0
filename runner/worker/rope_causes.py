"""Why a rotary cache is not the reference's, said only where it reproduces the cache to rounding.

A cause is a hypothesis that is computed again for every position and pair and
compared with what the export holds. What no hypothesis reproduces has no cause.
NumPy only; knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import rope_fit
import rope_rules
from rope_fit import Fit, close, plain_text, shortest

# Positions at a time: 256 dimensions of them in fp32 are 8 MB.
AT_ONCE = 8192
# Digits in which a number is tried: the fewest that reproduce the cache are told.
DIGITS = range(1, 10)

Places = Callable[[np.ndarray], np.ndarray]
Check = Callable[[np.ndarray], bool]


@dataclass(frozen=True)
class Told:
    """What the reference rotates by.

    frequencies: fp64 [pairs]; scaling: what its kind is called, "" for none;
    said: the config's parameters of it, as `rope_rules.frequencies` takes them;
    others: what else the model rotates by: words ("as the global layers should"), frequencies, amplitude.
    """

    frequencies: np.ndarray
    amplitude: float = 1.0
    scaling: str = ""
    said: Mapping = field(default_factory=dict)
    others: tuple[tuple[str, np.ndarray, float], ...] = ()

    @property
    def fit(self) -> Fit:
        return rope_fit.of_frequencies(self.frequencies, self.amplitude)


@dataclass(frozen=True)
class Cache:
    """A cache as an export holds it: cos and sin [positions, pairs], and the spacing of its dtype just above 1."""

    cos: np.ndarray
    sin: np.ndarray

    @property
    def count(self) -> int:
        return min(len(self.cos), len(self.sin))

    def row(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        return self.cos[position].astype(np.float64), self.sin[position].astype(np.float64)

    def fit(self) -> Fit:
        return rope_fit.of_cache(self.row, self.count, *rope_fit.steps(self.cos.dtype))


def reproduces(cache: Cache, frequencies: np.ndarray, amplitude: float = 1.0, places: Places | None = None) -> bool:
    """Whether a cache is amplitude times cos and sin of places(p) * frequencies, at every position p and pair.

    To rounding: a few steps of fp32 of the angle, and one of the cache's own dtype.
    """
    frequencies = np.asarray(frequencies, np.float64)
    if frequencies.shape != cache.cos.shape[1:] or not np.isfinite(frequencies).all():
        return False
    count = cache.count
    few = np.unique(np.clip([0, 1, 2, 3, count // 3, count // 2, count - 2, count - 1], 0, count - 1))
    rows = [few, *(np.arange(start, min(count, start + AT_ONCE)) for start in range(0, count, AT_ONCE))]
    return all(rope_fit.alike(cache.cos, cache.sin, at, frequencies, amplitude, places) for at in rows)


def cause(cache: Cache, told: Told) -> str | None:
    """How a cache differs from the reference's, as a predicate that follows "local layers"; None where nothing that
    was tried reproduces it; "" where it is the reference's rotation to rounding."""
    for swapped in (False, True):
        held = Cache(cache.sin, cache.cos) if swapped else cache
        fit = held.fit()
        if np.isfinite(fit.frequencies).all() and reproduces(held, fit.frequencies, fit.amplitude):
            return joined(["have cos and sin swapped"] if swapped else [], held, fit, told, None)
    for text, fit, places in moved(cache, told):
        if reproduces(cache, fit.frequencies, fit.amplitude, places):
            return joined([text], cache, fit, told, places)
    return None


def joined(said: list[str], cache: Cache, fit: Fit, told: Told, places: Places | None) -> str:
    """`said`, and what is to be said of frequencies and amplitude."""
    amplitude = shortest(
        fit.amplitude, lambda value: reproduces(cache, fit.frequencies, value, places), first=told.amplitude
    )

    def check(frequencies: np.ndarray) -> bool:
        return reproduces(cache, frequencies, amplitude, places)

    for words, frequencies, other in told.others:
        if not check(told.frequencies) and close(other, amplitude, 1e-6) and check(frequencies):
            return " and ".join([*said, words])
    words = width_words(fit, told, check) if len(fit.frequencies) != len(told.frequencies) else ""
    if words := words or frequency_words(fit, told, check):
        said.append(words)
    if amplitude != told.amplitude:
        was = " (the attention factor is lost)" if amplitude == 1 else ""
        said.append(f"have cos and sin times {plain_text(amplitude)} instead of {plain_text_of(told.amplitude)}{was}")
    return " and ".join(said)


def plain_text_of(value: float) -> str:
    return plain_text(shortest(value, lambda near: close(near, value, 1e-7)))


def moved(cache: Cache, told: Told) -> Iterator[tuple[str, Fit, Places]]:
    """Caches whose rows are other positions': words, the fit, and position -> place."""
    count = cache.count
    if count < 4 or not all(np.isfinite(values).all() for values in (*cache.row(0), *cache.row(count // 2))):
        return
    ours = told.fit
    # By the reference's frequencies in the middle, where rows that wrap around or are cut off do no harm.
    if len(ours.frequencies) == cache.cos.shape[1]:
        by = rope_fit.offset(*cache.row(count // 2), count // 2, ours.frequencies)
        if by is not None and 0 < abs(whole := round(by)) < count and abs(by - whole) < 0.05:
            said = later(whole)
            yield said, ours, lambda p: p + whole
            yield f"{said}, and wrap around", ours, lambda p: (p + whole) % count
            yield f"{said}, and the row at the end again", ours, lambda p: np.clip(p + whole, 0, count - 1)
    # By frequencies of its own, which are those of the turns from row to row.
    first = complex_row(cache, 0)

    def turned(position: int) -> tuple[np.ndarray, np.ndarray]:
        values = complex_row(cache, position) * np.conj(first) / np.abs(first)
        return values.real, values.imag

    if not np.abs(first).all():
        return
    fit = rope_fit.of_cache(turned, count, *rope_fit.steps(cache.cos.dtype))
    by = rope_fit.offset(*cache.row(0), 0, fit.frequencies)
    if by is not None and abs(by) > 1e-3:
        by = float(round(by)) if abs(by - round(by)) < 0.02 else by
        yield later(by), fit, lambda p: p + by


def complex_row(cache: Cache, position: int) -> np.ndarray:
    cos, sin = cache.row(position)
    return cos + 1j * sin


def later(by: float) -> str:
    """Whose angle a position has."""
    size = f"{abs(by):.4g} position{'s' * (abs(by) != 1)}"
    return f"have at each position the angle of {size} {'later' if by > 0 else 'earlier'}"


def width_words(fit: Fit, told: Told, check: Check) -> str:
    """What is to be said of a cache of another width."""
    pairs, whole = len(fit.frequencies), len(told.frequencies)
    said = f"rotate {2 * pairs} dimensions instead of {2 * whole}"
    if pairs < whole and check(told.frequencies[:pairs]):
        return f"{said}, the reference's first"
    for twice, how in ((np.tile(told.frequencies, 2), "in halves"), (np.repeat(told.frequencies, 2), "as neighbours")):
        if check(twice):
            return f"{said}: each frequency is there twice, {how}"
    own = rope_rules.frequencies(told.scaling, told.said, pairs)
    if own is not None and check(own):
        return f"{said}, by the same rule over that width"
    for text, frequencies in rope_rules.alternatives(told.scaling, told.said, pairs):
        if check(frequencies):
            return f"{said} and {text}"
    numbers = plain_numbers(fit, check)
    if not numbers:
        return f"{said}, by no rule that was tried"
    return f"{said}, with theta {plain_text(numbers[0])}, factor {plain_text(numbers[1])}"


def frequency_words(fit: Fit, told: Told, check: Check) -> str:
    """What is to be said of frequencies that reproduce a cache of the reference's width."""
    if check(told.frequencies):
        return ""
    if fit.frequencies.min() < 0 <= told.frequencies.min():
        pair = int(fit.frequencies.argmin())
        if check(-told.frequencies):
            return "turn backwards: sin has the other sign"
        by = rope_fit.number(fit.frequencies[pair])
        return f"turn backwards, or by more than half a turn a position: pair {pair} by {by}"
    if said := standing_words(fit, told, check) or ratio_words(fit, told, check) or order_words(told, check):
        return said
    pairs = len(fit.frequencies)
    for text, frequencies in rope_rules.alternatives(told.scaling, told.said, pairs):
        if check(frequencies):
            return f"{text}: {largest_text(fit, told)}"
    ours, numbers = told.fit, plain_numbers(fit, check)
    if numbers and ours.plain:
        theta, factor = ours.shortest_numbers()
        theta = told.said.get("rope_theta", theta)
        said = f"rotate with theta {plain_text(numbers[0])} instead of {plain_text(theta)}"
        other = f" and factor {plain_text(numbers[1])} instead of {plain_text(factor)}"
        return said + ("" if close(numbers[1], factor, 1e-6) else other)
    if numbers:
        lost = f", without the {told.scaling} scaling" if told.scaling else ""
        return f"rotate with theta {plain_text(numbers[0])}, factor {plain_text(numbers[1])}{lost}"
    return f"rotate at other frequencies, by no rule that was tried: {largest_text(fit, told)}"


def standing_words(fit: Fit, told: Told, check: Check) -> str:
    """Pairs that rotate on one side alone."""
    still = (fit.frequencies == 0) & (told.frequencies > fit.least)
    extra = (told.frequencies == 0) & (fit.frequencies > fit.least)
    if not still.any() and not extra.any():
        return ""
    counts = [np.count_nonzero(values) for values in (fit.frequencies, told.frequencies)]
    said = f"rotate {counts[0]} of {len(fit.frequencies)} pairs instead of {counts[1]}"
    both = np.where(fit.frequencies == 0, 0, np.where(told.frequencies == 0, fit.frequencies, told.frequencies))
    return said if check(both) else f"{said}, at other frequencies"


def ratio_words(fit: Fit, told: Told, check: Check) -> str:
    """All frequencies are the reference's times a ratio."""
    known = (told.frequencies > fit.least) & (fit.frequencies > fit.least)
    logs = np.log(fit.frequencies[known] / told.frequencies[known])
    if not len(logs):
        return ""
    weights = fit.weights[known]
    ratio = float(np.exp((weights * logs).sum() / weights.sum()))
    inverse = shortest(1 / ratio, lambda value: check(told.frequencies / value), default=0.0) if ratio < 1 else 0.0
    whole = inverse and inverse == round(inverse)
    near = 0.0 if whole else shortest(ratio, lambda value: check(told.frequencies * value), default=0.0)
    if inverse and (not near or len(plain_text(inverse)) < len(plain_text(near))):
        return f"rotate at 1/{plain_text(inverse)} of the reference's frequency"
    if not near:
        return ""
    factor = told.said.get("factor") or told.fit.factor
    if told.scaling == "linear" and factor and close(near, factor, 1e-6):
        return f"have lost the linear scaling by {plain_text(near)}: they rotate {plain_text(near)} times as fast"
    return f"rotate at {plain_text(near)} times the reference's frequency"


def order_words(told: Told, check: Check) -> str:
    """The reference's frequencies at other pairs."""
    ours = told.frequencies
    pairs = len(ours)
    orders = {
        "have each of the first frequencies twice, as for neighbouring dimensions": np.repeat(ours, 2)[:pairs],
        "have every second frequency, twice over": np.tile(ours[::2], 2)[:pairs],
        "have the frequencies in reverse order": ours[::-1],
    }
    return next((text for text, values in orders.items() if check(values)), "")


def plain_numbers(fit: Fit, check: Check) -> tuple[float, float] | None:
    """theta and factor, in the fewest digits with which the plain rule reproduces a cache; None where it does not."""
    if fit.theta is None or fit.worst > 8 * fit.accuracy:
        return None
    pairs = len(fit.frequencies)
    tried: set[tuple[float, float]] = set()
    for digits in DIGITS:
        theta = float(f"{fit.theta:.{digits}g}")
        if theta <= 0 or not close(theta, fit.theta, 0.1 if digits < 3 else 0.01):
            continue
        for wanted in (0, *DIGITS):
            factor = float(f"{fit.factor_with(theta):.{wanted}g}") if wanted else 1.0
            if factor <= 0 or (theta, factor) in tried:
                continue
            tried.add((theta, factor))
            exact = theta ** (-np.arange(pairs) / pairs) / factor
            if check(rope_rules.plain(theta, pairs, factor)) or check(exact):
                return theta, factor
    return None


def largest_text(fit: Fit, told: Told) -> str:
    least = fit.least
    known = (told.frequencies > least) & (fit.frequencies > least)
    if not known.any():
        return "no pair rotates on both sides"
    logs = np.log(fit.frequencies[known] / told.frequencies[known])
    sizes = np.abs(logs)
    at = int(np.flatnonzero(sizes >= sizes.max() - fit.accuracy)[0])
    return f"largest frequency ratio {rope_fit.number(np.exp(logs[at]))} at pair {int(np.flatnonzero(known)[at])}"
