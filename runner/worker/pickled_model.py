"""Pickled weights as safetensors. Nothing but tensors is unpickled: a pickle can hold code."""

from __future__ import annotations

import os
import pickle
import shutil

import torch
from checkpoint import read_json, write_json
from safetensors.torch import save_file
from task import StageError

PICKLES = (".bin", ".pt", ".pth")
INDEX = "pytorch_model.bin.index.json"
# How the names begin of what training leaves beside the weights.
TRAINERS = ("training_args", "optimizer", "scheduler", "rng_state")


def make(source: str, out: str) -> dict:
    """Write the checkpoint in `source` to `out`, each file of pickled weights as one of safetensors.

    Subfolders are kept, without code and pickles. Errors: `StageError` where a file of weights is absent, or holds
    anything else than tensors by name.
    """
    names = sorted(os.listdir(source))
    pickles = weight_files(source)
    if not pickles:
        raise StageError("no pickled weights, or several and no pytorch_model among them", kind="NoWeights")
    if absent := sorted(set(pickles) - set(names)):
        raise StageError(f"{INDEX} names {', '.join(absent[:3])}, which is not there", kind="MissingTensors")
    weight_map: dict[str, str] = {}
    for number, name in enumerate(pickles, 1):
        tensors = load(os.path.join(source, name))
        many = f"-{number:05d}-of-{len(pickles):05d}" if len(pickles) > 1 else ""
        target = f"model{many}.safetensors"
        # Tied tensors share their memory, which the format does not allow.
        kept = {key: value.clone().contiguous() for key, value in tensors.items()}
        save_file(kept, os.path.join(out, target), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(kept, target)
    for name in names:
        path = os.path.join(source, name)
        if os.path.isdir(path) and not name.startswith((".", "__pycache__")):
            unwanted = shutil.ignore_patterns(".*", "*.py", "__pycache__", *(f"*{end}" for end in PICKLES))
            shutil.copytree(path, os.path.join(out, name), ignore=unwanted)
        elif (
            os.path.isfile(path) and not name.endswith((*PICKLES, ".py", ".bin.index.json")) and name != "manifest.json"
        ):
            shutil.copyfile(path, os.path.join(out, name))
    if len(pickles) > 1:
        total = sum(os.path.getsize(os.path.join(out, name)) for name in set(weight_map.values()))
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(os.path.join(out, "model.safetensors.index.json"), content)
    if INDEX in names:
        refuse_missing(read_json(os.path.join(source, INDEX)), weight_map)
    return {"tensors": len(weight_map)}


def weight_files(source: str) -> list[str]:
    """The files of weights: those that an index names, or else pytorch_model*.bin, or else the only one there is.

    Others beside them are left out, such as consolidated.pth, the same weights by other names. `weights_of` in
    runner/models.py says of the same folders that there are any.
    """
    names = sorted(os.listdir(source))
    found = [name for name in names if name.endswith((".bin", ".pth")) and not name.startswith(TRAINERS)]
    if found and INDEX in names:
        return sorted(set(read_json(os.path.join(source, INDEX))["weight_map"].values()))
    named = [name for name in found if name.startswith("pytorch_model") and name.endswith(".bin")]
    return named or (found if len(found) == 1 else [])


def load(path: str) -> dict:
    """The tensors of a file, by name; nothing else is unpickled."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped(path))
    except pickle.UnpicklingError as error:
        raise StageError(
            f"{os.path.basename(path)} holds more than weights, and is not loaded: {str(error).splitlines()[0]}",
            kind="UnsafePickle",
            hint="save the checkpoint as safetensors where you trust it: save_pretrained(..., safe_serialization=True)",
        ) from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise StageError(f"{os.path.basename(path)} is no file of weights: {error}", kind="BadPickle") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise StageError(f"{os.path.basename(path)} holds something else than tensors by name", kind="BadPickle")
    return tensors


def zipped(path: str) -> bool:
    """Whether a file is of torch's newer form, which can be mapped instead of read."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def refuse_missing(index: dict, weight_map: dict[str, str]) -> None:
    """Errors: `StageError` where a tensor that an index names is in no file."""
    lacking = sorted(set(index["weight_map"]) - set(weight_map))
    if lacking:
        raise StageError(f"{len(lacking)} tensors are in no file: {', '.join(lacking[:3])}", kind="MissingTensors")
