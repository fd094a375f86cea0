"""What each rank holds: put together again, it is the checkpoint's tensor, and each query head has its own KV head."""

from __future__ import annotations

import layout
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runner import families
from runner.backends.tp_cpu.plan import plan_arguments
from runner.sharding import STRATEGIES, VOCABULARIES, plan

SMALL = [name for name in families.names() if name not in ("lfm2", "qwen3_next")]
SIZES = {"hidden_size": 24, "head_dim": 4, "num_hidden_layers": 2}


class Tensor(np.ndarray):
    """What `layout.placed` asks of torch."""

    def new_zeros(self, shape):
        return np.zeros(shape, self.dtype).view(Tensor)

    def narrow(self, axis, start, length):
        return layout.cut(self, axis, start, length)

    def copy_(self, other):
        self[...] = other


def counted(shape: list[int]) -> Tensor:
    """1, 2, 3 …: no zero is among them."""
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).view(Tensor)


def config_of(name: str) -> dict:
    config = families.read(name)["config"]
    fields = {"vocab_size": 301, "vocab_size_per_layer_input": 205}
    return config | {"text_config": config["text_config"] | fields} if "text_config" in config else config | fields


def dense(heads: int, kv_heads: int, kind: str = "llama", **fields) -> dict:
    sizes = {"intermediate_size": 42, "vocab_size": 65, **SIZES}
    return {"model_type": kind, "num_attention_heads": heads, "num_key_value_heads": kv_heads, **sizes, **fields}


def check(given: dict) -> None:
    """Shapes are the plan's; every element is on some rank, once where nothing is repeated; the rest are zeros."""
    ranks = range(given["tp"])
    for name, entry in given["tensors"].items():
        whole = counted(entry["shape"])
        held, words = zip(*(layout.placed(name, whole, given, rank) for rank in ranks), strict=True)
        axis = layout.divided(name, given)
        assert set(words) == {"replicated" if axis is None else "sharded"}
        assert [list(part.shape) for part in held] == [layout.rank_shape(name, given, rank) for rank in ranks]
        assert {part.shape for part in held} == {tuple(entry["rank_shape"])}, name
        if axis is None:
            assert all((part == whole).all() for part in held)
            continue
        together = np.concatenate(held, axis)
        kept = together[together != 0]
        assert set(kept) == set(whole.flat)
        if "repeated" not in entry["split"] and not repeats(name, given):
            assert len(kept) == whole.size
        if "repeated" not in entry["split"] and "gate_up" not in name and not layout.LAYER.search(name):
            end = entry["shape"][axis]  # zeros stand at the end alone
            assert (layout.cut(together, axis, 0, end) == whole).all()


def repeats(name: str, given: dict) -> bool:
    """Whether KV heads of the tensor's layer are on several ranks, or several times on one."""
    found = layout.LAYER.search(name)
    layer = given["layers"][int(found.group(1))] if found else None
    return bool(found) and found.group(2) in (*layout.KV, "qkv_proj") and layer["attention"] in STRATEGIES[1:]


