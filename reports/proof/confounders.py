"""What a pair of cells differs in beside the factor that is to be proven, from hashes and resolved packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from db.detail import ROLES
from db.differences import Difference, Making, change_differences, differences

# Parts of a making (`db.differences`) that follow from a factor's value.
FOLLOWS = {
    "model": ("checkpoint", "files' dtype", "layer count", "prompts"),
    "dtype": ("checkpoint", "files' dtype"),
    "layers": ("checkpoint", "layer count"),
    "precision": ("thresholds",),
    "prompts": ("prompts",),
    "builder": ("builder sources",),
}
# Factors that are an environment: the package that is meant by each is what it is called after.
PACKAGE = {"builder": "onnxruntime-genai", "runtime": "onnxruntime-genai", "reference": "transformers"}
# Keys inside a factor that only decide its packages, which are compared as they were resolved.
OF_PACKAGES = ("transformers", "as_of", "extra", "environment")
# Packages that fetch, print and start, and compute nothing of a model: they are told, and are no confounders.
NOT_COMPUTING = frozenset({
    "annotated-doc", "annotated-types", "anyio", "certifi", "charset-normalizer", "click", "colorama", "coloredlogs",
    "exceptiongroup", "filelock", "flatbuffers", "fsspec", "h11", "hf-transfer", "hf-xet", "httpcore", "httpx",
    "huggingface-hub", "humanfriendly", "idna", "markdown-it-py", "mdurl", "packaging", "pip", "psutil", "pydantic",
    "pydantic-core", "pygments", "pyyaml", "requests", "rich", "setuptools", "shellingham", "sniffio", "tqdm", "typer",
    "typer-slim", "typing-extensions", "typing-inspection", "urllib3", "wheel",
})  # fmt: skip
# What only the side of an export uses: transformers' own side computes without it.
OF_EXPORTS = frozenset({"onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "ml-dtypes", "protobuf"})
# What only makes token ids of a text.
OF_IDS = frozenset({"tokenizers", "sentencepiece", "tiktoken", "regex", "jinja2", "markupsafe"})


@dataclass(frozen=True)
class Apart:
    """How two cells differ. own: what the factor is; others: confounders; along: what changed and computes nothing.
    pins: {package: version of the first}, of confounders in the factor's own environment."""

    own: Sequence[str]
    others: Sequence[str]
    along: Sequence[str]
    pins: Mapping[str, str]


def apart(one: Making, two: Making, factor: str, backend: str, same_ids: bool) -> Apart:
    """What two cells differ in. same_ids: whether both were given the same token ids."""
    own: list[str] = []
    others: list[str] = []
    along: list[str] = []
    packages: list[tuple[str, str, Difference]] = []
    for difference in [*differences(one, two), *change_differences(one, two)]:
        role, _, package = difference.what.partition("'s ")
        if role in ROLES and package:
            packages.append((role, package, difference))
        elif difference.what == factor or difference.what in FOLLOWS.get(factor, ()):
            own.append(difference.told())
        elif difference.what == "options":
            mine, theirs = of_options(difference, factor)
            own += mine[:1]
            others += [*mine[1:], *theirs]
        elif difference.what == "prompts":  # the key of an artifact, which another environment has anew
            if not same_ids:
                others.append("the prompts' token ids")
        else:
            others.append(difference.told())
    computing = []
    for role, package, difference in packages:
        if idle(role, package, backend, same_ids):
            along.append(difference.told())
        elif role == factor:
            computing.append(difference)
        else:
            others.append(difference.told())
    meant = named(computing, factor, backend, bool(own))
    own += [difference.told() for difference in meant]
    left = [difference for difference in computing if difference not in meant]
    others += [difference.told() for difference in left]
    pins = {difference.what.partition("'s ")[2]: public(difference.one) for difference in left if difference.one}
    return Apart(own, others, along, pins)


def of_options(difference: Difference, factor: str) -> tuple[list[str], list[str]]:
    """Options that one side has and the other has not, or has otherwise: the factor's own, and others. What only
    decides packages is neither."""
    one, two = (
        dict(word.partition("=")[::2] for word in str(side or "").split()) for side in (difference.one, difference.two)
    )
    own, others = [], []
    for key in sorted(one.keys() | two.keys()):
        group, _, inside = key.partition(".")
        if one.get(key) == two.get(key) or (group in ROLES and inside.split(".")[0] in OF_PACKAGES):
            continue
        told = Difference(key, one.get(key, "as it comes"), two.get(key, "as it comes")).told()
        (own if factor in (group, "options") else others).append(told)
    return own, others


def named(computing: Sequence[Difference], factor: str, backend: str, source: bool) -> list[Difference]:
    """Of the packages that changed in the factor's own environment the one that the factor stands for: the only one, or
    the one that it is called after. Where a builder's sources changed it is what they were published in."""
    name = PACKAGE.get(factor)
    if factor == "runtime" and backend != "genai":
        name = "transformers"
    if len(computing) == 1 and not (factor == "builder" and source):
        return list(computing)
    return [difference for difference in computing if difference.what == f"{factor}'s {name}"]


def idle(role: str, package: str, backend: str, same_ids: bool) -> bool:
    """Whether a package of a role can change no number: it computes nothing, or nothing in that role."""
    if package in NOT_COMPUTING:
        return True
    if package in OF_IDS:  # both sides are given ids
        return same_ids
    return package in OF_EXPORTS and (role == "reference" or (role == "runtime" and backend != "genai"))


def public(version: str) -> str:
    """A version as an index has it, without a local tag such as +cpu."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def cross(factor: str, pins: Mapping[str, Any]) -> list[str]:
    """The settings that give a factor's environment some packages of another one."""
    inside = {"builder": "builder", "runtime": "runtime.environment", "reference": "reference.environment"}.get(factor)
    if not inside or "platform" in pins:
        return []
    settings = [f"{inside}.transformers={pins['transformers']}"] if "transformers" in pins else []
    extra = ",".join(f'"{name}=={version}"' for name, version in pins.items() if name != "transformers")
    return settings + ([f"{inside}.extra=[{extra}]"] if extra else [])
