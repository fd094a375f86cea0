"""What a checkpoint folder is, read without torch: its bytes' hash, dtypes, layers, model type."""

from __future__ import annotations

import contextlib
import json
import struct
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from runner import hashing
from runner.failures import CheckpointFailed, ConfigFailed

DTYPE_NAMES = {"F64": "fp64", "F32": "fp32", "BF16": "bf16", "F16": "fp16"}
DOCUMENTS = {".md", ".pdf", ".png", ".jpg", ".jpeg", ".gif"}
# Of a checkpoint of several models, what the others are told in; null where it has none.
TOWERS = ("vision_config", "audio_config")
# Models that builders take by the whole checkpoint's config alone, and find the text model in it themselves.
KEPT_WHOLE = ("gemma4", "gemma4_unified")
# The store's own file beside a checkpoint that was downloaded or made.
MANIFEST = "manifest.json"
FOLDER_HINT = (
    "model.path must name a folder with config.json, *.safetensors and the tokenizer's files, or a .gguf file;"
    " model=hub model.hub=OWNER/NAME downloads one"
)
CONFIG_DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk.

    hash: of every file's path and bytes; text_hash: of all but the weights
    (what tokenising depends on). stamp: sizes, times and inodes, to notice a
    change while it is used. dtypes: tensors by floating dtype in the files;
    config_dtype: what config.json says, or None. bytes: of the weights. mixed:
    it holds a text model among others.
    """

    path: Path
    hash: str
    text_hash: str
    stamp: tuple
    model_type: str
    layers: int | None
    dtypes: dict[str, int]
    config_dtype: str | None
    mixed: bool = False
    bytes: int = 0

    def same_dtype(self, dtype: str) -> bool:
        """Whether `dtype` is what files and config hold already."""
        return dtype == "stored" or (set(self.dtypes) == {dtype} and self.config_dtype == dtype)


def content_files(path: Path) -> list[Path]:
    """The files of a checkpoint that can matter, subfolders included: no documents, no hidden files."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and file.suffix.lower() not in DOCUMENTS
        and file != path / MANIFEST
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


def stamp_of(path: Path) -> tuple:
    """What changes when a file of a checkpoint does."""
    return tuple((str(file.relative_to(path)), *file_stamp(file)) for file in content_files(path))


def file_stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


