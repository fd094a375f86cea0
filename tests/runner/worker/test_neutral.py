"""What a checkpoint asks of decoding that raw logits leave out."""

from __future__ import annotations

import json

import pytest
from neutral import NEUTRAL, SEARCH, of_checkpoint, overridden

CHANGES = {
    "bad_words_ids": [[3]],
    "begin_suppress_tokens": [220, 50256],
    "diversity_penalty": 0.5,
    "do_sample": True,
    "encoder_repetition_penalty": 1.1,
    "exponential_decay_length_penalty": [5, 1.1],
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "guidance_scale": 1.5,
    "min_length": 10,
    "min_new_tokens": 3,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
    "penalty_alpha": 0.6,
    "repetition_penalty": 1.05,
    "sequence_bias": [[[3], -10.0]],
    "suppress_tokens": [1, 2],
}


def test_what_changes_greedy_decoding_is_kept_and_the_rest_is_not():
    others = {"temperature": 0.6, "top_k": 64, "top_p": 0.95, "eos_token_id": [1, 5], "transformers_version": "5.13.0"}
    assert overridden(CHANGES | others) == CHANGES


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_each_is_found_alone(name, value):
    assert overridden({name: value}) == {name: value}


def test_what_changes_nothing_is_dropped():
    assert overridden({}) == {}
    assert overridden(NEUTRAL) == {}
    assert overridden(dict.fromkeys(NEUTRAL)) == {}
    assert overridden({"suppress_tokens": [], "begin_suppress_tokens": [], "bad_words_ids": []}) == {}
    assert overridden({"repetition_penalty": 1, "num_beams": 1, "min_length": 0, "do_sample": False}) == {}


@pytest.mark.parametrize(("name", "value"), [("guidance_scale", 1.0), ("min_new_tokens", 0), ("penalty_alpha", 0.0)])
def test_what_transformers_takes_for_nothing_is_dropped(name, value):
    assert overridden({name: value}) == {}


def test_each_option_of_the_runtimes_search_has_a_neutral_value():
    assert all(NEUTRAL[name] is not None for name in SEARCH)


def write(folder, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content))


def test_both_files_of_a_checkpoint_are_read_and_the_newer_kind_counts(tmp_path):
    assert of_checkpoint(str(tmp_path)) == {}
    write(tmp_path, "config.json", {"model_type": "llama", "min_length": 5, "repetition_penalty": 1.2, "num_beams": 1})
    assert of_checkpoint(str(tmp_path)) == {"min_length": 5, "repetition_penalty": 1.2}
    write(tmp_path, "generation_config.json", {"repetition_penalty": 1.3, "do_sample": True, "top_k": 64})
    assert of_checkpoint(str(tmp_path)) == {"min_length": 5, "repetition_penalty": 1.3, "do_sample": True}
    (tmp_path / "config.json").unlink()
    assert of_checkpoint(str(tmp_path)) == {"repetition_penalty": 1.3, "do_sample": True}


def test_what_the_newer_file_takes_back_is_not_asked_for(tmp_path):
    write(tmp_path, "config.json", {"repetition_penalty": 1.2})
    write(tmp_path, "generation_config.json", {"repetition_penalty": 1.0})
    assert of_checkpoint(str(tmp_path)) == {}
