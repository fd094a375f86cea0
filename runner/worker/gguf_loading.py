"""What became of each tensor of a GGUF file in the model that transformers made of it: see `loading`.

The file has other names, and for some architectures other numbers: the rows of queries and keys in another order,
norms with 1 added, experts in one tensor or in several. transformers' own rules for both are applied to the file, and
what comes out is compared with what the model holds.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection

import torch
from loading import UNABLE, Held, Told, joined, judged, tensors_of, uncompared, without_key, words
from loading_names import Target
from loading_rows import FAULTS, entry, folded, starred

LOADER = "GGUF"
TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
IN_CONFIG = "in the config, as its rope scaling"


@torch.no_grad()
def audit(reader, model: torch.nn.Module, in_config: Collection[str] = ()) -> list[dict]:
    """Rows in the file's order, with its names; then the model's tensors that it has none for.

    reader: gguf's of the file. in_config: tensors that are no weights, and were read into the config.
    """
    processor, names = rules(reader, model)
    own, taken = tensors_of(model), set()
    groups: dict[str | None, list] = {}
    for tensor in reader.tensors:
        # The names of experts that transformers merges have no ".weight".
        name = names.get(tensor.name) or names.get(tensor.name.removesuffix(".weight"))
        groups.setdefault(None if tensor.name in in_config else name, []).append(tensor)
    found = {}
    for tensor in groups.pop(None, []):
        told = ("buffer", "converted", IN_CONFIG) if tensor.name in in_config else ("", "dropped")
        found[tensor.name] = entry(tensor.name, *told, **of_file(tensor))
    for name, tensors in groups.items():
        try:
            made, changed = made_of(tensors, processor, names)
            made, why = {each: value for each, value in made.items() if each in own}, ""
        except UNABLE as error:
            made, changed, why = dict.fromkeys({name} & own.keys()), True, uncompared(words(error))
        taken |= made.keys()
        found |= compared(tensors, made, changed, why, own)
    rest = without_key(None, {name: Target(name) for name in taken}, own, set(), {}, Told())
    return folded([*(found[tensor.name] for tensor in reader.tensors), *rest], LOADER)


def rules(reader, model: torch.nn.Module) -> tuple:
    """transformers' rules for the file: what changes tensors' numbers, and the model's names by the file's."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    architecture = reader.fields["general.architecture"].contents()
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    takes = "processor" in inspect.signature(get_gguf_hf_weights_map).parameters  # not in transformers 4
    return processor, get_gguf_hf_weights_map(model, processor) if takes else get_gguf_hf_weights_map(model)


def of_file(tensor) -> dict:
    """A tensor's shape, which the format has the other way round, and its dtype or kind of quantisation."""
    kind = tensor.tensor_type.name
    return {"shape": [int(size) for size in reversed(tensor.shape)], "stored": TYPES.get(kind, kind)}


def made_of(tensors: list, processor, names: dict[str, str]) -> tuple[dict[str, torch.Tensor], bool]:
    """What becomes of tensors that go together, by the model's names, and whether more than their names changes."""
    import gguf

    parsed: dict = {"tensors": {}}
    changed = len(tensors) > 1
    for tensor in tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        result = processor.process(
            weights=weights, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed
        )
        changed = changed or result.name is None or result.weights is not weights
        if result.name is not None:  # else the rule itself has put it where it belongs
            parsed["tensors"][names[result.name]] = torch.from_numpy(result.weights.copy())
    return parsed["tensors"], changed


def compared(
    tensors: list, made: dict[str, torch.Tensor | None], changed: bool, why: str, own: dict[str, Held]
) -> dict[str, dict]:
    """The entries of the file's tensors that were made into `made`; one that is wrong makes all of them so."""
    if not made:
        return {tensor.name: entry(tensor.name, "", "dropped", **of_file(tensor)) for tensor in tensors}
    outcome, numbers = "", ()
    for name, value in made.items():
        if value is not None and outcome not in FAULTS:
            outcome, why, numbers = judged(name, own[name], own[name].tensor, value, "", Told())
    first = next(iter(made))
    held, says = own[first], joined(f"as {starred(first)}", why)
    found = {}
    for tensor in tensors:
        file = of_file(tensor)
        whole = "loaded" if file["stored"] == held.sizes()["loaded"] else "cast"
        outcomes = outcome or ("converted" if changed else whole)
        found[tensor.name] = entry(tensor.name, held.kind, outcomes, says, numbers, **file, **held.sizes())
    return found
