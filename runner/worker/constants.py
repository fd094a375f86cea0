"""Stage constants: what an export holds beside what transformers computes, without running the export.

Rotary caches at every position, norms, scales, soft caps, windows, biases and
multipliers. Each is compared in the dtype in which the export holds it, so
that a right fp16 export has the same constants; the kinds are those of
`constants_entry.KINDS`.
"""

from __future__ import annotations

import json
import os

import activations
import constants_causes
import constants_entry
import constants_export
import constants_masks
import constants_reference
import constants_rope
import constants_vectors
import graph_operators
import numpy as np
import weights_compare
import weights_experts
import weights_export
import weights_reference
from constants_entry import ADDED, DIFFERS, DROPPED, ROUNDED, SAME, entry, merged, numbers, text, unread
from constants_export import Export
from constants_reference import Reference
from rope_reference import REFUSALS, first_line

FP32 = np.dtype(np.float32)
UNFORESEEN = (*REFUSALS, AttributeError, ArithmeticError)


def run(arguments: dict, out: str) -> dict:
    """Compare the constants and write ``constants.json`` to `out`.

    arguments: checkpoint, export (folders). ``constants.json``:
    {"constants": [{"kind", "what", "layers" (None outside them), "reference",
    "export" (short texts), "max_abs_diff", "positions" (compared, of a rotary
    cache), "verdict", "says"}]}. Verdicts: "same" to the last bit of the
    export's dtype; "rounded" within a few steps of fp32; "differs"; "dropped"
    and "added", where one side has none; "unread", with the reason in "says".
    Returns {"findings": what is wrong, "constants": how many}.
    """
    reference = constants_reference.measure(arguments["checkpoint"])
    export = constants_export.read(arguments["export"])
    found = merged(
        [
            *depth(reference, export),
            *constants_rope.entries(reference, export),
            *constants_vectors.norms(reference, export),
            *scores(reference, export),
            *constants_vectors.biases(reference, export),
            *embedding(reference, export),
            *logits(reference, export),
            *multipliers(reference, export),
            *matrices(reference, export),
        ]
    )
    with open(os.path.join(out, "constants.json"), "w", encoding="utf-8") as file:
        json.dump({"constants": found}, file, indent=1, ensure_ascii=False)
    return {"findings": constants_entry.findings(found), "constants": len(found)}


def matrices(reference: Reference, export: Export) -> list[dict]:
    """Every weight matrix, what activations compute, and the operators of each layer.

    A model or a graph of a form that is not foreseen takes no other constant away: it is told as not compared.
    """
    try:
        ours = weights_reference.read(reference.model)
        theirs = weights_export.read(export.graph, export.nodes, export.layers)
    except UNFORESEEN as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        return [unread(kind, "all", None, None, why) for kind in ("weight", "activation", "operators")]
    # A layer that does not rotate, or looks through a window, is of another kind than one that does.
    told = {layer: (item.rotation is None, item.window) for layer, item in reference.attention.items()}
    kinds = {layer: f"{kind} {told.get(layer)}" for layer, kind in ours.kinds.items()}
    found = []
    for kind, compare in (
        ("weight", lambda: weights_compare.entries(ours, theirs, export.layers)),
        ("weight", lambda: weights_experts.entries(ours, theirs, export.layers)),
        ("activation", lambda: activations.entries(ours, theirs, export.layers)),
        ("operators", lambda: graph_operators.entries(export.nodes, kinds, export.layers)),
    ):
        try:
            found += compare()
        except UNFORESEEN as error:
            found.append(unread(kind, "all", None, None, f"{type(error).__name__}: {first_line(error)}"))
    return found


def depth(reference: Reference, export: Export) -> list[dict]:
    """An export that has fewer layers than its checkpoint, or more."""
    if reference.layers == export.layers:
        return []
    said = f"{export.layers} layers instead of {reference.layers}"
    return [entry("layers", "layers", None, reference.layers, export.layers, DIFFERS, said)]


def scores(reference: Reference, export: Export) -> list[dict]:
    """What each layer's attention is told: scale, soft cap, window, sinks."""
    found = []
    for layer, ours in sorted(reference.attention.items()):
        theirs = export.attention.get(layer)
        if theirs is None:
            if layer < export.layers:
                found.append(unread("attention_scale", "attention", layer, ours.scale, "no attention operator found"))
            continue
        if ours.scale is None or theirs.scale is None:
            why = "the export does not say" if theirs.scale is None else "eager attention was not called"
            found.append(unread("attention_scale", "attention", layer, ours.scale, why))
        else:
            found.append(numbers("attention_scale", "attention", layer, ours.scale, theirs.scale, FP32))
            lost = "" if theirs.reads == "GroupQueryAttention" else f": {theirs.reads} cannot be told of one"
            if ours.soft_cap is not None or theirs.soft_cap is not None:
                found.append(numbers("soft_cap", "attention", layer, ours.soft_cap, theirs.soft_cap, FP32, lost))
            found += window(layer, reference, export, lost)
        if reference.clip is not None:
            found.append(clip(layer, reference.clip, layer in export.clips))
        if ours.sinks is not None or theirs.sinks is not None:
            found.append(constants_vectors.vector_entry("sinks", "attention", layer, ours.sinks, theirs.sinks))
    return found


