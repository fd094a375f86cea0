"""The reference against itself, computed in other ways."""

from __future__ import annotations

import json

import pytest

from runner import paths

pytestmark = pytest.mark.slow

SCRIPT = """
import os
import noise, prompts, reference
checkpoint, variants = sys.argv[1], json.loads(sys.argv[2])
for folder in ("prompts", "reference", "noise"):
    os.mkdir(folder)
texts = [{"name": "one", "text": "What is the capital of France?"}, {"name": "two", "text": "آسمان چه رنگی است؟"}]
prompts.run({"checkpoint": checkpoint, "template": "chat", "prompts": texts, "boundaries": None}, "prompts")
same = {"checkpoint": checkpoint, "prompts": "prompts/prompts.json", "compute_dtype": "float32", "attention": "eager"}
reference.run({**same, "max_new_tokens": 8, "stop_at_end": True}, "reference")
loaded, load = [], noise.load
noise.load = lambda folder, dtype, attention: loaded.append((dtype, attention)) or load(folder, dtype, attention)
result = noise.run({**same, "reference": "reference", "threads": 2, "other_threads": 1, "variants": variants}, "noise")
with open("noise/noise.json") as file:
    measured = json.load(file)
assert result == {"left_out": measured["left_out"], "findings": []} and measured["fewer_bits"] == {}
with open("reference/continuations.json") as file:
    steps = [len(entry["tokens"]) for entry in json.load(file)]
print(json.dumps({**measured, "loaded": loaded, "steps": steps}))
"""
ALL = ["dtype", "attention", "threads", "passes"]


@pytest.fixture
def noise(with_torch):
    def noise(checkpoint: str, variants: list[str]) -> dict:
        return with_torch(SCRIPT, paths.PROJECT / "checkpoints" / checkpoint, json.dumps(variants))

    return noise


def check(found: dict, variants: set[str]) -> None:
    """Every prompt has every variant, a difference a step, all of them rounding."""
    assert set(found["versus"]) == variants
    assert [prompt["prompt"] for prompt in found["prompts"]] == ["one", "two"]
    for prompt, steps in zip(found["prompts"], found["steps"], strict=True):
        assert {name: len(values) for name, values in prompt["variants"].items()} == dict.fromkeys(variants, steps)
        assert prompt["floor"] == max(max(values) for values in prompt["variants"].values())
        assert 0 < prompt["floor"] < 1e-4
        assert max(prompt["variants"]["dtype"]) > 0


def test_every_variant_of_a_plain_model_is_rounding(noise):
    found = noise("tiny_llama", ALL)
    check(found, set(ALL))
    assert found["left_out"] == {}
    assert found["versus"] == {
        "dtype": "float32 / float64",
        "attention": "eager / sdpa",
        "threads": "2 / 1 threads",
        "passes": "steps / one pass",
    }
    assert all(max(prompt["variants"]["attention"]) > 0 for prompt in found["prompts"])


def test_an_attention_that_computes_something_else_is_left_out_and_said(noise):
    found = noise("tiny_gemma2", ALL)
    check(found, {"dtype", "threads", "passes"})
    assert set(found["left_out"]) == {"attention"}
    assert found["left_out"]["attention"].startswith("eager and sdpa compute different things: they differ by ")
    assert found["left_out"]["attention"].endswith(" in a finer dtype too, which is no rounding")


def test_only_what_is_asked_for_is_measured(noise):
    found = noise("tiny_llama", ["threads"])
    assert found["versus"] == {"threads": "2 / 1 threads"} and found["left_out"] == {}
    assert [list(prompt["variants"]) for prompt in found["prompts"]] == [["threads"], ["threads"]]
    assert all(0 <= prompt["floor"] < 1e-4 for prompt in found["prompts"])
    assert found["loaded"] == [["float32", "eager"]]
