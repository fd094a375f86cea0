"""What an export's attention may be told by its mask, and what genai_config.json tells the runtime of windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir

# The input by which an operator is given a mask that the graph computes.
MASK = {"MultiHeadAttention": 5, "Attention": 3, "GroupQueryAttention": 10}


def numbers_in(node: onnx_ir.Node) -> set[int]:
    """The whole numbers that the mask of an attention node is computed with, without their signs: a sliding window
    may be one of them. Empty where it has no such mask."""
    at = MASK.get(node.op_type)
    mask = node.inputs[at] if at is not None and at < len(node.inputs) else None
    found: set[int] = set()
    seen: set[onnx_ir.Node] = set()
    open_ = [] if mask is None else [mask]
    while open_:
        value = open_.pop()
        if value.const_value is not None:
            found |= whole(value.const_value.numpy())
        maker = value.producer()
        if maker is None or maker in seen:
            continue
        seen.add(maker)
        if maker.op_type == "Constant" and "value" in maker.attributes:
            found |= whole(maker.attributes["value"].as_tensor().numpy())
        if maker.op_type != "Shape":  # what is behind it is no part of the mask's values
            open_ += [item for item in maker.inputs if item is not None]
    return found


def whole(values: np.ndarray) -> set[int]:
    """A constant's number, where it is one and whole."""
    if values.size != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        return set()
    number = float(values.reshape(-1)[0])
    return {abs(int(number))} if number == int(number) else set()


def declared(config: Mapping, window: int | float) -> str:
    """What a genai_config.json says of sliding windows beside a graph whose attention has none, in words."""
    said = (config.get("model", {}).get("decoder", {}) or {}).get("sliding_window") or {}
    size, layers = said.get("window_size"), said.get("layers")
    if not size:
        return "; genai_config.json declares none"
    where = f"for layers {', '.join(map(str, layers))}" if layers else "for no layer" if layers == [] else "for all"
    same = "it" if size == window else f"one of {size}"
    return f"; genai_config.json declares {same} {where}"
