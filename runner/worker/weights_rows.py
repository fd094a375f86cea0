"""Matrices that an export holds, as rows of outputs: floats, and whole numbers in blocks with a step each.

A matrix is never held whole: whoever compares it asks for some of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# The relative rounding of floats.
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# Values looked at at a time.
AT_ONCE = 1 << 22
# How far from the nearest step a quantiser's own rounding may leave a value, in steps.
TIE = 2e-3
# What is not the nearest step is called rounded up to so many steps, and else another value.
COARSEST = 1.0
# A block's step is at most so many times what its largest value needs.
WIDEST = 1.3


@dataclass(frozen=True)
class Floats:
    """A matrix [rows, columns] of floats; a view of what is on disk."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def values(self, first: int, end: int) -> np.ndarray:
        """Rows as fp32 [n, columns]."""
        return np.ascontiguousarray(self.array[first:end]).astype(np.float32)

    def said(self) -> str:
        return f"{list(self.shape)} in {self.dtype.name}"


@dataclass(frozen=True)
class Quantised:
    """A matrix [rows, columns] of whole numbers of `bits` bits, blocks of `block` along a row with a step each.

    packed: uint8 [rows, bytes], low bits first; steps: float [rows, blocks];
    zeros: what stands for 0, float or whole [rows, blocks], or one number.
    """

    packed: np.ndarray
    steps: np.ndarray
    zeros: np.ndarray | float
    bits: int
    block: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.columns

    @property
    def dtype(self) -> np.dtype:
        return self.packed.dtype

    def stored(self, first: int, end: int) -> np.ndarray:
        """The whole numbers of some rows, as fp32 [n, columns]."""
        return unpacked(self.packed[first:end], self.bits)[:, : self.columns].astype(np.float32)

    def wide(self, per_block: np.ndarray | float, first: int, end: int) -> np.ndarray:
        """What each block has, at each of its columns: fp32 [n, columns]."""
        if np.ndim(per_block) == 0:
            return np.float32(per_block)
        rows = np.asarray(per_block[first:end]).astype(np.float32)
        return np.repeat(rows, self.block, axis=1)[:, : self.columns]

    def values(self, first: int, end: int) -> np.ndarray:
        step, zero = self.wide(self.steps, first, end), self.wide(self.zeros, first, end)
        return (self.stored(first, end) - zero) * step

    def said(self) -> str:
        return f"{list(self.shape)} in int{self.bits}, blocks of {self.block}"


@dataclass(frozen=True)
class Part:
    """Some rows of a matrix: every `every`-th one from `first` on, before `end`."""

    matrix: Matrix
    first: int
    end: int
    every: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(range(self.first, self.end, self.every)), self.matrix.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.matrix.dtype

    def said(self) -> str:
        shape = list(self.matrix.shape)
        return self.matrix.said().replace(str(shape), str(list(self.shape)), 1)

    def whole(self) -> tuple[Matrix, slice]:
        return self.matrix, slice(self.first, self.end, self.every)


Matrix = Floats | Quantised


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [rows, bytes] as whole numbers [rows, values], low bits first."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).reshape(packed.shape[0], -1)


@dataclass
class Found:
    """What a comparison of rows found. off: |difference| where it is more than the export's dtype or step allows, and
    0 elsewhere, [n, columns]; largest: of all differences; exact: nothing was allowed for; steps: the largest distance
    from a quantised value, in steps."""

    off: np.ndarray
    largest: float
    exact: bool
    steps: float = 0.0


def compared(part: Part, ours: np.ndarray, first: int, end: int) -> Found:
    """Rows `first` to `end` of a part beside the reference's, fp32 [n, columns]."""
    matrix, at = part.whole()
    rows = range(at.start, at.stop, at.step)[first:end]
    if isinstance(matrix, Floats):
        return floats(ours, np.asarray(matrix.array[rows.start : rows.stop : rows.step]))
    if at.step != 1:
        matrix = every(matrix, rows)
        return quantised(matrix, ours, 0, len(rows))
    return quantised(matrix, ours, rows.start, rows.stop)


def every(matrix: Quantised, rows: range) -> Quantised:
    """A quantised matrix of some rows."""
    pick = slice(rows.start, rows.stop, rows.step)
    zeros = matrix.zeros if np.ndim(matrix.zeros) == 0 else matrix.zeros[pick]
    return Quantised(matrix.packed[pick], matrix.steps[pick], zeros, matrix.bits, matrix.block, matrix.columns)


def values(part: Part, first: int, end: int) -> np.ndarray:
    """Rows of a part as fp32 [n, columns]."""
    matrix, at = part.whole()
    rows = range(at.start, at.stop, at.step)[first:end]
    if isinstance(matrix, Floats):
        return np.asarray(matrix.array[rows.start : rows.stop : rows.step]).astype(np.float32)
    return every(matrix, rows).values(0, len(rows))


def floats(ours: np.ndarray, held: np.ndarray) -> Found:
    """Floats beside fp32 values cast to their dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        wanted, have = ours.astype(held.dtype).astype(np.float32), held.astype(np.float32)
        if np.array_equal(wanted, have):
            return Found(np.broadcast_to(np.float32(0), have.shape), 0.0, True)
        unlike = ~((wanted == have) | (np.isnan(wanted) & np.isnan(have)))
        off = np.where(unlike, np.abs(have - wanted), np.float32(0))
    off[np.isnan(off)] = np.inf
    return Found(off, float(off.max(initial=0.0)), not unlike.any())


def quantised(matrix: Quantised, ours: np.ndarray, first: int, end: int) -> Found:
    """Quantised rows beside fp32 values, each of which is due the nearest step of its block.

    A value beyond a block's last step is due that one: of a symmetric block
    the largest of one sign is a step beyond. A block's step must be one that
    its values need: a step as large as the values would excuse any of them.
    """
    step, zero = matrix.wide(matrix.steps, first, end), matrix.wide(matrix.zeros, first, end)
    stored = matrix.stored(first, end)
    last = 2**matrix.bits - 1
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        place = np.where(step == 0, zero, ours / step + zero)
        distance = np.abs(stored - np.clip(place, 0, last))
        beyond = np.maximum(-place, place - last)
        difference = np.abs((stored - zero) * step - ours)
    # A step that is kept in a half's precision is itself rounded.
    slack = TIE + np.abs(place - zero) * EPS[matrix.steps.dtype.name]
    wrong = ~((distance <= COARSEST + slack) & (beyond <= 1 + slack))
    wrong |= np.abs(step) > WIDEST * needed(matrix, ours)
    wrong |= (step == 0) & (ours != 0)
    near = not (wrong | (distance > 0.5 + slack)).any()
    return Found(
        np.where(wrong, difference, np.float32(0)), float(difference.max(initial=0.0)), near,
        float(distance.max(initial=0.0)),
    )  # fmt: skip


def needed(matrix: Quantised, ours: np.ndarray) -> np.ndarray:
    """The step that each block's largest value needs, at each column: fp32 [n, columns]."""
    spare = -ours.shape[1] % matrix.block
    blocks = np.pad(np.abs(ours), ((0, 0), (0, spare))).reshape(ours.shape[0], -1, matrix.block)
    # An all but empty block may have any small step.
    steps = np.maximum(blocks.max(axis=2) / (2 ** (matrix.bits - 1) - 1), np.float32(1e-6))
    return np.repeat(steps, matrix.block, axis=1)[:, : ours.shape[1]]


def chunks(shape: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are looked at at once."""
    rows = max(1, AT_ONCE // max(1, shape[1]))
    for first in range(0, shape[0], rows):
        yield first, min(first + rows, shape[0])
