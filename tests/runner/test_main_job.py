"""The main job, whole: real builders, real runtime, the shipped checkpoints, the command line.

Numbers are held to patterns, not to values: other weights give other numbers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from sqlite3 import connect

import psutil
import pytest
from lab import ENVIRONMENTS, artifacts, results, table_of, worst_first_diff

from runner import paths

pytestmark = pytest.mark.slow

ROPE = ("builder=0.14.1,0.18.0", "patch=none,rope_fix")
PRECISION = (
    "builder=0.18.0", "model=tiny_gemma2", "dtype=bf16,fp32",
    "patch=none,norm_offset_fp32,embed_scale_exact,gemma_precision",
)  # fmt: skip


SHOW_CHECKPOINT = (
    "SELECT key FROM stage_run JOIN cell USING (result_id) WHERE stage = 'checkpoint' ORDER BY cell.id DESC LIMIT 1"
)


@pytest.fixture(scope="module")
def precision(shared_lab, rope):
    """The sweep's number."""
    done = shared_lab.run(*PRECISION)
    assert done.returncode == 0, done.stderr
    return re.search(r"Stored as sweep (\d+)", done.stdout).group(1)


@pytest.fixture(scope="module")
def rope_rows(shared_lab, rope):
    return results(shared_lab, "--model", "tiny_gemma3", "--sweep", "1")


def of(rows: list[dict], **factors: str) -> list[dict]:
    return [row for row in rows if all(row[name] == value for name, value in factors.items())]


def test_the_old_release_is_far_off_and_the_one_change_mends_it(rope_rows):
    broken = of(rope_rows, builder="0.14.1", patch="none")
    fixed = of(rope_rows, builder="0.14.1", patch="rope_fix")
    assert len(broken) == len(fixed) == 5
    assert sum(row["tokens_identical"] for row in broken) <= 3
    assert worst_first_diff(broken) > 0.5
    assert all(row["tokens_identical"] and row["candidate_sensible"] for row in fixed)
    assert worst_first_diff(fixed) < 1e-3 < worst_first_diff(broken) / 100
    assert all(row["sensible"] for row in broken)
    assert any(row["outcome"] != "answer" for row in broken)


def test_the_new_release_fails_with_its_error_and_the_patch_mends_it(rope_rows):
    (failed,) = of(rope_rows, builder="0.18.0", patch="none")
    assert failed["status"] == "export_failed" and failed["prompt"] is None
    assert failed["error"].startswith(("KeyError", "AttributeError"))
    fixed = of(rope_rows, builder="0.18.0", patch="rope_fix")
    assert all(row["tokens_identical"] for row in fixed) and worst_first_diff(fixed) < 1e-3


def test_the_table_says_it(rope):
    lines = table_of(rope)
    assert len(lines) == 4
    assert "5 of 5" in lines[1] and "5 of 5" in lines[3] and "as expected" in lines[3]
    assert "export_failed: KeyError" in lines[2] or "export_failed: AttributeError" in lines[2]
    assert "Stored as sweep 1" in rope.stdout
    assert "4/4" in rope.stderr


def test_run_again_everything_is_found(shared_lab, rope):
    before = {stage: artifacts(shared_lab, stage) for stage in ("reference", "export", "candidate", "compare")}
    done = shared_lab.run(*ROPE)
    assert done.returncode == 1
    assert "4 cells: 4 found, 0 to run" in done.stderr
    assert table_of(done) == table_of(rope)
    assert before == {stage: artifacts(shared_lab, stage) for stage in before}


def test_allow_failed_makes_a_failed_cell_no_failure_of_the_sweep(shared_lab, rope):
    assert shared_lab.run(*ROPE, "allow_failed=true").returncode == 0


