"""backend=neuron before anything runs: what it asks of its keys, and what the worker is given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml

from runner import paths
from runner.backends.neuron import stages
from runner.failures import ConfigFailed

DEFAULTS = yaml.safe_load((paths.CONF / "backend" / "neuron.yaml").read_text(encoding="utf-8"))


def config(precision: str = "fp32", **keys) -> SimpleNamespace:
    factors = {"max_new_tokens": 20, "precision": precision, "threads": 2}
    return SimpleNamespace(**factors, backend=SimpleNamespace(**DEFAULTS | keys))


def test_what_conf_has_is_allowed():
    stages.check(config())
    stages.check(config("bf16", model_builder="v2", max_parallel_compilations=2, logical_nc_config=2, buckets=[2]))
    stages.check(config(model_builder="parallel_model_trace", buckets=[64], max_parallel_compilations=1))
    stages.check(config(buckets=[64, 256], max_len=256))  # as the port had it, below the model's window


@pytest.mark.parametrize(
    ("keys", "said", "hint"),
    [
        ({"precision": "fp16"}, "precision: 'fp16'", "allowed: fp32, bf16"),
        ({"model_builder": "v3"}, "backend.model_builder: 'v3'", "allowed: v1, v2, parallel_model_trace"),
        ({"attention": "flash"}, "backend.attention: 'flash'", "eager, sdpa"),
        ({"gqa": "x"}, "backend.gqa: 'x'", "replicate-layer"),
        ({"vocabulary": "x"}, "backend.vocabulary: 'x'", "sharded, replicated"),
        ({"logical_nc_config": 3}, "backend.logical_nc_config: 3", "allowed: 1, 2"),
        ({"tp": 0}, "backend.tp: 0", "1 to 64"),
        ({"batch": 0}, "backend.batch: 0", "1 to 64"),
        ({"buckets": []}, "backend.buckets: []", "ascending"),
        ({"buckets": [64, 32]}, "backend.buckets: [64, 32]", "ascending"),
        ({"buckets": [64, 64]}, "backend.buckets: [64, 64]", "ascending"),
        ({"buckets": [1, 64]}, "backend.buckets: [1, 64]", "1 is decoding"),
        ({"max_len": 500}, "backend.max_len: 500 is below the largest bucket, 512", "must fit"),
        ({"max_parallel_compilations": 2}, "v1 compiles one rank", "model_builder=v2"),
        ({"model_builder": "v2", "max_parallel_compilations": 0}, "max_parallel_compilations: 0", "1 to 64"),
        ({"model_builder": "parallel_model_trace"}, "makes one graph", "backend.buckets=[512]"),
    ],
)
def test_what_is_not_allowed_says_what_is(keys, said, hint):
    with pytest.raises(ConfigFailed) as failed:
        stages.check(config(**keys))
    assert said in failed.value.message and hint in failed.value.hint


def test_the_worker_is_given_the_plan_and_every_key():
    checkpoint = SimpleNamespace(path=paths.PROJECT / "checkpoints" / "tiny_gemma4", mixed=False)
    given = stages.export_settings(config("bf16", tp=2), checkpoint, 3)
    assert len(given["plan"]["layers"]) == 3 and given["plan"]["tp"] == 2
    assert given["compute_dtype"] == "bfloat16" and given["buckets"] == [128, 512]
    # The plan is made of the first, and the second is another stage's arguments.
    assert set(DEFAULTS) - {"name", "tp", "gqa", "vocabulary"} <= set(given)
    assert stages.candidate_settings(config()) == {"threads": 2}


def test_a_host_with_too_little_memory_is_refused(monkeypatch):
    checkpoint = SimpleNamespace(path=paths.PROJECT / "checkpoints" / "tiny_gemma4", mixed=False)
    assert stages.host_refusal(config(tp=2), checkpoint, None) is None
    monkeypatch.setattr(stages.psutil, "virtual_memory", lambda: SimpleNamespace(available=1e5))
    assert "tracing one rank at TP 2" in stages.host_refusal(config(tp=2), checkpoint, None)
    traced = config(tp=2, model_builder="parallel_model_trace", buckets=[64])
    assert "tracing all ranks at once at TP 2" in stages.host_refusal(traced, checkpoint, None)
