"""Stage checkpoint: the same weights in another dtype, fewer layers of them, or the text model among several.

Straight from file to file, a part of a tensor at a time, so that memory does
not grow with the checkpoint. Both sides of the comparison read the folder that
comes out, so they agree about what was cut.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter

import torch
from task import StageError

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
WIDTHS = {code: dtype.itemsize for code, dtype in TYPES.items()}
CHUNK = 2**22  # bytes read at a time; a multiple of every dtype's width
LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")
# Layers of another tower are counted by its own config.
OTHER_TOWER = re.compile(r"vision|visual|audio")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
# Weights beside a text model's own that are no tower's: what joins the two.
JOINTS = re.compile(r"multi_modal_projector|embed_vision|embed_audio|connector|aligner")
# What the text model is called among several.
TEXT_MODEL = re.compile(r"(^|\.)(language_model|text_model)\.")
# Lists that are as long as there are layers by chance only.
NOT_PER_LAYER = re.compile(r"token|architectures|_ids?$|languages")


def run(arguments: dict, out: str) -> dict:
    """Write the checkpoint at `arguments["source"]` to `out`.

    arguments: source (folder), dtype ("stored" or a key of DTYPES), layers
    (an int, or None for all), text_only (of a checkpoint of several models).
    Returns the dtypes written, by tensor count, and what the cast lost in
    "findings". Errors: `StageError` where quantised weights are to be cast, or
    a text model's to be taken alone: their scales are tensors of their own.
    """
    source, dtype, layers = arguments["source"], arguments["dtype"], arguments["layers"]
    names = sorted(name for name in os.listdir(source) if name != "manifest.json" and not name.endswith(".py"))
    own = {os.path.basename(path) for path in files_of(source)}  # others are of nobody's, or another copy of it
    names = [name for name in names if name in own or not name.endswith(".safetensors")]
    if "config.json" in names and (dtype in DTYPES or arguments["text_only"]):
        refuse_quantised(read_json(os.path.join(source, "config.json")))
    renamed = text_names(source, names) if arguments["text_only"] else None
    counts: Counter[str] = Counter()
    overflowed: Counter[str] = Counter()
    weight_map: dict[str, str] = {}
    for name in names:
        path = os.path.join(source, name)
        if name.endswith(".safetensors"):
            target = os.path.join(out, name)
            written = convert(path, target, DTYPES.get(dtype), layers, counts, overflowed, renamed)
            weight_map.update(dict.fromkeys(written, name))
        elif name == "config.json":
            config = text_config(read_json(path)) if renamed is not None else read_json(path)
            write_json(os.path.join(out, name), cut_config(config, dtype, layers))
        elif os.path.isdir(path):
            if not name.startswith("."):
                shutil.copytree(path, os.path.join(out, name), ignore=shutil.ignore_patterns("*.py"))
        elif not name.endswith((".index.json", ".bin", ".pt", ".pth")):
            shutil.copyfile(path, os.path.join(out, name))
    index = next((n for n in names if n.endswith(".safetensors.index.json")), None)
    if index:
        shards = {os.path.join(out, name) for name in weight_map.values()}
        total = sum(os.path.getsize(path) for path in shards)
        write_json(os.path.join(out, index), {"metadata": {"total_size": total}, "weight_map": weight_map})
    findings = overflow_findings(overflowed, dtype)
    if renamed is not None:
        whole = (read_json(os.path.join(source, "config.json")).get("architectures") or ["several models"])[0]
        findings.append({"prompt": None, "check": "text_only", "evidence": f"the text model of {whole} alone"})
    return {"dtypes": dict(counts), "findings": findings}


def files_of(folder: str) -> list[str]:
    """The paths of a checkpoint's files of weights: of several, model.safetensors or those that an index names, as
    transformers takes them."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    index = os.path.join(folder, "model.safetensors.index.json")
    if "model.safetensors" in names:
        names = ["model.safetensors"]
    elif os.path.exists(index):
        names = sorted(set(read_json(index)["weight_map"].values()))
    return [os.path.join(folder, name) for name in names]


def overflow_findings(overflowed: Counter[str], dtype: str) -> list[dict]:
    """A warning where values beyond the new dtype's range became infinite."""
    if not overflowed:
        return []
    first = ", ".join(f"{name} ({count})" for name, count in overflowed.most_common(3))
    evidence = f"{sum(overflowed.values())} values are beyond {dtype}'s range and became infinite: {first}"
    return [{"prompt": None, "check": "cast_overflow", "evidence": evidence}]


def refuse_quantised(config: dict) -> None:
    """Errors: `StageError` where a config, or the text model's within it, says that weights are quantised."""
    for part in (config, config.get("text_config") or {}):
        if how := part.get("quantization_config"):
            raise quantised(f"its config says so ({how.get('quant_method', 'quantization_config')})")


