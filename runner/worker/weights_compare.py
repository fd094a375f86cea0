"""Every weight matrix of an export beside the checkpoint's, by value and by place, and what is wrong in words.

A matrix of the checkpoint is looked for where the graph should use it; where
no place tells, among the layer's matrices that are left, by its values. One
matrix at a time is read, some rows of it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import weights_export
import weights_reference
import weights_why
from constants_entry import DIFFERS, DROPPED, FEW_STEPS, ROUNDED, SAME, entry, rounding, unread
from weights_export import Held
from weights_reference import Wanted
from weights_rows import Part, Quantised, chunks, compared

QKV = ("q_proj", "k_proj", "v_proj")
GATED = ("gate_proj", "up_proj")
FUSED = {"qkv_proj": QKV, "gate_up_proj": GATED}


def entries(ours: weights_reference.Weights, theirs: weights_export.Weights, layers: int) -> list[dict]:
    """An entry for each matrix of the checkpoint; layers: how many the export has."""
    inside = [item for item in ours.wanted if item.layer is None or item.layer < layers]
    found = []
    for layer in [None, *range(layers)]:
        wanted = [item for item in inside if item.layer == layer]
        held = [item for item in theirs.held if item.layer == layer]
        wanted, held = aligned(wanted, held)
        found += layer_entries(layer, wanted, held, inside, theirs)
    beside = "it is beside the text model, which alone is exported"
    return found + [unread("weight", name, None, None, beside) for name in sorted(ours.outside)] + head(ours, theirs)


def aligned(wanted: list[Wanted], held: list[Held]) -> tuple[list[Wanted], list[Held]]:
    """Packed matrices of either side cut as the other has them."""
    for packed, places in FUSED.items():
        one = [item for item in wanted if item.place == packed]
        other = [item for item in held if item.place == packed]
        apart_wanted = {p: [item for item in wanted if item.place == p] for p in places}
        apart_held = {p: [item for item in held if item.place == p] for p in places}
        if one and not other and all(len(items) == 1 for items in apart_held.values()):
            sizes = [apart_held[p][0].part.shape[0] for p in places]
            if sum(sizes) == one[0].shape[0]:
                ends = np.cumsum(sizes)
                wanted = [item for item in wanted if item is not one[0]] + [
                    one[0].rows(int(end) - size, int(end), f"{one[0].what} ({p})", p)
                    for p, size, end in zip(places, sizes, ends, strict=True)
                ]
        if other and not one and all(len(items) == 1 for items in apart_wanted.values()):
            sizes = [apart_wanted[p][0].shape[0] for p in places]
            if sum(sizes) == other[0].part.shape[0]:
                ends = np.cumsum(sizes)
                held = [item for item in held if item is not other[0]] + [
                    rows_of(other[0], p, int(end) - size, int(end))
                    for p, size, end in zip(places, sizes, ends, strict=True)
                ]
    return wanted, held


def rows_of(held: Held, place: str, first: int, end: int) -> Held:
    """Some rows of a packed matrix, in a place of their own."""
    part = held.part
    return Held(held.layer, place, Part(part.matrix, part.first + first, part.first + end), held.name)


def layer_entries(
    layer: int | None, wanted: list[Wanted], held: list[Held], others: list[Wanted], theirs: weights_export.Weights,
) -> list[dict]:  # fmt: skip
    """The matrices of one layer, or of what is around the layers."""
    found, left, open_ = [], [], list(held)
    for item in wanted:
        there = [other for other in open_ if other.place == item.place and other.part.shape == item.shape]
        if len(there) > 1:  # of shared experts and experts that are apart, say
            there = [other for other in there if fits(item, other.part)] or there[:1]
        if there:
            open_.remove(there[0])
            found.append(compare(item, there[0], others))
        else:
            left.append(item)
    for item in list(left):
        match = next((other for other in open_ if other.part.shape == item.shape and fits(item, other.part)), None)
        alike = [other for other in open_ if other.part.shape == item.shape]
        if match is None and len(alike) == 1 and sum(one.shape == item.shape for one in left) == 1:
            match = alike[0]
        if match is not None:
            open_.remove(match)
            left.remove(item)
            found.append(compare(item, match, others))
    why = [f"{op}: {said}" for (where, op), said in theirs.unread.items() if where == layer]
    for item in left:
        found.append(missing(item, open_, why))
    for other in open_:
        found.append(more(layer, other, wanted))
    return found


def more(layer: int | None, held: Held, wanted: list[Wanted]) -> dict:
    """A matrix of the export that the checkpoint has none for in its place."""
    keys = next((item for item in wanted if item.place == "k_proj"), None)
    if held.place == "v_proj" and keys is not None and fits(keys, held.part):  # a layer whose values are its keys
        said = "the nearest steps" if isinstance(held.part.matrix, Quantised) else rounding(SAME, held.part.dtype)
        verdict = ROUNDED if isinstance(held.part.matrix, Quantised) else SAME
        return entry("weight", "v_proj", layer, "k_proj's values", held.part.said(), verdict, said)
    return unread("weight", held.place, layer, None, "no matrix of the checkpoint has its shape and place")


def missing(item: Wanted, open_: list[Held], why: list[str]) -> dict:
    """A matrix that was not found among its layer's."""
    said = f"{list(item.shape)}"
    there = [other for other in open_ if other.place == item.place]
    if len(there) == 1:
        theirs = there[0].part.shape
        if theirs == item.shape[::-1] and fits(replace(item, tensor=item.tensor.T), there[0].part):
            open_.remove(there[0])
            return entry("weight", item.what, item.layer, said, f"{list(theirs)}", DIFFERS, "is transposed")
        return unread("weight", item.what, item.layer, said, f"the export's has the shape {list(theirs)}")
    if why:
        return unread("weight", item.what, item.layer, said, f"not found; {why[0]}")
    if open_:
        shapes = ", ".join(f"{other.place} {list(other.part.shape)}" for other in open_[:3])
        return unread("weight", item.what, item.layer, said, f"not found; what is left of the export's: {shapes}")
    return entry("weight", item.what, item.layer, said, None, DROPPED, "used nowhere in the export")


