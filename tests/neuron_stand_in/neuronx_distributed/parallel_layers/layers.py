"""The layers, with the signatures of the package. Weights are no numbers until they are loaded."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import init

from ..only import only
from .parallel_state import (
    gathered,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_size,
    model_parallel_is_initialized,
    reduced,
)


def divide(whole: int, parts: int) -> int:
    assert whole % parts == 0, f"{whole} is not divisible by {parts}"
    return whole // parts


def divided(layer: nn.Module, name: str, dimension: int, parts: int) -> None:
    """Mark a parameter for the sharder."""
    parameter = getattr(layer, name)
    parameter.tensor_model_parallel, parameter.partition_dim = True, dimension
    parameter.partition_stride, parameter.num_partitions, parameter.rank_ordering = 1, parts, None


def empty(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, math.nan, dtype=dtype))


class BaseParallelLayer(nn.Module):
    def __init__(self):
        super().__init__()
        if not model_parallel_is_initialized():
            raise RuntimeError("Parallel state is not initialized: the package's layers would be those of one rank")


class ParallelEmbedding(BaseParallelLayer):
    @only("num_embeddings", "embedding_dim", "dtype", "use_spmd_rank")
    def __init__(
        self,
        num_embeddings,
        embedding_dim,
        padding_idx=None,
        max_norm=None,
        norm_type=2.0,
        scale_grad_by_freq=False,
        sparse=False,
        init_method=init.normal_,
        device=None,
        dtype=torch.float32,
        shard_across_embedding=False,
        pad=False,
        sequence_parallel_enabled=False,
        tensor_model_parallel_group=None,
        use_spmd_rank=False,
        sequence_dimension=None,
        tile_cc=False,
        rank_ordering=None,
        collect_output=True,
    ):
        super().__init__()
        size = get_tensor_model_parallel_size()
        self.dtype, self.rows = dtype, divide(num_embeddings, size)
        self.start_index = self.rows * get_tensor_model_parallel_rank()  # a constant of the graph
        self.rank_util = SPMDRank(size) if use_spmd_rank else None
        self.weight = empty(self.rows, embedding_dim, dtype=dtype)
        divided(self, "weight", 0, size)

    def forward(self, input_):
        start = self.start_index if self.rank_util is None else self.rows * self.rank_util.get_rank()
        own = (input_ >= start) & (input_ < start + self.rows)
        found = F.embedding(((input_ - start) * own).long(), self.weight)
        found = (found * own[..., None]).to(torch.float32 if self.dtype == torch.float32 else torch.bfloat16)
        return reduced(found)


class ColumnParallelLinear(BaseParallelLayer):
    @only("input_size", "output_size", "bias", "gather_output", "dtype")
    def __init__(
        self,
        input_size,
        output_size,
        bias=True,
        gather_output=True,
        dtype=torch.float32,
        device=None,
        stride=1,
        init_method=None,
        sequence_parallel_enabled=False,
        sequence_dimension=None,
        keep_master_weight=False,
        skip_bias_add=False,
        pad=False,
        pad_alignment_size_per_rank=1,
        keep_padded_output=False,
        tensor_model_parallel_group=None,
        reduce_dtype=torch.float32,
        rank_ordering=None,
    ):
        super().__init__()
        size = get_tensor_model_parallel_size()
        self.gather_output = gather_output
        self.weight = empty(divide(output_size, size), input_size, dtype=dtype)
        divided(self, "weight", 0, size)
        self.register_parameter("bias", None)
        if bias:
            self.bias = empty(output_size if gather_output else divide(output_size, size), dtype=dtype)
        if bias and not gather_output:
            divided(self, "bias", 0, size)

    @only("input")
    def forward(self, input, slice_indices=None):
        output = F.linear(input, self.weight)
        output = gathered(output) if self.gather_output else output
        return output if self.bias is None else output + self.bias


class RowParallelLinear(BaseParallelLayer):
    @only("input_size", "output_size", "bias", "input_is_parallel", "dtype")
    def __init__(
        self,
        input_size,
        output_size,
        bias=True,
        input_is_parallel=False,
        dtype=torch.float32,
        device=None,
        stride=1,
        init_method=None,
        sequence_parallel_enabled=False,
        sequence_dimension=None,
        keep_master_weight=False,
        skip_bias_add=False,
        pad=False,
        reduce_output=True,
        tensor_model_parallel_group=None,
        reduce_dtype=torch.float32,
        tile_cc=False,
        rank_ordering=None,
    ):
        super().__init__()
        if not input_is_parallel:
            raise NotImplementedError("the stand-in knows no input_is_parallel=False")
        size = get_tensor_model_parallel_size()
        self.weight = empty(output_size, divide(input_size, size), dtype=dtype)
        divided(self, "weight", 1, size)
        self.register_parameter("bias", empty(output_size, dtype=dtype) if bias else None)

    @only("input_")
    def forward(self, input_, slice_indices=None):
        output = F.linear(input_, self.weight)
        output = reduced(output.float()).to(output.dtype)
        return output if self.bias is None else output + self.bias


class SPMDRank(nn.Module):
    """A rank that is loaded, and so another one in each process."""

    @only("world_size")
    def __init__(self, world_size, tensor_model_parallel_size=None):
        super().__init__()
        self.rank = nn.Parameter(torch.zeros(1, dtype=torch.int32), requires_grad=False)
        divided(self, "rank", 0, world_size)

    def get_rank(self):
        return self.rank


SHARDED = (ColumnParallelLinear, RowParallelLinear, ParallelEmbedding, SPMDRank)
