"""What became of each tensor of a GGUF file."""

from __future__ import annotations

import pytest
from loading_rows import faults, finding

from runner import paths

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, random, sys
sys.path.insert(0, sys.argv[1])
import gguf, gguf_file, gguf_loading, gguf_model, loading, torch
from pathlib import Path
found, checkpoints = {"rows": {}, "perturbed": []}, Path(sys.argv[2])
scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}
def load(name):
    return gguf_model.AutoModelForCausalLM.from_pretrained(".", gguf_file=name, dtype=torch.float32)
for checkpoint, kind, fields in (("tiny_llama", "q8_0", {"rope_scaling": scaling}), ("tiny_gemma3", "f32", {})):
    name = f"{checkpoint}.gguf"
    gguf_file.write(checkpoints / checkpoint, Path(name), kind, fields=fields)
    os.mkdir(checkpoint)
    result = gguf_model.make(os.path.abspath(name), checkpoint)
    model, reader = load(name), gguf.GGUFReader(name)
    found["rows"][checkpoint] = [result["loading"], result["loading_rows"], len(reader.tensors)]
    own = loading.tensors_of(model)
    for tensor in random.Random(1).sample([held.tensor for held in own.values() if held.persistent], 8):
        old = tensor.clone()
        tensor.view(-1)[-1] += 0.5
        found["perturbed"].append(len(loading.faults(gguf_loading.audit(reader, model))))
        tensor.copy_(old)
whole = gguf_model.AutoModelForCausalLM.from_pretrained
def left(*given, **options):
    model, told = whole(*given, **options)
    model.model.layers[2].input_layernorm.weight.data.fill_(1)
    return model, told
gguf_model.AutoModelForCausalLM.from_pretrained = left
os.mkdir("left")
try:
    gguf_model.make(os.path.abspath("tiny_llama.gguf"), "left")
except gguf_model.StageError as error:
    found["refused"] = [error.kind, str(error)]
print(json.dumps(found))
"""


def by_name(rows: list[dict], name: str) -> dict:
    (row,) = [row for row in rows if row["name"] == name]
    return row


def test_a_gguf_files_tensors_are_compared_after_transformers_rules_for_them(run_script, gguf_python):
    found = run_script(gguf_python, SCRIPT, paths.PROJECT / "tests", paths.PROJECT / "checkpoints")
    for line, rows, tensors in found["rows"].values():
        assert line == "" and faults(rows) == finding(rows) == []
        assert {row["loader"] for row in rows} == {"GGUF"}
        assert sum(row["count"] for row in rows if row["shape"] is not None) == tensors
    llama, gemma = (found["rows"][name][1] for name in ("tiny_llama", "tiny_gemma3"))
    queries = by_name(llama, "blk.*.attn_q.weight")
    assert (queries["outcome"], queries["stored"], queries["loaded"]) == ("converted", "Q8_0", "float32")
    assert queries["says"] == "as model.layers.*.self_attn.q_proj.weight" and queries["layers"] == [0, 1, 2, 3]
    assert by_name(llama, "blk.*.attn_v.weight")["outcome"] == "cast"
    assert by_name(llama, "rope_freqs.weight")["says"] == "in the config, as its rope scaling"
    assert by_name(gemma, "blk.*.attn_norm.weight")["outcome"] == "converted"  # 1 is added in the file
    assert by_name(gemma, "blk.*.attn_q.weight")["outcome"] == "loaded"
    assert found["perturbed"] == [1] * 16
    kind, message = found["refused"]
    assert kind == "LoadingDefaulted" and "blk.*.attn_norm.weight (layer 2: " in message