def quantised(why: str) -> StageError:
    return StageError(
        f"the checkpoint is quantised, and cannot be cast, nor its text model taken alone: {why}",
        kind="Quantised",
        hint="dequantise it first, or compare it as it is (dtype=stored)",
    )


def text_names(source: str, names: list[str]) -> dict[str, str]:
    """The tensors of a checkpoint's text model, with the names that they have in a checkpoint of it alone.

    In those that transformers saved until 4.51 it is ``language_model.model.…``, since then ``model.language_model.…``;
    some have ``text_model``.
    Errors: `StageError` where there is none.
    """
    keys: list[str] = []
    for name in names:
        if name.endswith(".safetensors"):
            with open(os.path.join(source, name), "rb") as file:
                keys += json.loads(file.read(int.from_bytes(file.read(8), "little")))
    keys = [key for key in keys if key != "__metadata__" and not OTHER_TOWER.search(key) and not JOINTS.search(key)]
    named = any(TEXT_MODEL.search(key) for key in keys)
    keys = [key for key in keys if not named or TEXT_MODEL.search(key) or key.startswith("lm_head.")]
    if not any(LAYER.search(key) for key in keys):
        raise StageError("no layers of a text model among the weights", kind="NoTextModel")
    return {key: TEXT_MODEL.sub(r"\1", key, count=1) for key in keys}


def text_config(config: dict) -> dict:
    """The config.json of a text model alone, from that of a checkpoint of several. Errors: `StageError`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    text = dict(config["text_config"])
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text.get("model_type"))
    if architecture is None:
        raise StageError(
            f"transformers knows no causal language model of the type {text.get('model_type')!r} (text_config)",
            kind="NoTextModel",
            hint="save its text model as a checkpoint of its own, or take a transformers that knows it",
        )
    shared = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype", "torch_dtype")
    common = {key: config[key] for key in shared if key in config and key not in text}
    return {**common, **text, "architectures": [architecture]}


def convert(
    path: str,
    target: str,
    dtype: torch.dtype | None,
    layers: int | None,
    counts: Counter,
    overflowed: Counter,
    renamed: dict[str, str] | None = None,
) -> list[str]:
    """Write one safetensors file, floats cast, cut layers left out; nothing where no tensor is left.

    renamed: the tensors to take, with their new names; None for all as they are.

    The format is a header's length, the header with each tensor's dtype, shape
    and place, and the bytes; they are copied a part at a time, so that no
    tensor, let alone a shard, is ever whole in memory. Returns the tensors
    written.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        source = json.loads(file.read(length))
        kept = [name for name in source if name != "__metadata__" and keeps(name, layers)]
        new = {name: renamed[name] if renamed else name for name in kept if renamed is None or name in renamed}
        kept = list(new)
        if not kept:
            return []
        header: dict = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in kept:
            entry = source[name]
            if dtype is not None and entry["dtype"].startswith("F8"):
                raise quantised(f"{name} has eight bits")
            code = new_code(entry["dtype"], dtype)
            begin, stop = entry["data_offsets"]
            size = (stop - begin) // WIDTHS.get(entry["dtype"], 1) * WIDTHS.get(code, 1)
            header[new[name]] = {"dtype": code, "shape": entry["shape"], "data_offsets": [end, end + size]}
            counts[str(TYPES.get(code, code)).removeprefix("torch.")] += 1
            end += size
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)  # the data begin at a multiple of eight
        with open(target, "wb") as to:
            to.write(len(encoded).to_bytes(8, "little") + encoded)
            for name in kept:
                begin, stop = source[name]["data_offsets"]
                file.seek(8 + length + begin)
                casts = source[name]["dtype"] != header[new[name]]["dtype"]
                copy(file, to, stop - begin, TYPES[source[name]["dtype"]] if casts else None, dtype, name, overflowed)
    return list(new.values())


def new_code(code: str, dtype: torch.dtype | None) -> str:
    """safetensors' name of the dtype that a tensor gets: another for floats only."""
    kind = TYPES.get(code)
    return CODES[dtype] if dtype is not None and kind is not None and kind.is_floating_point else code


def copy(file, to, size: int, kind: torch.dtype | None, dtype, name: str, overflowed: Counter) -> None:
    """Copy `size` bytes, cast from `kind` to `dtype` (None: as they are); counts what became infinite."""
    narrows = kind is not None and torch.finfo(dtype).max < torch.finfo(kind).max
    while size:
        part = bytearray(file.read(min(size, CHUNK)))
        if not part:
            raise StageError(f"{file.name} ends within {name}", kind="Truncated", hint="fetch the file again")
        size -= len(part)
        if kind is not None:
            numbers = torch.frombuffer(part, dtype=torch.uint8).view(kind)
            cast = numbers.to(dtype)
            lost = int(cast.isinf().sum()) - int(numbers.isinf().sum()) if narrows else 0
            overflowed.update({name: lost} if lost else {})
            part = memoryview(cast.view(torch.uint8).numpy())
        to.write(part)


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
