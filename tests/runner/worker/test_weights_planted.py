"""Faults that are planted in the matrices, activations and operators of real exports: each is named, and no other."""

from __future__ import annotations

import json

import pytest
import yaml
from exports import FAULTS, python_with, run
from lab import wheel_sources

from runner import paths

pytestmark = pytest.mark.slow

FAMILIES = ("mistral", "gemma2", "gpt_oss", "lfm2moe")
# A mixture of experts whose choice has a bias that is no parameter.
LFM2_MOE = {
    "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "hidden_size": 64, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_hidden_layers": 3, "num_dense_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "use_expert_bias": True, "routed_scaling_factor": 1.7, "norm_eps": 3e-5, "conv_L_cache": 3, "conv_bias": False,
    "layer_types": ["conv", "full_attention", "conv"], "rope_theta": 900000.0, "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}  # fmt: skip

PLANTS = """
import shutil
import numpy as np
import onnx_ir, torch
from safetensors.torch import load_file, save_file
import constants, random_model

sources, configs, tokenizer = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
found, folders = {}, {}

def check(name, checkpoint, folder):
    out = os.path.abspath("constants-" + name.replace(" ", "-"))
    os.mkdir(out)
    result = constants.run({"checkpoint": checkpoint, "export": folder}, out)
    with open(out + "/constants.json") as file:
        entries = json.load(file)["constants"]
    found[name] = {"constants": entries, "findings": [finding["evidence"] for finding in result["findings"]]}

def made(family):
    # In fp32, with more digits than a half has.
    folder = folders[family] = os.path.abspath(family)
    os.mkdir(folder)
    random_model.make(configs[family], 0, tokenizer, folder)
    torch.manual_seed(1)
    tensors = load_file(folder + "/model.safetensors")
    fine = {name: values.float() * (1 + 1e-3 * torch.rand(values.shape)) for name, values in tensors.items()}
    save_file(fine, folder + "/model.safetensors", metadata={"format": "pt"})
    with open(folder + "/config.json") as file:
        config = json.load(file)
    config |= {"dtype": "float32", "torch_dtype": "float32"}
    with open(folder + "/config.json", "w") as file:
        json.dump(config, file)
    return folder

def planted(name, family, change, precision="fp32"):
    source, out = os.path.abspath(f"{family}-{precision}"), os.path.abspath("planted-" + name.replace(" ", "-"))
    model = onnx_ir.load(source + "/model.onnx")
    change(model.graph)
    os.mkdir(out)
    onnx_ir.save(model, out + "/model.onnx", external_data="model.onnx.data")
    shutil.copy(source + "/genai_config.json", out)
    check(name, folders[family], out)

def numbers(graph, name):
    return graph.initializers[name].const_value.numpy()

def put(graph, name, array):
    value = graph.initializers[name]
    value.const_value = onnx_ir.tensor(np.ascontiguousarray(array), name=name)
    value.shape = value.const_value.shape

def values(name, change):
    return lambda graph: put(graph, name, change(numbers(graph, name).copy()))

def weight(layer, module):
    return f"model.layers.{layer}.{module}.MatMul.weight"

def swapped(*pairs):
    def change(graph):
        for one, other in pairs:
            first, second = numbers(graph, one).copy(), numbers(graph, other).copy()
            put(graph, one, second)
            put(graph, other, first)
    return change

def assigned(index, value):
    def change(array):
        array[index] = value
        return array
    return change

def halved(graph):
    for name, value in list(graph.initializers.items()):
        if len(value.shape) == 2 and value.dtype == onnx_ir.DataType.FLOAT and "cache" not in name:
            put(graph, name, numbers(graph, name).astype(np.float16).astype(np.float32))

def node(graph, name):
    return next(item for item in graph if item.name == "/model/layers." + name)

def exact_gelu(graph):
    for item in graph:
        if item.op_type == "Gelu":
            item.attributes["approximate"] = onnx_ir.AttrString("approximate", "none")

def one_relu(graph):
    node(graph, "2/mlp/act_fn/FastGelu").op_type = "Relu"

def other_inputs(graph):
    # The activation is computed of what goes beside it.
    gate, up = node(graph, "1/mlp/gate_proj/MatMul"), node(graph, "1/mlp/up_proj/MatMul")
    one, other = gate.inputs[1], up.inputs[1]
    gate.replace_input_with(1, other)
    up.replace_input_with(1, one)

def crossed(graph):
    # The nodes of two layers' MLPs change places, with all that they hold.
    for m in ("gate", "up"):
        one, other = (node(graph, f"{n}/mlp/{m}_proj/MatMul") for n in (1, 2))
        first, second = one.inputs[0], other.inputs[0]
        one.replace_input_with(0, second)
        other.replace_input_with(0, first)
    one, other = (node(graph, f"{n}/mlp/down_proj/MatMul").outputs[0] for n in (1, 2))
    uses = [(consumer, at, value) for value, new in ((one, other), (other, one)) for consumer in list(value.consumers())
            for at, item in enumerate(consumer.inputs) if item is value]
    for consumer, at, value in uses:
        consumer.replace_input_with(at, other if value is one else one)
    graph.sort()

def left_out(graph):
    # A layer without its activation.
    gone = node(graph, "3/mlp/act_fn/Mul")
    onnx_ir.convenience.replace_all_uses_with(gone.outputs[0], gone.inputs[0])

for family in configs:
    checkpoint = made(family)
    check(family, checkpoint, exported(sources, checkpoint, os.path.abspath(f"{family}-fp32")))
for family, precision in (("mistral", "int4"), ("mistral", "int8"), ("mistral", "fp16"), ("lfm2moe", "int4")):
    check(f"{family} {precision}", folders[family],
          exported(sources, folders[family], os.path.abspath(f"{family}-{precision}"), precision))

planted("mlps", "mistral", swapped(*((weight(1, f"mlp.{m}_proj"), weight(2, f"mlp.{m}_proj"))
                                     for m in ("gate", "up", "down"))))
planted("transposed", "mistral", values(weight(1, "attn.o_proj"), lambda old: old.T))
planted("reversed", "mistral", values(weight(2, "mlp.up_proj"), lambda old: old[:, ::-1]))
planted("order", "mistral", values(weight(2, "mlp.up_proj"), lambda old: np.roll(old, 5, axis=1)))
planted("zeroed", "mistral", values("lm_head.MatMul.weight", assigned((slice(None), 17), 0)))
planted("one value", "mistral", values(weight(0, "mlp.down_proj"), assigned((5, 3), 1.0)))
planted("nan", "mistral", values(weight(0, "mlp.down_proj"), assigned((5, 3), np.nan)))
planted("halved", "mistral", halved)
planted("doubled", "mistral", values(weight(1, "mlp.down_proj"), lambda old: old * 2))
planted("keys and values", "mistral", values(weight(0, "attn.qkv_proj"),
        lambda old: np.concatenate([old[:, :128], old[:, 192:], old[:, 128:192]], axis=1)))
planted("gate and up", "mistral", other_inputs)
planted("crossed", "mistral", crossed)
planted("left out", "mistral", left_out)
planted("exact gelu", "gemma2", exact_gelu)
planted("relu", "gemma2", one_relu)
planted("experts", "gpt_oss", values("model.layers.1.moe.experts.gate_up_proj.weight",
                                     lambda old: old[[0, 3, 2, 1, *range(4, len(old))]]))
planted("steps", "mistral", values("model.layers.1.mlp.up_proj.MatMul.weight_scales", lambda old: old * 1.5), "int4")
planted("packed", "mistral", values("model.layers.1.mlp.up_proj.MatMul.weight_Q4",
                                    assigned((slice(7, 8),), 0x88)), "int4")
planted("wide steps", "mistral", lambda graph: (
    values("model.layers.1.mlp.up_proj.MatMul.weight_scales", lambda old: old * 1000)(graph),
    values("model.layers.1.mlp.up_proj.MatMul.weight_Q4", lambda old: np.full_like(old, 0x88))(graph)), "int4")

# A config that ties the head, and a file that has another one.
other = os.path.abspath("other-head")
shutil.copytree(folders["gemma2"], other)
tensors = load_file(other + "/model.safetensors")
tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 0.5 + 0.01
save_file(tensors, other + "/model.safetensors", metadata={"format": "pt"})
check("other head", other, os.path.abspath("gemma2-fp32"))
check("other head exported", other, exported(sources, other, os.path.abspath("other-head-fp32")))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(rope, tmp_path_factory) -> dict[str, dict]:
    """The constants of all exports, by what was planted in them."""
    folder = tmp_path_factory.mktemp("weights")
    configs = {
        name: yaml.safe_load((paths.CONF / "family" / f"{name}.yaml").read_text(encoding="utf-8"))["config"]
        for name in FAMILIES
        if name != "lfm2moe"
    }
    configs["mistral"] |= {"hidden_size": 128}  # so that the projection of 4 heads of 32 is square
    arguments = wheel_sources("0.18.0", folder / "sources"), json.dumps(configs | {"lfm2moe": LFM2_MOE})
    return run(python_with("5."), PLANTS, folder, *arguments, paths.PROJECT / "checkpoints" / "tiny_llama")


def faults(found: dict) -> list[tuple]:
    """(kind, what, layers, says) of what is wrong with matrices, biases, activations and operators."""
    kinds = ("weight", "activation", "operators", "bias", "vector")
    return [
        (entry["kind"], entry["what"], entry["layers"], entry["says"])
        for entry in found["constants"]
        if entry["verdict"] in FAULTS and entry["kind"] in kinds
    ]


@pytest.mark.parametrize("name", [*FAMILIES, "mistral int4", "mistral int8", "mistral fp16", "lfm2moe int4"])
def test_a_right_export_has_every_matrix(found, name):
    assert faults(found[name]) == []
    weights = [entry for entry in found[name]["constants"] if entry["kind"] == "weight"]
    assert {entry["verdict"] for entry in weights} <= {"same", "rounded"}
    rounded = [entry for entry in weights if entry["verdict"] == "rounded"]
    assert bool(rounded) == ("int" in name) and all(entry["says"] == "the nearest steps" for entry in rounded)
    activations = [entry["verdict"] for entry in found[name]["constants"] if entry["kind"] == "activation"]
    assert activations and set(activations) == {"same"}


@pytest.mark.parametrize(
    "name, expected",
    {
        "transposed": [("weight", "o_proj", [1], "is transposed")],
        "reversed": [("weight", "up_proj", [2], "has its rows in reverse")],
        "order": [("weight", "up_proj", [2], "has its rows in another order")],
        "doubled": [("weight", "down_proj", [1], "is 2 times the checkpoint's")],
        "keys and values": [
            ("weight", "k_proj", [0], "holds v_proj"), ("weight", "v_proj", [0], "holds k_proj"),
        ],
        "gate and up": [
            ("weight", "gate_proj", [1], "holds up_proj"),
            ("weight", "up_proj", [1], "holds gate_proj"),
        ],
        "exact gelu": [("activation", "activation", [0, 1, 2, 3, 4, 5], "gelu instead of gelu_tanh")],
    }.items(),
)  # fmt: skip
def test_a_planted_fault_is_named(found, name, expected):
    assert sorted(faults(found[name])) == sorted(expected)


def test_mlps_of_two_layers_that_are_swapped(found):
    expected = [
        ("weight", f"{m}_proj", [one], f"holds layer {other}'s {m}_proj")
        for m in ("down", "gate", "up")
        for one, other in ((1, 2), (2, 1))
    ]
    assert sorted(faults(found["mlps"])) == expected


def test_rows_and_values_that_differ_are_told(found):
    ((kind, what, layers, says),) = faults(found["zeroed"])
    assert (kind, what, layers) == ("weight", "lm_head", None)
    assert says.startswith("is zero in row 17 of ") and ": largest " in says
    ((_, what, layers, says),) = faults(found["one value"])
    assert (
        (what, layers) == ("down_proj", [0]) and says.startswith("differs in row 3 of ") and says.endswith("at [3, 5]")
    )
    ((_, what, _, says),) = faults(found["nan"])
    assert what == "down_proj" and says.endswith("at [3, 5]")


def test_matrices_that_were_rounded_on_the_way(found):
    said = faults(found["halved"])
    assert {what for _, what, *_ in said} == {
        "embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert {says for *_, says in said} == {"rounded to float16"}
    (told,) = [evidence for evidence in found["halved"]["findings"] if "float16" in evidence]
    assert told.startswith("embed_tokens, lm_head, q_proj, ") and ": rounded to float16, off by up to " in told


def test_an_activation_of_one_layer(found):
    said = faults(found["relu"])
    assert ("activation", "activation", [2], "relu instead of gelu_tanh") in said
    assert ("operators", "operators", [2]) in [item[:3] for item in said]
    said = faults(found["left out"])
    assert [item[2] for item in said if item[0] == "operators"] == [[3]]


def test_weights_that_run_in_another_layer_than_their_own(found):
    said = [item for item in faults(found["crossed"]) if item[3].startswith("runs")]
    assert said == [("operators", f"{m}_proj", [1], "runs in layer 2") for m in ("gate", "up", "down")]


def test_experts_in_another_order(found):
    ((_, what, layers, says),) = faults(found["experts"])
    assert (what, layers) == ("experts.gate_up_proj", [1])
    assert says.startswith("expert 1's gate_proj holds expert 3's gate_proj")


def test_quantised_values_beyond_their_step(found):
    for name in ("steps", "packed", "wide steps"):
        ((_, what, layers, says),) = faults(found[name])
        assert (what, layers) == ("up_proj", [1]), says
    ((*_, says),) = faults(found["packed"])
    assert says.startswith("is zero in row 7 of ")


def test_a_tied_head_beside_another_one_in_the_file(found):
    said = {what: says for _, what, _, says in faults(found["other head"])}
    assert said["lm_head"] == "holds embed_tokens"
    why = "the config ties the head to the embedding, and the file has another lm_head.weight: "
    head = "the export's head is the file's embed_tokens, the reference's head is the file's lm_head"
    assert said["lm_head, tied"] == why + head
    said = {what: says for _, what, _, says in faults(found["other head exported"])}
    assert said["embed_tokens"] == "holds lm_head" and said["embed_tokens, tied"].startswith(why)


def test_the_bias_that_experts_are_chosen_by_is_read_on_both_sides(found):
    vectors = {entry["what"]: entry["verdict"] for entry in found["lfm2moe"]["constants"] if entry["kind"] == "vector"}
    assert vectors["expert_bias"] == "same"
