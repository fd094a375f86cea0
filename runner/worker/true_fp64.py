"""A model that computes in float64 throughout.

``dtype=float64`` gives float64 parameters and no more: transformers computes
norms, softmaxes and rotary angles in fp32 whatever the parameters are, and
inverse frequencies once, in fp32, when it makes the model. Here two modes of
torch turn what asks for a narrower float into float64, while the model is made
and while it runs; nothing of transformers is changed. What no mode reaches, an
operator that always gives fp32, say, is counted by name, so that each run says
whether it was a true one.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

WIDE = {
    torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip
# These read bytes as a dtype, which is no precision (files are loaded so), or are torch's own setting.
AS_ASKED = (
    torch.Tensor.view, torch.frombuffer, torch.ops.aten.view.dtype, torch.set_default_dtype, torch.get_default_dtype,
)  # fmt: skip
# What a model's `left` is kept under.
LEFT = "_left_in_fewer_bits"
SHOWN = 4


def wide_dtype(value):
    """float64 for a dtype that is a narrower float, complex128 likewise; anything else as it is."""
    return WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def narrow(value) -> bool:
    """Whether a value is a tensor of fewer bits than float64; quantised and fp8 ones too."""
    if not isinstance(value, torch.Tensor):
        return False
    return (value.is_floating_point() and value.dtype != torch.float64) or value.dtype in (
        torch.complex64,
        torch.complex32,
    )


class Asked(TorchFunctionMode):
    """Turns the narrow dtypes that Python code names into float64, before a constant is rounded to one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function not in AS_ASKED:
            args, kwargs = tree_map(wide_dtype, (tuple(args), kwargs or {}))
        return function(*args, **(kwargs or {}))


class Wide(TorchDispatchMode):
    """Turns the narrow dtypes that operators are called with into float64 (`.float()`, `softmax(dtype=)`, autocast).

    left: where it is given, the operators are counted in it, by name, that gave
    a narrow tensor all the same, or were given one by the model (which is
    widened, and yet has been rounded).
    """

    def __init__(self, left: Counter | None = None):
        super().__init__()
        self.left = left

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function not in AS_ASKED:
            args, kwargs = tree_map(wide_dtype, (tuple(args), kwargs))
        # In inference mode operators arrive whole that have others inside.
        with self:
            made = function.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        function = OWN.get(function, function)
        if self.left is None:
            return function(*args, **kwargs)
        args, kwargs = tree_map(self.given, (args, kwargs)) if not mutates(function) else (args, kwargs)
        made = function(*args, **kwargs)
        found = []
        tree_map(lambda value: found.append(narrow(value)), made)
        if any(found):
            self.left[str(function)] += 1
            if not mutates(function):
                return tree_map(widened, made)
        return made

    def given(self, value):
        """An input, widened; a tensor that the model keeps in fewer bits is counted."""
        if narrow(value):
            self.left["a tensor of the model"] += 1
        return widened(value)


def mutates(function) -> bool:
    return hasattr(function, "_schema") and function._schema.is_mutable


def grouped_mm(one: torch.Tensor, two: torch.Tensor, offs: torch.Tensor, bias=None, out_dtype=None) -> torch.Tensor:
    """`torch._grouped_mm` of experts, which torch has for fp32 and less only: rows [tokens, in] of `one`, in groups
    that end at `offs` [experts], by `two` [experts, in, out]. What is after the last group is 0."""
    made = one.new_zeros(one.shape[0], two.shape[-1])
    start = 0
    for expert, end in enumerate(offs.tolist()):
        made[start:end] = one[start:end] @ two[expert]
        start = end
    return made if bias is None else made + bias


# Operators that refuse float64, and what computes the same.
OWN = {torch.ops.aten._grouped_mm.default: grouped_mm} if hasattr(torch.ops.aten, "_grouped_mm") else {}


def widened(value):
    return value.to(wide_dtype(value.dtype) if value.dtype in WIDE else torch.float64) if narrow(value) else value


@contextmanager
def made_wide():
    """While a model is made: buffers that are computed then, and constants that become tensors, are float64."""
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.enter_context(Asked())
        stack.enter_context(Wide())
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def run_wide(model: torch.nn.Module) -> torch.nn.Module:
    """Make a model's forward pass compute in float64, and count what does not, see `left`. Returns the model.

    What was made narrow in spite of `made_wide` is widened. Outside of the
    forward pass, what is done with its outputs is as always.
    """
    model.double()
    counted: Counter[str] = Counter()
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args, **kwargs):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with Asked(), Wide(counted):
                return inner(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    model.forward = forward
    setattr(model, LEFT, counted)
    return model


def left(model: torch.nn.Module) -> dict[str, int] | None:
    """How often an operator gave fewer bits than float64 in the passes so far, by its name; None where the model was
    not made to run in float64."""
    counted = getattr(model, LEFT, None)
    return None if counted is None else dict(counted)


def label(counted: dict[str, int] | None) -> str:
    """What a model computes in: "float64", or "float64, 3 operations left in fewer bits (aten.x.default)"."""
    if not counted:
        return "float64"
    names = ", ".join(sorted(counted, key=counted.get, reverse=True)[:SHOWN])
    many = sum(counted.values())
    return f"float64, {many} operation{'s' * (many != 1)} left in fewer bits ({names})"


def finding(counted: dict[str, int] | None, what: str) -> list[dict]:
    """A warning where a run in float64 was no true one; `what` it means."""
    if not counted:
        return []
    return [{"prompt": None, "check": "float64", "evidence": f"{label(counted)}: {what}"}]


def with_finding(told: dict, model: torch.nn.Module, what: str) -> dict:
    """What a stage tells, with the warning that its model in float64 was no true one."""
    return told | {"findings": [*told.get("findings", ()), *finding(left(model), what)]}


def loaded(load: Callable, dtype: torch.dtype):
    """What `load()` gives, a model and what is told of its loading, made and run in float64 where `dtype` is that."""
    if dtype != torch.float64:
        return load()
    with made_wide():
        model, told = load()
    return run_wide(model), told
