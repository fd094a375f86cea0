"""The folder's own scripts, as they are shipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reports import evidence
from reports.evidence.folder import given, hashes

FOLDER = Path(evidence.__file__).parent / "folder"
THRESHOLDS = {"within": 10.0, "broken": 1000.0}
NUMBERS = {"first": 1.0, "largest": 2.0, "forced": 30.0, "floor": 1.0, "matched": 4, "compared": 5, "identical": True}


def test_a_prompt_is_told_with_the_larger_of_its_two_multiples():
    told = given.line("p", NUMBERS | {"text": "a"}, THRESHOLDS)
    assert told == "p: first 1, largest 2, forced 30; 30 × noise, elevated; identical, 5 tokens: 'a'"
    parted = NUMBERS | {"text": "a", "identical": False, "forced": None, "floor": None}
    assert given.line("p", parted, THRESHOLDS) == ("p: first 1, largest 2; no verdict; parts at token 5, 5 tokens: 'a'")
    broken = given.line("p", NUMBERS | {"text": "a", "largest": float("nan")}, THRESHOLDS)
    assert "nan × noise, not finite" in broken
    assert given.beside("a", "a") == "  a" and "(database: b)" in given.beside("a", "b")


@pytest.mark.parametrize(("value", "shown"), [(460.4, "460"), (1.26, "1.3"), (5e-6, "5.0e-06"), (0.0, "0")])
def test_numbers_have_two_digits(value, shown):
    assert given.short(value) == shown


@pytest.fixture
def unit_test(tmp_path):
    """Run the folder's unit test of an export whose numbers are these, the builder having ended so."""
    for name in ("given.py", "test_export.py"):
        shutil.copy(FOLDER / name, tmp_path)
    results = {"cells": [{"cell": 1, "check": {"bound": 50}}]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    export = tmp_path / "made" / "export-1"
    export.mkdir(parents=True)

    def run(numbers: dict, ended: str = "0", files=("genai_config.json", "model.onnx"), **variables):
        for name in files:
            (export / name).touch()
        (export.parent / "export-1.exit").write_text(f"{ended}\n")
        (export.parent / "export-1.log").write_text("Traceback\nKeyError: 'rope_type'\n")
        measured = {"p": NUMBERS | {"text": "a"} | numbers, "": {}}
        (tmp_path / "compare.py").write_text(
            f"from math import nan\n\n\ndef measured(cell, folder):\n    return {measured!r}\n"
        )
        return subprocess.run(
            [sys.executable, "-m", "unittest", "test_export"], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "CELL": "1", **variables},
        )  # fmt: skip

    return run


def test_a_right_export_passes(unit_test):
    done = unit_test({})
    assert done.returncode == 0 and done.stderr.rstrip().endswith("OK")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"forced": 51.0}, "51.0 not less than or equal to 50 : forced difference in multiples of the noise"),
        ({"largest": float("nan")}, "nan not less than or equal to 50"),
        ({"identical": False}, "token 5 is another: 'a'"),
    ],
)
def test_a_wrong_one_fails(unit_test, numbers, said):
    done = unit_test(numbers)
    assert done.returncode == 1 and said in done.stderr


def test_a_builder_that_fails_is_told_by_its_last_line(unit_test):
    done = unit_test({}, ended="1", files=())
    assert done.returncode == 1
    assert "the builder ended with 1 and said: KeyError: 'rope_type'" in done.stderr
    assert "FAILED (failures=1, skipped=2)" in done.stderr


def test_a_folder_of_weights_is_held_to_its_hashes(tmp_path):
    for name in ("given.py", "hashes.py", "checkpoint.py"):
        shutil.copy(FOLDER / name, tmp_path)
    lm = tmp_path / "checkpoints" / "lm"
    lm.mkdir(parents=True)
    (lm / "config.json").write_text("{}")
    files = [{"file": "config.json", "sha256": hashes.sha256(lm / "config.json")}, {"file": "code.py", "sha256": "0"}]
    one = {"folder": "checkpoints/lm", "origin": "hub a/b at 01", "hash": None, "files": files, "made": None}
    other = {**one, "folder": "checkpoints/other", "hash": hashes.whole_hash(lm), "files": None}
    (tmp_path / "checkpoints.json").write_text(json.dumps({"checkpoints": [one, other]}))

    def check() -> tuple[int, list[str]]:
        command = [sys.executable, "checkpoint.py", "check"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    assert check() == (1, ["checkpoints/lm: as hashed", "checkpoints/other: it is not there; hub a/b at 01"])
    shutil.copytree(lm, tmp_path / "checkpoints" / "other")
    assert check() == (0, ["checkpoints/lm: as hashed", "checkpoints/other: as hashed"])
    for name in ("lm", "other"):
        (tmp_path / "checkpoints" / name / "config.json").write_text("{ }")
    assert check() == (
        1, ["checkpoints/lm: config.json is another", "checkpoints/other: the hash over all of its files is another"],
    )  # fmt: skip
