"""A small model with random weights, in the form of a published checkpoint.

No tensor keeps its default: a fault in how an export treats a norm, bias or scalar that is 1 or 0 shows nowhere.
Values are drawn per tensor of the file, from the seed and the tensor's name, so that they are the same whatever
the class's own initialisation does and in every version of transformers; all of them are numbers that bf16 holds.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import tempfile

import torch
from checkpoint import write_json
from neutral import asked_by
from noise import free_memory
from safetensors.torch import load_file, save_file
from shrink import completed, configured, layer_kinds, shrunken
from task import StageError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# What a config.json may say of files or of a dtype that this checkpoint does not have.
DROPPED = ("quantization_config", "auto_map", "dtype", "_name_or_path")
# Its layer norms add 1 to the weight, yet the class starts them at 1.
NEUTRAL = {"nemotron": 0.0}
# Their attention has no scale of its own; the norms on queries and keys stand for it.
NORMS_SCALE = ("gemma4_text", "gemma4_unified_text")
# Stored [experts, in, out]; a Linear, and other families' experts, have the out side first.
IN_FIRST = ("gpt_oss",)
LEAST_RANGE = 1.0
# Fields of published configs that transformers 5 has other names for.
LEGACY = (
    "rope_theta", "rope_scaling", "rope_local_base_freq", "sliding_window_pattern", "partial_rotary_factor",
    "rotary_dim", "torch_dtype", "architectures", "hidden_act", "hidden_activation",
)  # fmt: skip
# For each parameter: twice in fp32, as the class starts it and as it is read back, once in bf16, and the drawing's own.
BYTES = 16


def make(config: dict, seed: int, tokenizer: str, out: str, shrink: bool = False, given: tuple[str, ...] = ()) -> dict:
    """Write a random checkpoint in bf16 to `out`, an existing folder, and read it back to check it.

    config: fields of a config.json, model_type among them; the vocabulary size
    and the special tokens are taken from `tokenizer`, a folder whose tokenizer
    becomes the checkpoint's. shrink: `config` is a real checkpoint's, to be
    made small first. given: fields that were set by hand. Returns counts ("parameters", "layers", "tensors"), the
    kind of each layer ("layer_types") and "logit_range" of a pass over every
    16th token of the vocabulary.

    Errors: StageError where transformers does not know the model type or a
    given field, where memory would not do, or a tensor has its default after
    all, is missing, or gives no use of logits.
    """
    refuse_unknown(given, config)
    try:
        published = filled(shrunken(config) if shrink else config, tokenizer)
        refuse_huge(published)
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, AttributeError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [""]
        raise StageError(
            f"transformers makes no model of this config: {type(error).__name__}: {said[0]}", kind="BadConfig"
        ) from error
    fresh, defaults = initialised(published, seed)
    text = fresh.config.get_text_config()
    gain = getattr(text, "logits_scaling", None) or 1.0
    drawn = {
        name: draw(name, default, seed, text.model_type, gain).bfloat16() for name, default in sorted(defaults.items())
    }
    save_file(drawn, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    write_json(os.path.join(out, "config.json"), published)
    write_json(os.path.join(out, "generation_config.json"), {key: published[key] for key in SPECIAL_IDS})
    for name in TOKENIZER_FILES:
        if os.path.exists(os.path.join(tokenizer, name)):
            shutil.copyfile(os.path.join(tokenizer, name), os.path.join(out, name))
    refuse_defaults(drawn, defaults)
    model = reloaded(out)
    refuse_defaults(model.state_dict(), fresh.state_dict())
    kinds = layer_kinds(completed(published))
    return {
        "parameters": sum(tensor.numel() for tensor in drawn.values()),
        "tensors": len(drawn),
        "layers": len(kinds),
        "layer_types": kinds,
        "logit_range": logit_range(model),
    }


def refuse_unknown(given: tuple[str, ...], config: dict) -> None:
    """transformers takes any field, and a misspelt one changes nothing. Errors: StageError."""
    kind = config["model_type"]
    known = {*completed({"model_type": kind}), *configured({"model_type": kind}).to_dict(), *LEGACY}
    for name in given:
        if name in ("vocab_size", *SPECIAL_IDS):
            raise StageError(f"model.config.{name}: it is the tokenizer's to say", kind="UnknownField")
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            raise StageError(
                f"model.config.{name}: {kind} has no such field" + (f"; did you mean {near[0]}?" if near else ""),
                kind="UnknownField",
                hint=f"known: {', '.join(sorted(known))}",
            )


def refuse_huge(published: dict) -> None:
    """Refuse what would not fit in memory. Errors: StageError."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configured(published), dtype=torch.float32)
    needed, free = sum(p.numel() for p in model.parameters()) * BYTES, free_memory()
    if free is not None and needed > free:
        raise StageError(
            f"a random model of this config takes {needed / 1e9:.1f} GB to make, and {free / 1e9:.1f} GB are free",
            kind="TooLarge",
            hint="action=constants makes it narrow; or set fields: +model.config.num_hidden_layers=2 and so on",
        )


