"""The experiment files redo the tables of the first published search, each with one command, and keep its pattern."""

from __future__ import annotations

import pytest
from lab import Lab, results, table_of

pytestmark = pytest.mark.slow


def run(lab: Lab, name: str, code: int = 0) -> list[dict]:
    done = lab.run(f"+experiment={name}")
    assert done.returncode == code, done.stderr
    return results(lab, "--sweep", "latest")


def worst(rows: list[dict], **factors: str) -> float:
    mine = [row for row in rows if all(row[name] == value for name, value in factors.items())]
    return max(row["logits_max_abs_diff"] for row in mine)


def test_rope_proof(shared_lab, rope):
    run(shared_lab, "rope_proof")
    printed = shared_lab.call("reports", "proof", "--experiment", "rope_proof").stdout
    assert "| rope_fix | proven" in printed and "for the wrong text" in printed
    assert "0.18.0 with rope_fix gives the numbers of 0.14.1 with rope_fix" in printed


def test_precision_before_and_after(shared_lab, rope):
    rows = run(shared_lab, "precision")
    for model in ("tiny_gemma2", "tiny_gemma3"):
        before = worst(rows, model=model, patch="rope_fix")
        assert before > 1000 * worst(rows, model=model, patch="rope_fix+gemma_precision")
    assert {row["verdict"] for row in rows if "+" in row["patch"]} == {"within_noise"}


def test_the_causes_of_the_precision(shared_lab, rope):
    run(shared_lab, "precision_causes")
    printed = shared_lab.call("reports", "proof", "--experiment", "precision_causes").stdout
    assert "Both are needed; norm_offset_fp32 is the larger" in printed


def test_depth(shared_lab, rope):
    run(shared_lab, "depth")
    done = shared_lab.call("reports", "depth", "--sweep", "latest")
    line = next(line for line in done.stdout.splitlines() if "tiny_gemma3 0.18.0 rope_fix: " in line)
    assert "at 1 layer already: an error is in the first layer" in line
    assert len(table_of(done)) == 4


def test_the_dtype_decides(shared_lab, rope):
    rows = run(shared_lab, "dtype")
    assert worst(rows, dtype="bf16") > 10 * worst(rows, dtype="fp32")


def test_noise_is_the_same_small_one_for_every_model(shared_lab, rope):
    run(shared_lab, "noise")
    done = shared_lab.call("reports", "noise", "--sweep", "latest")
    assert done.returncode == 0 and len(table_of(done)) == 3
    rows = results(shared_lab, "--sweep", "latest")
    assert max(row["noise_floor"] for row in rows) < 1e-4 < worst(rows, model="tiny_gemma2")
