"""backend=neuron with a stand-in for neuronx-distributed: the reference's logits, and what is said where it fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from lab import with_stand_in
from safetensors.numpy import load_file, save_file

from runner import environments, paths
from runner.backends.tp_cpu.plan import plan_arguments
from runner.sharding import plan

pytestmark = pytest.mark.slow

CHECKPOINT = paths.PROJECT / "checkpoints" / "tiny_gemma4"
# As the worker does it: this process imports, and each stage is a child that it forks.
STAGES = """
import importlib, os, shutil
import numpy as np
import warm
warm.modules()
import task

def child(function, work="child"):
    # What `function()` returns in a process of its own, or {"type", "message"} of its error.
    work = os.path.abspath(work + ".work")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    pid = os.fork()
    if pid == 0:
        try:
            task.settle(work, 1)
            found = function()
        except BaseException as error:
            import traceback; traceback.print_exc()
            found = task.describe(error, {})
        with open(work + "/found.json", "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.waitpid(pid, 0)
    with open(work + "/found.json") as file:
        return json.load(file)

def stage(module, name, **arguments):
    out = os.path.abspath(name)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    return child(lambda: importlib.import_module(module).run(arguments, out), name)

def reference(checkpoint, texts):
    stage("prompts", "prompts", checkpoint=checkpoint, template="chat", prompts=texts, boundaries=None)
    same = {"checkpoint": checkpoint, "prompts": os.path.abspath("prompts/prompts.json"), "stop_at_end": True,
            "max_new_tokens": 24}
    stage("reference", "reference", **same, compute_dtype="float32", attention="eager")
    return same

def compiled(checkpoint, plan, **options):
    return stage("neuron_compile", "export", **{
        "checkpoint": checkpoint, "plan": plan, "copy_buffers": True, "model_builder": "v1", "buckets": [32, 64],
        "max_len": 96, "batch": 1, "compute_dtype": "float32", "attention": "eager", "compiler_args": None,
        "logical_nc_config": 1, "max_parallel_compilations": None, "threads": 1, **options})

def candidate(same, name="candidate", **options):
    return stage("neuron_candidate", name, **{
        **same, "export": os.path.abspath("export"), "reference": os.path.abspath("reference"), "end_tokens": None,
        "threads": 1, "precision": "fp32", **options})

def entries(folder):
    with open(folder + "/continuations.json") as file:
        return json.load(file)

def beside(name="candidate"):
    # How far it is from the reference.
    free, forced, identical, texts = 0.0, 0.0, True, []
    for one, two in zip(entries("reference"), entries(name), strict=True):
        a, b = np.load("reference/" + one["logits"]), np.load(f"{name}/{two['logits']}")
        both = min(len(a), len(b))
        free = max(free, float(np.abs(a[:both] - b[:both]).max()))
        if "forced_logits" in two:
            forced = max(forced, float(np.abs(a - np.load(f"{name}/{two['forced_logits']}")).max()))
        identical = identical and one["tokens"] == two["tokens"]
        texts.append(two["text"])
    return {"free": free, "forced": forced, "identical": identical, "texts": texts}
"""


def texts(number: int) -> list[dict]:
    content = yaml.safe_load((paths.CONF / "prompts" / "five.yaml").read_text(encoding="utf-8"))
    return [{"name": prompt["name"], "text": prompt["text"]} for prompt in content["prompts"][:number]]


def given(tp: int, gqa: str = "replicate-layer", vocabulary: str = "sharded") -> dict:
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    return plan_arguments(plan(config, tp, gqa=gqa, vocabulary=vocabulary))


@pytest.fixture(scope="module")
def interpreter(rope, tmp_path_factory) -> Path:
    """Of an environment that leads on to the reference's, and to the stand-in."""
    return with_stand_in(tmp_path_factory.mktemp("neuron") / "environment")


@pytest.fixture
def run(run_script, interpreter):
    def run(script: str, *arguments: object):
        return run_script(interpreter, STAGES + script, *map(json.dumps, arguments))

    return run


def test_the_environment_has_the_packages_by_name(interpreter):
    found = asyncio.run(environments.interpreter_facts(interpreter))["packages"]
    assert found["neuronx-distributed"] == "0.18.0+standin" and found["torch-neuronx"].endswith("+standin")


BUILDERS = """
texts, runs, checkpoint = (json.loads(argument) for argument in sys.argv[1:])
same, found = reference(checkpoint, texts), []
for plan, options in runs:
    made = compiled(checkpoint, plan, **options)
    result = {"made": made, "ran": candidate(same)}
    found.append({**result, **beside()} if "type" not in result["ran"] else result)
    with open("export/loading.json") as file:
        found[-1]["rows"] = json.load(file)
print(json.dumps(found))
"""


def test_each_model_builder_gives_what_the_reference_gives(run, interpreter):
    v1 = {"model_builder": "v1"}
    runs = [
        (given(2), v1),
        (given(2), {"model_builder": "v2"}),
        (given(2), {"model_builder": "parallel_model_trace", "buckets": [64]}),
        (given(2, vocabulary="replicated"), {**v1, "batch": 2}),
        (given(3, gqa="replicate-to-tp-degree"), {"model_builder": "v2", "attention": "sdpa"}),
        (given(1), v1),
        (given(2), {**v1, "copy_buffers": False}),
        (given(2), {**v1, "compute_dtype": "bfloat16"}),
    ]
    *right, uncopied, half = run(BUILDERS, texts(2), runs, str(CHECKPOINT))
    for found in right:
        assert found["identical"] and max(found["free"], found["forced"]) < 1e-4
        assert found["texts"][0] == "The capital of France is Paris."
        assert (found["made"]["loading"], found["made"]["findings"]) == ("", [])
        assert found["made"]["loaded_dtype"] == "float32" and found["made"]["sliding_layers"] == [0, 1, 3, 4]
        assert found["made"]["stand_in"] == found["ran"]["stand_in"] == "neuron-cpu"
        assert all(seconds > 0 for part in ("made", "ran") for seconds in found[part]["timings"].values())
        assert {row["loader"] for row in found["rows"]} == {"neuron"}
    outcomes = {row["name"]: row["outcome"] for row in right[0]["rows"]}
    assert outcomes["model.layers.*.layer_scalar"] == "copied"
    assert outcomes["model.embed_tokens.weight"] == outcomes["model.layers.*.mlp.down_proj.weight"] == "sharded"
    assert outcomes["model.norm.weight"] == "replicated" and outcomes["lm_head.weight"] == "tied"
    # Buffers that nobody copies are named, and the text is another.
    assert not uncopied["identical"] and uncopied["free"] > 1
    said = "6 buffers keep their default while the checkpoint has a value: model.layers.*.layer_scalar"
    assert uncopied["made"]["loading"].startswith(said)
    assert half["made"]["loaded_dtype"] == "bfloat16" and half["made"]["loading"] == ""
    assert 1e-3 < half["forced"] < 0.5
    end = time.monotonic() + 5
    while (left := processes_of(interpreter)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def processes_of(interpreter: Path) -> list[str]:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if str(interpreter) in line]


REFUSALS = """
checkpoint, texts, plan, without, unlike, foreign = (json.loads(argument) for argument in sys.argv[1:])
same, found = reference(checkpoint, texts), {}
compiled(checkpoint, plan, buckets=[64])
found["bucket"] = candidate({**same, "max_new_tokens": 60})
found["short"] = candidate({**same, "max_new_tokens": 90})
found["unforced"] = candidate({**same, "max_new_tokens": 60}, reference=None, end_tokens=[])
compiled(checkpoint, plan, buckets=[16])
found["prompt"] = candidate(same)
found["foreign"] = compiled(checkpoint, foreign)
found["lacking"] = compiled(without, plan)
found["unlike"] = compiled(unlike, plan)
print(json.dumps(found))
"""


def test_what_cannot_run_is_refused_with_a_reason(run, tmp_path):
    tensors = load_file(CHECKPOINT / "model.safetensors")
    without = {name: tensor for name, tensor in tensors.items() if "layers.3.mlp" not in name}
    unlike = {name: tensor[:-2] if name == "model.norm.weight" else tensor for name, tensor in tensors.items()}
    for name, held in (("without", without), ("unlike", unlike)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").symlink_to(CHECKPOINT / "config.json")
        save_file(held, tmp_path / name / "model.safetensors")
    foreign = given(2)
    foreign["tensors"]["model.layers.9.mlp.up_proj.weight"] = foreign["tensors"]["model.layers.0.mlp.up_proj.weight"]
    others = [str(tmp_path / name) for name in ("without", "unlike")]
    found = run(REFUSALS, str(CHECKPOINT), texts(2), given(2), *others, foreign)
    assert "type" not in found["unforced"] and "type" not in found["bucket"]
    for name in ("short", "prompt"):
        assert found[name]["type"] == "ContextTooShort" and "backend." in found[name]["hint"]
    assert "largest bucket has 16" in found["prompt"]["message"] and "max_len is 96" in found["short"]["message"]
    assert found["foreign"]["type"] == "PlanNotRunnable" and "layers.9.mlp.up_proj" in found["foreign"]["message"]
    assert found["lacking"]["type"] == "MissingTensors" and "3 parameters" in found["lacking"]["message"]
    assert found["unlike"]["type"] == "PlanNotRunnable" and "model.norm.weight" in found["unlike"]["message"]


SILENCE = """
checkpoint, texts, plan = (json.loads(argument) for argument in sys.argv[1:])
same, found = reference(checkpoint, texts), {}

def compile_again():
    import neuron_compile
    os.makedirs("compiler")
    open("compiler/of_value", "w").close()
    neuron_compile.v1(RECIPE(), OPTIONS, EXPORT)
    return {"kept": os.path.exists("compiler/of_value"), "there": sorted(os.listdir("compiler"))}

def RECIPE():
    from neuron_modules import Recipe
    return Recipe(checkpoint, plan, "float32", "eager", True, 1, 96, "outputs")

OPTIONS = {"buckets": [32, 64], "logical_nc_config": 1, "compiler_args": None}
EXPORT = os.path.abspath("export")
os.makedirs(EXPORT)
found["workdir"] = child(compile_again)
with open("export/neuron.json", "w") as file:
    json.dump({"model_builder": "v1", "batch": 1, "max_len": 96, "tp": 2, "buckets": [32, 64]}, file)

def state():
    import torch, torch_neuronx
    from neuron_compile import example
    model = torch.jit.load(EXPORT + "/model.pt")
    token, position = torch.tensor([[7]], dtype=torch.int32), torch.tensor([[40]], dtype=torch.int32)
    try:
        model(token, position)
    except ValueError as error:
        said = str(error)
    try:
        model(*example(1, 33))
    except ValueError as error:
        unknown = str(error)
    rows = []
    for again in (True, False, True):
        if again:
            model.nxd_model.initialize_with_saved_weights(torch.tensor([0], dtype=torch.int32))
        else:
            tokens, positions = example(1, 64)
            model(torch.arange(64, dtype=torch.int32)[None], positions)
        rows.append(model(token, position)[0, 0])
    same = [bool(torch.equal(rows[0], row)) for row in rows]
    return {"said": said, "unknown": unknown, "same": same}

found["state"] = child(state)
candidate(same)
order = json.load(open("prompts/prompts.json"))
json.dump({"prompts": order["prompts"][::-1]}, open("prompts/turned.json", "w"))
candidate({**same, "prompts": os.path.abspath("prompts/turned.json")}, "turned", reference=None)
found["by_itself"] = [
    np.array_equal(np.load("candidate/" + a["logits"]), np.load("turned/" + b["logits"]))
    for a, b in zip(entries("candidate"), entries("turned")[::-1], strict=True)
]
print(json.dumps(found))
"""


def test_state_workdir_and_weights_are_as_documented(run):
    found = run(SILENCE, str(CHECKPOINT), texts(3), given(2))
    assert found["workdir"]["kept"] is False  # ModelBuilder deletes it first
    assert found["workdir"]["there"] == [f"tp{rank}_sharded_checkpoint.safetensors" for rank in (0, 1)]
    assert found["state"]["said"].startswith("This model is not initialized")
    assert "not found in input_shape_map" in found["state"]["unknown"]
    assert found["state"]["same"] == [True, False, True]  # initialising zeroes what passes have left
    assert found["by_itself"] == [True, True, True]  # what a prompt leaves is seen by no other
