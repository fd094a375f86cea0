"""A bucket as the remote: s3fs and a server over HTTP, which tells what it was asked."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import s3_server
from aiobotocore.session import AioSession
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remotes import at, connect, contents, make, manifest_of, new_url, overwrite, paths

from runner import remote_files
from runner.paths import PROJECT
from runner.remote import Remote, RemoteFailed
from runner.store import MANIFEST, Store

THREE = {"a": b"a" * 1000, "b": b"b", "c/d": b"d" * 10}
MB = 2**20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """Another machine's store."""
    return Store(tmp_path / "other")


@pytest.fixture
def url(tmp_path, monkeypatch) -> str:
    return new_url("s3", tmp_path, monkeypatch)


@pytest.fixture
def server(url) -> s3_server.Server:
    server = s3_server.started()
    server.requests.clear()
    return server


def test_what_it_costs_to_ask(url, server, store, other):
    """One request for what is not there, and nothing twice for what is."""
    assert at(url).pull(other, "model", "k") is None and not at(url).has("model", "k")
    assert [method for method, _ in server.requests] == ["GET", "GET"]
    artifact = make(store, THREE)
    server.requests.clear()
    at(url).push(artifact, "model", "k")
    assert len(server.asked("PUT")) == 4 and len(server.requests) <= 8
    for use, cost in ((at(url).has, 1), (lambda *key: at(url).push(artifact, *key), 2)):
        server.requests.clear()
        use("model", "k")
        assert len(server.requests) == cost
    server.requests.clear()
    at(url).pull(other, "model", "k")
    assert len(server.requests) == 4


def test_many_threads_have_one_session(url, store, other, monkeypatch):
    made, create = [], AioSession.create_client
    monkeypatch.setattr(AioSession, "create_client", lambda *args, **named: made.append(1) or create(*args, **named))
    keys = [f"k{number}" for number in range(6)]
    artifacts = {key: make(store, THREE, key) for key in keys}
    place, pulled = Remote(url), {}

    def use(key: str) -> None:
        assert not place.has("model", key)
        place.push(artifacts[key], "model", key)
        pulled[key] = place.pull(other, "model", key)

    threads = [threading.Thread(target=use, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1] and {key: contents(pulled[key]) for key in pulled} == {
        key: contents(artifacts[key]) for key in keys
    }


def test_what_another_machine_does_there_is_seen_at_once(url, store, other):
    mine, theirs, artifact = Remote(url), Remote(url), make(store, THREE)
    assert not mine.has("model", "k") and not theirs.has("model", "k")
    mine.push(artifact, "model", "k")
    assert theirs.has("model", "k")
    theirs.push(artifact, "model", "k")  # it has listed now what is there
    overwrite(url, "a", None)
    theirs.push(artifact, "model", "k")
    assert other.whole(mine.pull(other, "model", "k"))
    overwrite(url, MANIFEST, None)
    assert not mine.has("model", "k") and mine.pull(other, "model", "k") is None


def test_a_bucket_that_is_not_there_is_said(url, store, other):
    place = Remote("s3://no-such-bucket/in")
    assert place.pull(other, "model", "k") is None
    with pytest.raises(RemoteFailed, match=r"could not take model/k: .*bucket does not exist") as caught:
        place.push(make(store, THREE), "model", "k")
    assert caught.value.transient


def test_without_credentials_it_says_so(url, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(RemoteFailed, match=r"could not be asked for model/k: .*credentials") as caught:
        Remote(url).has("model", "k")
    assert "credentials" in caught.value.hint


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["Cc"]), min_size=1)
GOOD = NAMES.filter(lambda name: len(name.encode()) < 200 and name not in (".", "..", MANIFEST, "__pycache__"))


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(names=st.sets(GOOD, max_size=5))
def test_files_of_any_name_come_back(url, names):
    with tempfile.TemporaryDirectory() as folder:
        artifact = make(Store(Path(folder, "store")), {name: name.encode() for name in names})
        at(url).push(artifact, "model", "k")
        assert contents(at(url).pull(Store(Path(folder, "other")), "model", "k")) == contents(artifact)
    overwrite(url, MANIFEST, None)


@pytest.mark.slow
def test_a_part_goes_block_by_block(url, server, store, other, monkeypatch):
    monkeypatch.setattr(remote_files, "PART_BYTES", 12 * MB)
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 5 * MB)
    artifact = make(store, {"large": os.urandom(20 * MB), "middle": os.urandom(7 * MB)})
    at(url).push(artifact, "model", "k")
    assert len(server.asked("PUT", "partNumber=")) == 3 + 2 + 2
    assert sorted(len(digests) for digests in manifest_of(url)["parts"]["sha256"].values()) == [2]
    assert contents(at(url).pull(other, "model", "k")) == contents(artifact)


@pytest.mark.parametrize("blocks", [0, 1])
def test_of_a_part_that_breaks_off_nothing_is_seen(url, server, tmp_path, monkeypatch, blocks):
    monkeypatch.setattr(remote_files, "BLOCK_BYTES", 5 * MB)
    piece = remote_files.Piece("large", "parts/x/0", 0, 8 * MB, "", True)
    file = tmp_path / "large"
    file.write_bytes(bytes(blocks * 5 * MB + 10))
    fs, folder = connect(url)
    with pytest.raises(EOFError):
        remote_files.put(fs, file, folder, piece)
    assert paths(url) == {}
    assert len(server.asked("PUT", "partNumber=")) == len(server.asked("DELETE", "uploadId=")) == blocks


ASK = "import sys; from runner.remote import Remote; print(Remote(sys.argv[1]).has('model', 'k'))"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL"])
def test_where_the_server_is_comes_from_the_environment(url, store, name):
    at(url).push(make(store, THREE), "model", "k")
    environment = {**os.environ, name: os.environ["AWS_ENDPOINT_URL"]}
    if name != "AWS_ENDPOINT_URL":
        del environment["AWS_ENDPOINT_URL"]
    done = subprocess.run(
        [sys.executable, "-c", ASK, url], cwd=PROJECT, env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


# One thread, so that the measure is of one part.
GROWTH = """
from pathlib import Path
from runner import remote_files
from runner.remote import Remote
from runner.store import Store

url, root, other = sys.argv[1:]
remote_files.PART_BYTES, remote_files.BLOCK_BYTES, remote_files.AT_A_TIME = 2**26, 5 * 2**20, 1
place, store = Remote(url), Store(Path(root))
place.has("model", "k")
push = grown(lambda: place.push(store.find("model", "k"), "model", "k"))
print(json.dumps([push, grown(lambda: place.pull(Store(Path(other)), "model", "k"))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["file", "s3"])
def test_memory_holds_no_part(protocol, tmp_path, store, other, monkeypatch, run_script):
    url = new_url(protocol, tmp_path, monkeypatch)
    make(store, {"large": bytes(130 * MB)})
    grown = run_script(sys.executable, GROWTH, url, store.root, other.root)
    assert max(grown) < 40 * MB
    assert other.whole(other.find("model", "k"))
