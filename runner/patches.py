"""Apply a patch, a set of single changes, to a copied tree of the builder's sources.

Here are the rules for finding an anchor, for telling that a change is there
already, and for saying what stands in its place. Where the tree comes from,
what a failure means for a cell, and what is recorded are decided elsewhere.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from runner.schema import Change, Edit, Variant

SHOWN_LINES = 5  # of the region that is most like an anchor


@dataclass(frozen=True)
class Outcome:
    """What became of one change.

    change: its name.
    status: "applied"; "present" (every edit was there already);
        "not_applicable" (no variant admits this builder); or "failed".
    detail: one or a few lines for a reader.
    file: the one that failed, or the only one edited; None if several or none.
    """

    change: str
    status: str
    detail: str
    file: str | None = None


class _Failure(Exception):
    """An edit that can't be made; its arguments are the outcome's detail and file."""


def validate(changes: dict[str, Change]) -> None:
    """Check what can be checked without sources; ValueError names the change and the value."""
    for name, change in changes.items():
        if not change.variants:
            raise ValueError(f"patch change {name}: needs at least one variant")
        for variant in change.variants:
            where = f"patch change {name}, builders {variant.builders!r}"
            try:
                SpecifierSet(variant.builders)
            except InvalidSpecifier as error:
                raise ValueError(f"{where}: not a PEP 440 specifier set, such as '>=0.14,<0.16'") from error
            if not variant.edits:
                raise ValueError(f"{where}: needs at least one edit")
            for edit in variant.edits:
                if problem := _problem(edit):
                    raise ValueError(f"{where}, {edit.file!r}: {problem}")


def reversed_changes(changes: dict[str, Change]) -> dict[str, Change]:
    """Each change taken out again, the last first: does the fault come back without it?"""

    def turned(edit: Edit) -> Edit:
        return replace(edit, find=edit.put, put=edit.find, present=edit.absent, absent=edit.present)

    return {
        name: replace(
            change,
            variants=[replace(variant, edits=[turned(edit) for edit in variant.edits]) for variant in change.variants],
        )
        for name, change in reversed(changes.items())
    }


def apply(tree: Path, changes: dict[str, Change], version: str | None) -> list[Outcome]:
    """Make the changes in `tree` in their order and tell what became of each.

    tree: a copy of the builder's ``models`` folder. Its files are replaced, not
        written into, so a hard link to a cache is safe.
    version: the builder's PEP 440 version. None (a git ref, a working copy)
        takes, of each change, the newest variant whose edits all fit.

    A change is written whole or not at all. After one that failed nothing
    further is tried: the list then ends with it and the tree is of no use.
    ValueError for a change that `validate` refuses, or a version that is none.
    """
    validate(changes)
    release = None if version is None else Version(version)
    outcomes = []
    for name, change in changes.items():
        outcomes.append(_apply_change(tree, name, change, release))
        if outcomes[-1].status == "failed":
            break
    return outcomes


def _apply_change(tree: Path, name: str, change: Change, version: Version | None) -> Outcome:
    candidates = change.variants[::-1]  # they are listed oldest first
    if version is not None:
        candidates = [v for v in candidates if SpecifierSet(v.builders).contains(version, prereleases=True)][:1]
    if not candidates:
        known = "; ".join(variant.builders for variant in change.variants)
        return Outcome(name, "not_applicable", f"no variant for builder {version} (there are: {known})")
    failures = []
    for variant in candidates:
        try:
            texts, missing, doubtful = _edited(tree, variant)
        except _Failure as failure:
            failures.append(failure.args)
            continue
        for file in _files(missing):
            _write(tree / file, texts[file])
        file, *more = _files(variant.edits)
        status = "applied" if missing else "present"
        return Outcome(name, status, _summary(variant, missing, doubtful), None if more else file)
    if version is None and all(edit.absent for variant in candidates for edit in variant.edits):
        # Taken out of sources whose release is not known: that it never was in them is no failure.
        return Outcome(name, "not_applicable", f"there is nothing to take out: {failures[0][0].splitlines()[0]}")
    return Outcome(name, "failed", *failures[0])  # the newest variant's


def _summary(variant: Variant, missing: list[Edit], doubtful: list[Edit]) -> str:
    if not missing:
        doubt = "; but the anchor is there as well: is the pattern `present` true of unpatched sources?"
        return f"already in {', '.join(_files(variant.edits))}{doubt if doubtful else ''}"
    there = [f"{edit.file} {_title(edit)}" for edit in variant.edits if edit not in missing]
    done = f"edited {', '.join(_files(missing))} (builders {variant.builders})"
    return done + (f"; already there: {', '.join(there)}" if there else "")


def _files(edits: list[Edit]) -> list[str]:
    return list(dict.fromkeys(edit.file for edit in edits))


def _edited(tree: Path, variant: Variant) -> tuple[dict[str, str], list[Edit], list[Edit]]:
    """Return each file's text after the change, the edits that were not there yet, and the doubtful ones.

    Doubtful are those that count as there although their anchor is and what they put is not: a fix in
    other words, or a pattern that is too loose.

    `find` and `present` are looked up in the text before the change: edits do not see each other.
    """
    before = {edit.file: _read(tree, edit.file) for edit in variant.edits}
    missing = [edit for edit in variant.edits if not _is_present(edit, before[edit.file])]
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for edit in missing:
        text = before[edit.file]
        found = _occurrences(text, edit.find)
        if len(found) != edit.count:
            raise _Failure(_mismatch(edit, text, [start for start, _, _ in found]), edit.file)
        spans.setdefault(edit.file, []).extend(
            (start, end, _replacement(edit.put, text, start, indent)) for start, end, indent in found
        )
    after = dict(before)
    for file, found in spans.items():
        starts_after = len(before[file])
        for start, end, new in sorted(found, reverse=True):
            if end > starts_after:
                raise _Failure(f"{file}: two edits of the change overlap, at `{before[file][start:end]}`", file)
            after[file] = after[file][:start] + new + after[file][end:]
            starts_after = start
    for edit in missing:
        if not _is_present(edit, after[edit.file]):
            key = "present" if edit.present else "absent"
            wrong = f"was replaced, but `{key}` {edit.present or edit.absent!r} does not hold for the result"
            raise _Failure(f"{edit.file}: {_title(edit)} {wrong}", edit.file)
    doubtful = [
        edit
        for edit in variant.edits
        if edit not in missing
        and len(_occurrences(before[edit.file], edit.find)) == edit.count
        and not _occurrences(before[edit.file], edit.put)
    ]
    return after, missing, doubtful


def _occurrences(text: str, find: str) -> list[tuple[int, int, str]]:
    """Return (start, end, indentation of the line it starts on) of each occurrence, not overlapping."""
    first, *rest = _lines(find)
    found, at = [], 0
    while (start := text.find(first, at)) >= 0:
        indent = re.match(r"[ \t]*", text[text.rfind("\n", 0, start) + 1 : start]).group()
        tail = "".join(r"\r?\n" + re.escape(indent + line if line else "") for line in rest)
        if match := re.compile(tail).match(text, start + len(first)):
            found.append((start, match.end(), indent))
        at = match.end() if match else start + 1
    return found


def _lines(block: str) -> list[str]:
    """Return a block's lines without the newlines around it and without the indentation of the first."""
    lines = re.sub(r"\r\n?", "\n", block).strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return [line[indent:] if line.strip() else "" for line in lines]


