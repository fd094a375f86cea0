"""Artifacts on a remote that fsspec reaches: a bucket, a shared folder, a server.

An artifact lies at ``KIND/KEY/``: its files, large ones in parts, in folders
named by what is in them, and the manifest, written last, beside these. So half
an artifact is never one, two machines that made the same key with other bytes
do not mix theirs, and a push or a pull that broke off, or was killed, goes on
where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from filelock import FileLock

from db.scrub import HIDDEN, scrub
from runner import remote_files
from runner.failures import DISK_FULL_HINT, Failure, StoreFailed, says_disk_full
from runner.remote_files import Piece
from runner.store import MANIFEST, Artifact, Store


class RemoteFailed(Failure):
    """The remote could not be used, or what it has is not what was put there."""

    status, stage = "run_failed", "store"


class Unlike(RemoteFailed):
    """What the remote has is not what was put there."""


@dataclass(frozen=True)
class Remote:
    """A place for artifacts. url: any that fsspec knows; it may hold a secret, so it is not shown.

    Its methods block, and may be called in several threads at once. Whoever
    calls `push` or `pull` holds the artifact's lock in the store where others
    may make the same one.
    """

    url: str = field(repr=False)
    # Connections for whoever comes next, and who may touch the list.
    kept: list = field(default_factory=list, init=False, repr=False, compare=False)
    lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def has(self, kind: str, key: str) -> bool:
        """Whether an artifact is there, by its manifest alone. Errors: `RemoteFailed`."""
        with self.connected(kind, key, f"could not be asked for {kind}/{key}") as (fs, folder):
            try:
                return read_manifest(fs, folder, kind, key, self.url) is not None
            except Unlike:  # a damaged one, to be written over
                return False

    def push(self, artifact: Artifact, kind: str, key: str) -> None:
        """Put an artifact there, unless a whole one of that key is. Errors: `RemoteFailed`."""
        what, full_hint = f"could not take {kind}/{key}", "the remote is full: make room there"
        with self.connected(kind, key, what, full_hint) as (fs, folder):
            there = remote_files.listing(fs, folder)
            remote_files.remove_old_asides(fs, folder, there)
            if is_whole(fs, folder, kind, key, there):
                return
            manifest: dict = {**artifact.manifest, "parts": {"bytes": remote_files.PART_BYTES, "sha256": {}}}
            remote_files.side_by_side(
                lambda piece: remote_files.put(fs, artifact.path / piece.name, folder, piece),
                to_be_sent(artifact, manifest, there),
                threads_for(fs),
            )
            lost = missing(manifest, remote_files.listing(fs, folder))
            if lost:
                raise RemoteFailed(
                    f"{said(self.url)} took {', '.join(lost[:5])} of {kind}/{key} and does not have it whole",
                    hint="check the room that is left there, and that its folders can be listed",
                    transient=True,
                )
            if not manifest["parts"]["sha256"]:
                del manifest["parts"]
            remote_files.put_manifest(fs, folder, manifest)

    def pull(self, store: Store, kind: str, key: str) -> Artifact | None:
        """Bring an artifact into the store, checked to the last byte; None where the remote has none.

        What has arrived when it breaks off stays in the store's ``tmp/``, for
        the next pull to go on with. Errors: `RemoteFailed` where it cannot be
        read, or is not what its manifest says; `StoreFailed` where the store
        cannot be written.
        """
        with self.connected(kind, key, f"could not be read for {kind}/{key}") as (fs, folder):
            manifest = read_manifest(fs, folder, kind, key, self.url)
        if manifest is None:
            return None
        try:
            store.locks.mkdir(parents=True, exist_ok=True)
            # Not the artifact's lock, which the caller may hold.
            with FileLock(store.locks / f"pulling-{kind}-{key}.lock", thread_local=False):
                return self.bring(store, kind, key, manifest)
        except OSError as error:
            raise StoreFailed(error) from error

    def bring(self, store: Store, kind: str, key: str, manifest: dict) -> Artifact:
        """Fetch what has not arrived yet of an artifact, and put all of it into place."""
        files = manifest["files"]
        arrived = store.tmp / f"pulling-{kind}-{key}-{remote_files.content_name(files)}"
        out = arrived / "out"
        out.mkdir(parents=True, exist_ok=True)
        for folder in {(out / name).parent for name in files}:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with self.connected(kind, key, f"could not be read for {kind}/{key}") as (fs, folder):

                def fetch(piece: Piece) -> None:
                    file = out / piece.name
                    if not remote_files.holds(file, piece):
                        if not remote_files.get(fs, folder, piece, file):
                            raise unlike(self.url, kind, key, f"{piece.name} is not there")
                        if not remote_files.holds(file, piece):
                            raise unlike(self.url, kind, key, f"{piece.name} is not what was put there")
                    os.utime(arrived)  # so that the store does not take it for a left over

                remote_files.side_by_side(fetch, remote_files.pieces_of(manifest), threads_for(fs))
            split = manifest.pop("parts", {"sha256": {}})["sha256"]
            for name, entry in files.items():
                if entry["sha256"] in split and not remote_files.is_file(out / name, entry):
                    raise unlike(self.url, kind, key, f"{name} is not what was put there")
            placed = store.place(kind, key, out, manifest)
        except BaseException as error:
            # Nobody can go on with what does not verify, and where there is no room it is wanted.
            if isinstance(error, Unlike) or says_disk_full(str(error)):
                shutil.rmtree(arrived, ignore_errors=True)
            raise
        shutil.rmtree(arrived, ignore_errors=True)
        return placed

    @contextlib.contextmanager
    def connected(self, kind: str, key: str, what: str, full_hint: str = DISK_FULL_HINT) -> Iterator[tuple[Any, str]]:
        """A file system, and an artifact's folder on it. what: what the remote could not do, where it fails.

        One that may be shared is everyone's, another is lent to one thread at a
        time. After an error a new one is made: the connection may be what broke.
        """
        with answers(self.url, what, full_hint):
            with self.lock:
                if not self.kept:
                    self.kept.append(connect(self.url))
                connection = self.kept[-1] if is_shared(self.kept[-1][0]) else self.kept.pop()
            fs, root = connection
            try:
                yield fs, f"{root}/{kind}/{key}"
            except Exception as error:
                if not isinstance(error, Failure):
                    with self.lock:
                        self.kept[:] = [other for other in self.kept if other is not connection]
                    raise
                self.give_back(connection)
                raise
            self.give_back(connection)

    def give_back(self, connection: tuple[Any, str]) -> None:
        if not is_shared(connection[0]):
            with self.lock:
                self.kept.append(connection)


def connect(url: str) -> tuple[Any, str]:
    """A file system of fsspec's, and the URL's folder on it."""
    import fsspec  # here, so that who uses no remote does not wait for it

    # Of its own, and no listings kept: another machine's push makes them untrue.
    fs, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    with contextlib.suppress(AttributeError):
        fs.dircache.use_listings_cache = False  # as an argument, not every file system takes it
    return fs, root.rstrip("/")


def is_shared(fs: Any) -> bool:
    """Whether a file system serves several threads at once: those that run in fsspec's own loop do."""
    return bool(getattr(fs, "async_impl", False))


