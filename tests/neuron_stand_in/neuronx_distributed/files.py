"""The stand-in's files, which torch.jit.save and torch.jit.load pass on to it."""

from __future__ import annotations

import io

import torch

MAGIC = b"neuron-cpu stand-in\n"
_load = torch.jit.load


def save(path, content: dict) -> None:
    with open(path, "wb") as file:
        file.write(MAGIC + packed(content))


def read(path) -> dict | None:
    """None for a file that is not the stand-in's."""
    with open(path, "rb") as file:
        return unpacked(file.read()) if file.read(len(MAGIC)) == MAGIC else None


def load(f, map_location=None, _extra_files=None, _restore_shapes=False):
    """torch.jit.load, for the stand-in's files as well."""
    content = read(f) if isinstance(f, str) else None
    if content is None:
        return _load(f, map_location, _extra_files, _restore_shapes)
    from .trace.model_builder import NxDModel, NxDModelExecutor

    return NxDModelExecutor(NxDModel(**content))


def packed(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpacked(data: bytes):
    return torch.load(io.BytesIO(data), weights_only=False)
