"""Stage export of backend=neuron: the model traced, compiled and divided by neuronx-distributed.

Written to its release 0.18.0; no device has run it. A stand-in for the package says so in `stand_in`.
"""

from __future__ import annotations

import functools
import json
import os
import time

import loading
import neuron_modules
import neuron_shim  # noqa: F401
import neuronx_distributed
import torch
import tp_model
from checkpoint import write_json
from neuron_modules import BUFFERS, NONE, OUTPUTS, Recipe
from neuronx_distributed.trace.model_builder import BaseModelInstance
from reference import DTYPES, dtype_of, layers_of
from safetensors.torch import load_file

SHARD = "tp{rank}_sharded_checkpoint.safetensors"
# What neuronx-distributed gives its compiler where nothing is asked; --lnc is added to it, not put in its place.
FLAGS = "--enable-saturate-infinity --auto-cast=none --model-type=transformer -O1"
MADE, MODEL, WEIGHTS = "neuron.json", "model.pt", "weights"
INPUTS = ("input_ids", "position_ids")
STATE = {"v1": OUTPUTS, "v2": BUFFERS, "parallel_model_trace": NONE}


def run(arguments: dict, out: str) -> dict:
    """Compile, and save to `out` what `neuron_candidate` loads, with ``neuron.json``.

    arguments: checkpoint (folder), plan (as runner/backends/tp_cpu/plan.py makes it), copy_buffers, model_builder
    (v1, v2, parallel_model_trace), buckets (prompt lengths, ascending), max_len (of keys and values), batch,
    compute_dtype, attention, compiler_args, logical_nc_config, max_parallel_compilations. parallel_model_trace keeps
    no keys and values: its one graph, of the largest bucket, runs once a token. Errors: `StageError`.
    """
    recipe = recipe_of(arguments)
    model = tp_model.skeleton(recipe.checkpoint)
    neuron_modules.refuse(model, recipe)
    timings, rows = {"v1": v1, "v2": v2, "parallel_model_trace": traced}[arguments["model_builder"]](
        recipe, arguments, out
    )
    stand_in = getattr(neuronx_distributed, "STAND_IN", None)
    kept = ("model_builder", "batch", "max_len")
    made = {name: arguments[name] for name in kept} | {"tp": recipe.plan["tp"], "buckets": lengths(arguments)}
    write_json(os.path.join(out, MADE), {**made, "stand_in": stand_in})
    with torch.device("meta"):
        typed = tp_model.made(recipe.checkpoint, dtype=DTYPES[recipe.dtype])
    return {
        "loaded_dtype": dtype_of(typed),
        **layers_of(model.config.get_text_config()),
        "timings": timings,
        "stand_in": stand_in,
        **loading.save(loading.merged(rows), out),
    }


def recipe_of(arguments: dict) -> Recipe:
    return Recipe(
        checkpoint=arguments["checkpoint"],
        plan=arguments["plan"],
        dtype=arguments["compute_dtype"],
        attention=arguments["attention"],
        copy_buffers=arguments["copy_buffers"],
        batch=arguments["batch"],
        max_len=arguments["max_len"],
        state=STATE[arguments["model_builder"]],
    )


def lengths(arguments: dict) -> list[int]:
    """Of the prompts that there is a graph for."""
    return arguments["buckets"][-1:] if arguments["model_builder"] == "parallel_model_trace" else arguments["buckets"]


