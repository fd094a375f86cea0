"""Overlays: a copy of a builder's sources with a patch set applied, named by its inputs' hash."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from runner import hashing, patches
from runner.failures import PatchFailed
from runner.schema import Patch
from runner.sources import Source
from runner.store import Store

OVERLAY_VERSION = 1


@dataclass(frozen=True)
class Overlay:
    """The patched ``models`` folder, its tree hash, and what became of each change."""

    path: Path
    tree: str
    outcomes: list[dict]


async def make(store: Store, source: Source, patch: Patch) -> Overlay:
    """Copy `source` and apply `patch`.

    Errors: `PatchFailed` with file, anchor and what stands there; its
    `outcomes` attribute holds the outcomes up to the failed one.
    """
    inputs = {
        "version": OVERLAY_VERSION,
        "source": source.tree,
        "builder": source.version,
        "changes": [[name, asdict(change)] for name, change in patch.changes.items()],
    }
    key = hashing.of_value(inputs)
    artifact = store.find("overlays", key)
    if artifact is None:
        async with store.locked(f"overlay-{key}"):
            artifact = store.find("overlays", key) or apply(store, key, inputs, source, patch)
    meta = artifact.meta
    return Overlay(artifact.path / "models", meta["tree"], meta["outcomes"])


def apply(store: Store, key: str, inputs: dict, source: Source, patch: Patch):
    """Make the overlay's artifact."""
    with store.draft("overlay") as draft:
        models = draft / "models"
        shutil.copytree(source.path, models)
        try:
            outcomes = patches.apply(models, patch.changes, source.version)
        except ValueError as error:
            raise PatchFailed(str(error), hint="correct the patch's file in conf/patch/") from error
        failed = next((outcome for outcome in outcomes if outcome.status == "failed"), None)
        if failed:
            failure = PatchFailed(
                f"{failed.change}: {failed.detail}",
                hint="give the change a variant for this builder in conf/patch/, or leave it out",
            )
            failure.outcomes = [asdict(outcome) for outcome in outcomes]
            raise failure
        meta = {
            "tree": hashing.of_tree(models),
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        return store.finish("overlays", key, draft, inputs, meta)
