"""Where a chat template may stand in a folder, and what is in it. No tokenizer is made."""

from __future__ import annotations

import json
import os

# Where a template may stand beside the tokenizer's config.
SEPARATE = ("chat_template.jinja", "chat_template.json")
CONFIG = "tokenizer_config.json"


def template_of(found) -> str | None:
    """The template in what a JSON file or a tokenizer holds: itself, or of several the one named default."""
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found}
    if isinstance(found, dict):
        found = found.get("chat_template", found.get("default"))
        return template_of(found) if isinstance(found, list | dict) else found
    return found


def separate(folder: str) -> tuple[str | None, str] | None:
    """The template of a file of its own and that file's name; None where there is no such file."""
    for name in SEPARATE:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            return (template_of(json.loads(text)) if name.endswith(".json") else text), name
    return None


def in_folder(folder: str) -> tuple[str | None, str]:
    """A folder's chat template and the file that it stands in; None where it has none."""
    if found := separate(folder):
        return found
    path = os.path.join(folder, CONFIG)
    if not os.path.exists(path):
        return None, CONFIG
    with open(path, encoding="utf-8") as file:
        return template_of(json.load(file).get("chat_template")), CONFIG
