"""Where tests keep environments, and how they call the project's commands.

Environments are content-addressed and slow to make, so tests use the
project's own (``.paritylab/store/environments``); artifacts and databases are
always new ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import uv
from omegaconf import OmegaConf

from runner import environments, patches, paths
from runner.schema import Change, Changes

ENVIRONMENTS = paths.state_root() / "store" / "environments"


@dataclass(frozen=True)
class Lab:
    """A store and a database of a test's own, and the commands on them."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def db(self) -> Path:
        return self.root / "results.db"

    def variables(self) -> dict[str, str]:
        return {**os.environ, "PARITYLAB_DB": str(self.db), "PARITYLAB_STORE": str(self.store)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", *arguments]

    def call(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run ``python -m ARGUMENTS`` in the project's folder."""
        return subprocess.run(
            self.command(*arguments),
            cwd=paths.PROJECT,
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run(self, *overrides: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run the runner with environments shared among tests."""
        shared = f"store.environments={ENVIRONMENTS}"
        return self.call("runner", "-m", shared, *overrides, timeout=timeout)


def with_transformers_5() -> Path:
    """The interpreter of an environment that a cell's reference runs in; the fixture `rope` has made one."""
    for stamp in sorted(ENVIRONMENTS.glob("*/ready.json")):
        packages = json.loads(stamp.read_text(encoding="utf-8"))["packages"]
        if packages.get("transformers", "").startswith("5."):
            return stamp.parent / "bin" / "python"
    raise AssertionError("no environment has transformers 5")


def with_stand_in(folder: Path) -> Path:
    """An interpreter that leads on to the reference's environment and to the stand-in for Neuron's packages."""
    base = with_transformers_5()
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", base, folder], check=True)
    python = folder / "bin" / "python"
    asyncio.run(environments.lead_on(python, base))
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "stand_in.pth").write_text(f"{paths.PROJECT / 'tests' / 'neuron_stand_in'}\n", encoding="utf-8")
    return python


def run_git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def wheel_sources(version: str, to: Path) -> Path:
    """The ``models`` folder of a published wheel."""
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", to / version, f"onnxruntime-genai=={version}"]
    subprocess.run(command, check=True)
    return to / version / "onnxruntime_genai" / "models"


def shipped_changes(name: str) -> dict[str, Change]:
    """A patch of conf/patch/, sets merged as their defaults list says."""
    node = OmegaConf.load(paths.CONF / "patch" / f"{name}.yaml")
    changes = {}
    for single in node.pop("defaults", []):
        changes |= shipped_changes(single)
    return changes | OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Changes), node)).changes


def builder_repository(root: Path) -> Path:
    """A git repository of the builder, made from its wheels.

    Tags v0.17.1 and v0.18.0; main is the latter plus the RoPE fix, which is pull request 2884; pull request 2939
    adds the precision fixes to v0.18.0.
    """
    repository = root / "repository"
    models = repository / "src" / "python" / "py" / "models"
    models.parent.mkdir(parents=True)
    run_git(repository, "init", "--quiet")
    for version in ("0.17.1", "0.18.0"):
        shutil.rmtree(models, ignore_errors=True)
        shutil.copytree(wheel_sources(version, root / "wheels"), models, ignore=shutil.ignore_patterns("__pycache__"))
        run_git(repository, "add", "--all")
        run_git(repository, "commit", "--quiet", "-m", version)
        run_git(repository, "tag", f"v{version}")
    for number, patch in ((2939, "gemma_precision"), (2884, "rope_fix")):
        run_git(repository, "checkout", "--quiet", "--detach", "v0.18.0")
        patches.apply(models, shipped_changes(patch), "0.18.0")
        run_git(repository, "commit", "--quiet", "-am", patch)
        run_git(repository, "update-ref", f"refs/pull/{number}/head", "HEAD")
    run_git(repository, "checkout", "--quiet", "-B", "main")
    return repository


def results(lab: Lab, *arguments: str) -> list[dict]:
    done = lab.call("db", "results", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def artifacts(lab: Lab, stage: str) -> dict[str, int]:
    """A stage's artifacts, with the time at which each was made."""
    folder = lab.store / stage
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} if folder.exists() else {}


def table_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The rows of a printed table, without the numbers of the cells."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [line.split("|", 2)[2] for line in lines[2:]]


def worst_first_diff(rows: list[dict]) -> float:
    return max(row["first_logits_max_abs_diff"] for row in rows)


def wait_for(found, process: subprocess.Popen, seconds: float = 400):
    """The first true value of `found()` while the process runs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"it did not happen; the runner said: {process.communicate()[1]}")


def start(lab: Lab, *overrides: str) -> subprocess.Popen:
    return subprocess.Popen(
        lab.command("runner", "-m", f"store.environments={ENVIRONMENTS}", *overrides),
        cwd=paths.PROJECT, env=lab.variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children_at_work(lab: Lab, stage: str) -> list[psutil.Process]:
    """Processes whose working folder is a draft of `stage` in the lab's store."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(lab.store / "tmp" / f"{stage}-")):
                found.append(process)
        except psutil.Error:
            continue
    return found
