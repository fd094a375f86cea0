"""Stage export: run the builder's own command line from the patched copy of its sources.

The command line is the one door that stays the same from release to release;
the function behind it does not.
"""

from __future__ import annotations

import os
import re
import runpy
import sys

from remote_code import refuse_unknown, without_code
from task import StageError


def run(arguments: dict, out: str) -> dict:
    """Export the checkpoint to `out`.

    arguments: overlay (the builder's ``models`` folder), checkpoint (folder),
    precision, execution_provider, extra_options (dict of str).
    """
    overlay = arguments["overlay"]
    refuse_unknown(arguments["checkpoint"])
    checkpoint, code = without_code(arguments["checkpoint"])
    script = os.path.join(overlay, "builder.py")
    cache = os.path.join(os.getcwd(), "cache")  # the builder deletes an empty one: never share it
    os.makedirs(cache)
    sys.argv = [
        script, "-i", checkpoint, "-o", out, "-p", arguments["precision"],
        "-e", arguments["execution_provider"], "-c", cache,
    ]  # fmt: skip
    if arguments["extra_options"]:
        options = [f"{key}={value}" for key, value in arguments["extra_options"].items()]
        sys.argv += ["--extra_options", *options]
    sys.path.insert(0, overlay)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise StageError(f"builder.py ended with {error.code}", kind="SystemExit") from error
    for needed in ("genai_config.json", "model.onnx"):
        if not os.path.exists(os.path.join(out, needed)):
            raise StageError(f"the builder ended well but wrote no {needed}", kind="MissingOutput")
    size = sum(os.path.getsize(os.path.join(out, name)) for name in os.listdir(out))
    evidence = f"the checkpoint brings code, which was not run: {', '.join(code)}"
    findings = [{"prompt": None, "check": "remote_code", "evidence": evidence}] if code else []
    layers = layers_of(os.path.join(out, "model.onnx"))
    return {"bytes": size, "loaded_dtype": loaded_dtype(), "findings": findings, **layers}


def layers_of(path: str) -> dict:
    """How many layers an ONNX model has, by its nodes' names, and which attend to a sliding window only.

    None where its attention is of a kind that does not say.
    """
    import onnx_ir

    layers, windows = set(), {}
    for node in onnx_ir.load(path).graph:
        match = re.search(r"layers\.(\d+)/(?!final_norm)", node.name or "")  # the last norm bears a number of no layer
        if not match:
            continue
        layers.add(int(match.group(1)))
        if node.op_type in ("GroupQueryAttention", "MultiHeadAttention", "Attention"):
            window = node.attributes.get("local_window_size")
            windows[int(match.group(1))] = window.value if window is not None else None
    if not windows:
        return {"layers": None, "sliding_layers": None}
    said = any(window is not None for window in windows.values())
    sliding = sorted(layer for layer, window in windows.items() if window is not None and window > 0)
    return {"layers": len(layers), "sliding_layers": sliding if said else None}


def loaded_dtype() -> str | None:
    """The dtypes of the floating-point parameters that the builder loaded, if they still live."""
    import gc

    import torch

    dtypes = {
        str(item.dtype).removeprefix("torch.")
        for item in gc.get_objects()
        if issubclass(type(item), torch.nn.Parameter) and item.is_floating_point()
    }
    return ",".join(sorted(dtypes)) or None
