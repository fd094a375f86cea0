"""What the export and the candidate of ONNX Runtime GenAI are made of."""

from __future__ import annotations

from runner import schema
from runner.checkpoints import Checkpoint

BUILDER = CONSTANTS = True
EXPORT, CANDIDATE = "export", "candidate"
ONE_AT_A_TIME = False
REQUIRES, LACKING = ("onnxruntime-genai",), "lay it over the interpreter with env.extras"


def check(config: schema.Factors) -> None:
    """Whatever the types admit the builder may be asked for."""


def export_settings(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> dict:
    return {
        "precision": config.precision,
        "execution_provider": config.backend.execution_provider,
        "extra_options": dict(config.backend.extra_options),
    }


def candidate_settings(config: schema.Factors) -> dict:
    return {"threads": config.threads}


def host_refusal(config: schema.Factors, checkpoint: Checkpoint, layers: int | None) -> None:
    """Nothing is known beforehand of the memory that its export needs."""
