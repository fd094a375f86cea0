"""The constants that an ONNX export holds, read from its graph; nothing is run.

What is read is what a node of the graph uses: an initializer that nothing
uses is no constant of the model. Arrays stay in the export's dtype, and large
ones stay on disk until they are looked at.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import constants_masks
import numpy as np
import onnx_ir

ROWS = 4
LAYER = re.compile(r"layers\.(\d+)[/.]")
# Where an operator has the weight and the bias of its norm, and its epsilon where it has no attribute.
NORMS = {
    "SimplifiedLayerNormalization": ("RMSNorm", 1, None, 1e-5),
    "RMSNormalization": ("RMSNorm", 1, None, 1e-5),
    "SkipSimplifiedLayerNormalization": ("RMSNorm", 2, None, 1e-12),
    "LayerNormalization": ("LayerNorm", 1, 2, 1e-5),
    "SkipLayerNormalization": ("LayerNorm", 2, 3, 1e-12),
}
# Operators that compute a norm of their own inside, or may: layers with them are not known to lack one.
OPAQUE = {"GatedRMSNorm", "LpNormalization", "ReduceMean", "ReduceL2", "InstanceNormalization", "LinearAttention"}
ATTENTION = {"GroupQueryAttention", "MultiHeadAttention", "Attention", "SparseAttention", "PagedAttention"}
# Inputs of GroupQueryAttention, by name.
COS, SIN, SINKS, Q_NORM, K_NORM = 7, 8, 11, 14, 15
BIAS = {
    "Add": None, "MatMulNBits": 5, "Gemm": 2, "Conv": 2, "CausalConvWithState": 2, "Attention": 2,
    "MultiHeadAttention": 3,
}  # fmt: skip
PASSES = {"Cast", "Identity", "Slice", "Reshape", "Unsqueeze", "Squeeze"}
# Blocks of a layer, inside which a factor is an activation's, say, and not the layer's own.
INSIDE = re.compile(r"layers\.\d+/(attn|mlp|moe|conv|linear_attn|short_conv|shared_expert)/")
PACKED = ("qkv_proj", "gate_up_proj")


@dataclass(frozen=True)
class Cache:
    """A rotary cache: cos and sin [positions, pairs]. label: "short", "long" or "", of sequences of which length;
    beyond: the length above which the long one is used."""

    name: str
    cos: np.ndarray
    sin: np.ndarray
    label: str = ""
    beyond: int | None = None


@dataclass(frozen=True)
class Rotation:
    """How a layer rotates: with which caches; interleaved: pairs are neighbours, not halves of a head."""

    caches: list[Cache]
    interleaved: bool


@dataclass
class Attention:
    """What an attention operator is told. None: nothing of the kind. window: positions looked back at, the own one
    included; an operator that cannot be told of windows or soft caps has none. reads: the operator's type."""

    reads: str
    scale: float | None
    soft_cap: float | None
    window: int | None
    sinks: np.ndarray | None
    rotation: Rotation | str | None  # None: no rotation; a text: why it could not be read
    mask_numbers: set[int] = field(default_factory=set)  # whole numbers that its mask is computed with


@dataclass(frozen=True)
class Norm:
    """A norm's node. role: "input", "post_attention", "q", …; "final" for the last."""

    layer: int | None
    role: str
    kind: str
    weight: np.ndarray | None
    bias: np.ndarray | None
    epsilon: float


@dataclass
class Export:
    """All that was read. biases: by layer (None outside) and projection; multipliers: of each layer, in order.

    logits: from a value of the last layer to what becomes of it; embedding_scale
    and logits are texts where they could not be read. opaque: layers with
    operators that may hide a norm.
    """

    layers: int
    dtype: np.dtype
    attention: dict[int, Attention] = field(default_factory=dict)
    norms: list[Norm] = field(default_factory=list)
    biases: dict[tuple[int | None, str], np.ndarray] = field(default_factory=dict)
    multipliers: dict[int, list[np.ndarray]] = field(default_factory=dict)
    opaque: set[int | None] = field(default_factory=set)
    clips: set[int | None] = field(default_factory=set)  # layers that clip something
    nodes: list[onnx_ir.Node] = field(default_factory=list)  # those that are used, in the graph's order
    graph: onnx_ir.Graph | None = None
    embedding_scale: np.ndarray | str = "no embedding in the graph"
    embedding_rows: np.ndarray | None = None  # the first few, in their own dtype; None of one that is quantised
    config: dict = field(default_factory=dict)  # genai_config.json
    logits: Callable[[float], float] | str = "no logits in the graph"


