"""What a candidate in transformers is made of: there is no export."""

from __future__ import annotations

from runner import schema
from runner.checkpoints import Checkpoint
from runner.failures import ConfigFailed

BUILDER = CONSTANTS = False
EXPORT, CANDIDATE = None, "transformers_candidate"
ONE_AT_A_TIME = False
REQUIRES, LACKING = ("transformers",), "lay it over the interpreter with env.extras"
# The dtype to load and compute in, by the factor `precision`.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def check(config: schema.Factors) -> None:
    """Errors: `ConfigFailed` for what transformers does not compute in."""
    backend = config.backend
    for key, allowed in (("attention", schema.ATTENTIONS), ("compute_dtype", (None, *schema.COMPUTE_DTYPES))):
        if getattr(backend, key) not in allowed:
            listed = ", ".join("null" if value is None else value for value in allowed)
            raise ConfigFailed(f"backend.{key}: {getattr(backend, key)!r} is not allowed", hint=f"allowed: {listed}")
    if config.precision not in DTYPES:
        raise ConfigFailed(
            f"precision: backend={backend.name} has no {config.precision}", hint=f"allowed: {', '.join(DTYPES)}"
        )
    if backend.compute_dtype and config.precision != "fp32" and backend.compute_dtype != DTYPES[config.precision]:
        raise ConfigFailed(
            f"precision={config.precision} and backend.compute_dtype={backend.compute_dtype} contradict each other",
            hint="precision names what the candidate is held to as well; give one of them",
        )


def export_settings(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> dict:
    return {}


def candidate_settings(config: schema.Factors) -> dict:
    compute_dtype = config.backend.compute_dtype or DTYPES[config.precision]
    return {"compute_dtype": compute_dtype, "attention": config.backend.attention, "threads": config.threads}
