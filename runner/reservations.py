"""What is told beside a verdict: how an export ran its own way, and its generation settings. Shapes and phrases only.

Both come with the candidate's artifact, as `own_way` and `generation_settings`
of `runner/worker/` have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from db.scrub import scrub

# What a table says of each outcome beside the verdict; others are no fault, or say nothing.
PHRASES = {
    "never_stops": "run its own way it does not stop",
    "stops_early": "run its own way it stops too early",
    "stops_late": "run its own way it stops too late",
    "differs": "run its own way it gives another text",
    "no_template": "it has no chat template of its own",
    "other_ids": "its own tokenizer or template gives other prompt ids",
    "decodes_otherwise": "its own tokenizer decodes to another text",
}
# Settings whose consequence an outcome of the own way tells already.
TOLD_BY = {"never_stops": "eos_token_id", "no_template": "chat_template"}
MOST_NAMED = 2
ERRORS = ("why", "template_error")  # may hold what a library says


def own_way(candidate: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """What the candidate's stage says of its own way; of a backend that says nothing, that it has none."""
    found = candidate.get("own_way")
    if found is None:
        why = f"backend {backend} has no generation loop of its own"
        return {"outcome": "not_run", "says": f"not run: {why}", "explained": False}
    generation = {k: scrub(v) if k in ERRORS else v for k, v in found["generation"].items()}
    return {**found, "says": scrub(found["says"]), "generation": generation}


def settings_rows(key: str, settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `GenerationSetting`; values are JSON texts."""
    return [
        {
            **row,
            **{side: None if row[side] is None else json.dumps(row[side]) for side in ("reference", "export")},
            "says": scrub(row["says"]),
            "settings_key": key,
            "position": n,
        }
        for n, row in enumerate(settings)
    ]


def findings(own: Mapping[str, Any], settings: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]):
    """The warnings of both, a dict each; `others` are found already, and nothing is told twice."""
    found = [{"prompt": None, "check": "generation_settings", "evidence": evidence(row)} for row in faults(settings)]
    checks = {finding["check"] for finding in others}
    told = own["outcome"] == "other_ids" and "runtime_tokenizer" in checks
    if fault(own) and not told:
        name = own["generation"]["prompt"]
        how = f"prompt {name!r} by the runtime's own tokenizer, chat template, loop and end tokens: {own['says']}"
        found.append({"prompt": None, "check": "own_way", "evidence": how})
    return found


def fault(own: Mapping[str, Any]) -> bool:
    """Whether the own way shows what the logits do not."""
    return own["outcome"] in PHRASES and not own["explained"]


def faults(settings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in settings if row["weight"] == "warning"]


def evidence(row: Mapping[str, Any]) -> str:
    """A setting that is wrong, in a line: "eos_token_id: 7 in the export, [1, 5] in the checkpoint: …"."""
    export, reference = (row[side] if row[side] is not None else "none" for side in ("export", "reference"))
    return f"{row['name']}: {export} in the export, {reference} in the checkpoint" + (
        row["says"] and f": {row['says']}"
    )


def reservations(own: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Phrases for beside the verdict; empty where nothing is known to be wrong."""
    said = [PHRASES[own["outcome"]]] if fault(own) else []
    told = TOLD_BY.get(own["outcome"]) if said else None
    names = [row["name"] for row in faults(settings) if row["name"] != told]
    if len(names) > MOST_NAMED:
        return [*said, f"{len(names)} of its generation settings are wrong"]
    if names:
        return [*said, f"its {' and '.join(names)} {'is' if len(names) == 1 else 'are'} not the checkpoint's"]
    return said
