"""A cell: one value for each factor, checked. Plain objects; nothing of Hydra behind this file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner import hashing, paths, schema
from runner.failures import ConfigFailed

FACTORS = (
    "model", "dtype", "layers", "builder", "patch", "runtime", "backend", "precision",
    "prompts", "reference", "max_new_tokens", "threads",
)  # fmt: skip
assert set(FACTORS) == {field.name for field in fields(schema.Factors)}


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep.

    factors: {factor: value as asked}; config: the checked config, or None
    where `failure` says why there is none.
    """

    factors: Mapping[str, str]
    config: schema.Factors | None = None
    failure: ConfigFailed | None = None

    @property
    def hash(self) -> str:
        """Hash of the factor values as asked."""
        return hashing.of_value(dict(self.factors))

    def asked(self) -> dict[str, Any]:
        """The config as plain data."""
        return asdict(self.config) if self.config else {}

    def name(self) -> str:
        """The values that tell a reader which cell this is."""
        return " ".join(self.factors[f] for f in ("model", "dtype", "builder", "patch"))


def from_plain(plain: Mapping[str, Any], choices: Mapping[str, str]) -> Cell:
    """A cell from a composed config as plain dicts, and Hydra's group choices.

    A config that is not right gives a cell with its `failure`, never an exception.
    """
    factors = {name: str(choices.get(name, plain.get(name, ""))) for name in FACTORS}
    try:
        config = typed(plain)
        factors = labels(config, choices)
        check(config)
    except ConfigFailed as failure:
        return Cell(factors, failure=failure)
    return Cell(factors, config=config)


def typed(plain: Mapping[str, Any]) -> schema.Factors:
    """The composed config as the schema's dataclasses. Errors: `ConfigFailed` naming the key."""
    try:
        factors = {name: plain[name] for name in FACTORS}
        merged = OmegaConf.merge(OmegaConf.structured(schema.Factors), factors)
        if OmegaConf.is_missing(merged.model, "name") and not OmegaConf.is_missing(merged.model, "path"):
            merged.model.name = Path(merged.model.path).expanduser().resolve().name
        missing = sorted(OmegaConf.missing_keys(merged) - {"model.name"})
        if missing:
            raise ConfigFailed(
                f"{', '.join(missing)}: a value is needed",
                hint=f"set it on the command line: {missing[0]}=VALUE",
            )
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigFailed(str(error).splitlines()[0], error_type=type(error).__name__) from error
    assert isinstance(config, schema.Factors)
    return config


def labels(config: schema.Factors, choices: Mapping[str, str]) -> dict[str, str]:
    """The factor values as rows and tables show them."""
    found = {name: str(getattr(config, name)) for name in FACTORS}
    found |= {name: getattr(config, name).name for name in ("model", "builder", "backend", "runtime", "reference")}
    # A patch list on the command line has no name of its own.
    changes = [part.strip() for part in str(choices.get("patch", "")).strip("[]").split(",")]
    return found | {"prompts": str(choices.get("prompts", "")), "patch": "+".join(changes)}


def check(config: schema.Factors) -> None:
    """Values that types cannot check. Errors: `ConfigFailed`: what, where, what is allowed."""
    one_of("dtype", config.dtype, schema.DTYPES)
    one_of("precision", config.precision, schema.PRECISIONS)
    one_of("prompts.template", config.prompts.template, schema.TEMPLATES)
    if config.layers != "all" and not (config.layers.isdecimal() and int(config.layers) > 0):
        raise ConfigFailed(f"layers: {config.layers!r} is not allowed", hint="allowed: all, or a positive number")
    for name in ("max_new_tokens", "threads"):
        if getattr(config, name) < 1:
            raise ConfigFailed(f"{name}: {getattr(config, name)} is not allowed", hint="allowed: 1 or more")
    prompts = config.prompts.prompts
    if not prompts:
        raise ConfigFailed("prompts: the set has no prompts")
    twice = [name for name, count in Counter(p.name for p in prompts).items() if count > 1]
    if twice:
        raise ConfigFailed(f"prompts: the name {twice[0]!r} stands twice", hint="each prompt needs a name of its own")
    empty = [p.name for p in prompts if not p.text]
    if empty:
        raise ConfigFailed(f"prompts: the prompt {empty[0]!r} has no text")


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigFailed(f"{key}: {value!r} is not allowed", hint=f"allowed: {', '.join(allowed)}")


def plain(value: Any) -> dict[str, Any]:
    """A part of the config as plain data."""
    return asdict(value)


def model_path(config: schema.Factors) -> Path:
    """The checkpoint's folder: absolute, or relative to here, or else to the project."""
    path = Path(config.model.path).expanduser()
    if path.is_absolute() or path.is_dir():
        return path
    return paths.PROJECT / path


def constraints_path(environment: schema.Environment) -> Path | None:
    """The constraints file that an environment names, in ``conf/environment/``."""
    if not environment.constraints:
        return None
    path = paths.CONF / "environment" / environment.constraints
    if not path.exists():
        raise ConfigFailed(
            f"environment.constraints: {path} does not exist",
            hint=f"there are: {', '.join(sorted(p.name for p in path.parent.glob('*.txt')))}",
        )
    return path
