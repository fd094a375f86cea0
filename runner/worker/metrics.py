"""The formulas of the comparison, each in one place. NumPy only."""

from __future__ import annotations

import numpy as np


def max_abs_diff(reference: np.ndarray, candidate: np.ndarray) -> float:
    """Largest absolute difference of two rows of logits [vocab].

    Equal infinities (a masked token is -inf on both sides) differ by 0; an
    infinity against a number differs by inf; a NaN on either side gives NaN.
    Rows of unequal length (a padded vocabulary) are compared where both have
    entries. Computed in float64, so that the difference itself adds no error.
    """
    width = min(reference.shape[-1], candidate.shape[-1])
    a = np.asarray(reference[:width], dtype=np.float64)
    b = np.asarray(candidate[:width], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        diff = np.where(a == b, 0.0, np.abs(a - b))
    return float(diff.max()) if width else 0.0


def matched_tokens(reference: list[int], candidate: list[int]) -> int:
    """How many leading tokens of the two continuations are the same."""
    count = 0
    for a, b in zip(reference, candidate, strict=False):
        if a != b:
            break
        count += 1
    return count


def kind(value: float | None) -> str:
    """How a number is stored: finite, nan, +inf or -inf (databases lose the last three)."""
    if value is None or np.isfinite(value):
        return "finite"
    if np.isnan(value):
        return "nan"
    return "+inf" if value > 0 else "-inf"
