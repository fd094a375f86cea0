"""Fixtures that all tests share."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from lab import Lab, builder_repository, with_transformers_5

from runner import paths

# What a script may call: grown(function) says by how much memory grew at most while it ran. It reads
# the kernel's high-water mark and not ru_maxrss, which a process inherits from the one that starts it.
PRELUDE = """
import json, sys
def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))
def grown(function):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before
"""


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


@pytest.fixture
def run_script(tmp_path):
    """Run a script with the worker's modules at hand; the last line that it prints is its result, as JSON."""

    def run(python: str | Path, script: str, *arguments: object):
        done = subprocess.run(
            [python, "-c", PRELUDE + script, *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(paths.PROJECT / "runner" / "worker"), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def with_torch(rope, run_script):
    """`run_script` in an environment of the reference's kind."""
    return lambda script, *arguments: run_script(with_transformers_5(), script, *arguments)
