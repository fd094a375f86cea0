"""Why a matrix of an export differs from the checkpoint's: a cause is told where it explains every value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from weights_rows import EPS, Floats, Part, chunks, compared, values

if TYPE_CHECKING:
    from weights_reference import Wanted

# Rows that are named one by one; more are counted.
MOST_ROWS = 4
# A factor explains a matrix where it leaves so much of it, in multiples of fp32's or the export's own rounding.
FACTOR = 4

Rows = Callable[[int, int], np.ndarray]


def explained(item: Wanted, part: Part, others: Iterable[Wanted]) -> str:
    """What a part holds in place of a matrix, in words."""
    for other in others:
        if other.tensor is not item.tensor and other.shape == item.shape and holds(part, other.values):
            return f"holds {other.named(item.layer)}"
    for other in others:  # in the rows of a packed one
        rows, columns = item.shape
        if other.shape[1] == columns and other.shape[0] > rows and not other.shape[0] % rows:
            for first in range(0, other.shape[0], rows):
                if holds(part, other.rows(first, first + rows).values):
                    return f"holds rows {first}-{first + rows - 1} of {other.named(item.layer)}"
    return turned(item, part) or rounded(item, part) or scaled(item, part) or rows_that_differ(item, part)


def holds(part: Part, rows: Rows) -> bool:
    """Whether a part holds a matrix; its first rows are looked at first."""
    whole = part.shape[0]
    few = min(whole, 8)
    for first, end in [(0, few), *chunks(part.shape)]:
        if compared(part, rows(first, end), first, end).off.any():
            return False
    return True


def turned(item: Wanted, part: Part) -> str:
    """Rows and columns in another place."""
    rows = item.shape[0]
    if item.shape[0] == item.shape[1] and holds(part, item.columns):
        return "is transposed"
    if holds(part, lambda a, b: item.values(rows - b, rows - a)[::-1]):
        return "has its rows in reverse"
    if holds(part, lambda a, b: item.values(a, b)[:, ::-1]):
        return "has its columns in reverse"
    if isinstance(part.matrix, Floats) and same_rows(item, part):
        return "has its rows in another order"
    return ""


def same_rows(item: Wanted, part: Part) -> bool:
    """Whether a part of floats has a matrix's rows, in whatever order."""
    ours, theirs = [], []
    for first, end in chunks(item.shape):
        with np.errstate(over="ignore"):
            cast = item.values(first, end).astype(part.dtype).astype(np.float32)
        ours += [hash(row.tobytes()) for row in cast]
        theirs += [hash(row.tobytes()) for row in values(part, first, end)]
    return sorted(ours) == sorted(theirs)


def rounded(item: Wanted, part: Part) -> str:
    """Floats that were cast to a coarser dtype on the way."""
    if not isinstance(part.matrix, Floats):
        return ""
    for name, coarse in (("float16", in_half), ("bfloat16", in_brain)):
        if name != part.dtype.name and holds(part, lambda a, b, to=coarse: to(item.values(a, b))):
            return f"rounded to {name}"
    return ""


def in_half(rows: np.ndarray) -> np.ndarray:
    """fp32 values as fp16 has them."""
    with np.errstate(over="ignore"):
        return rows.astype(np.float16).astype(np.float32)


def in_brain(rows: np.ndarray) -> np.ndarray:
    """fp32 values as bf16 has them: the upper half of their bits, ties to even."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


def scaled(item: Wanted, part: Part) -> str:
    """All values times one number."""
    if not isinstance(part.matrix, Floats):
        return ""
    ours, theirs = item.values(0, item.shape[0]).ravel(), values(part, 0, part.shape[0]).ravel()
    at = int(np.abs(ours).argmax())
    if not ours[at] or not theirs[at] or not np.isfinite(theirs[at]):
        return ""
    factor = float(theirs[at]) / float(ours[at])
    allowed = FACTOR * EPS[part.dtype.name] * np.abs(theirs) + (2.0**-24 if part.dtype == np.float16 else 1e-37)
    if factor != 1 and bool((np.abs(theirs - factor * ours) <= allowed).all()):
        return f"is {factor:.6g} times the checkpoint's"
    return ""


def differing(item: Wanted, part: Part) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Rows that differ: number, what is off [columns], what the export holds [columns]."""
    for first, end in chunks(item.shape):
        off = compared(part, item.values(first, end), first, end).off
        rows = np.flatnonzero(off.any(axis=1))
        if len(rows):
            held = values(part, first, end)
            for row in rows:
                yield first + int(row), off[row], held[row]


def rows_that_differ(item: Wanted, part: Part) -> str:
    """Which rows differ, and by how much."""
    count, largest, at, first, zeros = 0, -1.0, (0, 0), [], []
    for row, off, held in differing(item, part):
        count += 1
        if len(first) < MOST_ROWS:
            first.append(row)
        if not held.any():
            zeros.append(row)
        if float(off.max()) > largest:
            largest, at = float(off.max()), (row, int(off.argmax()))
    where = f"largest {largest:.2g} at [{at[0]}, {at[1]}]"
    if count == item.shape[0]:
        return "is zero in the export" if len(zeros) == count else f"differs, {where}"
    named = f"row{'s' if count > 1 else ''} {', '.join(map(str, first))}{', …' if count > len(first) else ''}"
    total = f" of {item.shape[0]}" if count <= len(first) else f" ({count} of {item.shape[0]})"
    if len(zeros) == count:
        return f"is zero in {named}{total}: {where}"
    return f"differs in {named}{total}: {where}"
