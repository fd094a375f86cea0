"""Artifacts on a remote: whole or not there, and what comes back is what was put there."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remotes import FILES, PROTOCOLS, at, connect, contents, make, new_url, overwrite, there

from runner import remote, remote_files
from runner.failures import Failure, StoreFailed
from runner.remote import Remote, RemoteFailed
from runner.store import MANIFEST, Store

SYSTEMS = {"file": LocalFileSystem, "memory": MemoryFileSystem}


@pytest.fixture(params=PROTOCOLS)
def url(request, tmp_path: Path, monkeypatch) -> str:
    return new_url(request.param, tmp_path, monkeypatch)


@dataclass
class Line:
    """What went over to the remote: the names of the files sent, of which it takes so many and no more."""

    sent: list[str] = field(default_factory=list)
    takes: int | None = None


@pytest.fixture
def line(url, monkeypatch) -> Line:
    line = Line()

    def take(source: str) -> None:
        if len(line.sent) == line.takes:
            raise ConnectionError("the line is cut")
        line.sent.append(Path(source).name)

    instead_of_put_file(url, monkeypatch, take)
    return line


def instead_of_put_file(url: str, monkeypatch, take: Callable[[str], None], content: bytes | None = None) -> None:
    """Let `take` look at each file that is put on the remote. content: what arrives of it, where it is not all."""
    if url.startswith("s3"):
        from s3fs import S3FileSystem

        real = S3FileSystem._put_file

        async def put_object(self, source, target, **more):
            take(source)
            await (real(self, source, target, **more) if content is None else self._pipe_file(target, content))

        monkeypatch.setattr(S3FileSystem, "_put_file", put_object)
        return
    system = SYSTEMS[url.partition(":")[0]]
    real = system.put_file

    def put_file(self, source, target, **more):
        try:
            take(source)
        except ConnectionError:
            self.pipe_file(target, b"half")
            raise
        real(self, source, target, **more) if content is None else self.pipe_file(target, content)

    monkeypatch.setattr(system, "put_file", put_file)


def test_what_was_put_there_comes_back(url, store, other):
    artifact = make(store)
    assert at(url).pull(other, "model", "k") is None
    at(url).push(artifact, "model", "k")
    pulled = at(url).pull(other, "model", "k")
    assert pulled.manifest == artifact.manifest and contents(pulled) == contents(artifact)
    assert other.find("model", "k") == pulled and other.whole(pulled)
    assert list(other.tmp.iterdir()) == []
    assert at(url).pull(other, "model", "another") is None


def test_it_is_known_what_is_there(url, store):
    assert not at(url).has("model", "k")
    at(url).push(make(store), "model", "k")
    assert at(url).has("model", "k") and not at(url).has("model", "another") and not at(url).has("export", "k")
    overwrite(url, MANIFEST, b"{")
    assert not at(url).has("model", "k")


def test_after_an_error_the_connection_is_a_new_one(url, store, other, monkeypatch):
    made, real = [], remote.connect
    monkeypatch.setattr(remote, "connect", lambda url: made.append(url) or real(url))
    place = Remote(url)
    place.push(make(store), "model", "k")
    assert place.has("model", "k") and len(made) == 1
    with monkeypatch.context() as broken:
        broken.setattr(remote_files, "cat", lambda *_: (_ for _ in ()).throw(ConnectionResetError("gone")))
        for use in (place.has, lambda *key: place.pull(other, *key)):
            with pytest.raises(RemoteFailed, match="gone"):
                use("model", "k")
    assert place.has("model", "k") and other.whole(place.pull(other, "model", "k")) and len(made) == 3


def test_a_connection_that_takes_one_thread_gets_one(store, other, tmp_path, monkeypatch):
    made, busy, real = [], [], LocalFileSystem.cat_file
    system, connect_really = Remote(new_url("file", tmp_path, monkeypatch)), remote.connect
    monkeypatch.setattr(remote, "connect", lambda url: made.append(connect_really(url)) or made[-1])

    def cat_file(self, *arguments, **named):
        assert self not in busy
        busy.append(self)
        time.sleep(0.02)
        busy.remove(self)
        return real(self, *arguments, **named)

    monkeypatch.setattr(LocalFileSystem, "cat_file", cat_file)
    there = []
    for _ in range(3):
        threads = [threading.Thread(target=lambda: there.append(system.has("model", "k"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert there == [False] * 12 and 1 <= len(made) <= 4


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cc"]), min_size=1, max_size=12
)
GOOD = NAMES.filter(lambda name: name not in (".", "..", MANIFEST, "__pycache__"))
TREES = st.dictionaries(st.builds("/".join, st.lists(GOOD, min_size=1, max_size=3)), st.binary(max_size=64), max_size=5)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tree=TREES, protocol=st.sampled_from(sorted(SYSTEMS)))
def test_any_files_come_back(tree, protocol, monkeypatch):
    tree = {name: content for name, content in tree.items() if not any(n.startswith(f"{name}/") for n in tree)}
    with tempfile.TemporaryDirectory() as folder:
        url = new_url(protocol, Path(folder), monkeypatch)
        artifact = make(Store(Path(folder, "store")), tree)
        at(url).push(artifact, "model", "k")
        assert contents(at(url).pull(Store(Path(folder, "other")), "model", "k")) == contents(artifact)
        assert set(there(url)) == set(tree)


def test_it_replaces_a_broken_one_in_the_store(url, store, other):
    at(url).push(make(store), "model", "k")
    broken = make(other)
    (broken.path / "config.json").unlink()
    assert other.whole(at(url).pull(other, "model", "k"))


@pytest.mark.parametrize("takes", range(len(FILES)))
def test_a_push_that_breaks_off_is_not_seen_and_goes_on_where_it_was(url, store, other, line, takes):
    artifact = make(store)
    line.takes = takes
    with pytest.raises(RemoteFailed, match="could not take model/k: the line is cut") as caught:
        at(url).push(artifact, "model", "k")
    assert caught.value.transient and at(url).pull(other, "model", "k") is None
    line.takes = None
    at(url).push(artifact, "model", "k")
    assert sorted(line.sent) == sorted(Path(name).name for name in artifact.manifest["files"])
    assert contents(at(url).pull(other, "model", "k")) == contents(artifact)
    assert set(there(url)) == set(FILES)


def test_what_is_there_is_not_sent_again(url, store, line):
    artifact = make(store)
    at(url).push(artifact, "model", "k")
    line.sent.clear()
    at(url).push(artifact, "model", "k")
    assert line.sent == []


def test_a_file_that_is_lost_there_is_sent_again(url, store, other, line):
    artifact = make(store)
    at(url).push(artifact, "model", "k")
    overwrite(url, "sub/more", None)
    line.sent.clear()
    at(url).push(artifact, "model", "k")
    assert line.sent == ["more"] and other.whole(at(url).pull(other, "model", "k"))


@pytest.mark.parametrize("whole", [True, False])
def test_two_makings_of_the_same_key_do_not_mix(url, store, other, line, whole):
    """Of one size, and other bytes: as of two machines that compute a little differently."""
    first, second = make(store), make(other, FILES | {"model.safetensors": b"WEIGHTS" * 100})
    if whole:
        at(url).push(first, "model", "k")
        line.sent.clear()
    else:
        fs, folder = connect(url)
        for piece in remote_files.pieces_of(first.manifest):
            remote_files.put(fs, first.path / piece.name, folder, piece)
    at(url).push(second, "model", "k")
    third = Store(store.root.with_name("third"))
    assert contents(at(url).pull(third, "model", "k")) == contents(first if whole else second)
    assert not (whole and line.sent)


def test_pushes_at_the_same_time_leave_one_whole(url, store, other):
    artifacts = [make(store), make(other, FILES | {"model.safetensors": b"WEIGHTS" * 100})] * 3
    threads = [threading.Thread(target=at(url).push, args=(artifact, "model", "k")) for artifact in artifacts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    third = Store(store.root.with_name("third"))
    assert contents(at(url).pull(third, "model", "k")) in [contents(artifact) for artifact in artifacts]


@pytest.mark.parametrize("content", [b"WEIGHTS" * 100, b"short", None])
def test_a_file_that_was_damaged_there_is_refused(url, store, other, content):
    at(url).push(make(store), "model", "k")
    overwrite(url, "model.safetensors", content)
    with pytest.raises(RemoteFailed, match=r"does not verify: model\.safetensors") as caught:
        at(url).pull(other, "model", "k")
    assert "remove" in caught.value.hint and caught.value.transient
    assert other.find("model", "k") is None and not other.folder("model", "k").exists()
    assert list(other.tmp.iterdir()) == []


def manifest_with(**changes) -> bytes:
    files = {"config.json": {"size": 2, "sha256": "0"}}
    return json.dumps({"kind": "model", "key": "k", "meta": {}, "inputs": {}, "files": files, **changes}).encode()


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        manifest_with(key="another"),
        manifest_with(kind="export"),
        manifest_with(meta=None),
        manifest_with(files=[]),
        manifest_with(files={"config.json": {}}),
        manifest_with(files={"config.json": {"size": "2", "sha256": "0"}}),
        *(
            manifest_with(files={name: {"size": 2, "sha256": "0"}})
            for name in ("../config.json", "/config.json", "sub/../../config.json", "", ".", "./a", "a//b", MANIFEST)
        ),
    ],
)
@pytest.mark.parametrize("protocol", sorted(SYSTEMS))
def test_a_damaged_manifest_is_refused(protocol, store, other, tmp_path, monkeypatch, manifest):
    refuses(manifest, new_url(protocol, tmp_path, monkeypatch), store, other)


@pytest.mark.parametrize("manifest", [b"", b"\xff"])  # an object of no bytes is read otherwise
def test_a_damaged_manifest_in_a_bucket_is_refused(store, other, tmp_path, monkeypatch, manifest):
    refuses(manifest, new_url("s3", tmp_path, monkeypatch), store, other)


def refuses(manifest: bytes, url: str, store: Store, other: Store) -> None:
    """A damaged manifest is refused, and the next push mends it."""
    artifact = make(store)
    at(url).push(artifact, "model", "k")
    overwrite(url, MANIFEST, manifest)
    with pytest.raises(RemoteFailed, match="does not verify"):
        at(url).pull(other, "model", "k")
    assert not other.folder("model", "k").exists()
    at(url).push(artifact, "model", "k")
    assert other.whole(at(url).pull(other, "model", "k"))


def test_without_its_manifest_it_is_not_there(url, store, other):
    at(url).push(make(store), "model", "k")
    overwrite(url, MANIFEST, None)
    assert at(url).pull(other, "model", "k") is None


def test_what_has_changed_in_the_store_is_not_put_there(url, store, other):
    artifact = make(store)
    (artifact.path / "model.safetensors").write_bytes(b"WEIGHTS" * 100)
    with pytest.raises(RemoteFailed, match="has changed since"):
        at(url).push(artifact, "model", "k")
    shutil.rmtree(artifact.path)
    with pytest.raises(StoreFailed):
        at(url).push(artifact, "model", "k")
    assert at(url).pull(other, "model", "k") is None


def test_a_remote_that_loses_what_it_took_is_found_out(url, store, other, monkeypatch):
    instead_of_put_file(url, monkeypatch, lambda source: None, b"x")
    with pytest.raises(RemoteFailed, match="does not have it whole"):
        at(url).push(make(store), "model", "k")
    assert at(url).pull(other, "model", "k") is None


def both(url: str, store: Store) -> list[Failure]:
    """The failures of a push and of a pull."""
    found = []
    for use in (lambda: at(url).push(make(store), "model", "k"), lambda: at(url).pull(store, "model", "k")):
        with pytest.raises(RemoteFailed) as caught:
            use()
        found.append(caught.value)
    return found


def test_an_unknown_protocol_says_which_there_are(store):
    for failure in both("nonsense://bucket/x", store):
        assert "nonsense://bucket/x" in failure.message and "s3://" in failure.hint and failure.stage == "store"


@pytest.mark.parametrize("module", ["no_such_fs", "fsspec.implementations.no_such_fs"])
def test_a_package_that_is_lacking_is_named(store, monkeypatch, module):
    monkeypatch.setitem(known_implementations, "odd", {"class": f"{module}.System", "err": "Install no_such_fs for it"})
    for failure in both("odd://bucket/x", store):
        assert "Install no_such_fs" in failure.message and failure.error_type == "ImportError"
        assert ("pip install no_such_fs" if module == "no_such_fs" else "the package it names") in failure.hint


def test_a_place_that_cannot_be_written_says_so(store, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RemoteFailed, match="could not take"):
        Remote(f"file://{tmp_path}/file").push(make(store), "model", "k")

    def refuse(*_arguments, **_more):
        raise PermissionError(13, "Permission denied")

    for method in ("makedirs", "cat_file"):
        monkeypatch.setattr(LocalFileSystem, method, refuse)
    for failure in both(f"file://{tmp_path}/remote", store):
        assert "Permission denied" in failure.message and "account" in failure.hint


def test_a_full_disk_is_told_by_where_it_is(store, other, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/remote"
    at(url).push(make(store), "model", "k")

    def fill(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "cp_file", fill)
    with pytest.raises(RemoteFailed) as pulling:
        at(url).pull(other, "model", "k")
    with pytest.raises(RemoteFailed) as pushing:
        at(url).push(make(store, key="j"), "model", "j")
    assert {pulling.value.error_type, pushing.value.error_type} == {"DiskFull"}
    assert "store.root" in pulling.value.hint and "there" in pushing.value.hint


SECRETS = {
    "sftp://me:hunter2pw@host/x": ["hunter2pw"],
    "s3://AKIA:ab/cd+ef@bucket/x": ["ab/cd+ef"],
    "memory://box/x?sig=hunter2pw": ["hunter2pw"],
    "sftp://me:p%40ss!word@host/x": ["p%40ss!word", "p@ss!word"],
    "simplecache::sftp://ATokenAlone@host/x": ["ATokenAlone"],
}


@pytest.mark.parametrize("url", SECRETS)
def test_a_secret_in_an_url_is_not_said(url, store, monkeypatch):
    def quote_it(_url, **_more):
        raise ConnectionError(f"cannot reach {url}, or {url.partition('://')[2]}, with {SECRETS[url]}")

    monkeypatch.setattr("fsspec.core.url_to_fs", quote_it)
    text = "".join(failure.message + failure.hint for failure in both(url, store)) + repr(Remote(url))
    assert not any(secret in text for secret in SECRETS[url])
    assert "cannot reach" in text and "***" in text


def test_a_path_with_an_at_sign_is_no_secret():
    assert remote.said("file:///mnt/a@b/c") == "file:///mnt/a@b/c"
    assert remote.said("s3://bucket/a@b") == "s3://bucket/a@b"
