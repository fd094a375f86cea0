"""Backends: what is a cell's own where there is no builder, and what each of them computes."""

from __future__ import annotations

import shutil
import sqlite3

import numpy as np
import pytest
from composing import sweep_of
from lab import artifacts, results, table_of, worst_first_diff
from safetensors.numpy import load_file, save_file

from runner import backends, paths, schema


def test_each_backend_has_its_folder_and_its_keys():
    assert set(backends.NAMES) == set(schema.BACKENDS)
    for name in backends.NAMES:
        module = backends.stages(name)
        for part in (
            "BUILDER",
            "CONSTANTS",
            "EXPORT",
            "CANDIDATE",
            "REQUIRES",
            "LACKING",
            "check",
            "export_settings",
            "candidate_settings",
        ):
            assert hasattr(module, part), f"{name} has no {part}"


@pytest.mark.parametrize("backend", ["transformers", "tp_cpu"])
def test_a_backend_without_a_builder_says_none(loader, backend):
    cells = sweep_of(loader, f"backend={backend}", "builder=0.14.1,0.18.0", "patch=none,rope_fix")
    assert [(c.factors["builder"], c.factors["patch"]) for c in cells] == [("none", "none")]  # once
    mixed = sweep_of(loader, f"backend=genai,{backend}", "builder=0.14.1,0.18.0", "layers=1,all")
    assert [c.factors["backend"] for c in mixed] == ["genai"] * 4 + [backend] * 2
    (with_options,) = sweep_of(
        loader, f"backend={backend}", "builder=main", "builder.ref=abc", "backend.attention=eager"
    )
    assert with_options.options == "backend.attention=eager" and with_options.failure is None


@pytest.mark.parametrize(
    ("overrides", "said", "hint"),
    [
        (["backend=transformers", "precision=int4"], "has no int4", "allowed: fp32, bf16, fp16"),
        (["backend=transformers", "backend.attention=flash"], "'flash' is not allowed", "allowed: eager, sdpa"),
        (["backend=transformers", "backend.compute_dtype=int8"], "'int8'", "allowed: null, float32"),
        (["backend=transformers", "precision=bf16", "backend.compute_dtype=float64"], "contradict", "one of them"),
        (["backend=transformers", "runtime=builder"], "has no builder", "name a runtime"),
        (["backend=tp_cpu", "backend.tp=0"], "backend.tp: 0 is not allowed", "1 to 64"),
        (["backend=tp_cpu", "backend.gqa=x"], "'x' is not allowed", "replicate-layer"),
        (["backend=tp_cpu", "backend.tp=two"], "backend.tp", ""),
        (["backend=tp_cpu", "+backend.extra_options={a: 1}"], "backend.extra_options", "copy_buffers"),
        (["+backend.tp=2"], "backend.tp: backend=genai has no such key", "extra_options"),
    ],
)
def test_a_bad_backend_says_what_is_allowed(loader, overrides, said, hint):
    # Swept, so that it is the cell's failure and not the command's.
    (cell, _) = sweep_of(loader, *overrides, "threads=1,2")
    assert cell.failure and said in cell.failure.message and hint in cell.failure.hint


def test_a_key_of_another_backend_fails_its_cells_alone(loader):
    cells = sweep_of(loader, "backend=genai,tp_cpu", "backend.tp=2,4")
    assert [bool(cell.failure) for cell in cells] == [True, True, False, False]
    assert "there is no key backend.tp here" in cells[0].failure.message
    assert "not every value of backend has this key" in cells[0].failure.hint


@pytest.fixture(scope="module")
def whole(shared_lab, rope) -> list[dict]:
    """transformers beside itself: another attention, other dtypes, another version."""
    for overrides in (
        ("backend.attention=eager,sdpa", "backend.compute_dtype=float32,float64"),
        ("precision=bf16",),
        ("backend.compute_dtype=bfloat16",),
        ("runtime=transformers_4.57.6", "backend.attention=eager"),
    ):
        done = shared_lab.run("backend=transformers", *overrides)
        assert done.returncode == 0, done.stderr
    return [row for row in results(shared_lab) if row["backend"] == "transformers"]


