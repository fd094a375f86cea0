"""Rotary caches of an export beside the cos and sin that transformers computes, at every position."""

from __future__ import annotations

import numpy as np
import rope_fit
import rope_reference
from constants_entry import ADDED, DIFFERS, DROPPED, ROUNDED, SAME, entry, rounding, unread
from constants_export import Cache, Export, Rotation
from constants_reference import Reference
from rope_reference import HALVES, NEIGHBOURS, Refused

# Positions at a time: 256 dimensions of them in fp32 are 8 MB.
AT_ONCE = 8192
# Positions to fit by, where a config names no number of them.
FEW = 1024
# Steps of fp32 within which two ways to compute a frequency agree; an angle is off by so many at each position.
STEPS = 8 * 2.0**-24


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
    ours = rope_fit.describe(reference_fit(call, reference.positions or FEW), call.scaling)
    return entry("rope", what, layers, ours, none, DROPPED, "rotation dropped")


def caches(what: str, layers: list[int], call, rotation: Rotation, reference: Reference) -> list[dict]:
    """The entries of one kind of rotation: one, or two where the frequencies depend on the sequence's length."""
    found = []
    for side in ("short", "long") if call.beyond else ("",):
        held = next((cache for cache in rotation.caches if cache.label in (side, "")), rotation.caches[0])
        name = f"{what}, {side} sequences" if side else what
        found.append(compared(name, layers, call, held, reference.positions, side))
    return found


def compared(what: str, layers: list[int], call, cache: Cache, positions: int | None, side: str) -> dict:
    """One cache beside the reference. side: "short" or "long" sequences, or "" where there is no such thing."""
    beyond = call.beyond if side == "long" else None
    wanted = call.beyond if side == "short" else positions or len(cache.cos)
    ours, theirs = reference_fit(call, wanted, beyond), cache_fit(cache)
    count = min(wanted, len(cache.cos))
    verdict, diff, where = judged(call, cache, count, beyond, ours)
    if len(ours.frequencies) != len(theirs.frequencies):
        verdict = DIFFERS
    said = [rounding(verdict, cache.cos.dtype)]
    if verdict == DIFFERS:
        predicate = rope_fit.difference(ours, theirs, call.scaling, call.theta)
        said = [f"{what} {predicate or 'have these frequencies, and other values: most ' + where}"]
    if len(cache.cos) < wanted:  # what comes after it has no rotation to look up
        verdict = DIFFERS
    if len(cache.cos) != wanted:
        said.append(f"the cache has {len(cache.cos)} positions, the model {wanted}")
    if side and cache.beyond is not None and cache.beyond != call.beyond:
        verdict = DIFFERS
        said.append(f"long sequences begin above {cache.beyond} positions instead of {call.beyond}")
    return entry("rope", what, layers, rope_fit.describe(ours, call.scaling), rope_fit.describe(theirs), verdict,
                 "; ".join(filter(None, said)), diff, count)  # fmt: skip


def judged(call, cache: Cache, count: int, beyond: int | None, fit: rope_fit.Fit) -> tuple[str, float, str]:
    """The verdict on the first `count` positions, the largest difference, and where it is."""
    pairs = min(len(fit.frequencies), cache.cos.shape[1])
    dtype = cache.cos.dtype
    step = 0.0 if dtype == np.float32 else steps(dtype)[0]
    largest, where, within = 0.0, "", True
    for start in range(0, count, AT_ONCE):
        stop = min(count, start + AT_ONCE)
        angles = np.arange(start, stop)[:, None] * fit.frequencies[:pairs]
        allowed = fit.amplitude * (STEPS * (1 + angles) + step)
        for name, ours, theirs in zip(
            ("cos", "sin"), rope_reference.rows(call, start, stop, beyond), (cache.cos, cache.sin), strict=True
        ):
            expected = ours[:, :pairs].astype(dtype).astype(np.float32)
            difference = np.abs(theirs[start:stop, :pairs].astype(np.float32) - expected)
            difference[np.isnan(difference)] = np.inf  # no number is near to none
            within = within and bool((difference <= allowed).all())
            if difference.max(initial=0.0) > largest:
                row, pair = np.unravel_index(difference.argmax(), difference.shape)
                largest, where = float(difference.max()), f"{name} of position {start + row}, pair {pair}"
    return (SAME if not largest else ROUNDED if within else DIFFERS), largest, where


def reference_fit(call, positions: int, beyond: int | None = None) -> rope_fit.Fit:
    def row(position: int):
        cos, sin = rope_reference.rows(call, position, position + 1, beyond)
        return cos[0], sin[0]

    return rope_fit.of_cache(row, positions)


def cache_fit(cache: Cache) -> rope_fit.Fit:
    count = min(len(cache.cos), len(cache.sin))
    return rope_fit.of_cache(lambda p: (cache.cos[p], cache.sin[p]), count, *steps(cache.cos.dtype))


def steps(dtype: np.dtype) -> tuple[float, float]:
    """The step of a dtype just above 1, and its smallest positive number."""
    bits = np.uint16 if dtype.itemsize == 2 else np.uint32
    one = np.asarray(1, dtype).view(bits)
    return float((one + bits(1)).view(dtype).astype(np.float64)) - 1, float(bits(1).view(dtype).astype(np.float64))


def arrangement(what: str, layers: list[int], ours: str | None, rotation: Rotation) -> dict:
    """Which dimensions turn with each other."""
    theirs = NEIGHBOURS if rotation.interleaved else HALVES
    if ours is None:
        return unread("rope_layout", what, layers, None, "which dimensions transformers pairs was not to be seen")
    verdict = SAME if ours == theirs else DIFFERS
    said = "" if verdict == SAME else f"{what} rotate {theirs} with each other instead of {ours}"
    return entry("rope_layout", what, layers, ours, theirs, verdict, said)
