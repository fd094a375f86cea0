"""An artifact is whole or it is not there, and is made once."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from runner.store import MANIFEST, Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def make(store: Store, key: str = "k", content: str = "content"):
    with store.draft("x") as draft:
        out = draft / "out"
        (out / "sub").mkdir(parents=True)
        (out / "sub" / "file").write_text(content)
        return store.finish("kind", key, out, {"in": 1}, {"said": 2})


def test_what_was_finished_is_found(store):
    assert store.find("kind", "k") is None
    made = make(store)
    found = store.find("kind", "k")
    assert found == made
    assert found.meta == {"said": 2} and found.manifest["inputs"] == {"in": 1}
    assert list(found.manifest["files"]) == ["sub/file"]
    assert list(store.tmp.iterdir()) == []


def test_without_its_stamp_it_is_not_there(store):
    folder = make(store).path
    (folder / MANIFEST).unlink()
    assert store.find("kind", "k") is None


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"files": {}', json.dumps({"files": {"a": {}}}), '{"files": []}', '{"files": {}}']
)
def test_a_damaged_stamp_is_no_stamp(store, damage):
    folder = make(store).path
    (folder / MANIFEST).write_text(damage)
    assert store.find("kind", "k") is None


def test_a_file_cut_short_or_gone_is_noticed(store):
    folder = make(store).path
    (folder / "sub" / "file").write_text("cont")
    assert store.find("kind", "k") is None
    (folder / "sub" / "file").unlink()
    assert store.find("kind", "k") is None


def test_bytes_that_changed_are_noticed_when_they_are_read(store):
    artifact = make(store)
    assert store.whole(artifact)
    (artifact.path / "sub" / "file").write_text("CONTENT")
    assert store.find("kind", "k") and not store.whole(artifact)
    store.remove(artifact)
    assert store.find("kind", "k") is None and list(store.tmp.iterdir()) == []
    store.remove(artifact)


def test_a_broken_artifact_is_replaced(store):
    folder = make(store).path
    (folder / "sub" / "file").write_text("")
    (folder / "stray").write_text("x")
    make(store, content="anew")
    assert (folder / "sub" / "file").read_text() == "anew"
    assert not (folder / "stray").exists()
    assert list(store.tmp.iterdir()) == []


def test_a_failed_making_leaves_nothing(store):
    with pytest.raises(RuntimeError), store.draft("x") as draft:
        (draft / "half").write_text("x")
        raise RuntimeError
    assert list(store.tmp.iterdir()) == []


def test_a_lock_lets_one_in_at_a_time(store):
    inside, most = 0, 0

    async def enter():
        nonlocal inside, most
        async with store.locked("name"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    async def all_of_them():
        await asyncio.gather(*(enter() for _ in range(5)))

    asyncio.run(all_of_them())
    assert most == 1


def test_old_left_overs_are_swept_and_new_ones_kept(store):
    old, new = store.tmp / "old", store.tmp / "new"
    old.mkdir(parents=True)
    new.mkdir()
    long_ago = time.time() - 90_000
    os.utime(old, (long_ago, long_ago))
    store.sweep_tmp()
    assert not old.exists() and new.exists()
