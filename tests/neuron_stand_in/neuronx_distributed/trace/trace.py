"""parallel_model_trace: a trace of each rank in a process of its own, which loads its weights itself."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile

import torch
from torch import nn

from ..files import packed, unpacked
from ..graphs import Graph, Loaded, dry_run, signature
from ..only import only
from ..parallel_layers import parallel_state
from ..processes import Ranks, join
from .model_builder import answer


@only("func", "example_inputs", "compiler_workdir", "compiler_args", "tp_degree", "max_parallel_compilations")
def parallel_model_trace(
    func,
    example_inputs,
    states=None,
    compiler_workdir=None,
    compiler_args=None,
    inline_weights_to_neff=True,
    bucket_config=None,
    tp_degree=1,
    max_parallel_compilations=None,
    spmd_mode=False,
    checkpoint_loader_callable=None,
    force_custom_init_on_device=False,
    serialization_path=None,
):
    func = pickle.loads(pickle.dumps(func))  # the processes are started anew and get it so
    folder = tempfile.mkdtemp(prefix="neuron-cpu-")
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=trace_rank, args=(rank, tp_degree, folder, func, example_inputs))
        for rank in range(tp_degree)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"exit codes {[process.exitcode for process in processes]}")
    models = []
    for rank in range(tp_degree):
        with open(os.path.join(folder, f"{rank}"), "rb") as file:
            models.append(unpacked(file.read()))
    return TensorParallelNeuronModel(models)


def trace_rank(rank: int, size: int, folder: str, func, inputs: tuple) -> None:
    join(rank, size, folder)
    module, aliases = func()
    if aliases:
        raise NotImplementedError("the stand-in knows no aliases of parallel_model_trace")
    parallel_state.set_ranks(size, rank)  # the trial run is no collective
    _, changed = dry_run(module, inputs)
    if changed:
        raise RuntimeError(f"buffers are set that no output is aliased to: {', '.join(changed)}")
    graph = Graph(packed(module), [signature(tensor) for tensor in inputs], None, {}, {})
    with open(os.path.join(folder, f"{rank}"), "wb") as file:
        file.write(packed(graph))


class ParallelModel(nn.Module):
    pass


class TensorParallelNeuronModel(ParallelModel):
    def __init__(self, models):
        super().__init__()
        self.models, self.ranks = models, None

    def forward(self, *tensors):
        if self.ranks is None:
            models = self.models
            self.ranks = Ranks(len(models), lambda rank: Loaded({"": models[rank]}, None))
        return answer(self.ranks, "", self.models[0], list(tensors))


def parallel_model_save(model, save_dir):
    os.makedirs(save_dir, exist_ok=True)
    for rank, graph in enumerate(model.models):
        torch.save(graph, os.path.join(save_dir, f"tp_{rank}.pt"))


def parallel_model_load(model_dir):
    ranks = range(len(os.listdir(model_dir)))
    paths = [os.path.join(model_dir, f"tp_{rank}.pt") for rank in ranks]
    return TensorParallelNeuronModel([torch.load(path, weights_only=False) for path in paths])
