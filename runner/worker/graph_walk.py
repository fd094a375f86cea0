"""Ways through an export's graph: from which weights a value comes, and what is computed on the way.

Where a node stands is told by what it is fed and what it feeds, since names of
nodes change between releases; only the number of a layer is taken from a name,
and held to the order of the layers in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir
from constants_export import ATTENTION, NORMS, attribute, constant, input_of, layer_of

# Operators whose result is a product with weights.
WEIGHTED = {"MatMul", "Gemm", "FusedMatMul", "MatMulNBits"}
# What changes no value, or each in a way that leaves it where it is.
CARRIES = {
    "Cast", "Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice", "Concat", "Clip",
    "RotaryEmbedding", "MRotaryEmbedding", "LpNormalization", "Add", "Mul", "Div", *NORMS,
}  # fmt: skip
# Where each layer reads what other tokens left: the order of layers is the order of these.
MIXERS = {*ATTENTION, "CausalConvWithState", "LinearAttention", "GatedDeltaNet"}
RECTIFIES = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Erf": lambda x: np.vectorize(math.erf)(x),
    "Exp": np.exp,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda x: 1 / x,
    "Softplus": lambda x: np.logaddexp(0, x),
    "Abs": np.abs,
}
JOINS: dict[str, Callable] = {
    "Mul": np.multiply, "Add": np.add, "Sub": np.subtract, "Div": np.divide, "Pow": np.power, "Min": np.minimum,
    "Max": np.maximum,
}  # fmt: skip

# A weight node's result, or one of the parts that a Split makes of it.
Source = tuple[onnx_ir.Node, int | None]


class NotElementwise(Exception):
    """A value is computed by more than operators on single numbers."""


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + RECTIFIES["Erf"](x / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def split_sizes(node: onnx_ir.Node) -> list[int] | None:
    """How a Split along the last axis divides it; None where it does not say."""
    sizes = constant(input_of(node, 1))
    if sizes is not None:
        return [int(size) for size in sizes.reshape(-1)]
    return None


def source_of(value: onnx_ir.Value | None, seen: set | None = None) -> Source | None:
    """The weights whose result a value is, carried on: with a Split on the way the index of its part."""
    seen = set() if seen is None else seen
    node = value.producer() if value is not None else None
    if node is None or node in seen:
        return None
    seen.add(node)
    if node.op_type in WEIGHTED:
        return node, None
    if node.op_type == "Split":
        found = source_of(node.inputs[0], seen)
        return (found[0], value.index()) if found and found[1] is None else None
    if node.op_type not in CARRIES:
        return None
    for item in node.inputs:
        if item is not None and constant(item) is None and (found := source_of(item, seen)):
            return found
    return None


def split_after(node: onnx_ir.Node) -> list[int] | None:
    """The sizes of the parts into which a weight node's result is split, where it is."""
    open_ = [node.outputs[0]]
    while open_:
        for consumer in open_.pop().consumers():
            if consumer.op_type == "Split":
                return split_sizes(consumer)
            if consumer.op_type in ("Add", "Cast", "Identity") and layer_of(consumer) == layer_of(node):
                open_.append(consumer.outputs[0])
    return None


def attention_sources(node: onnx_ir.Node) -> dict[str, Source]:
    """Where queries, keys and values of an attention node come from: {"q_proj": …}, or {"qkv_proj": …} where packed."""
    found = {place: source_of(input_of(node, at)) for at, place in enumerate(("q_proj", "k_proj", "v_proj"))}
    found = {place: source for place, source in found.items() if source is not None}
    if list(found) == ["q_proj"] and input_of(node, 1) is None:
        return {"qkv_proj": found["q_proj"]}
    return found


def after(node: onnx_ir.Node) -> onnx_ir.Node | None:
    """The weights that an attention node's result goes into."""
    open_, seen = [node.outputs[0]], set()
    while open_:
        for consumer in open_.pop().consumers():
            if consumer.op_type in WEIGHTED:
                return consumer
            if (
                consumer.op_type in ("Cast", "Identity", "Reshape", "Transpose", "Mul", "Slice")
                and consumer not in seen
            ):
                seen.add(consumer)
                open_.append(consumer.outputs[0])
    return None


