"""What version 5 of transformers saves, in the places where version 4 looks too."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf
from published import published_config

from runner import paths

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
SCALED = {
    "linear": {"factor": 8.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 32.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "longrope": {"short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 4096},
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "of_tomorrow"])
def test_one_set_of_parameters_is_theta_and_scaling(name, model_type):
    scaling = {"rope_type": name, **SCALED[name]}
    before = {"model_type": model_type, "rope_parameters": {"rope_theta": 5e5, **scaling}, "dtype": "float32"}
    kept = dict(before)
    after = {"model_type": model_type, "rope_theta": 5e5, "rope_scaling": scaling, "torch_dtype": "float32"}
    assert published_config(before) == after and before == kept


def test_plain_parameters_are_theta_alone():
    before = {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}
    assert published_config(before) == {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "rope_scaling": None}
    # No theta is made up where there is none, and what a plain type brings beside it stays.
    assert published_config({"rope_parameters": {"rope_type": "default"}}) == {"rope_scaling": None}
    sections = {"rope_type": "default", "mrope_section": [1, 2, 3]}
    after = {"rope_theta": 1e4, "rope_scaling": sections}
    assert published_config({"rope_parameters": {"rope_theta": 1e4, **sections}}) == after


@pytest.mark.parametrize("model_type", ["gemma3", "gemma3_text"])
def test_gemma_3_scales_its_full_layers_alone(model_type):
    rope = {"full_attention": LINEAR, "sliding_attention": PLAIN}
    text = {"model_type": model_type, "rope_theta": 1e6, "rope_local_base_freq": 10000.0}
    text["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    assert published_config({"model_type": model_type, "rope_parameters": rope}) == text
    inner = {"model_type": "gemma3", "text_config": {"model_type": model_type, "rope_parameters": rope}}
    assert published_config(inner) == {"model_type": "gemma3", "text_config": text}


@pytest.mark.parametrize(
    ("model_type", "rope"),
    [
        ("gemma4_text", {"full_attention": PROPORTIONAL, "sliding_attention": PLAIN}),
        ("gemma3n_text", {"full_attention": LINEAR, "sliding_attention": PLAIN}),
        ("olmo3", {"full_attention": LINEAR, "sliding_attention": PLAIN}),
        ("gemma3_text", {"full_attention": LINEAR, "sliding_attention": LINEAR}),
        ("gemma3_text", {"full_attention": PROPORTIONAL, "sliding_attention": PLAIN}),
        ("gemma3_text", {"full_attention": LINEAR, "chunked_attention": PLAIN}),
        ("of_tomorrow", PROPORTIONAL),
        ("llama", None),
        ("llama", {}),
    ],
)
def test_what_version_4_has_no_form_of_stays(model_type, rope):
    config = {"model_type": model_type, "rope_parameters": rope, "rope_theta": 3.0}
    assert published_config(config) == config


def test_phi_3_has_the_three_fields_that_version_4_asks_for():
    factors = {"short_factor": [1.0], "long_factor": [2.0]}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096, "rope_theta": 1e4, **factors}
    after = published_config({"model_type": "phi3", "rope_parameters": rope})
    assert after["rope_scaling"] == {"type": "longrope", **factors}
    assert after["original_max_position_embeddings"] == 4096 and after["rope_theta"] == 1e4


EVERY = """
from published import published_config
from transformers import AutoConfig
def read(config):
    fields = json.loads(json.dumps(config))
    return AutoConfig.for_model(fields.pop("model_type"), **fields)
def rope(config):
    found = dict(config.get_text_config().to_dict().get("rope_parameters") or {})
    if found.get("rope_type") == found.get("type"):
        found.pop("type", None)
    return found
with open(sys.argv[1]) as file:
    families = json.load(file)
result = {}
for name, config in families.items():
    before = read(config)
    saved = before.to_dict()
    result[name] = rope(before), rope(read(published_config(saved)))
print(json.dumps(result))
"""


@pytest.mark.slow
def test_every_familys_parameters_come_back_equal(with_torch, tmp_path):
    families = {
        file.stem: OmegaConf.to_container(OmegaConf.load(file))["config"]
        for file in (paths.CONF / "family").glob("*.yaml")
    }
    (tmp_path / "families.json").write_text(json.dumps(families))
    found = with_torch(EVERY, tmp_path / "families.json")
    assert set(found) == set(families) and sum(bool(before) for before, _ in found.values()) > 15
    assert {name: after for name, (_, after) in found.items()} == {name: before for name, (before, _) in found.items()}
