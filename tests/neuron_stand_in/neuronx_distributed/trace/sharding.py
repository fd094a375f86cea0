"""How the package divides a checkpoint: by the parameters of its own layers; all else passes, or is dropped."""

from __future__ import annotations

import os
import warnings

import torch
from safetensors.torch import save_file

from ..only import only
from ..parallel_layers import parallel_state
from ..parallel_layers.layers import SHARDED


def preprocess_checkpoint(model, checkpoint):
    extra = [key for key in checkpoint if key not in model.state_dict()]
    warnings.warn(f"Removing redundant keys from checkpoint: {extra}", stacklevel=2)
    for key in extra:
        del checkpoint[key]


def get_sharded_checkpoint(checkpoint, model, rank, tp_degree, is_cached=False):
    if not is_cached:
        preprocess_checkpoint(model, checkpoint)
    for path, module in model.named_modules():
        if not isinstance(module, SHARDED):
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{leaf}" if path else leaf
            if name not in checkpoint:
                continue
            tensor = checkpoint[name]
            if getattr(parameter, "tensor_model_parallel", False):
                size = tensor.shape[parameter.partition_dim] // parameter.num_partitions
                tensor = torch.split(tensor, size, parameter.partition_dim)[rank]
            if tensor.shape != parameter.shape:
                raise RuntimeError(f"expected shape {parameter.shape} for {name} but found {tensor.shape}")
            checkpoint[name] = tensor


def shard(checkpoint: dict, model, rank: int, size: int, folder: str | None) -> dict:
    held = checkpoint.copy()
    get_sharded_checkpoint(held, model, rank, size, is_cached=True)
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"tp{rank}_sharded_checkpoint.safetensors")
        save_file({name: tensor.contiguous() for name, tensor in held.items()}, path)
    return held


@only("checkpoint", "model", "serialize_path")
def shard_checkpoint(checkpoint, model, start_rank=None, end_rank=None, load_on_device=False, serialize_path=None):
    assert parallel_state.model_parallel_is_initialized(), "NxD parallel state has not been initialized"
    preprocess_checkpoint(model, checkpoint)
    size = parallel_state.get_tensor_model_parallel_size()
    return [shard(checkpoint, model, rank, size, serialize_path) for rank in range(size)]
