"""The checkpoints of checkpoints.json: whether a folder is the one that was measured, and making a cast or cut one.

python checkpoint.py check          compares every folder with its hashes
python checkpoint.py make FOLDER    writes FOLDER, a cast or cut one, from its source (needs torch)

`check` needs nothing but Python; it ends with 1 where a folder is another one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import given
from hashes import sha256, whole_hash

LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
OTHER_TOWER = re.compile(r"vision|visual|audio")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
# Lists that are as long as there are layers by chance only.
NOT_PER_LAYER = re.compile(r"token|architectures|_ids?$|languages")
CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CHUNK = 2**22


def wrong_in(folder: Path, about: dict) -> list[str]:
    """What is not as it was measured."""
    if not folder.is_dir():
        how = f"python checkpoint.py make {about['folder']}" if about.get("made") else about["origin"]
        return [f"it is not there; {how}"]
    if about["files"] is None:
        same = about["hash"] is None or whole_hash(folder) == about["hash"]
        return [] if same else ["the hash over all of its files is another"]
    wrong = []
    for entry in about["files"]:
        file = folder / entry["file"]
        if file.suffix == ".py":  # code of a checkpoint is never run, hence not needed
            continue
        if not file.is_file():
            wrong.append(f"{entry['file']} is missing")
        elif sha256(file) != entry["sha256"]:
            wrong.append(f"{entry['file']} is another")
    return wrong


def check() -> int:
    wrong = 0
    for about in given.read("checkpoints.json")["checkpoints"]:
        found = wrong_in(given.HERE / about["folder"], about)
        wrong += bool(found)
        said = "; ".join(found) or ("as hashed" if about["files"] or about["hash"] else "no hashes are known")
        print(f"{about['folder']}: {said}")
    return 1 if wrong else 0


def make(name: str) -> int:
    """Cast and cut a checkpoint: the same bytes as were measured."""
    about = next(one for one in given.read("checkpoints.json")["checkpoints"] if one["folder"] == name)
    if not about.get("made"):
        raise SystemExit(f"{name} is no cast or cut checkpoint: {about['origin']}")
    source, target = given.HERE / about["made"]["source"], given.HERE / name
    dtype, layers = NAMES.get(about["made"]["dtype"]), about["made"]["layers"]
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for path in sorted(source.iterdir()):
        if path.name == "manifest.json" or path.name.startswith("."):
            continue
        if path.suffix == ".safetensors":
            weight_map |= dict.fromkeys(convert(path, target / path.name, dtype, layers), path.name)
        elif path.name == "config.json":
            config = cut_config(json.loads(path.read_text(encoding="utf-8")), dtype, layers)
            write_json(target / path.name, config)
        elif path.is_file() and not path.name.endswith((".py", ".index.json", ".bin", ".pt", ".pth")):
            shutil.copyfile(path, target / path.name)
    if any(source.glob("*.safetensors.index.json")):
        total = sum((target / shard).stat().st_size for shard in set(weight_map.values()))
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(target / "model.safetensors.index.json", index)
    print(f"{name}: made of {about['made']['source']}")
    return 0


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def convert(path: Path, target: Path, dtype: str | None, layers: int | None) -> list[str]:
    """One safetensors file: a header's length, the header, and the bytes. Returns the tensors that were kept."""
    import torch

    kinds = {code: getattr(torch, name) for name, code in CODES.items()} | {"F64": torch.float64}
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        source = json.loads(file.read(length))
        kept = [name for name in source if name != "__metadata__" and keeps(name, layers)]
        if not kept:
            return []
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name in kept:
            entry = source[name]
            begin, stop = entry["data_offsets"]
            code = CODES[dtype] if dtype and entry["dtype"] in kinds else entry["dtype"]
            size = stop - begin
            if code != entry["dtype"]:
                size = size // kinds[entry["dtype"]].itemsize * kinds[code].itemsize
            header[name] = {"dtype": code, "shape": entry["shape"], "data_offsets": [end, end + size]}
            end += size
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        with target.open("wb") as to:
            to.write(len(encoded).to_bytes(8, "little") + encoded)
            for name in kept:
                begin, stop = source[name]["data_offsets"]
                kind = kinds[source[name]["dtype"]] if header[name]["dtype"] != source[name]["dtype"] else None
                file.seek(8 + length + begin)
                left = stop - begin
                while left:
                    part = bytearray(file.read(min(left, CHUNK)))
                    left -= len(part)
                    if kind is not None:
                        numbers = torch.frombuffer(part, dtype=torch.uint8).view(kind).to(getattr(torch, dtype))
                        part = memoryview(numbers.view(torch.uint8).numpy())
                    to.write(part)
    return kept


def keeps(name: str, layers: int | None) -> bool:
    match = LAYER.search(name)
    return layers is None or not match or OTHER_TOWER.search(name) is not None or int(match.group(3)) < layers


def cut_config(config: dict, dtype: str | None, layers: int | None) -> dict:
    """`config` with its dtype and layer count set, and lists with an entry a layer cut."""
    config = {key: cut_config(value, dtype, layers) if key == "text_config" else value for key, value in config.items()}
    if dtype:
        for key in [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]:
            config[key] = dtype
    count = next((config[key] for key in LAYER_COUNTS if key in config), None)
    if layers is not None and count is not None:
        config |= {key: layers for key in LAYER_COUNTS if key in config}
        for key, value in config.items():
            if isinstance(value, list) and len(value) == count and not NOT_PER_LAYER.search(key):
                config[key] = value[:layers]
    return config


if __name__ == "__main__":
    sys.exit(make(sys.argv[2]) if sys.argv[1] == "make" else check())
