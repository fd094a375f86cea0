"""Unified diffs as patches: getting their text, and applying them file by file with ``git apply``.

Like anchored edits, a file's part of a diff is applied, is there already, or
fails with what stands there instead.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from unidiff import Hunk, PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError

from runner import hashing
from runner.failures import PatchFailed
from runner.git import GitError, Mirrors
from runner.patches import Outcome, nearest_region
from runner.schema import Diff
from runner.store import Store

INSIDE_REPOSITORY = "src/python/py/models"
# What a path of a diff may begin with before it is inside the models folder.
ROOTS = (PurePosixPath(INSIDE_REPOSITORY), PurePosixPath("onnxruntime_genai/models"), PurePosixPath("models"))
SHOWN_LINES = 5


@dataclass(frozen=True)
class DiffText:
    """A diff that was got: its name in outcomes, and its text."""

    name: str
    text: str


async def get(store: Store, mirrors: Mirrors, url: str, diff: Diff) -> DiffText:
    """The text of a diff. Errors: `PatchFailed`, `SourceFailed`."""
    if diff.file is not None:
        try:
            return DiffText(diff.name(), Path(diff.file).read_bytes().decode())  # line ends as they are
        except (OSError, UnicodeDecodeError) as error:
            raise PatchFailed(f"patch.file: {error}", hint="name a unified diff, as git diff prints it") from error
    if diff.number is not None:
        return DiffText(diff.name(), await pull_request(store, mirrors, url, diff.number))
    old, new = await mirrors.commit(url, diff.old or ""), await mirrors.commit(url, diff.new or "")
    paths = [f"{INSIDE_REPOSITORY}/{path}" for path in diff.paths] or [INSIDE_REPOSITORY]
    text = await mirrors.diff(url, old, new, paths)
    if not text.strip():
        raise PatchFailed(
            f"{diff.name()}: nothing differs below {', '.join(paths)}",
            hint="check patch.from, patch.to and patch.paths",
        )
    return DiffText(diff.name(), text)


async def pull_request(store: Store, mirrors: Mirrors, url: str, number: int) -> str:
    """A pull request's diff against where it branched off, kept in the store once fetched."""
    key = hashing.of_value(url, number)
    kept = store.find("diffs", key)
    if kept is None:
        head = await mirrors.commit(url, f"refs/pull/{number}/head")
        try:
            base = await mirrors.branch_point(url, head, "main")
            text = await mirrors.diff(url, base, head, ["."])
        except GitError as error:
            raise PatchFailed(f"pr-{number}: {error}", error_type="git") from error
        with store.draft("diff") as draft:
            (draft / "pr.diff").write_bytes(text.encode())
            kept = store.finish("diffs", key, draft, {"number": number}, {"head": head, "base": base})
    return (kept.path / "pr.diff").read_bytes().decode()


def apply(tree: Path, diff: DiffText, reverse: bool = False) -> Outcome:
    """Apply a diff to a ``models`` folder, or take it out, and tell what became of it.

    Parts outside the folder (tests, C++) are left out, and counted in the detail.
    """
    try:
        files = list(PatchSet(diff.text))
    except UnidiffParseError as error:
        return Outcome(diff.name, "failed", f"not a unified diff: {error}")
    inside = [(path, file) for file in files if (path := path_inside(file.path)) is not None]
    if not inside:
        named = ", ".join(file.path for file in files[:4]) or "nothing"
        return Outcome(diff.name, "failed", f"it touches nothing below {INSIDE_REPOSITORY}: {named}")
    statuses = []
    for path, file in inside:
        status, detail = apply_file(tree, path, file, reverse)
        if status == "failed":
            return Outcome(diff.name, "failed", detail, path)
        statuses.append(status)
    left_out = len(files) - len(inside)
    detail = f"{'took out of' if reverse else 'edited'} {', '.join(path for path, _ in inside)}"
    detail += f"; {left_out} files outside the models folder left out" if left_out else ""
    word = "applied" if "applied" in statuses else "present"
    return Outcome(diff.name, word, detail, inside[0][0] if len(inside) == 1 else None)


