"""What is written for Neuron, on neuronx-distributed's own source: its sharder, and its layers in processes on CPU.

NXD_SRC names the ``src`` folder of its repository. What it imports besides, and no index has, is put in its place.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from runner import paths
from runner.backends.tp_cpu.plan import plan_arguments
from runner.sharding import plan

SOURCE = os.environ.get("NXD_SRC", "")
STAND_IN = Path(__file__).parents[2] / "neuron_stand_in" / "neuronx_distributed"
CHECKPOINT = paths.PROJECT / "checkpoints" / "tiny_gemma4"

pytestmark = pytest.mark.skipif(not SOURCE, reason="NXD_SRC does not name the src folder of neuronx-distributed")

# Of the package's functions: the file, in the stand-in too where it is another, and the names.
SIGNATURES = [
    ("parallel_layers/layers.py", "", ["ColumnParallelLinear.__init__", "ColumnParallelLinear.forward"]),
    ("parallel_layers/layers.py", "", ["RowParallelLinear.__init__", "RowParallelLinear.forward"]),
    ("parallel_layers/layers.py", "", ["ParallelEmbedding.__init__", "ParallelEmbedding.forward"]),
    ("parallel_layers/layers.py", "", ["SPMDRank.__init__", "SPMDRank.get_rank"]),
    ("parallel_layers/parallel_state.py", "", ["initialize_model_parallel", "destroy_model_parallel"]),
    ("parallel_layers/parallel_state.py", "", ["model_parallel_is_initialized", "set_aot_mode", "get_aot_mode"]),
    (
        "parallel_layers/parallel_state.py",
        "",
        ["get_tensor_model_parallel_size", "get_tensor_model_parallel_rank"],
    ),
    ("utils/model_utils.py", "", ["init_on_device"]),
    ("trace/model_builder.py", "", ["ModelBuilder.__init__", "ModelBuilder.add", "ModelBuilder.trace"]),
    ("trace/model_builder.py", "", ["ModelBuilder.shard_checkpoint", "ModelBuilder.cast_weights"]),
    ("trace/model_builder.py", "", [f"BaseModelInstance.{name}" for name in ("__init__", "load_module", "get")]),
    ("trace/spmd.py", "trace/model_builder.py", ["NxDModel.initialize", "NxDModel.initialize_with_saved_weights"]),
    ("trace/spmd.py", "trace/model_builder.py", ["NxDModel.forward", "NxDModelExecutor.forward"]),
    ("trace/model_builder_v2.py", "", [f"ModelBuilder.{name}" for name in ("__init__", "trace", "compile")]),
    (
        "trace/nxd_model/nxd_model.py",
        "trace/model_builder_v2.py",
        [f"NxDModel.{name}" for name in ("__init__", "set_weights", "to_neuron", "forward", "save", "load")],
    ),
    ("trace/functions.py", "trace/sharding.py", ["shard_checkpoint"]),
    ("trace/parallel_context.py", "", [f"NxDParallelState.{name}" for name in ("__init__", "__enter__", "__exit__")]),
    ("trace/trace.py", "", ["parallel_model_trace", "parallel_model_save", "parallel_model_load"]),
    ("trace/trace.py", "trace/sharding.py", ["preprocess_checkpoint", "get_sharded_checkpoint"]),
]


def signature(path: Path, name: str) -> list[tuple[str, str]]:
    """Parameters and their defaults as they are written."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    *classes, function = name.split(".")
    for owner in classes:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner).body
    node = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    positional = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(positional) - len(node.args.defaults)) + node.args.defaults
    pairs = [*zip(positional, defaults, strict=True)]
    pairs += [(ast.arg("*" + extra.arg), None) for extra in (node.args.vararg, node.args.kwarg) if extra]
    pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    return [(arg.arg, "" if default is None else ast.unparse(default)) for arg, default in pairs]


@pytest.mark.parametrize(("there", "here", "names"), SIGNATURES)
def test_the_stand_in_has_the_signatures_of_the_package(there, here, names):
    for name in names:
        package = signature(Path(SOURCE) / "neuronx_distributed" / there, name)
        assert signature(STAND_IN / (here or there), name) == package, name


