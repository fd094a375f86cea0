"""Artifacts on a remote that fsspec reaches: a bucket, a shared folder, a server.

An artifact lies at ``KIND/KEY/``: its files in a folder named by what is in
them, and the manifest, written last, beside that folder. So half an artifact
is never one, two machines that made the same key with other bytes do not mix
theirs, and a push that broke off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from db.scrub import HIDDEN, scrub
from runner import hashing
from runner.failures import DISK_FULL_HINT, Failure, StoreFailed, says_disk_full
from runner.store import MANIFEST, Artifact, Store, is_inside

# Where a file appears only when all of it has arrived. Elsewhere it is written aside and renamed.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "hf"}


class RemoteFailed(Failure):
    """The remote could not be used, or what it has is not what was put there."""

    status, stage = "run_failed", "store"


@dataclass(frozen=True)
class Remote:
    """A place for artifacts. url: any that fsspec knows; it may hold a secret, so it is not shown.

    Both methods block. Whoever calls them holds the artifact's lock in the
    store where others may make the same one.
    """

    url: str = field(repr=False)

    def push(self, artifact: Artifact, kind: str, key: str) -> None:
        """Put an artifact there, unless a whole one of that key is. Errors: `RemoteFailed`."""
        files = artifact.manifest["files"]
        with answers(self.url, f"could not take {kind}/{key}", full_hint="the remote is full: make room there"):
            fs, folder = connect(self.url, kind, key)
            if is_whole(fs, folder, kind, key):
                return
            content = content_folder(folder, files)
            there = sizes(fs, content)
            for name, entry in files.items():
                if there.get(name) != entry["size"]:
                    refuse_damaged(artifact.path / name, entry)
                    put(fs, artifact.path / name, folder, f"{content}/{name}")
            there = sizes(fs, content)
            lost = [name for name, entry in files.items() if there.get(name) != entry["size"]]
            if lost:
                raise RemoteFailed(
                    f"{said(self.url)} took {', '.join(sorted(lost)[:5])} of {kind}/{key} and does not have it whole",
                    hint="check the room that is left there, and that its folders can be listed",
                    transient=True,
                )
            put_manifest(fs, folder, artifact.manifest)

    def pull(self, store: Store, kind: str, key: str) -> Artifact | None:
        """Bring an artifact into the store, checked to the last byte; None where the remote has none.

        Errors: `RemoteFailed` where it cannot be read, or is not what its
        manifest says; `StoreFailed` where the store cannot be written.
        """
        with answers(self.url, f"could not be read for {kind}/{key}"):
            fs, folder = connect(self.url, kind, key)
            manifest = read_manifest(fs, folder, kind, key, self.url)
        if manifest is None:
            return None
        content = content_folder(folder, manifest["files"])
        try:
            with store.draft("pull") as draft:
                out = draft / "out"
                out.mkdir()
                for name, entry in manifest["files"].items():
                    (out / name).parent.mkdir(parents=True, exist_ok=True)
                    with answers(self.url, f"could not be read for {kind}/{key}"):
                        got = get(fs, f"{content}/{name}", out / name)
                    if not got:
                        raise unlike(self.url, kind, key, f"{name} is not there")
                    if (out / name).stat().st_size != entry["size"] or hashing.of_file(out / name) != entry["sha256"]:
                        raise unlike(self.url, kind, key, f"{name} is not what was put there")
                return store.place(kind, key, out, manifest)
        except OSError as error:
            raise StoreFailed(error) from error


def connect(url: str, kind: str, key: str) -> tuple[Any, str]:
    """A file system of fsspec's, and the artifact's folder on it."""
    import fsspec  # here, so that who uses no remote does not wait for it

    # Of its own: fsspec's shared ones keep listings, which another machine's push makes untrue.
    fs, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
    return fs, f"{root.rstrip('/')}/{kind}/{key}"


def content_folder(folder: str, files: dict) -> str:
    """Where the files of an artifact lie: other bytes, another folder."""
    return f"{folder}/{hashing.of_value(files)[:16]}"


def sizes(fs: Any, folder: str) -> dict[str, int | None]:
    """The files below a folder of the remote, by their names in it."""
    start = f"{folder.lstrip('/')}/"
    found = {name.lstrip("/"): info.get("size") for name, info in fs.find(folder, detail=True).items()}
    return {name.removeprefix(start): size for name, size in found.items() if name.startswith(start)}


def is_whole(fs: Any, folder: str, kind: str, key: str) -> bool:
    """Whether the remote has the artifact, by its manifest and the sizes of its files."""
    try:
        manifest = read_manifest(fs, folder, kind, key, "")
    except RemoteFailed:  # a damaged one, to be written over
        return False
    if manifest is None:
        return False
    there = sizes(fs, content_folder(folder, manifest["files"]))
    return all(there.get(name) == entry["size"] for name, entry in manifest["files"].items())


def read_manifest(fs: Any, folder: str, kind: str, key: str, url: str) -> dict | None:
    """The manifest of an artifact on the remote, None where there is none. Errors: `RemoteFailed`."""
    try:
        text = fs.cat_file(f"{folder}/{MANIFEST}")
    except FileNotFoundError:
        return None
    try:
        manifest = json.loads(text)
        if (manifest["kind"], manifest["key"]) != (kind, key) or not isinstance(manifest["meta"], dict):
            raise ValueError
        for name, entry in manifest["files"].items():
            if not (isinstance(entry["size"], int) and isinstance(entry["sha256"], str) and is_a_files(name)):
                raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise unlike(url, kind, key, f"its {MANIFEST} is damaged, or another artifact's") from error
    return manifest


def is_a_files(name: str) -> bool:
    """Whether a name is one of a file below its artifact's folder, and not the manifest's."""
    return is_inside(name) and name not in (".", MANIFEST)


def put(fs: Any, file: Path, folder: str, path: str) -> None:
    """Copy a file to where it belongs in an artifact's folder on the remote, where it appears all at once."""
    if is_object_store(fs):
        fs.put_file(str(file), path)
        return
    with aside(fs, folder, path) as part:
        fs.put_file(str(file), part)


