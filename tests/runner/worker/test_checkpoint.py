"""A checkpoint cast and cut, shard by shard. Held to NumPy, which knows nothing of torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

pytestmark = pytest.mark.slow

MB = 2**20
LAYERS = 4
SCRIPT = """
import os, checkpoint
source, out, dtype, layers, text_only = sys.argv[1:]
os.mkdir(out)
arguments = {"source": source, "dtype": dtype, "layers": json.loads(layers), "text_only": text_only == "text_only"}
try:
    print(json.dumps(checkpoint.run(arguments, out)))
except checkpoint.StageError as error:
    print(json.dumps({"error": [error.kind, str(error), error.hint]}))
"""
NAMES = """
import os, checkpoint
from safetensors.torch import save_file
import torch
result = []
for number, (keys, config) in enumerate(json.loads(sys.argv[1])):
    os.mkdir(str(number))
    save_file({key: torch.zeros(1) for key in keys}, f"{number}/model.safetensors")
    try:
        names = checkpoint.text_names(str(number), ["model.safetensors"])
        result.append([names, checkpoint.text_config(config) if config else None])
    except checkpoint.StageError as error:
        result.append(error.kind)
print(json.dumps(result))
"""
GROWTH = """
import os, checkpoint
small, source, dtype = sys.argv[1:]
def run(source, out):
    os.mkdir(out)
    checkpoint.run({"source": source, "dtype": dtype, "layers": None, "text_only": False}, out)
run(small, "warm")
print(grown(lambda: run(source, "measured")))
"""
CONFIG = {
    "architectures": ["A", "B", "C", "D"],
    "eos_token_id": [1, 2, 3, 4],
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "no_rope_layers": [1, 1, 1, 0],
    "num_hidden_layers": LAYERS,
    "rope_parameters": {"rope_type": "longrope", "long_factor": [1.0, 2.0, 3.0, 4.0]},
    "suppress_tokens": [5, 6, 7, 8],
    "three": [1, 2, 3],
    "torch_dtype": "float32",
}


def write(folder: Path, shards: list[dict[str, np.ndarray]], config: dict = CONFIG) -> Path:
    """A sharded checkpoint with its index."""
    folder.mkdir()
    files = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    for file, tensors in zip(files, shards, strict=True):
        save_file(tensors, folder / file)
    names = {name: file for file, tensors in zip(files, shards, strict=True) for name in tensors}
    index = {"metadata": {"total_size": 1}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes, str]]:
    """Each tensor's dtype, shape, bytes and file."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = entry["dtype"], tuple(entry["shape"]), data[start + begin : start + end], path.name
    return found


