"""backend=neuron from the command line, on the stand-in: compiled, run, compared, and marked as what it is."""

from __future__ import annotations

import json

import pytest
from lab import Lab, artifacts, results, table_of, with_stand_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def asked(rope, tmp_path_factory) -> tuple[str, ...]:
    python = with_stand_in(tmp_path_factory.mktemp("neuron") / "environment")
    return (
        "model=tiny_gemma4", "backend=neuron", "backend.tp=2", "backend.buckets=[64,128]", "backend.max_len=256",
        f"env.python={python}",
    )  # fmt: skip


def test_a_machine_without_the_packages_says_so(shared_lab, rope):
    done = shared_lab.run("model=tiny_gemma4", "backend=neuron", "backend.tp=2")
    assert done.returncode == 1 and "env_failed" in done.stdout
    assert "backend=neuron needs torch-neuronx, neuronx-distributed" in done.stderr and "env.python=" in done.stdout


@pytest.fixture(scope="module")
def ran(shared_lab, asked):
    """Both ModelBuilders, with the buffers and without."""
    swept = ("backend.model_builder=v1,v2", "backend.copy_buffers=true,false", "load_audit=warn")
    done = shared_lab.run(*asked, *swept)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, results(shared_lab, "--sweep", "latest")


def test_it_is_identical_and_sensible_and_the_rows_name_the_stand_in(shared_lab, ran):
    done, rows = ran
    right = [row for row in rows if "copy_buffers=true" in row["options"]]
    assert len(right) == 10 and {row["verdict"] for row in right} == {"within_noise"}
    assert all(row["tokens_identical"] and row["sensible"] and row["candidate_sensible"] for row in right)
    assert {row["stand_in"] for row in rows} == {"neuron-cpu"}
    assert "Made by the stand-in neuron-cpu" in done.stdout
    shown = shared_lab.call("db", "show", str(right[0]["cell"])).stdout
    for measured in ("compile_seconds", "sharding_seconds", "load_seconds", "first_token_seconds", "decode_tokens_per"):
        assert measured in shown


def test_the_buffer_trap_springs(shared_lab, asked, ran):
    done, rows = ran
    lost = [row for row in rows if "copy_buffers=false" in row["options"]]
    assert len(lost) == 10 and not any(row["tokens_identical"] for row in lost)
    assert "model.layers.*.layer_scalar" in done.stdout
    strict = shared_lab.run(*asked, "backend.copy_buffers=false")
    assert strict.returncode == 1 and "load_failed: LoadAudit: export:" in strict.stderr


def test_a_compile_is_banked_and_the_device_needs_no_reference(lab: Lab, asked):
    compiled = lab.run(*asked, "stages=export")
    assert compiled.returncode == 0 and "compile_seconds" in compiled.stdout and "neuron-cpu" in compiled.stdout
    banked = artifacts(lab, "export")
    looked = lab.run(*asked, "stages=candidate")
    assert looked.returncode == 0 and "The capital of France is Paris." in looked.stdout
    assert artifacts(lab, "export") == banked and not artifacts(lab, "reference")
    # The reference comes from elsewhere, made with other packages, and is not computed here.
    assert lab.run("model=tiny_gemma4", "backend=transformers").returncode == 0
    made = artifacts(lab, "reference")
    compared = lab.run(*asked, "reference=cached")
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert artifacts(lab, "reference") == made and artifacts(lab, "export") == banked
    assert "5 of 5" in table_of(compared)[0]
    packages = json.loads(
        lab.call("db", "env", str(results(lab, "--sweep", "latest")[0]["cell"]), "--format", "json").stdout
    )
    (neuron,) = [row for row in packages if row["package"] == "neuronx-distributed"]
    assert neuron["runtime"] == "0.18.0+standin" and not neuron.get("reference")
