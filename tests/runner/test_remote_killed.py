"""A push or a pull whose process is killed: what is there then is not seen, and the next one goes on with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import s3_server
from remotes import Moved, arrived, at, contents, make, manifest_of, new_url, paths

from runner import remote_files
from runner.paths import PROJECT
from runner.store import MANIFEST, Store


@dataclass(frozen=True)
class Case:
    """A large file of `count` parts, of which so many have begun when the process is killed."""

    protocol: str
    part: int
    block: int
    count: int
    after: int

    def files(self) -> dict[str, bytes]:
        return {"weights.bin": os.urandom(self.count * self.part), "config.json": b"{}"}


# S3 takes no smaller blocks of a part than 5 MiB, and parts that are smaller than a block at once.
CASES = [
    Case("file", 1000, 80, 60, 20),
    Case("s3", 1000, 5 * 2**20, 60, 20),
    Case("s3", 12 * 2**20, 5 * 2**20, 7, 5),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """Another machine's store."""
    return Store(tmp_path / "other")


@pytest.fixture(params=CASES, ids=lambda case: f"{case.protocol}-{case.part}")
def case(request, monkeypatch) -> Case:
    monkeypatch.setattr(remote_files, "PART_BYTES", request.param.part)
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", request.param.block)
    return request.param


@pytest.fixture
def url(case, tmp_path, monkeypatch) -> str:
    return new_url(case.protocol, tmp_path, monkeypatch)


# What a process that is killed runs: a slow line, which tells of each piece when it begins.
SLOWLY = """
import sys, time
from pathlib import Path
from fsspec.implementations.local import LocalFileOpener
from runner import remote_files
from runner.remote import Remote
from runner.store import MANIFEST, Store

what, url, root, line, part, block = sys.argv[1:]
remote_files.PART_BYTES, remote_files.BLOCK_BYTES = int(part), int(block)

def slow(real, tell=False):
    def call(*arguments, **named):
        time.sleep(0.004)
        if tell:
            with open(line, "a") as file:
                file.write("x")
        return real(*arguments, **named)
    return call

remote_files.put, remote_files.get = slow(remote_files.put, True), slow(remote_files.get, True)
remote_files.cat, LocalFileOpener.write = slow(remote_files.cat), slow(LocalFileOpener.write)
store = Store(Path(root))
if what == "push":
    Remote(url).push(store.find("model", "k"), "model", "k")
else:
    Remote(url).pull(store, "model", "k")
"""


def killed(what: str, url: str, store: Store, case: Case, line: Path, how: signal.Signals) -> int:
    """Push or pull in a process of its own, and kill it in the middle; the number of pieces that it has begun."""
    arguments = what, url, store.root, line, case.part, case.block
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, *map(str, arguments)], cwd=PROJECT, env=os.environ)
    while not line.exists() or line.stat().st_size < case.after:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.002)
    process.send_signal(how)
    assert process.wait(10) == -how
    return line.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_push_that_is_killed_goes_on(case, url, how, store, other, tmp_path, monkeypatch):
    artifact = make(store, case.files())
    begun = killed("push", url, store, case, tmp_path / "line", how)
    before = {name for name in paths(url) if not remote_files.ASIDE.fullmatch(name)}
    # What was on its way at the end is all that is lost.
    assert case.after - remote_files.AT_A_TIME <= len(before) <= begun < case.count
    assert not at(url).has("model", "k") and at(url).pull(other, "model", "k") is None
    moved = Moved(monkeypatch)
    s3_server.started().requests.clear()
    at(url).push(artifact, "model", "k")
    # Fewer than are missing, where the server had all of one whose sender was killed.
    assert len(moved.put) <= case.count + 1 - len(before) and not set(moved.put) & before
    if case.protocol == "s3":
        written = s3_server.started().asked("PUT", "/model/k/")
        assert {path.partition("/model/k/")[2].partition("?")[0] for path in written} == {*moved.put, MANIFEST}
    assert contents(at(url).pull(other, "model", "k")) == contents(artifact)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_pull_that_is_killed_goes_on(case, url, how, store, other, tmp_path, monkeypatch):
    files = case.files()
    artifact = make(store, files)
    at(url).push(artifact, "model", "k")
    begun = killed("pull", url, other, case, tmp_path / "line", how)
    assert other.find("model", "k") is None and not other.folder("model", "k").exists()
    (folder,) = arrived(other)
    pieces = remote_files.pieces_of(manifest_of(url))
    have = [piece for piece in pieces if remote_files.holds(folder / "out" / piece.name, piece)]
    assert case.after - remote_files.AT_A_TIME <= len(have) <= begun < case.count
    moved = Moved(monkeypatch)
    s3_server.started().requests.clear()
    assert contents(at(url).pull(other, "model", "k")) == contents(artifact)
    assert sorted(moved.got) == sorted(piece.path for piece in pieces if piece not in have)
    assert moved.bytes == sum(map(len, files.values())) - sum(piece.size for piece in have)
    if case.protocol == "s3":
        read = s3_server.started().asked("GET", "/model/k/")
        assert {path.partition("/model/k/")[2] for path in read} == {*moved.got, MANIFEST}
    assert list(other.tmp.iterdir()) == []
