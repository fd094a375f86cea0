"""What became of each tensor of a checkpoint, of models in which one thing is wrong. One process for most of it:
importing takes most of the time."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from lab import with_transformers_5
from loading_rows import fault_line, faults, finding

from runner import families, paths

pytestmark = pytest.mark.slow

CHECKPOINTS = paths.PROJECT / "checkpoints"
KEYS = {
    "loader", "name", "layers", "count", "kind", "outcome", "shape", "held", "stored", "loaded", "says",
}  # fmt: skip
SCRIPT = """
import json, os, random, sys, time
import torch
import loading, prompts, random_model, reference
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
given = json.loads(sys.stdin.read())
checkpoints, found = given["checkpoints"], {}

def load(folder, dtype="float32"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), output_loading_info=True)

def audit(model, folder, **options):
    return loading.audit(model, loading.Stored(folder), "transformers", **options)

def changed(name, change, of="tiny_llama"):
    # A copy of a checkpoint whose tensors went through `change`.
    os.mkdir(name)
    for file in os.listdir(f"{checkpoints}/{of}"):
        if file != "model.safetensors":
            os.symlink(f"{checkpoints}/{of}/{file}", f"{name}/{file}")
    tensors = load_file(f"{checkpoints}/{of}/model.safetensors")
    change(tensors)
    save_file(tensors, f"{name}/model.safetensors", metadata={"format": "pt"})
    return name

def perturbed(model, folder, seed):
    # One element of one tensor at a time: what it is called in the checkpoint, and what the faults name.
    chance, own = random.Random(seed), loading.tensors_of(model)
    taken = loading.targets(model, loading.Stored(folder).names, own)
    result = []
    for name in chance.sample([name for name, held in own.items() if held.persistent], 8):
        numbers = own[name].tensor.view(-1)
        place = chance.randrange(numbers.numel())
        old = numbers[place].clone()
        numbers[place] += 1e-3 * (1 + abs(old))
        keys = sorted({loading.starred(key) for key, target in taken.items()
                       if target.name and own[target.name].tensor.data_ptr() == own[name].tensor.data_ptr()})
        rows = audit(model, folder)
        result.append([keys, [row["name"] for row in loading.faults(rows)], loading.fault_line(rows)])
        numbers[place] = old
    return result + [loading.faults(audit(model, folder))]

# As they are loaded.
found["whole"], found["perturbed"] = {}, {}
os.mkdir("qwen3_next")
random_model.make(given["config"], 1, f"{checkpoints}/tiny_llama", "qwen3_next")
folders = {name: f"{checkpoints}/{name}" for name in ("tiny_gemma4", "tiny_llama")} | {"qwen3_next": "qwen3_next"}
for name, folder in folders.items():
    model, told = load(folder)
    start = time.perf_counter()
    rows = audit(model, folder, missing=told["missing_keys"])
    seconds = time.perf_counter() - start
    own, keys = loading.tensors_of(model), loading.Stored(folder).names
    found["whole"][name] = {"rows": rows, "keys": len(keys), "seconds": seconds, "own": len(own)}
    found["perturbed"][name] = perturbed(model, folder, 1)

gemma, _ = load(folders["tiny_gemma4"])
defaults = {name: torch.ones_like(buffer) for name, buffer in gemma.named_buffers() if "layer_scalar" in name}
for layer in gemma.model.layers:
    layer.layer_scalar.fill_(1)
scalars = audit(gemma, folders["tiny_gemma4"])
found["scalars"] = [loading.fault_line(scalars), loading.finding(scalars), scalars]
gemma.model.layers[2].layer_scalar.fill_(0.5)
rows = audit(gemma, folders["tiny_gemma4"], defaults=defaults)
found["snapshot"] = [[row["outcome"], row["layers"], row["says"]] for row in loading.faults(rows)]
for layer, source in zip(gemma.model.layers, load(folders["tiny_gemma4"])[0].model.layers):
    layer.layer_scalar.copy_(source.layer_scalar)
names = [name for name, _ in gemma.named_buffers() if name.endswith("layer_scalar")]
found["copied"] = [row for row in audit(gemma, folders["tiny_gemma4"], copied=names) if row["outcome"] == "copied"]

# Casts, ties, keys too many and too few.
llama, key = folders["tiny_llama"], "model.layers.1.mlp.up_proj.weight"
model, _ = load(llama, "bfloat16")
found["cast"] = audit(model, llama)
model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.detach().clone())
found["tied"] = [row for row in audit(model, llama) if row["name"] == "lm_head.weight"]
model.lm_head.weight.data[3, 3] += 1
found["untied"] = audit(model, llama)
def edit(tensors):
    del tensors[key]
    tensors["model.layers.1.extra.weight"] = torch.ones(2, 3)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    tensors["model.norm.weight"][5] = float("nan")
