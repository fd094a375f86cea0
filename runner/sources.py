"""The builder's sources: where the ``models`` folder of a builder comes from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from runner import hashing
from runner.environments import uv_run
from runner.failures import EnvFailed, SourceFailed
from runner.schema import Builder
from runner.store import Store

PACKAGE = "onnxruntime-genai"
INSIDE_WHEEL = Path("onnxruntime_genai/models")


@dataclass(frozen=True)
class Source:
    """A pristine ``models`` folder, its tree hash, and the version for patch variants."""

    path: Path
    tree: str
    version: str | None


async def fetch(store: Store, builder: Builder) -> Source:
    """The sources of a builder, from the store where they were fetched before."""
    if builder.kind != "release":
        raise SourceFailed(f"builder.kind {builder.kind!r} is not known", hint="allowed: release (a published version)")
    try:
        version = str(Version(builder.version))
    except InvalidVersion as error:
        raise SourceFailed(f"builder.version {builder.version!r} is not a version") from error
    kind, key = "sources", f"release-{version}"
    artifact = store.find(kind, key)
    if artifact is None:
        async with store.locked(key):
            artifact = store.find(kind, key) or await fetch_release(store, kind, key, version)
    return Source(artifact.path / "models", artifact.meta["tree"], version)


async def fetch_release(store: Store, kind: str, key: str, version: str):
    """Take the sources out of the published wheel of `version`."""
    with store.draft(key) as draft:
        try:
            await uv_run("pip", "install", "--no-deps", "--target", str(draft / "wheel"), f"{PACKAGE}=={version}")
        except EnvFailed as error:
            raise SourceFailed(
                f"{PACKAGE} {version} could not be fetched: {error.message}",
                hint=f"{error.hint}; a release fetched before needs no network",
                error_type=error.error_type,
            ) from error
        models = draft / "wheel" / INSIDE_WHEEL
        if not (models / "builder.py").exists():
            raise SourceFailed(f"the wheel of {PACKAGE} {version} has no {INSIDE_WHEEL}/builder.py")
        out = draft / "out"
        out.mkdir()
        shutil.copytree(models, out / "models", ignore=shutil.ignore_patterns("__pycache__"))
        meta = {"tree": hashing.of_tree(out / "models"), "version": version}
        return store.finish(kind, key, out, {"package": PACKAGE, "version": version}, meta)
