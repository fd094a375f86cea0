"""A GGUF file as a checkpoint folder: weights, config and tokenizer, as transformers reads them from it.

transformers reads few of the fields that a file has, and leaves what it does not read to its own defaults: both sides
of a comparison would agree about another model. So the config is held to the file, and what cannot be is refused.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import re

import gguf_loading
import torch
from loading_rows import fault_line
from published import published_config
from task import StageError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

# The name of the fast tokenizer's class that every version of transformers knows.
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
PACKAGES = ("gguf", "accelerate")
AS_FOLDER = "give the checkpoint as a folder"

# Special tokens, by GGUF's names of them.
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")

# Tensors that are no weights: how the rotary frequencies are scaled.
FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
# A file has a llama3 scaling as the factors that it comes to. Their largest is `factor`; these are what else the
# published ones have, and what others do.
LOW_FACTORS, HIGH_FACTORS, ORIGINALS = (1.0,), (4.0,), (8192, 4096, 16384, 32768)
YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_attn_factor": "attention_factor",
}
# Fields for which transformers' configs have no place, with the values at which they change nothing.
NEUTRAL = {
    "attention.clamp_kqv": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_scale": (0,),
    "embedding_length_per_layer_input": (0,),
    "embedding_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
}
# Numbers that a config has too, under one of these names.
SAME = {
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.freq_base": ("rope_theta",),
    "rope.freq_base_swa": ("rope_local_base_freq",),
}
# Layers of the models whose queries are scaled by hidden size over heads, 27B both; the others' by the head size.
# No field says it: llama.cpp works it out from the size.
SCALED_BY_WIDTH = {"gemma2": 46, "gemma3_text": 62}


def make(source: str, out: str) -> dict:
    """Write the model in the GGUF file `source` to `out`, in fp32: quantised blocks are dequantised, nothing is lost.

    Errors: `StageError` where transformers cannot read it, or would make another model of it.
    """
    folder, name = os.path.split(source)
    refuse_without_packages()
    refuse_part(name)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except (ValueError, KeyError, NotImplementedError, RuntimeError, IndexError, TypeError, AttributeError) as error:
        raise StageError(
            f"transformers cannot read {name}: {type(error).__name__}: {error}",
            kind="GgufRefused",
            hint=f"an architecture or a quantisation that it does not know; {AS_FOLDER}",
        ) from error
    if missing := sorted(loading["missing_keys"]):
        raise StageError(f"{name} lacks {len(missing)} tensors: {', '.join(missing[:5])}", kind="MissingTensors")
    import gguf

    reader = gguf.GGUFReader(source)
    refuse_unread(reader, model)
    rows = gguf_loading.audit(reader, model, in_config=(FREQUENCIES, LONG, SHORT))
    refuse_defaulted(name, rows)
    mend_special_tokens(tokenizer, reader)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    rewrite(os.path.join(out, "config.json"), lambda config: held_to(published_config(config), reader))
    rewrite(os.path.join(out, "tokenizer_config.json"), lambda config: config | {"tokenizer_class": TOKENIZER_CLASS})
    try:
        AutoConfig.from_pretrained(out)  # weights do not depend on what was rewritten; the class may refuse it
    except (ValueError, KeyError, TypeError) as error:
        raise refused(f"fields make no config ({error})") from error
    told = {"parameters": model.num_parameters(), "model_type": model.config.model_type}
    return {**told, "loading": fault_line(rows), "loading_rows": rows}


def refuse_without_packages() -> None:
    """Errors: `StageError` where the environment lacks what transformers reads a GGUF file with."""
    if lacking := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise StageError(
            f"reading a GGUF file needs {' and '.join(lacking)}, which this environment lacks",
            kind="GgufPackages",
            hint="env.extras=[gguf==…,accelerate==…] with the versions in conf/releases.yaml (gguf:)",
        )


def refuse_part(name: str) -> None:
    """Errors: `StageError` for one of several files, of which transformers would read no other."""
    match = PART.search(name)
    if match and int(match.group(1)) > 1:
        raise StageError(
            f"{name} is one of {int(match.group(1))} files, and transformers reads a single one",
            kind="GgufRefused",
            hint=f"join them (llama-gguf-split --merge FIRST OUT), or {AS_FOLDER}",
        )


def refused(what: str) -> StageError:
    """An error for a field or a tensor that no config of transformers is known to say."""
    return StageError(f"GGUF's {what}: transformers would make another model of it", kind="GgufRefused", hint=AS_FOLDER)


def refuse_unread(reader, model: torch.nn.Module) -> None:
    """Errors: `StageError` where the file holds more numbers than the model took, a projection's bias say."""
    own = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    left_out = {FREQUENCIES, LONG, SHORT} | ({"output.weight"} if model.config.tie_word_embeddings else set())
    there = sum(int(tensor.n_elements) for tensor in reader.tensors if tensor.name not in left_out)
    if there > sum(own.values()):
        biases = sorted(tensor.name for tensor in reader.tensors if tensor.name.endswith(".bias"))
        named = f" (biases among them: {', '.join(biases[:3])})" if biases else ""
        raise refused(f"tensors have {there} numbers{named}, the model that is made has {sum(own.values())}")


