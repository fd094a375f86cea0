"""Operators of each layer of an export: whether layers of one kind have the same, in the order of their numbers, and
which of them compute something that no other comparison looks at."""

from __future__ import annotations

from collections import Counter

import graph_walk
import onnx_ir
from constants_entry import DIFFERS, SAME, entry, spans, unread
from constants_export import ATTENTION, NORMS, layer_of, projection

# Operators whose numbers the other kinds compare, or that only move numbers and add them.
COMPARED = {
    *NORMS, *ATTENTION, *graph_walk.WEIGHTED, *graph_walk.RECTIFIES, *graph_walk.JOINS, "Cast", "Identity", "Constant",
    "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice", "Concat", "Split", "Shape", "Gather", "Where",
    "Equal", "Greater", "Less", "ConstantOfShape", "RotaryEmbedding", "MRotaryEmbedding", "Gelu", "FastGelu",
    "BiasGelu", "QuickGelu", "Swish", "Silu", "HardSwish", "LeakyRelu", "Clip", "If", "Range", "Size", "Neg",
    "GatherBlockQuantized",
}  # fmt: skip
# A norm is one whether or not it takes the sum of its inputs: the first layer has no sum before it.
ALIKE = {
    "SkipSimplifiedLayerNormalization": "RMSNorm",
    "SimplifiedLayerNormalization": "RMSNorm",
    "RMSNormalization": "RMSNorm",
    "SkipLayerNormalization": "LayerNorm",
    "LayerNormalization": "LayerNorm",
}
# Shapes, and casts around norms, of which the first and the last layer may have others.
FREE = {"Cast", "Constant", "Identity", "Shape", "Unsqueeze"}
UNSEEN = {
    **dict.fromkeys(
        ("MoE", "QMoE", "TopK", "GatherElements", "ReduceSum", "Log", "ScatterElements", "Softmax"),
        "how tokens are routed to the experts",
    ),
    "CausalConvWithState": "the convolution and its state",
    "Conv": "the convolution and its state",
    "LinearAttention": "linear attention and its state",
}


def entries(nodes: list[onnx_ir.Node], kinds: dict[int, str], layers: int) -> list[dict]:
    """Operators by layer. kinds: what tells a layer of the reference from others; layers: how many the export has."""
    counts = {layer: counted(nodes, layer) for layer in range(layers)}
    found = []
    by_kind: dict[str, list[int]] = {}
    for layer in range(layers):
        by_kind.setdefault(kinds.get(layer, ""), []).append(layer)
    for members in by_kind.values():
        found += alike(members, counts)
    found += order(nodes, layers)
    for why, ops in unseen(nodes).items():
        mine = {layer for n in nodes if n.op_type in ops and (layer := layer_of(n)) is not None and layer < layers}
        found.append(unread("operators", ", ".join(ops), sorted(mine) or None, None, why))
    return found


def counted(nodes: list[onnx_ir.Node], layer: int) -> Counter:
    kinds = [ALIKE.get(n.op_type, n.op_type) for n in nodes if layer_of(n) == layer and n.op_type not in FREE]
    return Counter(kinds)


def alike(members: list[int], counts: dict[int, Counter]) -> list[dict]:
    """Layers of one kind: those that have other operators than most of them."""
    sets: dict[tuple, list[int]] = {}
    for layer in members:
        sets.setdefault(tuple(sorted(counts[layer].items())), []).append(layer)
    usual = max(sets.values(), key=len)
    total = f"{sum(counts[usual[0]].values())} operators"
    found = [entry("operators", "operators", usual, None, total, SAME, "")]
    for odd in sets.values():
        if odd is usual:
            continue
        more, less = counts[odd[0]] - counts[usual[0]], counts[usual[0]] - counts[odd[0]]
        parts = [f"{count} {op} more" for op, count in more.items()] + [
            f"{count} {op} fewer" for op, count in less.items()
        ]
        where = f"layer{'s' if len(usual) > 1 else ''} {spans(usual)}"
        said = f"other operators than in {where} of its kind: {', '.join(parts)}"
        found.append(
            entry("operators", "operators", odd, None, f"{sum(counts[odd[0]].values())} operators", DIFFERS, said)
        )
    return found


def order(nodes: list[onnx_ir.Node], layers: int) -> list[dict]:
    """Weights that run in another layer than the one that they are named after."""
    found = []
    for node, runs_in in graph_walk.misplaced(nodes):
        layer = layer_of(node)
        if layer < layers:
            said = f"runs in layer {runs_in}"
            found.append(entry("operators", projection(node), layer, None, node.name, DIFFERS, said))
    return found


def unseen(nodes: list[onnx_ir.Node]) -> dict[str, list[str]]:
    """Operators of the layers whose numbers nothing compares, by what they compute."""
    found: dict[str, list[str]] = {}
    for op in dict.fromkeys(node.op_type for node in nodes if layer_of(node) is not None):
        if op not in COMPARED:
            found.setdefault(UNSEEN.get(op, "what it computes"), []).append(op)
    return found