folder = changed("edited", edit)
model, told = load(folder)
found["edited"] = [audit(model, folder, missing=told["missing_keys"]), sorted(told["missing_keys"])]
model, told = load(changed("wrapped", lambda tensors: [
    tensors.update({f"language_model.{name}": tensors.pop(name)}) for name in list(tensors)]))
found["prefix"] = audit(load(llama)[0], "wrapped")
found["not_taken"] = audit(model, "wrapped", missing=told["missing_keys"])

# A rank's part: divided, whole, copied, and a distributed tensor.
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
whole = {"layers.0.q": torch.arange(32.0).view(8, 4), "layers.0.norm": torch.tensor([2.0, 3.0]),
         "layers.0.scalar": torch.tensor([0.5])}
os.mkdir("ranks")
save_file(whole, "ranks/a.safetensors")
def rank_model(rows, scalar=0.5, distributed=False):
    layer = nn.Module()
    rows = rows.clone()
    if distributed:
        rows = DTensor.from_local(rows, init_device_mesh("cpu", (1,)), [Shard(0)])
    layer.q, layer.norm = nn.Parameter(rows), nn.Parameter(whole["layers.0.norm"].bfloat16())
    layer.register_buffer("scalar", torch.tensor([scalar]))
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    return model
def rank_audit(rank, *given, **options):
    def place(name, tensor):
        return (tensor[4 * rank : 4 * rank + 4], "sharded") if name.endswith("q") else (tensor, "replicated")
    stored = loading.Stored("ranks")
    return loading.audit(rank_model(*given, **options), stored, "tp", place=place, copied=["layers.0.scalar"])
q = whole["layers.0.q"]
good = [rank_audit(0, q[:4], distributed=True), rank_audit(1, q[4:])]
found["ranks"] = [good[0], loading.merged(good), loading.merged([good[0], rank_audit(1, q[:4])]),
                  loading.merged([good[0], rank_audit(1, q)]), loading.merged([rank_audit(0, q[:4], 1.0), good[1]])]
left = rank_model(q + 1)
snapshot = {name: tensor.clone() for name, tensor in left.named_parameters()}
found["defaults"] = [[row["outcome"] for row in loading.audit(left, loading.Stored("ranks"), "x", defaults=given)]
                     for given in (None, snapshot)]