def refuse_defaulted(name: str, rows: list[dict]) -> None:
    """Errors: `StageError` where the model holds other numbers than the file."""
    if line := fault_line(rows):
        raise StageError(f"transformers loads {name} wrongly: {line}", kind="LoadingDefaulted", hint=AS_FOLDER)


def held_to(config: dict, reader) -> dict:
    """`config` with what the file says and transformers does not read. Errors: `StageError` for what it cannot say."""
    import gguf

    architecture = reader.fields["general.architecture"].contents()
    told = {
        key.removeprefix(f"{architecture}."): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{architecture}.")
    }
    tensors = {
        tensor.name: torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)).float().flatten()
        for tensor in reader.tensors
        if tensor.name in (FREQUENCIES, LONG, SHORT)
    }
    config = dict(config)
    for key, neutral in NEUTRAL.items():
        if told.get(key, neutral[0]) not in neutral:
            raise refused(f"{key}={told[key]}")
    for key, names in SAME.items():
        set_same(config, key, names, told)
    set_windows(config, told)
    set_rotated(config, told)
    if config.get("model_type") in SCALED_BY_WIDTH:
        by_width = config["num_hidden_layers"] == SCALED_BY_WIDTH[config["model_type"]]
        config["query_pre_attn_scalar"] = width_of_head(config, given=not by_width)
    return set_scaling(config, told, tensors)


def set_same(config: dict, key: str, names: tuple[str, ...], told: dict) -> None:
    """Set a number that the file and the config both have; one that the config has no name for is refused."""
    if key not in told:
        return
    present = [name for name in names if name in config]
    if not present and (told[key] or not key.endswith("softcapping")):
        raise refused(f"{key}={told[key]}")
    config.update(dict.fromkeys(present, as_written(told[key])))


def set_windows(config: dict, told: dict) -> None:
    """The sliding window, and which layers have it."""
    window, pattern = told.get("attention.sliding_window"), told.get("attention.sliding_window_pattern")
    if config.get("model_type") == "gemma3_text" and not window:
        raise refused("sliding_window, which is absent")  # it has full attention in each layer, then
    if config.get("model_type") == "mistral" and window is None:
        config["sliding_window"] = None  # the class's default is the first release's
    if window is not None:
        if window and "sliding_window" not in config:
            raise refused(f"attention.sliding_window={window}")
        if "sliding_window" in config:
            config["sliding_window"] = window or None
    if pattern is None:
        return
    count = config["num_hidden_layers"]
    slides = pattern if isinstance(pattern, list) else [(layer + 1) % pattern != 0 for layer in range(count)]
    kinds = ["sliding_attention" if slide else "full_attention" for slide in slides[:count]]
    if "layer_types" not in config or len(kinds) != count:
        raise refused(f"attention.sliding_window_pattern={pattern}")
    config["layer_types"] = kinds
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        config.pop(name, None)


def width_of_head(config: dict, given: bool = True) -> int:
    """The size of a head. given: as `head_dim` says, where it does."""
    worked_out = config["hidden_size"] // config["num_attention_heads"]
    return (config.get("head_dim") or worked_out) if given else worked_out


def set_rotated(config: dict, told: dict) -> None:
    """How much of a head is rotated."""
    count = told.get("rope.dimension_count")
    if count is None or "rope_theta" not in config or count == config.get("rotary_dim"):
        return
    size = width_of_head(config)
    if count != int(size * config.get("partial_rotary_factor", 1.0)):
        if "partial_rotary_factor" not in config:
            raise refused(f"rope.dimension_count={count} with heads of {size}")
        config["partial_rotary_factor"] = count / size


