"""Rotary caches of an export beside the cos and sin that transformers computes, at every position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import rope_causes
import rope_fit
import rope_reference
import rope_rules
from constants_entry import ADDED, DIFFERS, DROPPED, ROUNDED, SAME, entry, rounding, unread
from constants_export import Cache, Export, Rotation
from constants_reference import Reference
from rope_reference import HALVES, NEIGHBOURS, Refused

# Positions at a time: 256 dimensions of them in fp32 are 8 MB.
AT_ONCE = 8192
# Positions to fit by, where a config names no number of them.
FEW = 1024


def entries(reference: Reference, export: Export) -> list[dict]:
    """The rotary embedding of every layer that has attention on both sides; layers that agree are one entry."""
    groups: dict[tuple, list[int]] = {}
    for layer, told in sorted(reference.attention.items()):
        if layer in export.attention:
            groups.setdefault((key(told.rotation), key(export.attention[layer].rotation)), []).append(layer)
    seen = any(told.rotation is not None for told in reference.attention.values())
    found = []
    for layers in groups.values():
        ours, theirs = reference.attention[layers[0]], export.attention[layers[0]].rotation
        what = label(reference, layers, ours.rotation is None)
        why = next((side for side in (ours.rotation, theirs) if isinstance(side, str)), "")
        if why or not seen:
            found.append(unread("rope", what, layers, None, why or "no rotation was seen in transformers"))
            continue
        try:
            if ours.rotation is None or theirs is None:
                found.append(one_sided(what, layers, ours.rotation, theirs, reference))
            else:
                found += caches(what, layers, ours.rotation, theirs, reference)
                found.append(arrangement(what, layers, ours.layout, theirs))
        except Refused as error:
            found.append(unread("rope", what, layers, None, f"the rotary module was not to be called: {error}"))
    return found


def key(rotation) -> object:
    """The same for layers that rotate alike."""
    if isinstance(rotation, rope_reference.Call):
        return rotation.key
    if isinstance(rotation, Rotation):
        return (rotation.interleaved, *[cache.name for cache in rotation.caches])
    return rotation


def label(reference: Reference, layers: list[int], still: bool) -> str:
    """What a reader calls some layers: by the window they look through, where there are two kinds."""
    if still:
        return "layers without rotation"
    kinds = reference.layer_types or []
    of_all = {kinds[layer] for layer in reference.attention if layer < len(kinds)}
    of_these = {kinds[layer] for layer in layers if layer < len(kinds)}
    names = {"sliding_attention": "local layers", "full_attention": "global layers"}
    if len(of_all) > 1 and len(of_these) == 1:
        return names.get(kind := of_these.pop(), kind.replace("_", " "))
    if len(layers) == len(reference.attention):
        return "all layers"
    rotated = [layer for layer, told in reference.attention.items() if told.rotation is not None]
    return "rotated layers" if len(layers) == len(rotated) else "some layers"


def one_sided(what: str, layers: list[int], call, rotation: Rotation | None, reference: Reference) -> dict:
    """Layers of which one side at least does not rotate."""
    none = "no rotation"
    if call is None and rotation is None:
        return entry("rope", what, layers, none, none, SAME)
    if call is None:
        held = rope_fit.describe(cache_fit(rotation.caches[0]))
        return entry("rope", what, layers, none, held, ADDED, "rotation added")
    ours = described(call, reference_fit(call, reference.positions or FEW))
    return entry("rope", what, layers, ours, none, DROPPED, "rotation dropped")


def described(call, fit: rope_fit.Fit) -> str:
    """The reference's rotation in a few words."""
    return rope_fit.describe(fit, call.scaling, rope_rules.defaults_taken(call.scaling, call.parameters))


def caches(what: str, layers: list[int], call, rotation: Rotation, reference: Reference) -> list[dict]:
    """The entries of one kind of rotation: one, or two where the frequencies depend on the sequence's length."""
    found = []
    for side in ("short", "long") if call.beyond else ("",):
        held = next((cache for cache in rotation.caches if cache.label in (side, "")), rotation.caches[0])
        name = f"{what}, {side} sequences" if side else what
        found.append(compared(name, layers, call, held, reference, side))
    if length := rope_reference.grows_beyond(call):
        found.append(beyond_length(what, layers, call, rotation.caches[0], length))
    return found


def beyond_length(what: str, layers: list[int], call, cache: Cache, length: int) -> dict:
    """What becomes of a scaling that depends on how long the sequence is: a cache has one set of frequencies."""
    factor = rope_fit.number(call.parameters["factor"])
    what, count = f"{what} beyond {length} positions", len(cache.cos)
    why = (
        f"the cache ends at {count} positions, and no longer sequence can be looked up"
        if count <= length
        else f"the cache has {count} positions, and the same frequencies whatever the length"
    )
    ours = f"{call.scaling} scaling by {factor}: theta grows with the sequence"
    says = f"{what} have lost the {call.scaling} scaling by {factor}: {why}; compared up to {length} alone"
    return entry("rope", what, layers, ours, None if count <= length else f"{count} positions", DROPPED, says)


