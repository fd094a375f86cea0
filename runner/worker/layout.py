"""Which rows or columns of a checkpoint's tensors each rank holds under a sharding plan. Imports no torch.

A plan is what runner/backends/tp_cpu/plan.py makes of a sharding plan: {"tp", "gqa", "tensors", "layers"}. Where KV
heads do not divide, the rules are the inference library's (neuronx-distributed-inference, modules/attention/gqa.py):
KV heads are repeated in place, so that each stands beside its own query heads; zero query heads fill up every group
(replicate-to-tp-degree) or stand at the end (convert-to-mha). MLP and vocabulary have their zeros at the end. What is
fused in one matrix is divided a part at a time.
"""

from __future__ import annotations

import re

LAYER = re.compile(r"layers\.(\d+)\.self_attn\.(\w+)")
QUERY, KV = ("q_proj", "o_proj", "sinks"), ("k_proj", "v_proj")
UNDIVIDED = ("replicated", "whole")

# Where it begins in the checkpoint's dimension, None for zeros; and how long it is.
Span = tuple[int | None, int]


def placed(name: str, tensor, plan: dict, rank: int) -> tuple:
    """What `rank` must hold of the checkpoint's whole `tensor`, and "sharded" or "replicated".

    tensor: of torch, or a slice of safetensors' `get_slice`, of which no more is read than is held. What the plan
    does not know is replicated. Errors: `ValueError` where its shape is not the plan's.
    """
    axis = divided(name, plan)
    entry = plan["tensors"].get(name)
    shape = list(tensor.get_shape() if hasattr(tensor, "get_shape") else tensor.shape)
    if entry and shape != entry["shape"]:
        raise ValueError(f"{name} is {shape}, and by the plan {entry['shape']}")
    if axis is None:
        return tensor[...], "replicated"
    return taken(tensor, axis, spans(name, plan, rank)), "sharded"


def taken(tensor, axis: int, held: list[Span]):
    """The spans of `tensor` along `axis` (0 or 1), one after the other."""
    if len(held) == 1 and held[0][0] is not None:
        return cut(tensor, axis, *held[0])
    none = cut(tensor, axis, 0, 0)
    shape = list(none.shape)
    shape[axis] = sum(length for _, length in held)
    result, at = none.new_zeros(shape), 0
    for start, length in held:
        if start is not None:
            result.narrow(axis, at, length).copy_(cut(tensor, axis, start, length))
        at += length
    return result


def cut(tensor, axis: int, start: int, length: int):
    return tensor[start : start + length] if axis == 0 else tensor[:, start : start + length]


def divided(name: str, plan: dict) -> int | None:
    """The axis along which the ranks hold different things; None where each holds the whole."""
    entry = plan["tensors"].get(name)
    if entry is None or plan["tp"] == 1:
        return None
    axis = axis_of(name, entry)
    if axis is None:
        return None
    whole = [(0, entry["shape"][axis])]
    return None if all(spans(name, plan, rank) == whole for rank in range(plan["tp"])) else axis


def axis_of(name: str, entry: dict) -> int | None:
    """The axis that might be divided."""
    *_, module, leaf = name.split(".")
    if LAYER.search(name) and module == "o_proj":
        return 1 if leaf == "weight" else None
    return 1 if entry["split"].endswith("row") else 0


def spans(name: str, plan: dict, rank: int) -> list[Span]:
    """What `rank` holds of the tensor along the axis `axis_of` says; of what is not divided, the whole."""
    entry, tp = plan["tensors"][name], plan["tp"]
    axis = axis_of(name, entry)
    length = entry["shape"][axis or 0]
    found = LAYER.search(name)
    if axis is None or tp == 1:
        return [(0, length)]
    if found:
        # Not by the tensor's own word: of repeated KV heads a rank may hold as many as there are, and yet other ones.
        layer = plan["layers"][int(found.group(1))]
        return attention_spans(layer, found.group(2), length, tp, rank)
    if entry["shape"] == entry["rank_shape"] and not entry["split"].startswith("padded"):
        return [(0, length)]
    parts = 2 if name.split(".")[-2] == "gate_up_proj" else 1
    held = entry["rank_shape"][axis] // parts
    own = even_spans(length // parts, held, rank)
    return joined([(None if start is None else start + part * (length // parts), size)
                   for part in range(parts) for start, size in own])  # fmt: skip


def even_spans(length: int, held: int, rank: int) -> list[Span]:
    """The `rank`-th part of `held`, filled up with zeros beyond the `length`."""
    real = max(0, min(held, length - rank * held))
    return [span for span in ((rank * held, real), (None, held - real)) if span[1]]


def attention_spans(layer: dict, module: str, length: int, tp: int, rank: int) -> list[Span]:
    """Of a tensor of a layer's attention that goes by heads; of another the whole."""
    size, heads, kv = layer["head_dim"], layer["all_query_heads"], layer["all_kv_heads"]
    if layer["attention"] in UNDIVIDED:
        return [(0, length)]
    if module in QUERY:
        return of_heads(query_heads(layer, tp, rank), 1 if module == "sinks" else size)
    if module in KV:
        return of_heads(kv_heads(layer, tp, rank), size)
    if module == "qkv_proj":
        query, own = query_heads(layer, tp, rank), kv_heads(layer, tp, rank)
        keys, values = ([None if h is None else h + at for h in own] for at in (heads, heads + kv))
        return of_heads([*query, *keys, *values], size)
    return [(0, length)]


def of_heads(heads: list[int | None], size: int) -> list[Span]:
    return joined([(None if head is None else head * size, size) for head in heads])


def joined(parts: list[Span]) -> list[Span]:
    """The same with neighbours as one."""
    found: list[Span] = []
    for start, length in parts:
        if found:
            before, size = found[-1]
            if (before is None) == (start is None) and (before is None or before + size == start):
                found[-1] = (before, size + length)
                continue
        found.append((start, length))
    return found


def query_heads(layer: dict, tp: int, rank: int) -> list[int | None]:
    """The config's query heads that `rank` computes, in order; None: a zero head."""
    held, heads, kv = layer["query_heads"], layer["all_query_heads"], layer["all_kv_heads"]
    places = range(rank * held, (rank + 1) * held)
    if layer["attention"] == "replicate-to-tp-degree":
        group, filled = heads // kv, held * tp // kv
        return [p // filled * group + p % filled if p % filled < group else None for p in places]
    return [p if p < heads else None for p in places]


def kv_heads(layer: dict, tp: int, rank: int) -> list[int | None]:
    """The config's KV heads that `rank` holds, in order, some of them more than once; None: a zero head."""
    held, heads, kv = layer["kv_heads"], layer["all_query_heads"], layer["all_kv_heads"]
    places = range(rank * held, (rank + 1) * held)
    if layer["attention"] == "replicate-to-tp-degree":
        return [p * kv // (held * tp) for p in places]
    if layer["attention"] == "convert-to-mha":
        return [p // (heads // kv) if p < heads else None for p in places]
    return [p if p < kv else None for p in places]


def rank_shape(name: str, plan: dict, rank: int) -> list[int]:
    """The shape of what `rank` holds of a tensor of the plan."""
    entry = plan["tensors"][name]
    shape, axis = list(entry["shape"]), divided(name, plan)
    if axis is not None:
        shape[axis] = sum(length for _, length in spans(name, plan, rank))
    return shape
