"""Patches: on small trees made here, and the shipped ones on two releases' real sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import shipped_changes

from runner import patches
from runner.patches import Outcome
from runner.schema import Change, Edit, Variant

CONF = Path(__file__).parents[2] / "conf" / "patch"
SHIPPED = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem not in ("pr", "diff", "file"))
FILE = "builders/gemma.py"
SOURCE = """class Gemma:
    def caches(self):
        self.theta = self.local_theta
        self.make()
"""
RESCALED = SOURCE.replace("local_theta\n", "local_theta\n        self.factor = 1\n")


def edit(**values) -> Edit:
    return Edit(
        **{
            "file": FILE,
            "find": "self.theta = self.local_theta",
            "put": "self.theta = self.local_theta\nself.factor = 1\n",
            "present": r"^\s+self\.factor = 1$",
            **values,
        }
    )


def change(*edits: Edit, builders: str = ">=0.14") -> Change:
    return Change(what="a test", variants=[Variant(builders=builders, edits=list(edits))])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "builders").mkdir()
    (tmp_path / FILE).write_text(SOURCE)
    (tmp_path / "builders" / "base.py").write_text("scale = norm.weight + offset\nscale = q.weight + offset\n")
    return tmp_path


def files(tree: Path) -> dict[str, bytes]:
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def apply_one(tree: Path, change: Change, version: str | None = "0.14.1") -> Outcome:
    [outcome] = patches.apply(tree, {"rope": change}, version)
    return outcome


# Outcomes


def test_applied_keeps_the_indentation_of_the_place(tree: Path) -> None:
    outcome = apply_one(tree, change(edit()))
    assert (outcome.status, outcome.file) == ("applied", FILE)
    assert (tree / FILE).read_text() == RESCALED


def test_present_the_second_time_though_the_anchor_is_still_there(tree: Path) -> None:
    apply_one(tree, change(edit()))
    before = files(tree)
    assert apply_one(tree, change(edit())).status == "present"
    assert files(tree) == before


def test_not_applicable_names_the_versions_that_have_a_variant(tree: Path) -> None:
    before = files(tree)
    outcome = apply_one(tree, change(edit()), "0.13.2")
    assert outcome.status == "not_applicable"
    assert "0.13.2" in outcome.detail and ">=0.14" in outcome.detail
    assert files(tree) == before


def test_failure_shows_the_most_similar_lines(tree: Path) -> None:
    (tree / FILE).write_text(SOURCE.replace("self.local_theta", "self.rope_theta_local"))
    outcome = apply_one(tree, change(edit()))
    assert (outcome.status, outcome.file) == ("failed", FILE)
    assert f"{FILE}: `self.theta = self.local_theta` expected 1 time, found 0" in outcome.detail
    assert outcome.detail.splitlines()[1:] == ["  3:         self.theta = self.rope_theta_local"]


def test_failure_of_a_long_anchor_shows_a_few_lines(tree: Path) -> None:
    anchor = "def caches(self):\n    self.theta = 3\n" + "    more\n" * 20
    outcome = apply_one(tree, change(edit(find=anchor)))
    assert outcome.detail.splitlines()[1:3] == [
        "  2:     def caches(self):",
        "  3:         self.theta = self.local_theta",
    ]
    assert len(outcome.detail.splitlines()) <= 1 + patches.SHOWN_LINES


def test_wrong_count_says_where_the_anchor_was_found(tree: Path) -> None:
    before = files(tree)
    outcome = apply_one(tree, change(edit(file="builders/base.py", find=".weight + offset", count=4)))
    assert outcome.status == "failed"
    assert "`.weight + offset` expected 4 times, found 2, on lines 1, 2" in outcome.detail
    assert files(tree) == before


def test_every_occurrence_is_replaced(tree: Path) -> None:
    upcast = edit(
        file="builders/base.py",
        find=".weight + offset",
        put=".weight.float() + offset",
        count=2,
        present=r"float\(\) \+ offset",
    )
    assert apply_one(tree, change(upcast)).status == "applied"
    assert (tree / "builders/base.py").read_text() == (
        "scale = norm.weight.float() + offset\nscale = q.weight.float() + offset\n"
    )


def test_missing_file_names_the_nearest(tree: Path) -> None:
    outcome = apply_one(tree, change(edit(file="builders/gemma3.py")))
    assert (outcome.status, outcome.file) == ("failed", "builders/gemma3.py")
    assert "no such file; the nearest are builders/gemma.py" in outcome.detail


def test_file_that_is_not_utf8(tree: Path) -> None:
    (tree / FILE).write_bytes(b"\xff\xfe")
    assert "not UTF-8" in apply_one(tree, change(edit())).detail


def test_link_out_of_the_sources(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "gemma.py"
    outside.write_text(SOURCE)
    (tree / FILE).unlink()
    (tree / FILE).symlink_to(outside)
    assert apply_one(tree, change(edit())).status == "failed"
    assert outside.read_text() == SOURCE


def test_pattern_that_does_not_match_what_was_put(tree: Path) -> None:
    before = files(tree)
    outcome = apply_one(tree, change(edit(present="never there")))
    assert outcome.status == "failed"
    assert "`present` 'never there' does not hold for the result" in outcome.detail
    assert files(tree) == before


# Several edits, changes and variants


def test_only_the_missing_edits_are_made(tree: Path) -> None:
    other = edit(find="self.make()", put="self.make(self.name)", present=r"make\(self\.name\)")
    apply_one(tree, change(other))
    outcome = apply_one(tree, change(edit(), other))
    assert outcome.status == "applied"
    assert outcome.detail.endswith(f"already there: {FILE} `self.make()`")
    assert (tree / FILE).read_text() == RESCALED.replace("make()", "make(self.name)")


def test_nothing_is_written_when_one_edit_of_a_change_fails(tree: Path) -> None:
    before = files(tree)
    outcome = apply_one(tree, change(edit(), edit(file="builders/base.py", find="not there")))
    assert (outcome.status, outcome.file) == ("failed", "builders/base.py")
    assert files(tree) == before


def test_edits_of_a_change_do_not_see_each_other(tree: Path) -> None:
    twice = change(
        edit(put="self.theta = self.local_theta\nself.make()\nself.factor = 1"),
        edit(find="self.make()", put="self.make()\nself.factor = 1"),
    )
    assert apply_one(tree, twice).status == "applied"
    assert (tree / FILE).read_text().count("self.factor = 1") == 2


def test_edits_that_overlap(tree: Path) -> None:
    outcome = apply_one(tree, change(edit(), edit(find="self.local_theta\nself.make()")))
    assert outcome.status == "failed"
    outcome = apply_one(tree, change(edit(), edit(find="theta = self.local_theta")))
    assert outcome.status == "failed" and "overlap" in outcome.detail


def test_the_first_failure_ends_it(tree: Path) -> None:
    changes = {"bad": change(edit(find="not there")), "good": change(edit())}
    assert [outcome.change for outcome in patches.apply(tree, changes, "0.14.1")] == ["bad"]


def test_changes_are_applied_in_order(tree: Path) -> None:
    second = edit(find="self.factor = 1", put="self.factor = 1.0", present=r"factor = 1\.0")
    outcomes = patches.apply(tree, {"first": change(edit()), "second": change(second)}, "0.14.1")
    assert [(outcome.change, outcome.status) for outcome in outcomes] == [("first", "applied"), ("second", "applied")]


OLD_AND_NEW = Change(
    what="a test",
    variants=[
        Variant(builders="<0.15", edits=[edit(put="self.factor = 'old'", present="'old'")]),
        Variant(builders=">=0.15", edits=[edit(find="self.make()", put="self.factor = 'new'", present="'new'")]),
    ],
)


@pytest.mark.parametrize(("version", "variant"), [("0.14.1", "old"), ("0.15.0", "new"), ("0.16.0.dev3", "new")])
def test_the_version_chooses_the_variant(tree: Path, version: str, variant: str) -> None:
    assert apply_one(tree, OLD_AND_NEW, version).status == "applied"
    assert f"self.factor = '{variant}'" in (tree / FILE).read_text()


def test_without_a_version_the_newest_variant_that_fits(tree: Path) -> None:
    (tree / FILE).write_text(SOURCE.replace("self.make()", "self.make(self.name)"))
    assert apply_one(tree, OLD_AND_NEW, None).status == "applied"
    assert "'old'" in (tree / FILE).read_text()


def test_without_a_version_the_failure_is_the_newest_variants(tree: Path) -> None:
    (tree / FILE).write_text("nothing\n")
    outcome = apply_one(tree, OLD_AND_NEW, None)
    assert outcome.status == "failed" and "`self.make()`" in outcome.detail


# Bytes


def test_crlf_sources_stay_crlf(tree: Path) -> None:
    (tree / FILE).write_bytes(SOURCE.replace("\n", "\r\n").encode())
    anchor = "def caches(self):\n    self.theta = self.local_theta\n"
    put = "def caches(self):\n    self.theta = self.local_theta\n    self.factor = 1\n"
    assert apply_one(tree, change(edit(find=anchor, put=put))).status == "applied"
    assert (tree / FILE).read_bytes() == RESCALED.replace("\n", "\r\n").encode()
    assert apply_one(tree, change(edit(find=anchor, put=put))).status == "present"


def test_a_hard_linked_original_is_left_alone_and_the_mode_kept(tree: Path, tmp_path: Path) -> None:
    (tree / FILE).chmod(0o640)
    original = tmp_path / "original.py"
    os.link(tree / FILE, original)
    apply_one(tree, change(edit()))
    assert original.read_text() == SOURCE
    assert (tree / FILE).stat().st_mode & 0o777 == 0o640


OTHER_LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r@"), max_size=12), max_size=8)


@given(
    above=OTHER_LINES,
    below=OTHER_LINES,
    indent=st.sampled_from(["", "    ", "\t", "        "]),
    newline=st.sampled_from(["\n", "\r\n"]),
    ends=st.booleans(),
    lines=st.integers(1, 3),
    put=st.lists(st.sampled_from(["x = 1", "    y = 2", "", "é"]), max_size=3),
)
def test_only_the_anchor_changes_and_only_once(above, below, indent, newline, ends, lines, put) -> None:
    anchor = [f"@anchor {number}" for number in range(lines)]
    placed = newline.join(indent + line for line in anchor)
    head, tail = "".join(line + newline for line in above), "".join(newline + line for line in below)
    tail += newline if ends else ""
    put = ["@done", *put, "@end"]
    single = change(Edit(file="a.py", find="\n".join(anchor), put="\n".join(put), present=r"@done[\s\S]*@end"))
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        (tree / "a.py").write_bytes((head + placed + tail).encode())
        assert apply_one(tree, single).status == "applied"
        after = (tree / "a.py").read_bytes()
        # With no line end anywhere in the file, what is put brings its own.
        style = newline if newline in head + placed + tail else "\n"
        assert after == (head + style.join(indent + line if line else "" for line in put) + tail).encode()
        assert apply_one(tree, single).status == "present"
        assert files(tree) == {"a.py": after}


# What is refused before anything is touched


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"present": "("}, "not a regular expression"),
        ({"present": ""}, "present"),
        ({"find": "\n"}, "find is empty"),
        ({"count": 0}, "count must be at least 1, not 0"),
        ({"find": "    a\nb"}, "find has a line that is indented less"),
        ({"put": "    a\n  b"}, "put has a line that is indented less"),
        *(
            ({"file": file}, "must be a relative path")
            for file in ("", "/etc/passwd", "../up.py", "builders/../../up.py", "..\\up.py", "C:\\up.py", "\\up.py")
        ),
    ],
)
def test_bad_edits(tree: Path, values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patches.validate({"rope": change(edit(**values))})
    with pytest.raises(ValueError, match="patch change rope"):
        patches.apply(tree, {"rope": change(edit(**values))}, "0.14.1")


def test_bad_specifier() -> None:
    with pytest.raises(ValueError, match=r"builders '0\.14': not a PEP 440 specifier set"):
        patches.validate({"rope": change(edit(), builders="0.14")})


@pytest.mark.parametrize("empty", [Change(what="", variants=[]), change()])
def test_a_change_without_variants_or_edits(empty: Change) -> None:
    with pytest.raises(ValueError, match="needs at least one"):
        patches.validate({"rope": empty})


def test_bad_version(tree: Path) -> None:
    with pytest.raises(ValueError, match="Invalid version: 'main'"):
        apply_one(tree, change(edit()), "main")


# The shipped patches


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_patches_are_valid_and_say_what_they_are_about(name: str) -> None:
    changes = shipped_changes(name)
    patches.validate(changes)
    assert all(single.what and "\n" not in single.what for single in changes.values())
    text = (CONF / f"{name}.yaml").read_text()
    head = text[: text.index("\nchanges:" if "\nchanges:" in text else "\ndefaults:")].splitlines()
    assert 1 <= len(head) <= 3 and all(line.startswith("# ") for line in head)
    if "\ndefaults:" not in text and changes:
        assert list(changes) == [name], "a single change's name is its file's"


def test_sets_keep_their_order() -> None:
    assert list(shipped_changes("rope_fix")) == [
        "rope_per_layer_parameters",
        "rope_local_unscaled",
        "rope_global_scaled",
    ]
    assert list(shipped_changes("gemma_precision")) == ["norm_offset_fp32", "embed_scale_exact"]
    assert shipped_changes("none") == {}


EXPECTED = {
    "0.14.1": {
        "rope_per_layer_parameters": "not_applicable",
        "rope_local_unscaled": "applied",
        "rope_global_scaled": "not_applicable",
        "norm_offset_fp32": "applied",
        "embed_scale_exact": "applied",
    },
    "0.18.0": {
        "rope_per_layer_parameters": "applied",
        "rope_local_unscaled": "applied",
        "rope_global_scaled": "not_applicable",
        "norm_offset_fp32": "applied",
        "embed_scale_exact": "applied",
    },
}


@pytest.fixture(scope="module", params=sorted(EXPECTED))
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A release's version, and its sources as `uv` installs them (hard links to its cache)."""
    target = tmp_path_factory.mktemp("release")
    uv = Path(sys.executable).with_name("uv")
    package = f"onnxruntime-genai=={request.param}"
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--target", target, package], check=True)
    return request.param, target / "onnxruntime_genai" / "models"


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_patches_on_real_sources(release: tuple[str, Path], name: str, tmp_path: Path) -> None:
    version, sources = release
    published = files(sources)
    changes = shipped_changes(name)
    expected = [EXPECTED[version][single] for single in changes]
    for known in (version, None):  # a release, and the same as a git ref
        tree = tmp_path / str(known)
        for path, content in published.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        first = [outcome.status for outcome in patches.apply(tree, changes, known)]
        after = files(tree)
        second = [outcome.status for outcome in patches.apply(tree, changes, known)]
        if known:
            assert first == expected
        assert "failed" not in first
        assert second == ["present" if status == "applied" else status for status in first]
        assert files(tree) == after
        assert published.keys() == after.keys()
        for path in after:
            if after[path] != published[path]:
                compile(after[path], path, "exec")
    assert files(sources) == published


