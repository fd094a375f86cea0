"""Who holds what under tensor parallelism: layouts, padding and bytes, against transformers' own modules."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from runner import families, paths, sharding
from runner.failures import ConfigFailed
from runner.sharding import ALL_RANKS, ONE_RANK, STRATEGIES, plan

SMALL = [name for name in families.names() if name not in ("lfm2", "qwen3_next")]
PUBLISHED = ["gemma4_31b", "gemma4_12b", "gemma4_e2b", "gemma4_e4b", "gemma2_2b", "gpt_oss_20b"]
MATFORMER = {
    "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "hidden_size": 104, "head_dim": 32,
    "intermediate_size": [112, 112, 208, 208, 208], "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 5, "num_kv_shared_layers": 2, "vocab_size": 301, "vocab_size_per_layer_input": 205,
    "hidden_size_per_layer_input": 24, "laurel_rank": 8, "altup_num_inputs": 3, "sliding_window": 512,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full")],
    "activation_sparsity_pattern": [0.0] * 5,
}  # fmt: skip
EXPERTS = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48}


def published(name: str) -> dict:
    return yaml.safe_load((paths.CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8"))["config"]


def small(name: str, **fields) -> dict:
    """A family's config with vocabularies, which its file leaves to the tokenizer."""
    config = families.read(name)["config"]
    fields = {"vocab_size": 301, "vocab_size_per_layer_input": 205, "pad_token_id": 0} | fields
    return config | {"text_config": config["text_config"] | fields} if "text_config" in config else config | fields


def query_heads(name: str) -> int:
    config = small(name)
    return config.get("text_config", config)["num_attention_heads"]


def dense(heads: int, kv_heads: int, **fields) -> dict:
    sizes = {"hidden_size": 24, "head_dim": 4, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 64}
    return {"model_type": "llama", "num_attention_heads": heads, "num_key_value_heads": kv_heads, **sizes, **fields}


def layer_tensors(layer) -> dict:
    return {tensor.name: tensor for tensor in layer.tensors}


def test_gemma4_31b_at_tp_8():
    found = plan(published("gemma4_31b"), 8)
    assert found.counts() == {"sharded": 50, "replicated": 10}
    assert found.parameters == 30_697_345_280
    assert found.checkpoint_bytes == 2 * (found.parameters + 60)  # and 60 scalars that are buffers
    sliding, full = layer_tensors(found.layers[0]), layer_tensors(found.layers[5])
    assert (found.layers[0].query_heads, found.layers[0].kv_heads, found.layers[0].head_dim) == (4, 2, 256)
    assert (found.layers[5].query_heads, found.layers[5].kv_heads, found.layers[5].head_dim) == (32, 4, 512)
    assert sliding["self_attn.v_proj.weight"].rank_shape == (512, 5376)
    assert sliding["self_attn.o_proj.weight"].rank_shape == (5376, 1024)
    assert sliding["self_attn.o_proj.weight"].split == "row"
    assert full["self_attn.q_proj.weight"].split == "replicated"
    assert full["self_attn.q_proj.weight"].copies == 7 * 16384 * 5376
    assert "self_attn.v_proj.weight" not in full  # its keys are its values
    assert full["mlp.down_proj.weight"].split == "row"
    assert {layer_tensors(layer)["layer_scalar"].kind for layer in found.layers} == {"buffer"}
    assert not any(tensor.padding for _, tensor in found.named())
    assert found.fits() and found.fits(cache_bytes=found.kv_cache_bytes(1, 8192))
    four = plan(published("gemma4_31b"), 4)
    assert four.counts() == {"sharded": 60}
    assert four.fits() and not four.fits(cache_bytes=four.kv_cache_bytes(1, 8192))
    assert found.kv_cache_bytes(1, 1000) == 2 * 2 * 1000 * (50 * 2 * 256 + 10 * 4 * 512)


