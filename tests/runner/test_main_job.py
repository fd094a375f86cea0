"""The main job, whole: real builders, real runtime, the shipped checkpoints, the command line.

Numbers are held to patterns, not to values: other weights give other numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from lab import ENVIRONMENTS, Lab
from safetensors.numpy import load_file, save_file

from runner import paths

pytestmark = pytest.mark.slow

ROPE = ("builder=0.14.1,0.18.0", "patch=none,rope_fix")
PRECISION = (
    "builder=0.18.0", "model=tiny_gemma2", "dtype=bf16,fp32",
    "patch=none,norm_offset_fp32,embed_scale_exact,gemma_precision",
)  # fmt: skip


def results(lab: Lab, *arguments: str) -> list[dict]:
    done = lab.call("db", "results", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def artifacts(lab: Lab, stage: str) -> dict[str, int]:
    """A stage's artifacts, with the time at which each was made."""
    folder = lab.store / stage
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} if folder.exists() else {}


def table_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The rows of a printed table, without the numbers of the cells."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [line.split("|", 2)[2] for line in lines[2:]]


def worst_first_diff(rows: list[dict]) -> float:
    return max(row["first_logits_max_abs_diff"] for row in rows)


@pytest.fixture(scope="module")
def rope(shared_lab):
    """The main job's four cells."""
    done = shared_lab.run(*ROPE)
    assert done.returncode == 1, done.stderr  # 0.18.0 without the patch does not export
    return done


@pytest.fixture(scope="module")
def precision(shared_lab, rope):
    done = shared_lab.run(*PRECISION)
    assert done.returncode == 0, done.stderr
    return done


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
    rows = results(shared_lab, "--model", "tiny_gemma2")
    assert len({(row["dtype"], row["patch"]) for row in rows}) == 8
    # tiny_gemma3 as stored, tiny_gemma2 as bf16, and as fp32 (which is how it is stored).
    assert len(artifacts(shared_lab, "reference")) == 3
    assert len(artifacts(shared_lab, "checkpoint")) == 1


def test_precision_pattern_in_bf16(shared_lab, precision):
    rows = results(shared_lab, "--model", "tiny_gemma2", "--dtype", "bf16")
    worst = {patch: worst_first_diff(of(rows, patch=patch)) for patch in {row["patch"] for row in rows}}
    assert worst["norm_offset_fp32"] < worst["none"] / 30
    assert worst["embed_scale_exact"] > worst["none"] / 2
    assert worst["gemma_precision"] < 1e-5 < worst["norm_offset_fp32"]


def test_precision_pattern_in_fp32(shared_lab, precision):
    rows = results(shared_lab, "--model", "tiny_gemma2", "--dtype", "fp32")
    worst = {patch: worst_first_diff(of(rows, patch=patch)) for patch in {row["patch"] for row in rows}}
    assert worst["norm_offset_fp32"] == worst["none"] > 1e-5
    assert worst["embed_scale_exact"] < 1e-5
    assert worst["gemma_precision"] == worst["embed_scale_exact"]