def compared(what: str, layers: list[int], call, cache: Cache, reference: Reference, side: str) -> dict:
    """One cache beside the reference. side: "short" or "long" sequences, or "" where there is no such thing."""
    positions = reference.positions
    beyond = call.beyond if side == "long" else None
    wanted = call.beyond if side == "short" else positions or len(cache.cos)
    ours = reference_fit(call, wanted, beyond)
    count = min(wanted, len(cache.cos))
    found = judged(call, cache, count, beyond, ours)
    verdict, said = found.verdict, [rounding(found.verdict, cache.cos.dtype)]
    if cache.cos.shape[1] != len(ours.frequencies):
        verdict = DIFFERS
    held = rope_causes.Cache(cache.cos, cache.sin)
    why = ""
    if verdict == DIFFERS:
        why = rope_causes.cause(held, told(call, ours, side, reference))
        said = [f"{what} {predicate(why, found, cache, ours)}"]
    theirs = "fits no rotation" if why is None else rope_fit.describe(held.fit())
    if len(cache.cos) < wanted:  # what comes after it has no rotation to look up
        verdict = DIFFERS
    if len(cache.cos) != wanted:
        said.append(f"the cache has {len(cache.cos)} positions, the model {wanted}")
    if side and cache.beyond is not None and cache.beyond != call.beyond:
        verdict = DIFFERS
        said.append(f"long sequences begin above {cache.beyond} positions instead of {call.beyond}")
    return entry("rope", what, layers, described(call, ours), theirs, verdict,
                 "; ".join(filter(None, said)), found.largest, count)  # fmt: skip


def predicate(why: str | None, found: Judged, cache: Cache, ours: rope_fit.Fit) -> str:
    """What is said of a cache that differs: its cause, or where it first differs and no more."""
    if why:
        return why
    if why == "":
        return f"have these frequencies, and other values: {found.first}"
    width, whole = 2 * cache.cos.shape[1], 2 * len(ours.frequencies)
    other = f" of {width} dimensions instead of {whole}" if width != whole else ""
    return f"have a cache{other} that fits no rotation" + (f"; {found.first}" if found.first else "")


def told(call, fit: rope_fit.Fit, side: str, reference: Reference) -> rope_causes.Told:
    """What a cache was to hold, and what the model's other layers rotate by."""
    others: list[tuple[str, np.ndarray, float]] = []
    if side:
        other = "short" if side == "long" else "long"
        beyond, count = (call.beyond, reference.positions or FEW) if other == "long" else (None, call.beyond)
        theirs = reference_fit(call, count, beyond)
        others.append((f"rotate by the factors of {other} sequences", theirs.frequencies, theirs.amplitude))
    seen = {call.key}
    for rotation in (reference.attention[layer].rotation for layer in sorted(reference.attention)):
        if not isinstance(rotation, rope_reference.Call) or rotation.key in seen:
            continue
        seen.add(rotation.key)
        layers = [n for n, one in reference.attention.items() if key(one.rotation) == rotation.key]
        theirs = reference_fit(rotation, reference.positions or FEW)
        words = f"rotate as {label(reference, layers, False)} should ({described(rotation, theirs)})"
        others.append((words, theirs.frequencies, theirs.amplitude))
    scaling = f"{call.scaling}, long" if call.scaling == "longrope" and side == "long" else call.scaling
    return rope_causes.Told(fit.frequencies, fit.amplitude, scaling, call.said, tuple(others))


@dataclass(frozen=True)
class Judged:
    """How a cache's values compare with transformers'. first: where they first differ, in words."""

    verdict: str
    largest: float
    first: str = ""


def judged(call, cache: Cache, count: int, beyond: int | None, fit: rope_fit.Fit) -> Judged:
    """The verdict on the first `count` positions, the largest difference, and where they first differ."""
    pairs = min(len(fit.frequencies), cache.cos.shape[1])
    dtype = cache.cos.dtype
    largest, first, wrong = 0.0, "", 0
    for start in range(0, count, AT_ONCE):
        stop = min(count, start + AT_ONCE)
        angles = np.arange(start, stop)[:, None] * fit.frequencies[:pairs]
        bound = rope_fit.allowed(angles, fit.amplitude, dtype)
        over = np.zeros(bound.shape, bool)
        both = []
        for ours, theirs in zip(rope_reference.rows(call, start, stop, beyond), (cache.cos, cache.sin), strict=True):
            expected = ours[:, :pairs].astype(dtype).astype(np.float32)
            held = theirs[start:stop, :pairs].astype(np.float32)
            difference = np.abs(held - expected)
            difference[np.isnan(difference)] = np.inf  # no number is near to none
            over |= difference > bound
            largest = max(largest, float(difference.max(initial=0.0)))
            both.append((held, expected))
        wrong += np.count_nonzero(over)
        if wrong and not first:
            row, pair = np.unravel_index(over.argmax(), over.shape)
            values = [f"{name} {held[row, pair]:.6g} in the export, {expected[row, pair]:.6g} in the reference"
                      for name, (held, expected) in zip(("cos", "sin"), both, strict=True)]  # fmt: skip
            first = f"first differs at position {start + row}, pair {pair} ({'; '.join(values)})"
    if wrong:
        first += f", at {wrong} of {count * pairs} places in all"
    return Judged(SAME if not largest else DIFFERS if wrong else ROUNDED, largest, first)


def reference_fit(call, positions: int, beyond: int | None = None) -> rope_fit.Fit:
    def row(position: int):
        cos, sin = rope_reference.rows(call, position, position + 1, beyond)
        return cos[0], sin[0]

    return rope_fit.of_cache(row, positions)


def cache_fit(cache: Cache) -> rope_fit.Fit:
    return rope_causes.Cache(cache.cos, cache.sin).fit()


def arrangement(what: str, layers: list[int], ours: str | None, rotation: Rotation) -> dict:
    """Which dimensions turn with each other."""
    theirs = NEIGHBOURS if rotation.interleaved else HALVES
    if ours is None:
        return unread("rope_layout", what, layers, None, "which dimensions transformers pairs was not to be seen")
    verdict = SAME if ours == theirs else DIFFERS
    said = "" if verdict == SAME else f"{what} rotate {theirs} with each other instead of {ours}"
    return entry("rope_layout", what, layers, ours, theirs, verdict, said)
