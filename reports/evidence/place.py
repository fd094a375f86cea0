"""Writing the folder: whole or not at all, and never over what somebody else wrote."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

MADE_BY = "python -m reports evidence"


class OutRefused(FileExistsError):
    """The folder to write has other files than those of this command."""


def refuse_foreign(out: Path) -> None:
    """Errors: `OutRefused` unless `out` is absent, empty, or this command's with no file added."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_dir():
        raise OutRefused(f"--out {out}: it is no folder; name one that is not there yet")
    there = {str(path.relative_to(out)) for path in out.rglob("*") if not path.is_dir()}
    try:
        about = json.loads((out / "hashes.json").read_text(encoding="utf-8"))
        ours = set(about["files"]) if about["made_by"] == MADE_BY else set()
    except (OSError, ValueError, KeyError, TypeError):
        ours = set()
    if there - ours:
        odd = ", ".join(sorted(there - ours)[:3])
        raise OutRefused(f"--out {out}: it has files that this command did not write ({odd}); name another folder")


def place(files: Mapping[str, str], copies: Mapping[str, Path], out: Path) -> None:
    """Write a folder aside and rename it into its place. files: texts by name; copies: files that are copied."""
    out.parent.mkdir(parents=True, exist_ok=True)
    part, old = (out.with_name(f".{out.name}.{word}-{os.getpid()}") for word in ("part", "old"))
    try:
        for name, source in copies.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, part / name)
        for name, text in files.items():
            file = part / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
            if name.endswith(".sh"):
                file.chmod(0o755)
        refuse_foreign(out)
        if out.exists():
            out.rename(old)
        part.rename(out)
    finally:
        if old.exists() and not out.exists():
            old.rename(out)
        for folder in (part, old):
            shutil.rmtree(folder, ignore_errors=True)
