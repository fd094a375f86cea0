"""Artifacts on a remote: whole or not there, and what comes back is what was put there."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner import remote
from runner.failures import Failure, StoreFailed
from runner.remote import Remote, RemoteFailed
from runner.store import MANIFEST, Artifact, Store

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100, "sub/empty": b"", "sub/more": b"more"}
SYSTEMS = {"file": LocalFileSystem, "memory": MemoryFileSystem}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """Another machine's store."""
    return Store(tmp_path / "other")


@pytest.fixture(params=SYSTEMS)
def url(request, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


def new_url(protocol: str, folder: Path) -> str:
    """A remote of its own; the memory's is all tests'."""
    return f"file://{folder}/remote/in" if protocol == "file" else f"memory://{uuid.uuid4().hex}/in"


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


def there(url: str) -> dict[str, str]:
    """The files of the artifact on the remote: by their name in it, the path of each."""
    fs, folder = remote.connect(url, "model", "k")
    paths = [path for path in fs.find(folder) if not path.endswith(f"/{MANIFEST}")]
    return {path.lstrip("/").removeprefix(f"{folder.lstrip('/')}/").partition("/")[2]: path for path in paths}


def overwrite(url: str, name: str, content: bytes | None) -> None:
    """Damage a file of the artifact on the remote; None removes it."""
    fs, folder = remote.connect(url, "model", "k")
    path = f"{folder}/{MANIFEST}" if name == MANIFEST else there(url)[name]
    fs.rm_file(path) if content is None else fs.pipe_file(path, content)


@dataclass
class Line:
    """What went over to the remote: the names of the files sent, of which it takes so many and no more."""

    sent: list[str] = field(default_factory=list)
    takes: int | None = None


@pytest.fixture
def line(url, monkeypatch) -> Line:
    line = Line()
    system = SYSTEMS[url.partition(":")[0]]
    real = system.put_file

    def put_file(self, source, target, **more):
        if len(line.sent) == line.takes:
            self.pipe_file(target, b"half")
            raise ConnectionError("the line is cut")
        line.sent.append(Path(source).name)
        return real(self, source, target, **more)

    monkeypatch.setattr(system, "put_file", put_file)
    return line


def test_what_was_put_there_comes_back(url, store, other):
    artifact = make(store)
    assert Remote(url).pull(other, "model", "k") is None
    Remote(url).push(artifact, "model", "k")
    pulled = Remote(url).pull(other, "model", "k")
    assert pulled.manifest == artifact.manifest and contents(pulled) == contents(artifact)
    assert other.find("model", "k") == pulled and other.whole(pulled)
    assert list(other.tmp.iterdir()) == []
    assert Remote(url).pull(other, "model", "another") is None


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cc"]), min_size=1, max_size=12
)
GOOD = NAMES.filter(lambda name: name not in (".", "..", MANIFEST, "__pycache__"))
TREES = st.dictionaries(st.builds("/".join, st.lists(GOOD, min_size=1, max_size=3)), st.binary(max_size=64), max_size=5)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tree=TREES, protocol=st.sampled_from(sorted(SYSTEMS)))
def test_any_files_come_back(tree, protocol):
    tree = {name: content for name, content in tree.items() if not any(n.startswith(f"{name}/") for n in tree)}
    with tempfile.TemporaryDirectory() as folder:
        url = new_url(protocol, Path(folder))
        artifact = make(Store(Path(folder, "store")), tree)
        Remote(url).push(artifact, "model", "k")
        assert contents(Remote(url).pull(Store(Path(folder, "other")), "model", "k")) == contents(artifact)
        assert set(there(url)) == set(tree)


def test_it_replaces_a_broken_one_in_the_store(url, store, other):
    Remote(url).push(make(store), "model", "k")
    broken = make(other)
    (broken.path / "config.json").unlink()
    assert other.whole(Remote(url).pull(other, "model", "k"))


@pytest.mark.parametrize("takes", range(len(FILES)))
def test_a_push_that_breaks_off_is_not_seen_and_goes_on_where_it_was(url, store, other, line, takes):
    artifact = make(store)
    line.takes = takes
    with pytest.raises(RemoteFailed, match="could not take model/k: the line is cut") as caught:
        Remote(url).push(artifact, "model", "k")
    assert caught.value.transient and Remote(url).pull(other, "model", "k") is None
    line.takes = None
    Remote(url).push(artifact, "model", "k")
    assert line.sent == [Path(name).name for name in artifact.manifest["files"]]
    assert contents(Remote(url).pull(other, "model", "k")) == contents(artifact)
    assert set(there(url)) == set(FILES)


def test_what_is_there_is_not_sent_again(url, store, line):
    artifact = make(store)
    Remote(url).push(artifact, "model", "k")
    line.sent.clear()
    Remote(url).push(artifact, "model", "k")
    assert line.sent == []


