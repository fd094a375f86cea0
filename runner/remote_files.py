"""How an artifact's files lie on a remote, and how their bytes get there and back.

A small file lies under its own name in a folder named by what is in all of
them; of a large one there are parts, in a folder named by its hash, each named
by its place. Either appears all at once, so that what is there is whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runner import hashing
from runner.store import MANIFEST, is_inside

T = TypeVar("T")

# A larger file is put there in parts of so many bytes.
PART_BYTES = 256 * 2**20
# So much of a part is in memory at once.
BLOCK_BYTES = 8 * 2**20
# Pieces on their way side by side, where a file system serves several threads.
AT_A_TIME = 4
# Where a file appears only when all of it has arrived. Elsewhere it is written aside and renamed.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "hf"}
ASIDE = re.compile(r"[0-9a-f]{32}\.part")
# Seconds after which nobody is writing to a file aside any more.
OLD = 86400
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Piece:
    """A file of an artifact, or a part of one, which is a file of its own on the remote.

    path: there, below the artifact's folder. start: where it belongs in the
    file `name`. sha256: of these bytes. part: whether there are others.
    """

    name: str
    path: str
    start: int
    size: int
    sha256: str
    part: bool


def content_name(files: dict) -> str:
    """The folder where the small files of an artifact lie: other bytes, another folder."""
    return hashing.of_value(files)[:16]


def pieces_of(manifest: dict) -> list[Piece]:
    """All pieces of an artifact, by its manifest on the remote."""
    files, parts = manifest["files"], manifest.get("parts")
    content = content_name(files)
    return [piece for name, entry in files.items() for piece in pieces_of_file(name, entry, content, parts)]


def pieces_of_file(name: str, entry: dict, content: str, parts: dict | None) -> Iterator[Piece]:
    """The pieces of one file. parts: how large they are, and their hashes by the file's."""
    size, digests = entry["size"], parts and parts["sha256"].get(entry["sha256"])
    if parts is None or digests is None:
        yield Piece(name, f"{content}/{name}", 0, size, entry["sha256"], False)
        return
    for number, digest in enumerate(digests):
        start = number * parts["bytes"]
        end = min(start + parts["bytes"], size)
        path = f"parts/{entry['sha256']}/{start:013}-{end:013}"
        yield Piece(name, path, start, end - start, digest, True)


def is_sound(manifest: Any, kind: str, key: str) -> bool:
    """Whether what was read is the manifest of an artifact, and leads nowhere else. Errors: those of a wrong type."""
    if (manifest["kind"], manifest["key"]) != (kind, key) or not isinstance(manifest["meta"], dict):
        return False
    files, parts = manifest["files"], manifest.get("parts")
    for name, entry in files.items():
        if not (isinstance(entry["size"], int) and isinstance(entry["sha256"], str) and is_a_files(name)):
            return False
    if parts is None:
        return True
    sizes = {entry["sha256"]: entry["size"] for entry in files.values()}
    return isinstance(parts["bytes"], int) and all(
        SHA256.fullmatch(sha256)
        and all(isinstance(digest, str) for digest in digests)
        and max(0, (len(digests) - 1) * parts["bytes"]) < sizes[sha256] <= len(digests) * parts["bytes"]
        for sha256, digests in parts["sha256"].items()
    )


def is_a_files(name: str) -> bool:
    """Whether a name is one of a file below its artifact's folder, and not the manifest's."""
    return is_inside(name) and name not in (".", MANIFEST)


def listing(fs: Any, folder: str) -> dict[str, int | None]:
    """The files below a folder of the remote as they are now: their sizes by their names in it."""
    fs.invalidate_cache()
    start = f"{folder.lstrip('/')}/"
    found = {name.lstrip("/"): info.get("size") for name, info in fs.find(folder, detail=True).items()}
    return {name.removeprefix(start): size for name, size in found.items() if name.startswith(start)}


def put(fs: Any, file: Path, folder: str, piece: Piece) -> None:
    """Copy a piece to where it belongs in an artifact's folder on the remote."""
    with appearing(fs, folder, piece.path) as path:
        if piece.part or piece.size > BLOCK_BYTES:
            write(fs, file, piece.start, piece.size, path)
        else:
            fs.put_file(str(file), path)


def write(fs: Any, file: Path, start: int, size: int, path: str) -> None:
    """Stream some of a file to a file on the remote."""
    target = fs.open(path, "wb", block_size=BLOCK_BYTES)
    try:
        with file.open("rb") as source:
            source.seek(start)
            while size:
                block = source.read(min(BLOCK_BYTES, size))
                if not block:
                    raise EOFError(f"{file} has become shorter")
                target.write(block)
                size -= len(block)
    except BaseException:
        abandon(fs, target)
        raise
    target.close()


