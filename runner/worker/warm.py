"""What a worker imports before it forks, so that no child has to. Imports only: nothing here computes."""

from __future__ import annotations

import ast
import glob
import importlib
import os
import sys

# Importing onnxruntime (1.32) starts a thread, and what a thread holds a forked child never gets: left to the child.
LEFT_TO_THE_CHILD = "onnxruntime"

MODULES = (
    "numpy",
    "safetensors.torch",
    "torch",
    "transformers",
    "transformers.modeling_utils",
    "transformers.generation",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "onnx_ir",
    "onnxruntime_genai",
)


def modules(names: tuple[str, ...] = MODULES) -> dict[str, str]:
    """Import what is there; return what would not import, by module, with the error.

    An absent or broken package is no failure here: the task that needs it
    says so better, with its own traceback.
    """
    missing = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # any import-time fault of a third party's package
            missing[name] = f"{type(error).__name__}: {error}"
    return missing


def model(model_type: str) -> None:
    """Import the modelling code of a checkpoint's model type."""
    try:
        from transformers.models.auto.configuration_auto import model_type_to_module_name

        module = model_type_to_module_name(model_type)
    except Exception:  # an environment without transformers, or a type it does not know
        return
    modules((f"transformers.models.{module}.modeling_{module}",))


def builder_imports(overlay: str) -> None:
    """Import the packages that a builder's modules import, though not these modules themselves.

    Names are looked up as well: transformers imports a model's code when a class of it is asked for.
    """
    for path in glob.glob(os.path.join(overlay, "**", "*.py"), recursive=True):
        with open(path, encoding="utf-8", errors="replace") as file:
            try:
                body = ast.parse(file.read()).body
            except SyntaxError:  # the export will say so
                continue
        for node in body:
            if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
                continue
            if node.module.split(".")[0] == LEFT_TO_THE_CHILD:
                continue
            own = os.path.join(overlay, node.module.split(".")[0])
            if os.path.exists(own) or os.path.exists(own + ".py") or modules((node.module,)):
                continue
            for alias in node.names:
                try:
                    getattr(sys.modules[node.module], alias.name, None)
                except Exception:  # as above
                    continue
