"""A cell: one value for each factor, checked. Plain objects; nothing of Hydra behind this file."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from db.models import FACTORS
from db.scrub import scrub
from runner import backends, families, hashing, paths, releases, schema
from runner.failures import ConfigFailed

# Keys inside a factor that its label tells already.
TOLD = {
    "model.path", "model.name", "model.hub", "model.family", "builder.path", "builder.ref", "builder.name",
    "patch.number", "patch.from", "patch.to", "patch.file", "patch.reverse",
}  # fmt: skip
# The builder and the patch of a backend that has no use for them.
NONE = "none"
assert set(FACTORS) == {field.name for field in fields(schema.Factors)}


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep.

    factors: {factor: value as asked}; options: what was asked of a factor's
    insides (``reference.attention=sdpa``), which its name does not tell;
    config: the checked config, or None where `failure` says why there is none.
    """

    factors: Mapping[str, str]
    options: str = ""
    config: schema.Factors | None = None
    failure: ConfigFailed | None = None

    @property
    def hash(self) -> str:
        """Hash of the factor values as asked."""
        return hashing.of_value(dict(self.factors), self.options)

    def asked(self) -> dict[str, Any]:
        """The config as plain data, without secrets."""
        return json.loads(scrub(json.dumps(asdict(self.config)))) if self.config else {}

    def name(self) -> str:
        """The values that tell a reader which cell this is."""
        by = ("backend",) if self.factors["builder"] == NONE else ("builder", "patch")
        told = [self.factors[f] for f in ("model", "dtype", *by)]
        told += [f"layers {self.factors['layers']}"] if self.factors["layers"] not in ("", "all") else []
        return " ".join([*told, self.options] if self.options else told)


def options_of(overrides: Sequence[str]) -> str:
    """The overrides that reach inside a factor and that no label tells, sorted."""
    keys = {override.lstrip("+~").partition("=")[0]: override for override in overrides}
    told = {key: text for key, text in keys.items() if key.split(".")[0] in FACTORS and "." in key and key not in TOLD}
    return scrub(" ".join(told[key].lstrip("+") for key in sorted(told)))


def from_plain(plain: Mapping[str, Any], choices: Mapping[str, str], overrides: Sequence[str] = ()) -> Cell:
    """A cell from a composed config as plain dicts, Hydra's group choices, and the overrides that made it.

    A config that is not right gives a cell with its `failure`, never an exception.
    """
    factors = as_asked(plain, choices)
    try:
        refuse_another_source(str(choices.get("model", "")), overrides)
        config = typed(plain)
        if not backends.stages(config.backend.name).BUILDER:
            config = without_builder(config)
            choices = {**choices, "builder": NONE, "patch": NONE}
            overrides = [o for o in overrides if not o.lstrip("+~").startswith(("builder.", "patch."))]
        factors = labels(config, choices)
        check(config)
    except ConfigFailed as failure:
        return Cell(factors, options_of(overrides), failure=failure)
    return Cell(factors, options_of(overrides), config=config)


def without_builder(config: schema.Factors) -> schema.Factors:
    """A config whose backend asks for no builder, and whose cell is the same whatever builder or patch is given."""
    return replace(config, builder=schema.Builder(name=NONE, kind=NONE, version=NONE), patch=schema.Patch())


def as_asked(plain: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, str]:
    """The factor values of a config that may not be right; a list of patches by its names, as in `patch_label`."""
    factors = {name: str(choices.get(name, plain.get(name, ""))) for name in FACTORS}
    return factors | {"patch": "+".join(chosen(factors["patch"])) if factors["patch"][:1] == "[" else factors["patch"]}


def chosen(patch: str) -> list[str]:
    """The names in Hydra's choice of a patch: ``a``, or ``[a,b]``."""
    return [part.strip(" '\"") for part in patch.strip("[]").split(",")]


