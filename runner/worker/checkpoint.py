"""Stage checkpoint: the same weights in another dtype, or fewer layers of them.

Tensor by tensor, straight from file to file, so that peak memory stays at the
source's mapped pages and one tensor. Both sides of the comparison read the
folder that comes out, so they agree about what was cut.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter

import torch
from safetensors import safe_open

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# safetensors' names of dtypes, by torch's.
CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
for _name, _code in (("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"), ("uint16", "U16"), ("uint32", "U32")):
    if hasattr(torch, _name):
        CODES[getattr(torch, _name)] = _code
TYPES = {code: dtype for dtype, code in CODES.items()}
CHUNK = 2**20  # entries cast at a time
LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
# Layers of another tower are counted by its own config.
OTHER_TOWER = re.compile(r"vision|visual|audio")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
# Lists that are as long as there are layers by chance only.
NOT_PER_LAYER = re.compile(r"token|architectures|_ids?$|languages")


def run(arguments: dict, out: str) -> dict:
    """Write the checkpoint at `arguments["source"]` to `out`.

    arguments: source (folder), dtype ("stored" or a key of DTYPES), layers
    (an int, or None for all). Returns the dtypes written, by tensor count, and
    what the cast lost in "findings".
    """
    source, dtype, layers = arguments["source"], arguments["dtype"], arguments["layers"]
    names = sorted(os.listdir(source))
    counts: Counter[str] = Counter()
    overflowed: Counter[str] = Counter()
    weight_map: dict[str, str] = {}
    for name in names:
        path = os.path.join(source, name)
        if name.endswith(".safetensors"):
            written = convert(path, os.path.join(out, name), DTYPES.get(dtype), layers, counts, overflowed)
            weight_map.update(dict.fromkeys(written, name))
        elif name == "config.json":
            write_json(os.path.join(out, name), cut_config(read_json(path), dtype, layers))
        elif os.path.isdir(path):
            if not name.startswith("."):
                shutil.copytree(path, os.path.join(out, name))
        elif not name.endswith((".index.json", ".bin", ".pt", ".pth")):
            shutil.copyfile(path, os.path.join(out, name))
    index = next((n for n in names if n.endswith(".safetensors.index.json")), None)
    if index:
        shards = {os.path.join(out, name) for name in weight_map.values()}
        total = sum(os.path.getsize(path) for path in shards)
        write_json(os.path.join(out, index), {"metadata": {"total_size": total}, "weight_map": weight_map})
    return {"dtypes": dict(counts), "findings": overflow_findings(overflowed, dtype)}


def overflow_findings(overflowed: Counter[str], dtype: str) -> list[dict]:
    """A warning where values beyond the new dtype's range became infinite."""
    if not overflowed:
        return []
    first = ", ".join(f"{name} ({count})" for name, count in overflowed.most_common(3))
    evidence = f"{sum(overflowed.values())} values are beyond {dtype}'s range and became infinite: {first}"
    return [{"prompt": None, "check": "cast_overflow", "evidence": evidence}]


def convert(
    path: str, target: str, dtype: torch.dtype | None, layers: int | None, counts: Counter, overflowed: Counter
) -> list[str]:
    """Write one safetensors file, floats cast, cut layers left out; nothing where no tensor is left.

    The header needs shapes and dtypes only, so it is written first and each
    tensor's bytes are copied as they are read. Returns the tensors written.
    """
    with safe_open(path, framework="pt") as file:
        kept = [name for name in file.keys() if keeps(name, layers)]  # noqa: SIM118 (safe_open is no dict)
        if not kept:
            return []
        header: dict = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in kept:
            part = file.get_slice(name)
            kind = TYPES[part.get_dtype()]
            kind = dtype if dtype is not None and kind.is_floating_point else kind
            size = torch.Size(part.get_shape()).numel() * kind.itemsize
            header[name] = {"dtype": CODES[kind], "shape": part.get_shape(), "data_offsets": [end, end + size]}
            counts[str(kind).removeprefix("torch.")] += 1
            end += size
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)  # the data begin at a multiple of eight
        with open(target, "wb") as to:
            to.write(len(encoded).to_bytes(8, "little") + encoded)
            for name in kept:
                write_tensor(to, name, file.get_tensor(name), dtype, overflowed)
    return kept


def write_tensor(to, name: str, tensor: torch.Tensor, dtype: torch.dtype | None, overflowed: Counter) -> None:
    """A tensor's bytes, floats cast to `dtype` a part at a time; counts what became infinite."""
    casts = dtype is not None and tensor.is_floating_point()
    narrows = casts and torch.finfo(dtype).max < torch.finfo(tensor.dtype).max
    for part in tensor.reshape(-1).split(CHUNK):
        written = part.to(dtype) if casts else part
        lost = int(written.isinf().sum()) - int(part.isinf().sum()) if narrows else 0
        overflowed.update({name: lost} if lost else {})
        to.write(memoryview(written.view(torch.uint8).numpy()))


def keeps(name: str, layers: int | None) -> bool:
    """Whether a tensor stays when all but the first `layers` are cut."""
    match = LAYER.search(name)
    return layers is None or not match or OTHER_TOWER.search(name) is not None or int(match.group(3)) < layers


def cut_config(config: dict, dtype: str, layers: int | None) -> dict:
    """`config` with its dtype and layer count set, lists with an entry a layer cut, nested text configs included."""
    config = {key: cut_config(value, dtype, layers) if key == "text_config" else value for key, value in config.items()}
    if dtype in DTYPES:
        named = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
        for key in named:
            config[key] = str(DTYPES[dtype]).removeprefix("torch.")
    count = next((config[key] for key in LAYER_COUNTS if key in config), None)
    if layers is not None and count is not None:
        config |= {key: layers for key in LAYER_COUNTS if key in config}
        for key, value in config.items():
            if isinstance(value, list) and len(value) == count and not NOT_PER_LAYER.search(key):
                config[key] = value[:layers]
    return config


def read_json(path: str) -> dict:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path: str, content: dict) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
