"""What is known of the builder's published releases, and the requirement set that each runs in."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from runner import paths, schema

PACKAGE = "onnxruntime-genai"


@cache
def known() -> dict:
    """``conf/releases.yaml``: versions, lines and common requirements."""
    return yaml.safe_load((paths.CONF / "releases.yaml").read_text(encoding="utf-8"))


def versions() -> list[str]:
    """The published versions, newest first."""
    return list(known()["versions"])


def accepts(text: str) -> bool:
    """Whether `text` may name a release: a published one, or one that is newer than all known."""
    if text in versions():
        return True
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    newest = Version(versions()[0])
    return version > newest and version.major == newest.major and str(version) == text


def nearest(text: str, count: int = 4) -> list[str]:
    """The published versions nearest to one that is none, in order."""
    try:
        wanted = Version(text)
    except InvalidVersion:
        return versions()[:count]
    ordered = sorted(versions(), key=Version)
    above = sum(Version(version) < wanted for version in ordered)
    start = max(0, min(above - count // 2, len(ordered) - count))
    return ordered[start : start + count]


def transformers_line(version: str) -> str:
    """The transformers version that the builder of a release works with."""
    for line in known()["lines"]:
        if SpecifierSet(line["builders"]).contains(Version(version), prereleases=True):
            return line["transformers"]
    raise ValueError(f"conf/releases.yaml has no transformers line for {version}")


def builder_environment(builder: schema.Builder) -> schema.Environment:
    """The environment that a builder runs in."""
    return schema.Environment(builder.version, builder.transformers, builder.as_of, list(builder.extra))


def requirements(environment: schema.Environment) -> list[str]:
    """The PEP 508 requirements of an environment.

    Of a day's packages only the release, what was asked for by name, and torch
    are fixed (its CPU build is not to be had for every day); all else is what
    was newest then.
    """
    asked, common = [f"{PACKAGE}=={environment.genai}"], known()["common"]
    if environment.as_of:
        free = [r if r.startswith("torch==") else r.split("==")[0] for r in common]
        transformers = f"=={environment.transformers}" if environment.transformers else ""
        return [*asked, f"transformers{transformers}", *free, *environment.extra]
    line = environment.transformers or transformers_line(environment.genai)
    return [*asked, f"transformers=={line}", *common, *environment.extra]


def constraints(environment: schema.Environment) -> Path | None:
    """The committed pins for what the requirements leave open: one file a transformers line."""
    if environment.as_of:
        return None
    line = environment.transformers or transformers_line(environment.genai)
    path = paths.CONF / "environment" / f"transformers-{line}.txt"
    return path if path.exists() else None
