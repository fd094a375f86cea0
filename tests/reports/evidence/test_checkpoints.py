"""The checkpoint of the evidence: the one that was measured, enclosed where it is small, or its hashes."""

from __future__ import annotations

import json

import pytest

from reports.evidence import checkpoints, steps
from reports.evidence.folder import hashes
from runner import hashing
from runner.checkpoints import Inspector
from runner.store import Store

HEADER = {"model.layers.0.w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}


def hide(text: str, verbatim: bool = False) -> str:
    return text.replace("/home/alice", "PATH")


@pytest.fixture
def folder(tmp_path):
    """A checkpoint with code, a document and a hidden file beside it."""
    made = tmp_path / "models" / "lm"
    made.mkdir(parents=True)
    encoded = json.dumps(HEADER).encode()
    (made / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"\0" * 4)
    (made / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
    (made / "modeling.py").write_text("raise SystemExit")
    (made / "README.md").write_text("x")
    (made / ".cache").mkdir()
    (made / ".cache" / "x").write_text("x")
    return made


def fact(folder, **more):
    """A cell as `facts.facts_of` gives it."""
    hash = Inspector(folder.parent / "store").inspect(folder).hash
    row = {"cell": 1, "model": "lm", "layers": "all", "dtype": "stored", "files_dtype": "bf16",
           "checkpoint_dtype": "bf16"}  # fmt: skip
    return {
        "row": row | more.get("row", {}), "config": {"model": more.get("model", {"path": str(folder)})},
        "hashes": {"checkpoint": hash}, "stages": more.get("stages", {}), "origin": more.get("origin"),
    }  # fmt: skip


def of(one, store, most=1.0):
    (given, *made), _ = checkpoints.of_cells([one], store, most, hide)
    return given, made


def test_the_hash_is_the_runners(folder):
    assert hashes.whole_hash(folder) == fact(folder)["hashes"]["checkpoint"]


def test_a_small_checkpoint_is_enclosed_and_its_code_never(folder, tmp_path):
    given, _ = of(fact(folder), tmp_path)
    assert sorted(given.copies) == ["config.json", "model.safetensors"]
    assert [entry["file"] for entry in given.files] == ["config.json", "model.safetensors", "modeling.py"]
    assert given.files[1]["sha256"] == hashing.of_file(folder / "model.safetensors")


def test_of_a_larger_one_origin_and_hashes_are_told(folder, tmp_path):
    given, _ = of(fact(folder, origin="hub a/b at 0123"), tmp_path, most=0)
    assert not given.enclosed and given.origin == "hub a/b at 0123"
    assert {entry["file"]: entry["bytes"] for entry in given.files}["config.json"] > 0


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("hub a/b at 0123abc", " (`hf download a/b --revision 0123abc --local-dir checkpoints/lm`)"),
        ("hub a/b at 0123abc, x.gguf", ", which was converted to safetensors: the hashes are those of the conversion"),
        ("GGUF x.gguf, sha256 01", ", which was converted to safetensors: the hashes are those of the conversion"),
        ("a folder named lm", ""),
    ],
)
def test_how_one_is_had_that_is_not_enclosed(origin, told):
    assert steps.fetched(checkpoints.Given("checkpoints/lm", origin)) == told


def test_a_folder_that_has_changed_since_is_not_taken_for_it(folder, tmp_path):
    one = fact(folder)
    (folder / "config.json").write_text("{}")
    given, _ = of(one, tmp_path)
    assert (given.files, given.enclosed, given.hash) == (None, False, one["hashes"]["checkpoint"])
    assert given.missing == "the folder at its place is another one by now"


def test_one_that_was_downloaded_or_made_is_found_in_the_store_by_its_hash(folder, tmp_path):
    one = fact(folder, model={"hub": "a/b"})
    assert of(one, tmp_path)[0].missing == "its files are not at hand any more"
    Store(tmp_path).finish("model", "key", folder, {}, {})
    given, _ = of(one, tmp_path)
    assert given.copies["config.json"] == tmp_path / "model" / "key" / "config.json"


def test_a_cast_one_is_made_by_the_folders_script_or_enclosed_where_its_source_is_not(folder, tmp_path):
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text("{}")
    Store(tmp_path).finish("checkpoint", "k", draft, {"dtype": "fp16", "layers": None}, {})
    one = fact(folder, stages={"checkpoint": "k"}, row={"files_dtype": "fp16", "dtype": "fp16"})
    source, (made,) = of(one, tmp_path)
    assert source.enclosed and not made.enclosed
    assert made.made == {"source": "checkpoints/lm", "dtype": "fp16", "layers": None}
    assert (made.folder, [entry["file"] for entry in made.files]) == ("checkpoints/lm-fp16", ["config.json"])
    (folder / "config.json").write_text("{}")  # the source is not at hand any more
    source, (made,) = of(one, tmp_path)
    assert not source.enclosed and list(made.copies) == ["config.json"]


def test_a_place_in_a_config_is_hidden_and_the_hash_is_of_what_is_enclosed(folder, tmp_path):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "_name_or_path": "/home/alice/x"}))
    given, _ = of(fact(folder), tmp_path)
    assert json.loads(given.altered["config.json"])["_name_or_path"] == "PATH/x"
    entry = given.files[0]
    assert entry["measured_sha256"] == hashing.of_file(folder / "config.json") != entry["sha256"]
