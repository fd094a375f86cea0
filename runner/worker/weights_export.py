"""The weight matrices that an export holds, each with the place where its graph uses it.

A place is what the graph does with a matrix: what feeds an attention
operator's queries is "q_proj", what an activation is computed of "gate_proj",
whatever a node or an initializer is called. Where that does not tell, the
node's name is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir
from constants_export import ATTENTION, attribute, constant, input_of, layer_of, projection
from graph_walk import WEIGHTED, NotElementwise, Source, after, attention_sources, elementwise, split_after
from weights_rows import Floats, Matrix, Part, Quantised, unpacked

QKV = ("q_proj", "k_proj", "v_proj")
# Initializers with two dimensions that are compared elsewhere.
CACHES = {"GroupQueryAttention", "RotaryEmbedding", "MRotaryEmbedding", "If"}
# Of which inputs a mixture of experts takes weights, steps, biases and zeros: first, second and third matrix.
EXPERTS = {"MoE": (2, None, 3, None, 2), "QMoE": (2, 3, 4, 11, 3)}


@dataclass(frozen=True)
class Held:
    """Some rows of a matrix, in their place. layer: None outside the layers; name: the node's."""

    layer: int | None
    place: str
    part: Part
    name: str


@dataclass(frozen=True)
class Experts:
    """The matrices of a layer's mixture of experts. first: [experts, rows, columns] as one matrix of all rows, and so
    on; biases [experts, rows]. fusion: 0 a matrix each for gate and up, 1 their rows alternate, 2 gate before up."""

    layer: int | None
    node: onnx_ir.Node
    count: int
    matrices: tuple[Matrix | str | None, ...]  # first, second, third; a text says why one was not read
    biases: tuple[np.ndarray | None, ...]
    fusion: int


@dataclass(frozen=True)
class Block:
    """An MLP: what is fed to `down` as a function of the results of other weights. gate: those of which the function is
    no straight line; up: the others."""

    layer: int | None
    down: onnx_ir.Node
    gate: Source
    up: Source | None


@dataclass
class Weights:
    """All that was read. unread: (layer, operator) -> why matrices of it were not."""

    held: list[Held] = field(default_factory=list)
    experts: list[Experts] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    unread: dict[tuple[int | None, str], str] = field(default_factory=dict)


def read(graph: onnx_ir.Graph, nodes: list[onnx_ir.Node], layers: int) -> Weights:
    """The matrices of the nodes that are used; layers: how many the export has."""
    found = Weights()
    places, splits = {}, {}
    for node in nodes:
        if node.op_type in ATTENTION:
            place_attention(node, places, splits)
    for node in nodes:
        if node.op_type in WEIGHTED and (block := block_of(node)) is not None:
            found.blocks.append(block)
            for role, source in (("gate_proj", block.gate), ("up_proj", block.up), ("down_proj", (node, None))):
                if source is not None:
                    role = "up_proj" if role == "gate_proj" and block.up is None else role
                    (places if source[1] is None else splits.setdefault(source[0], {}))[
                        source[0] if source[1] is None else source[1]
                    ] = role
    for node in nodes:
        if node.op_type in EXPERTS:
            found.experts.append(experts(node))
            continue
        try:
            matrix = matrix_of(node)
        except Unread as why:
            found.unread[(layer_of(node), node.op_type)] = str(why)
            continue
        if matrix is None:
            continue
        layer = layer_of(node)
        layer = None if layer is not None and layer >= layers else layer
        for place, part in parts(node, matrix, places, splits):
            found.held.append(Held(layer, place, part, node.name or node.op_type))
    head = head_of(graph)
    if head is None:
        found.unread[(None, "logits")] = "the graph gives none"
    found.held = [
        Held(item.layer, "lm_head", item.part, item.name) if head is not None and item.name == head.name else item
        for item in found.held
    ]
    return found


def place_attention(node: onnx_ir.Node, places: dict, splits: dict) -> None:
    """Note where the weights around an attention node stand."""
    for place, (source, index) in attention_sources(node).items():
        if index is None:
            # Keys that are read from another layer's cache come from that one's weights.
            if layer_of(source) == layer_of(node):
                places[source] = place
        elif layer_of(source) == layer_of(node):
            splits.setdefault(source, {})[index] = place
    out = after(node)
    if out is not None and layer_of(out) == layer_of(node):
        places[out] = "o_proj"


