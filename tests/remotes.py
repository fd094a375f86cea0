"""What the tests of remotes share: artifacts to put there, and places of each kind to put them."""

from __future__ import annotations

import functools
import json
import threading
import uuid
from pathlib import Path

import pytest
import s3_server

from runner import remote, remote_files
from runner.remote import Remote
from runner.store import MANIFEST, Artifact, Store

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100, "sub/empty": b"", "sub/more": b"more"}
PROTOCOLS = ("file", "memory", "s3")


def new_url(protocol: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A remote of its own; the memory and the bucket are all tests'."""
    if protocol == "file":
        return f"file://{folder}/remote/in"
    if protocol == "memory":
        return f"memory://{uuid.uuid4().hex}/in"
    for name, value in s3_server.started().environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4().hex}/in"


def make(store: Store, files: dict[str, bytes] = FILES, key: str = "k") -> Artifact:
    with store.draft("x") as draft:
        out = draft / "out"
        out.mkdir()
        for name, content in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
        return store.finish("model", key, out, {"in": 1}, {"said": "ü"})


def contents(artifact: Artifact) -> dict[str, bytes]:
    names = (path.relative_to(artifact.path).as_posix() for path in artifact.path.rglob("*") if path.is_file())
    return {name: (artifact.path / name).read_bytes() for name in names}


# One for all that a test does there: a session with S3 takes a while to make.
at = functools.cache(Remote)
connected = functools.cache(remote.connect)


def connect(url: str):
    """A file system, and the folder of the artifact that `make` makes."""
    start = "s3://bucket" if url.startswith("s3") else url
    fs, root = connected(start)
    return fs, f"{root}{url.removeprefix(start)}/model/k"


def paths(url: str) -> dict[str, str]:
    """The files of the artifact on the remote but its manifest: by their names in its folder, the path of each."""
    fs, folder = connect(url)
    names = [path.lstrip("/").removeprefix(f"{folder.lstrip('/')}/") for path in fs.find(folder)]
    return {name: f"{folder}/{name}" for name in names if name != MANIFEST}


def there(url: str) -> dict[str, str]:
    """Those that are not parts of others: by their names in the artifact."""
    return {name.partition("/")[2]: path for name, path in paths(url).items() if not name.startswith("parts/")}


def overwrite(url: str, name: str, content: bytes | None) -> None:
    """Damage a file of the artifact on the remote; None removes it."""
    fs, folder = connect(url)
    path = f"{folder}/{MANIFEST}" if name == MANIFEST else {**paths(url), **there(url)}[name]
    fs.rm_file(path) if content is None else fs.pipe_file(path, content)


def manifest_of(url: str) -> dict:
    """The artifact's manifest on the remote."""
    fs, folder = connect(url)
    return json.loads(fs.cat_file(f"{folder}/{MANIFEST}"))


def arrived(store: Store) -> list[Path]:
    """Folders of what has arrived of pulls that were cut."""
    return [path for path in store.tmp.iterdir() if path.name.startswith("pulling-")] if store.tmp.exists() else []


class Moved:
    """What is moved from now on: each piece by its path. fails_at: the number of the piece where the line breaks."""

    def __init__(self, monkeypatch):
        self.put: list[str] = []
        self.got: list[str] = []
        self.bytes = 0
        self.fails_at: int | None = None
        self.taking = threading.Lock()
        put, get = remote_files.put, remote_files.get

        def counted_put(fs, file, folder, piece):
            self.count(self.put, piece)
            put(fs, file, folder, piece)

        def counted_get(fs, folder, piece, file):
            self.count(self.got, piece)
            return get(fs, folder, piece, file)

        monkeypatch.setattr(remote_files, "put", counted_put)
        monkeypatch.setattr(remote_files, "get", counted_get)

    def count(self, moved: list[str], piece) -> None:
        with self.taking:
            if len(moved) == self.fails_at:
                raise ConnectionError("the line is cut")
            moved.append(piece.path)
            self.bytes += piece.size
