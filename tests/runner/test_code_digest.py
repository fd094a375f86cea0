"""A stage's number stands for its code; other code is kept apart, and said to be other code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from lab import ENVIRONMENTS, artifacts, results

from runner import code_digest, paths
from runner.code_digest import UNCHANGED, Entry, renewed, report, wrong

ONE = {"candidate": Entry("candidate", 4, "a"), "compare": Entry("compare", 5, "b")}


def entries(**changed: Entry) -> dict[str, Entry]:
    return ONE | changed


def test_code_that_changed_under_the_same_number_is_told_with_what_to_do():
    found = wrong(ONE, entries(candidate=Entry("candidate", 4, "z")))
    assert list(found) == ["candidate"] and "number 4 of candidate" in found["candidate"]
    assert "--output-unchanged" in report(found) and "VERSIONS" in report(found)


def test_a_new_module_a_raised_number_and_one_that_is_gone_are_told():
    assert wrong({}, ONE) == dict.fromkeys(ONE, "it has no digest yet")
    raised = wrong(ONE, entries(compare=Entry("compare", 6, "b")))
    assert raised == {"compare": "the number of compare was 5 and is 6"}
    assert list(wrong(ONE, {"compare": ONE["compare"]})) == ["candidate"]
    assert wrong(ONE, ONE) == {} and "every stage" in report({})


def test_a_raised_number_renews_and_changed_code_alone_does_not():
    there = {
        "candidate": Entry("candidate", 5, "z"),
        "compare": Entry("compare", 5, "y"),
        "new": Entry("export", 1, "n"),
    }
    found = renewed(ONE, there, frozenset())
    assert found == {"candidate": there["candidate"], "compare": ONE["compare"], "new": there["new"]}
    assert list(wrong(found, there)) == ["compare"]


def test_output_unchanged_is_written_down_until_the_number_is_raised():
    there = entries(compare=Entry("compare", 5, "y"), candidate=Entry("candidate", 4, "z"))
    found = renewed(ONE, there, frozenset({"compare"}))
    assert found["compare"] == Entry("compare", 5, "y", UNCHANGED) and found["candidate"] == ONE["candidate"]
    assert renewed(found, there, frozenset()) == found
    raised = renewed(found, entries(compare=Entry("compare", 6, "x")), frozenset())
    assert raised["compare"] == Entry("compare", 6, "x")


def test_what_is_written_is_read_back_a_line_a_module(tmp_path):
    path = tmp_path / "digests.json"
    code_digest.write(entries(compare=Entry("compare", 5, "y", UNCHANGED)), path)
    assert code_digest.committed(path) == entries(compare=Entry("compare", 5, "y", UNCHANGED))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + len(ONE) and lines[1].startswith('  "candidate": {"stage": "candidate"')


def test_the_committed_digests_are_those_of_the_code():
    """Code of a stage changed and its number did not, or the other way round: the message says what to do."""
    found = wrong(code_digest.committed(code_digest.COMMITTED), code_digest.current())
    assert not found, report(found)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the worker, whose code is the committed one, and which may be edited."""
    folder = tmp_path / "worker"
    shutil.copytree(paths.WORKER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(paths, "WORKER", folder)
    monkeypatch.setattr(paths, "state_root", lambda: tmp_path)
    monkeypatch.setattr(code_digest, "COMMITTED", tmp_path / "digests.json")
    code_digest.write(code_digest.current(), code_digest.COMMITTED)

    def edit(module, before, after):
        text = (folder / f"{module}.py").read_text(encoding="utf-8")
        assert text.count(before) >= 1
        (folder / f"{module}.py").write_text(text.replace(before, after), encoding="utf-8")
        for known in (code_digest.files_of, code_digest.of_module):
            known.cache_clear()

    return edit


def test_code_is_the_same_until_it_computes_something_else(copied):
    assert code_digest.differing("compare") is None and code_digest.differing("prompts") is None
    copied("metrics", "from __future__", "# another comment\nfrom __future__")
    assert code_digest.differing("compare") is None
    copied("metrics", ".max()", ".min()")
    digest = code_digest.differing("compare")
    assert digest and code_digest.differing("noise") and not code_digest.differing("export")
    assert code_digest.told("compare", "compare", digest).startswith("stage compare: its code (compare.py, ")
    copied("metrics", ".min()", ".max()")
    assert code_digest.differing("compare") is None


def test_a_module_without_a_digest_is_known_by_its_code(copied):
    (paths.WORKER / "mine.py").write_text("def run(arguments, out):\n    return {}\n", encoding="utf-8")
    code_digest.files_of.cache_clear()
    first = code_digest.differing("mine")
    assert first and "is none of the released" in code_digest.told("candidate", "mine", first)
    copied("mine", "{}", '{"a": 1}')
    assert code_digest.differing("mine") not in (None, first)


def test_a_module_that_is_no_python_is_the_stages_to_say(copied):
    copied("compare", "from __future__", "from from")
    assert code_digest.differing("compare")


@pytest.mark.slow
def test_a_backend_that_adds_one_to_its_logits_is_not_found_with_old_numbers(lab, tmp_path):
    """A copy of the project, a worker's module edited: own numbers and a line; undone, the old ones are found again."""
    project = tmp_path / "project"
    for name in ("runner", "db", "reports", "conf", "checkpoints"):
        shutil.copytree(paths.PROJECT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    module = project / "runner" / "worker" / "transformers_candidate.py"
    asked = (
        "backend=transformers",
        "model=tiny_llama",
        "noise.variants=[threads]",
        f"store.environments={ENVIRONMENTS}",
    )

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runner", "-m", *asked, *more]
        return subprocess.run(command, cwd=project, env=lab.variables(), capture_output=True, text=True)

    def renew() -> None:
        command = [sys.executable, "-m", "runner.code_digest", "--renew"]
        (project / "runner" / "worker_digests.json").unlink(missing_ok=True)
        done = subprocess.run(command, cwd=project, env=dict(os.environ), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    renew()
    done = run()
    assert done.returncode == 0 and "kept apart" not in done.stdout + done.stderr, done.stderr
    before = results(lab, "--sweep", "latest")
    text = module.read_text(encoding="utf-8")
    wrong = text.replace("tokens, logits, tokenizer", "tokens, logits + 1, tokenizer")
    assert wrong != text
    module.write_text(wrong, encoding="utf-8")
    assert "transformers_candidate.py" in (planned := run("action=plan")).stdout, planned.stderr
    done = run()
    assert done.returncode == 0, done.stderr
    assert "stage candidate: its code (transformers_candidate.py" in done.stderr and "kept apart" in done.stdout
    after = results(lab, "--sweep", "latest")
    assert [row["first_logits_max_abs_diff"] for row in after] == pytest.approx([1.0] * len(before), abs=1e-3)
    assert max(row["first_logits_max_abs_diff"] for row in before) < 1e-3
    assert len(artifacts(lab, "candidate")) == 2 and len(artifacts(lab, "reference")) == 1
    module.write_text(text, encoding="utf-8")
    done = run()
    assert "1 found" in done.stderr and "kept apart" not in done.stdout
    numbers = [row["first_logits_max_abs_diff"] for row in results(lab, "--sweep", "latest")]
    assert numbers == [row["first_logits_max_abs_diff"] for row in before]