def check_heads(given: dict) -> None:
    """Every query head is computed once, beside the KV head that the config gives it; zero heads meet what they may."""
    for layer in given["layers"]:
        if layer["attention"] in layout.UNDIVIDED:
            continue
        seen = []
        group = layer["all_query_heads"] // layer["all_kv_heads"]
        on_rank = layer["query_heads"] // layer["kv_heads"]
        for rank in range(given["tp"]):
            queries = layout.query_heads(layer, given["tp"], rank)
            keys = layout.kv_heads(layer, given["tp"], rank)
            assert (len(queries), len(keys)) == (layer["query_heads"], layer["kv_heads"])
            assert len(queries) % len(keys) == 0
            for place, head in enumerate(queries):
                assert head is None or keys[place // on_rank] == head // group
            seen += [head for head in queries if head is not None]
        assert seen == list(range(layer["all_query_heads"]))
        prefix = next(n for n in given["tensors"] if f"layers.{layer['index']}.self_attn.o_proj" in n)[
            : -len("o_proj.weight")
        ]
        if f"{prefix}q_proj.weight" in given["tensors"]:
            for rank in range(given["tp"]):
                ends = [layout.spans(f"{prefix}{name}.weight", given, rank) for name in ("q_proj", "o_proj")]
                assert ends[0] == ends[1]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("gqa", STRATEGIES)
def test_every_family_put_together_is_the_checkpoint(name, gqa):
    heads = plan_arguments(plan(config_of(name), 1))["layers"][0]["all_query_heads"]
    for tp in (1, 2, 3, 4):
        for vocabulary in VOCABULARIES if tp <= heads else ():
            given = plan_arguments(plan(config_of(name), tp, gqa=gqa, vocabulary=vocabulary))
            check(given)
            check_heads(given)


@given(
    st.integers(1, 4), st.integers(1, 6), st.integers(1, 8), st.sampled_from(STRATEGIES),
    st.sampled_from(("llama", "phi3", "qwen2")), st.integers(1, 50), st.integers(1, 50),
)  # fmt: skip
def test_any_heads_put_together_are_the_checkpoint(kv_heads, group, tp, gqa, kind, width, vocabulary):
    assume(tp <= kv_heads * group)
    config = dense(kv_heads * group, kv_heads, kind, intermediate_size=width, vocab_size=vocabulary)
    given = plan_arguments(plan(config, tp, gqa=gqa))
    check(given)
    check_heads(given)


def heads_of(config: dict, tp: int, gqa: str) -> list[tuple[list, list]]:
    given = plan_arguments(plan(config, tp, gqa=gqa))
    layer = given["layers"][0]
    return [(layout.query_heads(layer, tp, rank), layout.kv_heads(layer, tp, rank)) for rank in range(tp)]


def test_heads_lie_as_in_the_inference_librarys_examples():
    """The comments of gqa.py: 56 query heads and 8 KV heads on 32 ranks."""
    config = dense(56, 8)
    repeated = heads_of(config, 32, "replicate-to-tp-degree")
    assert repeated[:5] == [([0, 1], [0]), ([2, 3], [0]), ([4, 5], [0]), ([6, None], [0]), ([7, 8], [1])]
    assert repeated[-1] == ([55, None], [7])
    converted = heads_of(config, 32, "convert-to-mha")
    assert converted[:4] == [([0, 1], [0, 0]), ([2, 3], [0, 0]), ([4, 5], [0, 0]), ([6, 7], [0, 1])]
    assert converted[27:29] == [([54, 55], [7, 7]), ([None, None], [None, None])]


def test_a_rank_may_hold_as_many_kv_heads_as_there_are_and_yet_others():
    config = dense(6, 2)
    assert heads_of(config, 3, "convert-to-mha") == [([0, 1], [0, 0]), ([2, 3], [0, 1]), ([4, 5], [1, 1])]
    given = plan_arguments(plan(config, 3, gqa="convert-to-mha"))
    assert layout.divided("model.layers.0.self_attn.k_proj.weight", given) == 0


def test_fused_matrices_are_divided_a_part_at_a_time():
    given = plan_arguments(plan(dense(4, 2, "phi3", head_dim=None, intermediate_size=10), 2))
    name = "model.layers.1.self_attn.qkv_proj.weight"  # head size 6: 24 rows of queries, 12 of keys, 12 of values
    assert layout.spans(name, given, 0) == [(0, 12), (24, 6), (36, 6)]
    assert layout.spans(name, given, 1) == [(12, 12), (30, 6), (42, 6)]
    assert layout.spans("model.layers.1.mlp.gate_up_proj.weight", given, 1) == [(5, 5), (15, 5)]


def test_another_shape_than_the_plans_is_refused():
    given = plan_arguments(plan(dense(4, 2), 2))
    with pytest.raises(ValueError, match=r"\[3, 3\].*by the plan \[16, 24\]"):
        layout.placed("model.layers.0.self_attn.q_proj.weight", counted([3, 3]), given, 0)
    assert layout.placed("vision.weight", counted([3, 3]), given, 0)[1] == "replicated"
