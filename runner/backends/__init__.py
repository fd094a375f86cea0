"""Backends: what computes the candidate. One folder each, the same file names in every one.

A backend's ``stages.py`` has

- BUILDER: whether a builder makes its export. Without one there is no overlay,
  and cells say ``none`` for builder and patch.
- CONSTANTS: whether the export's constants can be read.
- EXPORT, CANDIDATE: the modules of ``runner/worker/`` that run its stages;
  EXPORT is None where the candidate needs none. Those that
  ``worker_digests.json`` does not list are known by their code.
- ONE_AT_A_TIME: whether a sweep with it runs one stage at a time, unless jobs=
  says otherwise.
- REQUIRES: packages that the runtime's environment must have; LACKING: what to
  do where it has not.
- check(config): what types cannot check. Errors: `ConfigFailed`.
- export_settings(config, checkpoint, layers), candidate_settings(config): what
  goes into a stage's key and, as arguments, to the worker.
- host_refusal(config, checkpoint, layers): why this machine cannot make the
  export, or None; asked just before it is made. Not where EXPORT is None.
"""

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