def read(folder: str) -> Export:
    """The constants of the export in `folder` (model.onnx, its data, genai_config.json)."""
    graph = onnx_ir.load(os.path.join(folder, "model.onnx")).graph
    with open(os.path.join(folder, "genai_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    head_size = config["model"].get("decoder", {}).get("head_size")
    nodes = live(graph)
    inside = [layer_of(node) for node in nodes if "final_norm" not in (node.name or "")]
    layers = 1 + max((layer for layer in inside if layer is not None), default=-1)
    found = Export(layers, dtype_of(graph), config=config, nodes=nodes, graph=graph)
    for node in nodes:
        layer = layer_of(node)
        if node.op_type in ("Clip", "Min", "Max"):
            found.clips.add(layer)
        # A norm whose sum alone is used, and not what it gives, is none.
        if node.op_type in NORMS and (node.outputs[0].consumers() or node.outputs[0] in graph.outputs):
            found.norms.append(norm(node, layer, layers))
        if node.op_type in OPAQUE:
            found.opaque.add(layer)
        if node.op_type in ATTENTION and layer is not None:
            found.attention[layer] = attention(node, nodes_of(nodes, layer), head_size)
            found.norms += fused_norms(node, layer)
        if node.op_type in BIAS and (bias := bias_of(node)) is not None:
            found.biases[(layer, projection(node))] = bias
        if node.op_type == "Mul" and layer is not None and not INSIDE.search(node.name):
            found.multipliers.setdefault(layer, []).extend(factors(node))
    found.embedding_scale = embedding_scale(graph, nodes)
    found.embedding_rows = embedding_rows(graph, nodes)
    found.logits = logits(graph)
    return found


def live(graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """The nodes on which the graph's outputs depend: what others hold is never used."""
    needed: set[onnx_ir.Node] = set()
    open_ = [value.producer() for value in graph.outputs]
    while open_:
        node = open_.pop()
        if node is None or node in needed:
            continue
        needed.add(node)
        inner = [n for a in node.attributes.values() if a.type == onnx_ir.AttributeType.GRAPH for n in a.as_graph()]
        open_ += [value.producer() for one in (node, *inner) for value in one.inputs if value is not None]
    return [node for node in graph if node in needed]


def dtype_of(graph: onnx_ir.Graph) -> np.dtype:
    """The dtype in which the export's hidden states are: that of what its first attention gives."""
    for node in graph:
        if node.op_type in ATTENTION and node.outputs[0].dtype is not None:
            return np.dtype(node.outputs[0].dtype.numpy())
    return np.dtype(np.float32)


def layer_of(node: onnx_ir.Node) -> int | None:
    match = LAYER.search(node.name or "")
    return int(match.group(1)) if match else None


def nodes_of(nodes: list[onnx_ir.Node], layer: int) -> list[onnx_ir.Node]:
    return [node for node in nodes if layer_of(node) == layer]


def projection(node: onnx_ir.Node) -> str:
    """The module that a node is of: "q_proj" of ``/model/layers.0/attn/q_proj/Add``."""
    if node.op_type in ATTENTION:
        return "qkv_proj"
    parts = [part for part in node.name.split("/") if part]
    return parts[-2] if len(parts) > 1 else node.name


def constant(value: onnx_ir.Value | None) -> np.ndarray | None:
    """The array of an initializer or of a Constant node; None where a value is computed."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Constant":
        if "value" in node.attributes:
            return node.attributes["value"].as_tensor().numpy()
        return next((np.asarray(a.value) for name, a in node.attributes.items() if name.startswith("value_")), None)
    return constant(node.inputs[0]) if node.op_type in ("Cast", "Identity") else None


def attribute(node: onnx_ir.Node, name: str, default):
    found = node.attributes.get(name)
    return default if found is None else found.value


def input_of(node: onnx_ir.Node, index: int | None) -> onnx_ir.Value | None:
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def norm(node: onnx_ir.Node, layer: int | None, layers: int) -> Norm:
    kind, weight, bias, epsilon = NORMS[node.op_type]
    role = role_of(node.name)
    outside = layer is None or layer >= layers or role == "final"
    return Norm(
        None if outside else layer, "final" if outside else role, kind, constant(input_of(node, weight)),
        constant(input_of(node, bias)), float(attribute(node, "epsilon", epsilon)),
    )  # fmt: skip


def role_of(name: str) -> str:
    """What a norm's name says that it is for: "input" of ``…/input_layernorm/LayerNorm``, "q" of ``…/q_norm/…``."""
    part = next((part for part in re.split(r"[/.]", name) if re.search("norm", part) and part != "layernorm"), name)
    return re.sub(r"(_layer)?_?norm$|_norm_layernorm$", "", part) or "final"


def fused_norms(node: onnx_ir.Node, layer: int) -> list[Norm]:
    """The norms of queries and keys that GroupQueryAttention computes itself."""
    if node.op_type != "GroupQueryAttention":
        return []
    epsilon = float(attribute(node, "qk_norm_epsilon", 1e-6))
    weights = (("q", constant(input_of(node, Q_NORM))), ("k", constant(input_of(node, K_NORM))))
    return [Norm(layer, role, "RMSNorm", weight, None, epsilon) for role, weight in weights if weight is not None]


def attention(node: onnx_ir.Node, nodes: list[onnx_ir.Node], head_size: int | None) -> Attention:
    """What the attention node of a layer is told; nodes: all of the layer."""
    # 0 is the operators' word for the default.
    scale = float(attribute(node, "scale", 0.0)) or (float(np.float32(head_size**-0.5)) if head_size else None)
    window = attribute(node, "local_window_size", -1)
    grouped = node.op_type == "GroupQueryAttention"
    return Attention(
        node.op_type, scale, float(attribute(node, "softcap", 0.0)) or None,
        window if window and window > 0 else None, constant(input_of(node, SINKS)) if grouped else None,
        rotation(node, nodes), constants_masks.numbers_in(node),
    )  # fmt: skip


def rotation(node: onnx_ir.Node, nodes: list[onnx_ir.Node]) -> Rotation | str | None:
    """How a layer rotates queries and keys: in the attention operator, or before it."""
    if attribute(node, "do_rotary", 0):
        if node.op_type != "GroupQueryAttention":
            return f"{node.op_type} rotates by itself"
        caches = caches_of(input_of(node, COS), input_of(node, SIN))
        return Rotation(caches, bool(attribute(node, "rotary_interleaved", 0))) if caches else "caches not found"
    rotations = [other for other in nodes if other.op_type in ("RotaryEmbedding", "MRotaryEmbedding")]
    if not rotations:
        return None
    pairs = {rotation_inputs(other) for other in rotations}
    styles = {bool(attribute(other, "interleaved", 0)) for other in rotations}
    if len(pairs) > 1 or len(styles) > 1:
        return "queries and keys are rotated in different ways"
    caches = caches_of(*pairs.pop())
    return Rotation(caches, styles.pop()) if caches else "caches not found"


def rotation_inputs(node: onnx_ir.Node) -> tuple[onnx_ir.Value | None, onnx_ir.Value | None]:
    """cos and sin of a RotaryEmbedding: ONNX's own has them before the positions, Microsoft's after."""
    first = 2 if node.domain == "com.microsoft" else 1
    return input_of(node, first), input_of(node, first + 1)


def caches_of(cos: onnx_ir.Value | None, sin: onnx_ir.Value | None) -> list[Cache]:
    """The caches behind two inputs: one, or the short and the long one behind an If on the sequence's length."""
    if cos is None or sin is None:
        return []
    arrays = constant(cos), constant(sin)
    if arrays[0] is not None and arrays[1] is not None:
        return [Cache(cos.name or "", *arrays)]
    node = cos.producer()
    if node is None or node.op_type != "If" or sin.producer() is not node:
        return []
    found = []
    for label, branch in (("short", "else_branch"), ("long", "then_branch")):
        outputs = node.attributes[branch].as_graph().outputs
        arrays = tuple(constant(outputs[value.index()]) for value in (cos, sin))
        if arrays[0] is None or arrays[1] is None:
            return []
        found.append(Cache(f"{cos.name} ({label})", *arrays, label=label, beyond=threshold(node)))
    return found


def threshold(node: onnx_ir.Node) -> int | None:
    """The length above which an If takes its first branch."""
    condition = node.inputs[0].producer() if node.inputs[0] is not None else None
    limit = constant(condition.inputs[1]) if condition is not None and condition.op_type == "Greater" else None
    return int(limit.reshape(-1)[0]) if limit is not None and limit.size == 1 else None


def bias_of(node: onnx_ir.Node) -> np.ndarray | None:
    """The vector that a node adds to its result."""
    at = BIAS[node.op_type]
    candidates = node.inputs if at is None else [input_of(node, at)]
    arrays = [array for array in map(constant, candidates) if array is not None]
    return next((a for a in arrays if a.ndim == 1 and a.size > 1 and a.dtype.kind not in "iub"), None)


def factors(node: onnx_ir.Node) -> list[np.ndarray]:
    """The floating-point scalars that a Mul multiplies by."""
    arrays = [array for array in map(constant, node.inputs) if array is not None]
    return [array.reshape(-1)[0] for array in arrays if array.size == 1 and array.dtype.kind not in "iub"]


def embedding_scale(graph: onnx_ir.Graph, nodes: list[onnx_ir.Node]) -> np.ndarray | str:
    """The factor on the embeddings, in its own dtype; 1 where there is none."""
    ids = next((value for value in graph.inputs if value.name == "input_ids"), None)
    lookups = [n for n in nodes if n.op_type.startswith("Gather") and any(value is ids for value in n.inputs)]
    if ids is None or not lookups:
        return "no embedding in the graph"
    scale, open_ = None, [lookups[0].outputs[0]]
    while open_:
        for node in open_.pop().consumers():
            found = factors(node) if node.op_type == "Mul" else []
            if found:
                scale = found[0] if scale is None else scale * found[0]
            if found or node.op_type in PASSES:
                open_.append(node.outputs[0])
    return np.float32(1) if scale is None else scale


def embedding_rows(graph: onnx_ir.Graph, nodes: list[onnx_ir.Node]) -> np.ndarray | None:
    """The first rows of the embeddings, where they are looked up as they are."""
    ids = next((value for value in graph.inputs if value.name == "input_ids"), None)
    table = next((constant(n.inputs[0]) for n in nodes if n.op_type == "Gather" and ids in n.inputs[1:]), None)
    return None if table is None or table.ndim != 2 or table.dtype.kind in "iub" else np.array(table[:ROWS])


def logits(graph: onnx_ir.Graph) -> Callable[[float], float] | str:
    """What becomes of a value that the last layer gives, until it is a logit, as a function of fp64."""
    value = next((value for value in graph.outputs if value.name == "logits"), None)
    if value is None:
        return "no logits in the graph"
    steps: list[Callable[[float], float]] = []
    while (node := value.producer()) is not None and not node.op_type.startswith("MatMul"):
        other = [float(array) for array in factors(node)]
        if node.op_type in PASSES or (node.op_type == "Add" and bias_of(node) is not None):
            pass
        elif node.op_type == "Mul" and other:
            steps.append(lambda x, c=other[0]: x * c)
        elif node.op_type == "Div" and other and constant(node.inputs[1]) is not None:
            steps.append(lambda x, c=other[0]: x / c)
        elif node.op_type == "Tanh":
            steps.append(np.tanh)
        elif node.op_type == "Where":
            value = node.inputs[2]
            continue
        else:
            return f"{node.op_type} between the last layer and the logits"
        value = next(item for item in node.inputs if constant(item) is None)

    def apply(x: float) -> float:
        for step in reversed(steps):
            x = step(x)
        return float(x)

    return apply
