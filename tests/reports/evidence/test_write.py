"""The folder of evidence: whole, readable without this project, and free of what is personal."""

from __future__ import annotations

import getpass
import json
import math
import platform
import re
from pathlib import Path

import pytest

from db import engine as database
from db import items, query, record
from db.models import FACTORS, Cell
from db.record import NewResult, Provenance
from reports import evidence, hiding

DIFF = "--- a/builder.py\n+++ b/builder.py\n@@ -1 +1 @@\n-a = '/model/x/Mul'\n+b = 1 / 2  # see /home/alice/notes\n"
STDERR = (
    'File "/home/alice/lab/store/overlays/0af3/models/builders/base.py", line 3\n'
    'File "/opt/env/lib/site-packages/torch/x.py", line 4\n/srv/data/model.onnx: /model/layers.0/Mul on machine77'
)


def number(value: float | None) -> dict:
    kind = "nan" if value != value else "finite"
    return {"value": value if kind == "finite" else None, "kind": kind}


def prompt(name: str, worst: float = 1.0, parting: dict | None = None) -> dict:
    return {
        "prompt": name, "steps": {"kl": [number(0.5)]}, "parting": parting, "vocab": [8, 8], "matched_tokens": 2,
        "metrics": {**dict.fromkeys(record.OF_THE_EXPORT, number(worst)), "kl": number(0.25)}, "compared_tokens": 3,
        "noise_floor": number(0.5), "noise_ratio": number(worst / 0.5), "forced_noise_ratio": number(worst / 0.5),
        "reference_range": number(10.0), "verdict": "within_noise", "within_bands": True, "sensible": True,
        "tokens_identical": parting is None, "candidate_sensible": True, "reference_outcome": "answer",
        "outcome": "answer", "reference_text": "yes | no", "candidate_text": "a\nb",
    }  # fmt: skip


def factors(**given) -> dict:
    config = {
        "model": {"name": "lm", "path": "/home/alice/models/lm"}, "builder": {"kind": "release", "version": "0.14.1"},
        "backend": {"execution_provider": "cpu", "extra_options": {"a": "1"}},
        "prompts": {"stop_at_end": False}, "reference": {"compute_dtype": "float32", "attention": "eager"},
    }  # fmt: skip
    values = {"model": "lm", "builder": "0.14.1", "runtime": "0.18.0", "reference": "5.13.0", "precision": "fp32",
              "layers": "all", "max_new_tokens": "20", "threads": "1", "backend": "genai"}  # fmt: skip
    return {"hash": "h", "config": config, **dict.fromkeys(FACTORS, "v"), **values, **given}


def environment(genai: str) -> dict:
    packages = {"onnxruntime-genai": genai, "torch": "2.1+cpu", "transformers": "5.0.0.1"}
    return {"hash": genai, "platform": "cpython-3.11", "packages": packages}


