"""What is personal stays out of what is given away: places, names of people and machines, secrets."""

from __future__ import annotations

import getpass
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from db.models import FACTORS
from db.output import json_value
from db.scrub import scrub

PATH_END = r"[^\s\"'`,;:|<>()\[\]{}]"
SOURCES = re.compile(r"[^\s\"'`]*/(?:site-packages|overlays/[0-9a-f]+)/([\w./-]+\.py)")
ROOTS = re.compile(rf"(?<![\w.~-])/(?:home|Users|root|tmp|var|mnt|data|work|workspace|scratch|srv)\b{PATH_END}*")
# Names of an ONNX graph's nodes look like paths and are none.
ABSOLUTE = re.compile(rf"(?:file://|(?<![\w/.)}}<>~$-]))/(?!/|model/|lm_head/)[^\s/\"'`,;:|<>()\[\]{{}}]+/{PATH_END}*")
# Places in quotes may have blanks in them; Windows and network places, and homes by a tilde, are places too.
QUOTED = re.compile(r"(?<=[\"'])/(?:home|Users|root|tmp|var|mnt|data|work|workspace|scratch|srv)/[^\"'\n]*(?=[\"'])")
ELSEWHERE = re.compile(r"\b[A-Za-z]:\\[^\"'\n]*|\\\\[\w.-]+\\[^\s\"']*|(?<![\w.~])~[\w-]*/[^\s\"'`,;]*")
PEOPLE = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?::[^\s\"']*)?|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b")
COMMON_NAMES = {"", "root", "user", "localhost", "runner", "ubuntu", "admin"}  # say nothing of anybody
VERBATIM = ("text", "reference_text", "candidate_text", "prompt", "name")  # a path in a prompt is what was measured


def hider(facts: Sequence[Mapping[str, Any]]) -> Callable[..., str]:
    """A function that takes places, names and secrets out of a text.

    With `verbatim` true, for what must stay as it was, only places that are
    surely somebody's: sources and prompts have text that looks like a path.
    """
    models = {
        fact["config"].get("model", {}).get("path", ""): label for fact, label in zip(facts, labels(facts), strict=True)
    }
    places = {path: label for path, label in models.items() if path.startswith(("/", "~", ".."))}
    ours = [path for path in map(str, (Path.home(), Path.cwd())) if path.count("/") > 1 or len(path) > 4]
    known = {str(fact["row"][factor]) for fact in facts for factor in FACTORS}
    names = {name for fact in facts for name in fact["hosts"]} | {platform.node(), Path.home().name, user()}
    names |= {name.split(".")[0] for name in names}
    names -= COMMON_NAMES | known
    name = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?![\w-])")

    def hide(text: str, verbatim: bool = False) -> str:
        text = scrub(SOURCES.sub(r"\1", text))
        for path in sorted(places, key=len, reverse=True):
            text = re.sub(re.escape(path) + r"(?!\w)", lambda _, path=path: places[path], text)
        for path in ours:
            text = re.sub(re.escape(path) + rf"(?!\w){PATH_END}*", "PATH", text)
        text = ROOTS.sub("PATH", QUOTED.sub("PATH", text))
        if not verbatim:
            text = PEOPLE.sub("NAME", ELSEWHERE.sub("PATH", ABSOLUTE.sub("PATH", text)))
        return name.sub("NAME", text) if names else text

    return hide


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name
        return ""


def hidden(data: Any, hide: Callable[..., str], verbatim: bool = False) -> Any:
    """Plain data with every text in it hidden."""
    if isinstance(data, Mapping):
        return {hide(str(key), True): hidden(value, hide, key in VERBATIM) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [hidden(value, hide, verbatim) for value in data]
    return hide(data, verbatim) if isinstance(data, str) else json_value(data)


def labels(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each cell's model by its name, or its folder's where a whole path is its name, numbered where two share that."""
    paths: dict[str, list[str]] = {}
    for fact in facts:
        same = paths.setdefault(Path(fact["row"]["model"]).name, [])
        same += [fact["row"]["model"]] if fact["row"]["model"] not in same else []
    found = []
    for fact in facts:
        short_name = Path(fact["row"]["model"]).name
        same = paths[short_name]
        found.append(short_name if len(same) == 1 else f"{short_name}-{same.index(fact['row']['model']) + 1}")
    return found