# The model files that stand for a source, by the key that says which checkpoint of it.
OPEN_MODELS = {"path": "path", "hub": "hub", "family": "random"}


def refuse_another_source(model: str, overrides: Sequence[str]) -> None:
    """``model.path=`` would move a model that has a folder of its own, and its rows would still bear its name."""
    for key, file in OPEN_MODELS.items():
        if model not in ("", file) and any(o.lstrip("+").startswith(f"model.{key}=") for o in overrides):
            raise ConfigFailed(
                f"model.{key}: model={model} has a checkpoint of its own",
                hint=f"model.{key}= goes with model={file} alone; for both in one sweep write my_conf/model/NAME.yaml",
            )
    if model != "random" and any(o.lstrip("+~").startswith("model.config.") for o in overrides):
        raise ConfigFailed(
            f"model.config: model={model} has a config of its own",
            hint="fields go with model=random alone; another published config is a file: my_conf/model/NAME.yaml",
        )


def typed(plain: Mapping[str, Any]) -> schema.Factors:
    """The composed config as the schema's dataclasses. Errors: `ConfigFailed` naming the key.

    A factor's value is checked once and shared by the cells that have it: OmegaConf takes 30 ms for a whole cell.
    """
    given = {name: plain[name] for name in FACTORS}
    # Where one factor refers to another they are checked together.
    parts = [given] if "${" in json.dumps(given) else [{name: value} for name, value in given.items()]
    values: dict[str, Any] = {}
    for part in parts:
        values |= typed_values(json.dumps(part, ensure_ascii=False))
    return schema.Factors(**values)


@cache
def part_of_schema(names: tuple[str, ...]) -> type:
    """The schema of some factors alone: checking one value against all of `schema.Factors` costs ten times more."""
    hints, known = get_type_hints(schema.Factors), {field.name: field for field in fields(schema.Factors)}
    parts = [(name, hints[name], copy.copy(known[name])) for name in names]
    return make_dataclass("Factors", parts)


@cache
def typed_values(text: str) -> dict[str, Any]:
    """The values of some factors, given as JSON, as the schema's types."""
    given = json.loads(text)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(part_of_schema(tuple(given))), given)
        model = merged.model if "model" in given else None
        if model and OmegaConf.is_missing(model, "name"):
            model.name = name_of(model)
        if missing := sorted(key for key in OmegaConf.missing_keys(merged) if key.split(".")[0] in given):
            where = "add it in its file" if "[" in missing[0] else f"set it on the command line: {missing[0]}=VALUE"
            raise ConfigFailed(f"{', '.join(missing)}: a value is needed", hint=where)
        values = {name: merged[name] for name in given}
        values = {n: OmegaConf.to_object(v) if OmegaConf.is_config(v) else v for n, v in values.items()}
        for name, made in (("patch", patch_of), ("backend", backend_of)):
            values |= {name: made(values[name])} if name in values else {}
        return values
    except OmegaConfBaseException as error:
        raise ConfigFailed(in_a_line(error), error_type=type(error).__name__) from error
    except (RuntimeError, ValueError, OSError) as error:  # of a path: no such user, a loop of links, a null byte
        raise ConfigFailed(f"{text[:200]}: {error}", error_type=type(error).__name__) from error


def name_of(model: Any) -> str:
    """A model's name where its file gives it none: its folder's, its repository's, or its family's.

    Errors: `ConfigFailed` where it has none of them.
    """
    for key, of in (
        ("path", lambda path: Path(path).expanduser().resolve().name),
        ("hub", lambda repo: repo.rpartition("/")[2]),
        ("family", lambda family: f"random_{families.label(family)}"),
    ):
        if not OmegaConf.is_missing(model, key) and model[key]:
            return of(model[key])
    raise ConfigFailed(
        f"{' or '.join(f'model.{key}' for key in OPEN_MODELS)}: a value is needed",
        hint=f"set it: {', or '.join(f'model={file} model.{key}=VALUE' for key, file in OPEN_MODELS.items())}",
    )


