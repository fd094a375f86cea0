"""Rotary caches made by hand."""

from __future__ import annotations

import numpy as np
import rope_causes
from hypothesis import strategies as st

THETAS = st.sampled_from([1e4, 2e4, 1e5, 5e5, 1e6, 3e6])
FACTORS = st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 32.0])
HALVES = st.sampled_from([4, 8, 16, 64, 128])


def plain(pairs: int, theta: float = 1e4, factor: float = 1.0) -> np.ndarray:
    return theta ** (-np.arange(pairs) / pairs) / factor


def llama3(frequencies: np.ndarray, factor: float = 8.0, original: int = 256) -> np.ndarray:
    """Long waves divided, short ones kept, some between."""
    share = np.clip((original * frequencies / (2 * np.pi) - 1) / 3, 0, 1)
    return frequencies * (share + (1 - share) / factor)


def held(frequencies: np.ndarray, amplitude: float = 1.0, dtype=np.float32, count: int = 8192) -> rope_causes.Cache:
    """A cache of these frequencies, computed in fp32 and stored in `dtype`."""
    angles = np.arange(count, dtype=np.float32)[:, None] * np.asarray(frequencies).astype(np.float32)
    cos, sin = ((np.float32(amplitude) * turn(angles)).astype(dtype) for turn in (np.cos, np.sin))
    return rope_causes.Cache(cos, sin)
