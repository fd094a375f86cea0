"""A model that computes in float64 throughout, against float64 arithmetic of NumPy's and operator by operator."""

from __future__ import annotations

import json

import pytest
import yaml
from lab import ENVIRONMENTS

from runner import paths

pytestmark = pytest.mark.slow

# Llama and Gemma 3, written down from their papers and nothing else, in float64.
NUMPY = """
import math, numpy as np
from safetensors.torch import load_file

def norm(x, weight, gemma):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (weight + gemma)

def turned(x, theta, factor):  # x: [heads, tokens, size]
    size = x.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * (theta ** (-np.arange(0, size, 2) / size) / factor)[None]
    cos, sin = (np.concatenate([part(angles)] * 2, -1) for part in (np.cos, np.sin))
    return x * cos + np.concatenate([-x[..., size // 2:], x[..., : size // 2]], -1) * sin

def forward(folder, ids):
    config = json.load(open(f"{folder}/config.json"))
    stored = load_file(f"{folder}/model.safetensors")
    w = {name.removeprefix("model."): tensor.double().numpy() for name, tensor in stored.items()}
    gemma = config["model_type"] == "gemma3_text"
    heads, groups, size, n = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"], len(ids)
    x = w["embed_tokens.weight"][ids] * (math.sqrt(config["hidden_size"]) if gemma else 1.0)
    rows, columns = np.arange(n)[:, None], np.arange(n)[None]
    for layer in range(config["num_hidden_layers"]):
        of = lambda name: w[f"layers.{layer}.{name}.weight"]
        local = gemma and (layer + 1) % config["sliding_window_pattern"] != 0
        theta = config["rope_local_base_freq"] if local else config["rope_theta"]
        factor = config["rope_scaling"]["factor"] if gemma and not local else 1.0
        y = norm(x, of("input_layernorm"), gemma)
        q, k, v = (
            (y @ of(f"self_attn.{p}_proj").T).reshape(n, -1, size).transpose(1, 0, 2) for p in ("q", "k", "v")
        )
        if gemma:
            q, k = norm(q, of("self_attn.q_norm"), 1), norm(k, of("self_attn.k_norm"), 1)
        q, k = turned(q, theta, factor), turned(k, theta, factor)
        k, v = (np.repeat(part, heads // groups, 0) for part in (k, v))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(config.get("query_pre_attn_scalar", size))
        seen = (columns <= rows) & (columns > rows - (config["sliding_window"] if local else n))
        scores = np.where(seen, scores, -np.inf)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        y = (chances / chances.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1) @ of("self_attn.o_proj").T
        x = x + (norm(y, of("post_attention_layernorm"), 1) if gemma else y)
        y = norm(x, of("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"), gemma)
        gate = y @ of("mlp.gate_proj").T
        tanh = np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
        gate = gate / 2 * (1 + tanh) if gemma else gate / (1 + np.exp(-gate))
        y = (gate * (y @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
        x = x + (norm(y, of("post_feedforward_layernorm"), 1) if gemma else y)
    return norm(x, w["norm.weight"], gemma) @ w["embed_tokens.weight"].T
"""
AGAINST = """
import reference, true_fp64
found = {}
rng = np.random.default_rng(0)
for folder in sys.argv[1:]:
    for attention in ("eager", "sdpa"):
        for count in (20, 600):
            ids = rng.integers(0, 493, count).tolist()
            right = forward(folder, ids)[-8:]
            true, _ = reference.load(folder, "float64", attention)
            plain, _ = reference.load(folder, "float32", attention)
            off = lambda model: float(np.abs(reference.forced(model, ids[:-7], [*ids[-7:], 0]) - right).max())
            size = float(np.abs(right).max())
            found[f"{folder} {attention} {count}"] = [off(true), off(plain), size, true_fp64.left(true)]
print(json.dumps(found))
"""
FAMILIES = """
import os, random_model, reference, true_fp64, torch
found = {}
given, tokenizer = json.load(open(sys.argv[1])), sys.argv[2]
for name, config in given.items():
    os.makedirs(name)
    random_model.make(config, 1, tokenizer, name)
    model, _ = reference.load(name, "float64", "eager")
    ids = list(range(20, 40))
    rows = reference.forced(model, ids, ids[:4])
    tokens = reference.greedy(model, ids, set(), 3)
    narrow = [n for n, tensor in [*model.named_buffers(), *model.named_parameters()] if true_fp64.narrow(tensor)]
    single, _ = reference.load(name, "float32", "eager")
    off = abs(reference.forced(single, ids, ids[:4]) - rows).max()
    found[name] = {
        "left": true_fp64.left(model), "narrow": narrow, "off": float(off), "finite": bool((abs(rows) < 1e9).all()),
        "greedy": str(tokens[1].dtype),
    }
print(json.dumps(found))
"""
OPERATORS = """
import torch, true_fp64
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.1], dtype=torch.float32))
        self.register_buffer("third", 1 / torch.arange(3, 4, dtype=torch.float32), persistent=False)
        self.kept = [torch.tensor([1 / 3], dtype=torch.float32)]
    def forward(self, x, hidden=False):
        x = x.float() * self.third.to(torch.bfloat16)
        x = x + torch.tensor([1 / 3], dtype=torch.float16) + torch.ones(1) * torch.full((1,), 1 / 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.nn.functional.linear(x[None], torch.ones(1, 1, dtype=torch.float32))[0]
        x = torch.softmax(torch.stack([x, 2 * x]), 0, dtype=torch.float32)[0]
        x = x * torch.polar(torch.ones(1), torch.ones(1) / 3).real
        if hidden:
            x = x + self.kept[0]
        return x * self.weight
def load():
    return Odd(), {}
model, _ = true_fp64.loaded(load, torch.float64)
given = torch.tensor([0.3], dtype=torch.float64)
with torch.inference_mode():
    once = model(given).item()
with torch.no_grad():
    twice = model(given).item()
clean = true_fp64.left(model)
single, _ = true_fp64.loaded(load, torch.float32)
model.kept = single.kept
with torch.inference_mode():
    model(given, hidden=True)
left = true_fp64.left(model)
outside = torch.tensor([1.0]).dtype == torch.float32 and (given.float().dtype == torch.float32)
print(json.dumps({
    "values": [once, twice], "clean": clean, "left": left, "label": true_fp64.label(left), "outside": outside,
    "finding": true_fp64.finding(left, "w"),
    "none": [true_fp64.label({}), true_fp64.finding({}, "w"), true_fp64.left(single)],
}))
"""


