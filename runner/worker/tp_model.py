"""A rank's model: the class as it is, divided by torch's own tensor parallelism as a sharding plan has it.

Outside of the divided linears and embeddings every tensor is plain, and whole on every rank.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator

import layout
import torch
from reference import DTYPES
from safetensors import safe_open
from task import StageError
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoConfig, AutoModelForCausalLM

try:
    from transformers.initialization import no_init_weights
except ImportError:  # transformers 4
    from transformers.modeling_utils import no_init_weights

DIVISIBLE = (nn.Linear, nn.Embedding)
LOGITS = "lm_head"
# What an attention module may know of its heads, and its config.
QUERY_COUNTS, KV_COUNTS = ("num_heads", "num_attention_heads"), ("num_key_value_heads",)


def build(checkpoint: str, dtype: str, attention: str) -> nn.Module:
    """The model of a folder's config in `dtype`: parameters uninitialised, buffers as the class makes them."""
    return made(checkpoint, dtype=DTYPES[dtype], attn_implementation=attention).requires_grad_(False).eval()


def skeleton(checkpoint: str) -> nn.Module:
    """The model on the meta device: names and shapes."""
    with torch.device("meta"):
        return made(checkpoint)


def made(checkpoint: str, **options) -> nn.Module:
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint), **options)
    model.tie_weights()  # which transformers does where it initialises
    return model


def persistent_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Those that a checkpoint has."""
    saved = set(model.state_dict())
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def divided(plan: dict) -> Iterator[tuple[str, str, int]]:
    """Module, tensor within it, and axis of each tensor that the plan divides."""
    for name in plan["tensors"]:
        axis = layout.divided(name, plan)
        if axis is not None:
            path, _, leaf = name.rpartition(".")
            yield path, leaf, axis


def refuse(model: nn.Module, plan: dict) -> None:
    """Errors: `StageError` PlanNotRunnable, where the plan is not of this model, or torch's API cannot follow it."""
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    others = [name for name, entry in plan["tensors"].items() if shapes.get(name) != entry["shape"]]
    if others:
        raise not_runnable(others, "not in the model, or of another shape there")
    undividable = [
        f"{path}.{leaf}" for path, leaf, _ in divided(plan) if not isinstance(model.get_submodule(path), DIVISIBLE)
    ]
    if undividable:
        raise not_runnable(undividable, "of no linear and no embedding, which is all that torch divides")


def not_runnable(names: list[str], why: str, by: str = "torch's tensor parallelism") -> StageError:
    named = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return StageError(
        f"the plan cannot be run with {by}: {len(names)} of its tensors are {why}: {named}",
        kind="PlanNotRunnable",
        hint="action=sharding still shows the plan",
    )


def divide(model: nn.Module, plan: dict, mesh) -> None:
    """Divide the model in place. mesh: of one dimension, the ranks. What parameters hold is not kept."""
    tied = ties(model)
    styles: dict[str, ColwiseParallel | RowwiseParallel] = {}
    for path, leaf, axis in divided(plan):
        module = model.get_submodule(path)
        parameter = getattr(module, leaf)
        # With the zeros and the repeated heads of all ranks, so that torch's even division is the plan's.
        shape = list(parameter.shape)
        shape[axis] = plan["tp"] * layout.rank_shape(f"{path}.{leaf}", plan, 0)[axis]
        setattr(module, leaf, nn.Parameter(parameter.new_empty(shape), requires_grad=False))
        if leaf == "weight":
            styles[path] = style(path, module, axis)
    parallelize_module(model, mesh, styles, src_data_rank=None)
    for name, first in tied.items():
        path, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(path), leaf, model.get_parameter(first))
    for path in styles:
        if path.endswith(LOGITS):
            model.get_submodule(path).register_forward_hook(
                without_zeros(plan["tensors"][f"{path}.weight"]["shape"][0])
            )
    for layer in plan["layers"]:
        if layer["attention"] not in layout.UNDIVIDED:
            set_heads(attention_of(model, plan, layer["index"]), layer)
    model.forward = as_torch_divides(model.forward)


def without_zeros(size: int) -> Callable:
    """A hook that cuts off the logits of a vocabulary's filling. The copy ends torch's wait for other ranks' parts."""
    return lambda module, inputs, logits: logits[..., :size].clone()


def as_torch_divides(forward: Callable) -> Callable:
    """`forward` where DTensors are at ease.

    In inference mode torch 2.13 works out the division of each linear anew, each time. What is no DTensor counts as
    whole: Gemma 4 reads a row of its embedding outside of it, and puts it beside what is plain.
    """

    @functools.wraps(forward)
    def plain(*arguments, **named):
        with torch.inference_mode(False), torch.no_grad(), implicit_replication():
            return forward(*arguments, **named)

    return plain


def style(path: str, module: nn.Module, axis: int) -> ColwiseParallel | RowwiseParallel:
    """What torch calls the division of this module's weight along `axis`. Logits are whole on every rank."""
    if isinstance(module, nn.Embedding):
        return RowwiseParallel(input_layouts=Replicate())
    if axis == 1:
        return RowwiseParallel()
    return ColwiseParallel(output_layouts=Replicate()) if path.endswith(LOGITS) else ColwiseParallel()


def ties(model: nn.Module) -> dict[str, str]:
    """The names of parameters that are another one, with that one's first name."""
    firsts: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = firsts.setdefault(id(parameter), name)
        if first != name:
            tied[name] = first
    return tied


def attention_of(model: nn.Module, plan: dict, index: int) -> nn.Module:
    """The attention module of a layer."""
    place = f"layers.{index}.self_attn"
    name = next(name for name in plan["tensors"] if f".{place}." in f".{name}")
    return model.get_submodule(name[: name.index(place) + len(place)])


def set_heads(attention: nn.Module, layer: dict) -> None:
    """Tell an attention module how many heads this rank has; other layers, which share its config, have others."""
    attention.num_key_value_groups = layer["query_heads"] // layer["kv_heads"]
    attention.config = copy.copy(attention.config)
    for holder in (attention, attention.config):
        for names, count in ((QUERY_COUNTS, layer["query_heads"]), (KV_COUNTS, layer["kv_heads"])):
            for name in names:
                if hasattr(holder, name):
                    setattr(holder, name, count)


@torch.no_grad()
def load(model: nn.Module, path: str) -> list[str]:
    """Copy a rank's file into its model, cast to the model's dtype. Returns what it does not have of the model's.

    Parameters are zeros then; buffers keep their default. Errors: `StageError` for a tensor of
    another shape than the model's, or of a name that the model has not.
    """
    parameters = dict(model.named_parameters())
    targets = {**parameters, **dict(model.named_buffers())}
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name in sorted(names):
            if name not in targets:
                raise StageError(f"the shard has {name}, which the model has not", kind="ShardDiffers")
            held, tensor = local(targets[name]), file.get_tensor(name)
            if held.shape != tensor.shape:
                shapes = f"{list(tensor.shape)}, and in the model {list(held.shape)}"
                raise StageError(f"in the shard {name} is {shapes}", kind="ShardDiffers")
            held.copy_(tensor)
    for name in parameters.keys() - names:
        local(parameters[name]).zero_()
    return [name for name in (*parameters, *persistent_buffers(model)) if name not in names]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
