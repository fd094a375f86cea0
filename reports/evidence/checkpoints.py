"""The checkpoints of the evidence: enclosed where they are small, else their origin, with hashes of every file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db.engine import PROJECT, state_root
from reports.evidence.folder.hashes import files_of, hash_of, sha256
from reports.hiding import labels

DTYPES = ("fp32", "bf16", "fp16")
# Files of a checkpoint in which a place of its maker's may stand.
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")
MEGABYTE = 1_000_000


@dataclass
class Given:
    """A checkpoint that cells were given.

    folder: within the evidence. origin: where it is from, in words. hash: of a
    whole source, as the database has it. files: {"file", "sha256", "bytes"} of
    each, or None where they are not at hand. made: {"source": folder, "dtype",
    "layers"} of one that is cast or cut. copies: of an enclosed one, by name.
    altered: settings in which a place or name was replaced, with their text.
    """

    folder: str
    origin: str
    hash: str | None = None
    files: list[dict[str, Any]] | None = None
    made: dict[str, Any] | None = None
    copies: dict[str, Path] = field(default_factory=dict)
    altered: dict[str, str] = field(default_factory=dict)
    missing: str = ""  # why its files are not at hand

    @property
    def enclosed(self) -> bool:
        return bool(self.copies)

    def as_data(self) -> dict[str, Any]:
        return {
            "folder": self.folder, "origin": self.origin, "enclosed": self.enclosed, "hash": self.hash,
            "files": self.files, "made": self.made, "altered": sorted(self.altered),
        }  # fmt: skip


def store_of(given: Path | None) -> Path:
    """The artifact store: what is asked for, else PARITYLAB_STORE, else the project's."""
    return Path(given or os.environ.get("PARITYLAB_STORE") or state_root() / "store").expanduser()


def of_cells(
    facts: Sequence[Mapping[str, Any]], store: Path, most_megabytes: float, hide: Callable[..., str]
) -> tuple[list[Given], dict[int, Given]]:
    """Every checkpoint, sources first, and the one that each cell was given."""
    found: dict[str, Given] = {}
    of: dict[int, Given] = {}
    for fact, label in zip(facts, labels(facts), strict=True):
        source = found.setdefault(f"checkpoints/{label}", source_of(fact, label, store))
        given = source
        if is_made(fact):
            given = made_of(fact, source, store)
            given = found.setdefault(given.folder, given)
        of[fact["row"]["cell"]] = given
    for given in sorted(found.values(), key=lambda one: one.made is not None):
        source = found[given.made["source"]] if given.made else None
        if source and source.enclosed and not given.made.get("by_hand"):
            given.copies = {}  # the folder's script makes it
        else:
            enclose(given, most_megabytes, hide)
    return sorted(found.values(), key=lambda one: one.made is not None), of


def is_made(fact: Mapping[str, Any]) -> bool:
    row = fact["row"]
    cast = row["files_dtype"] and row["files_dtype"] != row["checkpoint_dtype"]
    return "checkpoint" in fact["stages"] or bool(cast) or row["layers"] != "all"


def source_of(fact: Mapping[str, Any], label: str, store: Path) -> Given:
    """The checkpoint as it came, looked for where it was, and in the store by its hash."""
    wanted, model = fact["hashes"]["checkpoint"], fact["config"].get("model", {})
    said = fact["origin"] or f"a folder named {label}"
    given = Given(f"checkpoints/{label}", said, wanted)
    place = place_of(model)
    if place and place.is_dir():
        there = with_files(Given(given.folder, said, wanted), place)
        if wanted is None or wanted == hash_of((Path(entry["file"]), entry["sha256"]) for entry in there.files):
            return there
        given.missing = "the folder at its place is another one by now"
    elif wanted:
        manifests = (store / "model").glob("*/manifest.json")
        place = next((path.parent for path in manifests if hash_by(path) == wanted), None)
        if place:
            return with_files(given, place)
    given.missing = given.missing or "its files are not at hand any more"
    return given


def place_of(model: Mapping[str, Any]) -> Path | None:
    """The folder that a config names."""
    if not model.get("path"):
        return None
    path = Path(model["path"]).expanduser()
    path = path if path.is_absolute() or path.exists() else PROJECT / path
    return path if path.suffix != ".gguf" else None


def hash_by(manifest: Path) -> str | None:
    """A checkpoint's hash by an artifact's manifest, without reading its files."""
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        kept = [(Path(name), entry["sha256"]) for name, entry in files.items()]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return hash_of(kept)


def made_of(fact: Mapping[str, Any], source: Given, store: Path) -> Given:
    """A cast or cut checkpoint: both sides were given its artifact, whose manifest has the hashes."""
    row, key = fact["row"], fact["stages"].get("checkpoint")
    inputs: dict[str, Any] = {}
    place = store / "checkpoint" / key if key else None
    if place and (place / "manifest.json").is_file():
        inputs = json.loads((place / "manifest.json").read_text(encoding="utf-8"))["inputs"]
    asked = row["dtype"] if row["dtype"] in DTYPES else "stored"
    dtype = inputs.get("dtype", asked if row["files_dtype"] != row["checkpoint_dtype"] else "stored")
    layers = inputs.get("layers", int(row["layers"]) if str(row["layers"]).isdigit() else None)
    name = source.folder + (f"-{dtype}" if dtype != "stored" else "") + (f"-{layers}-layers" if layers else "")
    name += "-text" if inputs.get("text_only") else ""
    how = [f"every tensor cast to {dtype}"] if dtype != "stored" else []
    how += [f"the first {layers} layers alone"] if layers else []
    how += ["the text model alone"] if inputs.get("text_only") else []
    given = Given(name, f"{source.folder}, {', '.join(how) or 'as it is'}; config.json too")
    given.made = {"source": source.folder, "dtype": dtype, "layers": layers}
    if inputs.get("text_only"):
        given.made["by_hand"] = True  # the folder's script does not take a text model out of several
    if inputs:
        return with_files(given, place)
    given.missing = "its artifact is not in the store any more"
    return given


def with_files(given: Given, place: Path) -> Given:
    """The hashes of its files, and where they are for now."""
    given.files = []
    for path in files_of(place):
        size = (place / path).stat().st_size
        given.files.append({"file": path.as_posix(), "sha256": sha256(place / path), "bytes": size})
        given.copies[path.as_posix()] = place / path
    return given


def enclose(given: Given, most_megabytes: float, hide: Callable[..., str]) -> None:
    """Keep the files to copy where they are small enough in all; code of a checkpoint is never among them."""
    if not given.files or sum(entry["bytes"] for entry in given.files) > most_megabytes * MEGABYTE:
        given.copies = {}
        return
    given.copies = {name: path for name, path in given.copies.items() if not name.endswith(".py")}
    for entry in given.files:
        name = entry["file"]
        if name not in SETTINGS:
            continue
        text = given.copies[name].read_text(encoding="utf-8")
        if (hidden := hide(text, True)) != text:
            given.altered[name] = hidden
            entry["measured_sha256"] = entry["sha256"]
            entry["sha256"] = hashlib.sha256(hidden.encode()).hexdigest()
