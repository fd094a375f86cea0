"""Scripts in an interpreter that has torch: what the test interpreter lacks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from lab import with_transformers_5

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
