"""Where builders come from: git refs and working copies, made here."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from lab import run_git

from runner import git, sources
from runner.failures import Failure, SourceFailed
from runner.schema import Builder, Diff
from runner.store import Store


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository: a first commit tagged v1, a second on main, a third as a pull request's head."""
    root = tmp_path / "repository"
    models = root / sources.INSIDE_REPOSITORY
    (models / "builders").mkdir(parents=True)
    (models / "builder.py").write_text("one\n")
    run_git(root, "init", "--quiet")
    run_git(root, "add", ".")
    run_git(root, "commit", "--quiet", "-m", "one")
    run_git(root, "tag", "v1")
    (models / "builder.py").write_text("two\n")
    run_git(root, "commit", "--quiet", "-am", "two")
    run_git(root, "checkout", "--quiet", "-b", "work")
    (models / "builder.py").write_text("three\n")
    run_git(root, "commit", "--quiet", "-am", "three")
    run_git(root, "update-ref", "refs/pull/7/head", "HEAD")
    run_git(root, "checkout", "--quiet", "main")
    run_git(root, "branch", "--quiet", "-D", "work")
    return root


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def in_a_sweep(store: Store, use):
    """Run `use(mirrors)` as a sweep would: one fetch a repository."""
    shared: dict[str, asyncio.Task] = {}

    async def main():
        async def once(key, make):
            if key not in shared:
                shared[key] = asyncio.create_task(make())
            return await shared[key]

        return await use(git.Mirrors(store, once))

    return asyncio.run(main())


def fetch(store: Store, **builder) -> sources.Source:
    wanted = Builder(name="main", kind="git", version="0.18.0", **builder)
    return in_a_sweep(store, lambda mirrors: sources.fetch(store, wanted, mirrors))


def text(source: sources.Source) -> str:
    return (source.path / "builder.py").read_text()


@pytest.mark.parametrize(("ref", "says"), [("main", "two\n"), ("v1", "one\n"), ("refs/pull/7/head", "three\n")])
def test_a_ref_is_resolved_to_its_commit(store, repository, ref, says):
    found = fetch(store, repo=str(repository), ref=ref)
    assert text(found) == says and found.version is None and len(found.commit) == 40
    assert ref in found.said and found.commit[:12] in found.said


def test_a_commit_is_a_ref_short_or_whole(store, repository):
    commit = run_git(repository, "rev-parse", "v1")
    assert fetch(store, repo=str(repository), ref=commit).commit == commit
    assert fetch(store, repo=str(repository), ref=commit[:9]).commit == commit


def test_a_moved_branch_is_seen_by_the_next_sweep(store, repository):
    first = fetch(store, repo=str(repository), ref="main")
    (repository / sources.INSIDE_REPOSITORY / "builder.py").write_text("four\n")
    run_git(repository, "commit", "--quiet", "-am", "four")
    second = fetch(store, repo=str(repository), ref="main")
    assert (text(first), text(second)) == ("two\n", "four\n") and first.commit != second.commit


def test_what_was_fetched_is_usable_when_the_repository_is_not(store, repository):
    first = fetch(store, repo=str(repository), ref="main")
    shutil.move(repository, repository.with_name("away"))
    assert fetch(store, repo=str(repository), ref="main") == first
    assert fetch(store, repo=str(repository), ref=first.commit).commit == first.commit


def test_an_unreachable_repository_says_what_to_set(store, tmp_path):
    with pytest.raises(SourceFailed) as caught:
        fetch(store, repo=str(tmp_path / "nowhere"), ref="main")
    assert "nowhere" in caught.value.message and "GENAI_REPO" in caught.value.hint


def test_an_unknown_ref_names_those_near_it(store, repository):
    with pytest.raises(SourceFailed, match="mian") as caught:
        fetch(store, repo=str(repository), ref="mian")
    assert "main" in caught.value.hint


def test_the_repository_comes_from_the_environment(store, repository, monkeypatch):
    monkeypatch.setenv("GENAI_REPO", str(repository))
    assert text(fetch(store, ref="main")) == "two\n"


def test_a_repository_without_the_models_folder_says_so(store, tmp_path):
    root = tmp_path / "other"
    root.mkdir()
    (root / "file").write_text("x")
    run_git(root, "init", "--quiet")
    run_git(root, "add", ".")
    run_git(root, "commit", "--quiet", "-m", "x")
    with pytest.raises(SourceFailed, match=sources.INSIDE_REPOSITORY):
        fetch(store, repo=str(root), ref="main")


def test_a_secret_in_an_url_is_not_said(store):
    with pytest.raises(SourceFailed) as caught:
        fetch(store, repo="file://me:hunter2secret@localhost/nowhere", ref="main")
    assert "hunter2secret" not in caught.value.message + caught.value.hint


def working_copy(store: Store, path: Path) -> sources.Source:
    wanted = Builder(name="path", kind="path", version="0.18.0", path=str(path))
    return in_a_sweep(store, lambda mirrors: sources.fetch(store, wanted, mirrors))


