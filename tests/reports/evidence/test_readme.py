"""The README of the evidence is followed as it stands: in fresh environments, without this project, without the hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv
from lab import ENVIRONMENTS, Lab, with_transformers_5

from runner import paths

pytestmark = pytest.mark.slow

BLOCK = re.compile(r"^### (.*?)\n(.*?)(?=^##|\Z)", re.S | re.M)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")


@dataclass(frozen=True)
class Step:
    """A section of the README: its commands, and what it says that they print."""

    commands: str
    prints: list[str]
    ends: str


def steps_of(readme: str) -> dict[str, Step]:
    found = {}
    for title, body in BLOCK.findall(readme):
        blocks = {kind: text for kind, text in re.findall(r"```(bash|text)\n(.*?)```", body, re.S)}
        ends = re.search(r"Its last line begins with `(\w+)`", body)
        found[title] = Step(blocks.get("bash", ""), blocks.get("text", "").splitlines(), ends[1] if ends else "")
    return found


@pytest.fixture(scope="module")
def folder(rope, shared_lab: Lab, tmp_path_factory) -> Path:
    """The evidence for `rope_fix`, of the main job's four cells."""
    out = tmp_path_factory.mktemp("evidence") / "out"
    loaded = shared_lab.call("db", "items", "load", "docs/status.yaml")
    assert loaded.returncode == 0, loaded.stderr
    made = shared_lab.call("reports", "evidence", "rope_fix", "--out", str(out))
    assert made.returncode == 0, made.stderr
    return out


def paste(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands as a maintainer would, who has uv and nothing of this project."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "UV_CACHE_DIR", "SSL_CERT_FILE") if name in os.environ}
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    variables = {
        **kept, **({"UV_FIND_LINKS": links} if links else {}), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1",
        "HF_HOME": str(folder / "no_hub"), "HF_ENDPOINT": "http://127.0.0.1:9",
        "PATH": f"{Path(uv.find_uv_bin()).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    return subprocess.run(
        ["bash", "-c", commands], cwd=folder, capture_output=True, text=True, env=variables, timeout=600
    )


def agree(said: str, printed: str) -> bool:
    """Whether a line is the README's: its words, and its numbers but for the last digit that is shown."""
    if said.endswith("…"):
        return printed.startswith(said[:-1].rstrip())
    if NUMBER.sub("#", said) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    return all(float(one) == pytest.approx(float(two), rel=0.15, abs=3e-6) for one, two in pairs)


def test_the_readme_can_be_followed(folder):
    steps = steps_of((folder / "README.md").read_text(encoding="utf-8"))
    environments = steps.pop("Environments").commands.splitlines()
    # One of the two is fresh; of the other the project's own is the same packages.
    newest = [line for line in environments if "builder-0.14.1" not in line]
    assert len(environments) == 5 and len(newest) == 3
    done = paste(folder, "\n".join(newest))
    assert done.returncode == 0, done.stderr
    pins = (folder / "packages" / "builder-0.14.1.txt").read_text(encoding="utf-8").splitlines()[1:]
    (folder / "envs" / "builder-0.14.1").symlink_to(environment_of(pins))
    ran = [title for title in steps if "cell 4" not in title]  # as cell 2, on the newest release
    assert len(ran) < len(steps)
    for title in ran:
        step = steps[title]
        done = paste(folder, step.commands)
        lines = (done.stderr if step.ends else done.stdout).rstrip().splitlines()
        if step.ends:
            assert lines[-1].startswith(step.ends), (title, done.stderr)
            assert (done.returncode == 0) == (step.ends == "OK"), title
            continue
        assert done.returncode == 0, (title, done.stderr)
        lines = [line for line in lines if "(database:" not in line]
        assert len(lines) == len(step.prints) > 0, (title, lines, done.stderr)
        for said, printed in zip(step.prints, lines, strict=True):
            assert agree(said, printed), (title, said, printed)
    ends = {title: steps[title].ends for title in ran if title.startswith("Unit test")}
    assert [(title.split(",")[0], word) for title, word in ends.items()] == [
        ("Unit test of cell 1: tiny_gemma3", "FAILED"),
        ("Unit test of cell 2: tiny_gemma3", "OK"),
        ("Unit test of cell 3: tiny_gemma3", "FAILED"),
    ]


def environment_of(pins: list[str]) -> Path:
    """The project's environment with exactly these packages."""
    for stamp in ENVIRONMENTS.glob("*/ready.json"):
        packages = json.loads(stamp.read_text(encoding="utf-8"))["packages"]
        if sorted(f"{name}=={version.split('+')[0]}" for name, version in packages.items()) == sorted(pins):
            return stamp.parent
    raise AssertionError("no environment has these packages")


def test_a_cast_and_cut_checkpoint_is_made_byte_for_byte(folder, run_script):
    """The folder's script beside the runner's own stage."""
    script = f"""
from pathlib import Path
import checkpoint as stage
sys.path.insert(0, {str(Path(paths.PROJECT) / "reports" / "evidence" / "folder")!r})
del sys.modules["checkpoint"]
import checkpoint as ours, given
source = Path({str(paths.PROJECT / "checkpoints" / "tiny_gemma3")!r})
different = []
for dtype, layers in (("bf16", None), ("stored", 2), ("fp16", 3)):
    theirs, made = Path(f"theirs-{{dtype}}"), f"made-{{dtype}}"
    theirs.mkdir()
    stage.run(dict(source=str(source), dtype=dtype, layers=layers, text_only=False), str(theirs))
    given.HERE = Path.cwd()
    about = dict(folder=made, origin="", made=dict(source=str(source), dtype=dtype, layers=layers))
    given.read = lambda name: dict(checkpoints=[about])
    ours.make(made)
    names = sorted(file.name for file in theirs.iterdir())
    assert names == sorted(file.name for file in Path(made).iterdir())
    different += [name for name in names if (theirs / name).read_bytes() != (Path(made) / name).read_bytes()]
print(json.dumps(different))
"""
    assert run_script(with_transformers_5(), script) == []
