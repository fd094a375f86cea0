"""Git: a bare mirror of each repository in the store, fetched once per sweep, usable offline."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner import hashing, processes
from runner.failures import SourceFailed
from runner.scrub import scrub
from runner.store import Store

COMMIT = re.compile(r"[0-9a-f]{40}")
HINT = "set GENAI_REPO (or builder.repo) to a repository that can be reached: a URL, or the path of a clone"


class GitError(Exception):
    """git ended with an error; the message is what it said."""


async def git(*arguments: str) -> str:
    """Run git without asking anyone for anything; return its standard output."""
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    code, out, err = await processes.output("git", *arguments, environment=quiet)
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

    async def commit(self, url: str, ref: str) -> str:
        """The commit that a branch, tag, pull request's head or commit stands for. Errors: `SourceFailed`."""
        found = await self.parse(url, ref) if COMMIT.fullmatch(ref) else None
        if found:  # a whole commit cannot move: no fetch
            return found
        problem = await self.once(f"fetch {url}", lambda: self.fetch(url))
        found = await self.parse(url, ref) or await self.fetch_ref(url, ref)
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
                await git("-C", str(folder), "fetch", "--quiet", "--prune", url, *refs)
            except GitError as error:
                return str(error)
        return ""

    async def fetch_ref(self, url: str, ref: str) -> str | None:
        """A ref that no branch or tag leads to: a pull request's head, or a commit of one."""
        folder = self.folder(url)
        try:
            async with self.store.locked(f"git-{folder.stem}"):
                await git(
                    "-C", str(folder), "fetch", "--quiet", url, f"+{ref}:refs/paritylab/{ref.removeprefix('refs/')}"
                )
        except GitError:
            return None
        return await self.parse(url, f"refs/paritylab/{ref.removeprefix('refs/')}")

    async def parse(self, url: str, ref: str) -> str | None:
        try:
            return (
                await git("-C", str(self.folder(url)), "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
            ).strip()
        except GitError:
            return None

    async def near(self, url: str, ref: str) -> list[str]:
        """Branches and tags like a ref that is not there."""
        from difflib import get_close_matches

        try:
            names = (await git("-C", str(self.folder(url)), "for-each-ref", "--format=%(refname:short)")).split()
        except GitError:
            names = []
        return get_close_matches(ref, names, n=5, cutoff=0.3) or names[:5] or ["none"]

    async def archive(self, url: str, commit: str, inside: str, out: Path) -> None:
        """Write a folder of a commit as a tar file."""
        try:
            await git("-C", str(self.folder(url)), "archive", "--format=tar", f"--output={out}", f"{commit}:{inside}")
        except GitError as error:
            raise SourceFailed(f"commit {commit[:12]} has no {inside}: {error}", error_type="git") from error

    async def diff(self, url: str, old: str, new: str, paths: list[str]) -> str:
        """The unified diff between two commits, of some paths."""
        return await git("-C", str(self.folder(url)), "diff", "--no-color", "--no-ext-diff", old, new, "--", *paths)

    async def branch_point(self, url: str, head: str, branch: str) -> str:
        """Where a head left a branch, also when it has been merged since. Errors: `GitError`."""
        folder = str(self.folder(url))
        tip = await self.parse(url, branch) or await self.parse(url, "master") or head
        after = (await git("-C", folder, "rev-list", "--first-parent", "--ancestry-path", f"{head}..{tip}")).split()
        merged = tip == head or bool(after)
        # The commit before the branch got it: of a merge its first parent, of a fast-forward the head's own.
        before = f"{after[-1]}^" if after else f"{head}^"
        if merged and after and await self.parse(url, f"{after[-1]}^") == head:
            before = f"{head}^"
        return (await git("-C", folder, "merge-base", head, before if merged else tip)).strip()


def state_of(folder: Path) -> tuple[str | None, bool]:
    """Commit of the working copy that a folder lies in, and whether the folder differs from it."""

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    return commit, bool(commit and ask("status", "--porcelain", "--", "."))