def test_what_the_port_saw_of_gemma4_31b():
    """108 GB with all ranks' weights; 83 GB a process; more than 300 GB for eight; a peak of 182 GB for one rank."""
    found = plan(published("gemma4_31b"), 8, vocabulary="replicated")
    assert 8 * found.rank_bytes == pytest.approx(108e9, rel=0.01)
    everyone, single = (sharding.host_memory(found, tracer) for tracer in (ALL_RANKS, ONE_RANK))
    assert everyone.total == sum(everyone.parts.values()) > 384e9
    assert everyone.total / 8 == pytest.approx(83e9, rel=0.1)
    assert single.total == pytest.approx(182e9, rel=0.1)
    assert sharding.refusal(found, 384e9, ONE_RANK) is None


def test_a_refusal_says_what_is_needed_and_what_would_do():
    config = published("gemma4_31b")
    found = plan(config, 8, vocabulary="replicated")
    told = sharding.refusal(found, 384e9, ALL_RANKS)
    assert "706 GB" in told and "384 GB are free" in told and "estimate" in told
    assert "ModelBuilder" in told and "196 GB" in told
    number = int(told.split("layers=")[1].rstrip(")"))
    kept = sharding.replace(found, layers=found.layers[:number])
    more = sharding.replace(found, layers=found.layers[: number + 1])
    assert sharding.host_memory(kept, ALL_RANKS).total <= 384e9 < sharding.host_memory(more, ALL_RANKS).total
    assert "ModelBuilder" not in sharding.refusal(found, 180e9, ONE_RANK)
    others = [plan(config, tp, vocabulary="replicated") for tp in (16, 4, 2)]
    assert "take TP 4" in sharding.refusal(found, 180e9, ONE_RANK, others)
    assert "a host with 706 GB free is needed" in sharding.refusal(found, 1e9, ALL_RANKS)
    with pytest.raises(ConfigFailed, match="tracer 'all'"):
        sharding.host_memory(found, "all")


