"""What a generation config would change about greedy decoding, and that it is left out on both sides.

``generate(do_sample=False)`` still applies a checkpoint's repetition penalty,
forced and suppressed tokens, minimum length and so on. Here both sides take
the largest raw logit, so none takes part; what would have is recorded.
"""

from __future__ import annotations

import json
import os

# Each option that changes which token greedy decoding takes, or how often a model runs for it, with the value that
# changes nothing. Names of transformers' GenerationConfig; those that genai_config.json has under "search" are equal.
NEUTRAL = {
    "assistant_early_exit": None,
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "force_words_ids": None,
    "forced_bos_token_id": None,
    "forced_decoder_ids": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "remove_invalid_values": False,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": None,
    "token_healing": False,
    "watermarking_config": None,
}
# What genai's search options can be told.
SEARCH = ("do_sample", "diversity_penalty", "min_length", "no_repeat_ngram_size", "num_beams", "repetition_penalty")


def overridden(settings: dict) -> dict:
    """The entries of a generation config that are not what changes nothing."""
    found = {}
    for name, neutral in NEUTRAL.items():
        value = settings.get(name)
        if value is not None and value != neutral and value != []:
            found[name] = value
    return found


def of_checkpoint(folder: str) -> dict:
    """What a checkpoint asks for that is not what changes nothing."""
    return overridden(asked_by(folder))


def asked_by(folder: str) -> dict:
    """What a checkpoint's generation_config.json says, and its config.json, where older ones kept it."""
    asked: dict = {}
    for name in ("config.json", "generation_config.json"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                asked |= json.load(file)
    return asked