def test_one_reference_serves_all_cells_of_a_checkpoint(shared_lab, precision):
    rows = results(shared_lab, "--sweep", precision)
    assert len({(row["dtype"], row["patch"]) for row in rows}) == 8
    # As bf16, and as fp32, which is how it is stored.
    used = connect(shared_lab.db).execute(
        "SELECT stage, count(DISTINCT key) FROM stage_run JOIN cell USING (result_id)"
        " WHERE sweep_id = ? GROUP BY stage",
        (precision,),
    )
    counts = dict(used)
    assert (counts["reference"], counts["noise"], counts["checkpoint"], counts["prompts"]) == (2, 2, 1, 1)
    assert counts["export"] == counts["candidate"] == 8


def test_precision_pattern_in_bf16(shared_lab, precision):
    rows = results(shared_lab, "--sweep", precision, "--dtype", "bf16")
    worst = {patch: worst_first_diff(of(rows, patch=patch)) for patch in {row["patch"] for row in rows}}
    assert worst["norm_offset_fp32"] < worst["none"] / 30
    assert worst["embed_scale_exact"] > worst["none"] / 2
    assert worst["gemma_precision"] < 1e-5 < worst["norm_offset_fp32"]


def test_precision_pattern_in_fp32(shared_lab, precision):
    rows = results(shared_lab, "--sweep", precision, "--dtype", "fp32")
    worst = {patch: worst_first_diff(of(rows, patch=patch)) for patch in {row["patch"] for row in rows}}
    assert worst["norm_offset_fp32"] == worst["none"] > 1e-5
    assert worst["embed_scale_exact"] < 1e-5
    assert worst["gemma_precision"] == worst["embed_scale_exact"]


def test_the_loaded_dtypes_are_stored(shared_lab, precision):
    rows = connect(shared_lab.db).execute(
        "SELECT DISTINCT cell.dtype, checkpoint_dtype, reference_dtype, candidate_dtype FROM result"
        " JOIN cell ON cell.result_id = result.id WHERE cell.sweep_id = ?",
        (precision,),
    )
    assert sorted(rows) == [("bf16", "fp32", "float32", "bfloat16"), ("fp32", "fp32", "float32", "float32")]


def test_other_prompts_take_no_new_export(shared_lab, rope):
    before = artifacts(shared_lab, "export")
    done = shared_lab.run("builder=0.14.1", "patch=rope_fix", "prompts.template=none", "max_new_tokens=3")
    assert done.returncode == 0, done.stderr
    assert artifacts(shared_lab, "export") == before
    assert len(artifacts(shared_lab, "prompts")) > 1


def test_a_layer_count_that_is_all_of_them_is_the_same_result(shared_lab, rope):
    done = shared_lab.run("builder=0.14.1", "patch=rope_fix", "layers=7,all", "dtype=stored,fp32")
    assert done.returncode == 0 and "4 found, 0 to run" in done.stderr


def test_fewer_layers_are_cut_on_both_sides(shared_lab, rope):
    done = shared_lab.run("builder=0.14.1", "patch=rope_fix", "layers=1", "dtype=bf16")
    assert done.returncode == 0, done.stderr
    rows = results(shared_lab, "--sweep", "latest")
    assert len(rows) == 5 and worst_first_diff(rows) < 0.1
    stages = json.loads(shared_lab.call("db", "sql", SHOW_CHECKPOINT, "--format", "json").stdout)
    cut = shared_lab.store / "checkpoint" / stages[0]["key"]
    assert json.loads((cut / "config.json").read_text())["num_hidden_layers"] == 1
    names = load_names(cut / "model.safetensors")
    assert any(".layers.0." in name for name in names) and not any(".layers.1." in name for name in names)


def load_names(path: Path) -> list[str]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [name for name in header if name != "__metadata__"]


def test_a_patch_that_does_not_apply_is_a_row_and_the_same_numbers(shared_lab, rope):
    done = shared_lab.run("builder=0.14.1", "patch=rope_per_layer_parameters")
    assert done.returncode == 0, done.stderr
    assert "has nothing to change in builder 0.14.1" in done.stdout
    assert "1 found" in done.stderr  # the overlay's tree is that of patch=none


