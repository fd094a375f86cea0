"""Stage export of backend=tp_cpu: the checkpoint divided into a file a rank, as neuronx-distributed's sharder does it.

That walks the model's parameters: a buffer gets into the files only where it is copied by hand. No tensor is cast.
"""

from __future__ import annotations

import os

import layout
import tp_model
from checkpoint import files_of, write_json
from reference import layers_of
from safetensors import safe_open
from safetensors.torch import save_file
from task import StageError

FILE = "tp{rank}_sharded_checkpoint.safetensors"


def run(arguments: dict, out: str) -> dict:
    """Write each rank's tensors and ``plan.json`` to `out`.

    arguments: checkpoint (folder), plan (as runner/backends/tp_cpu/plan.py makes it), copy_buffers (whether the
    persistent buffers get in as well, whole). Of the checkpoint a tensor at a time is read, and of that what the rank
    holds. Errors: `StageError` PlanNotRunnable, before anything is written; MissingTensors.
    """
    folder, plan = arguments["checkpoint"], arguments["plan"]
    model = tp_model.skeleton(folder)
    tp_model.refuse(model, plan)
    files = tensors_of(folder)
    names = [name for name, _ in model.named_parameters()]
    if missing := [name for name in names if name not in files]:
        raise StageError(
            f"the checkpoint has no tensor of the name of {len(missing)} parameters: {', '.join(missing[:5])}",
            kind="MissingTensors",
            hint="a checkpoint whose names transformers converts is not divided: save it with transformers first",
        )
    buffers = (
        [name for name in tp_model.persistent_buffers(model) if name in files] if arguments["copy_buffers"] else []
    )
    dtypes, sizes = set(), []
    for rank in range(plan["tp"]):
        held = {}
        for name in [*names, *buffers]:
            with safe_open(files[name], framework="pt") as file:
                held[name] = part(name, file.get_slice(name), plan, rank)
        dtypes |= {str(held[name].dtype).removeprefix("torch.") for name in names}
        sizes.append(sum(tensor.nbytes for tensor in held.values()))
        save_file(held, os.path.join(out, FILE.format(rank=rank)), metadata={"format": "pt"})
    write_json(os.path.join(out, "plan.json"), plan)
    return {
        "loaded_dtype": ",".join(sorted(dtypes)),
        **layers_of(model.config.get_text_config()),
        "bytes_per_rank": sizes,
        "buffers_copied": buffers,
    }


def part(name: str, stored, plan: dict, rank: int):
    """What the rank holds of a tensor of the checkpoint. Errors: `StageError` where its shape is not the plan's."""
    try:
        return layout.placed(name, stored, plan, rank)[0].contiguous()
    except ValueError as error:
        raise StageError(f"the checkpoint's {error}", kind="PlanNotRunnable") from error


def tensors_of(folder: str) -> dict[str, str]:
    """The checkpoint's tensors, with the file that each lies in."""
    found = {}
    for path in files_of(folder):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    return found