def test_a_file_that_is_lost_there_is_sent_again(url, store, other, line):
    artifact = make(store)
    Remote(url).push(artifact, "model", "k")
    overwrite(url, "sub/more", None)
    line.sent.clear()
    Remote(url).push(artifact, "model", "k")
    assert line.sent == ["more"] and other.whole(Remote(url).pull(other, "model", "k"))


@pytest.mark.parametrize("whole", [True, False])
def test_two_makings_of_the_same_key_do_not_mix(url, store, other, line, whole):
    """Of one size, and other bytes: as of two machines that compute a little differently."""
    first, second = make(store), make(other, FILES | {"model.safetensors": b"WEIGHTS" * 100})
    if whole:
        Remote(url).push(first, "model", "k")
        line.sent.clear()
    else:
        fs, folder = remote.connect(url, "model", "k")
        for name in first.manifest["files"]:
            content = remote.content_folder(folder, first.manifest["files"])
            remote.put(fs, first.path / name, folder, f"{content}/{name}")
    Remote(url).push(second, "model", "k")
    third = Store(store.root.with_name("third"))
    assert contents(Remote(url).pull(third, "model", "k")) == contents(first if whole else second)
    assert not (whole and line.sent)


def test_pushes_at_the_same_time_leave_one_whole(url, store, other):
    artifacts = [make(store), make(other, FILES | {"model.safetensors": b"WEIGHTS" * 100})] * 3
    threads = [threading.Thread(target=Remote(url).push, args=(artifact, "model", "k")) for artifact in artifacts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    third = Store(store.root.with_name("third"))
    assert contents(Remote(url).pull(third, "model", "k")) in [contents(artifact) for artifact in artifacts]


@pytest.mark.parametrize("content", [b"WEIGHTS" * 100, b"short", None])
def test_a_file_that_was_damaged_there_is_refused(url, store, other, content):
    Remote(url).push(make(store), "model", "k")
    overwrite(url, "model.safetensors", content)
    with pytest.raises(RemoteFailed, match=r"does not verify: model\.safetensors") as caught:
        Remote(url).pull(other, "model", "k")
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
def test_a_damaged_manifest_is_refused_and_the_next_push_mends_it(url, store, other, manifest):
    artifact = make(store)
    Remote(url).push(artifact, "model", "k")
    overwrite(url, MANIFEST, manifest)
    with pytest.raises(RemoteFailed, match="does not verify"):
        Remote(url).pull(other, "model", "k")
    assert not other.folder("model", "k").exists()
    Remote(url).push(artifact, "model", "k")
    assert other.whole(Remote(url).pull(other, "model", "k"))


def test_without_its_manifest_it_is_not_there(url, store, other):
    Remote(url).push(make(store), "model", "k")
    overwrite(url, MANIFEST, None)
    assert Remote(url).pull(other, "model", "k") is None


def test_what_has_changed_in_the_store_is_not_put_there(url, store, other):
    artifact = make(store)
    (artifact.path / "model.safetensors").write_bytes(b"WEIGHTS" * 100)
    with pytest.raises(RemoteFailed, match="has changed since"):
        Remote(url).push(artifact, "model", "k")
    shutil.rmtree(artifact.path)
    with pytest.raises(StoreFailed):
        Remote(url).push(artifact, "model", "k")
    assert Remote(url).pull(other, "model", "k") is None


def test_a_remote_that_loses_what_it_took_is_found_out(url, store, other, monkeypatch):
    def put_nothing(self, _source, target, **_more):
        self.pipe_file(target, b"x")

    monkeypatch.setattr(SYSTEMS[url.partition(":")[0]], "put_file", put_nothing)
    with pytest.raises(RemoteFailed, match="does not have it whole"):
        Remote(url).push(make(store), "model", "k")
    assert Remote(url).pull(other, "model", "k") is None


def both(url: str, store: Store) -> list[Failure]:
    """The failures of a push and of a pull."""
    found = []
    for use in (lambda: Remote(url).push(make(store), "model", "k"), lambda: Remote(url).pull(store, "model", "k")):
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
    Remote(url).push(make(store), "model", "k")

    def fill(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFileSystem, "cp_file", fill)
    with pytest.raises(RemoteFailed) as pulling:
        Remote(url).pull(other, "model", "k")
    with pytest.raises(RemoteFailed) as pushing:
        Remote(url).push(make(store, key="j"), "model", "j")
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


def test_object_stores_are_written_to_directly():
    """Where an object appears whole, a rename would copy it once more."""

    class Bucket(MemoryFileSystem):
        protocol = ("s3", "s3a")

        def mv(self, *_arguments, **_more):
            raise AssertionError

    assert remote.is_object_store(Bucket()) and not remote.is_object_store(LocalFileSystem())
    remote.put_manifest(Bucket(), "/bucket/x", {"a": 1})
    assert json.loads(Bucket().cat_file(f"/bucket/x/{MANIFEST}")) == {"a": 1}