def parts(node: onnx_ir.Node, matrix: Matrix, places: dict, splits: dict) -> list[tuple[str, Part]]:
    """A matrix's places and the rows that are in each."""
    rows = matrix.shape[0]
    named = splits.get(node, {})
    sizes = split_after(node) if named else None
    if named and sizes and sum(sizes) == rows:
        ends = np.cumsum(sizes)
        return [
            (named.get(at, f"{projection(node)}[{at}]"), Part(matrix, int(end) - size, int(end)))
            for at, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ]
    return [(places.get(node) or name_of(node), Part(matrix, 0, rows))]


def name_of(node: onnx_ir.Node) -> str:
    """What a node's name says that it is for."""
    if node.op_type.startswith("Gather"):
        return "embed_tokens" if any(v is not None and v.name == "input_ids" for v in node.inputs) else projection(node)
    return projection(node)


def head_of(graph: onnx_ir.Graph) -> onnx_ir.Node | None:
    """The last weights before the logits."""
    value = next((value for value in graph.outputs if value.name == "logits"), None)
    for _ in range(20):
        node = value.producer() if value is not None else None
        if node is None or node.op_type in WEIGHTED:
            return node
        inputs = [item for item in node.inputs if item is not None and constant(item) is None]
        # A cap's Where takes the condition first.
        value = inputs[-1] if inputs else None
    return None


class Unread(Exception):
    """A node's weights are kept in a way that is not known here."""


def matrix_of(node: onnx_ir.Node) -> Matrix | None:
    """The matrix of a node, rows of outputs; None where it has none. Errors: `Unread`."""
    kind = node.op_type
    if kind in ("MatMul", "Gemm", "FusedMatMul"):
        array = constant(input_of(node, 1))
        if array is None:
            if from_constants(input_of(node, 1)):
                raise Unread("its weight is computed in the graph")
            return None
        if array.ndim != 2 or array.dtype.kind in "iub":
            raise Unread(f"a weight of {array.ndim} dimensions in {array.dtype.name}")
        return Floats(array if attribute(node, "transB", 0) else array.T)
    if kind == "MatMulNBits":
        return nbits(node)
    if kind == "Gather":
        array = embedding_of(input_of(node, 0))
        return Floats(array) if array is not None and array.ndim == 2 and array.dtype.kind not in "iub" else None
    if kind == "GatherBlockQuantized":
        return gathered(node)
    if kind in ("Conv", "CausalConvWithState"):
        array = constant(input_of(node, 1))
        return Floats(array.reshape(array.shape[0], -1)) if array is not None and array.ndim > 1 else None
    if kind not in CACHES and kind != "Constant":
        large = [v for v in node.inputs if v is not None and v.const_value is not None and len(v.const_value.shape) > 1]
        if any(v.const_value.size > 1 and v.const_value.dtype.is_floating_point() for v in large):
            raise Unread(f"how {kind} keeps its weights is not known")
    return None


def from_constants(value: onnx_ir.Value | None) -> bool:
    """Whether a value is computed from initializers alone."""
    node = value.producer() if value is not None else None
    if node is None or not node.inputs:
        return False
    return all(item is None or constant(item) is not None or from_constants(item) for item in node.inputs)


def embedding_of(value: onnx_ir.Value | None) -> np.ndarray | None:
    """The table that a Gather reads, turned where the graph turns it."""
    array = constant(value)
    if array is not None or value is None:
        return array
    node = value.producer()
    if node is not None and node.op_type in ("Transpose", "Reshape"):
        array = constant(input_of(node, 0))
        return array.T if array is not None and node.op_type == "Transpose" and array.ndim == 2 else None
    return None


