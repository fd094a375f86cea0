"""Constants of real exports beside transformers': right ones, a builder's own faults, and faults that are planted."""

from __future__ import annotations

import json

import pytest
import yaml
from exports import FAULTS, python_with, run
from lab import shipped_changes, wheel_sources

from runner import patches, paths

pytestmark = pytest.mark.slow

RIGHT = (
    "ernie4_5", "gemma", "gemma2", "gemma3", "gemma4_unified", "gpt_oss", "granite", "hunyuan", "lfm2", "llama",
    "phi3_longrope", "qwen2", "qwen3", "smollm2",
)  # fmt: skip
# What the sentences below name, whatever the families' files come to say.
PINNED = {
    "gemma2": {
        "attn_logit_softcapping": 20.0, "final_logit_softcapping": 12.0, "sliding_window": 512, "hidden_size": 104,
    },
    "gemma3": {"rope_theta": 900000.0, "rope_local_base_freq": 12000.0},
    "granite": {"embedding_multiplier": 4.5, "residual_multiplier": 0.31},
    "llama": {"rope_theta": 500000.0},
    "mistral": {"sliding_window": 512},
    "nemotron": {"norm_eps": 3e-5},
    "phi3_longrope": {"original_max_position_embeddings": 256, "max_position_embeddings": 2048},
    "qwen2": {"max_position_embeddings": 2048},
    "qwen3": {"rms_norm_eps": 3e-5},
    "smollm2": {"rope_theta": 130000.0},
}  # fmt: skip
CONFIGS = {
    name: yaml.safe_load((paths.CONF / "family" / f"{name}.yaml").read_text(encoding="utf-8"))["config"]
    | PINNED.get(name, {})
    for name in (*RIGHT, "nemotron", "olmo", "mistral")
}
OLD = """
exported(sys.argv[1], sys.argv[2], os.path.abspath("old"))
print("null")
"""