def test_a_working_copy_counts_as_it_is_and_is_named_as_dirty(store, repository):
    clean = working_copy(store, repository)
    assert not clean.dirty and "dirty" not in clean.said and clean.commit
    (repository / sources.INSIDE_REPOSITORY / "builder.py").write_text("mine\n")
    dirty = working_copy(store, repository)
    assert dirty.dirty and "dirty" in dirty.said and dirty.commit == clean.commit
    assert dirty.tree != clean.tree and text(dirty) == "mine\n"
    assert working_copy(store, repository / sources.INSIDE_REPOSITORY).tree == dirty.tree


def test_a_commit_and_a_clean_working_copy_have_the_same_tree(store, repository):
    assert working_copy(store, repository).tree == fetch(store, repo=str(repository), ref="main").tree


def test_a_folder_that_is_no_builder_is_refused(store, tmp_path):
    with pytest.raises(SourceFailed, match=r"no builder\.py") as caught:
        working_copy(store, tmp_path)
    assert "builder.path" in caught.value.hint


def diff_text(store: Store, repository: Path, **wanted) -> str:
    from runner import diffs

    return in_a_sweep(store, lambda mirrors: diffs.get(mirrors, str(repository), Diff(**wanted))).text


def test_a_diff_between_two_refs(store, repository):
    found = diff_text(store, repository, old="v1", new="main")
    assert "-one" in found and "+two" in found
    with pytest.raises(Failure, match="nothing differs"):
        diff_text(store, repository, old="v1", new="main", paths=("builders",))
    with pytest.raises(SourceFailed, match="v9"):
        diff_text(store, repository, old="v9", new="main")


def test_a_pull_request_is_fetched_once_and_kept(store, repository):
    found = diff_text(store, repository, number=7)
    assert "-two" in found and "+three" in found
    shutil.move(repository, repository.with_name("away"))
    assert diff_text(store, repository, number=7) == found


@pytest.mark.parametrize("how", ["--ff-only", "--no-ff", "--squash"])
def test_a_pull_request_that_was_merged_is_still_its_own_diff(store, repository, how):
    run_git(repository, "merge", "--quiet", how, "-m", "merged", "refs/pull/7/head") if how != "--ff-only" else run_git(
        repository, "merge", "--quiet", how, "refs/pull/7/head"
    )
    if how == "--squash":
        run_git(repository, "commit", "--quiet", "-m", "squashed")
    (repository / "later").write_text("x")
    run_git(repository, "add", ".")
    run_git(repository, "commit", "--quiet", "-m", "later")
    found = diff_text(store, repository, number=7)
    assert "-two" in found and "+three" in found and "later" not in found


def test_a_pull_request_that_is_not_there(store, repository):
    with pytest.raises(SourceFailed, match="refs/pull/8/head"):
        diff_text(store, repository, number=8)


def test_a_repository_that_git_is_pointed_at_is_left_alone(store, repository, tmp_path, monkeypatch):
    """Inside a hook git's variables name the user's repository, whose refs a fetch would prune."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").write_text("x")
    run_git(mine, "init", "--quiet")
    run_git(mine, "add", ".")
    run_git(mine, "commit", "--quiet", "-m", "mine")
    run_git(mine, "branch", "precious")
    before = run_git(mine, "for-each-ref")
    monkeypatch.setenv("GIT_DIR", str(mine / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(mine))
    found = fetch(store, repo=str(repository), ref="main")
    copy = working_copy(store, repository)
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_WORK_TREE")
    assert text(found) == "two\n" and copy.commit == found.commit
    assert run_git(mine, "for-each-ref") == before


def test_a_relative_repository_is_found_from_where_the_user_is(store, repository, monkeypatch):
    monkeypatch.chdir(repository.parent)
    assert text(fetch(store, repo="repository", ref="main")) == "two\n"


def test_a_pull_requests_head_as_a_builder_needs_no_network_the_second_time(store, repository):
    first = fetch(store, repo=str(repository), ref="refs/pull/7/head")
    shutil.move(repository, repository.with_name("away"))
    assert fetch(store, repo=str(repository), ref="refs/pull/7/head").commit == first.commit


def test_a_pull_request_that_has_moved_is_seen_by_the_next_sweep(store, repository):
    first = diff_text(store, repository, number=7)
    (repository / sources.INSIDE_REPOSITORY / "builder.py").write_text("moved\n")
    run_git(repository, "commit", "--quiet", "-am", "moved")
    run_git(repository, "update-ref", "refs/pull/7/head", "HEAD")
    run_git(repository, "reset", "--quiet", "--hard", "HEAD^")
    assert "+moved" in diff_text(store, repository, number=7) and "+moved" not in first


def test_a_folder_that_its_repository_ignores_has_no_commit(store, repository):
    (repository / ".gitignore").write_text("aside/\n")
    (repository / "aside").mkdir()
    (repository / "aside" / "builder.py").write_text("x\n")
    found = working_copy(store, repository / "aside")
    assert found.commit is None and not found.dirty


def test_links_that_lead_nowhere_are_not_sources(store, repository):
    (repository / sources.INSIDE_REPOSITORY / "dangling.py").symlink_to("/no/such/file")
    assert text(working_copy(store, repository)) == "two\n"