def nbits(node: onnx_ir.Node) -> Quantised:
    """The weights of MatMulNBits: [N, blocks, bytes], steps [N, blocks], zeros packed, float or half of all."""
    bits, block = int(attribute(node, "bits", 4)), int(attribute(node, "block_size", 32))
    rows, columns = int(attribute(node, "N", 0)), int(attribute(node, "K", 0))
    packed, steps = constant(input_of(node, 1)), constant(input_of(node, 2))
    if packed is None or steps is None or constant(input_of(node, 4)) is not None:
        raise Unread("its weights are computed, or their columns in another order")
    blocks = -(-columns // block)
    return Quantised(
        packed.reshape(rows, -1), steps.reshape(rows, blocks), zeros_of(node, 3, rows, blocks, bits), bits, block,
        columns,
    )  # fmt: skip


def zeros_of(node: onnx_ir.Node, at: int, rows: int, blocks: int, bits: int) -> np.ndarray | float:
    """What stands for 0 in each block: given in floats or packed; else the middle."""
    zeros = constant(input_of(node, at))
    if zeros is None:
        return float(2 ** (bits - 1))
    if zeros.dtype.kind == "u":
        return unpacked(np.ascontiguousarray(zeros.reshape(rows, -1)), bits)[:, :blocks]
    return zeros.reshape(rows, blocks)


def gathered(node: onnx_ir.Node) -> Quantised:
    """The table of GatherBlockQuantized: bytes that hold the values of a row, or whole numbers of their own type."""
    bits, block = int(attribute(node, "bits", 4)), int(attribute(node, "block_size", 128))
    value = input_of(node, 0)
    packed, steps = constant(value), constant(input_of(node, 2))
    if packed is None and value is not None and value.producer() is not None:
        packed = constant(input_of(value.producer(), 0)) if value.producer().op_type == "Reshape" else None
    if packed is None or steps is None or int(attribute(node, "gather_axis", 0)):
        raise Unread("its table is computed, or turned")
    if packed.dtype != np.uint8:
        raise Unread(f"a table in {packed.dtype.name}")
    packed = packed.reshape(packed.shape[0], -1)
    blocks = steps.reshape(packed.shape[0], -1).shape[1]
    zeros = zeros_of(node, 3, packed.shape[0], blocks, bits)
    columns = min(packed.shape[1] * 8 // bits, kept(node))
    return Quantised(packed, steps.reshape(packed.shape[0], blocks), zeros, bits, block, columns)


def kept(node: onnx_ir.Node) -> int:
    """How many columns the graph keeps of a table whose last block is filled up."""
    for consumer in node.outputs[0].consumers():
        ends = constant(input_of(consumer, 2)) if consumer.op_type == "Slice" else None
        if ends is not None and ends.size == 1:
            return int(ends.reshape(-1)[0])
    return np.iinfo(np.int64).max


def experts(node: onnx_ir.Node) -> Experts:
    """The matrices of a mixture of experts."""
    first, step, bias, zero, apart = EXPERTS[node.op_type]
    matrices, biases, count = [], [], 0
    for at in range(3):
        weights = constant(input_of(node, first + apart * at))
        biases.append(constant(input_of(node, bias + apart * at)))
        if weights is None:
            matrices.append(None)
            continue
        count = weights.shape[0]
        flat = weights.reshape(-1, weights.shape[-1])
        if node.op_type == "MoE":
            matrices.append(Floats(flat))
            continue
        steps = constant(input_of(node, step + apart * at))
        zeros = constant(input_of(node, zero + at))
        bits = int(attribute(node, "expert_weight_bits", 4))
        columns = flat.shape[1] * 8 // bits
        if steps is None or zeros is not None or flat.dtype != np.uint8:
            matrices.append("steps, zeros or numbers of a form that is not known")
            continue
        steps = steps.reshape(flat.shape[0], -1)
        block = int(attribute(node, "block_size", 0)) or columns
        matrices.append(Quantised(flat, steps, float(2 ** (bits - 1)), bits, block, columns))
    fusion = int(attribute(node, "swiglu_fusion", 0)) if attribute(node, "activation_type", "relu") == "swiglu" else 0
    return Experts(layer_of(node), node, count, tuple(matrices), tuple(biases), fusion)


def block_of(node: onnx_ir.Node) -> Block | None:
    """The MLP that a node with weights closes, where it is one."""
    leaves: dict[Source, np.ndarray] = {}
    try:
        elementwise(node.inputs[0], leaves)
    except NotElementwise:
        return None
    leaves.pop((node, None), None)
    if not 1 <= len(leaves) <= 2 or any(layer_of(source[0]) != layer_of(node) for source in leaves):
        return None
    bent = [source for source in leaves if bends(node, source, list(leaves))]
    if len(bent) != 1:
        return None
    other = [source for source in leaves if source not in bent]
    return Block(layer_of(node), node, bent[0], other[0] if other else None)


def bends(node: onnx_ir.Node, source: Source, sources: list[Source]) -> bool:
    """Whether what a node is fed is no straight line in one of its sources."""
    points = np.array([-3.0, -1.0, 0.5, 3.0])
    seen = applied(node, source, sources, points, np.float64(1))
    line = seen[0] + (seen[-1] - seen[0]) * (points - points[0]) / (points[-1] - points[0])
    return bool(np.abs(seen - line).max() > 1e-3)


def applied(
    node: onnx_ir.Node, source: Source, sources: list[Source], points: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """What a node is fed where one source gives `points` and the others `other`."""
    leaves = {one: points if one == source else other for one in sources}
    return np.broadcast_to(elementwise(node.inputs[0], leaves), points.shape)