def path_inside(path: str) -> str | None:
    """A diff's path as the models folder sees it; None where it is outside."""
    pure = PurePosixPath(path)
    for root in ROOTS:
        if pure.is_relative_to(root):
            return pure.relative_to(root).as_posix()
    outside = len(pure.parts) > 1 and pure.parts[0] not in ("builders", "loaders", "quantization")
    return None if outside or ".." in pure.parts or pure.is_absolute() else path


def apply_file(tree: Path, path: str, file: PatchedFile, reverse: bool) -> tuple[str, str]:
    """One file's hunks, each by itself: some may be there already. Returns (status, detail)."""
    if file.is_added_file or file.is_removed_file:
        whole = rewritten(path, file, [str(hunk) for hunk in file])
        if git_apply(tree, whole, reverse):
            return "applied", ""
        gone = file.is_removed_file != reverse
        return ("present", "") if (tree / path).exists() != gone else ("failed", f"{path}: cannot be made or removed")
    if not (tree / path).is_file():
        return "failed", f"{path}: no such file in these sources"
    applied = 0
    for hunk in file:
        one = rewritten(path, file, [str(hunk)])
        if git_apply(tree, one, reverse):
            applied += 1
        elif not git_apply(tree, one, not reverse, check=True):
            return "failed", mismatch(tree, path, hunk, reverse)
    return ("applied" if applied else "present"), ""


def rewritten(path: str, file: PatchedFile, hunks: list[str]) -> str:
    """Hunks of a file as a diff of their own, with the models folder's paths."""
    old = "/dev/null" if file.is_added_file else f"a/{path}"
    new = "/dev/null" if file.is_removed_file else f"b/{path}"
    mode = (
        "new file mode 100644\n" if file.is_added_file else "deleted file mode 100644\n" if file.is_removed_file else ""
    )
    return f"diff --git a/{path} b/{path}\n{mode}--- {old}\n+++ {new}\n" + "".join(hunks)


def git_apply(tree: Path, text: str, reverse: bool, check: bool = False) -> bool:
    """Run ``git apply`` in a folder that no repository above it may claim. Returns whether it went in.

    A wheel's files may have other line ends than the repository's, so that is
    tried again without regard to white space in what is looked for.
    """
    flags = (["--reverse"] if reverse else []) + (["--check"] if check else [])
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    for loose in ([], ["--ignore-whitespace"]):
        command = ["git", "apply", "--whitespace=nowarn", *flags, *loose, "-"]
        done = subprocess.run(command, cwd=tree, input=text.encode(), capture_output=True, env=environment)
        if done.returncode == 0:
            return True
    return False


def mismatch(tree: Path, path: str, hunk: Hunk, reverse: bool) -> str:
    """Which hunk did not go in, what it wants to change, and what stands there."""
    lines = (tree / path).read_text(encoding="utf-8", errors="replace").splitlines()
    kinds = (" ", "+") if reverse else (" ", "-")
    block = [line.value.rstrip("\n") for line in hunk if line.line_type in kinds]
    wanted = [line.value.rstrip("\n") for line in hunk if line.line_type == kinds[1]] or block
    place = nearest_region(lines, block) if lines and block else 0
    # What is there is shown from the first line that is not as the hunk has it.
    same = 0
    while same < len(block) and place + same < len(lines) and lines[place + same] == block[same]:
        same += 1
    shown = range(place + same, min(place + same + SHOWN_LINES, len(lines)))
    head = f"{path}: hunk @@ -{hunk.source_start} +{hunk.target_start} @@ did not apply"
    there = lines[shown[0]].strip() if shown else "the end of the file"
    summary = f"{head}: it wants `{wanted[0].strip()}` where there is `{there}`"
    whole = ["it wants", *(f"  {line}" for line in wanted[:SHOWN_LINES]), "where there is"]
    return "\n".join([summary, *whole, *(f"  {n + 1}: {lines[n]}" for n in shown)])
