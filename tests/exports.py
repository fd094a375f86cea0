"""Exports that a script makes in an environment of the project's own, one after the other in one process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from lab import ENVIRONMENTS

from runner import paths

FAULTS = {"differs", "dropped", "added"}

EXPORT = """
import json, os, sys
import export

def exported(overlay, checkpoint, out, precision="fp32"):
    back, work = os.getcwd(), out + "-work"
    os.makedirs(out)
    os.makedirs(work)
    os.chdir(work)
    try:
        export.run({"overlay": overlay, "checkpoint": checkpoint, "precision": precision, "execution_provider": "cpu",
                    "extra_options": {}}, out)
    finally:
        os.chdir(back)
    sys.path.remove(overlay)
    for name, module in list(sys.modules.items()):  # another overlay has modules of the same names
        if (getattr(module, "__file__", None) or "").startswith(overlay):
            del sys.modules[name]
    return out
"""


def python_with(transformers: str) -> Path:
    """An interpreter of the project's own environments; the fixture `rope` has made one with 4 and one with 5."""
    for stamp in sorted(ENVIRONMENTS.glob("*/ready.json")):
        packages = json.loads(stamp.read_text(encoding="utf-8"))["packages"]
        if packages.get("transformers", "").startswith(transformers) and "onnxruntime-genai" in packages:
            return stamp.parent / "bin" / "python"
    raise AssertionError(f"no environment has transformers {transformers}")


def run(python: Path, script: str, folder: Path, *arguments: object):
    """The JSON that a script prints last; the worker's modules and EXPORT are at hand."""
    done = subprocess.run(
        [python, "-c", EXPORT + script, *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(paths.PROJECT / "runner" / "worker"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