@pytest.fixture
def db(tmp_path):
    """Four cells: the patched one, one that parts, one that failed, and a working copy's."""
    path = str(tmp_path / "x.db")
    engine = database.open_database(path)
    cells = [
        factors(patch="fix"), factors(patch="none"), factors(patch="none", builder="0.18.0"),
        factors(patch="fix", builder="mine", dtype="bf16", layers="2"),
    ]  # fmt: skip
    cells[3]["config"]["builder"] |= {"kind": "path", "path": "/home/alice/genai"}
    words = ["-m", "model=path", "model.path=/home/alice/models/lm", "db.url=postgresql://alice:s3cret@host/x"]
    _, ids = record.begin_sweep(engine, [*words, "patch=none,[fix,b]"], "1", cells)
    top = [[1, "a|b", 2.0], [2, "\n", None]]
    parting = {"step": 4, "gap": number(0.125), "top": {"reference": top, "candidate": []}}
    machine = {"hash": "m", "host": "machine77", "system": "s", "processor": "p", "cores": 2, "memory_bytes": 1}
    ran = {
        ids[0]: ("ok", [prompt("p"), prompt("q", math.nan)]), ids[1]: ("ok", [prompt("p", parting=parting)]),
        ids[2]: ("export_failed", []), ids[3]: ("ok", [prompt("p")]),
    }  # fmt: skip
    for one, (state, prompts) in ran.items():
        values = {"hash": f"result{one}", "status": state, "final": True, "measurement_version": 2}
        values |= {
            "overlay_tree": f"tree{one}",
            "files_dtype": "bf16",
            "checkpoint_dtype": "fp32" if one == 4 else "bf16",
        }
        if state == "ok":
            values |= {"prompts_key": "k"}
        else:
            values |= {"error": "no /home/alice/models/lm/x.json", "error_type": "E", "stderr_tail": STDERR}
        builder = environment("0.18.0" if one == ids[2] else "0.14.1")
        given = {"prompts_key": "k", "position": 0, "prompt": "p", "text": "<bos>hi", "ids": [2, 9],
                 "template_source": "chat_template.jinja", "template_hash": "t"}  # fmt: skip
        new = NewResult(
            values, {"builder": builder, "runtime": environment("0.18.0"), "reference": environment("0.18.0")},
            machine, (), prompts, inputs=[given] if state == "ok" else [],
        )  # fmt: skip
        overlay = {"tree": f"tree{one}", "source_tree": "s", "diff": DIFF if one in (ids[0], ids[3]) else ""}
        made = [{"change": "fix", "hash": "f", "status": "applied", "detail": ""}] if one in (ids[0], ids[3]) else []
        record.record_result(
            engine, one, new, Provenance({"source_tree": "s", "source_dirty": one == ids[3]}, made, overlay)
        )
    items.set_state(engine, "#1", "Merged", "2026-11-11", what="a fault", link="https://example.org/1")
    items.add_claim(engine, {"name": "c", "item": "#1", "what": "it is right", "filters": {"model": "lm"}})
    fixed = {"model": "lm", "builder": "0.14.1", "patch": "fix"}
    items.add_claim(engine, {"name": "fixed", "what": "it is right", "filters": fixed})
    items.add_claim(engine, {"name": "none", "what": "w", "filters": {"builder": "9"}})
    return path


def read(out: Path, name: str) -> str:
    return (out / name).read_text(encoding="utf-8")


def test_the_folder_has_what_a_maintainer_needs(db, tmp_path):
    out = tmp_path / "new" / "evidence"
    written = evidence.write(db, "c", out)
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {str(path.relative_to(out)) for path in written} == {
        "README.md", "run.sh", "table.md", "proof.md", "parting.md", "commands.txt", "prompts.json", "results.json",
        "checkpoints.json", "hashes.json", "given.py", "hashes.py", "checkpoint.py", "wide.py", "reference.py",
        "noise.py", "compare.py", "test_export.py", "cell-1.patch.diff", "cell-4.patch.diff",
        "packages/builder-0.14.1.txt", "packages/builder-0.18.0.txt", "packages/runtime.txt", "packages/reference.txt",
    }  # fmt: skip
    assert [path.name for path in out.parent.iterdir()] == ["evidence"]
    assert read(out, "packages/builder-0.14.1.txt").splitlines() == [
        "# builder, cpython-3.11: install with --no-deps",
        "onnxruntime-genai==0.14.1", "torch==2.1", "transformers==5.0.0.1",
    ]  # fmt: skip
    assert "-a = '/model/x/Mul'\n+b = 1 / 2  # see" in read(out, "cell-1.patch.diff")
    blocks = re.findall(r"```bash\n(.*?)```", read(out, "README.md"), re.S)
    assert len(blocks) > 8 and all(block in read(out, "run.sh") for block in blocks)


