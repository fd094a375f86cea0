"""The older ModelBuilder, and the model that it makes."""

from __future__ import annotations

import logging
import os
import shutil

import torch
from safetensors.torch import load_file
from torch import nn

from .. import files
from ..graphs import Graph, Loaded, fitting, signature, trace
from ..only import only
from ..parallel_layers import parallel_state
from ..processes import Ranks
from ..utils.model_utils import init_on_device
from . import sharding

logger = logging.getLogger("Neuron")


class BaseModelInstance:
    def __init__(self, module_cls, input_output_aliases):
        self.module_cls = module_cls
        self.module = None
        self.input_output_aliases = [input_output_aliases]

    def load_module(self):
        self.module = self.module_cls()

    def get(self, bucket_rank, **kwargs):
        return self.module, self.input_output_aliases[0]


class ModelBuilder:
    @only("router", "tp_degree", "checkpoint_loader", "compiler_workdir", "logical_nc_config")
    def __init__(
        self,
        router,
        tp_degree,
        checkpoint_loader,
        start_rank_id=0,
        pp_degree=1,
        ep_degree=1,
        local_ranks_size=None,
        world_size=None,
        compiler_workdir=None,
        master_proc_env_vars=None,
        debug=False,
        num_cores_per_group=1,
        init_custom_process_group_fn=None,
        logical_nc_config=1,
        weights_to_skip_layout_optimization=set(),  # noqa: B006  the package's
        compiler_flag_hook=None,
    ):
        self.tp_degree, self.checkpoint_loader = tp_degree, checkpoint_loader
        self.compiler_workdir = compiler_workdir or "/tmp/nxd_model/"
        self.models: dict[str, tuple] = {}

    @only("key", "model_instance", "example_inputs", "compiler_args")
    def add(self, key, model_instance, example_inputs, compiler_args=None, bucket_config=None, priority_model_idx=None):
        if not all(isinstance(inputs, tuple) for inputs in example_inputs):
            raise TypeError("example_inputs is a list of tuples, one a bucket")
        self.models[key] = model_instance, example_inputs
        return self

    @only("initialize_model_weights")
    def trace(self, initialize_model_weights=True, dry_run=False, disable_fail_fast=False):
        if os.path.exists(self.compiler_workdir):
            shutil.rmtree(self.compiler_workdir)
        graphs: dict[str, Graph] = {}
        with parallel_state.tracing(self.tp_degree):
            for key, (instance, buckets) in self.models.items():
                instance.load_module()
                for number, inputs in enumerate(buckets):
                    module, aliases = instance.get(number)
                    graphs[f"{key}_{number}"] = trace(module, inputs, aliases)
        model = NxDModel(self.tp_degree, graphs)
        if initialize_model_weights:
            self.shard_checkpoint(self.compiler_workdir)
            names = (f"tp{rank}_sharded_checkpoint.safetensors" for rank in range(self.tp_degree))
            weights = [load_file(os.path.join(self.compiler_workdir, name)) for name in names]
            model.initialize(weights, torch.tensor([0], dtype=torch.int32))
        return NxDModelExecutor(model)

    def cast_weights(self, checkpoint, model, prefix):
        for name, parameter in model.named_parameters():
            stored = checkpoint.get(prefix + name)
            if stored is not None and stored.dtype != parameter.dtype:
                logger.warning("casting %s from %s to %s", prefix + name, stored.dtype, parameter.dtype)
                checkpoint[prefix + name] = stored.to(parameter.dtype)

    def shard_checkpoint(self, serialize_path=None):
        instance = next(iter(self.models.values()))[0]
        there = init_on_device(torch.device("meta"), force_custom_init_on_device=True)
        with parallel_state.tracing(self.tp_degree), there:
            instance.load_module()
            module, _ = instance.get(0)
            checkpoint = self.checkpoint_loader()
            sharding.preprocess_checkpoint(module, checkpoint)
            self.cast_weights(checkpoint, module, "")
            ranks = range(self.tp_degree)
            return [sharding.shard(checkpoint, module, rank, self.tp_degree, serialize_path) for rank in ranks]


class NxDModel(nn.Module):
    """Graphs that share weights. The one whose inputs have the given shapes runs; of two the last."""

    def __init__(self, size: int, graphs: dict[str, Graph], weights: list[dict] | None = None):
        super().__init__()
        self.size, self.graphs, self.weights = size, graphs, weights
        self.by_shape = {shapes(graph.inputs): key for key, graph in graphs.items()}
        self.ranks: Ranks | None = None

    def initialize(self, checkpoint: list[dict], start_rank_tensor: torch.Tensor) -> None:
        fitting(self.graphs, checkpoint)
        self.weights = checkpoint
        self.initialize_with_saved_weights(start_rank_tensor)

    def initialize_with_saved_weights(self, start_rank_tensor: torch.Tensor) -> None:
        """The states are zeros after it."""
        if int(start_rank_tensor) != 0:
            raise NotImplementedError("the stand-in knows no other first rank than 0")
        weights = self.weights
        self.ranks = Ranks(self.size, lambda rank: Loaded(self.graphs, weights[rank]))

    def forward(self, inputs: list[torch.Tensor]):
        key = self.by_shape.get(shapes([signature(tensor) for tensor in inputs]))
        if key is None:
            actual = str([list(tensor.shape) for tensor in inputs])
            raise ValueError(f"Input shape {actual} not found in input_shape_map: {list(self.by_shape)}")
        if self.ranks is None:
            raise ValueError(
                "This model is not initialized, please call traced_model.nxd_model.initialize(sharded_checkpoint) or"
                " traced_model.nxd_model.initialize_with_saved_weights()"
            )
        return answer(self.ranks, key, self.graphs[key], inputs)


class NxDModelExecutor(nn.Module):
    def __init__(self, nxd_model: NxDModel):
        super().__init__()
        self.nxd_model = nxd_model

    def forward(self, *inputs):
        return self.nxd_model(list(inputs))

    def save(self, f, _extra_files=None):
        """What torch.jit.save calls."""
        model = self.nxd_model
        files.save(f, {"size": model.size, "graphs": model.graphs, "weights": model.weights})


def shapes(inputs: list) -> str:
    return str([shape for shape, _ in inputs])


def answer(ranks: Ranks, key: str, graph: Graph, inputs: list[torch.Tensor]):
    """The outputs that are no states, alone where there is one."""
    if (given := [signature(tensor) for tensor in inputs]) != graph.inputs:
        raise TypeError(f"{key} was compiled for {graph.inputs}, and is given {given}")
    outputs = ranks.run(key, list(inputs))
    return outputs[0] if len(outputs) == 1 else outputs
