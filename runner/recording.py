"""From a cell's plan and its outcome to what `db.record` stores. No decisions, only shapes."""

from __future__ import annotations

from collections.abc import Sequence

from db.record import NewResult, Provenance
from runner import machine
from runner.cells import Cell
from runner.failures import Failure
from runner.plan import MEASUREMENT_VERSION, Plan
from runner.scrub import scrub
from runner.stages import StageRun

# A patch set's outcome in a word is the first of these that one of its changes has.
STRONGEST_FIRST = ("failed", "applied", "present", "not_applicable")


def success(plan: Plan, comparison: dict, runs: Sequence[StageRun], seconds: float) -> NewResult:
    """A compared cell; `comparison` has "dtypes" too, {"reference", "candidate"}: what each side really loaded."""
    values = {
        "status": "ok",
        "final": True,
        "measurement_version": comparison["measurement"],
        "reference_dtype": comparison["dtypes"]["reference"],
        "candidate_dtype": comparison["dtypes"]["candidate"],
        "peak_memory_bytes": peak_memory(runs),
    }
    return new_result(values, plan, runs, seconds, comparison["prompts"])


def failure(failed: Failure, plan: Plan | None, runs: Sequence[StageRun], seconds: float) -> NewResult:
    """A failed cell; `plan` is None where it failed before it had one."""
    evidence = failed.evidence
    values = {
        "status": failed.status,
        "final": failed.final,
        "measurement_version": MEASUREMENT_VERSION,
        "failed_stage": failed.stage,
        "error_type": failed.error_type or None,
        "error": scrub(failed.message),
        "error_frame": evidence.frame,
        "hint": scrub(failed.hint) or None,
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "stderr_tail": scrub(evidence.stderr_tail or "") or None,
        "peak_memory_bytes": evidence.peak_memory_bytes or peak_memory(runs),
    }
    return new_result(values, plan, runs, seconds)


def new_result(
    values: dict, plan: Plan | None, runs: Sequence[StageRun], seconds: float, prompts: Sequence[dict] = ()
) -> NewResult:
    """`values` and what every result has: environments, machine, stages, hashes."""
    if plan is not None:
        values |= {
            "hash": plan.result_hash,
            "checkpoint_hash": plan.checkpoint.hash,
            "checkpoint_dtype": ",".join(sorted(plan.checkpoint.dtypes)),
            "prompts_key": plan.stages["prompts"].key,
            "overlay_tree": plan.overlay.tree,
        }
    return NewResult(
        values=values | {"seconds": seconds},
        environments={
            role: {"hash": resolution.hash, "platform": resolution.platform, "packages": resolution.packages}
            for role, resolution in (plan.resolutions if plan else {}).items()
        },
        machine=machine.describe(),
        stages=[run.row() for run in runs],
        prompts=prompts,
    )


def provenance(cell: Cell, plan: Plan | None, failed: Failure | None = None) -> Provenance:
    """What a cell's export was made of; where there is no plan, what its failure knows of it."""
    if cell.config is None:
        return Provenance()
    outcomes = plan.overlay.outcomes if plan else failed.outcomes if failed else ()
    statuses = {outcome["status"] for outcome in outcomes}
    values: dict = {
        "patch_hash": plan.overlay.patch_hash if plan else None,
        "patch_outcome": next((status for status in STRONGEST_FIRST if status in statuses), "none"),
    }
    source = plan.source if plan else failed.source if failed else None
    if source:
        values |= {"source": scrub(source.said), "source_commit": source.commit, "source_dirty": source.dirty}
    return Provenance(values, [{key: o[key] for key in ("change", "status", "detail")} for o in outcomes])


def peak_memory(runs: Sequence[StageRun]) -> int | None:
    return max((run.peak_memory_bytes for run in runs if run.peak_memory_bytes), default=None)
