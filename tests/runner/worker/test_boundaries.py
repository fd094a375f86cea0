"""Prompts as long as a model's boundaries."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from boundaries import lengths, longrope, prompts, window
from task import StageError

LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}


def config(**values) -> SimpleNamespace:
    return SimpleNamespace(model_type="some", **values)


class Tokenizer:
    """A word is a token; a text begins with token 0 and, if told, ends with token 1."""

    def __init__(self, ends: bool = False):
        self.ends = ends

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict:
        body = [10 + n for n, _ in enumerate(text.split())]
        return {"input_ids": [0, *body, *[1] * self.ends] if add_special_tokens else body}

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"sliding_window": 512}, 512),
        ({"sliding_window": 512, "layer_types": ["full_attention", "sliding_attention"]}, 512),
        ({"sliding_window": 512, "use_sliding_window": True}, 512),
        ({"sliding_window": 512, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 2}, None),
        ({"sliding_window": 512, "layer_types": None}, 512),
        ({"sliding_window": None}, None),
        ({}, None),
    ],
)
def test_the_window_is_one_that_a_layer_looks_through(values, found):
    assert window(config(**values)) == found
    expected = {"window-1": found - 1, "window": found, "window+1": found + 1} if found else {}
    assert lengths(config(**values)) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 4096}},
        {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 4096}},
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 4096},
        {"rope_parameters": None, "rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
        {"rope_parameters": {}, "rope_scaling": {"type": "su"}, "original_max_position_embeddings": 4096},
        {"rope_parameters": {"rope_type": "su", "original_max_position_embeddings": 4096}},
    ],
)
def test_longrope_takes_its_other_factors_beyond_the_original_length(values):
    assert longrope(config(**values)) == 4096
    assert lengths(config(**values)) == {"longrope-1": 4095, "longrope": 4096, "longrope+1": 4097}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rope_parameters": None, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default"}, "original_max_position_embeddings": 4096},
        {"rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 8192}},
        {"rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}}},
        {"rope_scaling": LONGROPE},
    ],
)
def test_other_ropes_have_no_such_length(values):
    assert longrope(config(**values)) is None and lengths(config(**values)) == {}


def test_dynamic_scaling_takes_another_theta_beyond_the_models_length():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 5e5}
    expected = {"dynamic-1": 63, "dynamic": 64, "dynamic+1": 65}
    assert lengths(config(rope_parameters=rope, max_position_embeddings=64)) == expected
    assert lengths(config(rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=64)) == expected
    assert lengths(config(rope_parameters=rope | {"factor": 1.0}, max_position_embeddings=64)) == {}


def both(**more) -> SimpleNamespace:
    rope = LONGROPE | {"original_max_position_embeddings": 30}
    return config(sliding_window=20, rope_parameters=rope, **more)


def test_a_model_may_have_both():
    assert list(lengths(both()).items()) == [
        ("window-1", 19), ("window", 20), ("window+1", 21), ("longrope-1", 29), ("longrope", 30), ("longrope+1", 31),
    ]  # fmt: skip


def test_no_prompt_is_of_no_length():
    assert lengths(config(sliding_window=1)) == {"window": 1, "window+1": 2}


@pytest.mark.parametrize("text", ["a", " a b c\n", " ".join("x" * 40)])
def test_the_prompts_are_exactly_that_long(text):
    found = prompts(Tokenizer(), both(), text)
    assert {prompt["name"]: len(prompt["ids"]) for prompt in found} == lengths(both())
    words = len(text.split())
    for prompt in found:
        assert prompt["ids"] == [0, *(10 + n % words for n in range(len(prompt["ids"]) - 1))]
        assert prompt["text"] == " ".join(map(str, prompt["ids"])) and prompt["user_text"] == ""


def test_what_a_tokenizer_ends_a_text_with_is_not_what_a_prompt_begins_with():
    for prompt in prompts(Tokenizer(ends=True), both(), "a b"):
        assert prompt["ids"][:2] == [0, 10] and 1 not in prompt["ids"]


def test_a_model_without_a_boundary_is_told_so():
    with pytest.raises(StageError, match="some has no boundary") as caught:
        prompts(Tokenizer(), config(sliding_window=None), "a")
    assert caught.value.kind == "NoBoundary" and "prompts=five" in caught.value.hint
