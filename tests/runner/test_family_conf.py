"""The files of families and of published checkpoints say what they must."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from runner import families, paths

MODELS = sorted((paths.CONF / "model").glob("*.yaml"))
PUBLISHED = [path for path in MODELS if re.search(r"^hub: (?!\?\?\?)", path.read_text(encoding="utf-8"), re.M)]
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What every config of a language model has in transformers' names.
NEEDED = {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def text_of(config: dict) -> dict:
    return config.get("text_config", config)


@pytest.mark.parametrize("name", families.names())
def test_a_family_is_small_and_hides_nothing(name):
    content = families.read(name)
    assert set(read(families.FOLDER / f"{name}.yaml")) == {"what", "config"}
    assert content["what"] != name
    assert len(content["config"]["architectures"]) == 1
    text = text_of(content["config"])
    assert set(text) >= NEEDED
    # The square root of a square number is exact however it is rounded.
    assert math.isqrt(text["hidden_size"]) ** 2 != text["hidden_size"]
    assert 96 <= text["hidden_size"] <= 144
    size = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
    assert size % 16 == 0
    assert "vocab_size" not in text
    window = text.get("sliding_window") or 512
    assert 500 < window <= text["max_position_embeddings"] <= 4096
    # No value that a class, or an exporter, takes where none is said.
    assert text.get("rms_norm_eps", text.get("norm_eps", 3e-5)) not in (1e-5, 1e-6)
    assert text.get("rope_theta") != 10000


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_checkpoint_has_its_name_and_place(path):
    content = read(path)
    assert set(content) <= {"name", "hub", "config"}
    assert content["name"] == path.stem
    assert HUB.fullmatch(content["hub"])
    if "config" in content:
        assert set(text_of(content["config"])) >= NEEDED
        assert "config: " in path.read_text(encoding="utf-8").split("name:")[0]  # where it was read


def test_the_sizes_of_gemma_3_differ_where_their_constants_do():
    sizes = {size: read(paths.CONF / "model" / f"gemma3_{size}.yaml")["config"] for size in ("1b", "4b", "12b", "27b")}
    sizes["270m"] = read(paths.CONF / "model" / "gemma3_270m.yaml")["config"]
    for size, config in sizes.items():
        large = size in ("4b", "12b", "27b")
        assert config["rope_scaling"] == ({"factor": 8.0, "rope_type": "linear"} if large else None)
        assert config["max_position_embeddings"] == (131072 if large else 32768)
        assert config["sliding_window"] == (1024 if large else 512)
        assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
        assert (config["head_dim"], config["query_pre_attn_scalar"]) == ((128, 168) if size == "27b" else (256, 256))


def test_the_experiment_has_every_published_config():
    content = read(paths.CONF / "experiment" / "constants.yaml")
    listed = content["hydra"]["sweeper"]["params"]["model"].replace(" ", "").split(",")
    assert sorted(listed) == [path.stem for path in PUBLISHED if "config" in read(path)]