def weight_map(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def in_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 nearest to float32 values, to even between two."""
    bits = values.reshape(-1).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def shards() -> list[dict[str, np.ndarray]]:
    """Four layers; layer 1 lies in two shards, and of the last shard only layer 3 has a part."""
    return [
        {
            "model.embed_tokens.weight": weights(0, 33, 8),
            "model.layers.0.mlp.weight": weights(1, 8, 8),
            "model.layers.1.mlp.weight": weights(2, 8, 8),
        },
        {
            "model.layers.1.norm.weight": weights(3, 8),
            "model.layers.2.mlp.weight": weights(4, 8, 8),
            "model.norm.weight": weights(5, 7),
            "model.positions": np.arange(5, dtype=np.int64),
            "model.steps": np.array(2**40 + 1),
            "model.mask": np.array([True, False, True]),
            "model.bytes": np.arange(3, dtype=np.uint8),
            "model.scale": np.array(1.5, np.float32),
            "model.nothing": np.zeros((0, 4), np.float32),
        },
        {"model.layers.3.mlp.weight": weights(6, 8, 8)},
    ]


@pytest.fixture
def source(tmp_path) -> Path:
    folder = write(tmp_path / "source", shards())
    (folder / "tokenizer.json").write_text("{}")
    (folder / "pytorch_model.bin").write_text("the same weights again")
    return folder


@pytest.fixture
def convert(with_torch, tmp_path):
    def convert(
        source: Path, dtype: str, layers: int | None = None, out: str = "out", part: str = "whole"
    ) -> tuple[Path, dict]:
        return tmp_path / out, with_torch(SCRIPT, source, out, dtype, json.dumps(layers), part)

    return convert


def test_fp32_to_bf16_and_back_is_exact(convert, source):
    before = {name: tensor for shard in shards() for name, tensor in shard.items()}
    floats = {name: tensor for name, tensor in before.items() if tensor.dtype == np.float32}
    halved, result = convert(source, "bf16")
    found = read(halved)
    assert set(found) == set(before)
    assert result == {"dtypes": {"bfloat16": len(floats), "int64": 2, "bool": 1, "uint8": 1}, "findings": []}
    for name, tensor in floats.items():
        assert found[name][:3] == ("BF16", tensor.shape, in_bf16(tensor).tobytes())
    assert {name: entry[3] for name, entry in found.items()} == weight_map(halved) == weight_map(source)
    assert json.loads((halved / "config.json").read_text()) == CONFIG | {"torch_dtype": "bfloat16"}
    assert (halved / "tokenizer.json").read_text() == "{}" and not (halved / "pytorch_model.bin").exists()
    again, result = convert(halved, "fp32", out="again")
    assert result["dtypes"]["float32"] == len(floats) and result["findings"] == []
    back = read(again)
    for name, tensor in floats.items():
        exact = (in_bf16(tensor).astype(np.uint32) << 16).tobytes()
        assert back[name][:3] == ("F32", tensor.shape, exact)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "stored"])
def test_what_is_no_float_stays_as_it_is(convert, source, dtype):
    found, original = read(convert(source, dtype)[0]), read(source)
    for name in ("model.positions", "model.steps", "model.mask", "model.bytes"):
        assert found[name] == original[name] and found[name][0] in ("I64", "BOOL", "U8")
    assert (found == original) == (dtype == "stored")


def test_what_fp16_cannot_hold_is_a_finding(convert, tmp_path):
    tensors = [
        {"a": np.array([1, 65504, 65519, 65520, -1e5], np.float32), "fine": weights(1, 4)},
        {"b": np.array([np.inf, -np.inf, np.nan, 1e30], np.float32)},
    ]
    out, result = convert(write(tmp_path / "source", tensors), "fp16")
    evidence = "3 values are beyond fp16's range and became infinite: a (2), b (1)"
    assert result["findings"] == [{"prompt": None, "check": "cast_overflow", "evidence": evidence}]
    found = read(out)
    with np.errstate(over="ignore"):
        for name in ("a", "fine"):
            (tensor,) = (shard[name] for shard in tensors if name in shard)
            assert found[name][:3] == ("F16", tensor.shape, tensor.astype(np.float16).tobytes())
    assert np.frombuffer(found["a"][2], np.float16).tolist() == [1, 65504, 65504, np.inf, -np.inf]


def test_what_bf16_cannot_hold_is_a_finding(convert, tmp_path):
    largest = np.finfo(np.float32).max  # which rounds up, beyond bfloat16's largest
    _, result = convert(write(tmp_path / "source", [{"a": np.array([largest, 3.38e38], np.float32)}]), "bf16")
    (finding,) = result["findings"]
    assert finding["evidence"] == "1 values are beyond bf16's range and became infinite: a (1)"


def eight_bits(folder: Path, config: dict) -> Path:
    header = {"a": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 3]}}
    header["model.layers.1.b"] = header["a"] | {"data_offsets": [3, 6]}
    source = write(folder, [], config)
    (source / "model.safetensors.index.json").unlink()
    encoded = json.dumps(header).encode()
    (source / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(range(0x38, 0x3E)))
    return source


QUANTISED = {"quantization_config": {"quant_method": "fp8"}}


@pytest.mark.parametrize(
    ("config", "said"), [({}, "a has eight bits"), (QUANTISED, "fp8"), ({"text_config": QUANTISED}, "fp8")]
)
def test_quantised_weights_are_not_cast(convert, tmp_path, config, said):
    _, result = convert(eight_bits(tmp_path / "source", CONFIG | config), "fp16")
    kind, message, hint = result["error"]
    assert kind == "Quantised" and said in message and "dequantise it first" in hint


def test_quantised_weights_are_cut_as_they_are_and_no_text_model_is_taken_of_them(convert, tmp_path):
    source = eight_bits(tmp_path / "source", CONFIG | QUANTISED)
    out, result = convert(source, "stored", 1)
    assert result == {"dtypes": {"float8_e4m3fn": 1}, "findings": []}
    assert read(out)["a"][:3] == read(source)["a"][:3]
    assert json.loads((out / "config.json").read_text())["quantization_config"] == {"quant_method": "fp8"}
    assert convert(source, "stored", None, "text", "text_only")[1]["error"][0] == "Quantised"


# As checkpoints are published, and as transformers 5 saves them.
TEXT = ["layers.0.self_attn.q_proj.weight", "embed_tokens.weight", "norm.weight"]
OLD = ["language_model.lm_head.weight", *(f"language_model.model.{name}" for name in TEXT)]
NEW = ["lm_head.weight", *(f"model.language_model.{name}" for name in TEXT)]
PIXTRAL = ["vision_tower.patch_conv.weight", "vision_tower.transformer.layers.0.attention.q_proj.weight"]
PROJECTOR = ["multi_modal_projector.norm.weight", "multi_modal_projector.patch_merger.merging_layer.weight"]
GEMMA4 = [
    "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", "model.audio_tower.layers.0.norm_out.weight",
    "model.embed_vision.embedding_projection.weight", "model.embed_audio.embedding_projection.weight",
]  # fmt: skip
SMOL = ["model.connector.modality_projection.proj.weight", "model.vision_model.encoder.layers.0.mlp.fc1.weight"]
CHECKPOINTS = {
    "mistral3": ([*OLD, *PROJECTOR, *PIXTRAL], "mistral", "MistralForCausalLM"),
    "mistral3_saved": ([*NEW, *(f"model.{name}" for name in PROJECTOR + PIXTRAL)], "mistral", "MistralForCausalLM"),
    "llama4": (
        [*OLD, "multi_modal_projector.linear_1.weight", "vision_model.model.layers.0.mlp.fc1.weight"],
        "llama4_text",
        "Llama4ForCausalLM",
    ),
    "gemma4": ([*NEW, *GEMMA4], "gemma4_text", "Gemma4ForCausalLM"),
    "smolvlm": (["lm_head.weight", *(f"model.text_model.{name}" for name in TEXT), *SMOL], "llama", "LlamaForCausalLM"),
}


def test_the_text_models_tensors_are_named_as_alone(with_torch):
    outer = {"model_type": "of_several", "eos_token_id": [1, 2], "dtype": "bfloat16", "vision_config": {}}
    given = [
        (keys, {**outer, "text_config": {"model_type": kind, "hidden_size": 8}})
        for keys, kind, _ in CHECKPOINTS.values()
    ]
    no_text = [["visual.blocks.0.norm1.weight", "visual.merger.mlp.0.weight"], None]
    qwen2_vl = [[f"model.{name}" for name in TEXT] + no_text[0], None]  # without a text_config: it is never asked
    *found, flat, nothing = with_torch(NAMES, json.dumps([*given, qwen2_vl, no_text]))
    alone = sorted(["lm_head.weight", *(f"model.{name}" for name in TEXT)])
    for (names, config), (_, kind, architecture) in zip(found, CHECKPOINTS.values(), strict=True):
        assert sorted(names.values()) == alone and len(names) == len(alone)
        common = {"eos_token_id": [1, 2], "dtype": "bfloat16"}
        assert config == {"model_type": kind, "hidden_size": 8, "architectures": [architecture], **common}
    assert flat[0] == {f"model.{name}": f"model.{name}" for name in TEXT} and nothing == "NoTextModel"


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_layers_are_cut_across_shards_and_from_the_index(convert, source, layers):
    out, _ = convert(source, "stored", layers)
    original, found = read(source), read(out)
    kept = {n for n in original if ".layers." not in n or int(n.split(".")[2]) < layers}
    assert found == {name: original[name] for name in kept}
    assert weight_map(out) == {name: original[name][3] for name in kept}
    assert {path.name for path in out.glob("*.safetensors")} == set(weight_map(out).values())
    config = json.loads((out / "config.json").read_text())
    cut = {key: CONFIG[key][:layers] for key in ("layer_types", "no_rope_layers")}
    assert config == CONFIG | cut | {"num_hidden_layers": layers}


def test_a_text_config_is_cut_and_cast_and_other_parts_are_not(convert, tmp_path):
    other = {"num_hidden_layers": 4, "layer_types": ["a"] * 4}
    config = {"text_config": CONFIG, "vision_config": other, "eos_token_id": [1, 2, 3, 4], "dtype": "float32"}
    out, _ = convert(write(tmp_path / "source", shards(), config), "bf16", 2)
    cut = {"layer_types": CONFIG["layer_types"][:2], "no_rope_layers": [1, 1], "num_hidden_layers": 2}
    text = CONFIG | cut | {"torch_dtype": "bfloat16"}
    assert json.loads((out / "config.json").read_text()) == config | {"text_config": text, "dtype": "bfloat16"}


def test_bf16_to_fp16_too_may_overflow(convert, tmp_path):
    values = np.array([1, 1e5, -1e30, 2], np.float32)
    halved, _ = convert(write(tmp_path / "source", [{"a": values}]), "bf16")
    _, result = convert(halved, "fp16", out="again")
    (finding,) = result["findings"]
    assert finding["evidence"].startswith("2 values are beyond fp16's range")


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> dict[int, Path]:
    """Four shards of 64 MB, by how many tensors there are in each."""
    folder = tmp_path_factory.mktemp("big")
    return {
        count: write(folder / str(count), [{f"{n}.{m}": part for m, part in enumerate(parts)} for n in range(4)])
        for count in (1, 4)
        for parts in [np.split(weights(0, 16 * MB), count)]
    }


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("dtype", ["stored", "bf16", "fp16"])
def test_memory_grows_by_less_than_two_shards(with_torch, source, big, dtype, count):
    assert with_torch(GROWTH, source, big[count], dtype) < 2 * 64 * MB
