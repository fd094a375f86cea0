"""Fixtures that all tests share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from lab import Lab, builder_repository


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One store and database for the tests that only look at what sweeps have made."""
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository of the builder: see `lab.builder_repository`."""
    return builder_repository(tmp_path_factory.mktemp("builder"))


@pytest.fixture(scope="session")
def rope(shared_lab: Lab) -> subprocess.CompletedProcess[str]:
    """The main job's four cells: sweep 1 of the shared lab."""
    done = shared_lab.run("builder=0.14.1,0.18.0", "patch=none,rope_fix")
    assert done.returncode == 1, done.stderr  # 0.18.0 without the patch does not export
    return done
