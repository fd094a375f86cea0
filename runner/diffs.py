"""Unified diffs as patches: getting their text, and applying them file by file with ``git apply``.

Like anchored edits, a file's part of a diff is applied, is there already, or
fails with what stands there instead.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from unidiff import Hunk, PatchedFile, PatchSet
from unidiff.errors import UnidiffParseError

from runner import hashing
from runner.failures import PatchFailed
from runner.git import GitError, Mirrors, clean_environment
from runner.patches import Outcome, nearest_region
from runner.schema import Diff
from runner.sources import INSIDE_REPOSITORY, INSIDE_WHEEL

# What a path of a diff may begin with before it is inside the models folder.
ROOTS = (PurePosixPath(INSIDE_REPOSITORY), PurePosixPath(INSIDE_WHEEL), PurePosixPath("models"))
SHOWN_LINES = 5


@dataclass(frozen=True)
class DiffText:
    """A diff that was got: its name in outcomes, its text, and what it is, for a reader to get it again."""

    name: str
    text: str
    said: str = ""

    def told(self) -> str:
        """What it is, with the hash of the text: a pull request or a file may be another tomorrow."""
        return f"{self.said or self.name}, sha256 {hashing.of_value(self.text)[:16]}"


async def get(mirrors: Mirrors, url: str, diff: Diff) -> DiffText:
    """The text of a diff, line ends normalised. Errors: `PatchFailed`, `SourceFailed`."""
    if diff.file is not None:
        try:
            text = Path(diff.file).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise PatchFailed(f"patch.file: {error}", hint="name a unified diff, as git diff prints it") from error
        return DiffText(diff.name(), text.replace("\r\n", "\n"), diff.file)
    if diff.number is not None:
        head = await mirrors.commit(url, f"refs/pull/{diff.number}/head")
        try:
            base = await mirrors.branch_point(url, head, "main")
            text = await mirrors.diff(url, base, head, ["."])
        except GitError as error:
            raise PatchFailed(f"{diff.name()}: {error}", error_type="git") from error
        return DiffText(diff.name(), text.replace("\r\n", "\n"), f"{base[:12]}..{head[:12]}")
    old, new = await mirrors.commit(url, diff.old or ""), await mirrors.commit(url, diff.new or "")
    paths = [f"{INSIDE_REPOSITORY}/{path}" for path in diff.paths] or [INSIDE_REPOSITORY]
    text = await mirrors.diff(url, old, new, paths)
    if not text.strip():
        raise PatchFailed(
            f"{diff.name()}: nothing differs below {', '.join(paths)}",
            hint="check patch.from, patch.to and patch.paths",
        )
    return DiffText(diff.name(), text.replace("\r\n", "\n"), f"{old[:12]}..{new[:12]}")


def apply(tree: Path, diff: DiffText, reverse: bool = False) -> Outcome:
    """Apply a diff to a ``models`` folder, or take it out, and tell what became of it.

    Parts outside the folder (tests, C++) are left out, and counted in the detail.
    """
    try:
        files = list(PatchSet(diff.text))
    except UnidiffParseError as error:
        return Outcome(diff.name, "failed", f"not a unified diff: {error}")
    odd = next((file for file in files if file.is_binary_file or file.is_rename), None)
    if odd is not None and path_inside(odd.path) is not None:
        what = "binary" if odd.is_binary_file else "renamed"
        return Outcome(diff.name, "failed", f"{odd.path} is {what}, which this cannot apply; make the diff without it")
    files = [file for file in files if len(file)]
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
    detail += f" ({diff.told()})"
    word = "applied" if "applied" in statuses else "present"
    return Outcome(diff.name, word, detail, inside[0][0] if len(inside) == 1 else None)


def path_inside(path: str) -> str | None:
    """A diff's path as the models folder sees it; None where it is outside."""
    pure = PurePosixPath(path)
    if ".." in pure.parts or pure.is_absolute():
        return None
    for root in ROOTS:
        if pure.is_relative_to(root):
            return pure.relative_to(root).as_posix()
    outside = len(pure.parts) > 1 and pure.parts[0] not in ("builders", "loaders", "quantization")
    return None if outside else path


def apply_file(tree: Path, path: str, file: PatchedFile, reverse: bool) -> tuple[str, str]:
    """One file's hunks, each by itself: some may be there already. Returns (status, detail).

    A wheel's files may have other line ends than the repository's: they are put aside and put back.
    """
    if file.is_added_file or file.is_removed_file:
        return make_or_remove(tree, path, file, reverse)
    target = tree / path
    if not target.is_file():
        return "failed", f"{path}: no such file in these sources"
    before = target.read_bytes()
    crlf = b"\r\n" in before
    if crlf:
        target.write_bytes(before.replace(b"\r\n", b"\n"))
    for hunk in file:
        one = rewritten(path, file, [str(hunk)])
        # Whether it is there is asked first: among repeated lines it would go in twice.
        if not git_apply(tree, one, not reverse, check=True) and not git_apply(tree, one, reverse):
            return "failed", mismatch(tree, path, hunk, reverse)
    if crlf:
        target.write_bytes(target.read_bytes().replace(b"\n", b"\r\n"))
    return ("applied" if target.read_bytes() != before else "present"), ""


def make_or_remove(tree: Path, path: str, file: PatchedFile, reverse: bool) -> tuple[str, str]:
    """A file that the diff adds or removes, as a whole."""
    if git_apply(tree, rewritten(path, file, [str(hunk) for hunk in file]), reverse):
        return "applied", ""
    makes = file.is_added_file != reverse
    wanted = "".join(line.value for hunk in file for line in hunk)
    target = tree / path
    there = target.read_bytes().decode(errors="replace").replace("\r\n", "\n") if target.is_file() else None
    if there == (wanted if makes else None):
        return "present", ""
    return "failed", f"{path}: {'is there with other content' if makes else 'is not what the diff removes'}"


def rewritten(path: str, file: PatchedFile, hunks: list[str]) -> str:
    """Hunks of a file as a diff of their own, with the models folder's paths."""
    old = "/dev/null" if file.is_added_file else f"a/{path}"
    new = "/dev/null" if file.is_removed_file else f"b/{path}"
    mode = (
        "new file mode 100644\n" if file.is_added_file else "deleted file mode 100644\n" if file.is_removed_file else ""
    )
    return f"diff --git a/{path} b/{path}\n{mode}--- {old}\n+++ {new}\n" + "".join(hunks)


def git_apply(tree: Path, text: str, reverse: bool, check: bool = False) -> bool:
    """Run ``git apply`` in a folder that no repository above it may claim. Returns whether it went in."""
    flags = (["--reverse"] if reverse else []) + (["--check"] if check else [])
    environment = clean_environment() | {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    command = ["git", "apply", "--whitespace=nowarn", *flags, "-"]
    done = subprocess.run(command, cwd=tree, input=text.encode(), capture_output=True, env=environment)
    return done.returncode == 0


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
    there = lines[shown[0]] if shown else "the end of the file"
    want = block[same] if same < len(block) else wanted[0]
    if want.strip() != there.strip():  # else the difference is in the white space, which is then shown
        want, there = want.strip(), there.strip()
    summary = f"{head}: it wants `{want}` where there is `{there}`"
    whole = ["it wants", *(f"  {line}" for line in wanted[:SHOWN_LINES]), "where there is"]
    return "\n".join([summary, *whole, *(f"  {n + 1}: {lines[n]}" for n in shown)])
