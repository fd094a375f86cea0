"""A sharding plan as the worker gets it."""

from __future__ import annotations

import json

from runner.backends.tp_cpu.plan import plan_arguments
from runner.sharding import STRATEGIES, plan

CONFIG = {
    "model_type": "gemma4_text", "attention_k_eq_v": True, "global_head_dim": 32, "head_dim": 16, "hidden_size": 96,
    "hidden_size_per_layer_input": 0, "intermediate_size": 192, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_global_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 488, "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip


def test_every_tensor_and_layer_of_the_plan_is_there():
    found = plan(CONFIG, 2)
    given = plan_arguments(found)
    assert (given["tp"], given["gqa"]) == (2, "replicate-layer")
    assert list(given["tensors"]) == [name for name, _ in found.named()]
    assert given["tensors"]["model.layers.0.self_attn.q_proj.weight"] == {
        "split": "column", "shape": [128, 96], "rank_shape": [64, 96], "kind": "parameter",
    }  # fmt: skip
    assert given["tensors"]["model.layers.1.layer_scalar"]["kind"] == "buffer"
    assert given["tensors"]["lm_head.weight"]["split"] == "tied"
    assert given["layers"] == [
        {"index": 0, "attention": "sharded", "query_heads": 4, "kv_heads": 2,
         "all_query_heads": 8, "all_kv_heads": 4, "head_dim": 16},
        {"index": 1, "attention": "replicated", "query_heads": 8, "kv_heads": 1,
         "all_query_heads": 8, "all_kv_heads": 1, "head_dim": 32},
    ]  # fmt: skip


def test_it_is_json_and_as_such_the_same():
    for gqa in STRATEGIES:
        given = plan_arguments(plan(CONFIG, 4, gqa=gqa))
        assert json.loads(json.dumps(given)) == given