def in_a_line(error: OmegaConfBaseException) -> str:
    """OmegaConf's message with the key that it is about."""
    first = str(error).splitlines()[0]
    key = getattr(error, "full_key", None)
    return f"{key}: {first}" if key and key not in first else first


def patch_of(given: Mapping[str, Any]) -> schema.Patch:
    """The patch of a composed config. Errors: `ConfigFailed`; OmegaConf's for wrong types."""
    if odd := sorted(set(given) - set(schema.PATCH_KEYS)):
        raise ConfigFailed(f"patch: {', '.join(odd)} is not known", hint=f"known: {', '.join(schema.PATCH_KEYS)}")
    given = {**schema.PATCH_KEYS, **given}
    if not isinstance(given["reverse"], bool):
        raise ConfigFailed(f"patch.reverse: {given['reverse']!r} is not allowed", hint="allowed: true, false")
    needs = {"file": ("file",), "pr": ("number",), "diff": ("from", "to")}
    used = [kind for kind, wanted in given["uses"].items() if wanted]
    for kind in used:
        for key in needs.get(kind, ()):
            if given[key] is None:
                raise ConfigFailed(f"patch.{key}: a value is needed", hint=f"set it: patch={kind} patch.{key}=VALUE")
    changes = OmegaConf.merge(OmegaConf.structured(schema.Changes), {"changes": given["changes"] or {}})
    return schema.Patch(OmegaConf.to_object(changes).changes, [diff_of(kind, given) for kind in used], given["reverse"])


def backend_of(given: Mapping[str, Any]) -> schema.Backend:
    """The backend of a composed config. Errors: `ConfigFailed`."""
    name = given.get("name")
    one_of("backend.name", str(name), tuple(schema.BACKENDS))
    kind = schema.BACKENDS[str(name)]
    known = [key.name for key in fields(kind)]
    if odd := sorted(set(given) - set(known)):
        raise ConfigFailed(f"backend.{odd[0]}: backend={name} has no such key", hint=f"known: {', '.join(known)}")
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), dict(given)))
    except OmegaConfBaseException as error:
        raise ConfigFailed(f"backend.{in_a_line(error)}", error_type=type(error).__name__) from error


def diff_of(kind: str, given: Mapping[str, Any]) -> schema.Diff:
    """The diff that a patch of this kind names."""
    if kind == "file":
        return schema.Diff(file=str(Path(str(given["file"])).expanduser().resolve()))
    if kind == "pr":
        if not str(given["number"]).isdecimal():
            raise ConfigFailed(f"patch.number: {given['number']!r} is not the number of a pull request")
        return schema.Diff(number=int(given["number"]))
    if kind == "diff":
        paths = tuple(str(path) for path in given["paths"] or ())
        return schema.Diff(old=str(given["from"]), new=str(given["to"]), paths=paths)
    raise ConfigFailed(f"patch.uses: {kind!r} is not known", hint="known: file, pr, diff")


def labels(config: schema.Factors, choices: Mapping[str, str]) -> dict[str, str]:
    """The factor values as rows and tables show them."""
    found = {name: str(getattr(config, name)) for name in FACTORS}
    found |= {name: getattr(config, name).name for name in ("model", "backend", "runtime", "reference")}
    found["builder"] = builder_label(config.builder)
    return found | {"prompts": str(choices.get("prompts", "")), "patch": patch_label(config.patch, choices)}


def patch_label(patch: schema.Patch, choices: Mapping[str, str]) -> str:
    """A patch's name in rows: the files chosen, a diff by what it is; a list has no name of its own."""
    if not patch.changes and not patch.diffs:
        return "none"
    names = [name for name in chosen(str(choices.get("patch", ""))) if name not in ("", "file", "pr", "diff", "none")]
    names += [diff.name() for diff in patch.diffs]
    return ("+".join(names) or "+".join(patch.changes)) + (" reversed" if patch.reverse else "")


