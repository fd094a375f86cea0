"""Diffs as patches: applied, there already, taken out, or failed with what stands there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runner import diffs
from runner.diffs import DiffText, path_inside

WORDS = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
]
LINES = [f"{word} = {word * 2}({n})" for n, word in enumerate(WORDS)]
BEFORE = "".join(f"{line}\n" for line in LINES)
CHANGED, KEPT = LINES[4], LINES[13]
AFTER = BEFORE.replace(CHANGED, "echo = None").replace(KEPT, f"{KEPT}\nand = more")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    (models / "builders").mkdir(parents=True)
    (models / "builders" / "base.py").write_text(BEFORE)
    # A store may lie inside a repository, which must not take the diff for its own.
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return models


def diff_of(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> DiffText:
    """What git says of two trees of the builder's repository."""
    sides = []
    for name, content in (("old", before), ("new", after)):
        for path, text in content.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / name).mkdir(exist_ok=True)
        sides.append(name)
    done = subprocess.run(
        ["git", "diff", "--no-index", "--no-prefix", *sides], cwd=tmp_path, capture_output=True, text=True
    )
    lines = []
    for line in done.stdout.splitlines(keepends=True):
        for mark, side in (("--- old/", "--- a/"), ("+++ new/", "+++ b/")):
            if line.startswith(mark):
                line = side + line.removeprefix(mark)
        if line.startswith("diff --git"):
            path = line.split()[-1].split("/", 1)[1]
            line = f"diff --git a/{path} b/{path}\n"
        lines.append(line)
    return DiffText("fix", "".join(lines))


BASE = f"{diffs.INSIDE_REPOSITORY}/builders/base.py"


@pytest.fixture
def fix(tmp_path: Path) -> DiffText:
    return diff_of(tmp_path, {BASE: BEFORE, "test/x.py": "a\n"}, {BASE: AFTER, "test/x.py": "b\n"})


def content(tree: Path) -> str:
    return (tree / "builders" / "base.py").read_text()


def test_a_diff_is_applied_found_present_and_taken_out(tree, fix):
    first = diffs.apply(tree, fix)
    assert first.status == "applied" and content(tree) == AFTER
    assert "builders/base.py" in first.detail and "1 files outside" in first.detail
    assert diffs.apply(tree, fix).status == "present" and content(tree) == AFTER
    out = diffs.apply(tree, fix, reverse=True)
    assert out.status == "applied" and content(tree) == BEFORE
    assert diffs.apply(tree, fix, reverse=True).status == "present"


def test_hunks_that_are_there_already_do_not_stop_the_others(tree, fix):
    (tree / "builders" / "base.py").write_text(BEFORE.replace(CHANGED, "echo = None"))
    assert diffs.apply(tree, fix).status == "applied" and content(tree) == AFTER


def test_a_hunk_finds_its_place_though_lines_have_moved(tree, fix):
    (tree / "builders" / "base.py").write_text("new\n" * 7 + BEFORE)
    assert diffs.apply(tree, fix).status == "applied" and content(tree) == "new\n" * 7 + AFTER


def test_other_line_ends_are_no_obstacle(tree, fix):
    (tree / "builders" / "base.py").write_bytes(BEFORE.replace("\n", "\r\n").encode())
    assert diffs.apply(tree, fix).status == "applied"
    text = (tree / "builders" / "base.py").read_bytes().decode()
    assert text.replace("\r\n", "\n") == AFTER and text.count("\r\n") > len(LINES) - 4
    assert diffs.apply(tree, fix).status == "present"


def test_a_hunk_that_fails_is_named_with_what_stands_there(tree, fix):
    (tree / "builders" / "base.py").write_text(BEFORE.replace(CHANGED, "echo = echo"))
    outcome = diffs.apply(tree, fix)
    assert outcome.status == "failed" and outcome.file == "builders/base.py"
    assert "hunk @@ -2" in outcome.detail and CHANGED in outcome.detail
    assert "  5: echo = echo" in outcome.detail


