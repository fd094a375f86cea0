"""Large files on a remote: in parts, which a push or a pull that was cut goes on with."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from remotes import FILES, PROTOCOLS, Moved, arrived, at, contents, make, manifest_of, new_url, overwrite, paths, there

from runner import remote_files
from runner.remote import Remote, RemoteFailed
from runner.store import MANIFEST, Store

PART = 1000
LARGE = FILES | {"weights.bin": bytes(range(256)) * 40, "sub/exact": b"e" * 3 * PART, "just": b"j" * PART}
# How many parts each of them has.
PARTS = {"weights.bin": 11, "sub/exact": 3}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr(remote_files, "PART_BYTES", PART)
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 300)


@pytest.fixture(params=PROTOCOLS)
def url(request, tmp_path: Path, monkeypatch) -> str:
    if request.param == "s3":  # which takes no smaller block to stream
        monkeypatch.setattr(remote_files, "BLOCK_BYTES", 5 * 2**20)
    return new_url(request.param, tmp_path, monkeypatch)


def parts_there(url: str) -> list[str]:
    return sorted(name for name in paths(url) if name.startswith("parts/"))


def part_of(name: str, start: int) -> str:
    """The name on the remote of a part of one of `LARGE`."""
    end = min(start + PART, len(LARGE[name]))
    return f"parts/{hashlib.sha256(LARGE[name]).hexdigest()}/{start:013}-{end:013}"


@pytest.fixture
def moved(monkeypatch) -> Moved:
    return Moved(monkeypatch)


def test_a_large_file_is_put_in_parts_and_comes_back(url, store, other):
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    expected = [part_of(name, number * PART) for name, count in PARTS.items() for number in range(count)]
    assert parts_there(url) == sorted(expected)
    assert set(there(url)) == set(LARGE) - set(PARTS)
    pulled = at(url).pull(other, "model", "k")
    assert pulled.manifest == artifact.manifest and contents(pulled) == contents(artifact)
    assert json.loads((pulled.path / MANIFEST).read_text()) == artifact.manifest
    assert other.whole(pulled) and list(other.tmp.iterdir()) == []


def test_what_was_put_there_whole_still_comes_back(url, store, other, monkeypatch):
    """As it lies there since before there were parts."""
    with monkeypatch.context() as before:
        before.setattr(remote_files, "PART_BYTES", 10**6)
        at(url).push(make(store, LARGE), "model", "k")
    assert set(there(url)) == set(LARGE) and parts_there(url) == []
    assert at(url).has("model", "k") and other.whole(at(url).pull(other, "model", "k"))


def test_parts_of_another_size_still_come_back(url, store, other, monkeypatch, moved):
    with monkeypatch.context() as before:
        before.setattr(remote_files, "PART_BYTES", 700)
        at(url).push(make(store, LARGE), "model", "k")
    put = list(moved.put)
    at(url).push(make(store, LARGE), "model", "k")
    assert moved.put == put and other.whole(at(url).pull(other, "model", "k"))


def test_the_same_bytes_under_two_names_are_put_once(url, store, other, moved):
    artifact = make(store, {"a": b"x" * 2500, "b/c": b"x" * 2500})
    at(url).push(artifact, "model", "k")
    assert len(moved.put) == 3 and contents(at(url).pull(other, "model", "k")) == contents(artifact)


def test_two_makings_of_the_same_key_share_what_is_the_same(url, store, other, moved):
    at(url).push(make(store, LARGE), "model", "k")
    overwrite(url, MANIFEST, None)
    moved.put.clear()
    artifact = make(other, LARGE | {"config.json": b"{ }"})
    at(url).push(artifact, "model", "k")
    assert not any(name.startswith("parts/") for name in moved.put)
    third = Store(store.root.with_name("third"))
    assert contents(at(url).pull(third, "model", "k")) == contents(artifact)


@pytest.mark.parametrize("cut", [0, 1, 7, 17])
def test_a_push_that_breaks_off_goes_on_with_the_parts_that_are_missing(url, store, other, moved, cut):
    artifact = make(store, LARGE)
    moved.fails_at = cut
    with pytest.raises(RemoteFailed, match="the line is cut"):
        at(url).push(artifact, "model", "k")
    assert not at(url).has("model", "k") and at(url).pull(other, "model", "k") is None
    assert set(paths(url)) == set(moved.put)
    moved.fails_at = None
    at(url).push(artifact, "model", "k")
    pieces = [piece for piece in paths(url) if piece != MANIFEST]
    assert sorted(moved.put) == sorted(pieces) and moved.bytes == sum(map(len, LARGE.values()))
    assert other.whole(at(url).pull(other, "model", "k"))


@pytest.mark.parametrize("cut", [0, 1, 7, 17])
def test_a_pull_that_breaks_off_goes_on_with_what_has_not_arrived(url, store, other, moved, cut):
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    moved.fails_at, moved.bytes = cut, 0
    with pytest.raises(RemoteFailed, match="the line is cut"):
        at(url).pull(other, "model", "k")
    assert other.find("model", "k") is None and not other.folder("model", "k").exists()
    moved.fails_at = None
    # Another process of that machine.
    assert contents(Remote(url).pull(Store(other.root), "model", "k")) == contents(artifact)
    assert sorted(moved.got) == sorted(paths(url)) and moved.bytes == sum(map(len, LARGE.values()))
    assert list(other.tmp.iterdir()) == []


def test_what_has_arrived_and_was_damaged_is_fetched_again(url, store, other, moved):
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    moved.fails_at = 17
    with pytest.raises(RemoteFailed):
        at(url).pull(other, "model", "k")
    moved.fails_at = None
    begun = len(moved.got)
    (folder,) = arrived(other)
    (folder / "out" / "config.json").write_bytes(b"[]")
    with (folder / "out" / "weights.bin").open("r+b") as file:
        file.write(b"?")
    assert contents(at(url).pull(other, "model", "k")) == contents(artifact)
    assert part_of("weights.bin", 0) in moved.got[begun:]


@pytest.mark.parametrize("content", [b"?" * PART, b"short", b"", None])
def test_a_part_that_was_damaged_there_is_refused(url, store, other, content):
    at(url).push(make(store, LARGE), "model", "k")
    overwrite(url, part_of("weights.bin", 2 * PART), content)
    with pytest.raises(RemoteFailed, match=r"does not verify: weights\.bin"):
        at(url).pull(other, "model", "k")
    assert not other.folder("model", "k").exists() and list(other.tmp.iterdir()) == []


def test_the_file_that_parts_make_is_checked(url, store, other):
    """Though each part has the hash that the manifest gives it."""
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    wrong = b"?" * PART
    manifest = manifest_of(url)
    digests = manifest["parts"]["sha256"][artifact.manifest["files"]["weights.bin"]["sha256"]]
    digests[2] = hashlib.sha256(wrong).hexdigest()
    overwrite(url, part_of("weights.bin", 2 * PART), wrong)
    overwrite(url, MANIFEST, json.dumps(manifest).encode())
    with pytest.raises(RemoteFailed, match=r"does not verify: weights\.bin"):
        at(url).pull(other, "model", "k")
    assert list(other.tmp.iterdir()) == []


def test_a_part_that_is_lost_there_is_put_there_again(url, store, other, moved):
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    overwrite(url, part_of("weights.bin", 0), None)
    moved.put.clear()
    at(url).push(artifact, "model", "k")
    assert moved.put == [part_of("weights.bin", 0)] and other.whole(at(url).pull(other, "model", "k"))


@pytest.mark.parametrize(
    "change",
    [
        lambda parts, sha256: parts.pop("bytes"),
        lambda parts, sha256: parts.update(bytes=0),
        lambda parts, sha256: parts.update(bytes="1000"),
        lambda parts, sha256: parts["sha256"][sha256].pop(),
        lambda parts, sha256: parts["sha256"].update({sha256: []}),
        lambda parts, sha256: parts["sha256"].update({sha256: [1] * 11}),
        lambda parts, sha256: parts["sha256"].update({"0" * 64: parts["sha256"].pop(sha256)}),
        lambda parts, sha256: parts.update(sha256=[]),
    ],
)
def test_a_manifest_with_damaged_parts_is_refused(store, other, tmp_path, monkeypatch, change):
    url = new_url("file", tmp_path, monkeypatch)
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    manifest = manifest_of(url)
    change(manifest["parts"], artifact.manifest["files"]["weights.bin"]["sha256"])
    overwrite(url, MANIFEST, json.dumps(manifest).encode())
    with pytest.raises(RemoteFailed, match="is damaged"):
        at(url).pull(other, "model", "k")
    assert not at(url).has("model", "k")
    at(url).push(artifact, "model", "k")
    assert at(url).has("model", "k") and other.whole(at(url).pull(other, "model", "k"))


def test_parts_that_lie_elsewhere_are_refused(store, other, tmp_path, monkeypatch):
    url = new_url("file", tmp_path, monkeypatch)
    at(url).push(make(store, LARGE), "model", "k")
    manifest = manifest_of(url)
    entry = manifest["files"]["weights.bin"]
    manifest["parts"]["sha256"]["../.."] = manifest["parts"]["sha256"].pop(entry["sha256"])
    entry["sha256"] = "../.."
    overwrite(url, MANIFEST, json.dumps(manifest).encode())
    with pytest.raises(RemoteFailed, match="is damaged"):
        at(url).pull(other, "model", "k")


def test_a_pull_with_no_room_left_keeps_none_of_it(store, other, tmp_path, monkeypatch):
    url = new_url("file", tmp_path, monkeypatch)
    at(url).push(make(store, LARGE), "model", "k")

    def fill(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote_files, "read", fill)
    with pytest.raises(RemoteFailed) as caught:
        at(url).pull(other, "model", "k")
    assert caught.value.error_type == "DiskFull" and list(other.tmp.iterdir()) == []


def test_what_a_cut_pull_left_is_swept_when_it_is_old(url, store, other, moved):
    at(url).push(make(store, LARGE), "model", "k")
    moved.fails_at = 5
    with pytest.raises(RemoteFailed):
        at(url).pull(other, "model", "k")
    other.sweep_tmp()
    (folder,) = arrived(other)
    os.utime(folder, (time.time() - 90_000,) * 2)
    moved.fails_at = 7  # two more arrive, so it is in use
    with pytest.raises(RemoteFailed):
        at(url).pull(other, "model", "k")
    other.sweep_tmp()
    assert arrived(other) == [folder]
    os.utime(folder, (time.time() - 90_000,) * 2)
    other.sweep_tmp()
    assert arrived(other) == []


def test_pulls_at_the_same_time_give_one_whole(url, store, other):
    artifact = make(store, LARGE)
    at(url).push(artifact, "model", "k")
    threads = [threading.Thread(target=at(url).pull, args=(Store(other.root), "model", "k")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(other.find("model", "k")) == contents(artifact) and list(other.tmp.iterdir()) == []


def test_what_killed_pushes_were_writing_is_removed_when_it_is_old(store, tmp_path, monkeypatch):
    url = new_url("file", tmp_path, monkeypatch)
    artifact = make(store)
    at(url).push(artifact, "model", "k")
    folder = tmp_path / "remote" / "in" / "model" / "k"
    old, new, another = (folder / f"{start * 32}.part" for start in ("a", "b", "no"))
    for file in (old, new, another):
        file.write_text("x")
    for file in (old, another):
        os.utime(file, (time.time() - 90_000,) * 2)
    at(url).push(artifact, "model", "k")
    assert not old.exists() and new.exists() and another.exists()


def test_object_stores_are_written_to_directly():
    """Where an object appears whole, a rename would copy it once more."""

    class Bucket(MemoryFileSystem):
        protocol = ("s3", "s3a")

        def mv(self, *_arguments, **_more):
            raise AssertionError

    assert remote_files.is_object_store(Bucket()) and not remote_files.is_object_store(LocalFileSystem())
    remote_files.put_manifest(Bucket(), "/bucket/x", {"a": 1})
    assert json.loads(Bucket().cat_file(f"/bucket/x/{MANIFEST}")) == {"a": 1}


def test_side_by_side_does_each_once_and_raises_the_first_error():
    done = []
    remote_files.side_by_side(done.append, iter(range(100)), 4)
    assert sorted(done) == list(range(100))

    def work(item):
        if item == 3:
            raise StopIteration("three")
        time.sleep(0.01)
        done.append(item)

    done.clear()
    with pytest.raises(StopIteration, match="three"):
        remote_files.side_by_side(work, range(100), 4)
    assert len(done) < 20
