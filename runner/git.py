"""Git: a bare mirror of each repository in the store, fetched once per sweep, usable offline."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

from db.builder_order import SHORT
from db.scrub import scrub
from runner import hashing, processes
from runner.failures import SourceFailed
from runner.store import Store

COMMIT = re.compile(r"[0-9a-f]{40}")
HINT = "set GENAI_REPO (or builder.repo) to a repository that can be reached: a URL, or the path of a clone"


class GitError(Exception):
    """git ended with an error; the message is what it said."""


def clean_environment() -> dict[str, str]:
    """The environment without what points git at a repository: inside a hook that would be the user's own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key in PASSED}
    return kept | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


# Of git's variables those that say how to reach a server.
PASSED = ("GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_PROXY_COMMAND")


async def git(*arguments: str) -> str:
    """Run git without asking anyone for anything; return its standard output."""
    code, out, err = await processes.output("git", *arguments, environment=clean_environment())
    if code:
        lines = [line for line in err.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines[-1:] or ["git failed"]
        raise GitError(scrub(fatal[0]))
    return out


@dataclass
class Mirrors:
    """The mirrors in a store. `once` shares a fetch among the cells of a sweep."""

    store: Store
    once: Callable

    def folder(self, url: str) -> Path:
        return self.store.root / "git" / f"{hashing.of_value(url)[:16]}.git"

    async def git(self, url: str, *arguments: str) -> str:
        """Run git on a mirror."""
        return await git(f"--git-dir={self.folder(url)}", *arguments)

    async def commit(self, url: str, ref: str) -> str:
        """The commit that a branch, tag, pull request's head or commit stands for. Errors: `SourceFailed`."""
        found = await self.parse(url, ref) if COMMIT.fullmatch(ref) else None
        if found:  # a whole commit cannot move: no fetch
            return found
        problem = await self.once(f"fetch {url}", lambda: self.fetch(url))
        # What no branch or tag leads to is fetched by itself, or is there from another time.
        found = await self.parse(url, ref) or await self.fetch_ref(url, ref) or await self.parse(url, aside(ref))
        if found:
            return found
        if problem:
            raise SourceFailed(f"{scrub(url)} cannot be reached: {problem}", hint=HINT, error_type="git")
        raise SourceFailed(
            f"{scrub(url)} has no branch, tag or commit {ref!r}",
            hint=f"near it are: {', '.join(await self.near(url, ref))}",
            error_type="git",
        )

    async def fetch(self, url: str) -> str:
        """Bring the mirror up to date. Returns what was wrong, or "": an old mirror may do."""
        folder = self.folder(url)
        async with self.store.locked(f"git-{folder.stem}"):
            try:
                if not (folder / "HEAD").exists():
                    await git("init", "--quiet", "--bare", str(folder))
                refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
                await self.git(url, "fetch", "--quiet", "--prune", url, *refs)
            except GitError as error:
                return str(error)
        return ""

    async def fetch_ref(self, url: str, ref: str) -> str | None:
        """A ref that no branch or tag leads to: a pull request's head, or a commit of one."""
        folder = self.folder(url)
        try:
            async with self.store.locked(f"git-{folder.stem}"):
                await self.git(url, "fetch", "--quiet", url, f"+{ref}:{aside(ref)}")
        except GitError:
            return None
        return await self.parse(url, aside(ref))

    async def parse(self, url: str, ref: str) -> str | None:
        try:
            return (await self.git(url, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")).strip()
        except GitError:
            return None

    async def near(self, url: str, ref: str) -> list[str]:
        """Branches and tags like a ref that is not there."""
        from difflib import get_close_matches

        try:
            names = (await self.git(url, "for-each-ref", "--format=%(refname:short)")).split()
        except GitError:
            names = []
        names = [name.replace("paritylab/", "refs/") for name in names]
        return get_close_matches(ref, names, n=5, cutoff=0.3) or names[:5] or ["none"]

    async def archive(self, url: str, commit: str, inside: str, out: Path) -> None:
        """Write a folder of a commit as a tar file."""
        try:
            await git(
                f"--git-dir={self.folder(url)}", "archive", "--format=tar", f"--output={out}", f"{commit}:{inside}"
            )
        except GitError as error:
            raise SourceFailed(f"commit {commit[:12]} has no {inside}: {error}", error_type="git") from error

    async def diff(self, url: str, old: str, new: str, paths: list[str]) -> str:
        """The unified diff between two commits, of some paths."""
        return await git(
            f"--git-dir={self.folder(url)}",
            "diff",
            "--no-color",
            "--no-ext-diff",
            "--no-renames",
            old,
            new,
            "--",
            *paths,
        )

    async def branch_point(self, url: str, head: str, branch: str) -> str:
        """Where a head left a branch, also when it has been merged since. Errors: `GitError`."""
        tip = await self.parse(url, branch) or await self.parse(url, "master") or head
        after = (await self.git(url, "rev-list", "--first-parent", "--ancestry-path", f"{head}..{tip}")).split()
        merged = tip == head or bool(after)
        # The commit before the branch got it: of a merge its first parent, of a fast-forward the head's own.
        before = f"{after[-1]}^" if after else f"{head}^"
        if merged and after and await self.parse(url, f"{after[-1]}^") == head:
            before = f"{head}^"
        return (await self.git(url, "merge-base", head, before if merged else tip)).strip()


# More ancestors than lie between any two releases; an older pair is told apart by its dates.
MOST_ANCESTORS = 5000


async def history_of(commit: str, *repository: str) -> dict | None:
    """What orders a commit among others and among releases: columns of `db.models.SourceCommit`.

    repository: git's own options that name one. None where git cannot tell (a
    shallow clone without the commit, say).
    """
    date = "%(if)%(*committerdate)%(then)%(*committerdate:iso-strict)%(else)%(committerdate:iso-strict)%(end)"
    try:
        committed = (await git(*repository, "show", "--no-patch", "--format=%cI", commit)).strip()
        ancestors = (await git(*repository, "rev-list", f"--max-count={MOST_ANCESTORS}", commit)).split()[1:]
        tags = await git(*repository, "for-each-ref", f"--format=%(refname:short) {date}", "refs/tags")
        sides = {}
        for side, option in (("before", f"--merged={commit}"), ("after", f"--contains={commit}")):
            names = (await git(*repository, "for-each-ref", "--format=%(refname:short)", option, "refs/tags")).split()
            sides |= {name: sides.get(name, side) for name in names}
    except GitError:
        return None
    releases = {}
    for line in tags.splitlines():
        name, _, when = line.partition(" ")
        if (version := release_of(name)) and when:
            releases[version] = {"date": utc(when).isoformat(), "side": sides.get(name)}
    found = [ancestor[:SHORT] for ancestor in ancestors]
    return {"commit": commit, "date": utc(committed), "releases": releases, "ancestors": found}


def release_of(tag: str) -> str | None:
    """The version that a tag (v0.18.0) names; None where it names none."""
    try:
        return str(Version(tag.removeprefix("v")))
    except InvalidVersion:
        return None


def utc(moment: str) -> datetime:
    return datetime.fromisoformat(moment).astimezone(UTC)


def aside(ref: str) -> str:
    """Where a mirror keeps a ref that was fetched by itself, out of the way of pruning."""
    return f"refs/paritylab/{ref.removeprefix('refs/')}"


def state_of(folder: Path) -> tuple[str | None, bool]:
    """Commit of the working copy that a folder lies in, and whether the folder differs from it."""

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments],
                capture_output=True,
                text=True,
                timeout=60,
                env=clean_environment(),
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD") if ask("ls-files", "--", ".") else None  # a folder that git ignores has none
    return commit, bool(commit and ask("status", "--porcelain", "--", "."))
