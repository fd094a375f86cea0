"""A real model, end to end. `PARITYLAB_GGUF` names a GGUF file of a small one; see docs/real-models.md."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from lab import Lab, results

GGUF = os.environ.get("PARITYLAB_GGUF")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GGUF, reason="PARITYLAB_GGUF names no GGUF file of a real model"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> tuple[Lab, list[dict]]:
    lab = Lab(tmp_path_factory.mktemp("real"))
    done = lab.run("model=path", f"model.path={GGUF}", "max_new_tokens=8", timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return lab, results(lab)


def test_it_runs_and_is_measured(real):
    _, rows = real
    assert len(rows) == 5
    for row in rows:
        assert row["status"] == "ok" and row["model"] == Path(GGUF).name
        assert 0 < row["noise_floor"] < 0.01
        assert row["verdict"] in ("within_noise", "near_tie") and row["tokens_identical"]


def test_its_tokenizer_is_judged(real):
    """What the audit says of the English prompt is what its ids show: a trained tokenizer does not spell."""
    lab, rows = real
    cell = str(rows[0]["cell"])
    given = json.loads(lab.call("db", "prompts", cell, "--format", "json").stdout)
    english = next(prompt for prompt in given if prompt["prompt"] == "english")
    assert english["template_hash"] and english["tokens"] == len(english["ids"])
    spelled = english["tokens"] > 0.9 * len(english["text"])
    assert ("token_per_character" in lab.call("db", "show", cell).stdout) == spelled


def test_its_constants_are_right(real):
    lab, rows = real
    found = json.loads(lab.call("db", "constants", str(rows[0]["cell"]), "--format", "json").stdout)
    assert {"rope", "norm_weight"} <= {constant["kind"] for constant in found}
    assert {constant["verdict"] for constant in found} <= {"same", "rounded"}
