"""Overlays: a copy of a builder's sources with a patch set applied, named by its inputs' hash."""

from __future__ import annotations

import difflib
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from runner import diffs, hashing, patches
from runner.diffs import DiffText
from runner.failures import PatchFailed
from runner.schema import Patch
from runner.sources import Source
from runner.store import Artifact, Store

OVERLAY_VERSION = 4
CORRECT = "correct its anchor, count or pattern, or add a variant"


@dataclass(frozen=True)
class Overlay:
    """The patched ``models`` folder, its tree hash, what became of each change, and hashes of what they do."""

    path: Path
    tree: str
    outcomes: list[dict]
    patch_hash: str  # of the changes and the diffs' texts
    change_hashes: dict[str, str]  # of each by its name
    diff: str  # of the whole, as a unified diff of the models folder


async def make(store: Store, source: Source, patch: Patch, texts: list[DiffText]) -> Overlay:
    """Copy `source` and apply `patch`, whose diffs' texts are `texts`.

    Errors: `PatchFailed` with file, anchor and what stands there; its
    `outcomes` attribute holds the outcomes up to the failed one.
    """
    inputs = {
        "version": OVERLAY_VERSION,
        "source": source.tree,
        "builder": source.version,
        "changes": [[name, asdict(change)] for name, change in patch.changes.items()],
        "diffs": [[diff.name, diff.text] for diff in texts],
        "reverse": patch.reverse,
    }
    key = hashing.of_value(inputs)
    artifact = store.find("overlays", key)
    if artifact is None:
        async with store.locked(f"overlay-{key}"):
            artifact = store.find("overlays", key) or patched_copy(store, key, inputs, source, patch, texts)
    meta = artifact.meta
    hashes = change_hashes(patch, texts)
    diff = meta["diff"]
    return Overlay(artifact.path / "models", meta["tree"], meta["outcomes"], patch_hash(patch, texts), hashes, diff)


def patch_hash(patch: Patch, texts: list[DiffText]) -> str:
    """What a patch does, whatever it is called: two files of one name are told apart by it."""
    changes = [[name, asdict(change)] for name, change in patch.changes.items()]
    return hashing.of_value(changes, [diff.text for diff in texts], patch.reverse)


def change_hashes(patch: Patch, texts: list[DiffText]) -> dict[str, str]:
    """What each change does, whatever it is called and wherever it stands in a set."""
    changes = {name: hashing.of_value(asdict(change), patch.reverse) for name, change in patch.changes.items()}
    return changes | {diff.name: hashing.of_value(diff.text, patch.reverse) for diff in texts}


def patched_copy(store: Store, key: str, inputs: dict, source: Source, patch: Patch, texts: list[DiffText]) -> Artifact:
    """Make the overlay's artifact."""
    with store.draft("overlay") as draft:
        models = draft / "models"
        shutil.copytree(source.path, models)
        outcomes = [asdict(outcome) for outcome in apply(models, patch, source.version, texts)]
        failed = next((outcome for outcome in outcomes if outcome["status"] == "failed"), None)
        if failed:
            what = CORRECT if failed["change"] in patch.changes else "correct the diff"
            failure = PatchFailed(
                f"{failed['change']}: {failed['detail']}",
                hint=f"{what}; the sources are in {source.path}",
            )
            failure.outcomes = outcomes
            raise failure
        meta = {"tree": hashing.of_tree(models), "outcomes": outcomes, "diff": tree_diff(source.path, models)}
        return store.finish("overlays", key, draft, inputs, meta)


def tree_diff(before: Path, after: Path) -> str:
    """What differs between two folders of sources, as a unified diff that ``patch -p1`` takes there."""
    names = sorted({str(file.relative_to(root)) for root in (before, after) for file in root.rglob("*.py")})
    return "".join(file_diff(name, before / name, after / name) for name in names)


def file_diff(name: str, before: Path, after: Path) -> str:
    old, new = (text_of(path) for path in (before, after))
    if old == new:
        return ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}", lineterm="\n"
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def apply(models: Path, patch: Patch, version: str | None, texts: list[DiffText]) -> list[patches.Outcome]:
    """Apply changes, then diffs; reversed, take out the diffs, then the changes. Stops at a failure."""
    changes = patches.reversed_changes(patch.changes) if patch.reverse else patch.changes
    try:
        steps = [lambda: patches.apply(models, changes, version)]
        steps += [lambda diff=diff: [diffs.apply(models, diff, patch.reverse)] for diff in texts]
        outcomes: list[patches.Outcome] = []
        for step in reversed(steps) if patch.reverse else steps:
            outcomes += step()
            if any(outcome.status == "failed" for outcome in outcomes):
                break
    except ValueError as error:
        raise PatchFailed(str(error), hint="correct the patch's file in conf/patch/") from error
    return outcomes