@pytest.mark.slow
def test_transformers_beside_itself_is_identical_and_within_the_noise(whole):
    own = [row for row in whole if row["precision"] == "fp32" and "bfloat16" not in (row["options"] or "")]
    assert len(own) == 5 * 5
    assert {row["tokens_identical"] for row in own} == {True} and {row["verdict"] for row in own} == {"within_noise"}
    assert {(row["builder"], row["patch"]) for row in whole} == {("none", "none")}
    same = [row for row in own if row["options"] == "backend.attention=eager backend.compute_dtype=float32"]
    assert worst_first_diff(same) == 0


@pytest.mark.slow
def test_another_dtype_is_held_to_what_was_asked(whole):
    by_precision = [row for row in whole if row["precision"] == "bf16"]
    assert {row["verdict"] for row in by_precision} == {"within_noise"}
    by_dtype = [row for row in whole if row["options"] == "backend.compute_dtype=bfloat16"]
    assert worst_first_diff(by_dtype) == worst_first_diff(by_precision) > 1e-3
    assert {row["verdict"] for row in by_dtype} & {"broken", "elevated"}


@pytest.mark.slow
def test_nothing_is_exported_and_no_constants_are_read(shared_lab, whole):
    database = sqlite3.connect(shared_lab.db)
    used = database.execute(
        "SELECT DISTINCT stage FROM stage_run JOIN cell USING (result_id) WHERE backend = 'transformers'"
    )
    assert {stage for (stage,) in used} == {"prompts", "reference", "noise", "candidate", "compare"}
    done = shared_lab.run("backend=transformers", "action=constants")
    assert done.returncode == 2 and "has no constants to compare" in done.stdout


@pytest.fixture(scope="module")
def trap(shared_lab, rope):
    """The second search's finding, in one command."""
    done = shared_lab.run("+experiment=broken_prompt")
    assert done.returncode == 0, done.stderr
    return done, results(shared_lab, "--sweep", "latest")


def rows_of(rows: list[dict], prompts: str, copied: bool) -> list[dict]:
    option = f"backend.copy_buffers={str(copied).lower()}"
    found = [row for row in rows if row["prompts"] == prompts and option in row["options"]]
    assert len(found) == 5
    return found


@pytest.mark.slow
def test_the_trap_a_match_on_nonsense(trap):
    done, rows = trap
    nonsense = rows_of(rows, "handwritten", copied=True)
    assert all(row["tokens_identical"] and row["sensible"] is False for row in nonsense)
    assert {row["verdict"] for row in nonsense} == {"within_noise"}
    assert "5 of 5 (5 on nonsense)" in table_of(done)[0]
    assert "split_marker" in done.stdout and "<|turn>" in done.stdout  # the audit says which markers it has


@pytest.mark.slow
def test_the_trap_the_real_template_and_the_lost_buffers(trap):
    done, rows = trap
    right = rows_of(rows, "five", copied=True)
    assert all(row["tokens_identical"] and row["sensible"] and row["candidate_sensible"] for row in right)
    lost = rows_of(rows, "five", copied=False)
    assert not any(row["tokens_identical"] for row in lost) and worst_first_diff(lost) > 1
    assert "model.layers.*.layer_scalar" in done.stdout and "keep their default" in done.stdout


@pytest.mark.slow
def test_the_trap_compiles_nothing_again(shared_lab, trap):
    exports = sqlite3.connect(shared_lab.db).execute(
        "SELECT key, count(*) FROM stage_run JOIN cell USING (result_id) WHERE stage = 'export' AND sweep_id ="
        " (SELECT max(sweep_id) FROM cell WHERE backend = 'tp_cpu' AND prompts = 'handwritten') GROUP BY key"
    )
    assert sorted(count for _, count in exports) == [2, 2]
    before = artifacts(shared_lab, "export")
    assert shared_lab.run("+experiment=broken_prompt", "max_new_tokens=3").returncode == 0
    assert artifacts(shared_lab, "export") == before


