"""How many ranks there are, which one this is, and collectives among them, of which tracing sees the shapes only."""

from __future__ import annotations

from contextlib import contextmanager

import torch
import torch.distributed as distributed

from ..only import only

_size: int | None = None
_rank = 0
_live = False
_aot = False


@only("tensor_model_parallel_size", "skip_collective_init", "lnc_size")
def initialize_model_parallel(
    tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1,
    context_parallel_size=1,
    expert_model_parallel_size=1,
    skip_collective_init=False,
    lnc_size=1,
    mesh_only=False,
):
    set_ranks(tensor_model_parallel_size, distributed.get_rank(), live=True)


def destroy_model_parallel():
    set_ranks(None)


def model_parallel_is_initialized():
    return _size is not None


def get_tensor_model_parallel_size():
    assert _size is not None, "intra_layer_model parallel group is not initialized"
    return _size


def get_tensor_model_parallel_rank():
    assert _size is not None, "intra_layer_model parallel group is not initialized"
    return _rank


def set_aot_mode(mode):
    global _aot
    _aot = mode


def get_aot_mode():
    return _aot


def set_ranks(size: int | None, rank: int = 0, live: bool = False) -> None:
    """The stand-in's own. live: there are processes; otherwise collectives give what they would have the shape of."""
    global _size, _rank, _live
    _size, _rank, _live = size, rank, live


@contextmanager
def tracing(size: int):
    """As rank 0 of `size`."""
    assert _size is None, "parallel state is initialized already"
    set_ranks(size)
    set_aot_mode(True)
    try:
        yield
    finally:
        set_aot_mode(False)
        set_ranks(None)


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks."""
    if _live and _size > 1:
        tensor = tensor.contiguous()
        distributed.all_reduce(tensor)
    return tensor


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The ranks' parts, one after the other along the last dimension."""
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(_size)]
    if _live and _size > 1:
        distributed.all_gather(parts, tensor.contiguous())
    else:
        parts = [tensor] * _size
    return torch.cat(parts, -1)
