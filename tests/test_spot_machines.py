"""The task that runs a sweep on spot machines: SkyPilot reads it, and what it runs is a sweep."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import composing
import pytest
import yaml

from runner import paths

TASK = paths.PROJECT / "docs" / "inf2-spot.yaml"
SKYPILOT = "skypilot==0.14.1"
GIVEN = {"PARITYLAB_DB": "postgresql://host/lab", "STORE_REMOTE": "s3://bucket/paritylab"}
READ = """
import json, sys
import sky, yaml
config = yaml.safe_load(open(sys.argv[1]))
task = sky.Task.from_yaml_config(config, env_overrides=list(json.loads(sys.argv[2]).items()))
print(json.dumps({"name": task.name, "envs": task.envs, "run": task.run, "resources": [
    {"accelerators": r.accelerators, "spot": r.use_spot, "region": r.region, "recovery": r.job_recovery}
    for r in task.resources
]}))
"""


@pytest.fixture(scope="module")
def skypilot() -> Path:
    """An interpreter with SkyPilot, kept beside the environments of cells."""
    folder = paths.state_root() / "skypilot"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not (ready.exists() and ready.read_text() == SKYPILOT):
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "--quiet", "--clear", folder], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, SKYPILOT], check=True)
        ready.write_text(SKYPILOT)
    return python


def command() -> str:
    """What the task runs, with the values that it is given."""
    task = yaml.safe_load(TASK.read_text(encoding="utf-8"))
    values = {**task["envs"], **GIVEN}
    return re.sub(r"\$(\w+)", lambda name: values[name.group(1)], task["run"].replace("\\\n", " "))


def test_what_it_runs_is_a_sweep_of_this_project():
    words = shlex.split(command())
    assert words[:4] == ["exec", ".venv/bin/python", "-m", "runner"]
    with composing.hydra() as loader:
        (cell,) = composing.sweep_of(loader, *words[4:])
    assert cell.failure is None and cell.factors["backend"] == "neuron"
    assert cell.config.reference.cached  # a machine with devices computes no reference


@pytest.mark.slow
def test_skypilot_reads_the_task(skypilot, tmp_path):
    done = subprocess.run(
        [skypilot, "-c", READ, TASK, json.dumps(GIVEN)],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    task = json.loads(done.stdout.splitlines()[-1])
    assert len({r["region"] for r in task["resources"]}) == 3
    for resources in task["resources"]:
        assert resources["accelerators"] == {"Inferentia2": 6} and resources["spot"]
        assert resources["recovery"]["strategy"] == "EAGER_NEXT_REGION"
    # Without a database and a bucket that outlive the machine it is refused before anything is paid for.
    bare = subprocess.run(
        [skypilot, "-c", READ, TASK, "{}"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert bare.returncode != 0 and "PARITYLAB_DB" in bare.stderr
