"""Writes a GGUF file from a checkpoint of this project, as the converters of llama.cpp do: ``python gguf_file.py
CHECKPOINT FILE [f16|q8_0]``. Runs where gguf, safetensors and torch are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

KINDS = {kind.name.lower(): kind for kind in gguf.GGMLQuantizationType}
NORMAL, CONTROL = 1, 3  # of the vocabulary's types


def write(checkpoint: Path, target: Path, kind: str = "f16", merges: bool = True) -> None:
    """merges: false leaves the tokenizer's merges out, as a careless converter may: it then spells."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(str(target), "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, checkpoint, merges)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        array = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
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


def add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, merges: bool) -> None:
    content = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in content["added_tokens"]}
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    if merges:
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
    write(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4], merges="no-merges" not in sys.argv)
