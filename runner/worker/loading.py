"""What became of each tensor of a checkpoint when a loader made a model of it.

Told by values: the model's are compared with the files', whatever the loader says of them. A loader may leave a
tensor at the value that the class starts it with, or take another slice of it, and say nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from checkpoint import TYPES, files_of
from loading_names import Target, batches, ignored_by, pairs_tied_by, parts_of_quantised, targets
from loading_rows import ABSENT, FAULTS, IGNORED, entry, fault_line, faults, finding, folded, merged, starred
from safetensors import SafetensorError, safe_open

__all__ = ["Stored", "audit", "fault_line", "faults", "finding", "merged", "save"]

FILE = "loading.json"
# What torch, safetensors or transformers raise for tensors that they cannot read, cast, compare or convert back.
UNABLE = (
    RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ImportError, SafetensorError,
)  # fmt: skip
PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NUMBERS = 2**22  # compared at a time
MAPPED = 2**28  # bytes read before files are closed
Place = Callable[[str, torch.Tensor], tuple[torch.Tensor, str]]


class Stored:
    """The tensors of a checkpoint folder's safetensors files, read one at a time.

    Of several files model.safetensors, or else those that an index names, as transformers does; or else all.
    """

    def __init__(self, folder: str):
        self._entries: dict[str, tuple[str, dict]] = {}
        self._open: dict[str, Any] = {}
        self._read = 0
        for path in files_of(folder):
            with open(path, "rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            self._entries |= {name: (path, found) for name, found in header.items() if name != "__metadata__"}

    @property
    def names(self) -> list[str]:
        """In the files' order."""
        return list(self._entries)

    def get(self, name: str) -> torch.Tensor:
        path = self._entries[name][0]
        if self._read > MAPPED:  # what was read of a mapped file stays in memory until it is closed
            self._open.clear()
            self._read = 0
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        tensor = self._open[path].get_tensor(name)
        self._read += tensor.nbytes
        return tensor

    def shape(self, name: str) -> list[int]:
        return list(self._entries[name][1]["shape"])

    def dtype(self, name: str) -> torch.dtype | str:
        """safetensors' own word for one that torch is not known to have."""
        code = self._entries[name][1]["dtype"]
        return TYPES.get(code, code)


@dataclass(frozen=True)
class Held:
    """A tensor that the model has; tensor: this rank's part of it."""

    tensor: torch.Tensor
    kind: str
    persistent: bool

    def sizes(self) -> dict:
        return {"held": list(self.tensor.shape), "loaded": dtype_name(self.tensor.dtype)}


@dataclass(frozen=True)
class Told:
    """What the caller of an audit says of the loading; quantised: the method's name, or ""."""

    missing: Collection[str] = ()
    place: Place | None = None
    copied: Collection[str] = ()
    defaults: Mapping[str, torch.Tensor] | None = None
    quantised: str = ""


@torch.no_grad()
def audit(
    model: torch.nn.Module,
    stored: Stored,
    loader: str,
    missing: Collection[str] = (),
    place: Place | None = None,
    copied: Collection[str] = (),
    defaults: Mapping[str, torch.Tensor] | None = None,
) -> list[dict]:
    """Rows that say, in the checkpoint's order, what became of each tensor; then the model's that it has none for.

    missing: the names that the loader says it did not find. place: of the model's name of a tensor and the whole
    tensor, what this rank must hold, and "sharded" or "replicated". copied: buffers copied by hand beside the loader.
    defaults: the values before loading, by name, to tell one that was left from one that was taken wrongly; without
    them a buffer or a vector that is 0 or 1 throughout was left. Names are the model's. A checkpoint's tensor is one
    count, and so is a tensor of the model that has none in the checkpoint.
    """
    own = tensors_of(model)
    told = Told(frozenset(missing), place, frozenset(copied), defaults, quantised_by(model))
    taken = targets(model, stored.names, own)
    taken |= parts_of_quantised(taken, own, [key for key in stored.names if stored.dtype(key) not in PLAIN])
    ignores, entries, converted = ignored_by(model, own), {}, []
    for key in stored.names:
        target = taken[key]
        unclaimed = target.name is None or not own[target.name].persistent
        if unclaimed and ignores and any(ignores.search(name) for name in (key, target.name or key)):
            taken[key] = Target(None)
            entries[key] = dropped(stored, key, IGNORED)
        elif target.name is None:
            entries[key] = dropped(stored, key)
        elif target.converted:
            converted.append(key)
        else:
            entries[key] = whole(stored, key, target, own[target.name], told)
    found, parts = reverted(model, stored, converted, taken, own, told)
    entries |= found
    rest = without_key(stored, taken, own, parts, pairs_tied_by(model), told)
    return folded([*(entries[key] for key in stored.names), *rest], loader)


def save(rows: list[dict], out: str) -> dict:
    """Write the rows to `out` as loading.json. Returns {"loading": the line of faults, "findings": warnings}."""
    with open(os.path.join(out, FILE), "w", encoding="utf-8") as file:
        json.dump(rows, file, ensure_ascii=False)
    return {"loading": fault_line(rows), "findings": finding(rows)}