@pytest.mark.slow
def test_a_lost_buffer_is_an_error_by_default(shared_lab, trap):
    asked = ("model=tiny_gemma4", "backend=tp_cpu", "backend.copy_buffers=false")
    done = shared_lab.run(*asked)
    assert done.returncode == 1
    assert "load_failed" in done.stdout and "model.layers.*.layer_scalar" in done.stdout
    again = shared_lab.run(*asked, "load_audit=warn")  # has numbers, which the failure does not hide
    assert again.returncode == 0, again.stdout
    assert shared_lab.run(*asked).returncode == 1  # nor they it


@pytest.mark.slow
@pytest.mark.parametrize("tp", [2, 4])
def test_the_plan_run_for_real_is_within_the_noise(shared_lab, trap, tp):
    done = shared_lab.run("model=tiny_gemma4", "backend=tp_cpu", f"backend.tp={tp}")
    assert done.returncode == 0, done.stderr
    rows = results(shared_lab, "--sweep", "latest")
    assert {row["verdict"] for row in rows} == {"within_noise"} and all(row["tokens_identical"] for row in rows)
    printed = shared_lab.call("db", "loading", str(rows[0]["cell"])).stdout
    for outcome in ("sharded", "replicated", "copied", "tied", "computed"):
        assert outcome in printed


@pytest.fixture
def copied(tmp_path):
    """Makes a copy of a shipped checkpoint whose tensors a function has changed."""

    def copied(name: str, change) -> str:
        folder = tmp_path / name
        shutil.copytree(paths.PROJECT / "checkpoints" / name, folder)
        tensors = load_file(folder / "model.safetensors")
        save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)

    return copied


@pytest.mark.slow
def test_a_buffer_that_the_checkpoint_lacks_is_no_default_to_go_on_with(shared_lab, rope, copied):
    folder = copied("tiny_gemma4", lambda all: {k: v for k, v in all.items() if "layer_scalar" not in k})
    for backend in ("transformers", "tp_cpu"):
        done = shared_lab.run("model=path", f"model.path={folder}", f"backend={backend}", "stages=candidate")
        assert done.returncode == 1 and "load_failed: LoadAudit" in done.stdout, done.stdout
        assert "model.layers.*.layer_scalar" in done.stdout
    # As a reference it is none, and the audit of what it lacks is there to read.
    done = shared_lab.run("model=path", f"model.path={folder}", "backend=transformers")
    assert "reference_failed: MissingTensors" in done.stdout
    (cell,) = {row["cell"] for row in results(shared_lab, "--sweep", "latest")}
    printed = shared_lab.call("db", "loading", str(cell), "--faults").stdout
    assert "layer_scalar" in printed and "reference" in printed


@pytest.mark.slow
def test_a_tensor_of_another_shape_is_named(shared_lab, rope, copied):
    name = "model.layers.0.mlp.up_proj.weight"
    folder = copied("tiny_llama", lambda all: {**all, name: all[name][:, :64].copy()})
    done = shared_lab.run("model=path", f"model.path={folder}", "backend=transformers")
    assert done.returncode == 1 and "MismatchedShapes" in done.stdout
    assert "model.layers.0.mlp.up_proj.weight is [256, 64] and not [256, 128]" in done.stderr


@pytest.mark.slow
def test_a_stray_file_of_weights_is_nobodys(shared_lab, rope, copied):
    folder = copied("tiny_llama", lambda all: all)
    zeros = {k: np.zeros_like(v) for k, v in load_file(f"{folder}/model.safetensors").items()}
    save_file(zeros, f"{folder}/zz_ema.safetensors", metadata={"format": "pt"})
    done = shared_lab.run("model=path", f"model.path={folder}", "backend=transformers", "dtype=bf16")
    assert done.returncode == 0, done.stdout
    assert all(row["sensible"] for row in results(shared_lab, "--sweep", "latest"))


@pytest.mark.slow
def test_gemma4_is_cut_only_where_a_full_layer_is_the_last(shared_lab, rope):
    done = shared_lab.run("model=tiny_gemma4", "backend=transformers", "layers=2,3")
    assert done.returncode == 1
    rows = results(shared_lab, "--sweep", "latest")
    assert {row["layers"]: row["status"] for row in rows} == {"2": "config_failed", "3": "ok"}
    assert "allowed: all, 3, 6" in done.stdout
