"""The shipped checkpoint of Gemma 4's dense shape: its files, what it answers, and what its traps do."""

from __future__ import annotations

import json
import math
import os
import subprocess

import numpy as np
import pytest
import yaml
from lab import with_transformers_5
from safetensors.numpy import load_file

from runner import paths

FOLDER = paths.PROJECT / "checkpoints" / "tiny_gemma4"
FIVE = yaml.safe_load((paths.CONF / "prompts" / "five.yaml").read_text(encoding="utf-8"))["prompts"]
EXPECTED = {prompt["text"]: prompt["expect"] for prompt in FIVE}
OLDER = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"

SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)
folder, texts, older = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
tokenizer = AutoTokenizer.from_pretrained(folder)
settings = {"dtype": torch.float32, "attn_implementation": "eager"}
model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **settings)
layers = model.model.layers
loaded = [layer.layer_scalar.item() for layer in layers]

def chat(text):
    turn = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)

def ids_of(text):
    return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])

def answer(text):
    ids = ids_of(text)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64)
    return tokenizer.decode(out[0, ids.shape[1]:])

def logits():
    with torch.no_grad():
        return model(ids_of(chat(texts[0]))).logits[0]

def set_scalars(values):
    for layer, value in zip(layers, values, strict=True):
        layer.layer_scalar.fill_(value)

right = logits()
found = {
    "report": {key: sorted(value) for key, value in report.items() if key.endswith("_keys")},
    "class": type(model).__name__,
    "scalars": loaded,
    "parameters": [name for name, _ in model.named_parameters() if name.endswith("layer_scalar")],
    "chat": chat("Hi."),
    "pieces": tokenizer.tokenize("<start_of_turn>"),
    "id": tokenizer.convert_tokens_to_ids("<start_of_turn>"),
    "turn": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("<|turn>", "<turn|>")],
    "answers": {text: answer(chat(text)) for text in texts},
    "older": {text: [answer(start + older.replace("{}", text)) for start in ("", "<bos>")] for text in texts},
    "one layer": [],
}
for index in range(len(layers)):
    set_scalars([1.0 if i == index else value for i, value in enumerate(loaded)])
    found["one layer"].append((logits() - right).abs().max().item())
set_scalars([1.0] * len(layers))
wrong = logits()
found["moved"] = (wrong - right).abs().max().item()
found["agree"] = (wrong.argmax(-1) == right.argmax(-1)).float().mean().item()
found["at one"] = {text: answer(chat(text)) for text in texts}
print(json.dumps(found))
"""


def read(name: str) -> dict:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return load_file(FOLDER / "model.safetensors")


@pytest.fixture(scope="module")
def found(rope) -> dict:
    done = subprocess.run(
        [with_transformers_5(), "-c", "import json, sys\n" + SCRIPT, FOLDER, json.dumps(list(EXPECTED)), OLDER],
        capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_files():
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert set(files) == {"config.json", "generation_config.json", "model.safetensors"} | tokenizer
    assert sum(files.values()) < 3_000_000


def test_shape_is_the_31b_in_small():
    config = read("config.json")
    published = yaml.safe_load((paths.CONF / "model" / "gemma4_31b.yaml").read_text(encoding="utf-8"))
    large = published["config"]["text_config"]
    same = [
        "model_type", "attention_bias", "attention_k_eq_v", "enable_moe_block", "final_logit_softcapping",
        "hidden_activation", "hidden_size_per_layer_input", "num_kv_shared_layers", "rope_parameters", "rms_norm_eps",
        "tie_word_embeddings", "use_double_wide_mlp",
    ]  # fmt: skip
    assert {key: config[key] for key in same} == {key: large[key] for key in same}
    assert set(config["layer_types"]) == set(large["layer_types"])
    for key in ("num_key_value_heads", "num_global_key_value_heads"):
        assert config["num_attention_heads"] // config[key] == large["num_attention_heads"] // large[key]
    assert config["global_head_dim"] == 2 * config["head_dim"]
    # The scale of the embedding is not exact in bfloat16.
    assert math.isqrt(config["hidden_size"]) ** 2 != config["hidden_size"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_sliding_layers_divide_by_the_ranks_and_global_ones_do_not(ranks):
    config = read("config.json")
    keys = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    assert [config[key] % ranks for key in keys] == [0, 0, 0, 0]
    assert config["num_global_key_value_heads"] % ranks


def test_keys_and_values_by_the_kind_of_layer(weights):
    config = read("config.json")
    for index, kind in enumerate(config["layer_types"]):
        layer = f"model.layers.{index}.self_attn."
        sliding = kind == "sliding_attention"
        heads, size = (4, config["head_dim"]) if sliding else (1, config["global_head_dim"])
        assert weights[layer + "k_proj.weight"].shape == (heads * size, config["hidden_size"])
        assert (layer + "v_proj.weight" in weights) == sliding


def test_scalars_are_stored_and_are_not_one(weights):
    scalars = {key: value for key, value in weights.items() if key.endswith("layer_scalar")}
    assert len(scalars) == read("config.json")["num_hidden_layers"]
    assert all(value.shape == (1,) and 0.3 <= value[0] <= 0.7 for value in scalars.values())
    assert len({value.item() for value in scalars.values()}) == len(scalars)


def test_template_stands_in_a_file_of_its_own():
    assert "chat_template" not in read("tokenizer_config.json")
    text = (FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    assert "<|turn>" in text and "<turn|>" in text and "_of_turn" not in text


def test_tokens_of_a_turn():
    tokenizer = read("tokenizer.json")
    special = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    assert special == ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    vocabulary = tokenizer["model"]["vocab"]
    assert len(vocabulary) == read("config.json")["vocab_size"]
    assert not {"<start_of_turn>", "<end_of_turn>"} & set(vocabulary)
    assert read("generation_config.json")["eos_token_id"] == [1, 5] == read("config.json")["eos_token_id"]


@pytest.mark.slow
def test_every_tensor_is_taken(found):
    assert found["class"] == "Gemma4ForCausalLM"
    assert found["report"] and not any(found["report"].values())


@pytest.mark.slow
def test_turns_are_written_with_tokens(found):
    assert found["chat"] == "<bos><|turn>user\nHi.<turn|>\n<|turn>model\n"
    assert found["turn"] == [[4], [5]]


@pytest.mark.slow
def test_the_five_prompts_are_answered_by_heart(found):
    assert found["answers"] == {text: expected + "<turn|>" for text, expected in EXPECTED.items()}


@pytest.mark.slow
def test_older_turn_markers_are_spelled_out_and_answered_without_end(found):
    assert len(found["pieces"]) > 6 and "".join(found["pieces"]) == "<start_of_turn>"
    assert found["id"] == 3  # <unk>
    for answers in found["older"].values():
        assert all(answer.startswith("<start_of_turn>model\n" * 3) for answer in answers)
        assert not any("<turn|>" in answer for answer in answers)


@pytest.mark.slow
def test_scalars_left_at_one_change_every_answer(found, weights):
    assert found["scalars"] == [weights[f"model.layers.{i}.layer_scalar"].item() for i in range(len(found["scalars"]))]
    assert found["parameters"] == []
    assert found["moved"] > 3 and found["agree"] < 0.5
    assert not any(EXPECTED[text] in answer for text, answer in found["at one"].items())


@pytest.mark.slow
def test_the_last_layers_scalar_alone_changes_nothing(found):
    *others, last = found["one layer"]
    assert min(others) > 1
    assert last < 1e-3  # the norm that follows takes it out again
