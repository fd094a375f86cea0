"""The artifact store: folders named by the hash of everything that went into them.

A folder counts only when its manifest, written last, is there and the sizes in
it hold. Work happens in a folder aside that is renamed into place, under a
file lock per artifact, so that an artifact is made once, however many cells or
processes want it, and never half.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from runner import hashing

MANIFEST = "manifest.json"


def is_inside(name: str) -> bool:
    """Whether a file's name leads nowhere but below its folder."""
    path = PurePosixPath(name)
    return path.as_posix() == name and not path.is_absolute() and ".." not in path.parts


@dataclass(frozen=True)
class Artifact:
    """A finished output: its folder, and what its manifest says."""

    path: Path
    manifest: dict

    @property
    def meta(self) -> dict:
        """What the maker returned about it."""
        return self.manifest["meta"]


class Store:
    """A root folder with ``KIND/KEY/`` artifacts, ``locks/`` and ``tmp/``."""

    def __init__(self, root: Path):
        self.root = root
        self.locks = root / "locks"
        self.tmp = root / "tmp"

    def folder(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    def find(self, kind: str, key: str) -> Artifact | None:
        """The artifact if it is whole, else None."""
        folder = self.folder(kind, key)
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            for name, entry in manifest["files"].items():
                if (folder / name).stat().st_size != entry["size"]:
                    return None
            if not isinstance(manifest["meta"], dict):
                return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return Artifact(folder, manifest)

    def whole(self, artifact: Artifact) -> bool:
        """Whether every byte is as it was when the artifact was finished. Reads all of it."""
        try:
            files = artifact.manifest["files"].items()
            return all(hashing.of_file(artifact.path / name) == entry["sha256"] for name, entry in files)
        except (OSError, KeyError):
            return False

    def remove(self, artifact: Artifact) -> None:
        """Take an artifact out of the store in one step."""
        self.tmp.mkdir(parents=True, exist_ok=True)
        grave = self.tmp / f"old-{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            os.replace(artifact.path, grave)
        shutil.rmtree(grave, ignore_errors=True)

    def finish(self, kind: str, key: str, draft: Path, inputs: dict, meta: dict) -> Artifact:
        """Say of a draft folder what is in it, and put it into place."""
        files = {
            path.relative_to(draft).as_posix(): {
                "size": path.stat().st_size,
                "sha256": hashing.of_file(path),
            }
            for path in hashing.files_below(draft)
        }
        return self.place(kind, key, draft, {"kind": kind, "key": key, "inputs": inputs, "meta": meta, "files": files})

    def place(self, kind: str, key: str, draft: Path, manifest: dict) -> Artifact:
        """Stamp a folder with its manifest and rename it into place; a broken or unwanted one there goes."""
        part = draft / (MANIFEST + ".part")
        part.write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
        os.replace(part, draft / MANIFEST)
        folder = self.folder(kind, key)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            self.remove(Artifact(folder, {}))
        os.replace(draft, folder)
        return Artifact(folder, manifest)

    @contextlib.contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """A new folder under ``tmp/``; what is left of it is removed."""
        self.tmp.mkdir(parents=True, exist_ok=True)
        folder = self.tmp / f"{name[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        """Hold the lock `name` among tasks and processes, waiting without blocking the loop."""
        self.locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.locks / f"{name}.lock", thread_local=False)
        delay = 0.005
        while True:
            try:
                lock.acquire(blocking=False)
                break
            except Timeout:
                await asyncio.sleep(delay)
                delay = min(delay * 1.5, 0.2)
        try:
            yield
        finally:
            lock.release()

    def sweep_tmp(self, older_than_s: float = 86400) -> None:
        """Remove what killed runs left in ``tmp/`` more than a day ago."""
        if not self.tmp.exists():
            return
        limit = time.time() - older_than_s
        for path in self.tmp.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < limit:
                    shutil.rmtree(path, ignore_errors=True)
