"""Norms, biases and other vectors of an export beside the reference's: which belongs to which, and what differs."""

from __future__ import annotations

import constants_causes
import constants_export
import constants_reference
import norm_probe
import numpy as np
from constants_entry import ADDED, DIFFERS, DROPPED, SAME, UNREAD, entry, judged_array, rounding, unread
from constants_export import PACKED, Export
from constants_reference import Reference

# Norms with other names are taken for each other where their weights are as near as this, of the largest.
NEAR = 0.02
# An epsilon is measured to about so much of itself.
EPSILON = 1e-4
PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def norms(reference: Reference, export: Export) -> list[dict]:
    """Kind, weight, bias and epsilon of every norm of the layers that the export has."""
    ours = [norm for norm in reference.norms if norm.layer is None or norm.layer < export.layers]
    open_ = list(export.norms)
    found, left = [], []
    for norm in ours:
        same = [other for other in open_ if (other.layer, other.role) == (norm.layer, norm.role)]
        if same:
            open_.remove(same[0])
            found += norm_entries(norm, same[0])
        else:
            left.append(norm)
    for norm in left:
        near = [other for other in open_ if other.layer == norm.layer and alike(norm.measured, other.weight)]
        if near:
            open_.remove(near[0])
            found += norm_entries(norm, near[0])
        else:
            found.append(missing_norm(norm, export, open_))
    for other in open_:
        what = named(other.role)
        if other.layer in export.opaque or any(norm.layer == other.layer for norm in left):
            found.append(unread("norm_kind", what, other.layer, None, "a norm that no norm of the reference is like"))
        else:
            found.append(entry("norm_kind", what, other.layer, None, other.kind, ADDED, f"a norm ({other.kind}) added"))
    return found


def named(role: str) -> str:
    """A role as a reader knows it."""
    if role == "final":
        return "final norm"
    return f"{role}_layernorm" if role.startswith(("input", "post", "pre")) else f"{role}_norm"


def alike(measured: norm_probe.Measured | str, weight: np.ndarray | None) -> bool:
    if isinstance(measured, str) or weight is None or weight.shape != measured.weight.shape:
        return False
    return np.abs(weight.astype(np.float32) - measured.weight).max() <= NEAR * np.abs(measured.weight).max()


def missing_norm(norm: constants_reference.Norm, export: Export, open_: list[constants_export.Norm]) -> dict:
    """A norm of which the export has none by name or value."""
    what, measured = named(norm.role), norm.measured
    if isinstance(measured, str):
        return unread("norm_kind", what, norm.layer, None, measured)
    if norm.layer in export.opaque or any(other.layer == norm.layer for other in open_) or not export.norms:
        return unread("norm_kind", what, norm.layer, measured.kind, "not found among the export's norms")
    return entry("norm_kind", what, norm.layer, measured.kind, None, DROPPED, f"the norm ({measured.kind}) dropped")


def norm_entries(norm: constants_reference.Norm, other: constants_export.Norm) -> list[dict]:
    """A norm of the reference beside the export's."""
    what, layer, measured = named(norm.role), norm.layer, norm.measured
    if isinstance(measured, str):
        return [unread("norm_kind", what, layer, None, measured)]
    if other.weight is None:
        return [unread("norm_kind", what, layer, measured.kind, "the export computes its weight")]
    same = measured.kind == other.kind
    said = "" if same else f"{other.kind} instead of {measured.kind}"
    found = [entry("norm_kind", what, layer, measured.kind, other.kind, SAME if same else DIFFERS, said)]
    off = abs(measured.epsilon - other.epsilon)
    verdict = SAME if off <= EPSILON * abs(measured.epsilon) + 1e-15 else DIFFERS
    ours, theirs = (f"{value:.5g}" for value in (measured.epsilon, other.epsilon))
    said = "" if verdict == SAME else f"epsilon {theirs} instead of {ours}"
    found.append(entry("epsilon", what, layer, ours, theirs, verdict, said, abs(float(theirs) - float(ours))))
    found.append(weight_entry(what, layer, measured, other.weight))
    if measured.bias is not None or (other.bias is not None and other.bias.any()):
        found.append(vector_entry("norm_bias", what, layer, measured.bias, other.bias))
    return found


def weight_entry(what: str, layer: int | None, measured: norm_probe.Measured, held: np.ndarray) -> dict:
    """A norm's weight, and how it came to differ where that shows."""
    rule = {0: "weight", 1: "1 + weight", None: "all 1" if measured.stored is None else "measured"}[measured.offset]
    if held.shape != measured.weight.shape:
        said = f"the weight has {held.size} values instead of {measured.weight.size}"
        return entry("norm_weight", what, layer, rule, f"{held.dtype.name} values", DIFFERS, said)
    verdict, diff = judged_array(measured.weight, held)
    said = rounding(verdict, held.dtype)
    if verdict == DIFFERS:
        said = constants_causes.weight_cause(measured.weight, measured.stored, measured.offset, rule, held)
    return entry("norm_weight", what, layer, rule, f"{held.dtype.name} values", verdict, said, diff)