def set_scaling(config: dict, told: dict, tensors: dict[str, torch.Tensor]) -> dict:
    """`config` with the file's `rope_scaling`."""
    factor = as_written(told.get("rope.scaling.factor") or told.get("rope.scale_linear") or 1.0)
    # The type that llama.cpp takes where only a factor is given.
    kind = told.get("rope.scaling.type", "linear")
    scales = (kind == "linear" and factor != 1.0) or kind not in ("linear", "none")
    config = {**config, "rope_scaling": None} if config.get("rope_scaling") else config
    if FREQUENCIES in tensors:
        if scales or LONG in tensors or SHORT in tensors:
            raise refused(f"{FREQUENCIES} beside another scaling ({kind})")
        scaling = llama3(config, tensors[FREQUENCIES])
    elif LONG in tensors or SHORT in tensors:
        if scales and kind != "longrope":
            raise refused(f"{LONG} beside another scaling ({kind})")
        return longrope(config, told, tensors)
    elif not scales:
        return config
    elif kind == "linear":
        scaling = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        scaling = yarn(told, factor)
    else:
        raise refused(f"rope.scaling.type={kind}")
    if scaling is None:
        return config
    # Nested parameters are by kind of layer, and nothing says whose the scaling is. Gemma 3's are not nested here.
    if "rope_theta" not in config or "rope_parameters" in config:
        raise refused(f"rope scaling {scaling['rope_type']} for {config.get('model_type')}")
    return {**config, "rope_scaling": scaling}


def yarn(told: dict, factor: float) -> dict:
    original = told.get("rope.scaling.original_context_length")
    if not original or told.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise refused("rope.scaling.type=yarn without original_context_length, or with attn_factor")
    given = {name: as_written(told[key]) for key, name in YARN.items() if key in told}
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **given}


def longrope(config: dict, told: dict, tensors: dict[str, torch.Tensor]) -> dict:
    """`config` with factors for short and long texts, in the form that version 4 of Phi-3 asks for."""
    original = told.get("rope.scaling.original_context_length")
    if not original or LONG not in tensors or SHORT not in tensors:
        raise refused(f"{LONG} and {SHORT}: one, or rope.scaling.original_context_length, is absent")
    if "rope_theta" not in config or "rope_parameters" in config:
        raise refused(f"{LONG} for {config.get('model_type')}")
    rotated = int(width_of_head(config) * config.get("partial_rotary_factor", 1.0)) // 2
    scaling: dict = {"type": "longrope"}
    for key, name in ((SHORT, "short_factor"), (LONG, "long_factor")):
        if tensors[key].numel() != rotated:
            raise refused(f"{key} has {tensors[key].numel()} factors for {rotated} frequencies")
        scaling[name] = [as_written(value) for value in tensors[key].tolist()]
    longer = config["max_position_embeddings"] / original
    usual = math.sqrt(1 + math.log(longer) / math.log(original)) if longer > 1 else 1.0
    attention = told.get("rope.scaling.attn_factor", 1.0)
    if not math.isclose(attention, usual, rel_tol=1e-6):
        scaling["attention_factor"] = as_written(attention)
    return {**config, "original_max_position_embeddings": original, "rope_scaling": scaling}


def llama3(config: dict, factors: torch.Tensor) -> dict | None:
    """The llama3 scaling that comes to `factors`, by which each frequency is divided; None where all are 1."""
    if bool((factors == 1).all()):
        return None
    size, theta = width_of_head(config), config.get("rope_theta")
    factor = as_written(float(factors.max()))
    if theta and factors.numel() * 2 == size:
        waves = 2 * math.pi * theta ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
        for low, high, original in itertools.product(LOW_FACTORS, HIGH_FACTORS, ORIGINALS):
            smooth = ((original / waves - low) / (high - low)).clamp(0, 1)
            # To fp32's precision: the file's were worked out in it.
            if torch.allclose(factors.double(), 1 / ((1 - smooth) / factor + smooth), rtol=1e-5, atol=0):
                return {
                    "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": original,
                }  # fmt: skip
    raise refused(f"{FREQUENCIES} is no llama3 scaling that is known")


def as_written(value: float) -> float:
    """The shortest decimal that is the same number in fp32, which is what was converted."""
    exact = torch.tensor(float(value), dtype=torch.float32)
    for digits in range(1, 10):
        short = float(f"{float(exact):.{digits}g}")
        if torch.tensor(short, dtype=torch.float32) == exact:
            return short
    return float(exact)


def mend_special_tokens(tokenizer, reader) -> None:
    """Give the tokenizer the special tokens that the file names: transformers may take its class's instead."""
    for of, name in SPECIAL.items():
        if field := reader.fields.get(f"tokenizer.ggml.{of}_token_id"):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(field.contents())))


def rewrite(path: str, change) -> None:
    """Replace a JSON file's object by what `change` makes of it."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(change(content), file, indent=2, ensure_ascii=False)
