"""A causal language model for Neuron: transformers' layers, and neuronx-distributed's where the plan divides a weight.

Written to neuronx-distributed 0.18.0; no device has run it. One rank is traced for all, so that what Python makes of
the rank is rank 0's everywhere: nothing here does, and a vocabulary's rows are told by a rank that is loaded.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import Any

import boundaries
import layout
import loading
import neuron_shim  # noqa: F401
import torch
import tp_model
from checkpoint import write_json
from neuronx_distributed.parallel_layers.layers import ColumnParallelLinear, ParallelEmbedding, RowParallelLinear
from neuronx_distributed.parallel_layers.parallel_state import get_tensor_model_parallel_rank
from reference import DTYPES
from task import StageError
from torch import nn
from transformers.cache_utils import Cache

BY = "neuronx-distributed's layers"  # what a plan is run with

# Where the model is in `Step`, and so what stands before the checkpoint's names.
PREFIX = "decoder."
RANK = "rank_util.rank"
# How keys and values are kept between passes: ModelBuilder of .trace is told which outputs they are, the newer one
# finds the buffers that a pass sets, parallel_model_trace shares nothing among graphs.
OUTPUTS, BUFFERS, NONE = "outputs", "buffers", "none"
# Rotary embeddings whose frequencies depend on how long the text is, which a graph cannot ask.
BY_LENGTH = ("dynamic", "longrope", "su")


@dataclass(frozen=True)
class Recipe:
    """What a rank's module is made from. state: OUTPUTS, BUFFERS or NONE."""

    checkpoint: str
    plan: dict
    dtype: str
    attention: str
    copy_buffers: bool
    batch: int
    max_len: int
    state: str


class Slots(Cache):
    """Keys and values for transformers' layers: written at the tokens' positions in tensors of fixed length.

    A prompt starts at position 0 and sees itself only, so that its own keys and values are all that it needs.
    """

    def __init__(self, states: dict[int, tuple[torch.Tensor, torch.Tensor]], positions: torch.Tensor):
        super().__init__(layers=[])
        self.states, self.positions = dict(states), positions

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        new = key_states, value_states
        if not self.states:
            return new
        index = self.positions.to(torch.int64)[:, None, :, None]
        self.states[layer_idx] = tuple(
            torch.scatter(held, 2, index.expand_as(tensor), tensor)
            for held, tensor in zip(self.states[layer_idx], new, strict=True)
        )
        return new if self.positions.shape[1] > 1 else self.states[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class Step(nn.Module):
    """A pass: tokens and their positions [batch, n] in, logits of all of them out. n is 1 for a token after a prompt.

    The two are told apart by n, as ModelBuilder's router does. What pads a prompt stands on its right and is seen by
    none of its tokens; keys and values of it are overwritten before a position is reached.
    """

    def __init__(self, decoder: nn.Module, recipe: Recipe):
        super().__init__()
        self.decoder = decoder
        self.max_len, self.kept = recipe.max_len, recipe.state
        text = decoder.config.get_text_config()
        self.vocabulary, self.window = text.vocab_size, boundaries.window(text)
        self.by_kind = takes_masks_by_kind(decoder)
        self.layers = [] if self.kept == NONE else own_cache(recipe.plan)
        for layer in self.layers:
            shape = recipe.batch, layer["kv_heads"], recipe.max_len, layer["head_dim"]
            for name in names(layer["index"]):
                state = torch.zeros(shape, dtype=DTYPES[recipe.dtype])
                if self.kept == OUTPUTS:
                    self.register_parameter(name, nn.Parameter(state, requires_grad=False))
                else:
                    self.register_buffer(name, state)

    def states(self) -> list[torch.Tensor]:
        """Keys and values, layer by layer."""
        return [getattr(self, name) for layer in self.layers for name in names(layer["index"])]

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> Any:
        held = {layer["index"]: tuple(getattr(self, name) for name in names(layer["index"])) for layer in self.layers}
        cache = Slots(held, position_ids)
        output = self.decoder(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=self.masks(position_ids),
            past_key_values=cache,
            use_cache=True,
        )
        logits = output.logits[..., : self.vocabulary]
        written = [tensor for layer in self.layers for tensor in cache.states[layer["index"]]]
        if self.kept == OUTPUTS:
            return (logits, *written)
        for name, tensor in zip((n for layer in self.layers for n in names(layer["index"])), written, strict=True):
            setattr(self, name, tensor)
        return logits

    def masks(self, positions: torch.Tensor) -> Any:
        """What is added to the scores [batch, 1, n, keys], as this class of transformers takes it."""
        if positions.shape[1] > 1:
            keys = positions
        else:
            keys = torch.arange(self.max_len, dtype=positions.dtype, device=positions.device)[None]
        behind = positions[:, None, :, None] - keys[:, None, None, :]
        full = self.mask(behind >= 0)
        sliding = full if self.window is None else self.mask((behind >= 0) & (behind < self.window))
        return {"full_attention": full, "sliding_attention": sliding} if self.by_kind else sliding

    def mask(self, seen: torch.Tensor) -> torch.Tensor:
        dtype = self.decoder.dtype
        zero = torch.zeros((), dtype=dtype, device=seen.device)
        return torch.where(seen, zero, torch.finfo(dtype).min)  # minus infinity fails on Neuron


def names(index: int) -> tuple[str, str]:
    """Of a layer's state."""
    return f"keys_{index}", f"values_{index}"


def own_cache(plan: dict) -> list[dict]:
    """The plan's layers that have keys of their own."""
    owners = {
        int(found.group(1))
        for name in plan["tensors"]
        if (found := layout.LAYER.search(name)) and found.group(2) in ("k_proj", "qkv_proj")
    }
    return [layer for layer in plan["layers"] if layer["index"] in owners]


def takes_masks_by_kind(decoder: nn.Module) -> bool:
    """Whether the class takes a mask for each kind of layer, or one for all: told by its code, no config says it."""
    forward = inspect.unwrap(type(decoder.base_model).forward)
    return "causal_mask_mapping" in forward.__code__.co_varnames


def build(recipe: Recipe) -> Step:
    """This rank's module, within the parallel state that neuronx-distributed has. Parameters are to be loaded.

    Buffers are the class's own, or the checkpoint's where copy_buffers: the loader brings parameters only.
    """
    decoder = tp_model.build(recipe.checkpoint, recipe.dtype, recipe.attention)
    defaults = {name: buffer.clone() for name, buffer in tp_model.persistent_buffers(decoder).items()}
    if recipe.copy_buffers:
        stored = loading.Stored(recipe.checkpoint)
        for name, buffer in tp_model.persistent_buffers(decoder).items():
            if name in stored.names:
                buffer.copy_(stored.get(name))
    divide(decoder, recipe.plan, DTYPES[recipe.dtype])
    step = Step(decoder, recipe).requires_grad_(False).eval()
    step.defaults = defaults
    return step


def divide(decoder: nn.Module, plan: dict, dtype: torch.dtype) -> None:
    """Put neuronx-distributed's layers where the plan divides a weight, and tell attention how many heads are here."""
    for path, leaf, axis in tp_model.divided(plan):
        if leaf != "weight":
            continue
        module = decoder.get_submodule(path)
        size = plan["tp"] * layout.rank_shape(f"{path}.weight", plan, 0)[axis]
        put(decoder, path, parallel(module, axis, size, path.endswith(tp_model.LOGITS), dtype))
    for layer in plan["layers"]:
        if layer["attention"] not in layout.UNDIVIDED:
            tp_model.set_heads(tp_model.attention_of(decoder, plan, layer["index"]), layer)


def put(model: nn.Module, name: str, part: nn.Module | nn.Parameter) -> None:
    """Set what the model has under a name with dots."""
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, part)