def test_the_readme_says_what_and_how_to_see_it(db, tmp_path):
    evidence.write(db, "c", tmp_path / "out")
    text = read(tmp_path / "out", "README.md")
    assert "[#1](https://example.org/1): a fault: Merged (2026-11-11)." in text
    assert "contradicted on 0.18.0: export_failed: E: no lm/x.json" in text and "as claimed in cells 1, 2, 4" in text
    assert (
        "uv pip install --quiet --no-deps --python envs/builder-0.14.1/bin/python -r packages/builder-0.14.1.txt"
    ) in text
    assert "These numbers are of torch 2.1+cpu." in text
    assert "patch --silent -p1 -d made/sources-1 < cell-1.patch.diff" in text
    assert (
        "envs/builder-0.14.1/bin/python made/sources-1/builder.py -i checkpoints/lm -o made/export-1 -p fp32 -e cpu"
        " -c made/cache-1 --extra_options a=1"
    ) in text
    assert "bin/python compare.py 1" in text and "compare.py 3" not in text
    assert "- `checkpoints/lm`: not enclosed: put it there from its origin, a folder named lm" in text
    assert "envs/builder-0.18.0/bin/python checkpoint.py make checkpoints/lm-bf16-2-layers" in text
    assert "working copy that is no commit" in text
    assert "made/sources-4/src/python/py/models/builder.py -i checkpoints/lm-bf16-2-layers -o made/export-4" in text
    assert "  p: first 1, largest 1, forced 1; 2 × noise, no verdict; identical, 3 tokens: 'a\\nb'" in text
    assert not re.search(r"python -m (db|reports|benchmarks)", text + read(tmp_path / "out", "table.md"))
    assert "replaced in cell-1.patch.diff, cell-4.patch.diff" in text


def test_the_baseline_that_the_proof_stands_on_can_be_made_too(db, tmp_path):
    out = tmp_path / "out"
    evidence.write(db, "fixed", out)
    assert [one["cell"] for one in json.loads(read(out, "results.json"))["cells"]] == [1, 2]
    text = read(out, "README.md")
    assert "- Cell 1: as claimed." in text and "- Cell 2:" not in text
    assert "### Export of cell 2: lm, builder 0.14.1, patch none" in text and "compare.py 2" in text
    assert "0.14.1 with only fix" in read(out, "proof.md")


def test_a_patch_against_main_is_enclosed_where_it_is_given_or_known(db, tmp_path):
    evidence.write(db, "c", tmp_path / "out")
    assert "- Cell 1, against main: not tried." in read(tmp_path / "out", "README.md")
    (tmp_path / "main.diff").write_text(DIFF)
    evidence.write(db, "c", tmp_path / "out", main_diff=tmp_path / "main.diff")
    assert "+b = 1 / 2" in read(tmp_path / "out", "cell-1.main.diff")
    text = read(tmp_path / "out", "README.md")
    assert "`git apply --directory=src/python/py/models cell-1.main.diff`" in text
    engine = database.open_database(db)
    with database.writing(engine) as session:
        cell = session.get_one(Cell, 4)
        cell.builder, cell.source_commit, cell.source_dirty = "main", "abc123", False
        cell.config = {**cell.config, "builder": {"kind": "git", "ref": "main"}}
    evidence.write(db, "c", tmp_path / "out")
    assert "- `cell-1.main.diff`: the same against main at abc123;" in read(tmp_path / "out", "README.md")


def test_the_data_is_whole(db, tmp_path):
    out = tmp_path / "out"
    evidence.write(db, "c", out)
    one, two, failed, _ = json.loads(read(out, "results.json"))["cells"]
    assert one["prompts"][0]["metrics"]["kl"] == 0.25
    assert one["prompts"][1]["metrics"]["logits_max_abs_diff"] == one["prompts"][1]["noise_ratio"] == "NaN"
    assert (failed["status"], failed["prompts"], two["verdict"]) == ("export_failed", [], "within_noise")
    given, cut = json.loads(read(out, "prompts.json"))["sets"]
    assert (given["cells"], given["template_hash"], given["stop_at_end"]) == ([1, 2], "t", False)
    assert (cut["cells"], cut["folder"]) == ([4], "checkpoints/lm-bf16-2-layers")
    assert given["prompts"] == [{"name": "p", "user_text": None, "text": "<bos>hi", "ids": [2, 9]}]
    assert '"ids": [2, 9]' in read(out, "prompts.json")
    hashes = json.loads(read(out, "hashes.json"))["cells"][0]
    assert (hashes["result"], hashes["overlay_tree"], hashes["source_tree"]) == ("result1", "tree1", "s")
    assert (hashes["prompts"], hashes["measurement_version"]) == ("k", 2)
    text = read(out, "parting.md")
    assert "Cell 2, prompt p" in text and "part at step 4" in text and "0.12 apart" in text
    assert "| 1   | 1             | a\\|b  | 2     |" in text
    assert read(out, "commands.txt").splitlines() == [
        "# cells 1 – 4", "python -m runner -m model=path model.path=lm 'patch=none,[fix,b]'",
    ]  # fmt: skip


