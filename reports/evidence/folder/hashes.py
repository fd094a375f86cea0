"""Hashes of a checkpoint's files. Needs nothing but Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

DOCUMENTS = {".md", ".pdf", ".png", ".jpg", ".jpeg", ".gif"}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def counts(path: Path) -> bool:
    """Whether a file, by its path within the checkpoint, is of it: no document, no hidden file, no store's manifest."""
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.suffix.lower() not in DOCUMENTS and str(path) != "manifest.json"


def files_of(folder: Path) -> list[Path]:
    """The paths within a checkpoint of the files that count."""
    found = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(path for path in found if counts(path))


def hash_of(entries: Iterable[tuple[Path, str]]) -> str:
    """One hash over (path, sha256) of every file that counts."""
    kept = [[str(path), digest] for path, digest in sorted(entries) if counts(path)]
    text = json.dumps([kept], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def whole_hash(folder: Path) -> str:
    return hash_of((path, sha256(folder / path)) for path in files_of(folder))