def tensors_of(model: torch.nn.Module) -> dict[str, Held]:
    """Every parameter and buffer by name, tied ones by each of their names."""
    found = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        found[name] = Held(part_of(tensor), "parameter", True)
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module.named_buffers(recurse=False, remove_duplicate=False):
            full = f"{prefix}.{name}" if prefix else name
            found[full] = Held(part_of(tensor), "buffer", name not in module._non_persistent_buffers_set)
    return found


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def quantised_by(model: torch.nn.Module) -> str:
    """The method of a quantised model, "" for others."""
    how = getattr(getattr(model, "config", None), "quantization_config", None)
    method = how.get("quant_method") if isinstance(how, Mapping) else getattr(how, "quant_method", None)
    return str(getattr(method, "value", method) or "unknown") if how else ""


def quantised_in(told: Told, dtype: torch.dtype | str) -> str:
    return f"quantised ({told.quantised or dtype_name(dtype)})"


def dtype_name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def of_file(stored: Stored, key: str) -> dict:
    return {"shape": stored.shape(key), "stored": dtype_name(stored.dtype(key))}


def dropped(stored: Stored, key: str, says: str = "") -> dict:
    return entry(key, "", "dropped", says, **of_file(stored, key))


def whole(stored: Stored, key: str, target: Target, held: Held, told: Told) -> dict:
    """The entry of a tensor that the model has as the file has it, if under another name."""
    outcome = "converted" if target.renamed else "loaded" if stored.dtype(key) == held.tensor.dtype else "cast"
    says = f"as {starred(target.name)}" if target.name != key else ""
    sizes = of_file(stored, key) | held.sizes()
    if target.parts:
        return entry(key, held.kind, "converted", uncompared(quantised_in(told, stored.dtype(key)), says), **sizes)
    if held.tensor.is_meta:
        return entry(key, held.kind, outcome, uncompared("it is on the meta device", says), **sizes)
    try:
        want = stored.get(key)
    except UNABLE as error:
        return entry(key, held.kind, outcome, uncompared(words(error), says), **sizes)
    outcome, why, numbers = judged(target.name, held, held.tensor, want, outcome, told)
    return entry(key, held.kind, outcome, joined(says, why), numbers, **sizes)


def judged(
    name: str, held: Held, value: torch.Tensor, want: torch.Tensor, outcome: str, told: Told
) -> tuple[str, str, tuple[float, ...]]:
    """Outcome, words and numbers of the model's `value` where the checkpoint has `want`.

    outcome: what it is where they are the same. value: of the tensor `held`, or of what it reverts to.
    """
    if told.place:
        want, outcome = told.place(name, want)
    if name in told.copied:
        outcome = "copied"
    try:
        cast = want.to(value.device, value.dtype)
        if value.shape == want.shape and same(value, cast):
            return outcome, "", ()
        usual = value.dtype in PLAIN and want.dtype in PLAIN
        if not usual and (told.quantised or value.dtype in PLAIN):
            return outcome, uncompared(quantised_in(told, want.dtype)), ()
        outcome = unlike(name, held, told)
        if value.shape != want.shape:
            here, there = ("rank shape", "plan gives") if told.place else ("shape", "checkpoint has")
            return outcome, f"{here} {list(value.shape)} where the {there} {list(want.shape)}", ()
        if value.numel() == 1:
            keeps = "keeps" if outcome == "defaulted" else "has"
            return outcome, f"{keeps} {{}} where the checkpoint has {{}}", (float(value), float(cast))
        return outcome, "max abs diff {}", (largest_difference(value, cast),)
    except UNABLE as error:
        return outcome, uncompared(words(error)), ()


def unlike(name: str, held: Held, told: Told) -> str:
    """Whether a tensor that has not the checkpoint's value was left as it was, "defaulted", or else "differs"."""
    if name in told.missing:
        return "defaulted"
    default = (told.defaults or {}).get(name)
    if default is not None and not default.is_meta:
        default = part_of(default)
        as_before = default.shape == held.tensor.shape and same(held.tensor, default.to(held.tensor))
        return "defaulted" if as_before else "differs"
    starts_constant = held.kind == "buffer" or held.tensor.ndim <= 1
    left = starts_constant and any(bool((held.tensor == value).all()) for value in (0, 1))
    return "defaulted" if left else "differs"


