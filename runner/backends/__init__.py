"""Backends: what runs an export. One folder each, the same file names in every one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from runner.failures import ConfigFailed

NAMES = tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/stages.py")))


def stages(name: str) -> ModuleType:
    """The module of a backend that says what its export and candidate stages are made of."""
    if name not in NAMES:
        raise ConfigFailed(f"backend: {name!r} is not known", hint=f"allowed: {', '.join(NAMES)}")
    return importlib.import_module(f"runner.backends.{name}.stages")
