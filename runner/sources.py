"""The builder's sources: where the ``models`` folder of a builder comes from.

A release's wheel, a ref of the git repository, or a working copy. Whatever it
is, it ends as an artifact with a tree hash; a wheel and a commit are fetched
once, and then need no network.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from runner import git, hashing
from runner.environments import uv_run, wheel_source
from runner.failures import EnvFailed, SourceFailed, says_disk_full
from runner.releases import PACKAGE
from runner.schema import Builder
from runner.store import Artifact, Store

INSIDE_WHEEL = "onnxruntime_genai/models"
INSIDE_REPOSITORY = "src/python/py/models"
PUBLIC_REPOSITORY = "https://github.com/microsoft/onnxruntime-genai"


@dataclass(frozen=True)
class Source:
    """A pristine ``models`` folder.

    tree: its hash. version: for the variants of patches; None where it is not
    a release. said: what it is, for a reader. commit, dirty: of a git source;
    history: what git knows of that commit, as `git.history_of` gives it.
    """

    path: Path
    tree: str
    version: str | None
    said: str
    commit: str | None = None
    dirty: bool = False
    history: dict | None = None


def repository(builder: Builder) -> str:
    """The repository's URL or path: the config's, else GENAI_REPO, else the public one."""
    named = builder.repo or os.environ.get("GENAI_REPO") or PUBLIC_REPOSITORY
    return str(Path(named).absolute()) if Path(named).is_dir() else named


async def fetch(store: Store, builder: Builder, mirror: git.Mirrors) -> Source:
    """The sources of a builder. Errors: `SourceFailed` with what to set."""
    kinds = {"release": fetch_release, "git": fetch_git, "path": fetch_path}
    if builder.kind not in kinds:
        raise SourceFailed(f"builder.kind {builder.kind!r} is not known", hint=f"allowed: {', '.join(kinds)}")
    return await kinds[builder.kind](store, builder, mirror)


async def fetch_release(store: Store, builder: Builder, _mirror: git.Mirrors) -> Source:
    """From the published wheel."""
    try:
        version = str(Version(builder.version))
    except InvalidVersion as error:
        raise SourceFailed(f"builder.version {builder.version!r} is not a version") from error
    key = f"release-{version}"
    artifact = await once(store, key, lambda draft: unpack_wheel(draft, version))
    return Source(artifact.path / "models", artifact.meta["tree"], version, f"release {version}")


async def fetch_git(store: Store, builder: Builder, mirror: git.Mirrors) -> Source:
    """From a ref of the repository, resolved to its commit."""
    ref = builder.ref or "main"
    commit = await mirror.commit(repository(builder), ref)

    async def archive(draft: Path) -> None:
        await mirror.archive(repository(builder), commit, INSIDE_REPOSITORY, draft / "models.tar")
        try:
            with tarfile.open(draft / "models.tar") as tar:
                tar.extractall(draft / "out" / "models", filter="data")
        except tarfile.TarError as error:
            raise SourceFailed(f"commit {commit[:12]}: {INSIDE_REPOSITORY} holds what is no source: {error}") from error

    artifact = await once(store, f"git-{commit}", archive)
    said = f"git {commit[:12]} ({ref})" if not commit.startswith(ref) else f"git {commit[:12]}"
    history = await git.history_of(commit, f"--git-dir={mirror.folder(repository(builder))}")
    return Source(artifact.path / "models", artifact.meta["tree"], None, said, commit, history=history)


async def fetch_path(store: Store, builder: Builder, _mirror: git.Mirrors) -> Source:
    """From a working copy as it is now, uncommitted changes included."""
    root = Path(builder.path or "").expanduser().resolve()
    models = next((p for p in (root / INSIDE_REPOSITORY, root) if (p / "builder.py").exists()), None)
    if models is None:
        raise SourceFailed(
            f"no builder.py in {root} or in its {INSIDE_REPOSITORY}",
            hint="builder.path must name a checkout of the builder's repository, or its models folder",
        )

    async def copy(draft: Path) -> None:
        for file in hashing.files_below(models):  # exactly what the hash is of
            to = draft / "out" / "models" / file.relative_to(models)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)

    try:
        tree = hashing.of_tree(models)
        artifact = await once(store, f"path-{tree}", copy)
    except OSError as error:
        if says_disk_full(str(error)):
            raise
        raise SourceFailed(f"{models} cannot be read: {error}", transient=True) from error
    commit, dirty = git.state_of(models)
    at = f" at {commit[:12]}" if commit else ""
    said = f"path {root}{at}{', dirty' if dirty else ''}"
    history = await git.history_of(commit, "-C", str(models)) if commit else None
    return Source(artifact.path / "models", artifact.meta["tree"], None, said, commit, dirty, history)


async def once(store: Store, key: str, make) -> Artifact:
    """The source's artifact, made by ``await make(draft)``, which fills ``draft/out/models``."""
    artifact = store.find("sources", key)
    if artifact is None:
        async with store.locked(f"source-{key}"):
            artifact = store.find("sources", key)
            if artifact is None:
                with store.draft(key) as draft:
                    (draft / "out").mkdir()
                    await make(draft)
                    models = draft / "out" / "models"
                    if not (models / "builder.py").exists():
                        raise SourceFailed(f"{key} has no builder.py in its models folder")
                    artifact = store.finish(
                        "sources", key, draft / "out", {"key": key}, {"tree": hashing.of_tree(models)}
                    )
    return artifact


async def unpack_wheel(draft: Path, version: str) -> None:
    try:
        target = ["--python", sys.executable, "--target", str(draft / "wheel")]
        await uv_run("pip", "install", "--no-deps", *target, *wheel_source(), f"{PACKAGE}=={version}")
    except EnvFailed as error:
        raise SourceFailed(
            f"{PACKAGE} {version} could not be fetched: {error.message}",
            hint=f"{error.hint}; a release fetched before needs no network",
            error_type=error.error_type,
        ) from error
    models = draft / "wheel" / INSIDE_WHEEL
    if models.exists():
        shutil.copytree(models, draft / "out" / "models", ignore=shutil.ignore_patterns("__pycache__"))
