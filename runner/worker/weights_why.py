"""Why a matrix of an export differs from the checkpoint's: a cause is told where it explains every value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import ml_dtypes
import numpy as np
import weights_export
import weights_reference
from constants_entry import DIFFERS, ROUNDED, SAME, entry, rounding, unread
from constants_vectors import vector_entry
from weights_reference import Wanted
from weights_rows import Floats, Matrix, Part, Quantised, chunks, compared, values

COARSE = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
# Rows that are named one by one; more are counted.
MOST_ROWS = 4
# A factor explains a matrix where it leaves so much of it, in multiples of fp32's or the export's own rounding.
FACTOR = 4

Rows = Callable[[int, int], np.ndarray]


def explained(item: Wanted, part: Part, others: Iterable[Wanted]) -> str:
    """What a part holds in place of a matrix, in words."""
    for other in others:
        if other.tensor is not item.tensor and other.shape == item.shape and holds(part, other.values):
            return f"{item.what} holds {other.named(item.layer)}"
    for other in others:  # in the rows of a packed one
        rows, columns = item.shape
        if other.shape[1] == columns and other.shape[0] > rows and not other.shape[0] % rows:
            for first in range(0, other.shape[0], rows):
                if holds(part, other.rows(first, first + rows).values):
                    return f"{item.what} holds rows {first}-{first + rows - 1} of {other.named(item.layer)}"
    if said := turned(item, part) or rounded(item, part) or scaled(item, part):
        return f"{item.what} {said}"
    return f"{item.what} {rows_that_differ(item, part)}"


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
    tensor, rows = item.tensor, item.shape[0]
    if item.shape[0] == item.shape[1] and holds(part, lambda a, b: numbers(tensor.T[a:b])):
        return "is transposed"
    if holds(part, lambda a, b: numbers(tensor[rows - b : rows - a].flip(0))):
        return "has its rows in reverse"
    if holds(part, lambda a, b: numbers(tensor[a:b].flip(1))):
        return "has its columns in reverse"
    if isinstance(part.matrix, Floats) and same_rows(item, part):
        return "has its rows in another order"
    return ""


def numbers(tensor) -> np.ndarray:
    return tensor.detach().float().numpy()


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
    for name, dtype in COARSE.items():
        if dtype != part.dtype:
            with np.errstate(over="ignore"):
                cast = holds(part, lambda a, b, to=dtype: item.values(a, b).astype(to).astype(np.float32))
            if cast:
                return f"rounded to {name}"
    return ""


def scaled(item: Wanted, part: Part) -> str:
    """All values times one number."""
    if not isinstance(part.matrix, Floats):
        return ""
    ours, theirs = item.values(0, item.shape[0]).ravel(), values(part, 0, part.shape[0]).ravel()
    at = int(np.abs(ours).argmax())
    if not ours[at] or not theirs[at] or not np.isfinite(theirs[at]):
        return ""
    factor = float(theirs[at]) / float(ours[at])
    allowed = FACTOR * float(ml_dtypes.finfo(part.dtype).eps) * np.abs(theirs) + float(ml_dtypes.finfo(part.dtype).tiny)
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


def experts(ours: weights_reference.Experts, theirs: weights_export.Experts) -> list[dict]:
    """A layer's experts beside the export's, matrix by matrix and expert by expert."""
    found = []
    count = ours.gate_up.shape[0]
    first, second, third = theirs.matrices
    unknown = ours.alternate if isinstance(ours.alternate, str) else ""
    for name, matrix, bias, held_bias in (
        ("gate_up_proj", first, ours.gate_up_bias, theirs.biases[0]),
        ("down_proj", second, ours.down_bias, theirs.biases[1]),
    ):
        what = f"{ours.what}.{name}"
        shape = list(ours.gate_up.shape if name == "gate_up_proj" else ours.down.shape)
        if isinstance(matrix, str) or matrix is None or unknown:
            found.append(unread("weight", what, ours.layer, str(shape), unknown or matrix or "not found"))
            continue
        cut = expert_parts(matrix, count, name, theirs, third)
        if cut is None:
            found.append(unread("weight", what, ours.layer, str(shape), "the export's experts have another form"))
            continue
        found.append(expert_entry(what, ours, name, cut, matrix, shape))
        if bias is not None or (held_bias is not None and held_bias.any()):
            found.append(expert_bias(what, ours, name, bias, held_bias, theirs))
    return found


def expert_parts(
    matrix: Matrix, count: int, name: str, theirs: weights_export.Experts, third: Matrix | str | None
) -> list[dict[str, Part]] | None:
    """Of each expert the parts that hold gate and up, or down."""
    if matrix.shape[0] % count:
        return None
    rows = matrix.shape[0] // count
    if name == "down_proj":
        return [{"down_proj": Part(matrix, n * rows, (n + 1) * rows)} for n in range(count)]
    starts = range(0, matrix.shape[0], rows)
    if theirs.fusion == 1:
        return [
            {"gate_proj": Part(matrix, n, n + rows, 2), "up_proj": Part(matrix, n + 1, n + rows, 2)} for n in starts
        ]
    if theirs.fusion == 2:
        half = rows // 2
        return [{"gate_proj": Part(matrix, n, n + half), "up_proj": Part(matrix, n + half, n + rows)} for n in starts]
    if third is None or isinstance(third, str) or third.shape[0] != matrix.shape[0]:
        return None
    return [{"gate_proj": Part(matrix, n, n + rows), "up_proj": Part(third, n, n + rows)} for n in starts]


def expert_matrix(ours: weights_reference.Experts, name: str, expert: int):
    """An expert's gate, up or down, [rows, columns]."""
    if name == "down_proj":
        down = ours.down[expert]
        return down.T if ours.turned else down
    rows = ours.gate_up[expert].T if ours.turned else ours.gate_up[expert]
    width = rows.shape[0] // 2
    if ours.alternate:
        return rows[0::2] if name == "gate_proj" else rows[1::2]
    return rows[:width] if name == "gate_proj" else rows[width:]


