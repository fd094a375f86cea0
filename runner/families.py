"""The families of models that the project knows: a small config of each, for random weights."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import yaml

from runner import paths
from runner.failures import ConfigFailed

FOLDER = paths.CONF / "family"
FILES = (".yaml", ".yml", ".json")


def names() -> list[str]:
    """The families that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def label(family: str) -> str:
    """A family's name in rows: of one's own file its stem, of a config.json its folder's name."""
    path = Path(family).expanduser()
    return family if not family.endswith(FILES) else path.resolve().parent.name if path.stem == "config" else path.stem


def read(family: str) -> dict[str, Any]:
    """A family's file: {"what", "config"}. Errors: `ConfigFailed`.

    family: a name in ``conf/family/``, or the path of a file like those, or of
    a config.json.
    """
    own = family.endswith(FILES)
    path = Path(family).expanduser() if own else FOLDER / f"{family}.yaml"
    if not own and family not in names():
        near = difflib.get_close_matches(family, names(), n=1)
        raise ConfigFailed(
            f"model.family: {family!r} is not known" + (f"; did you mean {near[0]}?" if near else ""),
            hint=f"allowed: {', '.join(names())}, or the path of a .yaml file like theirs, or of a config.json",
        )
    try:
        text = path.read_text(encoding="utf-8")
        # YAML 1.1 takes JSON's 1e-05 for text.
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeError, ValueError, yaml.YAMLError) as error:
        raise ConfigFailed(f"model.family: {path} cannot be read: {error}") from error
    if isinstance(content, dict) and "config" not in content:
        content = {"what": label(family), "config": content}
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ConfigFailed(f"model.family: {path} holds no config with a model_type")
    return {"what": str(content.get("what") or label(family)), "config": config}