def put_manifest(fs: Any, folder: str, manifest: dict) -> None:
    """Write an artifact's manifest, all at once: with it the artifact is there."""
    text, path = json.dumps(manifest, ensure_ascii=False, indent=1).encode(), f"{folder}/{MANIFEST}"
    if is_object_store(fs):
        fs.pipe_file(path, text)
        return
    with aside(fs, folder, path) as part:
        fs.pipe_file(part, text)


@contextlib.contextmanager
def aside(fs: Any, folder: str, path: str) -> Iterator[str]:
    """A name in `folder` to write to, which becomes `path` at the end."""
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    part = f"{folder}/{uuid.uuid4().hex}.part"
    try:
        yield part
        fs.mv(part, path)
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what is told
            fs.rm_file(part)
        raise


def is_object_store(fs: Any) -> bool:
    names = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return bool(names & OBJECT_STORES)


def get(fs: Any, path: str, file: Path) -> bool:
    """Copy a file from the remote; False where it is not there."""
    try:
        fs.get_file(path, str(file))
    except FileNotFoundError:
        return False
    return file.is_file()  # an object that has become a folder is none


def refuse_damaged(file: Path, entry: dict) -> None:
    """What has changed since its artifact was finished must not become everyone's. Errors: `RemoteFailed`."""
    try:
        same = hashing.of_file(file) == entry["sha256"]
    except OSError as error:
        raise StoreFailed(error) from error
    if not same:
        raise RemoteFailed(
            f"{file} has changed since it was made, and was not put on the remote",
            hint="run again: a damaged artifact is made anew",
            transient=True,
        )


def unlike(url: str, kind: str, key: str, what: str) -> RemoteFailed:
    """The failure for an artifact that is not what its manifest says."""
    return RemoteFailed(
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