def vector_entry(kind: str, what: str, layer: int | None, ours: np.ndarray | None, theirs: np.ndarray | None) -> dict:
    """A vector that either side may lack. One of zeros is none, except of sinks, which count as such."""
    size = f"{(ours if ours is not None else theirs).size} values"
    absent = [values is None or (kind != "sinks" and not values.any()) for values in (ours, theirs)]
    if all(absent):
        texts = [None if values is None else "all 0" for values in (ours, theirs)]
        return entry(kind, what, layer, *texts, SAME, "", 0.0)
    if absent[0]:
        return entry(kind, what, layer, None, size, ADDED, f"{what} {word(kind)} added", largest(theirs))
    if absent[1]:
        return entry(kind, what, layer, size, None, DROPPED, f"{what} {word(kind)} dropped", largest(ours))
    if ours.shape != theirs.shape:
        return unread(kind, what, layer, size, f"the export's has {theirs.size} values")
    verdict, diff = judged_array(ours, theirs)
    said = rounding(verdict, theirs.dtype)
    if verdict == DIFFERS:
        said = f"{what} {word(kind)} " + (constants_causes.coarser(ours, theirs) or "has other values")
    return entry(kind, what, layer, size, f"{size} in {theirs.dtype.name}", verdict, said, diff)


def word(kind: str) -> str:
    return {"norm_bias": "bias"}.get(kind, kind)


def largest(values: np.ndarray) -> float:
    return float(np.abs(values.astype(np.float32)).max(initial=0.0))


def biases(reference: Reference, export: Export) -> list[dict]:
    """Biases by layer and projection, packed ones taken apart; then what is left, by its values."""
    inside = {key: value for key, value in reference.biases.items() if key[0] is None or key[0] < export.layers}
    ours = apart(inside, export.biases)
    theirs = apart(export.biases, ours)
    found, left = [], {}
    for key, values in ours.items():
        if key in theirs:
            found.append(vector_entry("bias", key[1], key[0], values, theirs.pop(key)))
        else:
            left[key] = values
    vectors = {key: value for key, value in reference.vectors.items() if key[0] is None or key[0] < export.layers}
    for kind, wanted in (("bias", left), ("vector", vectors)):
        for (layer, what), values in wanted.items():
            match = next((key for key, held in theirs.items() if key[0] == layer and judged_same(values, held)), None)
            if match:
                found.append(vector_entry(kind, what, layer, values, theirs.pop(match)))
            elif kind == "vector":
                found.append(unread(kind, what, layer, f"{values.size} values", "not found among what the export adds"))
            elif any(key[0] == layer and held.size == values.size for key, held in theirs.items()):
                found.append(unread(kind, what, layer, f"{values.size} values", "only others of this size were found"))
            else:
                found.append(vector_entry(kind, what, layer, values, None))
    unsure = any(item["verdict"] == UNREAD for item in found)
    for (layer, what), held in theirs.items():
        if unsure:
            found.append(entry("bias", what, layer, None, f"{held.size} values", UNREAD, "whose it is was not found"))
        else:
            found.append(vector_entry("bias", what, layer, None, held))
    return found


def judged_same(values: np.ndarray, held: np.ndarray) -> bool:
    return values.shape == held.shape and judged_array(values, held)[0] != DIFFERS


def apart(biases: dict, others: dict) -> dict:
    """Biases with packed ones split into parts, where the other side has parts.

    The parts' sizes are the other side's; of one that it lacks (all zeros are left out), what remains.
    """
    found = {}
    for (layer, name), values in biases.items():
        parts = PARTS.get(name, ()) if name in PACKED and (layer, name) not in others else ()
        sizes = [others[(layer, part)].size if (layer, part) in others else None for part in parts]
        # Keys and values are as wide as each other, so that of these two one tells the other's.
        one_lacks = len(sizes) == 3 and sizes.count(None) == 1 and None in sizes[1:]
        if one_lacks:
            sizes = [next(s for s in sizes[1:] if s) if size is None else size for size in sizes]
        if not parts or None in sizes or sum(sizes) != values.size:
            found[(layer, name)] = values
            continue
        pieces = np.split(values, np.cumsum(sizes)[:-1])
        found |= {(layer, part): piece for part, piece in zip(parts, pieces, strict=True)}
    return found
