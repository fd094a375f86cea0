"""The whole sweep, composed once.

Hydra takes about 70 ms to compose a config, so a cell is not composed: each
swept value is, once, and a cell is put together from the parts. That is the
same as composing it, because an axis owns a top-level key of the schema and
its values touch nothing else. Anything else that is swept (an experiment, a
nested default) is composed for every cell. `suspects` stands for an axis of patches.

A value that does not compose is that value's error, and fails its cells alone.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner import releases, schema
from runner.cells import NONE, Cell, as_asked, from_plain, model_place, options_of
from runner.failures import ConfigFailed

KEYS = frozenset(field.name for field in fields(schema.Config))
SETTINGS = frozenset(field.name for field in fields(schema.Settings))
OF_THE_SWEEP = ("suspects", "exclude")  # settings that say which cells there are
VALUES = ("dtype", "layers", "precision", "max_new_tokens", "threads")  # factors that are plain values


@dataclass(frozen=True)
class Composed:
    """A composed config as plain dicts, and Hydra's choice for each config group."""

    plain: dict
    choices: dict[str, str]


@dataclass(frozen=True)
class Part:
    """One value of an axis: its overrides, and the base composed with them."""

    overrides: tuple[str, ...]
    composed: Composed | ConfigFailed


# Folders of conf/ that hold data and no choices.
NO_GROUPS = {"environment", "family"}
# Hydra's options that take a value.
VALUED = {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--package", "-p", "--cfg", "-c"}


def options_first(arguments: list[str]) -> list[str]:
    """Options before overrides: Hydra's parser takes overrides in one place only."""
    options, overrides, rest = [], [], iter(arguments)
    for argument in rest:
        if argument in VALUED:
            options += [argument, *itertools.islice(rest, 1)]
        else:
            (options if argument.startswith("-") else overrides).append(argument)
    return options + overrides


def check_keys(arguments: list[str], conf: Path) -> None:
    """Refuse an override whose key is no factor, setting or group: Hydra would not say what is."""
    own = [b for a, b in itertools.pairwise(arguments) if a in ("--config-dir", "-cd")]
    own += [a.partition("=")[2] for a in arguments if a.startswith("--config-dir=")]
    folders = [folder for folder in (conf, *map(Path, own)) if folder.is_dir()]
    groups = {path.name for folder in folders for path in folder.iterdir() if path.is_dir()} - NO_GROUPS
    known = sorted(KEYS | groups | {"hydra"})
    for argument in arguments:
        match = re.match(r"[+~]{0,2}([A-Za-z_][\w-]*)[^=]*=", argument) if not argument.startswith("-") else None
        if match and match.group(1) not in known:
            near = difflib.get_close_matches(match.group(1), known, n=1)
            raise ConfigFailed(
                f"{argument}: there is no {match.group(1)!r}" + (f"; did you mean {near[0]}?" if near else ""),
                hint=f"known: {', '.join(known)}",
            )


def compose_sweep(loader: ConfigLoader, master: DictConfig, arguments: list[str]) -> list[Cell]:
    """All cells of the command line, in the order of its axes (the last varies fastest)."""
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(arguments)
    refuse_repeated(overrides)
    refuse_swept_settings(overrides)
    swept = {o.get_key_element(): values_of(o) for o in overrides if o.is_sweep_override()}
    swept |= suspect_axis(loader, master, overrides)  # the last, so that a builder's patches stand together
    fixed = [o.input_line for o in overrides if not o.is_sweep_override() and o.input_line]
    owned = {key: values for key, values in swept.items() if axis_of(key) in KEYS}
    free = {key: values for key, values in swept.items() if key not in owned}
    axes = group_axes(owned)
    cells: dict[tuple[str, ...], Cell] = {}
    for outer in itertools.product(*free.values()):
        for assigned, cell in assemble(loader, master, fixed, fixed + list(outer), axes):
            cells[tuple(sorted((*outer, *assigned)))] = cell
    # Back to the order in which the axes stand on the command line.
    ordered = [cells[tuple(sorted(combination))] for combination in itertools.product(*swept.values())]
    return without_repeats(told_apart(ordered))


def without_repeats(cells: list[Cell]) -> list[Cell]:
    """Of cells that came out the same, since their backend has no builder that could vary, the first."""
    kept: dict[str, Cell] = {}
    for number, cell in enumerate(cells):
        same = cell.factors["builder"] == NONE and cell.failure is None
        kept.setdefault(f"{cell.hash} {json.dumps(cell.asked(), sort_keys=True)}" if same else str(number), cell)
    return list(kept.values())


def told_apart(cells: list[Cell]) -> list[Cell]:
    """Name models by their whole place where two checkpoints of one name are in a sweep."""
    paths: dict[str, set[str]] = {}
    for cell in cells:
        if cell.config:
            paths.setdefault(cell.factors["model"], set()).add(model_place(cell.config.model))
    return [
        replace(cell, factors={**cell.factors, "model": model_place(cell.config.model)})
        if cell.config and len(paths[cell.factors["model"]]) > 1
        else cell
        for cell in cells
    ]


def refuse_repeated(overrides: list[Override]) -> None:
    """A key given twice has two meanings: which one is meant is not for this program to say."""
    keys = [o.get_key_element() for o in overrides]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigFailed(f"{twice[0]} is given twice", hint=f"give it once, its values with commas: {twice[0]}=A,B")


def refuse_swept_settings(overrides: list[Override]) -> None:
    """A setting is the whole sweep's: of several values one would count, and nobody could say which."""
    for override in overrides:
        key = override.get_key_element().lstrip("+~")
        if override.is_sweep_override() and axis_of(key) in SETTINGS:
            hint = f"give a list: {key}=[A,B]" if key in OF_THE_SWEEP else "give it one value"
            raise ConfigFailed(f"{override.input_line}: {key} is the sweep's and not a cell's", hint=hint)


def refuse_own_settings(base: Composed, master: Composed) -> None:
    """What says which cells there are cannot differ among swept experiments."""
    for key in OF_THE_SWEEP:
        if base.plain[key] != master.plain[key]:
            raise ConfigFailed(
                f"{key}: {base.plain[key]} is of one of several experiments",
                hint=f"run the experiments one by one, or without it: {key}=[]",
            )


def suspect_sets(suspects: Sequence[str]) -> list[tuple[str, ...]]:
    """What shows which suspects matter: none, each alone, all but each, all; nothing twice."""
    alone = [(suspect,) for suspect in suspects]
    others = [tuple(other for other in suspects if other != suspect) for suspect in suspects]
    return list(dict.fromkeys([(), *alone, *others, tuple(suspects)]))


def suspect_axis(loader: ConfigLoader, master: DictConfig, overrides: list[Override]) -> dict[str, list[str]]:
    """The patch axis that `suspects` stands for, as swept values; {} where there are none. Errors: `ConfigFailed`."""
    plain = plain_of(master).plain
    suspects = plain["suspects"]
    if suspects == []:
        return {}
    check_suspects(suspects, patches_of(loader, master))
    given = [o.input_line for o in overrides if o.get_key_element().lstrip("+~") == "patch"]
    if given or plain["patch"]["changes"] or any(plain["patch"]["uses"].values()):
        raise ConfigFailed(
            f"suspects={listed(suspects)} and {given[0] if given else 'an experiment with a patch'} are both given",
            hint="suspects makes the patch axis; leave one of them out (suspects=[] takes an experiment's away)",
        )
    sets = suspect_sets(suspects)
    return {"patch": [f"patch={listed(names) if len(names) > 1 else ''.join(names) or 'none'}" for names in sets]}


def listed(names: Sequence[str]) -> str:
    """A list as Hydra's command line has it."""
    return f"[{','.join(names)}]"


def patches_of(loader: ConfigLoader, master: DictConfig) -> list[str]:
    """The patch files that there are, those of --config-dir too."""
    hydra = master.hydra
    return loader.get_group_options("patch", config_name=hydra.job.config_name, overrides=list(hydra.overrides.hydra))


def check_suspects(suspects: object, patches: Sequence[str]) -> None:
    """Errors: `ConfigFailed`."""
    allowed = [name for name in patches if name != "none"]
    hint = f"allowed: a list of some of {', '.join(allowed)}, each once"
    if not isinstance(suspects, list):
        raise ConfigFailed(f"suspects: {suspects!r} is no list", hint=hint)
    for name in suspects:
        if name not in allowed:
            raise ConfigFailed(f"suspects: {name!r} is not allowed", hint=hint)
        if suspects.count(name) > 1:
            raise ConfigFailed(f"suspects: {name!r} stands twice", hint=hint)


def values_of(override: Override) -> list[str]:
    """The swept values as single overrides: ``key=value``."""
    if not override.is_discrete_sweep():
        raise ConfigFailed(
            f"{override.input_line}: this kind of sweep has no cells",
            hint="list the values: key=a,b,c, or key=range(1,4), or key=glob(*)",
        )
    # Hydra would write true as Python does, and rows would say it so.
    found = [value.lower() if value in ("True", "False") else value for value in override.sweep_string_iterator()]
    values = [f"{override.get_key_element()}={value}" for value in found]
    if not values:
        raise ConfigFailed(f"{override.input_line}: no value matches, so there would be no cell")
    return values


def axis_of(key: str) -> str:
    """The top-level key that an override's key belongs to; "" where it is not a plain one."""
    return "" if key[0] in "+~" or "@" in key or "/" in key else key.split(".")[0]


def group_axes(swept: Mapping[str, list[str]]) -> dict[str, list[tuple[str, ...]]]:
    """Swept keys by top-level key: those that share one (builder, builder.ref) vary together."""
    groups: dict[str, list[list[str]]] = {}
    for key, values in swept.items():
        groups.setdefault(axis_of(key), []).append(values)
    return {axis: list(itertools.product(*values)) for axis, values in groups.items()}


def part_of(
    loader, master, base: Composed | ConfigFailed, fixed: list[str], axis: str, overrides: tuple[str, ...]
) -> Part:
    """One value of an axis. A plain value is put into the base as it is: there is nothing to compose."""
    if axis in VALUES and len(overrides) == 1 and isinstance(base, Composed):
        override = OverridesParser.create().parse_override(overrides[0])
        if override.get_key_element() == axis:
            return Part(overrides, Composed({**base.plain, axis: override.value()}, base.choices))
    return Part(overrides, compose_one(loader, master, [*fixed, *overrides]))


def assemble(loader, master, given: list[str], fixed: list[str], axes: Mapping[str, list[tuple[str, ...]]]):
    """Yield (overrides, cell) for the product of `axes` over one base.

    given: the command line's fixed overrides; fixed: those, and one combination of what is composed for every cell.
    """
    # Hydra has composed the command line without its sweeps already.
    whole = plain_of(master)
    base = whole if fixed == given else compose_one(loader, master, fixed)
    if isinstance(base, Composed):
        refuse_own_settings(base, whole)
    parts = [
        [part_of(loader, master, base, fixed, axis, overrides) for overrides in values] for axis, values in axes.items()
    ]
    for combination in itertools.product(*parts):
        assigned = tuple(itertools.chain.from_iterable(part.overrides for part in combination))
        yield assigned, cell_of(base, dict(zip(axes, combination, strict=True)), [*fixed, *assigned])


def cell_of(base: Composed | ConfigFailed, parts: Mapping[str, Part], overrides: list[str]) -> Cell:
    """A cell from the base config and one part an axis; `overrides` are those of both."""
    composed = [base, *(part.composed for part in parts.values())]
    failure = next((item for item in composed if isinstance(item, ConfigFailed)), None)
    plain, choices = ({}, {}) if isinstance(base, ConfigFailed) else (base.plain, base.choices)
    plain, choices = dict(plain), dict(choices)
    for axis, part in parts.items():
        if isinstance(part.composed, ConfigFailed):
            raw = dict(override.split("=", 1) for override in part.overrides)
            plain[axis] = choices[axis] = raw.get(axis, " ".join(part.overrides))
        else:
            plain[axis] = part.composed.plain[axis]
            choices.pop(axis, None)
            choices |= {axis: part.composed.choices[axis]} if axis in part.composed.choices else {}
    if failure:
        return Cell(as_asked(plain, choices), options_of(overrides), failure=failure)
    return from_plain(plain, choices, overrides)


def compose_one(loader, master: DictConfig, overrides: list[str]) -> Composed | ConfigFailed:
    """One composed config, or the failure that Hydra's error becomes."""
    try:
        config = loader.load_configuration(
            config_name=master.hydra.job.config_name,
            overrides=[*master.hydra.overrides.hydra, *overrides],
            run_mode=RunMode.RUN,
        )
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, AttributeError) as error:
        return ConfigFailed(reason(error), hint=hint(error))
    return plain_of(config)


