"""The shipped checkpoints hold fp32 numbers with all their bits: an export that narrows its weights is another one."""

from __future__ import annotations

import numpy as np
import pytest
from lab import results
from safetensors.numpy import load_file

from runner import paths

NAMES = sorted(path.parent.name for path in (paths.PROJECT / "checkpoints").glob("*/model.safetensors"))
# A builder that rounds every matrix to fp16 and writes it as fp32.
NARROWING = """
changes:
  narrowed:
    what: every matrix is rounded to fp16
    variants:
      - builders: ">=0.18"
        edits:
          - file: builders/base.py
            find: |-2
                      if raw:
                          if to is None:
            put: |-2
                      if isinstance(tensor, torch.Tensor) and tensor.ndim == 2 and "weight" in name.lower():
                          tensor = tensor.detach().half().float()
                      if raw:
                          if to is None:
            present: tensor\\.detach\\(\\)\\.half
"""


def is_bf16(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32) & 0xFFFF == 0


def is_fp16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32) == values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("narrow", [is_bf16, is_fp16])
def test_next_to_no_weight_is_a_narrower_number(name, narrow):
    weights = load_file(paths.PROJECT / "checkpoints" / name / "model.safetensors")
    assert len(weights) > 30
    for key, value in weights.items():
        assert value.dtype == np.float32 and value.any(), key
        # One value in 65,536 is a bf16 number by chance, one in 8,192 an fp16 number: of a vector none or few.
        assert narrow(value[value != 0]).mean() < 0.03, f"{key}: {narrow.__name__}"


def test_numbers_of_either_kind_are_told():
    values = np.array([1.0, 1.0078125, 1.0009765625, 1.1, 1e-3], np.float32)
    assert is_bf16(values).tolist() == [True, True, False, False, False]
    assert is_fp16(values).tolist() == [True, True, True, False, False]


@pytest.mark.slow
def test_an_export_with_its_matrices_rounded_to_fp16_is_not_within_the_noise(shared_lab, rope, tmp_path):
    """Where the checkpoint holds bf16 numbers nothing of it is seen: they are fp16 numbers too."""
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "narrowed.yaml").write_text(NARROWING, encoding="utf-8")
    asked = ("model=tiny_llama", "builder=0.18.0", "patch=none,narrowed", "dtype=fp32,bf16")
    done = shared_lab.run("--config-dir", str(tmp_path), *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = results(shared_lab, "--sweep", "latest")
    verdicts = {(row["dtype"], row["patch"]): row["verdict"] for row in rows}
    assert verdicts["fp32", "none"] == verdicts["bf16", "none"] == verdicts["bf16", "narrowed"] == "within_noise"
    assert verdicts["fp32", "narrowed"] in ("elevated", "broken")
    assert all(row["tokens_identical"] for row in rows)  # the text alone does not tell