def threads_for(fs: Any) -> int:
    return remote_files.AT_A_TIME if is_shared(fs) else 1


def to_be_sent(artifact: Artifact, manifest: dict, there: dict[str, int | None]) -> Iterator[Piece]:
    """The pieces that the remote lacks, each file's after it was found unchanged; the parts' hashes go into
    `manifest`. Errors: `RemoteFailed`, `StoreFailed`."""
    files, parts = manifest["files"], manifest["parts"]
    content = remote_files.content_name(files)
    for name, entry in files.items():
        large = entry["size"] > parts["bytes"]
        if not large and there.get(f"{content}/{name}") == entry["size"]:
            continue
        digests = digests_of_unchanged(artifact.path / name, entry, parts["bytes"])
        if large:
            parts["sha256"][entry["sha256"]] = digests
        for piece in remote_files.pieces_of_file(name, entry, content, parts):
            if there.get(piece.path) != piece.size:
                there[piece.path] = piece.size  # of a file that is there twice, once
                yield piece


def missing(manifest: dict, there: dict[str, int | None]) -> list[str]:
    """The files of which the remote lacks something, by the sizes of what is there."""
    pieces = remote_files.pieces_of(manifest)
    return sorted({piece.name for piece in pieces if there.get(piece.path) != piece.size})


