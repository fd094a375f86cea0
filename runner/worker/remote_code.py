"""Code that a checkpoint brings with it is never run, neither by transformers nor by a builder that would."""

from __future__ import annotations

import glob
import os

from checkpoint import read_json, write_json
from task import StageError

# The one folder of a checkpoint that a tokenizer reads; others (custom_generate, say) may hold code.
TEMPLATES = "additional_chat_templates"


def brings_code(folder: str) -> list[str]:
    """What of a checkpoint asks for code of its own: an auto_map in one of its JSON files, and Python files."""
    mapped = [f"auto_map in {name}" for name, content in configs(folder).items() if without_map(content) != content]
    return mapped + sorted(glob.glob("**/*.py", root_dir=folder, recursive=True))


def configs(folder: str) -> dict[str, dict]:
    """The JSON objects in a checkpoint's folder, by file; a tokenizer's vocabulary and an index ask for nothing."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith("config.json"):
            content = read_json(os.path.join(folder, name))
            found |= {name: content} if isinstance(content, dict) else {}
    return found


def without_map(value):
    """JSON without any auto_map in it, however deep."""
    if isinstance(value, dict):
        return {key: without_map(inner) for key, inner in value.items() if key != "auto_map"}
    return [without_map(inner) for inner in value] if isinstance(value, list) else value


def refuse_unknown(folder: str) -> None:
    """Refuse a model that transformers knows by the checkpoint's own code only. Errors: `StageError`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = configs(folder).get("config.json", {}).get("model_type")
    if kind not in CONFIG_MAPPING_NAMES and (code := brings_code(folder)):
        raise StageError(
            f"transformers does not know {kind!r}, and the checkpoint's own code ({code[0]}) is not run",
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
        if not name.endswith(("config.json", ".py")) and (
            name == TEMPLATES or not os.path.isdir(os.path.join(folder, name))
        ):
            os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(plain, name))
    for name, content in configs(folder).items():
        write_json(os.path.join(plain, name), without_map(content))
    return plain, found


def tokenizer(folder: str):
    """The checkpoint's tokenizer, which must be of a class that transformers has. Errors: `StageError`."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise StageError(
            "the checkpoint's tokenizer is of a class of its own, and a checkpoint's code is not run",
            kind="RemoteCode",
            hint="save it with a tokenizer.json that transformers reads: tokenizer_class=PreTrainedTokenizerFast",
        ) from error
