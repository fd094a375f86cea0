"""The folder's own scripts, as they are shipped."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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


@pytest.fixture
def compare(monkeypatch):
    """The folder's compare.py, without a runtime; the worker has a module of the same name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", SimpleNamespace())
    spec = importlib.util.spec_from_file_location("folder_compare", FOLDER / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("given", None)


def test_an_export_gets_the_cells_threads_and_is_not_changed(compare, tmp_path):
    export, aside = tmp_path / "export", tmp_path / "aside"
    for made in (export, aside):
        made.mkdir()
    (export / "model.onnx").touch()
    (export / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"head_size": 8}}}))
    compare.with_threads(export, 3, aside)
    options = {"intra_op_num_threads": 3, "inter_op_num_threads": 1}
    written = json.loads((aside / "genai_config.json").read_text())["model"]["decoder"]
    assert written == {"head_size": 8, "session_options": options}
    assert (aside / "model.onnx").resolve() == export / "model.onnx"
    assert "session_options" not in (export / "genai_config.json").read_text()


def test_what_is_measured_of_an_export(compare, tmp_path, monkeypatch):
    """Up to the step at which texts part; over the vocabulary of both; the floor is noise.py's where that ran."""
    right = np.array([[0, 9, 0], [9, 0, 0], [0, 0, 9]], dtype=np.float32)
    theirs = np.array([[0, 8, 0, 5], [0, 9, 0, 5]], dtype=np.float32)
    forced = np.array([[0, 8, 0, 5], [9, 0, 0, 5], [0, 0, np.nan, 5]], dtype=np.float32)

    class Export:
        tokenizer = SimpleNamespace(decode=lambda tokens: f"text of {tokens.tolist()}")

        def __init__(self, folder, threads):
            assert (folder, threads) == (tmp_path / "export-1", 1)

        def greedy(self, ids, ends, limit):
            return [1, 1], theirs

        def forced(self, ids, tokens):
            assert tokens == [1, 0, 2]
            return forced

        def own_way(self, prompt, limit):
            return f"own, {limit}"

    one = {
        "number": 1, "threads": 1, "max_new_tokens": 3, "forced": True, "prompts": [{"name": "p", "ids": [5]}],
        "noise": [{"prompt": "p", "floor": 0.5}],
    }  # fmt: skip
    monkeypatch.setattr(compare, "Export", Export)
    monkeypatch.setattr(compare.given, "MADE", tmp_path)
    monkeypatch.setattr(compare.given, "prompt_set", lambda cell: one)
    np.savez(tmp_path / "reference-1.npz", ends=[2], tokens0=[1, 0, 2], logits0=right, own_way="theirs")
    found = compare.measured(1)
    assert found[""] == {"own_way": "own, 32", "theirs": "theirs"}
    numbers = found["p"]
    assert (numbers["first"], numbers["largest"], numbers["floor"]) == (1.0, 9.0, 0.5)
    assert np.isnan(numbers["forced"])
    assert (numbers["matched"], numbers["compared"], numbers["identical"]) == (1, 3, False)
    assert numbers["text"] == "text of [1, 1]"
    (tmp_path / "noise-1.json").write_text(json.dumps([{"prompt": "p", "floor": 0.25}]))
    assert compare.measured(1)["p"]["floor"] == 0.25