def abandon(fs: Any, target: Any) -> None:
    """Let go of a file that is not written to its end."""
    with contextlib.suppress(Exception):  # what went wrong first is what is told
        if not is_object_store(fs):
            target.close()
            return
        # Closing an object, as its deletion from memory does, would make it appear.
        target.closed = True
        target.discard()


def put_manifest(fs: Any, folder: str, manifest: dict) -> None:
    """Write an artifact's manifest: with it the artifact is there."""
    text = json.dumps(manifest, ensure_ascii=False, indent=1).encode()
    with appearing(fs, folder, MANIFEST) as path:
        fs.pipe_file(path, text)


@contextlib.contextmanager
def appearing(fs: Any, folder: str, name: str) -> Iterator[str]:
    """A path to write to; what is written appears as `name` in `folder` all at once."""
    path = f"{folder}/{name}"
    if is_object_store(fs):
        yield path
        return
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    aside = f"{folder}/{uuid.uuid4().hex}.part"
    try:
        yield aside
        fs.mv(aside, path)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(aside)
        raise


def remove_old_asides(fs: Any, folder: str, names: Iterable[str]) -> None:
    """Remove what killed pushes were writing."""
    for name in filter(ASIDE.fullmatch, names):
        with contextlib.suppress(Exception):  # not every file system says how old a file is
            if fs.modified(f"{folder}/{name}").timestamp() < time.time() - OLD:
                fs.rm_file(f"{folder}/{name}")


def is_object_store(fs: Any) -> bool:
    names = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return bool(names & OBJECT_STORES)


def get(fs: Any, folder: str, piece: Piece, file: Path) -> bool:
    """Copy a piece from the remote to its place in `file`; False where it is not there."""
    path = f"{folder}/{piece.path}"
    try:
        if piece.part or piece.size > BLOCK_BYTES:
            read(fs, path, piece.size, file, piece.start)
        else:
            fs.get_file(path, str(file))
    except FileNotFoundError:
        return False
    return file.is_file()  # an object that has become a folder is none


def read(fs: Any, path: str, size: int, file: Path, start: int) -> None:
    """Stream a file on the remote, of `size` bytes, to a place in a file."""
    file.touch()
    with file.open("r+b") as target:
        target.seek(start)
        for at in range(0, size, BLOCK_BYTES):
            wanted = min(BLOCK_BYTES, size - at)
            block = cat(fs, path, at, at + wanted)
            target.write(block)
            if len(block) < wanted:  # which its hash tells
                return


def cat(fs: Any, path: str, start: int = 0, end: int | None = None) -> bytes:
    """Bytes of a file on the remote; with `start`, an object store is not asked for its size before."""
    try:
        return fs.cat_file(path, start=start, end=end)
    except OSError as error:
        if error.errno == errno.EINVAL and "range" in str(error).lower():  # the object has ended before `start`
            return b""
        raise


def holds(file: Path, piece: Piece) -> bool:
    """Whether a file has a piece's bytes in their place."""
    try:
        size = file.stat().st_size
        if size < piece.start + piece.size or (not piece.part and size != piece.size):
            return False
        return digest_of(file, piece.start, piece.size) == piece.sha256
    except (FileNotFoundError, IsADirectoryError):
        return False


def is_file(file: Path, entry: dict) -> bool:
    """Whether a file is the one that an artifact's manifest speaks of."""
    return file.stat().st_size == entry["size"] and hashing.of_file(file) == entry["sha256"]


def digest_of(file: Path, start: int, size: int) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as source:
        source.seek(start)
        for block in blocks(source, size):
            digest.update(block)
    return digest.hexdigest()


def digests_of(file: Path, part_bytes: int) -> tuple[str, list[str]]:
    """The hashes of a file and of its parts, in one reading."""
    whole, parts = hashlib.sha256(), []
    with file.open("rb") as source:
        while True:
            part, size = hashlib.sha256(), 0
            for block in blocks(source, part_bytes):
                part.update(block)
                whole.update(block)
                size += len(block)
            if not size:
                return whole.hexdigest(), parts
            parts.append(part.hexdigest())


def blocks(source: Any, size: int) -> Iterator[bytes]:
    """The next `size` bytes of a file, or as many as there are."""
    while size and (block := source.read(min(2**20, size))):
        yield block
        size -= len(block)


def side_by_side(work: Callable[[T], None], items: Iterable[T], threads: int) -> None:
    """Call `work` for each item. The first error is raised, when what was begun has ended.

    Daemon threads, which the end of the program does not wait for; an executor's it would.
    """
    turns, taking, errors = iter(items), threading.Lock(), []

    def run() -> None:
        try:
            while not errors:
                with taking:
                    item = next(turns, taking)
                if item is taking:  # there is no other
                    return
                work(item)
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=run, daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
