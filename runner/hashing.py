"""Content hashes: of values, of files and of trees. Everything is sha256 in hex."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def of_value(*values: Any) -> str:
    """Hash of JSON-like values: equal values give equal hashes, whatever their keys' order."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(root: Path) -> list[Path]:
    """The files of a tree in a fixed order, without Python's byte code."""
    return sorted(
        path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.relative_to(root).parts
    )


def of_tree(root: Path) -> str:
    """Hash of a folder: relative paths and contents, nothing else."""
    return of_value([(path.relative_to(root).as_posix(), of_file(path)) for path in files_below(root)])