def plain_of(config: DictConfig) -> Composed:
    """A composed config without Hydra's node, as plain dicts, interpolations unresolved."""
    plain = OmegaConf.to_container(OmegaConf.masked_copy(config, sorted(KEYS)))
    choices = {str(key): str(value) for key, value in config.hydra.runtime.choices.items()}
    # Hydra names no choice for a list (patch=[a,b]): there it is what was asked.
    asked = dict(item.split("=", 1) for item in config.hydra.overrides.task if "=" in item)
    lists = {key: value for key, value in asked.items() if value.startswith("[") and key not in choices}
    return Composed(plain, lists | choices)


def reason(error: BaseException) -> str:
    """What is wrong, in a line: the outer message names the override, the innermost the fault."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        said = [text.strip() for text in str(current).strip().splitlines()] or [""]
        line = " ".join(said[:2]) if said[0].endswith(":") else said[0]
        line = re.sub(r"^Could not override '([\w.]+)'\.?$", r"there is no key \1 here", line)
        if line and not any(line in known for known in lines):
            lines.append(line)
        current = current.__cause__
    return ": ".join([lines[0], *lines[1:][-1:]]) if lines else type(error).__name__


def hint(error: BaseException) -> str:
    """The options that Hydra lists for an unknown value; of releases, the nearest."""
    if absent := re.search(r"Could not override '(\w+)\.", str(error)):
        return f"not every value of {absent[1]} has this key: sweep those that have it by themselves"
    _, found, rest = str(error).partition("Available options in ")
    listed = rest.split("Config search path:")[0].split() if found else []
    if not listed:
        return "python -m runner --cfg job shows every key and its value"
    group, options = listed[0].strip("':"), listed[1:]
    asked = re.search(rf"Could not find '{group}/([^']+)'", str(error))
    if group == "builder" and asked:
        files = [option for option in options if option not in releases.versions()]
        options = [*files, *releases.nearest(asked.group(1)), f"and {len(releases.versions())} releases in all"]
    return f"allowed in {group}: {', '.join(options)}"
