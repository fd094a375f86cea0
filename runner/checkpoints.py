"""What a checkpoint folder is, read without torch: its bytes' hash, dtypes, layers, model type."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from runner import hashing
from runner.failures import CheckpointFailed, ConfigFailed

DTYPE_NAMES = {"F64": "fp64", "F32": "fp32", "BF16": "bf16", "F16": "fp16"}
CONFIG_DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    hash: of every file's path and bytes; text_hash: of all but the weights
    (what tokenising depends on). dtypes: tensors by floating dtype in the
    files; config_dtype: what config.json says, or None.
    """

    path: Path
    hash: str
    text_hash: str
    model_type: str
    layers: int | None
    dtypes: dict[str, int]
    config_dtype: str | None

    def same_dtype(self, dtype: str) -> bool:
        """Whether `dtype` is what files and config hold already."""
        return dtype == "stored" or (set(self.dtypes) == {dtype} and self.config_dtype == dtype)


class Inspector:
    """Reads checkpoint folders, each once; file hashes are kept in the store by size and time."""

    def __init__(self, store_root: Path):
        self.cache_path = store_root / "file_hashes.json"
        self.seen: dict[Path, Checkpoint] = {}
        try:
            self.hashes: dict[str, list] = json.loads(self.cache_path.read_text())
        except (OSError, ValueError):
            self.hashes = {}

    def inspect(self, path: Path) -> Checkpoint:
        """Errors: `CheckpointFailed` saying what is missing and what the folder must hold."""
        path = path.resolve()
        if path not in self.seen:
            self.seen[path] = self.read(path)
        return self.seen[path]

    def read(self, path: Path) -> Checkpoint:
        config = read_config(path)
        weights = sorted(path.glob("*.safetensors"))
        if not weights:
            raise CheckpointFailed(
                f"no *.safetensors file in {path}",
                hint="save the checkpoint with save_pretrained(..., safe_serialization=True)",
            )
        dtypes: Counter[str] = Counter()
        for file in weights:
            dtypes.update(tensor_dtypes(file))
        entries = [(p.name, self.file_hash(p)) for p in sorted(path.iterdir()) if p.is_file()]
        text = [entry for entry in entries if not entry[0].endswith(".safetensors")]
        self.save()
        inner = config.get("text_config") or config
        named = inner.get("dtype") or inner.get("torch_dtype") or config.get("torch_dtype")
        return Checkpoint(
            path=path,
            hash=hashing.of_value(entries),
            text_hash=hashing.of_value(text),
            model_type=config.get("model_type", ""),
            layers=inner.get("num_hidden_layers"),
            dtypes=dict(dtypes),
            config_dtype=CONFIG_DTYPES.get(named, named),
        )

    def file_hash(self, path: Path) -> str:
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        known = self.hashes.get(str(path))
        if known and known[:2] == stamp:
            return known[2]
        digest = hashing.of_file(path)
        self.hashes[str(path)] = [*stamp, digest]
        return digest

    def save(self) -> None:
        part = self.cache_path.with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(self.hashes))
        part.replace(self.cache_path)


def read_config(path: Path) -> dict:
    """The folder's config.json. Errors: `CheckpointFailed`."""
    hint = "model.path must name a folder with config.json, *.safetensors and the tokenizer's files"
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise CheckpointFailed(f"model folder {path} {what}", hint=hint)
    file = path / "config.json"
    if not file.exists():
        raise CheckpointFailed(f"no config.json in {path}", hint=hint)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointFailed(f"{file} is not JSON: {error}", hint=hint) from error


def tensor_dtypes(path: Path) -> Counter[str]:
    """Floating dtypes of a safetensors file, by tensor count, from its header alone."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for k, entry in header.items() if k != "__metadata__"), default=0)
        if 8 + length + end != path.stat().st_size:
            raise ValueError(f"it should have {8 + length + end} bytes and has {path.stat().st_size}")
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise CheckpointFailed(
            f"{path} is not a whole safetensors file: {error}", hint="fetch the file again"
        ) from error
    return Counter(
        DTYPE_NAMES[entry["dtype"]]
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] in DTYPE_NAMES
    )


def keep_layers(asked: str, checkpoint: Checkpoint) -> int | None:
    """The layer count to cut to, or None when that is all of them."""
    if asked == "all":
        return None
    count = int(asked)
    if checkpoint.layers is None:
        raise ConfigFailed(f"layers={asked}: {checkpoint.path}/config.json names no num_hidden_layers")
    if count > checkpoint.layers:
        raise ConfigFailed(
            f"layers={asked}: the checkpoint has {checkpoint.layers} layers",
            hint=f"allowed: all, or 1 to {checkpoint.layers}",
        )
    return None if count == checkpoint.layers else count