NEW = """
import shutil
import numpy as np
import onnx_ir
import constants, random_model

sources, configs, tokenizer = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
found = {}

def check(name, checkpoint, folder, precision="fp32"):
    out = os.path.abspath("constants-" + name.replace(" ", "-"))
    os.mkdir(out)
    result = constants.run({"checkpoint": checkpoint, "export": folder, "precision": precision}, out)
    with open(out + "/constants.json") as file:
        entries = json.load(file)["constants"]
    assert result["constants"] == len(entries)
    found[name] = {"constants": entries, "findings": [finding["evidence"] for finding in result["findings"]]}

def made(family):
    folder = os.path.abspath(family)
    if not os.path.exists(folder):
        os.mkdir(folder)
        random_model.make(configs[family], 0, tokenizer, folder)
    return folder

def build(family, patch, precision="fp32"):
    return exported(sources[patch], made(family), os.path.abspath(f"{family}-{patch}-{precision}"), precision)

def planted(name, family, change):
    # A right export with one fault.
    source, out = os.path.abspath(f"{family}-all-fp32"), os.path.abspath("planted-" + name.replace(" ", "-"))
    model = onnx_ir.load(source + "/model.onnx")
    change(model.graph)
    os.mkdir(out)
    onnx_ir.save(model, out + "/model.onnx", external_data="model.onnx.data")
    shutil.copy(source + "/genai_config.json", out)
    check(name, made(family), out)

def node(graph, name):
    return next(item for item in graph if item.name == "/model/layers." + name)

def attribute(name, **values):
    def change(graph):
        for key, value in values.items():
            kind = onnx_ir.AttrFloat32 if isinstance(value, float) else onnx_ir.AttrInt64
            node(graph, name).attributes[key] = kind(key, value)
    return change

def values(name, change):
    def apply(graph):
        value = graph.initializers[name]
        value.const_value = onnx_ir.tensor(change(value.const_value.numpy()), name=name)
        value.shape = value.const_value.shape
    return apply

def taken_out(name):
    def change(graph):
        gone = next(item for item in graph if item.name == name)
        onnx_ir.convenience.replace_all_uses_with(gone.outputs[0], gone.inputs[0])
        graph.remove(gone)
    return change

def without_input(name, index):
    return lambda graph: node(graph, name).replace_input_with(index, None)

def other_kind(name, kind, domain=""):
    def change(graph):
        node(graph, name).op_type, node(graph, name).domain = kind, domain
    return change

def plain_caches(theta):
    def change(graph):
        for name, turn in (("cos_cache", np.cos), ("sin_cache", np.sin)):
            positions, pairs = graph.initializers[name].shape
            angles = np.arange(positions, dtype=np.float32)[:, None] * theta ** (-np.arange(pairs) / pairs)
            values(name, lambda old: turn(angles).astype(old.dtype))(graph)
    return change

def threshold(graph):
    choice = next(item for item in graph if item.op_type == "If")
    limit = choice.inputs[0].producer().inputs[1].producer()
    limit.attributes["value"] = onnx_ir.AttrTensor("value", onnx_ir.tensor(np.int64(300)))

check("old", sys.argv[4], os.path.abspath("old"))
for family in configs:
    check(family, made(family), build(family, "all"))
for precision in ("fp16", "int4"):
    check("gemma3 " + precision, made("gemma3"), build("gemma3", "all", precision), precision)
    check("qwen3 " + precision, made("qwen3"), build("qwen3", "all", precision), precision)
check("gemma3 rounded fp16", made("gemma3"), build("gemma3", "rope_fix", "fp16"), "fp16")
check("gemma2 unpatched", made("gemma2"), build("gemma2", "none"))
check("nemotron unpatched", made("nemotron"), build("nemotron", "none"))
check("gemma2 fp16", made("gemma2"), build("gemma2", "all", "fp16"), "fp16")

attention = "1/attn/GroupQueryAttention"
planted("bias", "gpt_oss", taken_out("/model/layers.1/attn/o_proj/Add"))
planted("sinks", "gpt_oss", without_input(attention, 11))
planted("packed bias", "qwen2", values("model.layers.2.attn.qkv_proj.Add.bias",
                                       lambda old: np.where(np.arange(old.size) < 128, old, 0).astype(old.dtype)))
planted("epsilon", "qwen3", attribute("0/attn/k_norm/SimplifiedLayerNormalization", epsilon=1e-5))
planted("scale", "llama", attribute(attention, scale=0.25))
planted("soft cap", "gemma2", attribute(attention, softcap=30.0))
planted("no soft cap", "gemma2", attribute(attention, softcap=0.0))
planted("window", "gemma2", attribute(attention, local_window_size=512))
planted("layout", "llama", attribute(attention, rotary_interleaved=1))
planted("rotation", "llama", attribute(attention, do_rotary=0))
planted("kind", "llama", other_kind("0/input_layernorm/LayerNorm", "LayerNormalization"))
planted("unknown", "llama", other_kind(attention, "Unheard", "com.microsoft"))
planted("offset", "gemma", values("model.layers.3.input_layernorm.weight", lambda old: old - np.float32(1)))
planted("weight", "llama", values("model.layers.3.input_layernorm.weight", lambda old: old[::-1].copy()))
planted("noisy", "gemma", values("model.layers.3.input_layernorm.weight", lambda old: (
    old + np.random.default_rng(0).normal(0, 2e-3, old.shape)).astype(old.dtype)))
planted("norm", "qwen3", taken_out("/model/layers.0/attn/q_norm/SimplifiedLayerNormalization"))
planted("multiplier", "granite", taken_out("/model/layers.2/residual_mul/Mul_1"))
planted("embedding", "granite", taken_out("/model/embed_tokens/Mul"))
planted("logits", "gemma2", taken_out("/lm_head/softcap/Tanh"))
planted("scaling", "llama", plain_caches(500000.0))
planted("theta", "smollm2", plain_caches(10000.0))
planted("shifted", "smollm2", lambda graph: [values(name, lambda old: np.concatenate([old[:1], old[:-1]]))(graph)
                                              for name in ("cos_cache", "sin_cache")])
planted("stuck", "smollm2", lambda graph: [values(name, lambda old: np.where(np.arange(len(old))[:, None] < 60, old,
                                           np.float32(0.5)))(graph) for name in ("cos_cache", "sin_cache")])
planted("rounding", "smollm2", plain_caches(130000.0))
def not_a_number(graph):
    value = next(v for n, v in graph.initializers.items() if n.startswith("cos_cache"))
    numbers = value.const_value.numpy().copy()
    numbers[5, 3] = np.nan
    value.const_value = onnx_ir.tensor(numbers, name=value.name)

def bypassed(graph):
    # The norm is there, and nobody uses what it gives.
    norm = node(graph, "1/post_attention_layernorm/SkipLayerNorm")
    onnx_ir.convenience.replace_all_uses_with(norm.outputs[0], norm.inputs[0])

planted("not a number", "qwen2", not_a_number)
planted("bypassed", "qwen2", bypassed)
planted("short cache", "qwen2", lambda graph: [values(name, lambda old: old[:1000])(graph)
                                               for name in ("cos_cache", "sin_cache")])
planted("threshold", "phi3_longrope", threshold)
import checkpoint
cut = os.path.abspath("llama-cut")
os.mkdir(cut)
checkpoint.run({"source": made("llama"), "dtype": "stored", "layers": 2, "text_only": False}, cut)
check("cut", made("llama"), exported(sources["all"], cut, os.path.abspath("llama-cut-export")))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def constants(rope, tmp_path_factory) -> dict[str, dict]:
    """The constants of all exports, by what was done to them."""
    folder = tmp_path_factory.mktemp("constants")
    sources = {}
    for patch, changes in {"none": [], "rope_fix": ["rope_fix"], "all": ["rope_fix", "gemma_precision"]}.items():
        sources[patch] = str(models := wheel_sources("0.18.0", folder / patch))
        for name in changes:
            patches.apply(models, shipped_changes(name), "0.18.0")
    shipped = paths.PROJECT / "checkpoints"
    run(python_with("4."), OLD, folder, wheel_sources("0.14.1", folder / "old-sources"), shipped / "tiny_gemma3")
    arguments = json.dumps(sources), json.dumps(CONFIGS), shipped / "tiny_llama", shipped / "tiny_gemma3"
    return run(python_with("5."), NEW, folder, *arguments)


def faults(found: dict, *kinds: str) -> list[tuple]:
    """(kind, what, layers, verdict, says) of what is wrong; of some kinds, or all."""
    return [
        (entry["kind"], entry["what"], entry["layers"], entry["verdict"], entry["says"])
        for entry in found["constants"]
        if entry["verdict"] in FAULTS and (not kinds or entry["kind"] in kinds)
    ]


def unseen(entry: dict) -> bool:
    """Whether an entry says of an operator that nothing looks at what it computes."""
    return (entry["kind"], entry["verdict"]) == ("operators", "unread")


def of(found: dict, kind: str) -> list[dict]:
    return [entry for entry in found["constants"] if entry["kind"] == kind]


@pytest.mark.parametrize("family", RIGHT)
def test_a_right_export_has_every_constant(constants, family):
    found = constants[family]
    assert {entry["verdict"] for entry in found["constants"] if not unseen(entry)} == {"same"} and found[
        "findings"
    ] == []
    assert all(entry["max_abs_diff"] in (0, None) for entry in found["constants"])
    kinds = {entry["kind"] for entry in found["constants"]}
    assert {"rope", "rope_layout", "norm_kind", "norm_weight", "epsilon", "attention_scale"} <= kinds
    assert {"embedding_scale", "logit_scale"} <= kinds
    own = {"gemma2": {"soft_cap", "window", "logit_soft_cap"}, "gpt_oss": {"bias", "sinks"}, "granite": {"multiplier"}}
    assert own.get(family, set()) <= kinds
    positions = CONFIGS[family].get("text_config", CONFIGS[family])["max_position_embeddings"]
    assert max(entry["positions"] for entry in of(found, "rope")) == positions


def test_layers_that_rotate_alike_are_one_entry(constants):
    local, whole = of(constants["gemma3"], "rope")
    assert (local["what"], local["layers"]) == ("local layers", [0, 1, 2, 3, 4, 6])
    assert (local["reference"], local["export"]) == ("theta 12000, factor 1",) * 2
    assert (whole["what"], whole["layers"], whole["export"]) == ("global layers", [5], "theta 900000, factor 8")
    short, long = of(constants["phi3_longrope"], "rope")
    assert (short["what"], short["positions"]) == ("all layers, short sequences", 256)
    assert (long["what"], long["positions"]) == ("all layers, long sequences", 2048)
    partial = of(constants["gemma4_unified"], "rope")[1]
    assert partial["export"].endswith(", factor 1, 8 of 32 pairs rotate")


def test_local_layers_that_inherit_the_global_scaling(constants):
    """Builder 0.14.1, as it was published."""
    says = "local layers rotate at 1/8 of the reference's frequency"
    assert faults(constants["old"], "rope") == [("rope", "local layers", [0, 1, 2, 3, 4, 6], "differs", says)]
    assert faults(constants["old"], "embedding_scale")[0][4] == "embedding scale rounded to 11.31"
    first, second = constants["old"]["findings"]
    assert first == "local layers (0-4, 6) rotate at 1/8 of the reference's frequency, off by up to 2"
    assert second == "embedding scale rounded to 11.31"


def test_offsets_that_were_added_in_bfloat16(constants):
    layers = list(range(6))
    for norm in of(constants["gemma2 unpatched"], "norm_weight"):
        assert norm["layers"] in (layers, None) and 1e-3 < norm["max_abs_diff"] < 0.02
        assert (norm["verdict"], norm["says"]) == ("differs", "1 + weight rounded to bfloat16")
    told = [finding for finding in constants["gemma2 unpatched"]["findings"] if "1 + weight" in finding]
    assert len(told) == 1 and told[0].startswith("input_layernorm, post_attention_layernorm,")
    scale = faults(constants["gemma2 unpatched"], "embedding_scale")
    assert [fault[4] for fault in scale] == ["embedding scale rounded to 10.2"]
    rounded = {fault[4] for fault in faults(constants["nemotron unpatched"], "norm_weight")}
    assert rounded == {"1 + weight rounded to bfloat16"}
    assert {entry["verdict"] for entry in of(constants["nemotron unpatched"], "norm_bias")} == {"same"}


def test_faults_of_the_builder_that_no_patch_takes_away(constants):
    epsilon = {(fault[0], fault[4]) for fault in faults(constants["nemotron"])}
    assert epsilon == {("epsilon", "epsilon 1e-06 instead of 3e-05")}
    assert {fault[4] for fault in faults(constants["olmo"], "norm_kind")} == {"RMSNorm instead of LayerNorm"}
    (clip,) = faults(constants["olmo"], "clip")
    assert clip[2] == list(range(len(clip[2]))) and clip[3] == "dropped" and clip[4].startswith("clip to ")
    says = "sliding window of 512 dropped; genai_config.json declares it for no layer"
    window = ("window", "attention", [0, 1, 2, 3], "dropped", says)
    assert faults(constants["mistral"]) == [window]


def test_coarser_precisions_are_compared_in_their_own_dtype(constants):
    for name in ("gemma3 int4", "qwen3 int4", "qwen3 fp16"):
        assert {entry["verdict"] for entry in constants[name]["constants"] if entry["kind"] != "weight"} == {"same"}
        assert {entry["verdict"] for entry in of(constants[name], "weight")} <= {"same", "rounded"}
    assert {entry["says"] for entry in of(constants["qwen3 fp16"], "norm_weight")} == {"in float16"}
    assert of(constants["qwen3 fp16"], "rope")[0]["says"] == "in float16"


def test_norms_on_queries_and_keys_of_an_fp16_export(constants):
    for name, verdict in (("gemma3 fp16", "same"), ("gemma3 rounded fp16", "differs")):
        norms = {entry["what"]: entry for entry in of(constants[name], "norm_weight")}
        assert {norms["q_norm"]["verdict"], norms["k_norm"]["verdict"]} == {verdict}
    assert norms["q_norm"]["says"] == "1 + weight rounded to bfloat16"


def test_an_operator_that_cannot_be_told_drops_what_it_is_not_told(constants):
    window, cap = sorted({fault[4] for fault in faults(constants["gemma2 fp16"])})
    assert cap == "soft cap of 20 dropped: MultiHeadAttention cannot be told of one"
    assert window.startswith("sliding window of 512 dropped: MultiHeadAttention cannot be told of one; genai_config")


@pytest.mark.parametrize(
    "name, expected",
    {
        "bias": ("bias", "o_proj", [1], "dropped", "o_proj bias dropped"),
        "sinks": ("sinks", "attention", [1], "dropped", "attention sinks dropped"),
        "epsilon": ("epsilon", "k_norm", [0], "differs", "epsilon 1e-05 instead of 3e-05"),
        "scale": ("attention_scale", "attention", [1], "differs", "attention scale 0.25 instead of 0.1767767"),
        "soft cap": ("soft_cap", "attention", [1], "differs", "soft cap 30 instead of 20"),
        "no soft cap": ("soft_cap", "attention", [1], "dropped", "soft cap of 20 dropped"),
        "window": ("window", "attention", [1], "added", "sliding window of 512 added"),
        "layout": (
            "rope_layout", "some layers", [1], "differs",
            "some layers rotate neighbouring dimensions with each other instead of the two halves of a head",
        ),
        "rotation": ("rope", "some layers", [1], "dropped", "rotation dropped"),
        "kind": ("norm_kind", "input_layernorm", [0], "differs", "LayerNorm instead of RMSNorm"),
        "offset": ("norm_weight", "input_layernorm", [3], "differs", "1 is not added to the weight"),
        "noisy": ("norm_weight", "input_layernorm", [3], "differs", "the weight has other values"),
        "weight": ("norm_weight", "input_layernorm", [3], "differs", "the weight has other values"),
        "norm": ("norm_kind", "q_norm", [0], "dropped", "the norm (RMSNorm) dropped"),
        "multiplier": ("multiplier", "residual", [2], "dropped", "multiplier of 0.31 dropped from a block"),
        "embedding": ("embedding_scale", "embedding", None, "dropped", "embedding scale of 4.5 dropped"),
        "logits": ("logit_soft_cap", "logits", None, "dropped", "logit soft cap of 12 dropped"),
        "theta": (
            "rope", "all layers", [0, 1, 2, 3], "differs", "all layers rotate with theta 10000 instead of 130000",
        ),
        "shifted": (
            "rope", "all layers", [0, 1, 2, 3], "differs",
            "all layers have at each position the angle of 1 position earlier, and the row at the end again",
        ),
        "threshold": (
            "rope", "all layers, short sequences", [0, 1, 2, 3], "differs",
            "long sequences begin above 300 positions instead of 256",
        ),
    }.items(),
)  # fmt: skip
def test_a_planted_fault_is_named(constants, name, expected):
    found = faults(constants[name])
    assert expected in found
    of_rotation = {"rotation", "threshold", "layout"}  # seen by the layers that it splits, or in both caches
    told = [fault for fault in found if fault[0] != "operators"]  # a layer that lacks an operator is named for it too
    assert len(told) == 1 or name in of_rotation, found


def test_a_packed_bias_is_taken_apart(constants):
    lost = [("bias", f"{name}_proj", [2], "dropped", f"{name}_proj bias dropped") for name in "kv"]
    assert faults(constants["packed bias"]) == lost


def test_a_scaling_that_is_left_out(constants):
    ((kind, what, _, verdict, says),) = faults(constants["scaling"])
    assert (kind, what, verdict) == ("rope", "all layers", "differs")
    assert says.startswith("all layers have lost the llama3 scaling: largest frequency ratio 8 at pair ")


def test_another_way_to_compute_the_same_is_rounding(constants):
    """The planted caches are computed in fp64: far positions are off by their fp32 frequency's last bits."""
    cache = of(constants["rounding"], "rope")[0]
    assert faults(constants["rounding"]) == [] and constants["rounding"]["findings"] == []
    assert (cache["verdict"], cache["reference"]) == ("rounded", cache["export"])
    assert 0 < cache["max_abs_diff"] < 1e-3