# What cannot be compared, and files by an index.
os.mkdir("odd")
odd = {"a": torch.ones(4, 4).to(torch.float8_e4m3fn), "b": torch.ones(2), "c_blocks": torch.ones(2, 2).to(torch.uint8)}
save_file(odd, "odd/model.safetensors")
header = json.dumps({"a": {"dtype": "F6_E2M3", "shape": [4, 4], "data_offsets": [0, 12]}}).encode()
header += b" " * (-len(header) % 8)
os.mkdir("odder")
with open("odder/model.safetensors", "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header + bytes(12))
model = nn.Module()
model.a, model.b, model.c = (nn.Parameter(torch.zeros(4, 4) + 3), nn.Parameter(torch.ones(2)),
                             nn.Parameter(torch.zeros(2, 4)))
stored = loading.Stored("odd")
found["odd"] = [stored.names, stored.shape("a"), str(stored.dtype("a")), loading.audit(model, stored, "x"),
                loading.audit(model, loading.Stored("odder"), "x")]
found["files"] = []
os.mkdir("files")
for name in ("consolidated", "model-1", "model-2", "model"):
    save_file({name: torch.ones(1)}, f"files/{name}.safetensors")
    found["files"].append(sorted(loading.Stored("files").names))
    if name == "model-2":
        with open("files/model.safetensors.index.json", "w") as file:
            json.dump({"weight_map": {name: f"{name}.safetensors" for name in ("model-1", "model-2")}}, file)
        found["files"].append(sorted(loading.Stored("files").names))

# The stage.
texts = [{"name": "one", "text": "What is the capital of France?"}]
os.mkdir("prompts")
prompts.run({"checkpoint": llama, "template": "chat", "prompts": texts, "boundaries": None}, "prompts")
def extra(tensors):
    tensors["model.extra"] = torch.ones(1)
found["stage"] = []
for folder in (llama, changed("more", extra)):
    out = f"out{len(found['stage'])}"
    os.mkdir(out)
    result = reference.run({
        "checkpoint": folder, "prompts": "prompts/prompts.json", "compute_dtype": "float32", "attention": "eager",
        "max_new_tokens": 1, "stop_at_end": True}, out)
    with open(f"{out}/loading.json") as file:
        found["stage"].append([result["loading"], result["findings"], json.load(file)])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(rope, tmp_path_factory) -> dict:
    told = {"checkpoints": str(CHECKPOINTS), "config": families.read("qwen3_next")["config"]}
    done = subprocess.run(
        [with_transformers_5(), "-c", SCRIPT], input=json.dumps(told),
        cwd=tmp_path_factory.mktemp("loading"), capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(paths.PROJECT / "runner" / "worker"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def by_name(rows: list[dict], name: str) -> dict:
    (row,) = [row for row in rows if row["name"] == name]
    return row


@pytest.mark.parametrize("name", ["tiny_gemma4", "tiny_llama", "qwen3_next"])
def test_what_transformers_loads_is_all_accounted_for(found, name):
    whole = found["whole"][name]
    rows = whole["rows"]
    assert all(set(row) == KEYS and row["loader"] == "transformers" for row in rows)
    assert faults(rows) == finding(rows) == [] and fault_line(rows) == ""
    with_key = [row for row in rows if row["shape"] is not None]
    assert sum(row["count"] for row in with_key) == whole["keys"]
    if name != "qwen3_next":  # whose experts are several keys of the checkpoint, and one tensor each of the model
        assert sum(row["count"] for row in rows) == whole["own"]
    assert whole["seconds"] < 0.1
    assert {row["outcome"] for row in rows if row["shape"] is None} <= {"tied", "computed"}


def test_layers_alike_are_one_row_in_the_checkpoints_order(found):
    rows = found["whole"]["tiny_gemma4"]["rows"]
    names = [row["name"] for row in rows]
    assert names[:3] == [
        "model.embed_tokens.weight",
        "model.layers.*.input_layernorm.weight",
        "model.layers.*.layer_scalar",
    ]
    scalar = by_name(rows, "model.layers.*.layer_scalar")
    assert (scalar["kind"], scalar["outcome"], scalar["layers"], scalar["count"]) == (
        "buffer", "loaded", [0, 1, 2, 3, 4, 5], 6,
    )  # fmt: skip
    # Sliding and global layers have other shapes.
    assert [row["layers"] for row in rows if row["name"].endswith("k_proj.weight")] == [[0, 1, 3, 4], [2, 5]]
    assert by_name(rows, "lm_head.weight")["says"] == "with model.embed_tokens.weight"
    assert by_name(rows, "model.embed_tokens.embed_scale")["outcome"] == "computed"


def test_experts_that_are_merged_at_loading_are_compared_one_by_one(found):
    rows = found["whole"]["qwen3_next"]["rows"]
    row = by_name(rows, "model.layers.*.mlp.experts.*.gate_proj.weight")
    assert (row["outcome"], row["count"], len(row["layers"])) == ("converted", 24, 4)
    assert (row["stored"], row["loaded"], len(row["shape"]), len(row["held"])) == ("bfloat16", "float32", 2, 3)
    assert row["says"] == "in model.layers.*.mlp.experts.gate_up_proj"


@pytest.mark.parametrize("name", ["tiny_gemma4", "tiny_llama", "qwen3_next"])
def test_a_tensor_that_was_changed_after_loading_is_always_named(found, name):
    *cases, after = found["perturbed"][name]
    assert after == []
    for keys, named, line in cases:
        assert keys and set(named) & set(keys) and set(named) <= set(keys)
        assert all(each in line for each in named)


def test_buffers_that_keep_their_default_are_named(found):
    line, findings, rows = found["scalars"]
    assert line.startswith(
        "6 buffers keep their default while the checkpoint has a value: "
        "model.layers.*.layer_scalar (layers 0 – 5: keeps 1 where the checkpoint has 0.3"
    )
    assert findings == [{"prompt": None, "check": "loading", "evidence": line}]
    assert [row["name"] for row in faults(rows)] == ["model.layers.*.layer_scalar"]


def test_a_snapshot_tells_what_was_left_from_what_is_wrong(found):
    left, wrong = found["snapshot"]
    assert left[:2] == ["defaulted", [0, 1, 3, 4, 5]] and wrong[:2] == ["differs", [2]]
    assert wrong[2].startswith("has 0.5 where the checkpoint has ")
    assert found["defaults"] == [["cast", "differs", "loaded"], ["cast", "defaulted", "loaded"]]


def test_buffers_copied_by_hand_are_said_to_be(found):
    (row,) = found["copied"]
    assert (row["name"], row["count"], row["says"]) == ("model.layers.*.layer_scalar", 6, "")


def test_casts_and_ties(found):
    rows = found["cast"]
    assert {(row["outcome"], row["stored"], row["loaded"]) for row in rows if row["shape"]} == {
        ("cast", "float32", "bfloat16")
    }
    # Without shared memory too, while the values are the same.
    assert [(row["outcome"], row["says"]) for row in found["tied"]] == [("tied", "with model.embed_tokens.weight")]
    assert fault_line(found["untied"]) == "1 parameter has no value in the checkpoint: lm_head.weight"


def test_keys_too_many_and_too_few(found):
    rows, missing = found["edited"]
    assert missing == ["model.layers.1.mlp.up_proj.weight"]
    (absent,) = faults(rows)
    assert (absent["outcome"], absent["layers"], absent["says"]) == ("defaulted", [1], "not in the checkpoint")
    extra = by_name(rows, "model.layers.*.extra.weight")
    assert (extra["outcome"], extra["kind"], extra["held"], extra["says"]) == ("dropped", "", None, "")
    assert by_name(rows, "model.layers.*.self_attn.rotary_emb.inv_freq")["says"] == "the class ignores it"
    assert by_name(rows, "model.norm.weight")["outcome"] == "loaded"  # with a number that is none
    assert [found["evidence"] for found in finding(rows)] == [
        "1 parameter has no value in the checkpoint: model.layers.*.mlp.up_proj.weight (layer 1)",
        "1 key of the checkpoint is dropped: model.layers.*.extra.weight (layer 1)",
    ]


def test_a_prefix_is_seen_through_and_values_decide(found):
    rows = found["prefix"]
    assert {row["outcome"] for row in rows} == {"loaded", "tied", "computed"}
    assert by_name(rows, "language_model.model.norm.weight")["says"] == "as model.norm.weight"
    wrong = faults(found["not_taken"])
    assert {row["outcome"] for row in wrong} == {"defaulted"} and sum(row["count"] for row in wrong) == 38


def test_ranks_hold_what_the_plan_gives_them(found):
    first, good, wrong, undivided, default = found["ranks"]
    assert {row["name"]: (row["outcome"], row["held"]) for row in first} == {
        "layers.*.q": ("sharded", [4, 4]),
        "layers.*.norm": ("replicated", [2]),
        "layers.*.scalar": ("copied", [1]),
    }
    assert good == first
    assert [row["says"] for row in wrong if row["name"] == "layers.*.q"] == [
        "rank 0: sharded",
        "rank 1: max abs diff 16",
    ]
    assert fault_line(wrong) == (
        "1 parameter has another value than the checkpoint: layers.*.q (layer 0: rank 1: max abs diff 16)"
    )
    assert "rank 1: rank shape [8, 4] where the plan gives [4, 4]" in fault_line(undivided)
    assert "rank 0: keeps 1 where the checkpoint has 0.5" in fault_line(default)


def test_what_cannot_be_compared_is_told(found):
    names, shape, dtype, rows, odder = found["odd"]
    assert (sorted(names), shape, dtype) == (["a", "b", "c_blocks"], [4, 4], "torch.float8_e4m3fn")
    assert by_name(rows, "a")["says"] == "values not compared: quantised (float8_e4m3fn)"
    assert by_name(rows, "b")["outcome"] == "loaded"
    blocks = by_name(rows, "c_blocks")
    assert (blocks["outcome"], blocks["says"]) == ("converted", "as c, values not compared: quantised (uint8)")
    assert faults(rows) == []
    assert by_name(odder, "a")["says"].startswith("values not compared: ")
    assert (by_name(odder, "a")["outcome"], by_name(odder, "a")["stored"]) == ("cast", "F6_E2M3")


def test_the_files_are_those_that_transformers_reads(found):
    single, _, every, by_index, whole = found["files"]
    assert single == ["consolidated"] and every == ["consolidated", "model-1", "model-2"]
    assert by_index == ["model-1", "model-2"] and whole == ["model"]


def test_the_reference_keeps_its_audit(found):
    (line, findings, rows), (more, warned, _) = found["stage"]
    assert (line, findings, more) == ("", [], "")
    assert rows == found["whole"]["tiny_llama"]["rows"]
    assert warned == [
        {"prompt": None, "check": "loading", "evidence": "1 key of the checkpoint is dropped: model.extra"}
    ]