def is_whole(fs: Any, folder: str, kind: str, key: str, there: dict[str, int | None]) -> bool:
    """Whether the remote has the artifact, by its manifest and the sizes of its files."""
    if MANIFEST not in there:
        return False
    try:
        manifest = read_manifest(fs, folder, kind, key, "")
    except Unlike:  # a damaged one, to be written over
        return False
    return manifest is not None and not missing(manifest, there)


def read_manifest(fs: Any, folder: str, kind: str, key: str, url: str) -> dict | None:
    """The manifest of an artifact on the remote, None where there is none. Errors: `RemoteFailed`."""
    try:
        text = remote_files.cat(fs, f"{folder}/{MANIFEST}")
    except FileNotFoundError:
        return None
    try:
        manifest = json.loads(text)
        if not remote_files.is_sound(manifest, kind, key):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise unlike(url, kind, key, f"its {MANIFEST} is damaged, or another artifact's") from error
    return manifest


def digests_of_unchanged(file: Path, entry: dict, part_bytes: int) -> list[str]:
    """The hashes of a file's parts. Errors: `RemoteFailed` where it has changed since its artifact was finished,
    which must not become everyone's."""
    try:
        digest, parts = remote_files.digests_of(file, part_bytes)
    except OSError as error:
        raise StoreFailed(error) from error
    if digest != entry["sha256"]:
        raise RemoteFailed(
            f"{file} has changed since it was made, and was not put on the remote",
            hint="run again: a damaged artifact is made anew",
            transient=True,
        )
    return parts


def unlike(url: str, kind: str, key: str, what: str) -> Unlike:
    """The failure for an artifact that is not what its manifest says."""
    return Unlike(
        f"{kind}/{key} on {said(url)} does not verify: {what}",
        hint=f"remove the folder {kind}/{key} there, and the next run makes it and puts it there again;"
        " or run without store.remote",
        transient=True,
    )


@contextlib.contextmanager
def answers(url: str, what: str, full_hint: str = DISK_FULL_HINT) -> Iterator[None]:
    """Make a typed failure of whatever the remote's package raises. what: what the remote could not do."""
    try:
        yield
    except Failure:
        raise
    except Exception as error:  # each protocol has a package of its own, with errors of its own
        text = without_secrets(url, " ".join(str(error).split())) or type(error).__name__
        full = says_disk_full(text)
        raise RemoteFailed(
            f"{said(url)} {what}: {text[:500]}",
            hint=full_hint if full else hint_for(url, error),
            error_type="DiskFull" if full else type(error).__name__,
            transient=True,
        ) from error


def hint_for(url: str, error: Exception) -> str:
    """What to do about an error of a remote."""
    protocol = url.split("::")[0].partition("://")[0]
    if isinstance(error, ImportError):
        from fsspec.registry import known_implementations

        package = known_implementations.get(protocol, {}).get("class", "fsspec").partition(".")[0]
        # What fsspec reaches by itself may want another package; its message then names that one.
        wanted = "the package it names" if package == "fsspec" else f"{package} (python -m pip install {package})"
        return f"install {wanted}, or give store.remote another protocol"
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return (
            "store.remote is a URL that fsspec knows: file:///DIR, s3://BUCKET/DIR, gs://, abfs://, sftp:// and others"
        )
    if isinstance(error, PermissionError) or "redential" in f"{type(error).__name__}{error}":
        return "check what the account may read and write there; credentials are the protocol's package's matter"
    return "check store.remote and the network; or run without store.remote"


def said(url: str) -> str:
    """The URL for a reader: no user, no password, no query."""
    return without_secrets(url, url.partition("?")[0])


def without_secrets(url: str, text: str) -> str:
    """`text` without what may be secret in a URL, also where the URL is quoted in part."""
    for secret in sorted(secrets_of(url), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return scrub(text)


def secrets_of(url: str) -> set[str]:
    """The passwords and queries in a URL, and what stands alone before an @."""
    found = set()
    for part in url.split("::"):
        place, _, query = part.partition("://")[2].partition("?")
        if "@" in place.partition("/")[0] or ":" in place.partition("@")[0]:  # a secret may hold slashes
            user, _, password = place.rpartition("@")[0].partition(":")
            found |= {f"{user}:{password}" if password else user, password, unquote(password)}
        found |= {query, *(pair.partition("=")[2] for pair in query.split("&"))}
    return {secret for secret in found if len(secret) >= 4}
