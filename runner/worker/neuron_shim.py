"""`transformers.utils.fx` for neuronx-distributed 0.18.0, which imports a name of it; transformers 5 has it no more.

Asked for after all that is installed, so that it stands in where nothing else does. To be imported before
neuronx_distributed. The name is for pipeline parallelism, which nothing here uses.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

NAME = "transformers.utils.fx"


class Shim(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        from torch.fx import Tracer

        class HFTracer(Tracer):
            """Something to derive from."""

        module.HFTracer = HFTracer


if not any(isinstance(finder, Shim) for finder in sys.meta_path):
    sys.meta_path.append(Shim())
