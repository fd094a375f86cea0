"""What goes wrong, whole: bad input, odd checkpoints, kills, Ctrl-C, a full disk, two runners at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time

import psutil
import pytest
from lab import artifacts, children_at_work, results, start, wait_for, worst_first_diff
from safetensors.numpy import load_file, save_file

from runner import paths

pytestmark = pytest.mark.slow


@pytest.fixture
def endless(tmp_path):
    """The shipped checkpoint with an end token that it never says: its reference takes seconds, and can be met."""
    folder = tmp_path / "endless"
    shutil.copytree(paths.PROJECT / "checkpoints" / "tiny_gemma3", folder)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | {"eos_token_id": 3}))
    return ("model=path", f"model.path={folder}", "max_new_tokens=60", "jobs=1")


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


def test_weights_that_are_swapped_while_a_sweep_runs_get_no_result(lab, endless, tmp_path):
    folder = tmp_path / "endless"
    arguments = ("builder=0.14.1", *endless)
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


def test_a_killed_child_is_that_cells_row_and_the_next_run_tries_again(lab, endless):
    arguments = ("builder=0.14.1", "patch=none,rope_fix", *endless)
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


def test_ctrl_c_in_the_middle_leaves_a_row_for_each_cell_and_no_half_artifact(lab, endless):
    arguments = ("builder=0.14.1", "patch=none,rope_fix", *endless)
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


def test_a_killed_runner_leaves_pending_rows_no_processes_and_no_half_artifact(lab, endless):
    arguments = ("builder=0.14.1", "patch=none", *endless)
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

    made = sqlite3.connect(lab.db).execute("SELECT stage, COUNT(*) FROM stage_run WHERE NOT found GROUP BY stage")
    assert all(count == 1 for _, count in made)
    assert len(results(lab)) == 10
