"""A GGUF file as a checkpoint folder: weights, config and tokenizer, as transformers reads them from it."""

from __future__ import annotations

import json
import os

import torch
from published import published_config
from task import StageError
from transformers import AutoModelForCausalLM, AutoTokenizer

# The name of the fast tokenizer's class that every version of transformers knows.
TOKENIZER_CLASS = "PreTrainedTokenizerFast"

# Special tokens, by GGUF's names of them.
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def make(source: str, out: str) -> dict:
    """Write the model in the GGUF file `source` to `out`, in fp32: quantised blocks are dequantised, nothing is lost.

    Errors: `StageError` where transformers cannot read it.
    """
    folder, name = os.path.split(source)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except (ValueError, KeyError, NotImplementedError, RuntimeError, IndexError) as error:
        raise StageError(
            f"transformers cannot read {name}: {type(error).__name__}: {error}",
            kind="GgufRefused",
            hint="an architecture or a quantisation that it does not know; give the checkpoint as a folder",
        ) from error
    if missing := sorted(loading["missing_keys"]):
        raise StageError(f"{name} lacks {len(missing)} tensors: {', '.join(missing[:5])}", kind="MissingTensors")
    mend_special_tokens(tokenizer, source)
    model.save_pretrained(out, safe_serialization=True)
    tokenizer.save_pretrained(out)
    rewrite(os.path.join(out, "config.json"), published_config)
    rewrite(os.path.join(out, "tokenizer_config.json"), lambda config: config | {"tokenizer_class": TOKENIZER_CLASS})
    return {"parameters": model.num_parameters(), "model_type": model.config.model_type}


def mend_special_tokens(tokenizer, source: str) -> None:
    """Give the tokenizer the special tokens that the file names: transformers may take its class's instead."""
    import gguf

    fields = gguf.GGUFReader(source).fields
    for of, name in SPECIAL.items():
        if field := fields.get(f"tokenizer.ggml.{of}_token_id"):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(field.contents())))


def rewrite(path: str, change) -> None:
    """Replace a JSON file's object by what `change` makes of it."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(change(content), file, indent=2, ensure_ascii=False)