def python_of(transformers: str):
    for stamp in sorted(ENVIRONMENTS.glob("*/ready.json")):
        if json.loads(stamp.read_text(encoding="utf-8"))["packages"].get("transformers") == transformers:
            return stamp.parent / "bin" / "python"
    raise AssertionError(f"no environment has transformers {transformers}")


def test_every_kind_of_operation_is_widened_and_what_is_not_is_counted(with_torch):
    import math

    found = with_torch(OPERATORS)
    x = 0.3 / 3 + 2 / 3
    x = 1 / (1 + math.exp(x)) * math.cos(1 / 3) * 0.1
    assert found["values"] == pytest.approx([x, x], rel=1e-15)
    assert found["clean"] == {} and found["outside"]
    assert found["left"] == {"a tensor of the model": 1}
    assert found["label"] == "float64, 1 operation left in fewer bits (a tensor of the model)"
    assert [(f["check"], f["evidence"]) for f in found["finding"]] == [("float64", f"{found['label']}: w")]
    assert found["none"] == ["float64", [], None]


@pytest.mark.parametrize("transformers", ["5.13.0", "4.57.6"])
def test_it_gives_what_numpy_gives_in_float64(rope, run_script, transformers):
    folders = [paths.PROJECT / "checkpoints" / name for name in ("tiny_llama", "tiny_gemma3")]
    found = run_script(python_of(transformers), NUMPY + AGAINST, *folders)
    assert len(found) == 8
    for true, single, size, left in found.values():
        assert left == {} and size > 1
        assert true < 1e-12 * size < 1e-8 * size < single


def test_no_family_leaves_anything_in_fewer_bits(with_torch, tmp_path):
    given = {
        file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["config"]
        for file in sorted((paths.CONF / "family").glob("*.yaml"))
    }
    (tmp_path / "families.json").write_text(json.dumps(given), encoding="utf-8")
    found = with_torch(FAMILIES, tmp_path / "families.json", paths.PROJECT / "checkpoints" / "tiny_gemma3")
    assert found.keys() == given.keys()
    for name, one in found.items():
        assert one["left"] == {} and one["narrow"] == [] and one["finite"], name
        assert 0 < one["off"] < 1e-3 and one["greedy"] == "float32", name
