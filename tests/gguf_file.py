"""Writes a GGUF file from a checkpoint of this project, as the converters of llama.cpp do: ``python gguf_file.py
CHECKPOINT FILE [f16|q8_0] [no-merges] [FIELDS]``, where FIELDS is JSON that goes over the checkpoint's config. Runs
where gguf, safetensors and torch are."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

KINDS = {kind.name.lower(): kind for kind in gguf.GGMLQuantizationType}
NORMAL, CONTROL = 1, 3  # of the vocabulary's types
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "gemma3_text": gguf.MODEL_ARCH.GEMMA3}


def write(checkpoint: Path, target: Path, kind: str = "f16", merges: bool = True, fields: dict | None = None) -> None:
    """merges: false leaves the tokenizer's merges out, as a careless converter may: it then spells."""
    config = json.loads((checkpoint / "config.json").read_text()) | (fields or {})
    architecture = ARCHITECTURES[config["model_type"]]
    gemma = architecture == gguf.MODEL_ARCH.GEMMA3
    writer = gguf.GGUFWriter(str(target), gguf.MODEL_ARCH_NAMES[architecture])
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    if gemma:
        writer.add_sliding_window(config["sliding_window"])
    else:
        writer.add_rope_dimension_count(config["head_dim"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, checkpoint, merges)
    add_scaling(writer, config, config.get("rope_scaling") or {})
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        array = tensor.float().numpy()
        if gemma:
            array = array + 1 if name.endswith("norm.weight") else array
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            array = permuted(array, heads if ".q_proj" in name else kv_heads)
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if array.ndim == 1 or kind == "f32":
            writer.add_tensor(new, array.astype(np.float32))
        else:
            as_kind = KINDS[kind]
            writer.add_tensor(new, gguf.quants.quantize(array, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_scaling(writer: gguf.GGUFWriter, config: dict, scaling: dict) -> None:
    """What the config's `rope_scaling` is in the format: fields, or factors by which frequencies are divided."""
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if "beta_fast" in scaling:
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
    if kind == "longrope":
        original = scaling["original_max_position_embeddings"]
        longer = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(longer) / math.log(original)))
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(scaling[f"{name}_factor"], np.float32))
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(llama3_factors(config, scaling), np.float32))


def llama3_factors(config: dict, scaling: dict) -> list[float]:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, size, factors = scaling["original_max_position_embeddings"], config["head_dim"], []
    for place in np.arange(0, size, 2, dtype=np.float32):
        wave = 2 * math.pi * np.float32(config["rope_theta"]) ** (place / size)
        smooth = (original / wave - low) / (high - low)
        between = 1 / ((1 - smooth) / scaling["factor"] + smooth)
        factors.append(1 if wave < original / high else scaling["factor"] if wave > original / low else between)
    return factors


def add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, merges: bool) -> None:
    content = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in content["added_tokens"]}
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    if writer.arch == "gemma3":  # read as a unigram model
        writer.add_token_scores([-float(number) for number in range(len(tokens))])
    elif merges:
        writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    for add, name in (
        (writer.add_bos_token_id, "bos"),
        (writer.add_eos_token_id, "eos"),
        (writer.add_unk_token_id, "unk"),
        (writer.add_pad_token_id, "pad"),
    ):
        add(tokens.index(settings[f"{name}_token"]))
    writer.add_chat_template(settings["chat_template"])


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of interleaved rotary pairs, as the format has them."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


if __name__ == "__main__":
    given = next((json.loads(word) for word in sys.argv if word.startswith("{")), None)
    write(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4], merges="no-merges" not in sys.argv, fields=given)