def test_a_cache_that_ends_early_is_no_whole_one(constants):
    cache = of(constants["short cache"], "rope")[0]
    assert (cache["verdict"], cache["positions"]) == ("differs", 1000)
    assert cache["max_abs_diff"] == 0 and cache["says"] == "the cache has 1000 positions, the model 2048"


def test_what_cannot_be_read_is_no_fault(constants):
    """An attention operator that nobody knows: the other layers are compared, and no finding comes of it."""
    (other,) = faults(constants["unknown"])
    assert other[:3] == ("operators", "operators", [1]) and "1 Unheard more" in other[4]
    unread = [e for e in constants["unknown"]["constants"] if e["verdict"] == "unread" and e["kind"] != "operators"]
    assert [(entry["what"], entry["layers"]) for entry in unread] == [("attention", [1])]
    assert unread[0]["says"] == "no attention operator found"


def test_an_export_that_lacks_layers_is_told_so(constants):
    whole = CONFIGS["llama"]["num_hidden_layers"]
    said = f"2 layers instead of {whole}"
    assert faults(constants["cut"]) == [("layers", "layers", None, "differs", said)]


def test_a_cache_with_what_is_no_number_is_wrong(constants):
    (cache,) = faults(constants["not a number"], "rope")
    assert cache[3] == "differs"


def test_a_cache_that_is_no_rotation_has_no_cause(constants):
    (cache,) = of(constants["stuck"], "rope")
    assert cache["says"].startswith(
        "all layers have a cache that fits no rotation; first differs at position 60, pair 0 (cos 0.5 in the export, "
    )
    assert cache["export"] == "fits no rotation"


def test_a_norm_that_nobody_uses_is_none(constants):
    found = faults(constants["bypassed"])
    assert ("post_attention_layernorm", [1], "dropped") in [
        (what, layers, verdict) for _, what, layers, verdict, _ in found
    ]