class Inspector:
    """Reads checkpoint folders, each once; file hashes are kept in the store by size, times and inode."""

    def __init__(self, store_root: Path):
        self.cache_path = store_root / "file_hashes.json"
        self.seen: dict[Path, Checkpoint] = {}
        self.hashes = self.kept()

    def kept(self) -> dict[str, list]:
        """The hashes that were kept; nothing where the file is absent or odd."""
        try:
            found = json.loads(self.cache_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {key: entry for key, entry in found.items() if isinstance(entry, list) and len(entry) == 5}

    def inspect(self, path: Path) -> Checkpoint:
        """Errors: `CheckpointFailed` saying what is missing and what the folder must hold."""
        try:
            path = path.resolve()
            if path not in self.seen:
                self.seen[path] = self.read(path)
        except (OSError, RuntimeError) as error:
            raise CheckpointFailed(f"model folder {path}: {error}", hint=FOLDER_HINT, transient=True) from error
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise CheckpointFailed(f"{path}/config.json is not as transformers writes it: {error}") from error
        return self.seen[path]

    def read(self, path: Path) -> Checkpoint:
        config = read_config(path)
        inner = config.get("text_config") or config
        others = [config[key] for key in TOWERS if key in config]
        named = inner.get("dtype") or inner.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
        layers = inner.get("num_hidden_layers")
        if not isinstance(layers, int | None) or not isinstance(named, str | None):
            raise ValueError("num_hidden_layers must be a number and torch_dtype a name")
        weights = sorted(path.glob("*.safetensors"))
        if not weights:
            raise CheckpointFailed(
                f"no *.safetensors file in {path}",
                hint="save the checkpoint with save_pretrained(..., safe_serialization=True);"
                " action=constants needs no weights",
            )
        check_index(path)
        dtypes: Counter[str] = Counter()
        for file in weights:
            dtypes.update(tensor_dtypes(file))
        stamp = stamp_of(path)
        entries = [(str(file.relative_to(path)), self.file_hash(file)) for file in content_files(path)]
        text = [entry for entry in entries if not entry[0].endswith(".safetensors")]
        self.save()
        return Checkpoint(
            path=path,
            hash=hashing.of_value(entries),
            text_hash=hashing.of_value(text),
            stamp=stamp,
            model_type=str(inner.get("model_type") or config.get("model_type", "")),
            layers=layers,
            dtypes=dict(dtypes),
            config_dtype=CONFIG_DTYPES.get(named, named),
            mixed=inner is not config
            and (not others or any(o is not None for o in others))
            and config.get("model_type") not in KEPT_WHOLE,
            bytes=sum(file.stat().st_size for file in weights),
        )

    def file_hash(self, path: Path) -> str:
        stamp = file_stamp(path)
        known = self.hashes.get(str(path))
        if known and known[:4] == stamp:
            return known[4]
        digest = hashing.of_file(path)
        self.hashes[str(path)] = [*stamp, digest]
        return digest

    def save(self) -> None:
        """Keep the hashes for the next run, with what another one has kept meanwhile. Never a failure."""
        with contextlib.suppress(OSError):
            self.cache_path.parent.mkdir(parents=True, exist_ok=True)
            part = self.cache_path.with_name(f"file_hashes.{uuid.uuid4().hex}.part")
            part.write_text(json.dumps(self.kept() | self.hashes), encoding="utf-8")
            part.replace(self.cache_path)


def check_index(path: Path) -> None:
    """That every file which an index names is there. Errors: `CheckpointFailed`."""
    for index in path.glob("*.safetensors.index.json"):
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        absent = sorted(name for name in named if not (path / name).is_file())
        if absent:
            raise CheckpointFailed(f"{path} lacks {', '.join(absent)}, which {index.name} names", hint="fetch it again")


def read_config(path: Path) -> dict:
    """The folder's config.json. Errors: `CheckpointFailed`."""
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        raise CheckpointFailed(f"model folder {path} {what}", hint=FOLDER_HINT)
    file = path / "config.json"
    if not file.exists():
        raise CheckpointFailed(f"no config.json in {path}", hint=FOLDER_HINT)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointFailed(f"{file} is not JSON: {error}", hint=FOLDER_HINT) from error
    if not isinstance(config, dict):
        raise CheckpointFailed(f"{file} holds no object", hint=FOLDER_HINT)
    return config


def tensor_dtypes(path: Path) -> Counter[str]:
    """Floating dtypes of a safetensors file, by tensor count, from its header alone."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        kinds = {e["dtype"] for k, e in header.items() if k != "__metadata__"}
        if not all(isinstance(kind, str) for kind in kinds):
            raise ValueError("its header names a dtype that is none")
        end = max((entry["data_offsets"][1] for k, entry in header.items() if k != "__metadata__"), default=0)
        if 8 + length + end != path.stat().st_size:
            raise ValueError(f"it should have {8 + length + end} bytes and has {path.stat().st_size}")
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
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
    if count < checkpoint.layers:
        refuse_cut(asked, count, checkpoint)
    return None if count == checkpoint.layers else count


def refuse_cut(asked: str, count: int, checkpoint: Checkpoint) -> None:
    """Gemma 4 makes its last layer a full one whatever its config says, with weights of another shape.

    Errors: `ConfigFailed` with the counts that leave a full layer last.
    """
    fields = read_config(checkpoint.path)
    fields = fields.get("text_config") or fields
    kinds = fields.get("layer_types")
    if not checkpoint.model_type.startswith("gemma4") or not kinds or kinds[count - 1] == "full_attention":
        return
    fitting = [str(n) for n, kind in enumerate(kinds, 1) if kind == "full_attention"]
    raise ConfigFailed(
        f"layers={asked}: the last layer of a {checkpoint.model_type} is always a full one, and layer {count} slides",
        hint=f"allowed: all, {', '.join(fitting)}",
    )
