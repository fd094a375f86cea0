"""The exact packages of each environment, as files that are installed with no dependencies resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from db import detail

# Nothing else may come in: a resolver would fetch torch's GPU build for a version that says nothing of it.
INSTALL = "uv pip install --quiet --no-deps"
TORCH = '[ -n "${UV_FIND_LINKS:-}" ] || export UV_TORCH_BACKEND=cpu'


def package_files(facts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The environments by file name: ROLE, or ROLE-VALUE where cells have different ones; each with its "cells"."""
    files: dict[str, dict[str, Any]] = {}
    for role in detail.ROLES:
        made: dict[str, dict[str, Any]] = {}
        for fact in facts:
            if environment := fact["environments"].get(role):
                entry = made.setdefault(
                    environment["hash"], {**environment, "role": role, "cells": [], "of": fact["row"]}
                )
                entry["cells"].append(fact["row"]["cell"])
        for entry in made.values():
            value = re.sub(r"[^\w.-]", "_", entry["of"][role])
            stem = role if len(made) == 1 else f"{role}-{value}"
            files[stem if stem not in files else f"{stem}-cell-{entry['of']['cell']}"] = entry
    return files


def lines(entry: Mapping[str, Any]) -> str:
    """Every package, pinned; a local tag such as +cpu says which build it was, and is no version of an index."""
    pins = "".join(f"{name}=={version.split('+')[0]}\n" for name, version in entry["packages"].items())
    return f"# {entry['role']}, {entry['platform']}: install with --no-deps\n{pins}"


def folders(packages: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The environment's folder name by its hash: equal sets of packages are one environment."""
    found: dict[str, str] = {}
    for stem, entry in packages.items():
        found.setdefault(entry["hash"], stem)
    return found


def python_of(platform: str) -> str:
    """ "3.11" of "cpython-3.11.7-linux-x86_64"."""
    found = re.search(r"-(\d+\.\d+)", platform)
    return found[1] if found else "3"


def block(packages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The commands that make every environment."""
    made = [TORCH]
    for stem in folders(packages).values():
        made += [
            f"uv venv --quiet --python {python_of(packages[stem]['platform'])} envs/{stem}",
            f"{INSTALL} --python envs/{stem}/bin/python -r packages/{stem}.txt",
        ]
    return made


def builds(packages: Mapping[str, Mapping[str, Any]]) -> str:
    """Which builds of a package were used, where its version says so."""
    tagged = sorted(
        {
            f"{name} {version}"
            for entry in packages.values()
            for name, version in entry["packages"].items()
            if "+" in version
        }
    )
    return ", ".join(tagged)
