"""Which pickled files are a checkpoint's weights, and what is kept beside them."""

from __future__ import annotations

import json

import pytest

from runner import models

pytestmark = pytest.mark.slow

INDEX = "pytorch_model.bin.index.json"
# Files, and those of them that are weights.
FOLDERS = {
    "one": (["pytorch_model.bin", "training_args.bin"], ["pytorch_model.bin"]),
    "index": (
        ["pytorch_model.bin.index.json", "part-1.bin", "part-2.bin", "pytorch_model.bin"],
        ["part-1.bin", "part-2.bin"],
    ),
    "shards": (["pytorch_model-1.bin", "pytorch_model-2.bin"], ["pytorch_model-1.bin", "pytorch_model-2.bin"]),
    "consolidated": (["consolidated.00.pth", "pytorch_model.bin"], ["pytorch_model.bin"]),
    "other_name": (["model.pth", "rng_state_0.pth", "optimizer.bin", "scheduler.pt"], ["model.pth"]),
    "training": (["training_args.bin", "optimizer.pt", "rng_state.pth"], []),
    "two_others": (["a.bin", "b.pth"], []),
    "index_alone": ([INDEX, "training_args.bin"], []),
    "nothing": (["config.json"], []),
}


def test_runner_and_worker_agree_about_which_pickles_are_weights(with_torch, tmp_path):
    index = json.dumps({"weight_map": {"a": "part-1.bin", "b": "part-2.bin", "c": "part-1.bin"}})
    for name, (files, _) in FOLDERS.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text(index)
    script = "import pickled_model\nprint(json.dumps({n: pickled_model.weight_files(n) for n in sys.argv[1:]}))"
    found = with_torch(script, *FOLDERS)
    assert found == {name: taken for name, (_, taken) in FOLDERS.items()}
    assert {name: models.weights_of(tmp_path / name) for name in FOLDERS} == {
        name: "pickles" if taken else None for name, (_, taken) in FOLDERS.items()
    }


def test_what_is_beside_pickled_weights_is_kept_but_no_code_and_no_pickle(with_torch, tmp_path):
    source = tmp_path / "source"
    templates = source / "additional_chat_templates"
    templates.mkdir(parents=True)
    (source / ".cache").mkdir()
    (source / "tokenizer.json").write_text("{}")
    for file in ("tool_use.jinja", "code.py", "more.bin", ".hidden"):
        (templates / file).write_text("x")
    script = """
import os, torch, pickled_model
os.mkdir("out")
for name in ("pytorch_model.bin", "consolidated.00.pth"):
    torch.save({name[0]: torch.zeros(2)}, "source/" + name)
torch.save({"a": 1}, "source/training_args.bin")
print(json.dumps(pickled_model.make("source", "out")))
"""
    assert with_torch(script) == {"tensors": 1}
    kept = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert kept == {"model.safetensors", "tokenizer.json", "additional_chat_templates/tool_use.jinja"}
