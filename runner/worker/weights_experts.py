"""The matrices of a mixture of experts beside the checkpoint's: gate, up and down of each expert, in whatever order."""

from __future__ import annotations

import numpy as np
import weights_export
import weights_reference
from constants_entry import DIFFERS, ROUNDED, SAME, entry, rounding, unread
from constants_vectors import vector_entry
from weights_reference import Wanted
from weights_rows import Matrix, Part, Quantised, chunks, compared
from weights_why import explained


def entries(ours: weights_reference.Weights, theirs: weights_export.Weights, layers: int) -> list[dict]:
    """The matrices and biases of all mixtures; layers: how many the export has."""
    found = []
    held = {item.layer: item for item in theirs.experts}
    for mixture in ours.experts:
        if mixture.layer is not None and mixture.layer >= layers:
            continue
        other = held.get(mixture.layer)
        if other is None:
            found.append(unread("weight", mixture.what, mixture.layer, None, "no operator of experts was found"))
        else:
            found += experts(mixture, other)
    return found


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
    said = f"{item.what} {explained(item, part, wanted)}"
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