def elementwise(value: onnx_ir.Value, leaves: dict[Source, np.ndarray], depth: int = 0) -> np.ndarray:
    """A value as a function of those of the weights' results that it comes from, one number each.

    leaves: results of weights -> numbers put in their place; one that is not
    there is added, as ones. Biases (vectors that are added) are left out.
    Errors: `NotElementwise`.
    """
    node = value.producer()
    known = constant(value)
    if known is not None:
        if known.size != 1:
            raise NotElementwise("a vector")
        return known.reshape(-1)[0].astype(np.float64)
    if node is None or depth > 40:
        raise NotElementwise("an input of the graph")
    kind = node.op_type
    if kind in WEIGHTED:
        return leaves.setdefault((node, None), np.float64(1))
    if kind == "Split":
        source = source_of(value)
        if source is None:
            raise NotElementwise("Split")
        return leaves.setdefault(source, np.float64(1))
    inputs = [item for item in node.inputs if item is not None]
    if kind in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze"):
        return elementwise(inputs[0], leaves, depth + 1)
    if kind == "Add":
        vectors = [item for item in inputs if (array := constant(item)) is not None and array.size > 1]
        if vectors:
            return elementwise(next(item for item in inputs if item not in vectors), leaves, depth + 1)
    if kind in JOINS:
        values = [elementwise(item, leaves, depth + 1) for item in inputs]
        found = values[0]
        for other in values[1:]:
            found = JOINS[kind](found, other)
        return found
    x = elementwise(inputs[0], leaves, depth + 1)
    if kind in RECTIFIES:
        return RECTIFIES[kind](x)
    if kind == "Gelu":
        return gelu_tanh(x) if attribute(node, "approximate", "none") == "tanh" else gelu(x)
    if kind == "FastGelu":
        return gelu_tanh(x)
    if kind == "BiasGelu":
        return gelu(x)
    if kind == "QuickGelu":
        return x / (1 + np.exp(-attribute(node, "alpha", 1.702) * x))
    if kind in ("Swish", "Silu"):
        return x / (1 + np.exp(-attribute(node, "alpha", 1.0) * x))
    if kind == "HardSwish":
        return x * np.clip(x / 6 + 0.5, 0, 1)
    if kind == "LeakyRelu":
        return np.where(x < 0, attribute(node, "alpha", 0.01) * x, x)
    if kind == "Clip":
        low, high = (constant(input_of(node, at)) for at in (1, 2))
        return np.clip(x, -np.inf if low is None else float(low), np.inf if high is None else float(high))
    raise NotElementwise(kind)


def misplaced(nodes: list[onnx_ir.Node]) -> list[tuple[onnx_ir.Node, int]]:
    """Weights that do not run in the layer whose number their name has, with the layer in which they do.

    nodes: in the graph's order. Before the weights of layer n run the mixers (attention, convolution) of the layers
    below n, and after its own mixer n's as well.
    """
    mixers = {layer: 1 << at for at, layer in enumerate(sorted({layer_of(n) for n in nodes if mixes(n)}))}
    before: dict[onnx_ir.Value, int] = {}
    found = []
    for node in nodes:
        seen = 0
        for value in node.inputs:
            seen |= before.get(value, 0) if value is not None else 0
        layer = layer_of(node)
        if node.op_type in WEIGHTED and layer in mixers:
            # How many layers have mixed before it: its own may have.
            own, deep = sorted(mixers).index(layer), bin(seen).count("1")
            if deep not in (own, own + 1):
                found.append((node, sorted(mixers)[max(0, min(deep - 1, len(mixers) - 1))]))
        if mixes(node):
            seen |= mixers[layer]
        for value in node.outputs:
            before[value] = seen
    return found


def mixes(node: onnx_ir.Node) -> bool:
    return node.op_type in MIXERS and layer_of(node) is not None
