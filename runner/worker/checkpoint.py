"""Stage checkpoint: the same weights in another dtype, or fewer layers of them.

Tensor by tensor, a source file at a time, so that peak memory stays below two
shards. Both sides of the comparison read the folder that comes out, so they
agree about what was cut.
"""

from __future__ import annotations

import json
import os
import re
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
# Config entries with one value a layer, cut with the layers.
PER_LAYER = ("layer_types", "no_rope_layers")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")


def run(arguments: dict, out: str) -> dict:
    """Write the checkpoint at `arguments["source"]` to `out`.

    arguments: source (folder), dtype ("stored" or a key of DTYPES), layers
    (an int, or None for all). Returns the dtypes written, by tensor count.
    """
    source, dtype, layers = arguments["source"], arguments["dtype"], arguments["layers"]
    names = sorted(os.listdir(source))
    counts: dict[str, int] = {}
    weight_map = {}
    for name in names:
        path = os.path.join(source, name)
        if name.endswith(".safetensors"):
            tensors = dict(convert(path, DTYPES.get(dtype), layers, counts))
            weight_map.update(dict.fromkeys(tensors, name))
            if tensors:
                save_file(tensors, os.path.join(out, name), metadata={"format": "pt"})
            del tensors
        elif name == "config.json":
            write_json(os.path.join(out, name), cut_config(read_json(path), dtype, layers))
        elif os.path.isdir(path):
            if not name.startswith("."):
                shutil.copytree(path, os.path.join(out, name))
        elif not name.endswith((".index.json", ".bin", ".pt", ".pth")):
            shutil.copyfile(path, os.path.join(out, name))
    index = next((n for n in names if n.endswith(".safetensors.index.json")), None)
    if index:
        write_json(os.path.join(out, index), {"metadata": {}, "weight_map": weight_map})
    return {"dtypes": counts}


def convert(path: str, dtype: torch.dtype | None, layers: int | None, counts: dict[str, int]):
    """Yield (name, tensor) of one safetensors file, floats cast, cut layers left out."""
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (safe_open is no dict)
            match = LAYER.search(name)
            if layers is not None and match and int(match.group(3)) >= layers:
                continue
            tensor = file.get_tensor(name)
            if dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(dtype)
            key = str(tensor.dtype).removeprefix("torch.")
            counts[key] = counts.get(key, 0) + 1
            yield name, tensor.contiguous()


def cut_config(config: dict, dtype: str, layers: int | None) -> dict:
    """`config` with its dtype and layer count set, nested text configs included."""
    config = {key: cut_config(value, dtype, layers) if key == "text_config" else value for key, value in config.items()}
    if dtype in DTYPES:
        named = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
        for key in named:
            config[key] = str(DTYPES[dtype]).removeprefix("torch.")
    if layers is not None:
        for key in LAYER_COUNTS:
            if key in config:
                config[key] = layers
        for key in PER_LAYER:
            if isinstance(config.get(key), list):
                config[key] = config[key][:layers]
    return config


def read_json(path: str) -> dict:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path: str, content: dict) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
