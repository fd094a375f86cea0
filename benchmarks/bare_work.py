"""The bare work of some cells: exports, references and candidates in one warm process, one after the other.

    python bare_work.py CELLS.json

The file is `plain_harness.py`'s. Imports, and one cell more (the first,
repeated) so that nothing is loaded lazily any more, come before the clock
starts. A reference is computed once a checkpoint; a builder's own modules are
imported once a source folder. Prints one JSON line a cell, with its seconds.
"""

import contextlib
import json
import os
import runpy
import sys
import tempfile
import time

import numpy  # noqa: F401
import onnxruntime_genai  # noqa: F401
import plain_harness
import torch
import transformers  # noqa: F401


def export(builder, checkpoint, out, cache):
    """Run the builder in this process, its own modules fresh where they are another folder's."""
    models = os.path.dirname(builder)
    if sys.path[0] != models:
        known = sys.path.pop(0) if os.path.exists(os.path.join(sys.path[0], "builder.py")) else None
        for name in [n for n, m in sys.modules.items() if known and str(getattr(m, "__file__", "")).startswith(known)]:
            del sys.modules[name]
        sys.path.insert(0, models)
    sys.argv = [builder, "-i", checkpoint, "-o", out, "-p", "fp32", "-e", "cpu", "-c", cache]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        runpy.run_path(builder, run_name="__main__")


def work(cell, asked, references):
    """One cell: seconds, and the comparison's numbers."""
    started, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "export")
        export(cell["builder"], cell["checkpoint"], out, os.path.join(folder, "cache"))
        if cell["checkpoint"] not in references:
            references[cell["checkpoint"]] = plain_harness.reference(
                cell["checkpoint"], asked["prompts"], asked["max_new_tokens"]
            )
        found = references[cell["checkpoint"]]
        numbers = plain_harness.compare(found, plain_harness.candidate(out, found))
    seconds = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}
    return {"name": cell["name"], **seconds, **numbers}


def main(path):
    with open(path, encoding="utf-8") as file:
        asked = json.load(file)
    torch.set_num_threads(1)
    work(asked["cells"][0], asked, {})
    references = {}
    for cell in asked["cells"]:
        print(json.dumps(work(cell, asked, references)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