def builder_label(builder: schema.Builder) -> str:
    """A builder's name in rows: its own, or the ref or folder where another than the file's was asked for."""
    if builder.kind == "git" and builder.ref and builder.ref != builder.name:
        return builder.ref[:12] if re.fullmatch(r"[0-9a-f]{40}", builder.ref) else builder.ref
    if builder.kind == "path" and builder.path:
        path = Path(builder.path).expanduser().resolve()
        return f"{path.parent.name}/{path.name}" if path.name == "models" else path.name
    return builder.name


def check(config: schema.Factors) -> None:
    """Values that types cannot check. Errors: `ConfigFailed`: what, where, what is allowed."""
    check_model(config.model)
    if config.builder.kind != NONE:
        check_builder(config.builder)
    elif config.runtime.environment is None:
        raise ConfigFailed(
            f"runtime={config.runtime.name}: backend={config.backend.name} has no builder whose packages it could be",
            hint="name a runtime: python -m runner runtime=… lists them",
        )
    backends.stages(config.backend.name).check(config)
    one_of("dtype", config.dtype, schema.DTYPES)
    one_of("precision", config.precision, schema.PRECISIONS)
    one_of("prompts.template", config.prompts.template, schema.TEMPLATES)
    one_of("reference.compute_dtype", config.reference.compute_dtype, schema.COMPUTE_DTYPES)
    if config.layers != "all" and not (config.layers.isdecimal() and int(config.layers) > 0):
        raise ConfigFailed(f"layers: {config.layers!r} is not allowed", hint="allowed: all, or a positive number")
    for name, most in (("max_new_tokens", 1_000_000), ("threads", 1024)):
        if not 1 <= getattr(config, name) <= most:
            raise ConfigFailed(f"{name}: {getattr(config, name)} is not allowed", hint=f"allowed: 1 or more, to {most}")
    prompts = config.prompts.prompts
    if not prompts and not (config.prompts.boundaries or "").strip():
        raise ConfigFailed("prompts: the set has no prompts, and no text for boundaries")
    twice = [name for name, count in Counter(p.name for p in prompts).items() if count > 1]
    if twice:
        raise ConfigFailed(f"prompts: the name {twice[0]!r} stands twice", hint="each prompt needs a name of its own")
    for prompt in prompts:
        if not prompt.name.strip():
            raise ConfigFailed(f"prompts: the prompt {prompt.text[:40]!r} has an empty name")
        if not prompt.text.strip():
            raise ConfigFailed(f"prompts: the prompt {prompt.name!r} has no text")
        if prompt.expect is not None and not prompt.expect.strip():
            raise ConfigFailed(
                f"prompts: the prompt {prompt.name!r} expects nothing, which any answer would have",
                hint="leave expect out where nothing is expected",
            )
        check_rejects(prompt)


def check_rejects(prompt: schema.Prompt) -> None:
    """Errors: `ConfigFailed` for a text that any answer has, or that the expected answer has."""
    for reject in prompt.reject:
        where = f"prompts: the prompt {prompt.name!r} rejects"
        if not reject.strip():
            raise ConfigFailed(f"{where} nothing, which any answer has", hint="leave the empty text out of reject")
        words = r"\s+".join(map(re.escape, reject.casefold().split()))
        if re.search(rf"(?<!\w){words}(?!\w)", (prompt.expect or "").casefold()):
            raise ConfigFailed(
                f"{where} {reject!r}, which the text that it expects has: no answer could be right",
                hint="reject texts that the expected one does not contain",
            )