def test_a_difference_from_other_sources_is_not_given_for_the_cells_own(db, tmp_path):
    """Two cells may come to the same patched files from different sources, and the difference of one is kept."""
    with database.writing(database.open_database(db)) as session:
        session.get_one(Cell, 1).source_tree = "a working copy with the fault"
    out = tmp_path / "out"
    evidence.write(db, "fixed", out)
    text = read(out, "README.md")
    assert not list(out.glob("cell-1.patch.diff"))
    assert "Cell 1: what fix changes in" in text and "is not kept as a difference" in text
    assert "The difference that fix makes in these sources is not kept" in text and "changes nothing in" not in text


def test_nothing_personal_is_in_any_file(db, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/alice"))
    evidence.write(db, "c", tmp_path / "out")
    personal = ["/home", "/opt", "/srv", "alice", "s3cret", "machine77", str(Path.cwd()), str(tmp_path)]
    personal += [f" {platform.node()} ", f"/{getpass.getuser()}/"]
    for path in (tmp_path / "out").rglob("*"):
        for word in personal if path.is_file() else ():
            assert word not in path.read_text(encoding="utf-8"), (path.name, word)
    stderr = json.loads(read(tmp_path / "out", "results.json"))["cells"][2]["stderr"]
    assert stderr == (
        'File "models/builders/base.py", line 3\nFile "torch/x.py", line 4\nPATH: /model/layers.0/Mul on NAME'
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see /a/b.txt, and/or 1 / 2 at https://e.org/x/y", "see PATH, and/or 1 / 2 at https://e.org/x/y"),
        ("file:///a/b x=/c/d (/e/f)", "PATH x=PATH (PATH)"),
        ("token hf_abcdefgh12 https://u:p@e.org", "token *** https://***@e.org"),
        ("/tmp, '/mnt/x' and root", "PATH, 'PATH' and root"),
    ],
)
def test_what_is_personal_is_replaced(text, shown):
    assert hiding.hider([])(text) == shown


def test_a_text_that_was_measured_keeps_what_only_looks_like_a_path():
    hide = hiding.hider([])
    assert hide("what is /etc/fstab or /dev/null?", True) == "what is /etc/fstab or /dev/null?"
    assert hide("what is /home/bob/x?", True) == "what is PATH"


def test_models_that_are_named_by_their_paths_get_their_folders_names():
    rows = [{"row": {"model": model}} for model in ("/a/lm", "/b/lm", "/a/lm", "other")]
    assert hiding.labels(rows) == ["lm-1", "lm-2", "lm-1", "other"]


def test_only_a_folder_of_its_own_is_written_again(db, tmp_path):
    out = tmp_path / "out"
    evidence.write(db, "c", out)
    evidence.write(db, "c", out)
    (out / "mine.txt").write_text("x")
    with pytest.raises(evidence.OutRefused, match=r"did not write \(mine.txt\)"):
        evidence.write(db, "c", out)
    assert (out / "mine.txt").exists()
    other = tmp_path / "other"
    other.mkdir()
    evidence.write(db, "c", other)
    (tmp_path / "file").write_text("x")
    with pytest.raises(evidence.OutRefused, match="no folder"):
        evidence.write(db, "c", tmp_path / "file")


def test_half_a_folder_never_stands(db, tmp_path, monkeypatch):
    out = tmp_path / "out"
    evidence.write(db, "c", out)
    before = read(out, "README.md")

    def full(self, *_args, **_keywords):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    for target in (out, tmp_path / "fresh"):
        with pytest.raises(OSError, match="no space"):
            evidence.write(db, "c", target)
    assert sorted(path.name for path in tmp_path.iterdir() if "x.db" not in path.name) == ["out"]
    assert read(out, "README.md") == before


def test_what_is_not_there_is_said(db, tmp_path):
    with pytest.raises(query.NotInDatabase, match="'d' is not kept; there are: c, fixed, none"):
        evidence.write(db, "d", tmp_path / "out")
    with pytest.raises(query.NotInDatabase, match="no cell yet: python -m runner -m builder=9"):
        evidence.write(db, "none", tmp_path / "out")
    assert not (tmp_path / "out").exists()
