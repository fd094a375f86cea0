"""What an export's MLPs make of numbers, beside what transformers' do: the activation, whatever operators it is of."""

from __future__ import annotations

import graph_walk
import numpy as np
import weights_export
import weights_reference
from constants_entry import DIFFERS, SAME, entry, unread
from constants_export import attribute
from weights_reference import OTHERS, POINTS

# The nearest two that are told apart, gelu and its tanh form, differ by 4.7e-4; fp32 computes either to 1e-6.
NEAR = 3e-5


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


KNOWN = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": graph_walk.gelu,
    "gelu_tanh": graph_walk.gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "none": lambda x: x,
}


def entries(ours: weights_reference.Weights, theirs: weights_export.Weights, layers: int) -> list[dict]:
    """An entry for each MLP of the layers that the export has."""
    found = []
    for (layer, what), wanted in ours.activations.items():
        if layer >= layers:
            continue
        if isinstance(wanted, str):
            found.append(unread("activation", what, layer, None, wanted))
            continue
        mixed = what.endswith(".act_fn")
        held = [mixture(item) for item in theirs.experts if item.layer == layer] if mixed else [
            block(item) for item in theirs.blocks if item.layer == layer
        ]  # fmt: skip
        if not held or any(isinstance(item, str) for item in held):
            why = next((item for item in held if isinstance(item, str)), "no MLP was found in the graph")
            found.append(unread("activation", what, layer, called(wanted), why))
            continue
        # A shared expert and an MLP beside each other: whichever is nearest is its own.
        held = [one if len(one) == len(wanted) else np.repeat(one, len(wanted), axis=0) for one in held]
        nearest = min(held, key=lambda one: off(one, wanted))
        found.append(activation_entry(what, layer, wanted, nearest))
    return found


def off(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, of what is beyond 1 in parts of it."""
    return float((np.abs(one - other) / np.maximum(1, np.abs(other))).max())


def activation_entry(what: str, layer: int, wanted: np.ndarray, held: np.ndarray) -> dict:
    one, other = called(wanted), called(held)
    diff = float(np.abs(wanted - held).max())
    if off(held, wanted) <= NEAR:
        return entry("activation", what, layer, one, other, SAME, "", 0.0)
    at = int(np.abs(wanted[0] - held[0]).argmax())
    said = f"{other} instead of {one}"
    if one == other:
        said = f"another {one}: {held[0][at]:.4g} instead of {wanted[0][at]:.4g} at {POINTS[at]:.4g}"
    return entry("activation", what, layer, one, other, DIFFERS, said, diff)


def called(values: np.ndarray) -> str:
    """The name of an activation by its values, a row for each of `OTHERS`."""
    for name, function in KNOWN.items():
        if off(values[0], function(POINTS)) <= NEAR:
            plain = len(values) == 1 or off(values[1], OTHERS[1] * values[0]) <= NEAR or np.array_equal(*values[:2])
            return name if plain else f"{name} with a limit"
    return "another activation"


def block(item: weights_export.Block) -> np.ndarray | str:
    """What an MLP of the graph makes of `POINTS`, a row for each of `OTHERS`."""
    sources = [item.gate] + ([item.up] if item.up is not None else [])
    try:
        rows = [weights_export.applied(item.down, item.gate, sources, POINTS, np.float64(other)) for other in OTHERS]
    except graph_walk.NotElementwise as why:
        return f"computed with {why}"
    return np.stack(rows)


def mixture(item: weights_export.Experts) -> np.ndarray | str:
    """The same of the operators MoE and QMoE, as ONNX Runtime defines them."""
    kind = attribute(item.node, "activation_type", "relu")
    alpha, beta = attribute(item.node, "activation_alpha", 1.0), attribute(item.node, "activation_beta", 0.0)
    limit = attribute(item.node, "swiglu_limit", None)
    if kind == "swiglu":
        rows = []
        for other in OTHERS:
            gate = POINTS if limit is None else np.minimum(POINTS, limit)
            up = other if limit is None else float(np.clip(other, -limit, limit))
            rows.append(gate * sigmoid(alpha * gate) * (up + beta))
        return np.stack(rows)
    if kind not in ("silu", "gelu", "relu", "identity"):
        return f"activation_type {kind} is not known"
    plain = KNOWN[{"identity": "none"}.get(kind, kind)](POINTS)
    return np.stack([plain * other if item.matrices[2] is not None else plain for other in OTHERS])