def filled(config: dict, tokenizer: str) -> dict:
    """`config` with the tokenizer's vocabulary and special tokens, and what a config.json is expected to say."""
    words = AutoTokenizer.from_pretrained(tokenizer)
    vocabulary = max(words.get_vocab().values()) + 1
    said = {**special_ids(words, tokenizer), "torch_dtype": "bfloat16"}
    sizes = {"vocab_size": vocabulary}
    if completed(config).get("vocab_size_per_layer_input"):  # an embedding of its own
        sizes["vocab_size_per_layer_input"] = vocabulary
    result = {**without(config, DROPPED), **said}
    if "text_config" in config:
        result["text_config"] = {**without(config["text_config"], DROPPED), **said, **sizes}
    else:
        result |= sizes
    if not result.get("architectures"):
        result["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config["model_type"]]]
    return result


def without(config: dict, keys: tuple[str, ...]) -> dict:
    return {key: value for key, value in config.items() if key not in keys}


def special_ids(words, tokenizer: str) -> dict:
    """bos, eos and pad: of the folder's generation_config.json or config.json, or else of its tokenizer."""
    said = asked_by(tokenizer)
    return {key: said[key] if said.get(key) is not None else getattr(words, key) for key in SPECIAL_IDS}


def initialised(published: dict, seed: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model as its class starts it, fp32 and eager, and its tensors as a checkpoint's file names them."""
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            configured(published), dtype=torch.float32, attn_implementation="eager"
        )
        model.save_pretrained(folder)
        tensors: dict[str, torch.Tensor] = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                tensors |= load_file(os.path.join(folder, name))
    return model, tensors


def draw(name: str, default: torch.Tensor, seed: int, model_type: str, gain: float = 1.0) -> torch.Tensor:
    """Random values for the tensor `name`, fp32, of the shape of `default`.

    What starts constant (norms, biases, scalars) is drawn around where it has
    no effect; matrices so that they keep the size of what passes. gain: what
    the final norm is multiplied with, since the logits are divided by it.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    normal = torch.randn(default.shape, generator=generator, dtype=torch.float32)
    last = name.removesuffix(".weight").rpartition(".")[2]
    if last == "layer_scalar":
        return 0.75 + 0.1 * normal
    if last == "A_log":  # of how fast a state fades, 1.5 on average
        return 0.4 + 0.5 * normal
    if last == "dt_bias":  # softplus of it is the step: about 0.1
        return -2.0 + 0.5 * normal
    if last == "sinks":
        return 1.0 + normal
    if last.endswith("bias"):
        return 0.1 * normal
    if is_constant(default) and default.ndim <= 1:
        neutral = NEUTRAL.get(model_type, float(default.flatten()[0]))
        if last in ("q_norm", "k_norm") and model_type in NORMS_SCALE:
            return default.shape[-1] ** -0.25 * (neutral + 0.3 * normal)
        values = neutral + 0.3 * normal
        return values * gain if name.endswith("model.norm.weight") else values
    if "embed" in last or last == "lm_head":
        return 2.0 * default.shape[-1] ** -0.5 * normal
    in_first = model_type in IN_FIRST and default.ndim == 3
    fan_in = default.shape[-2] if in_first else default.shape[-1]
    # Sharper attention, decided experts, and gates of which a clamp cuts some: all of it shows in the logits.
    sharper = 3.0 if in_first and last == "gate_up_proj" else 1.5
    return sharper * fan_in**-0.5 * normal


def is_constant(tensor: torch.Tensor) -> bool:
    flat = tensor.flatten()
    # Two elements first: they tell of nearly every tensor that it is not.
    return bool((flat[:2] == flat[0]).all()) and bool((flat == flat[0]).all())


def refuse_defaults(tensors: dict[str, torch.Tensor], defaults: dict[str, torch.Tensor]) -> None:
    """Errors: StageError that names the tensors which are as the class starts them, constant, or not finite."""
    kept = []
    for name, tensor in tensors.items():
        default = defaults[name].to(tensor.dtype)
        same = torch.equal(tensor, default) or (tensor.numel() > 1 and is_constant(tensor))
        if same or not tensor.float().sum().isfinite():
            kept.append(name)
    if kept:
        raise StageError(
            f"{len(kept)} tensors of the random model were not drawn: {', '.join(kept[:5])}",
            kind="DefaultWeights",
            hint="see random_model.draw, which must know every kind of tensor that the family has",
        )


def reloaded(folder: str) -> torch.nn.Module:
    """The model of a folder, fp32 and eager; StageError where file and class do not hold the same tensors."""
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {key: sorted(map(str, loading[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(wrong.values()):
        said = "; ".join(f"{key.replace('_', ' ')}: {', '.join(names[:5])}" for key, names in wrong.items() if names)
        raise StageError(f"the random model does not read back what was written: {said}", kind="TensorsDiffer")
    return model.eval()


@torch.inference_mode()
def logit_range(model: torch.nn.Module) -> float:
    """Largest less smallest of the last position's logits; StageError where they say nothing."""
    ids = torch.arange(3, model.config.get_text_config().vocab_size, 16)[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
    spread = float(logits.max() - logits.min())
    if not spread >= LEAST_RANGE:  # NaN as well
        raise StageError(f"the random model's logits span {spread:.3g} only", kind="NoLogits")
    return spread
