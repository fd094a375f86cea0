"""The expected noise of an export's precision: the reference with its own weights rounded as the export's are.

In transformers, and by nothing of the builder's code: what the builder does by
default is done again here, so that a fault of it is not excused by itself.
fp16 and bf16 are the model in that dtype, computed in it. int4 and int8 are
what `MatMulNBits` holds: the weight of every linear layer, the last one
included, to so many bits in blocks; all else stays as the reference has it.
"""

from __future__ import annotations

import torch

FLOATS = {"fp16": "float16", "bf16": "bfloat16"}
BITS = {"int4": 4, "int8": 8}
# The builder's default: so many weights of a row share a scale, and so do as many activations.
BLOCK = 32
ACTIVATION_BITS = 8
# Values rounded at a time: the weights of a large vocabulary fill the memory once, and not once a step of it.
AT_ONCE = 1 << 24


def dtype_of(precision: str, computed: str, other: str) -> str:
    """The dtype to load the model in, where the reference computes in `computed`.

    A reference that computes in the precision's own dtype is seen from its `other` one.
    """
    dtype = FLOATS.get(precision, computed)
    return other if precision in FLOATS and dtype == computed else dtype


def label(precision: str, dtype: str) -> str:
    """What the reference is compared with, in a few words; `dtype` is what it is loaded in."""
    return dtype if precision in FLOATS else f"{precision} in blocks of {BLOCK}"


def rounded(values: torch.Tensor, bits: int, block: int = BLOCK) -> torch.Tensor:
    """Float values [..., n] to the nearest of 2**bits steps, in blocks of `block` along the last axis; same dtype.

    Symmetric, as MLAS does it: the value of a block that is farthest from 0
    becomes the lowest step, so that -8 to 7 are the steps of four bits. Halves
    go to the higher step.
    """
    half = 2 ** (bits - 1)
    blocks = in_blocks(values, block)
    least, most = blocks.aminmax(dim=-1, keepdim=True)
    farthest = torch.where(most > -least, most, least)
    scale = torch.where(farthest == 0, torch.ones_like(farthest), farthest / -half)
    steps = torch.clamp(torch.floor(blocks / scale + 0.5), -half, half - 1)
    return (steps * scale).flatten(-2)[..., : values.shape[-1]].to(values.dtype)


def rounded_activations(values: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """Float values [..., n] to the nearest of 127 steps either way, in blocks along the last axis; same dtype.

    What the CPU's `MatMulNBits` does with its input at accuracy level 4, the
    builder's default there: beside four bits it is little, beside eight half of all.
    """
    half = 2 ** (ACTIVATION_BITS - 1) - 1
    blocks = in_blocks(values, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    scale = torch.where(largest == 0, torch.ones_like(largest), largest / half)
    return (torch.round(blocks / scale) * scale).flatten(-2)[..., : values.shape[-1]].to(values.dtype)


def in_blocks(values: torch.Tensor, block: int) -> torch.Tensor:
    """Values [..., n] as fp32 or fp64 [..., blocks, block], the last block filled up with zeros."""
    wide = values if values.dtype == torch.float64 else values.float()
    missing = -values.shape[-1] % block
    return torch.nn.functional.pad(wide, (0, missing)).unflatten(-1, (-1, block))


@torch.no_grad()
def quantise(model: torch.nn.Module, precision: str) -> None:
    """Round a model of transformers in place, as an export in int4 or int8 is; one in fp16 or bf16 is loaded so.

    An embedding that is tied to the last layer shares its four bits, as from
    builder 0.15 on; of eight there is none, and it stays as it is. Errors:
    ValueError where a model keeps weights in another kind of layer, whose
    rounding is not known here.
    """
    if precision in FLOATS:
        return
    bits = BITS[precision]
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    known = (torch.nn.Linear, torch.nn.Embedding, torch.nn.Conv1d)
    for name, module in model.named_modules():
        large = [p for p in module.parameters(recurse=False) if p.ndim > 1]
        if large and not isinstance(module, known):
            raise ValueError(f"how {precision} rounds {name} ({type(module).__name__}) is not known")
    embedding = model.get_input_embeddings().weight
    for module in linear:
        if module.weight is embedding and precision == "int8":
            module.weight = torch.nn.Parameter(module.weight.clone())
        for rows in module.weight.split(max(1, AT_ONCE // module.weight.shape[1])):
            rows.copy_(rounded(rows, bits))
        module.register_forward_pre_hook(lambda _, inputs: (rounded_activations(inputs[0]), *inputs[1:]))
