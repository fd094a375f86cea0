"""What a norm of a torch model computes, measured: its kind, weight, bias and epsilon.

The norm is called, so that whatever it does to its parameter (Gemma adds 1,
OLMo has none) is in what comes out. In fp64, on a copy.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

RMS, LAYER = "RMSNorm", "LayerNorm"
# Beside the square of the one, no epsilon counts, and both are powers of 4, whose roots are exact in fp32 too;
# beside the other, every epsilon in use is the larger part.
LARGE, SMALL = 2.0**20, 2.0**-20
ULPS = 4 * 2.0**-24


@dataclass(frozen=True)
class Measured:
    """weight, bias: fp32 [width], the effective ones; bias None where it is 0. offset: what is added to the parameter
    (0 or 1), None where there is no parameter or another rule. stored: the parameter, fp32."""

    kind: str
    weight: np.ndarray
    bias: np.ndarray | None
    epsilon: float
    stored: np.ndarray | None
    offset: int | None


@torch.inference_mode()
def measure(module: torch.nn.Module, width: int) -> Measured | str:
    """Measure a norm over the last axis of `width` values; a text where it is no norm that two numbers describe."""
    if width % 2:
        return f"a norm over {width} values, an odd number"
    probe = copy.deepcopy(module).double()
    signs = torch.ones(width, dtype=torch.float64)
    signs[1::2] = -1

    def call(values: torch.Tensor) -> np.ndarray:
        return probe(values[None, None])[0, 0].double().numpy()

    up, down = call(LARGE * signs), call(-LARGE * signs)
    weight, bias = (up - down) / 2 * signs.numpy(), (up + down) / 2
    level = call(torch.full_like(signs, LARGE)) - bias
    size = np.abs(weight).max()
    if not np.isfinite(size) or not size:
        return "its weights are all 0" if not size else "its output is not finite"
    if np.abs(level - weight).max() <= 1e-5 * size:
        kind = RMS
    elif np.abs(level).max() <= 1e-5 * size:
        kind = LAYER
    else:
        return "neither an RMSNorm nor a LayerNorm"
    large = np.abs(weight) >= np.median(np.abs(weight))
    share = np.abs((call(SMALL * signs) - call(-SMALL * signs)) / 2 / np.where(large, weight, 1))[large]
    epsilon = float(np.median((SMALL / share) ** 2)) - SMALL**2
    parameter = getattr(module, "weight", None)
    stored = None if parameter is None else parameter.float().numpy()
    exact, offset = rule(weight.astype(np.float32), stored)
    shift = bias.astype(np.float32)
    return Measured(kind, exact, shift if shift.any() else None, epsilon, stored, offset)


def rule(weight: np.ndarray, stored: np.ndarray | None) -> tuple[np.ndarray, int | None]:
    """The effective weight without the probe's own rounding, where it is the parameter or 1 more, and which."""
    for offset in (0, 1):
        if stored is not None and stored.shape == weight.shape:
            exact = stored + np.float32(offset)
            if (np.abs(exact - weight) <= ULPS * np.maximum(np.abs(exact), offset)).all():
                return exact, offset
    return weight, None
