"""Why numbers of an export are not the reference's, said only where that gives the export's to the last bit.

NumPy only; knows nothing of models or files.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Rounding = Callable[[np.ndarray], np.ndarray]


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """fp32 values rounded to the nearest bfloat16, ties to even, as fp32. Finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def cut_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """fp32 values whose lower 16 bits are dropped, as fp32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def to_float16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


# Words, and what they do to fp32 values; an export that holds that dtype is compared in it, and has not rounded.
COARSE: dict[str, tuple[str, Rounding]] = {
    "rounded to bfloat16": ("bfloat16", to_bfloat16),
    "rounded to float16": ("float16", to_float16),
    "cut off to bfloat16": ("bfloat16", cut_to_bfloat16),
}


def equal(values: np.ndarray, held: np.ndarray) -> bool:
    """Whether fp32 values are those that an export holds, in the export's dtype."""
    return np.array_equal(values.astype(np.float32).astype(held.dtype), held)


def coarser(values: np.ndarray, held: np.ndarray) -> str:
    """How fp32 values were rounded on their way into an export: "rounded to bfloat16"; "" where no rounding that was
    tried gives what the export holds. Two that give the same are both told."""
    tried = [text for text, (name, rounds) in COARSE.items() if name != held.dtype.name and equal(rounds(values), held)]
    # Where rounding and cutting off give the same, rounding is what happens.
    told = [text for text in tried if not text.startswith("cut")] or tried
    return " or ".join(told)


def weight_cause(weight: np.ndarray, stored: np.ndarray | None, offset: int | None, rule: str, held: np.ndarray) -> str:
    """Why a norm's weight (fp32, the effective one) differs. stored: the parameter, to which `offset` is added."""
    if how := coarser(weight, held):
        return f"{rule} {how}"
    if stored is not None and offset == 1 and equal(stored, held):
        return "1 is not added to the weight"
    if stored is not None and offset == 0 and equal(stored + np.float32(1), held):
        return "1 is added to the weight"
    if stored is not None and offset == 1:
        for text, (_, rounds) in COARSE.items():
            if equal(rounds(stored) + np.float32(1), held):
                return f"the weight {text}, and 1 added"
    return "the weight has other values"


def number_cause(ours: float, theirs: np.ndarray) -> str:
    """How a number was rounded: "rounded to 10.2"; "" where no rounding that was tried gives what the export holds."""
    held = np.asarray(theirs)
    for digits in range(5):
        short = round(ours, digits)
        if short and np.asarray(short).astype(held.dtype) == held:
            return f"rounded to {short:.8g}"
    return coarser(np.asarray([ours], np.float32), held.reshape(1))
