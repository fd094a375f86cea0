"""Stage model: a checkpoint folder from what is none: random weights, a GGUF file, or pickled weights."""

from __future__ import annotations

import importlib

from task import StageError

MAKERS = {"random": "random_model", "gguf": "gguf_model", "pickles": "pickled_model"}


def run(arguments: dict, out: str) -> dict:
    """Make the checkpoint in `out`. arguments: kind (of `MAKERS`), and what its `make` takes."""
    given = dict(arguments)
    kind = given.pop("kind")
    if kind not in MAKERS:
        raise StageError(f"kind {kind!r} is not one of {', '.join(MAKERS)}")
    return importlib.import_module(MAKERS[kind]).make(**given, out=out)
