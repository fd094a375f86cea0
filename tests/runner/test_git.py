"""What git says of a commit's place among others and among releases."""

from __future__ import annotations

import asyncio

from lab import run_git

from runner import git


def commit(folder, name: str) -> str:
    (folder / "file").write_text(name)
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", name)
    return run_git(folder, "rev-parse", "HEAD")


def test_a_commit_knows_its_ancestors_and_its_side_of_each_release(tmp_path):
    run_git(tmp_path, "init", "--quiet")
    first = commit(tmp_path, "first")
    run_git(tmp_path, "tag", "v0.17.0")
    run_git(tmp_path, "tag", "nightly")
    second = commit(tmp_path, "second")
    run_git(tmp_path, "checkout", "--quiet", "-b", "release")
    commit(tmp_path, "picked")
    run_git(tmp_path, "tag", "-a", "v0.18.0", "-m", "a tag of its own date")
    run_git(tmp_path, "checkout", "--quiet", "main")
    third = commit(tmp_path, "third")
    found = {name: asyncio.run(git.history_of(name, "-C", str(tmp_path))) for name in (first, second, third)}
    assert found[first]["ancestors"] == [] and found[third]["ancestors"] == [second[:12], first[:12]]
    sides = {name: {v: tag["side"] for v, tag in one["releases"].items()} for name, one in found.items()}
    assert sides == {
        first: {"0.17.0": "before", "0.18.0": "after"},
        second: {"0.17.0": "before", "0.18.0": "after"},
        third: {"0.17.0": "before", "0.18.0": None},
    }
    assert found[first]["date"].tzinfo is not None


def test_a_repository_without_the_commit_says_nothing(tmp_path):
    run_git(tmp_path, "init", "--quiet")
    assert asyncio.run(git.history_of("0" * 40, "-C", str(tmp_path))) is None