@pytest.mark.parametrize(
    ("name", "first", "layouts"),
    [
        ("gemma4_e2b", 15, {1: "whole", 2: "replicated"}),
        ("gemma4_e4b", 24, {1: "whole", 2: "sharded", 4: "replicated"}),
    ],
)
def test_shared_layers_and_per_layer_embeddings(name, first, layouts):
    config = published(name)
    text = config["text_config"]
    for tp, layout in layouts.items():
        found = plan(config, tp)
        assert found.counts() == {layout: text["num_hidden_layers"]}
        assert {layer.index for layer in found.layers if layer.cache_of is None} == set(range(first))
        for layer in found.layers:
            tensors = layer_tensors(layer)
            own = layer.index < first
            assert ("self_attn.k_proj.weight" in tensors, "self_attn.k_norm.weight" in tensors) == (own, own)
            assert "self_attn.q_norm.weight" in tensors
            if not own:
                lender = found.layers[layer.cache_of]
                assert layer.cache_of < first and (lender.kind, lender.kv_heads) == (layer.kind, layer.kv_heads)
                assert not any(other.kind == layer.kind for other in found.layers[layer.cache_of + 1 : first])
            width = text["intermediate_size"] * (2 if text["use_double_wide_mlp"] and not own else 1)
            assert tensors["mlp.up_proj.weight"].rank_shape == (width // tp, text["hidden_size"])
            assert tensors["per_layer_input_gate.weight"].shape == (256, text["hidden_size"])
            assert tensors["per_layer_input_gate.weight"].split == ("whole" if tp == 1 else "replicated")
        outside = {tensor.name.removeprefix(found.prefix): tensor for tensor in found.outside}
        packed = 256 * text["num_hidden_layers"]
        assert outside["embed_tokens_per_layer.weight"].rank_shape == (262144 // tp, packed)
        assert outside["per_layer_model_projection.weight"].rank_shape == (packed, text["hidden_size"])
    # Layers that share keep no cache: 12 + 3 and 20 + 4 layers do.
    full = sum(layer.kind == "full" for layer in found.layers[:first])
    heads = text["num_key_value_heads"]
    assert plan(config, 1).kv_cache_bytes(1, 1000) == 4000 * heads * ((first - full) * 256 + full * 512)
    window = 4 * heads * ((first - full) * 256 * 512 + full * 512 * 1000)
    assert plan(config, 1).kv_cache_bytes(1, 1000, windowed=True) == window


def test_nested_widths_are_a_list():
    found = plan(MATFORMER, 4)
    widths = [layer_tensors(layer)["mlp.gate_proj.weight"].rank_shape[0] for layer in found.layers]
    assert widths == [28, 28, 52, 52, 52]
    assert found.counts() == {"replicated": 5}
    with pytest.raises(ConfigFailed, match="4 intermediate sizes for 5 layers"):
        plan(MATFORMER | {"intermediate_size": [8, 8, 8, 8]}, 2)


@pytest.mark.parametrize("name", SMALL)
def test_one_rank_holds_the_whole(name):
    for gqa in STRATEGIES:
        found = plan(small(name), 1, gqa=gqa)
        assert found.rank_bytes == found.checkpoint_bytes
        assert not any(tensor.padding or tensor.copies for _, tensor in found.named())
        assert {tensor.split for _, tensor in found.named()} <= {"whole", "tied"}
        assert set(found.counts()) == {"whole"}


@pytest.mark.parametrize(("name", "tp"), [(name, tp) for name in SMALL for tp in (2, 3, 4) if tp <= query_heads(name)])
@pytest.mark.parametrize("gqa", STRATEGIES)
def test_ranks_add_up_to_the_whole(name, gqa, tp):
    found, whole = plan(small(name), tp, gqa=gqa), plan(small(name), 1)
    assert [(n, t.shape) for n, t in found.named()] == [(n, t.shape) for n, t in whole.named()]
    assert (found.parameters, found.checkpoint_bytes) == (whole.parameters, whole.checkpoint_bytes)
    for tensor_name, tensor in found.named():
        together = tp * tensor.rank_elements
        if tensor.split == "replicated":
            assert (tensor.rank_elements, tensor.padding) == (tensor.elements, 0)
        elif tensor.split == "tied":
            assert together == 0
        elif "repeated" in tensor.split:
            assert tensor_name.split(".")[-2] in ("k_proj", "v_proj", "qkv_proj")
            assert together - tensor.padding > tensor.elements
        else:
            assert together - tensor.padding == tensor.elements
            assert ("padded" in tensor.split) == bool(tensor.padding)
        if "norm" in tensor_name or tensor.kind == "buffer":
            assert tensor.split == "replicated"


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 12), st.integers(1, 300), st.integers(1, 400),
    st.sampled_from(STRATEGIES),
)  # fmt: skip
def test_divisibility_decides(kv_heads, group, tp, width, vocab, gqa):
    heads = kv_heads * group
    assume(tp <= heads)
    found = plan(dense(heads, kv_heads, intermediate_size=width, vocab_size=vocab), tp, gqa=gqa)
    tensors = layer_tensors(found.layers[0])
    query, key = tensors["self_attn.q_proj.weight"], tensors["self_attn.k_proj.weight"]
    up, down = tensors["mlp.up_proj.weight"], tensors["mlp.down_proj.weight"]
    assert tp * up.rank_elements - up.padding == up.elements == down.elements == tp * down.rank_elements - down.padding
    assert up.padding == 24 * (-width % tp) and up.padding // 24 < tp
    embedding, head = found.outside[0], found.outside[-1]
    assert embedding.rank_shape == head.rank_shape and embedding.padding == 24 * (-vocab % tp)
    assert found.layers[0].padding == sum(tensor.padding for tensor in tensors.values())
    if tp == 1:
        assert found.counts() == {"whole": 2}
    elif kv_heads % tp == 0:
        assert found.counts() == {"sharded": 2}
        assert (query.split, key.split) == ("column", "column")
        assert query.padding == key.padding == query.copies == key.copies == 0
    elif gqa == "replicate-layer":
        assert found.counts() == {"replicated": 2}
        assert (query.copies, key.copies) == ((tp - 1) * query.elements, (tp - 1) * key.elements)
        assert found.layers[0].kv_heads == kv_heads
    else:
        assert query.padding == 4 * 24 * (-heads % tp)
        assert found.layers[0].query_heads == -(-heads // tp)
        assert set(found.counts()) <= {"padded", "replicate-to-tp-degree", "convert-to-mha"}


def slots(tp: int, heads: int, kv_heads: int, strategy: str) -> tuple[list, list]:
    """The heads in the order that the inference library puts them in, None for zeros: gqa.py's preshard hooks."""
    total, kv_total = sharding.head_counts(tp, heads, kv_heads, strategy)
    group, query, kv = heads // kv_heads, list(range(heads)), list(range(kv_heads))
    if strategy == "replicate-to-tp-degree":
        zeros = [None] * ((total - heads) // kv_heads)
        query = [head for n in kv for head in [*query[n * group : (n + 1) * group], *zeros]]
        kv = [n for n in kv for _ in range(tp // kv_heads if kv_total != kv_heads else 1)]
    else:
        query += [None] * (total - heads)
        kv = [n for n in kv for _ in range(group if kv_total != kv_heads else 1)]
        kv += [None] * (kv_total - len(kv))
    return query, kv


@given(st.integers(1, 8), st.integers(1, 8), st.integers(2, 32), st.sampled_from(STRATEGIES[1:]))
def test_every_query_head_finds_its_keys_on_its_rank(kv_heads, group, tp, desired):
    heads = kv_heads * group
    assume(tp <= heads)
    laid = sharding.split_heads(tp, heads, kv_heads, desired)
    strategy = sharding.sharding_strategy(tp, kv_heads, desired)
    query, kv = slots(tp, heads, kv_heads, strategy)
    assert (len(query), len(kv)) == (tp * laid.query.held, tp * laid.kv.held)
    assert (query.count(None), kv.count(None)) == (laid.query.zeros, laid.kv.zeros)
    assert Counter(head for head in query if head is not None) == Counter(range(heads))
    assert set(kv) - {None} == set(range(kv_heads))
    for rank in range(tp):
        mine = query[rank * laid.query.held : (rank + 1) * laid.query.held]
        keys = kv[rank * laid.kv.held : (rank + 1) * laid.kv.held]
        for place, head in enumerate(mine):
            if head is not None:
                assert keys[place // (len(mine) // len(keys))] == head // group


def test_the_examples_in_the_inference_librarys_comments():
    assert sharding.head_counts(32, 56, 8, "replicate-to-tp-degree") == (64, 32)
    assert sharding.head_counts(32, 56, 8, "convert-to-mha") == (64, 64)
    assert sharding.sharding_strategy(8, 16, "replicate-to-tp-degree") == "convert-to-mha"
    assert sharding.head_counts(8, 32, 16, "convert-to-mha") == (32, 16)  # divides: nothing is converted


def test_repeated_heads_are_divided_even_where_a_rank_holds_as_many_as_there_are():
    # Three ranks hold the KV heads (0, 0), (0, 1) and (1, 1) of two.
    tensors = layer_tensors(sharding.plan(dense(6, 2), 3, gqa="convert-to-mha").layers[0])
    assert tensors["self_attn.k_proj.weight"].shape == tensors["self_attn.k_proj.weight"].rank_shape
    assert tensors["self_attn.k_proj.weight"].split == "repeated column"
    assert tensors["input_layernorm.weight"].split == "replicated"


def test_strategies_of_gemma4_31b():
    config = published("gemma4_31b")
    assert plan(config, 8, gqa="replicate-to-tp-degree").counts() == {"sharded": 50, "replicate-to-tp-degree": 10}
    assert plan(config, 8, gqa="convert-to-mha").counts() == {"sharded": 50, "convert-to-mha": 10}
    sizes = {gqa: plan(config, 8, gqa=gqa).rank_bytes for gqa in STRATEGIES}
    assert sizes["replicate-to-tp-degree"] < sizes["convert-to-mha"] < sizes["replicate-layer"]
    key = layer_tensors(plan(config, 8, gqa="replicate-to-tp-degree").layers[5])["self_attn.k_proj.weight"]
    assert (key.split, key.rank_shape, key.copies) == ("repeated column", (512, 5376), key.elements)


def test_a_replicated_vocabulary_and_an_untied_one():
    tied, untied = small("llama"), small("llama", tie_word_embeddings=False)
    assert [tensor.split for tensor in plan(tied, 2).outside] == ["padded vocabulary", "replicated", "tied"]
    assert [tensor.split for tensor in plan(untied, 2).outside] == ["padded vocabulary", "replicated", "padded column"]
    assert plan(untied, 2).parameters == plan(tied, 2).parameters + 301 * 128
    whole = plan(untied, 2, vocabulary="replicated")
    assert [tensor.split for tensor in whole.outside] == ["replicated"] * 3
    assert whole.rank_bytes > plan(untied, 2).rank_bytes


def test_experts_are_divided_or_whole():
    config = small("gemma4", **EXPERTS)
    for tp, held, split in ((2, 3, "experts"), (3, 2, "experts"), (4, 6, "replicated")):
        layer = plan(config, tp).layers[0]
        tensors = layer_tensors(layer)
        assert tensors["experts.down_proj"].rank_shape == (held, 104, 48)
        assert tensors["experts.down_proj"].split == split
        assert tensors["router.proj.weight"].split == "replicated"
        assert f"{held} of 6 experts" in layer.mlp
    tensors = layer_tensors(plan(small("gpt_oss"), 2).layers[0])
    assert tensors["self_attn.sinks"].rank_shape == (2,)
    assert tensors["mlp.experts.gate_up_proj_bias"].split == "experts"
    # A bias follows the rows of its matrix, and not the columns.
    assert tensors["self_attn.q_proj.bias"].rank_shape == (64,)
    assert tensors["self_attn.o_proj.bias"].split == "replicated"


def test_the_table_has_a_row_for_layers_that_are_alike():
    found = plan(published("gemma4_31b"), 8)
    rows = sharding.table(found)
    layers = [row for row in rows if "number" in row]
    assert len(layers) == 2
    assert list(layers[0]) == list(sharding.COLUMNS)
    assert list(layers[0].values()) == [
        "0 – 4, 6 – 10, 12 – 16, 18 – 22, 24 – 28, 30 – 34, 36 – 40, 42 – 46 …",
        50,
        "sliding",
        "sharded",
        "2 of 16",
        "2688 of 21504",
        119_778_306,
    ]
    assert list(layers[1].values()) == [
        "5, 11, 17, 23, 29, 35, 41, 47 …",
        10,
        "full",
        "replicated",
        "4 of 4",
        "2688 of 21504",
        461_090_818,
    ]
    assert sum(row["bytes a rank, each"] * row.get("number", 1) for row in rows) == found.rank_bytes
    taken = {row["KV heads a rank"] for row in sharding.table(plan(published("gemma4_e2b"), 2)) if "number" in row}
    assert taken == {"1 of 1", "1 of 1, those of layer 13", "1 of 1, those of layer 14"}
    assert "padded" in sharding.table(plan(small("llama"), 3))[0]["MLP a rank"]


def test_bytes_follow_the_width_of_a_parameter():
    config = published("gemma4_31b")
    assert plan(config, 8, bytes_per_parameter=1).rank_bytes * 2 == plan(config, 8).rank_bytes
    quarter = plan(config, 8, bytes_per_parameter=0.5).rank_bytes * 4
    assert quarter == pytest.approx(plan(config, 8).rank_bytes, rel=1e-6)


def test_other_towers_are_named():
    config = published("gemma4_31b")
    assert plan(config, 8).left_out == ()
    assert plan(config | {"vision_config": {"hidden_size": 8}}, 8).left_out == ("vision_config",)


def without(config: dict, field: str) -> dict:
    return {key: value for key, value in config.items() if key != field}


NEEDED = [name for name in dense(4, 2) if name not in ("model_type", "head_dim")]
LENT = ["full_attention"] * 2 + ["sliding_attention"] * 3  # the last three have no sliding layer to take from


@pytest.mark.parametrize(
    ("config", "tp", "told"),
    [
        (dense(4, 2), 0, "tp=0"),
        (dense(4, 2), -2, "tp=-2"),
        (dense(4, 2), 2.0, "tp=2.0"),
        (dense(4, 2), True, "tp=True"),
        (dense(4, 2), 8, "tp=8, and the model has 4 query heads"),
        (dense(4, 3), 2, "4 query heads cannot be divided among 3"),
        ({}, 2, "no model_type"),
        ({"model_type": "lfm2"}, 2, "'lfm2' is not known"),
        (dense(4, 2, hidden_size="24"), 2, "hidden_size is '24'"),
        (dense(4, 2, num_hidden_layers=0), 2, "num_hidden_layers is 0"),
        (dense(4, 2, layer_types=["full_attention"]), 2, "1 layer_types"),
        (dense(4, 2, layer_types=["full_attention", "linear_attention"]), 2, "full, linear"),
        (small("gemma4", num_kv_shared_layers=5), 2, "num_kv_shared_layers=5"),
        (small("gemma4", num_kv_shared_layers=3, layer_types=LENT), 2, "num_kv_shared_layers=3"),
        (small("gemma4_unified", num_global_key_value_heads=None), 2, "no num_global_key_value_heads"),
        *((without(dense(4, 2), field), 2, f"no {field}") for field in NEEDED),
    ],
)  # fmt: skip
def test_bad_input_is_refused(config, tp, told):
    with pytest.raises(ConfigFailed, match=told):
        plan(config, tp)


def test_what_is_missing_is_asked_for():
    with pytest.raises(ConfigFailed, match="llama has no vocab_size") as failed:
        plan(published("llama3.2_1b"), 2)
    assert "+model.config.vocab_size=N" in failed.value.hint
    nested = published("gemma4_31b")
    with pytest.raises(ConfigFailed) as failed:
        plan(nested | {"text_config": without(nested["text_config"], "hidden_size")}, 2)
    assert "+model.config.text_config.hidden_size=N" in failed.value.hint
    for wrong in ({"gqa": "mha"}, {"vocabulary": "half"}, {"bytes_per_parameter": 0}):
        with pytest.raises(ConfigFailed):
            plan(dense(4, 2), 2, **wrong)


SHAPES = """
import torch, transformers
with open(sys.argv[1]) as file:
    configs = json.load(file)
found = []
for config in configs:
    with torch.device("meta"):
        kind = getattr(transformers, config["architectures"][0])
        model = kind(transformers.AutoConfig.for_model(**config))
    model.tie_weights()
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found.append([shapes, sum(p.numel() for p in model.parameters()), [name for name, _ in model.named_buffers()]])
print(json.dumps(found))
"""
CHECKED = [
    *map(small, SMALL), *map(published, PUBLISHED), MATFORMER, small("gemma4", **EXPERTS),
    small("gemma4_unified", num_kv_shared_layers=2, use_double_wide_mlp=True),
]  # fmt: skip


@pytest.mark.slow
def test_names_shapes_and_totals_are_those_of_transformers(with_torch, tmp_path):
    (tmp_path / "configs.json").write_text(json.dumps(CHECKED))
    built = with_torch(SHAPES, tmp_path / "configs.json")
    for config, (shapes, parameters, buffers) in zip(CHECKED, built, strict=True):
        found = plan(config, 1)
        assert {name: list(tensor.shape) for name, tensor in found.named()} == shapes, config["model_type"]
        assert found.parameters == parameters
        assert {name for name, tensor in found.named() if tensor.kind == "buffer"} == set(buffers) & set(shapes)