def check_model(model: schema.Model) -> None:
    """Errors: `ConfigFailed`."""
    given = [key for key in schema.MODEL_SOURCES if getattr(model, key) is not None]
    if len(given) > 1 or not (given or model.config):
        what = f"{' and '.join(given)} are given" if given else "it names no checkpoint"
        raise ConfigFailed(f"model={model.name}: {what}", hint=f"allowed: one of {', '.join(schema.MODEL_SOURCES)}")
    for key in given:
        if not getattr(model, key).strip():
            raise ConfigFailed(f"model.{key}: it is empty", hint=f"set it: model.{key}=VALUE")
    if (model.gguf or model.revision != "main") and not model.hub:
        key = "gguf" if model.gguf else "revision"
        raise ConfigFailed(f"model.{key}: model={model.name} is of no hub", hint="a file here is model.path=FILE")
    if not 0 <= model.seed < 2**63:
        raise ConfigFailed(f"model.seed: {model.seed} is not allowed", hint="allowed: 0 or more, below 2**63")
    if model.seed and not (model.family or model.config):
        raise ConfigFailed(f"model.seed: model={model.name} has its own weights", hint="a seed goes with model=random")
    if model.family:
        families.read(model.family)
    if model.config and not (model.family or isinstance(model.config.get("model_type"), str)):
        raise ConfigFailed(f"model={model.name}: its config has no model_type")


def check_builder(builder: schema.Builder) -> None:
    """Errors: `ConfigFailed`."""
    if not releases.accepts(builder.version):
        near = ", ".join(releases.nearest(builder.version))
        raise ConfigFailed(f"builder.version: {builder.version!r} is no release", hint=f"near it are: {near}")
    if builder.as_of is not None:
        try:
            date.fromisoformat(builder.as_of)
        except ValueError as error:
            raise ConfigFailed(f"builder.as_of: {builder.as_of!r} is no date", hint="allowed: YYYY-MM-DD") from error


def check_exclude(rules: Any) -> None:
    """Errors: `ConfigFailed`."""
    hint = f"allowed: a list of rules {{factor: value or list of values}}; the factors: {', '.join(FACTORS)}"
    if not isinstance(rules, list):
        raise ConfigFailed(f"exclude: {rules!r} is no list", hint=hint)
    for rule in rules:
        if not isinstance(rule, dict) or not rule:
            raise ConfigFailed(f"exclude: {rule!r} is no rule", hint=hint)
        for factor, value in rule.items():
            if factor not in FACTORS:
                raise ConfigFailed(f"exclude: {factor!r} is no factor", hint=hint)
            values = value if isinstance(value, list) else [value]
            if not values or any(item is None or isinstance(item, (list, dict)) for item in values):
                raise ConfigFailed(f"exclude: {factor}: {value!r} is neither a value nor a list of values", hint=hint)


def excluded(cell: Cell, rules: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the cell's labels match every factor of one of the rules."""
    return any(all(matches(cell.factors[factor], value) for factor, value in rule.items()) for rule in rules)


def matches(label: str, value: Any) -> bool:
    """Whether a label is the value, or one of the values, or fits a pattern among them."""
    wanted = [str(item) for item in (value if isinstance(value, list) else [value])]
    return any(label == text or fnmatchcase(label, text) for text in wanted)


def one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigFailed(f"{key}: {value!r} is not allowed", hint=f"allowed: {', '.join(allowed)}")


def plain(value: Any) -> dict[str, Any]:
    """A part of the config as plain data."""
    return asdict(value)


def model_path(config: schema.Factors) -> Path:
    """The checkpoint's folder or file: absolute, or relative to here, or else to the project."""
    assert config.model.path is not None
    try:
        path = Path(config.model.path).expanduser()
    except RuntimeError as error:
        raise ConfigFailed(f"model.path {config.model.path!r}: {error}") from error
    if path.is_absolute() or path.exists():
        return path
    return paths.PROJECT / path


def model_place(model: schema.Model) -> str:
    """What tells two models of one name apart."""
    return model.path or (f"{model.hub}@{model.revision}" if model.hub else f"{model.family or model.name}")