# Taken out again


def test_a_change_is_taken_out_again(tree: Path) -> None:
    before = files(tree)
    single = {"rope": change(edit())}
    patches.apply(tree, single, "0.14.1")
    assert files(tree) != before
    [outcome] = patches.apply(tree, patches.reversed_changes(single), "0.14.1")
    assert outcome.status == "applied" and files(tree) == before
    [again] = patches.apply(tree, patches.reversed_changes(single), "0.14.1")
    assert again.status == "present" and files(tree) == before


def test_what_a_ref_never_had_need_not_be_taken_out(tree: Path) -> None:
    before = files(tree)
    # Neither what the change puts nor its anchor is there, and nothing tells the release.
    single = {"rope": change(edit(find="no such line", put="nor this one", present=r"self\."))}
    [outcome] = patches.apply(tree, patches.reversed_changes(single), None)
    assert outcome.status == "not_applicable" and "nothing to take out" in outcome.detail and files(tree) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope_fix", "gemma_precision"])
def test_shipped_patches_are_taken_out_again(release: tuple[str, Path], name: str, tmp_path: Path) -> None:
    version, sources = release
    tree = tmp_path / "models"
    shutil.copytree(sources, tree)
    before = files(tree)
    patches.apply(tree, shipped_changes(name), version)
    outcomes = patches.apply(tree, patches.reversed_changes(shipped_changes(name)), version)
    assert {outcome.status for outcome in outcomes} <= {"applied", "not_applicable"}
    assert files(tree) == before