def window(layer: int, reference: Reference, export: Export, lost: str) -> list[dict]:
    """A layer's sliding window, where a side has one. lost: why an operator may have none."""
    ours, theirs = reference.attention[layer], export.attention[layer]
    one, other = (used(size, reference.positions) for size in (ours.window, theirs.window))
    if one is None and other is None:
        return []
    kinds = reference.layer_types or []
    if one is None and layer < len(kinds) and kinds[layer] == "sliding_attention":
        return [unread("window", "attention", layer, None, "transformers' attention was not told of its window")]
    if one is not None and other is None:
        if theirs.mask_numbers & {int(one), int(one) - 1, int(one) + 1}:
            why = f"the operator has none, and its mask is computed with the number {text(one)} or one beside it"
            return [unread("window", "attention", layer, one, why)]
        lost += constants_masks.declared(export.config, one)
    return [numbers("window", "attention", layer, one, other, FP32, lost)]


def clip(layer: int, ours: float | str, clips: bool) -> dict:
    """What is done with queries, keys and values that are beyond a limit."""
    what = "queries, keys and values"
    if isinstance(ours, str):
        return unread("clip", what, layer, None, ours)
    if clips:
        return unread("clip", what, layer, ours, "the layer clips something; to what is not known")
    return entry("clip", what, layer, ours, None, DROPPED, f"clip to {text(ours)} dropped")


def used(window: int | None, positions: int | None) -> int | None:
    """A window that some sequence is longer than."""
    return None if window is not None and positions is not None and window >= positions else window


def embedding(reference: Reference, export: Export) -> list[dict]:
    """The factor on the embeddings."""
    ours, theirs, what = reference.embedding_scale, export.embedding_scale, "embedding"
    if isinstance(ours, str) or isinstance(theirs, str):
        why = ours if isinstance(ours, str) else theirs
        return [unread("embedding_scale", what, None, None if isinstance(ours, str) else ours, why)]
    dtype = np.asarray(theirs).dtype
    if theirs == 1 and ours != 1 and folded(reference, export, ours):
        return [entry("embedding_scale", what, None, ours, ours, SAME, "held by the embeddings themselves")]
    item = factor("embedding_scale", what, None, ours, float(theirs), dtype)
    if item["verdict"] == DIFFERS and (how := constants_causes.number_cause(ours, theirs)):
        item["says"] = f"embedding scale {how}"
    return [item]


def folded(reference: Reference, export: Export, scale: float) -> bool:
    """Whether the embeddings of an export are the checkpoint's times a scale."""
    rows, held = reference.embedding_rows, export.embedding_rows
    if rows is None or held is None or rows.shape != held.shape:
        return False
    return constants_entry.judged_array(np.float32(scale) * rows, held)[0] != DIFFERS


def factor(kind: str, what: str, layer, ours: float, theirs: float, dtype: np.dtype) -> dict:
    """A number to multiply by, of which 1 is none."""
    name = constants_entry.KINDS[kind]
    if theirs == 1 and ours != 1:
        return entry(kind, what, layer, ours, theirs, DROPPED, f"{name} of {text(ours)} dropped", abs(ours - 1))
    if ours == 1 and theirs != 1:
        return entry(kind, what, layer, ours, theirs, ADDED, f"{name} of {text(theirs)} added", abs(theirs - 1))
    return numbers(kind, what, layer, ours, theirs, dtype)


def logits(reference: Reference, export: Export) -> list[dict]:
    """What becomes of the last layer's output."""
    if isinstance(reference.logits, str) or isinstance(export.logits, str):
        why = reference.logits if isinstance(reference.logits, str) else export.logits
        return [unread("logit_scale", "logits", None, None, str(why))]
    (ours, cap), (theirs, held) = reference.logits, constants_reference.factor_and_cap(
        export.logits(constants_reference.SMALL), export.logits(constants_reference.LARGE)
    )  # fmt: skip
    # Through a cap the factor is seen to fp32 only.
    ours, theirs = (round(value, 6) if bend is not None else value for value, bend in ((ours, cap), (theirs, held)))
    found = [factor("logit_scale", "logits", None, ours, theirs, export.dtype)]
    if cap is not None or held is not None:
        found.append(numbers("logit_soft_cap", "logits", None, cap, held, export.dtype))
    return found


def multipliers(reference: Reference, export: Export) -> list[dict]:
    """The factors on a layer's output and on what its blocks add to it. Their values are compared, not their places."""
    found = []
    for layer, ours in reference.multipliers.items():
        theirs = [float(value) for value in export.multipliers.get(layer, [])]
        if layer >= export.layers:
            continue
        if isinstance(ours, str):
            found.append(unread("multiplier", "residual", layer, None, ours))
            continue
        whole, added = ours
        wanted = [value for value in added if value != 1]
        for value in sorted(set(wanted)):
            item = factor("multiplier", "residual", layer, value, nearest(value, theirs), export.dtype)
            if item["verdict"] in (SAME, ROUNDED) and whole == 1 and len(theirs) < len(wanted):
                item |= {"verdict": DROPPED, "says": f"multiplier of {text(value)} dropped from a block"}
            found.append(item)
        if whole != 1:
            item = factor("multiplier", "layer output", layer, whole, nearest(whole, theirs), export.dtype)
            if item["verdict"] == SAME:  # each layer has its own, and one entry says so
                item |= {"reference": "a number a layer", "export": "a number a layer"}
            found.append(item)
        elif not wanted:
            odd = sorted(set(theirs))
            found += [factor("multiplier", "residual", layer, 1.0, value, export.dtype) for value in odd]
    return found


def nearest(value: float, held: list[float]) -> float:
    """The factor of an export that is nearest to a value; 1 where it has none."""
    return min(held, key=lambda other: abs(other - value), default=1.0)
