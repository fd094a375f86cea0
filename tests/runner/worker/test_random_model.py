"""Random models of every family, and real configs made small. One process for all: importing takes most of the time."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import yaml
from lab import with_transformers_5

from runner import families, paths

pytestmark = pytest.mark.slow

SCRIPT = """
import hashlib, json, os, sys
import torch
import random_model, shrink
from safetensors.torch import load_file
from task import StageError

torch.set_num_threads(1)
given = json.loads(sys.stdin.read())
tokenizer = given["tokenizer"]

def make(config, name, seed=1, **options):
    os.makedirs(name)
    return random_model.make(config, seed, tokenizer, name, **options)

def digest(name):
    with open(f"{name}/model.safetensors", "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()

def kept(config):
    # What config.json says otherwise than it was told, at either level.
    with open("first/" + name + "/config.json") as file:
        written = json.load(file)
    inner = written.get("text_config", {})
    changed = [key for key, value in config.items() if key != "text_config" and written[key] != value]
    return changed + [key for key, value in config.get("text_config", {}).items() if inner[key] != value]

def failure(config, name, **options):
    try:
        make(config, name, **options)
    except StageError as error:
        return {"kind": error.kind, "message": str(error)}

found = {"families": {}, "shrunken": {}}
for name, config in given["families"].items():
    result = make(config, "first/" + name)
    for other, seed in (("again", 1), ("other", 2)):
        make(config, f"{other}/{name}", seed)
    tensors = load_file(f"first/{name}/model.safetensors")
    result["constant"] = [key for key, value in tensors.items() if value.numel() > 1 and value.unique().numel() == 1]
    result["dtypes"] = sorted({str(value.dtype) for value in tensors.values()})
    result["files"] = sorted(os.listdir("first/" + name))
    result["changed"] = kept(config)
    result["digests"] = [digest(f"{run}/{name}") for run in ("first", "again", "other")]
    found["families"][name] = result

llama = given["families"]["llama"]
draw = random_model.draw
skipped = {}
for key in ("model.norm.weight", "model.layers.1.self_attn.q_proj.weight"):
    random_model.draw = lambda name, default, *rest: default if name == key else draw(name, default, *rest)
    skipped[key] = failure(llama, "skipped/" + key)
random_model.draw = lambda name, default, *rest: draw(name, default, *rest) * float("nan")
skipped["nan"] = failure(llama, "skipped/nan")
random_model.draw = draw
read = random_model.load_file
random_model.load_file = lambda path: {k: v for k, v in read(path).items() if k != "model.norm.weight"}
skipped["missing"] = failure(llama, "skipped/missing")
random_model.load_file = read
found["failures"] = skipped | {"unknown": failure({"model_type": "gemma17"}, "skipped/unknown")}

for name, config in given["models"].items():
    small = shrink.shrunken(config)
    before, after = (shrink.completed(c) for c in (config, small))
    same = [key for key in before if before[key] == after.get(key)]
    found["shrunken"][name] = {
        "small": small, "same": same, "before": shrink.layer_kinds(before), "after": shrink.layer_kinds(after),
    }
for name in given["made"]:
    found["shrunken"][name]["made"] = make(given["models"][name], "small/" + name, shrink=True)
nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560}}
found["nested"] = shrink.shrunken(nested)
print(json.dumps(found))
"""
FAMILIES = {name: families.read(name)["config"] for name in families.names()}
MODELS = {
    content["name"]: content["config"]
    for path in sorted((paths.CONF / "model").glob("*.yaml"))
    for content in [yaml.safe_load(path.read_text(encoding="utf-8"))]
    if content.get("config")
}
# Those that are made too: both forms of a config, and the largest.
MADE = ["gemma3_27b", "gemma4_12b", "gpt_oss_20b"]
# Each kind of layer that a family has.
KINDS = {
    "gemma2": {"sliding_attention", "full_attention"},
    "gemma3": {"sliding_attention", "full_attention"},
    "gemma4": {
        "sliding_attention", "full_attention",
        "sliding_attention, shared keys and values", "full_attention, shared keys and values",
    },
    "gemma4_unified": {"sliding_attention", "full_attention"},
    "gpt_oss": {"sliding_attention", "full_attention"},
    "lfm2": {"conv", "full_attention"},
    "mistral": {"sliding_attention"},
    "phi3": {"sliding_attention"},
    "qwen3_next": {"linear_attention", "full_attention"},
    "smollm3": {"full_attention, no_rope_layers 1", "full_attention, no_rope_layers 0"},
}  # fmt: skip
# What the constants of a model are worked out from.
CONSTANTS = {
    "hidden_size", "head_dim", "global_head_dim", "rope_parameters", "max_position_embeddings", "sliding_window",
    "rms_norm_eps", "norm_eps", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "hidden_act", "hidden_activation", "tie_word_embeddings", "attention_bias", "hidden_size_per_layer_input",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "clip_qkv", "swiglu_limit",
}  # fmt: skip


@pytest.fixture(scope="module")
def found(rope, tmp_path_factory) -> dict:
    given = {"tokenizer": str(paths.PROJECT / "checkpoints" / "tiny_llama")}
    given |= {"families": FAMILIES, "models": MODELS, "made": MADE}
    done = subprocess.run(
        [with_transformers_5(), "-c", SCRIPT], input=json.dumps(given),
        cwd=tmp_path_factory.mktemp("random"), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(paths.PROJECT / "runner" / "worker"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_made_and_read_back(found, name):
    made = found["families"][name]
    assert set(made["layer_types"]) == KINDS.get(name, {"full_attention"})
    assert made["layers"] == len(made["layer_types"])
    assert made["constant"] == [] and made["dtypes"] == ["torch.bfloat16"]
    assert 5 < made["logit_range"] < 30
    assert made["parameters"] < 2e6
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= set(made["files"])
    assert made["changed"] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_the_seed_alone_decides_the_weights(found, name):
    first, again, other = found["families"][name]["digests"]
    assert first == again != other


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.self_attn.q_proj.weight"])
def test_a_tensor_that_is_left_at_its_default_is_refused(found, name):
    assert found["failures"][name] == {
        "kind": "DefaultWeights",
        "message": f"1 tensors of the random model were not drawn: {name}",
    }


def test_weights_that_are_no_numbers_are_refused(found):
    assert found["failures"]["nan"]["kind"] == "DefaultWeights"


def test_a_tensor_that_the_class_does_not_find_is_refused(found):
    assert found["failures"]["missing"]["kind"] == "TensorsDiffer"
    assert found["failures"]["missing"]["message"].endswith("missing keys: model.norm.weight")


def test_a_model_type_that_transformers_does_not_know_is_said(found):
    assert found["failures"]["unknown"]["kind"] == "UnknownModelType"
    assert "'gemma17'" in found["failures"]["unknown"]["message"]


@pytest.mark.parametrize("name", MODELS)
def test_a_shrunken_config_keeps_its_constants_and_every_kind_of_layer(found, name):
    shrunken = found["shrunken"][name]
    text = shrunken["small"].get("text_config", shrunken["small"])
    changed = set(text) - set(shrunken["same"]) - {"text_config"}
    # A head size that the class works out from the number of heads is written down before these are fewer.
    written = {"head_dim"} if "head_dim" not in MODELS[name].get("text_config", MODELS[name]) else set()
    assert not changed & CONSTANTS - written
    assert set(shrunken["after"]) == set(shrunken["before"])
    assert len(shrunken["after"]) <= 12
    # The rest of the given fields stays as it was given.
    assert set(MODELS[name]) <= set(shrunken["small"])


def test_layers_are_the_first_that_hold_every_kind(found):
    shrunken = {name: entry["small"] for name, entry in found["shrunken"].items()}
    assert shrunken["gemma3_27b"]["num_hidden_layers"] == 6
    assert shrunken["gemma2_2b"]["num_hidden_layers"] == 2
    assert shrunken["llama3.2_1b"]["num_hidden_layers"] == 1
    assert shrunken["gpt_oss_20b"]["layer_types"] == ["sliding_attention", "full_attention"]
    shared = shrunken["gemma4_e2b"]["text_config"]
    assert (shared["num_hidden_layers"], shared["num_kv_shared_layers"]) == (10, 5)
    assert shared["layer_types"] == (["sliding_attention"] * 4 + ["full_attention"]) * 2


def test_heads_keep_their_size_and_their_groups(found):
    shrunken = {name: entry["small"] for name, entry in found["shrunken"].items()}
    for name, size, groups in (("gemma3_27b", 128, 2), ("qwen2.5_0.5b", 64, 2), ("olmo_1b", 128, 1)):
        config = shrunken[name]
        assert config["head_dim"] == size
        assert config["num_attention_heads"] == groups * config["num_key_value_heads"] == 2


def test_a_config_in_parts_is_its_text_where_that_stands_alone(found):
    assert found["nested"]["model_type"] == "gemma3_text"
    assert "text_config" not in found["nested"]
    assert found["nested"]["hidden_size"] == 2560 and found["nested"]["num_hidden_layers"] == 6
    unified = found["shrunken"]["gemma4_12b"]["small"]
    assert unified["text_config"]["num_hidden_layers"] == 6 and unified["vision_config"] is None


@pytest.mark.parametrize("name", MADE)
def test_what_was_shrunken_is_small_and_made(found, name):
    made = found["shrunken"][name]["made"]
    assert made["parameters"] < 45e6
    assert made["layer_types"] == found["shrunken"][name]["after"]
