"""Fixtures that the runner's tests share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import composing
import pytest
from lab import ENVIRONMENTS

from runner import environments, releases, schema
from runner.store import Store


@pytest.fixture(scope="module")
def loader():
    with composing.hydra() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """Another machine's store."""
    return Store(tmp_path / "other")


@pytest.fixture(scope="module")
def gguf_python(tmp_path_factory) -> Path:
    """The interpreter in which GGUF files are read; made where there is none yet."""

    async def make() -> Path:
        asked = schema.Environment(genai=releases.versions()[0], extra=list(releases.known()["gguf"]))
        store = Store(tmp_path_factory.mktemp("resolve"))
        wanted, pins = releases.requirements(asked), releases.constraints(asked)
        resolved = await environments.resolve(store, wanted, pins, None, False)
        return await environments.install(store, ENVIRONMENTS, resolved)

    return asyncio.run(make())
