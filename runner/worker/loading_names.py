"""Which tensor of a model takes which key of a checkpoint, as transformers 4 and 5 rename them at loading."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from checkpoint import TEXT_MODEL


class Target(NamedTuple):
    """What takes a key: the model's name of it, None for nothing.

    renamed: by transformers' rules for the class. converted: its values are merged with others', split or turned.
    parts: it is a part of a quantised tensor, its scales say.
    """

    name: str | None
    renamed: bool = False
    converted: bool = False
    parts: bool = False


def targets(model: torch.nn.Module, keys: Iterable[str], own: Mapping) -> dict[str, Target]:
    """What takes each key. own: the model's tensors by name."""
    rename, plain = renamer(model), canonical_names(model, own)
    found: dict[str, Target] = {}
    by_name: dict[str, str] = {}
    for key in sorted(keys, key=natural):  # the order in which they are loaded; some rules ask for it
        new, converted = rename(key)
        names = (new, plain.get(canonical(new, model))) if new != key or converted else ()
        name = next((name for name in names if name in own), None)
        if name is not None:
            found[key] = Target(name, renamed=new != key, converted=converted)
        else:
            name = next((name for name in (key, plain.get(canonical(key, model))) if name in own), None)
            found[key] = Target(name)
        if name is None or found[key].converted:
            continue
        # Of two that come to one name, that which has it, or else the first.
        other = by_name.setdefault(name, key)
        if other != key:
            by_name[name] = key if key == name else other
            found[other if key == name else key] = Target(None)
    return found


def natural(key: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]


def renamer(model: torch.nn.Module) -> Callable[[str], tuple[str, bool]]:
    """A function from a key to the name that transformers' rules make of it, and whether they convert its values."""
    rules = getattr(model, "_weight_conversions", None)
    if rules:  # transformers 5: those that were used in loading this model
        from transformers.core_model_loading import WeightConverter, rename_source_key

        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        renamings = [rule for rule in rules if not isinstance(rule, WeightConverter)]

        def by_rules(key: str) -> tuple[str, bool]:
            new, pattern = rename_source_key(key, renamings, converters)
            return new, pattern is not None

        return by_rules
    mapping = getattr(model, "_checkpoint_conversion_mapping", None) or {}  # transformers 4

    def by_mapping(key: str) -> tuple[str, bool]:
        for pattern, replacement in mapping.items():
            new, count = re.subn(pattern, replacement, key)
            if count:
                return new, False
        return key, False

    return by_mapping


def batches(model: torch.nn.Module, names: Iterable[str]) -> dict[str, list[str]]:
    """For each of the model's tensors that transformers' rules convert, those that are converted back together.

    Errors: what transformers raises for rules that it has no way back of.
    """
    from transformers.core_model_loading import WeightConverter, rename_source_key

    back = [rule.reverse_transform() for rule in model._weight_conversions[::-1] if isinstance(rule, WeightConverter)]
    by_key: dict[str, list[str]] = {}
    for name in names:
        key, pattern = rename_source_key(name, [], back)
        if pattern is not None:
            by_key.setdefault(key, []).append(name)
    return {name: members for members in by_key.values() for name in members}


def canonical(name: str, model: torch.nn.Module) -> str:
    """`name` without what stands before it in a model among several, or in one with a head."""
    name = TEXT_MODEL.sub(r"\1", name, count=1)
    for prefix in (getattr(model, "base_model_prefix", ""), "model"):
        if prefix:
            name = name.removeprefix(f"{prefix}.")
    return name


def canonical_names(model: torch.nn.Module, own: Iterable[str]) -> dict[str, str]:
    """The model's names by their canonical form, those that share one left out."""
    found: dict[str, str | None] = {}
    for name in own:
        plain = canonical(name, model)
        found[plain] = None if plain in found else name
    return {plain: name for plain, name in found.items() if name is not None}


def ignored_by(model: torch.nn.Module, own: Iterable[str]) -> re.Pattern | None:
    """The keys that the class leaves out rightly: its own list, and what transformers adds for old checkpoints."""
    patterns = set(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
    if any(name.endswith("rotary_emb.inv_freq") for name in own):
        patterns.add(r"rotary_emb\.inv_freq")
    if any(name.endswith("position_ids") for name in own):
        patterns.add(r"(^|\.)position_ids$")
    return re.compile("|".join(f"(?:{pattern})" for pattern in sorted(patterns))) if patterns else None


def pairs_tied_by(model: torch.nn.Module) -> dict[str, str]:
    """Names that are one tensor where the config ties the embeddings, each to the other, shared memory or not."""
    config = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if not getattr(text, "tie_word_embeddings", False) and not getattr(config, "tie_word_embeddings", False):
        return {}
    ends = [get() for name in ("get_input_embeddings", "get_output_embeddings") if (get := getattr(model, name, None))]
    modules = {id(module): name for name, module in model.named_modules()}
    names = [f"{modules[id(end)]}.weight" for end in ends if id(end) in modules]
    return {names[0]: names[1], names[1]: names[0]} if len(names) == 2 else {}


def parts_of_quantised(taken: Mapping[str, Target], own: Iterable[str], unusual: Iterable[str]) -> dict[str, Target]:
    """Of keys that nothing takes by name, those with a tensor of the model whose name theirs begins with.

    unusual: the keys with a dtype of quantised weights: a tensor without any is not what was quantised.
    """
    there = {target.name for target in taken.values()}
    free = {name.removesuffix(".weight"): name for name in own if name not in there}

    def owner(key: str) -> str | None:
        return next((stem for stem in free if key.startswith((f"{stem}.", f"{stem}_"))), None)

    left = {key: owner(key) for key, target in taken.items() if target.name is None}
    quantised = {left[key] for key in unusual if left.get(key)}
    return {key: Target(free[stem], renamed=True, parts=True) for key, stem in left.items() if stem in quantised}
