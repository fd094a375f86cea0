"""Code that a checkpoint brings with it is never run, neither by transformers nor by a builder that would."""

from __future__ import annotations

import os

from checkpoint import read_json, write_json
from task import StageError

CONFIGS = ("config.json", "tokenizer_config.json")


def brings_code(folder: str) -> list[str]:
    """What of a checkpoint asks for code of its own: its configs' auto_map, and Python files."""
    mapped = [f"auto_map in {name}" for name in CONFIGS if "auto_map" in config_of(folder, name)]
    return mapped + sorted(name for name in os.listdir(folder) if name.endswith(".py"))


def config_of(folder: str, name: str) -> dict:
    path = os.path.join(folder, name)
    return read_json(path) if os.path.exists(path) else {}


def refuse_unknown(folder: str) -> None:
    """Refuse a model that transformers knows by the checkpoint's own code only. Errors: `StageError`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = config_of(folder, "config.json").get("model_type")
    if brings_code(folder) and kind not in CONFIG_MAPPING_NAMES:
        raise StageError(
            f"transformers does not know {kind!r}, and the checkpoint's own code ({brings_code(folder)[0]}) is not run",
            kind="RemoteCode",
            hint="code of a checkpoint is never trusted here; take a transformers that knows the model",
        )


def without_code(folder: str) -> tuple[str, list[str]]:
    """The checkpoint without what would run code of its own, and what that is.

    The folder itself where there is none, else one of links to its files: builders before 0.15 trust remote code
    unless told not to.
    """
    found = brings_code(folder)
    if not found:
        return folder, []
    plain = os.path.join(os.getcwd(), "checkpoint")
    os.makedirs(plain)
    for name in os.listdir(folder):
        if name not in CONFIGS and not name.endswith(".py"):
            os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(plain, name))
    for name in CONFIGS:
        if content := config_of(folder, name):
            write_json(os.path.join(plain, name), {key: value for key, value in content.items() if key != "auto_map"})
    return plain, found
