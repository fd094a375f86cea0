"""A cell's sharding plan, and the same as data for the worker, which imports nothing of the runner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner import checkpoints, schema, sharding
from runner.checkpoints import Checkpoint
from runner.sharding import LayerPlan, ShardingPlan


def planned(config: schema.Factors, checkpoint: Checkpoint, layers: int | None, width: float) -> ShardingPlan:
    """The plan of a cell whose backend has a TP degree. width: bytes a weight. Errors: `ConfigFailed`."""
    backend = config.backend
    fields = checkpoints.read_config(checkpoint.path)
    fields = fields.get("text_config") or fields if checkpoint.mixed else fields
    plan = sharding.plan(fields, backend.tp, width, backend.gqa, backend.vocabulary)
    return replace(plan, layers=plan.layers[:layers])


def plan_arguments(plan: ShardingPlan) -> dict[str, Any]:
    """What `runner/worker/layout.py` reads: {"tp", "gqa", "tensors", "layers"}.

    tensors: {whole name: {"split", "shape", "rank_shape", "kind"}}. layers: {"index", "attention", "query_heads",
    "kv_heads" (on each rank), "all_query_heads", "all_kv_heads" (the config's), "head_dim"}.
    """
    tensors = {
        name: {
            "split": tensor.split,
            "shape": list(tensor.shape),
            "rank_shape": list(tensor.rank_shape),
            "kind": tensor.kind,
        }
        for name, tensor in plan.named()
    }
    return {
        "tp": plan.tp,
        "gqa": plan.strategy,
        "tensors": tensors,
        "layers": [layer_of(layer) for layer in plan.layers],
    }


def layer_of(layer: LayerPlan) -> dict[str, Any]:
    """A layer's heads. Every family has an o_proj, which takes all query heads."""
    output = next(tensor for tensor in layer.tensors if tensor.name == "self_attn.o_proj.weight")
    return {
        "index": layer.index,
        "attention": layer.attention,
        "query_heads": layer.query_heads,
        "kv_heads": layer.kv_heads,
        "all_query_heads": output.shape[1] // layer.head_dim,
        "all_kv_heads": layer.all_kv_heads,
        "head_dim": layer.head_dim,
    }
