"""``reference=cached``: a reference that was computed before, here or elsewhere, whatever packages this machine has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.cell_stages import Stage
from runner.failures import ReferenceFailed
from runner.sharing import Sharing
from runner.store import Artifact, Store

STAGES = ("prompts", "reference", "noise")


@dataclass(frozen=True)
class Cached:
    """The inputs of the stages of a reference that is there, and the database's id of what it was computed with."""

    inputs: dict[str, dict]
    environment: int | None


async def find(
    store: Store, sharing: Sharing, known: Iterable[Mapping[str, Any]], stages: Mapping[str, Stage]
) -> Cached:
    """A fitting reference: its prompts, reference and noise were made of the same, only the packages may be others.

    known: keys of these stages of earlier results, newest first, each with its
    "environment". Errors: `ReferenceFailed` where none fits.
    """
    wanted = [stages[name] for name in STAGES if name in stages]
    nearest = [stage.name for stage in wanted]
    for keys in known:
        found = await asyncio.gather(*(artifact_of(store, sharing, stage.name, keys) for stage in wanted))
        pairs = list(zip(wanted, found, strict=True))
        lacking = [stage.name for stage, artifact in pairs if not (artifact and fits(stage, artifact))]
        if not lacking:
            inputs = {stage.name: artifact.manifest["inputs"] for stage, artifact in pairs if artifact}
            return Cached(inputs, keys.get("environment"))
        nearest = min(nearest, lacking, key=len)
    near = f": the nearest has another {' and another '.join(nearest)}" if len(nearest) < len(wanted) else ""
    raise ReferenceFailed(
        f"reference=cached: no earlier reference of this checkpoint, these prompts and this noise is here{near}",
        hint="compute it where that can be done, with the same db.url and store.remote: backend=transformers runs no"
        " export; or leave reference=cached out",
        transient=True,
    )


async def artifact_of(store: Store, sharing: Sharing, name: str, keys: Mapping[str, Any]) -> Artifact | None:
    """A stage's artifact, from the store or the remote."""
    if name not in keys:
        return None
    return store.find(name, keys[name]) or await sharing.pull(name, keys[name])


def fits(stage: Stage, artifact: Artifact) -> bool:
    """Whether an artifact was made of what the stage would be made of, and by the same version of its code."""
    inputs = artifact.manifest.get("inputs")
    if not isinstance(inputs, dict):
        return False
    was = Stage(stage.name, inputs, "", (), stage.arguments)
    return was.loosely == stage.loosely and was.key == artifact.manifest.get("key")
