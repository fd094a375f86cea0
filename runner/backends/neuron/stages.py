"""What a model on Neuron devices is made of: the export is compiled and divided by neuronx-distributed."""

from __future__ import annotations

import psutil

from runner import schema, sharding
from runner.backends.tp_cpu.plan import plan_arguments, planned
from runner.backends.transformers.stages import DTYPES
from runner.checkpoints import Checkpoint
from runner.failures import ConfigFailed

BUILDER = CONSTANTS = False
EXPORT, CANDIDATE = "neuron_compile", "neuron_candidate"
ONE_AT_A_TIME = True  # a process holds every core of a device
REQUIRES = ("torch-neuronx", "neuronx-distributed")
LACKING = "PyPI has them not: set env.python= to the interpreter of a Neuron machine's environment"
V1, V2, TRACE = MODEL_BUILDERS = ("v1", "v2", "parallel_model_trace")
BYTES = {"fp32": 4, "bf16": 2}


def check(config: schema.Factors) -> None:
    """Errors: `ConfigFailed`."""
    backend = config.backend
    for key, value, allowed in (
        ("precision", config.precision, tuple(BYTES)),
        ("backend.model_builder", backend.model_builder, MODEL_BUILDERS),
        ("backend.attention", backend.attention, schema.ATTENTIONS),
        ("backend.gqa", backend.gqa, sharding.STRATEGIES),
        ("backend.vocabulary", backend.vocabulary, sharding.VOCABULARIES),
        ("backend.logical_nc_config", backend.logical_nc_config, (1, 2)),
    ):
        if value not in allowed:
            raise ConfigFailed(f"{key}: {value!r} is not allowed", hint=f"allowed: {', '.join(map(str, allowed))}")
    for key, most in (("tp", 64), ("batch", 64), ("max_parallel_compilations", 64)):
        value = getattr(backend, key)
        if value is not None and not 1 <= value <= most:
            raise ConfigFailed(f"backend.{key}: {value} is not allowed", hint=f"allowed: 1 to {most}")
    check_lengths(backend)
    if config.max_new_tokens >= backend.max_len:
        raise ConfigFailed(
            f"max_new_tokens: {config.max_new_tokens} and a prompt do not fit backend.max_len={backend.max_len}",
            hint="raise backend.max_len: keys and values of a prompt and of what continues it must fit",
        )
    if backend.model_builder == V1 and backend.max_parallel_compilations is not None:
        raise ConfigFailed(
            f"backend.max_parallel_compilations: {V1} compiles one rank, and all of its graphs at once",
            hint=f"leave it null, or take backend.model_builder={V2} or {TRACE}",
        )


def check_lengths(backend: schema.Backend) -> None:
    """Errors: `ConfigFailed`."""
    buckets = list(backend.buckets)
    if not buckets or buckets != sorted(set(buckets)) or buckets[0] < 2:
        raise ConfigFailed(
            f"backend.buckets: {buckets} is not allowed",
            hint="prompt lengths, ascending, each 2 or more: a graph is told by its inputs' shape, and 1 is decoding",
        )
    if backend.max_len < buckets[-1]:
        raise ConfigFailed(
            f"backend.max_len: {backend.max_len} is below the largest bucket, {buckets[-1]}",
            hint="keys and values of a prompt and of what continues it must fit",
        )
    if backend.model_builder == TRACE and len(buckets) > 1:
        raise ConfigFailed(f"backend.buckets: {TRACE} makes one graph", hint=f"backend.buckets=[{buckets[-1]}]")


def export_settings(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> dict:
    """Errors: `ConfigFailed` where the model cannot be planned."""
    backend = config.backend
    return {
        "plan": plan_arguments(planned(config, checkpoint, layers, BYTES[config.precision])),
        "copy_buffers": backend.copy_buffers,
        "model_builder": backend.model_builder,
        "buckets": list(backend.buckets),
        "max_len": backend.max_len,
        "batch": backend.batch,
        "compute_dtype": DTYPES[config.precision],
        "attention": backend.attention,
        "compiler_args": backend.compiler_args,
        "logical_nc_config": backend.logical_nc_config,
        "max_parallel_compilations": backend.max_parallel_compilations,
    }


def candidate_settings(config: schema.Factors) -> dict:
    return {"threads": config.threads}


def host_refusal(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> str | None:
    """Why this host's memory would not do, as `sharding` estimates it."""
    tracer = sharding.ALL_RANKS if config.backend.model_builder == TRACE else sharding.ONE_RANK
    plan = planned(config, checkpoint, layers, BYTES[config.precision])
    return sharding.refusal(plan, psutil.virtual_memory().available, tracer)