def test_a_missing_file_is_named(tree, fix):
    (tree / "builders" / "base.py").unlink()
    outcome = diffs.apply(tree, fix)
    assert outcome.status == "failed" and "builders/base.py: no such file" in outcome.detail


def test_files_are_made_and_removed(tree, tmp_path):
    new = f"{diffs.INSIDE_REPOSITORY}/builders/new.py"
    made = diff_of(tmp_path, {}, {new: "x = 1\n"})
    assert diffs.apply(tree, made).status == "applied"
    assert (tree / "builders" / "new.py").read_text() == "x = 1\n"
    assert diffs.apply(tree, made).status == "present"
    assert diffs.apply(tree, made, reverse=True).status == "applied"
    assert not (tree / "builders" / "new.py").exists()


@pytest.mark.parametrize("text", ["", "no diff at all", "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-short\n"])
def test_what_is_no_diff_fails(tree, text):
    assert diffs.apply(tree, DiffText("bad", text)).status == "failed"
    assert content(tree) == BEFORE


def test_a_diff_of_other_things_says_so(tree, tmp_path):
    outcome = diffs.apply(tree, diff_of(tmp_path, {"src/main.cpp": "a\n"}, {"src/main.cpp": "b\n"}))
    assert outcome.status == "failed" and "src/main.cpp" in outcome.detail


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("src/python/py/models/builders/gemma.py", "builders/gemma.py"),
        ("onnxruntime_genai/models/builder.py", "builder.py"),
        ("builders/gemma.py", "builders/gemma.py"),
        ("builder.py", "builder.py"),
        ("src/generators.cpp", None),
        ("test/python/test.py", None),
        ("../builders/gemma.py", None),
        ("builders/../../x.py", None),
        ("models/../../../tmp/secret.txt", None),
        ("/etc/passwd", None),
    ],
)
def test_paths(path, inside):
    assert path_inside(path) == inside


def test_a_new_file_that_is_there_with_other_content_fails(tree, tmp_path):
    made = diff_of(tmp_path, {}, {f"{diffs.INSIDE_REPOSITORY}/builders/new.py": "x = 1\n"})
    (tree / "builders" / "new.py").write_text("y = 2\n")
    outcome = diffs.apply(tree, made)
    assert outcome.status == "failed" and "other content" in outcome.detail
    assert (tree / "builders" / "new.py").read_text() == "y = 2\n"


def test_a_binary_part_fails(tree):
    binary = (
        "diff --git a/builders/x.bin b/builders/x.bin\nnew file mode 100644\nindex 0000000..1\n"
        "Binary files /dev/null and b/builders/x.bin differ\n"
    )
    outcome = diffs.apply(tree, DiffText("bin", binary))
    assert outcome.status == "failed" and not (tree / "builders" / "x.bin").exists()


def test_a_change_of_mode_alone_is_nothing_to_apply(tree):
    mode = "diff --git a/builders/base.py b/builders/base.py\nold mode 100644\nnew mode 100755\n"
    assert diffs.apply(tree, DiffText("mode", mode)).status == "failed"


def test_indentation_is_not_guessed(tree):
    (tree / "builders" / "base.py").write_text("if a:\n        x = 1\n        y = 2\n")
    text = (
        "--- a/builders/base.py\n+++ b/builders/base.py\n@@ -1,3 +1,4 @@\n if a:\n     x = 1\n+    z = 3\n     y = 2\n"
    )
    outcome = diffs.apply(tree, DiffText("indent", text))
    assert outcome.status == "failed" and "`    x = 1` where there is `        x = 1`" in outcome.detail


def test_an_outcome_says_what_the_diff_was(tree, fix):
    named = DiffText("fix", fix.text, "abc..def")
    assert "abc..def, sha256 " in diffs.apply(tree, named).detail