def parallel(module: nn.Module, axis: int, size: int, whole_output: bool, dtype: torch.dtype) -> nn.Module:
    """The layer that does what `module` does. size: of the divided axis over all ranks, filling included."""
    if isinstance(module, nn.Embedding):
        embedding = ParallelEmbedding(size, module.embedding_dim, dtype=dtype, use_spmd_rank=True)
        if hasattr(module, "embed_scale"):  # Gemma's class multiplies by it
            embedding.register_buffer("embed_scale", module.embed_scale, persistent=False)
            embedding.register_forward_hook(scaled)
        return embedding
    bias = module.bias is not None
    if axis == 0:
        return ColumnParallelLinear(module.in_features, size, bias=bias, gather_output=whole_output, dtype=dtype)
    return RowParallelLinear(size, module.out_features, bias=bias, input_is_parallel=True, dtype=dtype)


def scaled(module: nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
    return output * module.embed_scale.to(output.dtype)


def refuse(model: nn.Module, recipe: Recipe) -> None:
    """Ask what can be asked before hours of compilation. model: on the meta device.

    Errors: `StageError` where plan, model and checkpoint are not of one another, or no graph can be made.
    """
    plan, stored = recipe.plan, loading.Stored(recipe.checkpoint)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    others = [name for name, entry in plan["tensors"].items() if shapes.get(name) != entry["shape"]]
    if others:
        raise tp_model.not_runnable(others, "not in the model, or of another shape there", BY)
    undividable = [
        f"{path}.{leaf}" for path, leaf, _ in tp_model.divided(plan) if not has_counterpart(model.get_submodule(path))
    ]
    if undividable:
        raise tp_model.not_runnable(undividable, "of no plain linear or embedding", BY)
    wanted = set(sources(model, plan).values())
    if missing := sorted(wanted - set(stored.names)):
        raise StageError(
            f"the checkpoint has no tensor of the name of {len(missing)} parameters: {', '.join(missing[:5])}",
            kind="MissingTensors",
            hint="a checkpoint whose names transformers converts is not divided: save it with transformers first",
        )
    if unlike := sorted(name for name in wanted if stored.shape(name) != shapes[name]):
        raise tp_model.not_runnable(unlike, "of another shape in the checkpoint", BY)
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = {part.get("rope_type") for part in (rope, *rope.values()) if isinstance(part, dict)} & set(BY_LENGTH)
    if kinds:
        raise StageError(
            f"the rotary embedding is {', '.join(sorted(kinds))}: its frequencies depend on the text's length, and a"
            " graph has one set of them",
            kind="NotTraceable",
        )


def has_counterpart(module: nn.Module) -> bool:
    gemma = isinstance(module, nn.Embedding) and hasattr(module, "embed_scale")
    return gemma or type(module) in (nn.Linear, nn.Embedding)


def whole(recipe: Recipe) -> dict[str, torch.Tensor]:
    """The checkpoint for neuronx-distributed's sharder: what it divides evenly is then the plan's.

    Under the module's names and in its dtypes; a tied matrix twice where it is divided, since the sharder knows no
    ties; persistent buffers too, as the sharder passes them on, whatever comes of them.
    """
    plan, stored = recipe.plan, loading.Stored(recipe.checkpoint)
    with torch.device("meta"):
        model = tp_model.made(recipe.checkpoint, dtype=DTYPES[recipe.dtype])
    wanted = sources(model, plan)
    wanted |= {name: name for name in tp_model.persistent_buffers(model) if name in stored.names}
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    held = {}
    for name, source in wanted.items():
        tensor = together(name, stored.get(source), plan).to(dtypes[name])
        held[PREFIX + name] = tensor.clone() if source != name else tensor
    for path, _, _ in tp_model.divided(plan):
        if isinstance(model.get_submodule(path), nn.Embedding):
            held[f"{PREFIX}{path}.{RANK}"] = torch.arange(plan["tp"], dtype=torch.int32)
    return held


def sources(model: nn.Module, plan: dict) -> dict[str, str]:
    """The parameters that a module made by `divide` has, and the checkpoint's name of each."""
    own = {name: name for name, _ in model.named_parameters()}
    return own | {name: first for name, first in tp_model.ties(model).items() if layout.divided(name, plan) is not None}


def together(name: str, tensor: torch.Tensor, plan: dict) -> torch.Tensor:
    """What the ranks hold, one after the other."""
    axis = layout.divided(name, plan)
    if axis is None:
        return tensor
    spans = layout.joined([span for rank in range(plan["tp"]) for span in layout.spans(name, plan, rank)])
    return tensor if spans == [(0, tensor.shape[axis])] else layout.taken(tensor, axis, spans)


def audit(step: Step, recipe: Recipe, rank: int, shard: dict[str, torch.Tensor] | None = None) -> list[dict]:
    """Rows of what this rank has. shard: what the loader made for it, where `step` has not got it already."""
    missing = []
    if shard is not None:
        tied = tp_model.ties(step.decoder)
        for name, parameter in list(step.decoder.named_parameters()):
            found = shard.get(PREFIX + name)
            if found is None:
                missing.append(name)
                found = torch.zeros_like(parameter, device="cpu")
            put(step.decoder, name, nn.Parameter(found, requires_grad=False))
        for name, first in tied.items():
            put(step.decoder, name, step.decoder.get_parameter(first))
    rows = loading.audit(
        step.decoder, loading.Stored(recipe.checkpoint), "neuron", missing=missing,
        place=lambda name, tensor: layout.placed(name, tensor, recipe.plan, rank),
        copied=list(step.defaults) if recipe.copy_buffers else (), defaults=step.defaults,
    )  # fmt: skip
    return [row for row in rows if not row["name"].endswith(RANK)]  # which is nothing of the checkpoint's


def loaded(recipe: Recipe, folder: str) -> tuple[Step, dict]:
    """For parallel_model_trace, in each rank's process: the module with its weights, and no aliases.

    The rows of its audit are left in `folder`.
    """
    rank, plan, stored = get_tensor_model_parallel_rank(), recipe.plan, loading.Stored(recipe.checkpoint)
    step = build(recipe)
    with torch.no_grad():
        for name, source in sources(tp_model.skeleton(recipe.checkpoint), plan).items():
            step.decoder.get_parameter(name).copy_(layout.placed(name, stored.get(source), plan, rank)[0])
        for module in step.decoder.modules():
            if getattr(module, "rank_util", None) is not None:
                module.rank_util.rank.fill_(rank)
    write_json(os.path.join(folder, f"loading-{rank}.json"), audit(step, recipe, rank))
    return step, {}