def same(value: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype are equal; numbers that are none equal one another."""
    if value.dtype.itemsize == 1 and value.dtype.is_floating_point:
        value, want = value.view(torch.uint8), want.view(torch.uint8)
    if torch.equal(value, want):
        return True
    return value.dtype.is_floating_point and all(
        bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in in_parts(value, want)
    )


def largest_difference(value: torch.Tensor, want: torch.Tensor) -> float:
    return max(float((a.double() - b.double()).abs().max()) for a, b in in_parts(value, want))


def in_parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Rows of tensors of one shape, so many at a time that what is made of them is small."""
    first = tensors[0]
    if first.ndim == 0:
        yield tensors
        return
    step = max(1, NUMBERS // max(1, first[0].numel())) if len(first) else 1
    for start in range(0, len(first), step):
        yield tuple(tensor[start : start + step] for tensor in tensors)


def reverted(
    model: torch.nn.Module, stored: Stored, keys: list[str], taken: dict[str, Target], own: dict[str, Held], told: Told
) -> tuple[dict[str, dict], set[str]]:
    """The entries of keys that transformers merged, split or turned, and the names of all tensors that they became.

    Those that were made together are converted back and compared, one such batch at a time.
    """
    if not keys:
        return {}, set()
    direct = {target.name for target in taken.values() if not target.converted}
    free = [name for name, held in own.items() if held.persistent and name not in direct]
    try:
        together = batches(model, free)
    except UNABLE:
        together = {}
    groups: dict[tuple[str, ...], list[str]] = {}
    for key in keys:
        groups.setdefault(tuple(together.get(taken[key].name, ())), []).append(key)
    entries = {}
    for names, members in groups.items():
        unusual = [stored.dtype(key) for key in members if stored.dtype(key) not in PLAIN]
        if told.place or unusual:
            back, why = {}, quantised_in(told, unusual[0]) if unusual else "converted at loading, and held in parts"
        else:
            back, why = converted_back(model, {name: own[name].tensor for name in names})
        for key in members:
            entries[key] = of_converted(stored, key, taken[key].name, own, back, why, told)
    return entries, {name for names in groups for name in names}


def converted_back(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
    """What tensors of the model are under the checkpoint's keys, or else none, and why."""
    try:
        from transformers.core_model_loading import revert_weight_conversion

        back = revert_weight_conversion(model, tensors)
    except UNABLE as error:
        return {}, words(error)
    # The rules do not add the prefix of the model under the head.
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return {name.removeprefix(prefix): tensor for name, tensor in back.items()} | back, ""


def of_converted(
    stored: Stored, key: str, name: str, own: dict[str, Held], back: dict[str, torch.Tensor], why: str, told: Told
) -> dict:
    """The entry of a key that went into the tensor `name`, and is `back` if it could be converted back."""
    held, says = own[name], f"in {starred(name)}"
    if key == name:  # a rule may leave a tensor as it is
        as_it_is = whole(stored, key, Target(name), held, told)
        if not as_it_is["says"]:
            return as_it_is
    outcome, reason, numbers = "converted", uncompared(why or "it is not converted back"), ()
    if key in back:
        try:
            want = stored.get(key)
        except UNABLE as error:
            reason = uncompared(words(error))
        else:
            outcome, reason, numbers = judged(name, held, back[key], want, "converted", told)
    return entry(key, held.kind, outcome, joined(says, reason), numbers, **of_file(stored, key), **held.sizes())


def without_key(
    stored: Stored, taken: dict[str, Target], own: dict[str, Held], parts: set[str], pairs: dict[str, str], told: Told
) -> Iterator[dict]:
    """The entries of the model's tensors for which the checkpoint has no key.

    parts: of what conversions made together, of which only one is a key's target. pairs: of what is tied.
    """
    keys = {target.name: key for key, target in taken.items() if target.name is not None}
    places = {place_of(own[name].tensor): name for name in keys}
    for name, held in own.items():
        if name in keys:
            continue
        partner = places.get(place_of(held.tensor)) if held.tensor.numel() and not held.tensor.is_meta else None
        if partner is None and pairs.get(name) in keys and is_of(stored, keys[pairs[name]], name, held, told):
            partner = pairs[name]
        if partner is not None:
            yield entry(name, held.kind, "tied", f"with {starred(partner)}", **held.sizes())
        elif held.kind == "buffer" and not (held.persistent and name in told.missing):
            yield entry(name, held.kind, "computed", ABSENT if held.persistent else "", **held.sizes())
        elif name in parts:
            yield entry(name, held.kind, "converted", "of a key with several", **held.sizes())
        else:
            yield entry(name, held.kind, "defaulted", ABSENT, **held.sizes())


def is_of(stored: Stored, key: str, name: str, held: Held, told: Told) -> bool:
    """Whether a tensor of the model has the value of a key that it is tied with."""
    try:
        want = stored.get(key)
    except UNABLE:
        return False
    return judged(name, held, held.tensor, want, "", told)[0] not in FAULTS


def place_of(tensor: torch.Tensor) -> tuple:
    """Where a tensor's numbers lie: tensors that are one have the same."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.dtype, tensor.device


def uncompared(why: str, says: str = "") -> str:
    return joined(says, f"values not compared: {why}")


def joined(*says: str) -> str:
    return ", ".join(filter(None, says))


def words(error: Exception) -> str:
    """An error in one line, without the braces of a place for numbers."""
    said = (str(error).strip().splitlines() or [""])[0][:160].replace("{", "(").replace("}", ")")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