def example(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of a graph: `INPUTS`. Only their shapes tell graphs apart."""
    positions = torch.arange(length, dtype=torch.int32).expand(batch, length).contiguous()
    return torch.zeros(batch, length, dtype=torch.int32), positions


def flags(arguments: dict) -> str | None:
    """The compiler's arguments; None for the package's own."""
    given, cores = arguments["compiler_args"], arguments["logical_nc_config"]
    return given if cores == 1 or "--lnc" in (given or "") else f"{given or FLAGS} --lnc={cores}"


class Instance(BaseModelInstance):
    """A module for ModelBuilder, with the outputs that its state is."""

    def __init__(self, recipe: Recipe):
        super().__init__(module_cls=functools.partial(neuron_modules.build, recipe), input_output_aliases={})

    def get(self, bucket_rank, **kwargs):
        return self.module, {state: 1 + place for place, state in enumerate(self.module.states())}


def v1(recipe: Recipe, arguments: dict, out: str) -> tuple[dict, list]:
    """With neuronx_distributed.trace.ModelBuilder, which compiles one rank. Returns timings, and rows of each rank."""
    from neuronx_distributed.trace import ModelBuilder

    times = [time.perf_counter()]

    def checkpoint() -> dict[str, torch.Tensor]:  # asked for once all is compiled
        times.append(time.perf_counter())
        return neuron_modules.whole(recipe)

    work, tp, batch = os.path.abspath("compiler"), recipe.plan["tp"], recipe.batch  # ModelBuilder deletes the folder
    builder = ModelBuilder(
        router=None,
        tp_degree=tp,
        checkpoint_loader=checkpoint,
        compiler_workdir=work,
        logical_nc_config=arguments["logical_nc_config"],
    )
    prefill = Instance(recipe)
    prompts = [example(batch, length) for length in arguments["buckets"]]
    builder.add("prefill", prefill, prompts, compiler_args=flags(arguments))
    builder.add("decode", Instance(recipe), [example(batch, 1)], compiler_args=flags(arguments))
    model = builder.trace(initialize_model_weights=True)
    times.append(time.perf_counter())
    torch.jit.save(model, os.path.join(out, MODEL))
    # The sharder has made the first module anew, with nothing in its parameters: each rank's are in the files.
    shards = (load_file(os.path.join(work, SHARD.format(rank=rank))) for rank in range(tp))
    rows = [neuron_modules.audit(prefill.module, recipe, rank, shard) for rank, shard in enumerate(shards)]
    return {"compile_seconds": times[1] - times[0], "sharding_seconds": times[-1] - times[1]}, rows


def v2(recipe: Recipe, arguments: dict, out: str) -> tuple[dict, list]:
    """With neuronx_distributed.ModelBuilder. As `v1`; the weights are beside the model."""
    from neuronx_distributed import ModelBuilder, NxDParallelState, shard_checkpoint
    from neuronx_distributed.utils.model_utils import init_on_device

    tp = recipe.plan["tp"]
    parallel = {"world_size": tp, "tensor_model_parallel_size": tp, "lnc_size": arguments["logical_nc_config"]}
    times = [time.perf_counter()]
    with NxDParallelState(**parallel):
        builder = ModelBuilder(neuron_modules.build(recipe))
        for length in (*arguments["buckets"], 1):
            inputs = dict(zip(INPUTS, example(recipe.batch, length), strict=True))
            builder.trace(kwargs=inputs, tag=f"prefill_{length}" if length > 1 else "decode")
        model = builder.compile(
            compiler_workdir=os.path.abspath("compiler"),
            compiler_args=flags(arguments),
            max_workers=arguments["max_parallel_compilations"],
        )
    model.save(os.path.join(out, MODEL))
    times.append(time.perf_counter())
    with NxDParallelState(**parallel), init_on_device(torch.device("meta"), force_custom_init_on_device=True):
        step = neuron_modules.build(recipe)
        shards = shard_checkpoint(
            checkpoint=neuron_modules.whole(recipe), model=step, serialize_path=os.path.join(out, WEIGHTS)
        )
    times.append(time.perf_counter())
    rows = [neuron_modules.audit(step, recipe, rank, shard) for rank, shard in enumerate(shards)]
    return {"compile_seconds": times[1] - times[0], "sharding_seconds": times[2] - times[1]}, rows


def traced(recipe: Recipe, arguments: dict, out: str) -> tuple[dict, list]:
    """With parallel_model_trace, a process and a compilation a rank: for small models. As `v1`."""
    from neuronx_distributed.trace import parallel_model_save, parallel_model_trace

    folder, started = os.path.abspath("loading"), time.perf_counter()
    os.makedirs(folder)
    for_spawned_processes()
    model = parallel_model_trace(
        functools.partial(neuron_modules.loaded, recipe, folder),
        example(recipe.batch, arguments["buckets"][-1]),
        compiler_workdir=os.path.abspath("compiler"),
        compiler_args=flags(arguments),
        tp_degree=recipe.plan["tp"],
        max_parallel_compilations=arguments["max_parallel_compilations"],
    )
    parallel_model_save(model, os.path.join(out, WEIGHTS))
    rows = []
    for rank in range(recipe.plan["tp"]):
        with open(os.path.join(folder, f"loading-{rank}.json"), encoding="utf-8") as file:
            rows.append(json.load(file))
    return {"compile_seconds": time.perf_counter() - started}, rows


def for_spawned_processes() -> None:
    """Let the processes that are started anew find `neuron_shim` before they import neuronx_distributed."""
    folder = os.path.abspath("startup")
    os.makedirs(folder)
    with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write("import neuron_shim\n")
    paths = [folder, os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