def fits(item: Wanted, part: Part) -> bool:
    """Whether a part holds a matrix, to what its dtype or steps allow."""
    if item.shape != part.shape:
        return False
    return not any(compared(part, item.values(first, end), first, end).off.any() for first, end in chunks(item.shape))


def compare(item: Wanted, held: Held, others: Iterable[Wanted]) -> dict:
    """A matrix of the checkpoint beside the one in its place."""
    part, what = held.part, item.what
    largest, steps, exact, near, differing = 0.0, 0.0, True, True, False
    for first, end in chunks(item.shape):
        rows = item.values(first, end)
        found = compared(part, rows, first, end)
        largest, steps, exact = max(largest, found.largest), max(steps, found.steps), exact and found.exact
        differing = differing or bool(found.off.any())
        near = near and bool((found.off <= FEW_STEPS * np.abs(rows)).all())
    texts = f"{list(item.shape)}", part.said()
    if not differing:
        if not isinstance(part.matrix, Quantised):
            return entry("weight", what, item.layer, *texts, SAME, rounding(SAME, part.dtype), largest)
        said = "the nearest steps" if exact else "steps, not all of them the nearest"
        return entry("weight", what, item.layer, *texts, ROUNDED, said, largest)
    if near and not isinstance(part.matrix, Quantised):
        return entry("weight", what, item.layer, *texts, ROUNDED, "", largest)
    said = weights_why.explained(item, part, others)
    return entry("weight", what, item.layer, *texts, DIFFERS, said, largest)


def head(ours: weights_reference.Weights, theirs: weights_export.Weights) -> list[dict]:
    """A config that ties the head to the embedding, beside a checkpoint that has a head of its own."""
    wanted = {item.place: item for item in ours.wanted if item.layer is None}
    held = {item.place: item.part for item in theirs.held if item.layer is None}
    places = ("lm_head", "embed_tokens")
    if ours.tied or not ours.said_tied or any(place not in wanted or place not in held for place in places):
        return []
    both = "the config ties the head to the embedding, and the file has another lm_head.weight: "
    for place, other, name in (("lm_head", "embed_tokens", "head"), ("embed_tokens", "lm_head", "embedding")):
        if not fits(wanted[place], held[place]) and fits(wanted[other], held[place]):
            said = f"{both}the export's {name} is the file's {other}, the reference's {name} is the file's {place}"
            return [entry("weight", f"{place}, tied", None, f"{place}.weight", f"{other}.weight", DIFFERS, said)]
    return []