def expert_entry(
    what: str, ours: weights_reference.Experts, name: str, cut: list[dict[str, Part]], matrix: Matrix,
    shape: list[int],
) -> dict:  # fmt: skip
    """A matrix of all experts as one entry; the first expert that differs is told."""
    wanted = [
        Wanted(ours.layer, f"expert {n}'s {place}", place, expert_matrix(ours, place, n))
        for n, parts in enumerate(cut)
        for place in parts
    ]
    held = [part for parts in cut for part in parts.values()]
    largest, exact, bad = 0.0, True, []
    for item, part in zip(wanted, held, strict=True):
        if item.shape != part.shape:
            return unread("weight", what, ours.layer, str(shape), f"the export's have the shape {list(part.shape)}")
        for first, end in chunks(item.shape):
            found = compared(part, item.values(first, end), first, end)
            largest, exact = max(largest, found.largest), exact and found.exact
            if found.off.any():
                bad.append((item, part))
                break
    texts = str(shape), matrix.said()
    if not bad:
        if isinstance(matrix, Quantised):
            said = "the nearest steps" if exact else "steps, not all of them the nearest"
            return entry("weight", what, ours.layer, *texts, ROUNDED, said, largest)
        return entry("weight", what, ours.layer, *texts, SAME, rounding(SAME, matrix.dtype), largest)
    item, part = bad[0]
    said = explained(item, part, wanted)
    more = f", and {len(bad) - 1} of {len(wanted) - 1} others differ" if len(bad) > 1 else ""
    return entry("weight", what, ours.layer, *texts, DIFFERS, said + more, largest)


def expert_bias(
    what: str, ours: weights_reference.Experts, name: str, bias, held: np.ndarray | None, theirs: weights_export.Experts
) -> dict:
    """The biases of all experts, in the order of the export's rows."""
    values_ = None if bias is None else bias.detach().float().numpy()
    if values_ is not None and name == "gate_up_proj" and held is not None:
        half = values_.shape[1] // 2
        gates, ups = (values_[:, 0::2], values_[:, 1::2]) if ours.alternate else (values_[:, :half], values_[:, half:])
        if theirs.fusion == 1:
            values_ = np.stack([gates, ups], axis=2).reshape(values_.shape)
        elif theirs.fusion == 2:
            values_ = np.concatenate([gates, ups], axis=1)
        elif held.shape[1] == half:
            return unread("bias", what, ours.layer, f"{values_.size} values", "kept in two vectors")
    flat = None if values_ is None else values_.reshape(-1)
    return vector_entry("bias", what, ours.layer, flat, None if held is None else held.reshape(-1))
