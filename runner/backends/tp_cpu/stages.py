"""What tensor parallelism on processes of this machine is made of: the export is each rank's part of the checkpoint."""

from __future__ import annotations

from runner import schema, sharding
from runner.backends.tp_cpu.plan import plan_arguments, planned
from runner.backends.transformers import stages as whole
from runner.checkpoints import Checkpoint
from runner.failures import ConfigFailed

BUILDER = CONSTANTS = False
EXPORT, CANDIDATE = "shards", "tp_candidate"
ONE_AT_A_TIME = False
REQUIRES, LACKING = ("transformers",), "lay it over the interpreter with env.extras"


def check(config: schema.Factors) -> None:
    """Errors: `ConfigFailed`."""
    whole.check(config)
    backend = config.backend
    for key, allowed in (("gqa", sharding.STRATEGIES), ("vocabulary", sharding.VOCABULARIES)):
        if getattr(backend, key) not in allowed:
            hint = f"allowed: {', '.join(allowed)}"
            raise ConfigFailed(f"backend.{key}: {getattr(backend, key)!r} is not allowed", hint=hint)
    if not 1 <= backend.tp <= 64:
        raise ConfigFailed(f"backend.tp: {backend.tp} is not allowed", hint="allowed: 1 to 64 processes")


def export_settings(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> dict:
    """Errors: `ConfigFailed` where the model cannot be planned."""
    plan = planned(config, checkpoint, layers, width=2)  # its bytes are not asked for
    return {"plan": plan_arguments(plan), "copy_buffers": config.backend.copy_buffers}


def candidate_settings(config: schema.Factors) -> dict:
    return {**whole.candidate_settings(config), "copied": config.backend.copy_buffers}


def host_refusal(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> None:
    """Nothing is known beforehand of the memory that its export needs."""