def _replacement(put: str, text: str, start: int, indent: str) -> str:
    """Return `put` with the indentation, and the line ending, of the line where the edit starts."""
    first, *rest = _lines(put)
    end = text.find("\n", start) + 1 or text.rfind("\n") + 1  # the last line may have no ending of its own
    newline = "\r\n" if text[:end].endswith("\r\n") else "\n"
    return newline.join([first] + [indent + line if line else "" for line in rest])


def _is_present(edit: Edit, text: str) -> bool:
    """Whether the text is as the edit leaves it."""
    pattern = edit.present or edit.absent
    found = re.search(pattern, text.replace("\r\n", "\n"), re.MULTILINE) is not None
    return found if edit.present else not found


def _problem(edit: Edit) -> str | None:
    """Say what is wrong with an edit's own values, if anything is."""
    top, *below = re.split(r"[/\\]", edit.file)
    if not top or ":" in top or ".." in (top, *below):
        return "file must be a relative path inside the builder's sources"
    if not edit.find.strip():
        return "find is empty"
    if edit.count < 1:
        return f"count must be at least 1, not {edit.count}"
    for key, block in (("find", edit.find), ("put", edit.put)):
        lines = block.strip("\r\n").splitlines() or [""]
        indent = re.match(r"\s*", lines[0]).group()
        if any(line.strip() and not line.startswith(indent) for line in lines):
            return f"{key} has a line that is indented less than its first"
    if bool(edit.present) == bool(edit.absent):
        return "present (or absent, one of the two) must be a pattern: an empty one would match any sources"
    pattern = edit.present or edit.absent
    try:
        re.compile(pattern, re.MULTILINE)
    except re.error as error:
        return f"{'present' if edit.present else 'absent'} {pattern!r} is not a regular expression: {error}"


def _read(tree: Path, file: str) -> str:
    path = tree / file
    if not path.resolve().is_relative_to(tree.resolve()):
        raise _Failure(f"{file}: a link leads out of the sources, to {path.resolve()}", file)
    if not path.is_file():
        names = [p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()]
        nearest = get_close_matches(file, names, n=3, cutoff=0)
        raise _Failure(f"{file}: no such file; the nearest are {', '.join(nearest) or 'none'}", file)
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Failure(f"{file}: not UTF-8 ({error})", file) from error


def _write(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".patching")
    aside.write_bytes(text.encode("utf-8"))
    shutil.copymode(path, aside)
    aside.replace(path)


def _title(edit: Edit) -> str:
    first, *rest = _lines(edit.find)
    return f"`{first}{' …' if rest else ''}`"


def _mismatch(edit: Edit, text: str, starts: list[int]) -> str:
    head = f"{edit.file}: {_title(edit)} expected {edit.count} time{'s' * (edit.count != 1)}, found {len(starts)}"
    if starts:
        numbers = [str(text.count("\n", 0, start) + 1) for start in starts]
        return f"{head}, on line{'s' * (len(starts) != 1)} {', '.join(numbers)}"
    lines, anchor = text.replace("\r\n", "\n").split("\n"), _lines(edit.find)
    first = nearest_region(lines, anchor)
    region = lines[first:][: len(anchor)][:SHOWN_LINES]
    most = f"{head}; the most similar there is, on line {first + 1}: `{region[0].strip()}`"
    return "\n".join([most, *(f"  {number}: {line}" for number, line in enumerate(region, first + 1))])


def nearest_region(lines: list[str], anchor: list[str]) -> int:
    """Return the index of the line where the region that is most like the anchor begins."""
    lines, wanted = [line.strip() for line in lines], "\n".join(line.strip() for line in anchor)

    def likeness(index: int) -> float:
        return SequenceMatcher(None, "\n".join(lines[index : index + len(anchor)]), wanted, autojunk=False).ratio()

    likely = set(get_close_matches(anchor[0].strip(), lines, n=20, cutoff=0))
    return max((index for index, line in enumerate(lines) if line in likely), key=likeness)