# In one process: what stands for the packages of a Neuron machine, and the package divides the checkpoint in two; then
# two more, in which its layers compute.
SCRIPT = """
import importlib.abc, importlib.machinery, os
from multiprocessing import get_context
from unittest.mock import MagicMock

NAMES = {"torch_xla", "torch_neuronx", "neuronxcc", "libneuronxla", "nki", "nkilib", "boto3", "botocore", "tenacity",
         "requests"}

class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in NAMES else None
    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__version__ = spec.name, [], "2.9.0"
        return module
    def exec_module(self, module):
        if module.__name__ == "torch_neuronx.utils":
            module.get_platform_target = lambda *arguments: "inf2"

sys.meta_path.append(Absent())
source, checkpoint, plan, dtype = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
sys.path.insert(1, source)
import numpy as np
import torch
torch.classes.neuron = MagicMock()
torch.set_num_threads(1)
import loading, neuron_modules, reference, tp_model
from neuron_compile import SHARD, Instance, example
from neuronx_distributed import NxDParallelState, shard_checkpoint
from neuronx_distributed.parallel_layers import layers, parallel_state
from neuronx_distributed.trace import ModelBuilder
from neuronx_distributed.utils.model_utils import init_on_device
from safetensors.torch import load_file

recipe = neuron_modules.Recipe(checkpoint, plan, dtype, "eager", True, 1, 96, "outputs")
tp = plan["tp"]
prefill, found = Instance(recipe), {"source": layers.__file__}
builder = ModelBuilder(router=None, tp_degree=tp, checkpoint_loader=lambda: neuron_modules.whole(recipe),
                       compiler_workdir="compiler", logical_nc_config=1)
builder.add("prefill", prefill, [example(1, 32)], compiler_args=None)
builder.add("decode", Instance(recipe), [example(1, 1)], compiler_args=None)
builder.shard_checkpoint("shards")
shards = [load_file("shards/" + SHARD.format(rank=rank)) for rank in range(tp)]
with NxDParallelState(world_size=tp, tensor_model_parallel_size=tp, lnc_size=1):
    traced = neuron_modules.build(recipe)
    found["aliases"] = [list(Instance.get(type("", (), {"module": traced}), 0)[1].values())[-1], len(traced.states())]
with NxDParallelState(world_size=tp, tensor_model_parallel_size=tp, lnc_size=1), \\
        init_on_device(torch.device("meta"), force_custom_init_on_device=True):
    newer = shard_checkpoint(checkpoint=neuron_modules.whole(recipe), model=neuron_modules.build(recipe))
found["same_shards"] = all(one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
                           for one, two in zip(shards, newer, strict=True))
rows = loading.merged([neuron_modules.audit(prefill.module, recipe, rank, shard) for rank, shard in enumerate(shards)])
found["outcomes"], found["faults"] = sorted({row["outcome"] for row in rows}), loading.fault_line(rows)
model, _ = reference.load(checkpoint, dtype, "eager")
ids = list(range(10, 40))
tokens, wanted = reference.greedy(model, ids, set(), 8)

def compute(rank, results):
    os.environ |= {"NXD_CPU_MODE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(os.path.abspath("rendezvous"), tp)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=tp)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    step = neuron_modules.build(recipe)
    for module in step.modules():
        if isinstance(module, layers.ParallelEmbedding):
            module.start_index, module.end_index = 0, 0  # of the one rank that is traced: not to be looked at
    missing, extra = step.load_state_dict(shards[rank], strict=False)
    tied = tp_model.ties(step)  # they are loaded by their other name
    assert not extra and len(set(missing) - set(tied)) == len(step.states()), (missing, extra)

    def run(inputs, positions):
        with torch.no_grad():
            logits, *written = step(inputs, positions)
            for state, tensor in zip(step.states(), written, strict=True):
                state.copy_(tensor)
        return logits[0].float()

    inputs, positions = example(1, 32)
    inputs[:, : len(ids)] = torch.tensor(ids)
    rows = [run(inputs, positions)[len(ids) - 1]]
    for place, token in enumerate(tokens[:-1], len(ids)):
        one = torch.full((1, 1), token, dtype=torch.int32)
        rows.append(run(one, torch.full((1, 1), place, dtype=torch.int32))[-1])
    results.put(torch.stack(rows).numpy())

context = get_context("fork")
results = context.Queue()
processes = [context.Process(target=compute, args=(rank, results), daemon=True) for rank in range(tp)]
for process in processes:
    process.start()
found["off"] = [float(np.abs(results.get(timeout=60) - wanted).max()) for _ in processes]
found["range"] = float(np.abs(wanted).max())
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tp", "gqa", "vocabulary", "dtype", "limit"),
    [
        (2, "replicate-layer", "sharded", "float32", 1e-4),
        (2, "replicate-to-tp-degree", "replicated", "float32", 1e-4),
        (2, "replicate-layer", "sharded", "bfloat16", 0.5),
    ],
)
def test_its_sharder_and_its_layers_give_the_reference_s_logits(with_torch, tp, gqa, vocabulary, dtype, limit):
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    given = json.dumps(plan_arguments(plan(config, tp, gqa=gqa, vocabulary=vocabulary)))
    found = with_torch(SCRIPT, SOURCE, CHECKPOINT, given, dtype)
    assert found["source"].startswith(SOURCE)
    assert found["same_shards"] and found["faults"] == "" and "sharded" in found["outcomes"]
    assert found["aliases"] == [12, 12]
    assert len(found["off"]) == tp and max(found["off"]) < limit
