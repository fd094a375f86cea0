"""Sweeps of one stage, and references that were computed before: compile now, run there, compare with the cached."""

from __future__ import annotations

import json
import shutil

import pytest
from lab import Lab, artifacts, results, table_of

pytestmark = pytest.mark.slow
FIXED = ("builder=0.14.1", "patch=rope_fix")


def test_an_export_alone_is_banked_and_the_full_sweep_goes_on_from_it(lab: Lab, rope):
    done = lab.run("stages=export", "builder=0.14.1,0.18.0", "patch=rope_fix")
    assert done.returncode == 0, done.stderr
    assert len(table_of(done)) == 2 and "made" in table_of(done)[0]
    assert not artifacts(lab, "reference") and not artifacts(lab, "candidate")
    assert results(lab) == []  # nothing was compared
    made = artifacts(lab, "export")
    assert len(made) == 2
    full = lab.run(*FIXED)
    assert full.returncode == 0, full.stderr
    assert artifacts(lab, "export") == made
    again = lab.run("stages=export", *FIXED)
    assert "1 found, 0 to run" in again.stderr
    printed = lab.call("reports", "stages")
    assert printed.returncode == 0 and "export/" in printed.stdout
    # A backend that exports nothing says so.
    none = lab.run("stages=export", "backend=transformers")
    assert none.returncode == 2 and "has no export to make" in none.stdout


def test_a_candidate_alone_is_looked_at_without_a_reference(lab: Lab, rope):
    done = lab.run("stages=candidate", "builder=0.14.1", "patch=none,rope_fix")
    assert done.returncode == 0, done.stderr
    lines = table_of(done)
    assert [" wrong " in line for line in lines] == [True] * 5 + [False] * 5
    assert sum("The capital of France is Paris." in line for line in lines) == 1
    assert not artifacts(lab, "reference") and results(lab) == []
    assert lab.run("stages=candidate", "action=constants").returncode == 2


def test_a_cached_reference_is_found_whatever_packages_are_here(lab: Lab, rope):
    done = lab.run("reference=cached", *FIXED)
    assert done.returncode == 1 and "reference_failed" in done.stdout and "no earlier reference" in done.stdout
    assert lab.run("backend=transformers").returncode == 0  # computes it, and exports nothing
    before = artifacts(lab, "reference")
    for overrides in (FIXED, ("backend=transformers", "runtime=transformers_4.57.6")):
        done = lab.run("reference=cached", *overrides)
        assert done.returncode == 0, done.stdout + done.stderr
    assert artifacts(lab, "reference") == before
    assert len(results(lab, "--sweep", "latest")) == 5
    # Another length is another reference.
    other = lab.run("reference=cached", *FIXED, "max_new_tokens=3")
    assert other.returncode == 1 and "no earlier reference" in other.stdout


def test_another_machine_takes_a_cached_reference_from_the_remote(lab: Lab, rope, tmp_path):
    remote = f"store.remote={(tmp_path / 'remote').as_uri()}"
    assert lab.run("backend=transformers", remote).returncode == 0
    other = f"store.root={tmp_path / 'other'}"
    done = lab.run("reference=cached", "backend=transformers", "backend.attention=eager", remote, other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reference" in done.stderr and "from store.remote" in done.stderr


def test_a_cached_reference_is_never_computed_and_keeps_its_own_packages(lab: Lab, rope):
    assert lab.run("backend=transformers", "noise.variants=[]").returncode == 0
    made = artifacts(lab, "reference")
    asked = ("reference=cached", "backend=transformers", "runtime=transformers_4.57.6", "noise.variants=[]")
    done = lab.run(*asked, "rerun=all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert artifacts(lab, "reference") == made and ": reference" not in done.stderr
    (cell,) = {row["cell"] for row in results(lab, "--sweep", "latest")}
    packages = json.loads(lab.call("db", "env", str(cell), "--format", "json").stdout)
    (row,) = [row for row in packages if row["package"] == "transformers"]
    assert row["reference"] == "5.13.0" and row["runtime"] == "4.57.6"
    # A byte of it is another: it is refused, and not made anew with these packages.
    (logits,) = (lab.store / "reference").glob("*/0.npy")
    content = bytearray(logits.read_bytes())
    content[-1] ^= 1
    logits.write_bytes(content)
    shutil.rmtree(lab.store / "candidate")
    shutil.rmtree(lab.store / "compare")
    done = lab.run(*asked, "max_new_tokens=20", "rerun=all")
    assert done.returncode == 1 and "reference_failed" in done.stdout and "is damaged" in done.stdout
