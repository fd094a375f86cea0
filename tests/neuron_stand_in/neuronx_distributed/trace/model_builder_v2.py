"""The newer ModelBuilder, and the model that it makes."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from .. import files
from ..graphs import Graph, Loaded, fitting, trace
from ..only import only
from ..parallel_layers import parallel_state
from ..processes import Ranks
from .model_builder import answer


class ModelBuilder:
    @only("model")
    def __init__(self, model, weights_to_skip_layout_optimization=None):
        self.model, self.size = model, 1
        self.graphs: dict[str, Graph] = {}
        if parallel_state.model_parallel_is_initialized():
            self.size = parallel_state.get_tensor_model_parallel_size()

    @only("args", "kwargs", "tag")
    def trace(self, args=None, kwargs=None, tag=None, spmd=True):
        parameters = inspect.signature(self.model.forward).parameters
        if any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters.values()
        ):
            raise NotImplementedError("Methods with *args or **kwargs are not supported.")
        args = (args,) if isinstance(args, torch.Tensor) else args or ()
        given = dict(zip(parameters, args, strict=False)) | (kwargs or {})
        if odd := set(given) - set(parameters):
            raise ValueError(f"Found unexpected keys in kwargs: {odd}")
        names = [name for name in parameters if name in given]
        inputs = tuple(given[name] for name in names)
        self.graphs[tag or f"graph_{len(self.graphs)}"] = trace(self.model, inputs, None, names)
        return self

    @only("compiler_workdir", "compiler_args", "max_workers")
    def compile(self, priority_model_key=None, compiler_workdir=None, compiler_args=None, max_workers=None):
        if not self.graphs:
            raise ValueError("No traces available for compilation. Call trace() first.")
        return NxDModel(self.size).with_graphs(self.graphs)


class NxDModel(nn.Module):
    @only("world_size")
    def __init__(
        self, world_size, start_rank=None, local_ranks_size=None, state_initializer=None, layout_transformer=None
    ):
        super().__init__()
        self.world_size = world_size
        self.graphs: dict[str, Graph] = {}
        self.by_shape: dict[str, list[str]] = {}
        self.weights: list[dict[str, torch.Tensor]] = [{}] * world_size
        self.ranks: Ranks | None = None

    def with_graphs(self, graphs: dict[str, Graph]) -> NxDModel:
        """The stand-in's own."""
        self.graphs = graphs
        for key, graph in graphs.items():
            shapes = [shape for shape, _ in graph.inputs]
            self.by_shape.setdefault(route(graph.names, shapes), []).append(key)
        return self

    def set_weights(self, sharded_checkpoint):
        if self.ranks is not None:
            raise ValueError("set_weights() was called when the model was already loaded on neuron.")
        fitting(self.graphs, sharded_checkpoint)
        self.weights = sharded_checkpoint

    def to_neuron(self):
        if self.ranks is None:
            weights = self.weights
            self.ranks = Ranks(self.world_size, lambda rank: Loaded(self.graphs, weights[rank]))

    @only("args", "kwargs")
    def forward(self, *args, model_name=None, forward_mode="default", **kwargs):
        if self.ranks is None:
            raise RuntimeError("Model not initialized. Call set_weights() followed by to_neuron()")
        names = next(iter(self.graphs.values())).names
        given = dict(zip(names, args, strict=False)) | kwargs
        inputs = [given.pop(name) for name in names if name in given]
        assert not given, "Not all kwargs were parsed"
        keys = self.by_shape[route(names, [list(tensor.shape) for tensor in inputs])]
        assert len(keys) == 1, f"Got {len(keys)} possible routes but model_name wasn't provided."
        return answer(self.ranks, keys[0], self.graphs[keys[0]], inputs)

    @only("path_to_save")
    def save(self, path_to_save, save_weights=False):
        files.save(path_to_save, {"world_size": self.world_size, "graphs": self.graphs})

    @classmethod
    def load(cls, path_to_model, start_rank=None, local_ranks_size=None):
        content = files.read(path_to_model)
        if content is None or "world_size" not in content:
            raise ValueError("The Torchscript Model Supplied was not produced with the NxDModel.save method.")
        return cls(content["world_size"]).with_graphs(content["graphs"])


def route(names: list[str], shapes: list[list[int]]) -> str:
    return "(" + ", ".join(f"{name}: {shape}" for name, shape in zip(names, shapes, strict=True)) + ")"
