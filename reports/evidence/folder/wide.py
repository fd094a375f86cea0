"""A model that computes in float64 throughout.

dtype=float64 makes the parameters float64; transformers still computes norms,
softmaxes, inverse frequencies and rotary angles in fp32. Two modes of torch
turn every float32 that is asked for into float64, while the model is made and
while it runs.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

NARROW = (torch.float32, torch.float16, torch.bfloat16)
# These read bytes as a dtype, which is no precision, or are torch's own setting.
AS_ASKED = (
    torch.Tensor.view, torch.frombuffer, torch.ops.aten.view.dtype, torch.set_default_dtype, torch.get_default_dtype,
)  # fmt: skip


def widened(value):
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


class Asked(TorchFunctionMode):
    """What Python code names."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function not in AS_ASKED:
            args, kwargs = tree_map(widened, (tuple(args), kwargs or {}))
        return function(*args, **(kwargs or {}))


class Wide(TorchDispatchMode):
    """What operators are called with."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        args, kwargs = tuple(args), kwargs or {}
        if function not in AS_ASKED:
            args, kwargs = tree_map(widened, (args, kwargs))
        with self:  # in inference mode operators arrive whole that have others inside
            made = function.decompose(*args, **kwargs)
        return function(*args, **kwargs) if made is NotImplemented else made


@contextmanager
def throughout():
    """Whatever is made or computed here is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Asked(), Wide():
            yield
    finally:
        torch.set_default_dtype(before)


def load(make):
    """The model that `make()` gives, made in float64 and computing in it. What `make` asks for must be float64."""
    with throughout():
        model = make().double()
    inner = model.forward

    def forward(*args, **kwargs):
        with throughout():
            return inner(*args, **kwargs)

    model.forward = forward
    return model
