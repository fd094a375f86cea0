"""The rotary embeddings that a transformers model computes: its rotary modules, called at chosen positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

HALVES, NEIGHBOURS = "the two halves of a head", "neighbouring dimensions"
# What calling a part of a model in another way than its authors do may end in.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, KeyError)


class Refused(Exception):
    """A rotary module was not to be called by itself; the message is its own."""


@dataclass(frozen=True)
class Call:
    """A call of a rotary module: what it was given beside hidden states and positions (a kind of layer), and gave."""

    module: torch.nn.Module
    args: tuple
    kwargs: dict
    output: tuple

    @property
    def kind(self) -> str:
        """The kind of layer that was asked for; "" where the module knows of none."""
        rest = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, str)]
        return rest[0] if rest else ""

    @property
    def key(self) -> tuple[int, str]:
        """The same for calls that compute the same."""
        return id(self.module), self.kind

    @property
    def scaling(self) -> str:
        """What transformers calls its kind of scaling: "linear", "llama3", "yarn"; "" for none."""
        named = getattr(self.module, "rope_type", "")
        named = named.get(self.kind, "") if isinstance(named, dict) else named
        return "" if named == "default" else named

    @property
    def parameters(self) -> dict:
        """What the model's config says of this kind of layer's rotation, in the form of transformers 4 or 5."""
        config = getattr(self.module, "config", None)
        said = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        return said.get(self.kind) or said

    @property
    def said(self) -> dict:
        """The same with what is said elsewhere in the config: "rope_theta", and the lengths."""
        config = getattr(self.module, "config", None)
        outside = ("rope_theta", "original_max_position_embeddings", "max_position_embeddings")
        elsewhere = {name: value for name in outside if (value := getattr(config, name, None)) is not None}
        return elsewhere | {name: value for name, value in self.parameters.items() if value is not None}

    @property
    def beyond(self) -> int | None:
        """The length of a sequence above which longrope changes its frequencies."""
        if self.scaling != "longrope":
            return None
        name = "original_max_position_embeddings"
        return self.parameters.get(name) or getattr(self.module.config, name)


@torch.inference_mode()
def rows(call: Call, start: int, stop: int, beyond: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of positions `start` to `stop` - 1, each fp32 [stop - start, pairs].

    beyond: as if in a sequence longer than that. Errors: `Refused`.
    """
    positions = torch.arange(start, stop)
    if beyond is not None:
        positions = torch.cat([positions, torch.tensor([max(stop, beyond)])])

    def replaced(value):
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point():
            return torch.zeros(1, 1, 1)
        return positions.expand(*value.shape[:-2], 1, len(positions))

    args = [replaced(value) for value in call.args]
    kwargs = {name: replaced(value) for name, value in call.kwargs.items()}
    try:
        outputs = call.module(*args, **kwargs)[:2]
    except REFUSALS as error:
        raise Refused(first_line(error)) from error
    cos, sin = (values.float().reshape(-1, len(positions), values.shape[-1])[0] for values in outputs)
    picked = pairs(call)
    return tuple(values[: stop - start, picked].numpy() for values in (cos, sin))


def grows_beyond(call: Call) -> int | None:
    """The length of a sequence above which dynamic scaling changes its frequencies with each length; None where the
    module does no such thing, or was not given a factor to grow by. Measured on a copy: the module keeps its state."""
    length = getattr(call.module, "original_max_seq_len", None)
    if call.scaling != "dynamic" or not length or not (call.parameters.get("factor") or 1) > 1:
        return None
    probe = replace(call, module=copy.deepcopy(call.module))
    before, after = rows(probe, 1, 2), rows(probe, 1, 2, 4 * length)
    return None if all(np.array_equal(*pair) for pair in zip(before, after, strict=True)) else length


def pairs(call: Call) -> slice:
    """Which columns of the module's output are one a pair: it may hold each twice, in halves or as neighbours."""
    sin = call.output[1].float().reshape(-1, *call.output[1].shape[-2:])[0]
    width = sin.shape[-1]
    if width % 2 == 0 and torch.equal(sin[:, : width // 2], sin[:, width // 2 :]):
        return slice(0, width // 2)
    if width % 2 == 0 and torch.equal(sin[:, 0::2], sin[:, 1::2]):
        return slice(0, width, 2)
    return slice(0, width)


@torch.inference_mode()
def layout(apply: Callable, args: tuple, kwargs: dict) -> str | None:
    """Which dimensions of a head a model rotates with each other, from a recorded call of what applies its rotation:
    the first dimension of the query is turned, and seen where it comes out. None where that does not tell."""

    def first_dimension(value):
        if not isinstance(value, torch.Tensor) or value.ndim != 4:
            return value
        unit = torch.zeros(value.shape, dtype=torch.float32)
        unit[..., 0] = 1
        return unit

    turned = apply(*map(first_dimension, args), **{name: first_dimension(value) for name, value in kwargs.items()})
    query = turned[0] if isinstance(turned, tuple) else turned
    seen = query.abs().reshape(-1, query.shape[-1]).amax(0)
    seen[0] = 0
    if seen.count_nonzero() != 1:
        return None
    partner = int(seen.argmax())
    return NEIGHBOURS if partner == 1 else HALVES


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
