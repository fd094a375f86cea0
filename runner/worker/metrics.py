"""The formulas of the comparison, each in one place. NumPy only.

Rows are the logits [vocab] of one step, reference first. Where the two are not
equally long (a padded vocabulary) the entries that both have are compared. An
entry that is -inf on both sides is masked on both and differs by nothing. All
is computed in float64, so that the comparison adds no error of its own.
"""

from __future__ import annotations

import numpy as np

# top-k: (absolute tolerance, relative tolerance), None for the whole vocabulary. DEFAULT_TOLERANCE_MAP of
# torch_neuronx.testing.validation, by which neuronx-distributed-inference checks logits.
BANDS = {5: (1e-5, 0.01), 50: (1e-5, 0.02), 1000: (1e-5, 0.03), None: (1e-5, 0.05)}
COUNTED = (0.1, 0.01)
OVERLAP = 5


def pair(reference: np.ndarray, candidate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both rows in float64, cut to their common length."""
    width = min(reference.shape[-1], candidate.shape[-1])
    return np.asarray(reference[:width], dtype=np.float64), np.asarray(candidate[:width], dtype=np.float64)


def abs_diff(reference: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """|reference - candidate| entry by entry: equal infinities 0, an infinity against a number inf, NaN NaN."""
    a, b = pair(reference, candidate)
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


def max_abs_diff(reference: np.ndarray, candidate: np.ndarray) -> float:
    """max_i |a_i - b_i|: the measure of the first seed document, and of most export checks."""
    diff = abs_diff(reference, candidate)
    return float(diff.max()) if len(diff) else 0.0


def mean_abs_diff(reference: np.ndarray, candidate: np.ndarray) -> float:
    """mean_i |a_i - b_i|: small beside the maximum where few entries are off, near it where all are."""
    diff = abs_diff(reference, candidate)
    return float(diff.mean()) if len(diff) else 0.0


def count_above(reference: np.ndarray, candidate: np.ndarray, threshold: float) -> int:
    """How many entries differ by more than `threshold`; a NaN does."""
    return int((~(abs_diff(reference, candidate) <= threshold)).sum())


def cosine(reference: np.ndarray, candidate: np.ndarray) -> float:
    """a·b / (|a| |b|) over the entries not masked on both sides; 1 for equal rows, zeros included.

    Blind to scale, and forgiving of few large errors: a second opinion, never the verdict.
    """
    a, b = pair(reference, candidate)
    kept = ~((a == -np.inf) & (b == -np.inf))
    a, b = a[kept], b[kept]
    if np.array_equal(a, b) and np.isfinite(a).all():
        return 1.0
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    # Scaled first: squares of huge or tiny logits would leave float64's range.
    a, b = a / (np.abs(a).max() or 1.0), b / (np.abs(b).max() or 1.0)
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(np.clip(a @ b / lengths, -1.0, 1.0)) if lengths else 0.0


def log_softmax(row: np.ndarray) -> np.ndarray:
    """log of the probabilities at temperature 1; NaN throughout where the row has none (NaN, +inf, all masked)."""
    with np.errstate(invalid="ignore"):
        shifted = row - row.max()
        return shifted - np.log(np.exp(shifted).sum())


def kl_divergence(reference: np.ndarray, candidate: np.ndarray) -> float:
    """KL(p || q) = Σ p_i (log p_i - log q_i), in nats, at temperature 1.

    p is the reference's: how many nats a sampler loses by using the candidate
    (Kullback and Leibler, 1951). inf where the candidate masks what the
    reference allows.
    """
    a, b = pair(reference, candidate)
    if not len(a):
        return 0.0
    log_p, log_q = log_softmax(a), log_softmax(b)
    possible = ~(log_p == -np.inf)
    with np.errstate(invalid="ignore"):
        ratios = log_p[possible] - log_q[possible]
        # However unlikely: exp(log_p) may be 0 in float64, and 0 times infinity is NaN.
        terms = np.where(ratios == np.inf, np.inf, np.exp(log_p[possible]) * ratios)
    return float(np.maximum(terms.sum(), 0.0))  # rounding may leave a hair below 0; a NaN stays one


def total_variation(reference: np.ndarray, candidate: np.ndarray) -> float:
    """½ Σ |p_i - q_i| at temperature 1: the most by which any event's probability differs.

    What sampling would notice: of 1/TV samples about one comes out otherwise.
    """
    a, b = pair(reference, candidate)
    if not len(a):
        return 0.0
    p, q = np.exp(log_softmax(a)), np.exp(log_softmax(b))
    return float(np.minimum(0.5 * np.abs(p - q).sum(), 1.0))


def mass_beyond(row: np.ndarray, width: int) -> float:
    """Σ p_i over the entries from `width` on: what they take of the probability at temperature 1; NaN without one."""
    return float(np.exp(log_softmax(np.asarray(row, dtype=np.float64)))[width:].sum())


def top(row: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest entries, largest first; of equal ones the lower id, as argmax has it."""
    k = min(k, len(row))
    if not k:
        return np.empty(0, dtype=np.int64)
    least = np.partition(row, len(row) - k)[len(row) - k]
    ids = np.flatnonzero(row >= least)
    return ids[np.argsort(-row[ids], kind="stable")][:k]


def top_overlap(reference: np.ndarray, candidate: np.ndarray, k: int = OVERLAP) -> float:
    """|top-k of a ∩ top-k of b| / k. NaN where a row has one: it has no order."""
    a, b = pair(reference, candidate)
    k = min(k, len(a))
    if np.isnan(a).any() or np.isnan(b).any():
        return float("nan")
    return len(np.intersect1d(top(a, k), top(b, k))) / k if k else 1.0


def band_error(reference: np.ndarray, candidate: np.ndarray, k: int | None) -> float:
    """max(|a_i - b_i| - atol) / max|a_i| over the reference's top k, entries masked on either side left out.

    As torch_neuronx.testing.validation computes it for `BANDS`, but without
    first removing a constant shift of the candidate: a shift is an error too.
    """
    a, b = pair(reference, candidate)
    kept = ~((a == -np.inf) | (b == -np.inf))
    a, b = a[kept], b[kept]
    if not len(a):
        return 0.0
    if np.isnan(a).any() or np.isnan(b).any():
        return float("nan")
    if k is not None:
        ids = top(a, k)
        a, b = a[ids], b[ids]
    worst = max(0.0, max_abs_diff(a, b) - BANDS[k][0])
    largest = float(np.abs(a).max())
    if not np.isfinite(largest):
        return float("nan")
    return worst / largest if largest else (float("inf") if worst else 0.0)


def top_gap(row: np.ndarray) -> float:
    """How far the largest entry is above the second: what a difference must exceed to change a greedy token."""
    if len(row) < 2:
        return float("inf")
    first, second = np.asarray(row[top(row, 2)], dtype=np.float64) if not np.isnan(row).any() else (np.nan, np.nan)
    return float(first - second) if first != second else 0.0


def matched_tokens(reference: list[int], candidate: list[int]) -> int:
    """How many leading tokens of the two continuations are the same."""
    count = 0
    for a, b in zip(reference, candidate, strict=False):
        if a != b:
            break
        count += 1
    return count


def worst(values: list[float]) -> float:
    """The largest; one NaN is the worst there is (Python's max depends on the order with it)."""
    return next((value for value in values if value != value), max(values, default=0.0))


def least(values: list[float]) -> float:
    """The smallest; one NaN is the worst there is."""
    return next((value for value in values if value != value), min(values, default=0.0))


def kind(value: float | None) -> str:
    """How a number is stored: finite, nan, +inf or -inf (databases lose the last three)."""
    if value is None or np.isfinite(value):
        return "finite"
    if np.isnan(value):
        return "nan"
    return "+inf" if value > 0 else "-inf"


# One number a step, by name; `diff` stands first.
STEP_METRICS = {
    "logits_max_abs_diff": max_abs_diff,
    "logits_mean_abs_diff": mean_abs_diff,
    "cosine": cosine,
    "kl": kl_divergence,
    "total_variation": total_variation,
    f"top{OVERLAP}_overlap": top_overlap,
    **{f"above_{t:g}": lambda a, b, t=t: count_above(a, b, t) for t in COUNTED},
    **{f"band_{k or 'all'}": lambda a, b, k=k: band_error(a, b, k) for k in BANDS},
}


def over_steps(steps: dict[str, list[float]]) -> dict[str, float]:
    """The numbers of a whole continuation from those of its steps (`STEP_METRICS`).

    Worst step, save: counts add up, the mean difference is the mean of steps,
    and the KL divergence has mean, median, 99th percentile and largest.
    """
    whole: dict[str, float] = {}
    for name, values in steps.items():
        if name == "kl":
            whole |= {f"kl_{word}": value for word, value in spread(values).items()}
        elif name == "logits_mean_abs_diff":
            whole[name] = float(np.mean(values))
        elif name.startswith("above_"):
            whole[name] = float(sum(values))
        else:
            whole[name] = least(values) if name in ("cosine", f"top{OVERLAP}_overlap") else worst(values)
    return whole


def spread(values: list[float]) -> dict[str, float]:
    """Mean, median, 99th percentile (linear between steps) and maximum; one NaN makes all of them NaN."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if np.isnan(ordered).any():
        return dict.fromkeys(("mean", "median", "p99", "max"), float("nan"))
    if np.isinf(ordered).any():
        # A quantile between a number and an infinity has no value: take the step above it.
        nearest = np.percentile(ordered, (50, 99), method="higher")
        return {"mean": float("inf"), "median": float(nearest[0]), "p99": float(nearest[1]), "max": float("inf")}
    median, p99 = np.percentile(ordered, (50, 99))
    return {"mean": float(ordered.mean()), "median": float(median), "p99": float(p99), "max": float(ordered[-1])}
