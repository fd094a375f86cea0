"""A real checkpoint's config made small, with everything left as it is that its constants depend on.

Embedding scale, rotary tables, attention scale, epsilons and the like are worked out from the config alone: hidden
size, head size, RoPE fields, lengths and multipliers stay. What only makes the weights many goes: layers beyond the
first of each kind, heads, the width of the MLP, experts.
"""

from __future__ import annotations

import copy

import torch
from checkpoint import NOT_PER_LAYER
from task import StageError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import __version__ as transformers_version

# Published in nested form, and their text model is whole without the other towers. Others become their text config.
TOWERS_OPTIONAL = ("gemma4", "gemma4_unified")
TOWERS = ("vision_config", "audio_config")
WIDTHS = (
    "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
    "block_ff_dim", "ffn_hidden_size",
)  # fmt: skip
WIDTH = 32
EXPERTS, CHOSEN = 4, 2
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHOSEN_COUNTS = ("num_experts_per_tok", "experts_per_token", "top_k_experts")
# Lists of layer numbers, not of an entry a layer.
INDEX_LISTS = ("full_attn_idxs", "mlp_only_layers")


def configured(config: dict):
    """transformers' config object of `config`, as its files would be read.

    Errors: StageError where this version does not know the model type.
    """
    fields = copy.deepcopy(config)
    model_type = fields.pop("model_type", None)
    try:
        return AutoConfig.for_model(model_type, **fields)
    except (KeyError, ValueError) as error:
        if "model_type" not in str(error) and "model identifier" not in str(error):
            raise
        raise StageError(
            f"transformers {transformers_version} does not know the model type {model_type!r}",
            kind="UnknownModelType",
            hint="take a reference with a newer transformers",
        ) from error


def completed(config: dict) -> dict:
    """The text part of `config` with what the class fills in."""
    return configured(config).get_text_config().to_dict()


def layer_kinds(text: dict) -> list[str]:
    """What kind each layer of a completed text config is: layers of one kind hold the same tensors, used alike."""
    count = text["num_hidden_layers"]
    usual = "sliding_attention" if text.get("sliding_window") else "full_attention"
    kinds = [[kind] for kind in (text.get("layer_types") or [usual] * count)]
    for key, values in text.items():
        per_layer = isinstance(values, list) and len(values) == count and key not in ("layer_types", *INDEX_LISTS)
        if per_layer and not NOT_PER_LAYER.search(key) and len(set(map(str, values))) > 1:
            for kind, value in zip(kinds, values, strict=True):
                kind.append(f"{key} {value}")
    for number in range(count - (text.get("num_kv_shared_layers") or 0), count):
        kinds[number].append("shared keys and values")
    for number in text.get("mlp_only_layers") or []:
        if number < count:
            kinds[number].append("no experts")
    return [", ".join(kind) for kind in kinds]


def fewest(kinds: list[str]) -> int:
    """How many layers from the bottom hold every kind."""
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=0)


def shrunken(config: dict) -> dict:
    """The small config of a real one: the fields given, with those changed that must be.

    config: as in a config.json, nested or not; what it leaves to the class's
    defaults stays there. The vocabulary is the tokenizer's, and set elsewhere.
    """
    if "text_config" in config:
        full = configured(config)
        text = {"model_type": full.get_text_config().model_type, **config["text_config"]}
        if config["model_type"] in TOWERS_OPTIONAL:
            return {**config, **dict.fromkeys(TOWERS), "text_config": shrunken(text)}
        # Where the outer config says it, the class reads it there.
        outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        return shrunken({**outer, **text})
    text = completed(config)
    changes = {**fewer_layers(config, text), **narrower(config, text)}
    result = {**config, **changes}
    headed = {**result, **fewer_heads(text)}
    return headed if keeps_head_size(headed) else result


def fewer_layers(config: dict, text: dict) -> dict:
    """The layer count that holds every kind, and the given lists with an entry a layer, cut."""
    kinds, count = layer_kinds(text), text["num_hidden_layers"]
    shared = text.get("num_kv_shared_layers") or 0
    layers = fewest(kinds[: count - shared]) + fewest(kinds[count - shared :])
    changes: dict = {"num_hidden_layers": layers}
    for key, values in config.items():
        if key in INDEX_LISTS and isinstance(values, list):
            changes[key] = [number for number in values if number < layers]
        elif isinstance(values, list) and len(values) == count and not NOT_PER_LAYER.search(key):
            changes[key] = values[:layers]
    if shared:  # both groups begin at the bottom of what they were, so that each kind stays
        own = fewest(kinds[: count - shared])
        types = text["layer_types"]
        kept = types[:own] + types[count - shared : count - shared + layers - own]
        changes |= {"num_kv_shared_layers": layers - own, "layer_types": kept}
    return changes


def narrower(config: dict, text: dict) -> dict:
    """Narrow MLPs, and few experts where there are any."""
    seen = {**text, **config}
    changes = {key: WIDTH for key in WIDTHS if seen.get(key)}
    changes |= {key: min(EXPERTS, seen[key]) for key in EXPERT_COUNTS if seen.get(key)}
    return changes | {key: min(CHOSEN, seen[key]) for key in CHOSEN_COUNTS if seen.get(key)}


def fewer_heads(text: dict) -> dict:
    """Two query heads, on one key-value head where several shared one, of the size that they had."""
    queries = text["num_attention_heads"]
    keys = text.get("num_key_value_heads") or queries
    changes = {
        "head_dim": text.get("head_dim") or text["hidden_size"] // queries,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 if queries > keys else 2,
    }
    if text.get("num_global_key_value_heads"):
        changes["num_global_key_value_heads"] = 1
    if text.get("num_heads"):  # LFM2's configs say it twice
        changes["num_heads"] = 2
    if text.get("linear_num_key_heads"):
        changes["linear_num_key_heads"] = 1
        changes["linear_num_value_heads"] = text["linear_num_value_heads"] // text["linear_num_key_heads"]
    return changes


def keeps_head_size(config: dict) -> bool:
    """Whether the class takes this config's head_dim instead of working one out from the number of heads."""
    try:
        # A special token of a real checkpoint may be beyond the class's vocabulary.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(configured({**config, "pad_token_id": None}))
    except (ValueError, RuntimeError):  # Phi-3 compares its RoPE factors with hidden size over heads
        return False
    sizes = {config["head_dim"], config.get("global_head_dim", config["head_dim"])}
    found = (getattr(module, "head_dim", None) for module in model.modules())
    return all(size in sizes for size in found if isinstance(size, int))
