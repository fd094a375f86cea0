"""What the export and the candidate of ONNX Runtime GenAI are made of.

Each function gives the settings that are hashed into the stage's key and
handed to the worker as arguments.
"""

from __future__ import annotations

from runner import schema


def export_settings(config: schema.Factors) -> dict:
    return {
        "precision": config.precision,
        "execution_provider": config.backend.execution_provider,
        "extra_options": dict(config.backend.extra_options),
    }


def candidate_settings(config: schema.Factors) -> dict:
    return {"threads": config.threads}
