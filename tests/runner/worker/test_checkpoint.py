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
source, out, dtype, layers = sys.argv[1:]
os.mkdir(out)
print(json.dumps(checkpoint.run({"source": source, "dtype": dtype, "layers": json.loads(layers)}, out)))
"""
GROWTH = """
import os, checkpoint
small, source, dtype = sys.argv[1:]
def run(source, out):
    os.mkdir(out)
    checkpoint.run({"source": source, "dtype": dtype, "layers": None}, out)
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
    def convert(source: Path, dtype: str, layers: int | None = None, out: str = "out") -> tuple[Path, dict]:
        return tmp_path / out, with_torch(SCRIPT, source, out, dtype, json.dumps(layers))

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


def test_floats_of_eight_bits_are_cast(convert, tmp_path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 3]}}).encode()
    source = write(tmp_path / "source", [])
    data = bytes([0x38, 0xC0, 0x7E])  # 1, -2, 448
    (source / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    out, result = convert(source, "fp16")
    assert result == {"dtypes": {"float16": 1}, "findings": []}
    assert np.frombuffer(read(out)["a"][2], np.float16).tolist() == [1, -2, 448]


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