def test_a_child_of_a_real_worker_computes_and_its_parent_never_does(shared_lab, rope, tmp_path):
    """After imports a worker has one thread: it has started no pool that a child could hang on."""
    import asyncio

    from runner.workers import ForkWorker, Task

    async def threads() -> list[tuple[int, dict]]:
        found = []
        for stamp in sorted(ENVIRONMENTS.glob("*/ready.json"))[:4]:
            worker = ForkWorker(stamp.parent / "bin" / "python", tmp_path / "log", ENVIRONMENTS / "bytecode")
            await worker.start()
            for name in ("out", "work"):
                (tmp_path / stamp.parent.name / name).mkdir(parents=True)
            # An export, which makes the parent import what the builder's sources do, and fails at once.
            overlay = next((shared_lab.store / "overlays").iterdir()) / "models"
            task = Task(
                "export", {"overlay": str(overlay), "checkpoint": "/no", "precision": "fp32", "extra_options": {},
                           "execution_provider": "cpu"},
                tmp_path / stamp.parent.name / "out", tmp_path / stamp.parent.name / "work", 1, "gemma3_text",
            )  # fmt: skip
            _, ended, _ = await worker.launch(task)
            assert (await ended)["exit_code"] == 1
            found.append((psutil.Process(worker.process.pid).num_threads(), worker.ready.result()))
            await worker.close()
        return found

    found = asyncio.run(threads())
    assert len(found) >= 2
    for count, ready in found:
        assert count == 1
        assert ready["missing"] == {}


def test_the_runner_itself_imports_nothing_heavy():
    code = "import sys, runner.main, reports.sweep, db.query; print([m for m in sys.modules])"
    modules = subprocess.run(
        [sys.executable, "-c", code], cwd=paths.PROJECT, capture_output=True, text=True, check=True
    ).stdout
    for heavy in ("torch", "transformers", "onnxruntime", "numpy", "pandas"):
        assert f"'{heavy}'" not in modules


def test_the_reports_and_the_database_answer(shared_lab, rope, tmp_path):
    done = shared_lab.call("reports", "sweep", "--sweep", "1")
    assert done.returncode == 0
    assert table_of(done) == table_of(rope)
    assert "python -m runner -m" in done.stdout and "transformers 5.13.0" in done.stdout
    out = tmp_path / "report.md"
    assert shared_lab.call("reports", "sweep", "--sweep", "1", "--out", str(out)).returncode == 0
    assert out.read_text() == done.stdout
    assert (
        json.loads(shared_lab.call("reports", "sweep", "--sweep", "1", "--format", "json").stdout)["sweep"]["sweep"]
        == 1
    )
    packages = shared_lab.call("db", "env", "1", "--format", "json")
    versions = {row["package"]: row for row in json.loads(packages.stdout)}
    assert versions["transformers"] == {
        "package": "transformers", "builder": "4.57.6", "runtime": "5.13.0", "reference": "5.13.0",
    }  # fmt: skip
    assert shared_lab.call("db", "results", "--sweep", "999").returncode == 2


def test_a_user_model_and_patch_from_a_folder_of_ones_own(shared_lab, rope, tmp_path):
    """As the README says: a checkpoint by its path, a patch in a config folder beside it."""
    shutil.copytree(paths.PROJECT / "checkpoints" / "tiny_gemma2", tmp_path / "my_model")
    (tmp_path / "patch").mkdir()
    shutil.copyfile(paths.CONF / "patch" / "embed_scale_exact.yaml", tmp_path / "patch" / "my_fix.yaml")
    done = subprocess.run(
        shared_lab.command(
            "runner", "-m", "--config-dir", str(tmp_path), f"store.environments={ENVIRONMENTS}", "model=path",
            f"model.path={tmp_path / 'my_model'}", "builder=0.18.0", "patch=my_fix",
        ),
        cwd=paths.PROJECT, env=shared_lab.variables(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = table_of(done)
    assert "my_model" in line and "my_fix" in line and "5 of 5" in line