def test_the_loaded_dtypes_are_stored(shared_lab, precision):
    import sqlite3

    rows = sqlite3.connect(shared_lab.db).execute(
        "SELECT DISTINCT cell.dtype, checkpoint_dtype, reference_dtype, candidate_dtype FROM result"
        " JOIN cell ON cell.result_id = result.id WHERE cell.model = 'tiny_gemma2'"
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
    rows = results(shared_lab, "--layers", "1")
    assert len(rows) == 5 and worst_first_diff(rows) < 0.1
    (cut,) = [
        folder for folder in (shared_lab.store / "checkpoint").iterdir()
        if json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 1
    ]  # fmt: skip
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
        for stamp in sorted(ENVIRONMENTS.glob("*/ready.json")):
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


# What goes wrong.


def test_a_sweep_with_one_unknown_builder_runs_the_others(shared_lab, rope):
    done = shared_lab.run("builder=0.14.1,9.9.9", "patch=rope_fix")
    assert done.returncode == 1
    assert "config_failed" in done.stdout and "allowed in builder: main, path" in done.stdout
    assert "5 of 5" in done.stdout


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("bilder=0.14.1", "did you mean builder?"),
        ("builder=9.9.9", "0.14.1"),
        ("builder.verson=1", "verson"),
        ("dtype=fp31", "stored, fp32, bf16, fp16"),
        ("rerun=some", "none, failed, all"),
        ("action=dance", "allowed: run"),
        ("jobs=0", "1 or more"),
        ("max_new_tokens=many", "max_new_tokens"),
        ("prompts.prompts=[{name: a, text: x}, {name: a, text: y}]", "stands twice"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_what_is_allowed(lab, override, says):
    done = lab.run(override)
    assert done.returncode == 2, done.stderr
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_weights_that_are_swapped_while_a_sweep_runs_get_no_result(lab, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(paths.PROJECT / "checkpoints" / "tiny_gemma2", folder)
    arguments = ("model=path", f"model.path={folder}", "builder=0.18.0", "max_new_tokens=200", "jobs=1")
    process = start(lab, *arguments)
    wait_for(lambda: children_at_work(lab, "reference") or children_at_work(lab, "export"), process)
    os.utime(folder / "model.safetensors")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    (row,) = results(lab)
    assert row["status"] == "checkpoint_failed" and "changed while it was used" in row["error"]
    assert lab.run(*arguments).returncode == 0


def test_an_artifact_whose_bytes_changed_is_made_anew(lab):
    arguments = ("builder=0.14.1", "patch=rope_fix", "max_new_tokens=4")
    assert lab.run(*arguments).returncode == 0
    (logits,) = (lab.store / "reference").glob("*/0.npy")
    data = bytearray(logits.read_bytes())
    data[-1] ^= 0x40
    logits.write_bytes(bytes(data))
    for stage in ("compare", "candidate"):
        shutil.rmtree(lab.store / stage)
    lab.db.unlink()
    assert lab.run(*arguments).returncode == 0
    assert worst_first_diff(results(lab)) < 1e-3


def test_a_checkpoint_that_lacks_a_tensor_is_no_reference(lab, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(paths.PROJECT / "checkpoints" / "tiny_gemma3", folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.3.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert lab.run("model=path", f"model.path={folder}", "builder=0.14.1").returncode == 1
    (row,) = results(lab)
    assert row["status"] == "reference_failed" and "model.layers.3.mlp.down_proj.weight" in row["error"]


def test_a_model_folder_that_is_not_there(lab):
    done = lab.run("model=path", "model.path=/no/such/model", "builder=0.14.1")
    assert done.returncode == 1
    (row,) = results(lab)
    assert row["status"] == "checkpoint_failed" and "/no/such/model" in row["error"] and row["model"] == "model"


def test_a_database_that_is_none(lab):
    lab.db.write_text("not a database")
    done = lab.run("builder=0.14.1")
    assert done.returncode == 2 and "not a database" in done.stderr
    assert lab.db.read_text() == "not a database"


@pytest.fixture
def broken_model(tmp_path):
    """The shipped checkpoint with its weights' shapes wrong: every stage that loads it fails."""
    folder = tmp_path / "broken"
    shutil.copytree(paths.PROJECT / "checkpoints" / "tiny_gemma3", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"][:5].copy()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_checkpoint_that_does_not_load_is_a_typed_failure_and_is_not_tried_twice(lab, broken_model):
    arguments = ("model=path", f"model.path={broken_model}", "builder=0.14.1")
    done = lab.run(*arguments)
    assert done.returncode == 1
    (row,) = results(lab)
    assert row["status"] == "reference_failed"
    shown = lab.call("db", "show", str(row["cell"])).stdout
    assert "model.norm.weight" in shown and "Traceback" in shown
    again = lab.run(*arguments)
    assert "1 found" in again.stderr
    once_more = lab.run(*arguments, "rerun=failed")
    assert "0 found, 1 to run" in once_more.stderr


def wait_for(found, process: subprocess.Popen, seconds: float = 120):
    """The first true value of `found()` while the process runs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"it did not happen; the runner said: {process.communicate()[1]}")


def start(lab: Lab, *overrides: str) -> subprocess.Popen:
    return subprocess.Popen(
        lab.command("runner", "-m", f"store.environments={ENVIRONMENTS}", *overrides),
        cwd=paths.PROJECT, env=lab.variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children_at_work(lab: Lab, stage: str) -> list[psutil.Process]:
    """Processes whose working folder is a draft of `stage` in the lab's store."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(lab.store / "tmp" / f"{stage}-")):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_killed_child_is_that_cells_row_and_the_next_run_tries_again(lab):
    arguments = ("builder=0.14.1", "patch=none,rope_fix", "max_new_tokens=200", "jobs=1")
    process = start(lab, *arguments)
    (child, *_) = wait_for(lambda: children_at_work(lab, "reference"), process)
    child.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert "killed" in out and "SIGKILL" in out
    rows = results(lab)
    assert {row["status"] for row in rows} == {"killed"}
    assert not list((lab.store / "tmp").iterdir())
    again = lab.run(*arguments)
    assert again.returncode == 0, again.stderr
    assert {row["status"] for row in results(lab, "--sweep", "latest")} == {"ok"}


def test_ctrl_c_in_the_middle_leaves_a_row_for_each_cell_and_no_half_artifact(lab):
    arguments = ("builder=0.14.1", "patch=none,rope_fix", "max_new_tokens=200", "jobs=1")
    process = start(lab, *arguments)
    wait_for(lambda: children_at_work(lab, "reference") or children_at_work(lab, "export"), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    rows = results(lab)
    assert len({row["cell"] for row in rows}) == 2 and {row["status"] for row in rows} == {"skipped"}
    assert "interrupted" in lab.call("db", "sweeps").stdout
    assert not list((lab.store / "tmp").iterdir())
    for stage in ("reference", "export", "candidate"):
        for name in artifacts(lab, stage):
            assert (lab.store / stage / name / "manifest.json").exists()
    assert lab.run(*arguments).returncode == 0


def test_a_killed_runner_leaves_pending_rows_no_processes_and_no_half_artifact(lab):
    arguments = ("builder=0.14.1", "patch=none", "max_new_tokens=200", "jobs=1")
    process = start(lab, *arguments)
    (child, *_) = wait_for(lambda: children_at_work(lab, "reference"), process)
    process.kill()
    process.communicate(timeout=60)
    end = time.monotonic() + 20
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.1)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert {row["status"] for row in results(lab)} == {"pending"}
    assert artifacts(lab, "reference") == {}
    assert lab.run(*arguments).returncode == 0


@pytest.fixture
def small_disk(lab):
    """A store on a file system with 4 MB, the sources already on it."""
    lab.store.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(lab.store)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root on Linux")
    yield lab.store
    subprocess.run(["umount", "-l", str(lab.store)], check=True)


def test_a_full_disk_is_a_row_that_is_tried_again(lab, shared_lab, rope, small_disk):
    shutil.copytree(shared_lab.store / "sources" / "release-0.14.1", small_disk / "sources" / "release-0.14.1")
    done = lab.run("builder=0.14.1", "patch=none")
    assert done.returncode == 1, done.stderr
    assert "DiskFull" in done.stdout and "store.root" in done.stdout
    (row,) = results(lab)
    assert row["status"] == "export_failed"
    assert not list((small_disk / "tmp").iterdir()) and artifacts(lab, "export") == {}
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    again = lab.run("builder=0.14.1", "patch=none")
    assert again.returncode == 0, again.stderr + again.stdout


def test_two_runners_at_once_make_each_artifact_once(lab):
    arguments = ("builder=0.14.1", "patch=rope_fix", "max_new_tokens=4")
    processes = [start(lab, *arguments) for _ in range(2)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    import sqlite3

    made = sqlite3.connect(lab.db).execute("SELECT stage, COUNT(*) FROM stage_run WHERE NOT found GROUP BY stage")
    assert all(count == 1 for _, count in made)
    assert len(results(lab)) == 10


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
