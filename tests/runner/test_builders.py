"""Builders of every kind, whole: the command that everybody types first, and what a builder runs in."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from lab import ENVIRONMENTS, Lab, run_git

from runner import paths, sources

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Lab:
    return Lab(tmp_path_factory.mktemp("builders"))


def run(lab: Lab, repository: Path | str, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        lab.command("runner", "-m", f"store.environments={ENVIRONMENTS}", *overrides),
        cwd=paths.PROJECT, env=lab.variables() | {"GENAI_REPO": str(repository)}, capture_output=True, text=True,
    )  # fmt: skip


def cells(lab: Lab, *arguments: str) -> list[dict]:
    return json.loads(lab.call("db", "cells", "--format", "json", *arguments).stdout)


@pytest.fixture(scope="module")
def first(here, repository):
    done = run(here, repository, "builder=0.14.1,main", "patch=none,rope_fix")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_command_that_everybody_types_first(here, repository, first):
    old, fixed, main, main_patched = cells(here, "--sweep", "1")
    assert [row["builder"] for row in (old, fixed, main, main_patched)] == ["0.14.1", "0.14.1", "main", "main"]
    assert old["identical_count"] <= 3 and old["first_diff_largest"] > 0.5
    assert {row["status"] for row in (old, fixed, main, main_patched)} == {"ok"}
    assert fixed["identical_count"] == main["identical_count"] == 5
    assert main["first_diff_largest"] < 1e-3
    # The release with the one change gives main's numbers to three digits: nothing else contributed.
    assert fixed["first_diff_largest"] == pytest.approx(main["first_diff_largest"], rel=1e-3)
    numbers = ("first_diff_least", "first_diff_largest", "diff_largest", "identical_count")
    assert [main[n] for n in numbers] == [main_patched[n] for n in numbers]
    assert main_patched["patch_outcome"] == "present" and main["patch_outcome"] == "none"
    assert "rope_fix is already in builder main" in first.stdout


def test_main_with_and_without_the_patch_is_two_rows_and_one_computation(here, first):
    database = sqlite3.connect(here.db)
    results = database.execute("SELECT result_id FROM cell WHERE builder = 'main' ORDER BY id").fetchall()
    assert len(results) == 2 and results[0] == results[1]
    (exports,) = database.execute("SELECT COUNT(*) FROM stage_run WHERE stage = 'export' AND NOT found").fetchone()
    assert exports == 3


def test_the_commit_is_stored_and_shown(here, repository, first):
    commit = run_git(repository, "rev-parse", "main")
    rows = sqlite3.connect(here.db).execute("SELECT DISTINCT source_commit, source FROM cell WHERE builder = 'main'")
    assert list(rows) == [(commit, f"git {commit[:12]} (main)")]
    assert f"Builder main is git {commit[:12]} (main)." in first.stdout


def test_an_unreachable_main_runs_on_what_is_there_and_else_says_what_to_set(here, repository, first, lab, tmp_path):
    moved = shutil.move(repository, tmp_path / "away")
    try:
        again = run(here, repository, "builder=main", "patch=none")
        assert again.returncode == 0 and "1 found" in again.stderr
    finally:
        shutil.move(moved, repository)
    done = run(lab, tmp_path / "nowhere", "builder=main,0.14.1", "patch=rope_fix")
    assert done.returncode == 1
    failed, fine = cells(lab)
    assert failed["status"] == "source_failed" and "nowhere" in failed["error"] and fine["status"] == "ok"
    assert "GENAI_REPO" in done.stdout


def test_a_working_copy_with_uncommitted_changes(here, repository, first, tmp_path):
    copy = tmp_path / "my_genai"
    run_git(tmp_path, "clone", "--quiet", str(repository), str(copy))
    gemma = copy / sources.INSIDE_REPOSITORY / "builders" / "gemma.py"
    gemma.write_text(
        gemma.read_text().replace("np.round(np.sqrt(self.hidden_size), decimals=2)", "np.sqrt(self.hidden_size)")
    )
    done = run(here, repository, "builder=path", f"builder.path={copy}")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = cells(here, "--sweep", "latest")
    assert row["builder"] == "my_genai" and row["first_diff_largest"] < 1e-5
    assert "dirty" in done.stdout


def test_a_hunk_that_does_not_fit_is_patch_failed_with_what_stands_there(here, repository, first, tmp_path):
    diff = tmp_path / "bad.diff"
    diff.write_text(
        "--- a/builders/gemma.py\n+++ b/builders/gemma.py\n@@ -13,2 +13,2 @@\n class GemmaModel(MistralModel):\n"
        "-    def __init__(self, something_else):\n+    def __init__(self):\n"
    )
    done = run(here, repository, "builder=0.14.1", "patch=file", f"patch.file={diff}")
    assert done.returncode == 1
    (row,) = cells(here, "--sweep", "latest")
    assert row["status"] == "patch_failed" and row["patch"] == "bad"
    shown = here.call("db", "show", str(row["cell"])).stdout
    assert "def __init__(self, something_else):" in shown and "def __init__(self, config, io_dtype" in shown


def test_the_runtime_of_the_builders_own_release(here, repository, first):
    done = run(here, repository, "builder=0.14.1", "patch=rope_fix", "runtime=builder")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = cells(here, "--sweep", "latest")
    packages = json.loads(here.call("db", "env", str(row["cell"]), "--format", "json").stdout)
    (genai,) = [p for p in packages if p["package"] == "onnxruntime-genai"]
    assert genai == {"package": "onnxruntime-genai", "builder": "0.14.1", "runtime": "0.14.1", "reference": "0.18.0"}
    assert row["identical_count"] == 5


def test_a_transformers_that_the_builder_cannot_use_is_a_row(here, repository, first):
    done = run(here, repository, "builder=0.14.1", "patch=rope_fix", "builder.transformers=5.13.0")
    assert done.returncode == 1
    (row,) = cells(here, "--sweep", "latest")
    assert row["status"] == "export_failed" and row["options"] == "builder.transformers=5.13.0"
    shown = here.call("db", "show", str(row["cell"])).stdout
    assert "error_frame: builders/" in shown or "error_frame: builder.py" in shown


def test_the_history_shows_three_eras(here, repository, first):
    done = run(here, repository, "+experiment=history")
    assert done.returncode == 0, done.stdout + done.stderr
    said = here.call("db", "history", "--model", "tiny_gemma3", "--dtype", "bf16", "--format", "json")
    rows = json.loads(said.stdout)
    assert [row["builder"] for row in rows] == ["0.12.2", "0.13.2", "0.14.1", "0.15.2", "0.16.0", "0.17.1", "0.18.0"]
    assert [row["builder"] for row in rows if row["changed"]] == ["0.14.1", "0.16.0"]
    assert {row["status"] for row in rows[4:]} == {"export_failed"}
    assert rows[0]["identical_count"] > rows[2]["identical_count"]
    report = here.call("reports", "history", "--dtype", "bf16").stdout
    assert "tiny_gemma3: 3 eras" in report and "tiny_llama: 1 era" in report and "tiny_gemma2: 2 eras" in report
    again = run(here, repository, "+experiment=history")
    assert "21 cells: 21 found, 0 to run" in again.stderr
    # The command line comes before the experiment.
    one = run(here, repository, "+experiment=history", "builder=0.14.1", "model=tiny_llama")
    assert "1 cell: 1 found" in one.stderr


def test_the_packages_of_a_day(here, repository, first):
    done = run(here, repository, "builder=0.14.1", "patch=rope_fix", "builder.as_of=2026-07-01")
    (row,) = cells(here, "--sweep", "latest")
    packages = json.loads(here.call("db", "env", str(row["cell"]), "--format", "json").stdout)
    versions = {p["package"]: p["builder"] for p in packages}
    assert versions["transformers"] == "5.12.1" and versions["onnxruntime"] == "1.27.0", done.stdout
    # What a user got who installed 0.14.1 that day: a transformers that its builder cannot use.
    assert row["status"] == "export_failed" and row["options"] == "builder.as_of=2026-07-01"
    early = run(here, repository, "builder=0.14.1", "builder.as_of=2026-01-01")
    assert early.returncode == 1 and "no version of onnxruntime-genai==0.14.1" in early.stdout


def test_a_requirement_that_cannot_be_had_is_env_failed_in_one_line(here, repository, first):
    done = run(here, repository, "builder=0.14.1", "builder.extra=['no-such-package-at-all==1']")
    assert done.returncode == 1
    (row,) = cells(here, "--sweep", "latest")
    assert row["status"] == "env_failed" and "no-such-package-at-all" in row["error"] and "\n" not in row["error"]


def test_an_interpreter_that_exists_is_used_as_it_is(here, repository, first):
    interpreter = next(
        stamp.parent / "bin" / "python"
        for stamp in ENVIRONMENTS.glob("*/ready.json")
        if json.loads(stamp.read_text())["packages"].get("onnxruntime-genai") == "0.18.0"
    )
    site = next((interpreter.parent.parent / "lib").glob("python*/site-packages"))
    before = sorted(path.name for path in site.iterdir())
    done = run(
        here, repository, "builder=0.18.0", "patch=rope_fix", f"env.python={interpreter}", "env.extras=['tomli==2.0.1']"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in site.iterdir()) == before
    (row,) = cells(here, "--sweep", "latest")
    packages = json.loads(here.call("db", "env", str(row["cell"]), "--format", "json").stdout)
    versions = {p["package"]: p["builder"] for p in packages}
    assert versions["tomli"] == "2.0.1" and versions["onnxruntime-genai"] == "0.18.0"


def test_an_interpreter_that_lacks_what_is_needed_is_env_failed(lab, repository):
    for python, says in ((sys.executable, "transformers"), ("/bin/true", "no Python interpreter")):
        done = run(lab, repository, "builder=0.14.1", f"env.python={python}")
        assert done.returncode == 1
        (row,) = cells(lab, "--sweep", "latest")
        assert row["status"] == "env_failed" and says in row["error"], row


def test_taking_the_fix_out_of_main_brings_the_fault_back(here, repository, first):
    done = run(here, repository, "builder=main", "patch=rope_fix", "patch.reverse=true")
    assert done.returncode == 1
    (row,) = cells(here, "--sweep", "latest")
    assert row["status"] == "export_failed" and row["patch"] == "rope_fix reversed" and row["source"].startswith("git ")


def test_a_failed_patch_says_of_which_commit(here, repository, first, tmp_path):
    (tmp_path / "bad.diff").write_text("--- a/builder.py\n+++ b/builder.py\n@@ -1 +1 @@\n-no such line\n+x\n")
    run(here, repository, "builder=main", "patch=file", f"patch.file={tmp_path / 'bad.diff'}")
    (row,) = cells(here, "--sweep", "latest")
    assert row["status"] == "patch_failed" and row["source"].startswith("git ")


def test_an_interpreter_that_is_none_is_env_failed(lab, repository):
    done = run(lab, repository, "builder=0.14.1", "env.python=/no/such/python")
    assert done.returncode == 1
    (row,) = cells(lab)
    assert row["status"] == "env_failed" and "/no/such/python" in row["error"]


def test_two_processes_make_a_new_environment_once(tmp_path):
    code = f"""
import asyncio, sys
from pathlib import Path
from runner import environments
from runner.store import Store
root = Path({str(tmp_path)!r})
async def main():
    resolution = await environments.resolve(Store(root), ["tomli==2.0.1"], None, None, False)
    python = await environments.install(Store(root), root / "environments", resolution)
    print(python, (python.parent.parent / "ready.json").stat().st_mtime_ns)
asyncio.run(main())
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=paths.PROJECT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {process.communicate(timeout=120)[0] for process in processes}
    assert len(said) == 1 and all(process.returncode == 0 for process in processes)
    assert len(list((tmp_path / "environments").glob("*/ready.json"))) == 1
