"""From a cell's plan and its outcome to what `db.record` stores. No decisions, only shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from db.models import MEASUREMENT_VERSION
from db.record import NewResult, Provenance, loading_rows
from db.reserved import NOT_COMPARED
from db.scrub import scrub
from runner import backends, machine, reservations, schema
from runner.cells import Cell
from runner.checkpoints import CONFIG_DTYPES as DTYPE_WORDS
from runner.failures import Failure
from runner.plan import Plan
from runner.stages import StageRun

# A patch set's outcome in a word is the first of these that one of its changes has.
STRONGEST_FIRST = ("failed", "applied", "present", "not_applicable")


@dataclass(frozen=True)
class Measured:
    """What the stages of a compared cell wrote: their JSON files, and what each returned about its artifact."""

    metas: dict[str, dict]
    compare: dict | None = None
    prompts: dict | None = None
    noise: dict | None = None
    constants: dict | None = None
    constants_failures: Sequence[Failure] = ()  # why the constants could not be compared
    loading: Sequence[dict] = ()  # what became of each key of the checkpoint, as `loading_of` gives it


# The files of `Measured`, by the stage that writes them.
FILES = {
    "compare": "comparison.json", "prompts": "prompts.json", "noise": "noise.json", "constants": "constants.json",
}  # fmt: skip


LOADING = "loading.json"
# The stages that load the checkpoint and audit it.
LOADERS = ("reference", "export", "candidate")


def success(plan: Plan, measured: Measured, runs: Sequence[StageRun], seconds: float) -> NewResult:
    """A cell that was compared, by its logits or by its constants alone."""
    reference, export, candidate = (measured.metas.get(name, {}) for name in ("reference", "export", "candidate"))
    cast = plan.stages["checkpoint"].inputs["dtype"] if "checkpoint" in plan.stages else "stored"
    files = dtypes_of(plan) if cast == "stored" else cast
    overridden = {"reference": reference.get("overridden"), "candidate": candidate.get("overridden")}
    compared = measured.compare or {"measurement": MEASUREMENT_VERSION, "thresholds": None, "prompts": []}
    values = {
        "status": "ok",
        "final": all(failed.final for failed in measured.constants_failures),
        "measurement_version": compared["measurement"],
        "thresholds": compared["thresholds"],
        "files_dtype": files,
        "reference_dtype": reference.get("loaded_dtype"),
        "candidate_dtype": candidate.get("loaded_dtype") or export.get("loaded_dtype"),
        "layer_count": reference.get("layers"),
        "overridden": {side: found for side, found in overridden.items() if found},
        "stand_in": candidate.get("stand_in") or export.get("stand_in"),
        "timings": {name: value for side in (export, candidate) for name, value in side.get("timings", {}).items()},
        "peak_memory_bytes": peak_memory(runs),
    }
    inputs, noise = input_rows(plan, measured.prompts), noise_rows(plan, measured.noise)
    constants = constant_rows(plan, measured.constants)
    settings, told_beside = [], []
    if "candidate" in measured.metas:
        stage = plan.stages["candidate"]
        own = reservations.own_way(candidate, stage.inputs["backend"])
        settings = reservations.settings_rows(stage.key, candidate.get("settings", ()))
        values |= {"own_way": own["outcome"], "own_way_detail": own, "settings_key": stage.key if settings else None}
        values["reservations"] = reservations.reservations(own, settings)
        told_beside = reservations.findings(own, settings, candidate.get("findings", ()))
    if measured.constants_failures:
        values["reservations"] = [*(values.get("reservations") or ()), NOT_COMPARED]
    values["noise_key"] = noise[0]["noise_key"] if noise else None
    values["constants_key"] = constants[0]["constants_key"] if constants else None
    result = new_result(values, plan, runs, seconds, compared["prompts"])
    told = findings(plan, measured, values)
    told += [{"kind": "warning", **warning} for warning in told_beside]
    return replace(
        result, findings=told, inputs=inputs, noise=noise, constants=constants, loading=measured.loading,
        settings=settings,
    )  # fmt: skip


def findings(plan: Plan, measured: Measured, values: dict) -> list[dict]:
    """The prompt audit's, and warnings about what was cast, loaded and cut."""
    said = {stage: measured.metas.get(stage, {}).get("findings", []) for stage in measured.metas}
    told = [finding for stage in ("reference", "candidate") for finding in said.get(stage, [])]
    audit = [*(measured.prompts or {}).get("findings", []), *(finding for finding in told if finding["prompt"])]
    found = [{"kind": "prompt", **finding} for finding in audit]
    warnings = code_findings(plan)
    warnings += [
        finding for stage in ("checkpoint", "export", "constants", "compare") for finding in said.get(stage, [])
    ]
    warnings += [finding for finding in told if not finding["prompt"]]
    for failed in measured.constants_failures:
        evidence = f"they could not be compared: {scrub(failed.line())}"
        warnings.append({"prompt": None, "check": "constants", "evidence": evidence})
    for side, column in (("reference", "reference_dtype"), ("builder", "candidate_dtype")):
        files, loaded = values["files_dtype"], values[column]
        if side == "builder" and not plan.overlay:
            continue  # what it computes in was asked for
        if loaded and files != DTYPE_WORDS.get(loaded, loaded):
            asked = " (reference.compute_dtype)" if side == "reference" else ""
            evidence = f"the {side} loaded {DTYPE_WORDS.get(loaded, loaded)}{asked}, the files hold {files}"
            warnings.append({"prompt": None, "check": "loaded_dtype", "evidence": evidence})
    theirs = "export" if "export" in measured.metas else "candidate"
    sides = {side: measured.metas.get(side, {}).get("sliding_layers") for side in ("reference", theirs)}
    if None not in sides.values() and sides["reference"] != sides[theirs]:
        evidence = f"sliding-window layers: {sides['reference']} in the reference, {sides[theirs]} in the {theirs}"
        warnings.append({"prompt": None, "check": "layer_types", "evidence": evidence})
    return found + [{"kind": "warning", **warning} for warning in warnings]


def code_findings(plan: Plan | None) -> list[dict]:
    """Warnings of stages that other code made than their numbers stand for."""
    return [{"prompt": None, "check": "code", "evidence": line} for line in plan.code] if plan else []


def input_rows(plan: Plan, prompts: dict | None) -> list[dict]:
    """What each prompt was to both sides."""
    if prompts is None:
        return []
    shared = {
        "prompts_key": plan.stages["prompts"].key,
        "template_source": prompts["template_source"],
        "template_hash": prompts["template_hash"],
    }
    return [
        {**shared, "position": n, "prompt": p["name"], "text": p["text"], "ids": p["ids"]}
        for n, p in enumerate(prompts["prompts"])
    ]


def noise_rows(plan: Plan, noise: dict | None) -> list[dict]:
    """How far each variant moved at each prompt, and why others were left out."""
    if noise is None:
        return []
    empty = dict.fromkeys(("prompt", "versus", "first", "largest", "left_out"))
    empty["noise_key"] = plan.stages["noise"].key
    rows = [
        {**empty, "variant": variant, "position": n, "prompt": prompt["prompt"], "versus": noise["versus"][variant],
         "first": steps[0], "largest": None if None in steps else max(steps)}
        for n, prompt in enumerate(noise["prompts"])
        for variant, steps in prompt["variants"].items()
    ]  # fmt: skip
    why = [{**empty, "variant": v, "position": -1, "left_out": scrub(why)} for v, why in noise["left_out"].items()]
    return rows + why


def loading_of(plan: Plan, rows: Mapping[str, list[dict]]) -> list[dict]:
    """What became of each key of the checkpoint, by the stage that loaded it; a made checkpoint's own first."""
    made = loading_rows(plan.origin.key, plan.origin.loading) if plan.origin.loading else []
    return made + [row for stage, found in rows.items() for row in loading_rows(plan.stages[stage].key, found)]


def constant_rows(plan: Plan, constants: dict | None) -> list[dict]:
    """What the export holds beside what transformers computes, one row a constant and set of layers."""
    if constants is None:
        return []
    key = plan.stages["constants"].key
    return [{**constant, "constants_key": key, "position": n} for n, constant in enumerate(constants["constants"])]


def failure(
    failed: Failure,
    plan: Plan | None,
    runs: Sequence[StageRun],
    seconds: float,
    findings: Sequence[dict] = (),
    constants: dict | None = None,
    loading: Sequence[dict] = (),
    stand_in: str | None = None,
) -> NewResult:
    """A failed cell; `plan` is None where it failed before it had one.

    findings: what its stages found before it failed; constants: what its export
    holds, where it has one; loading: as in `Measured`.
    """
    evidence = failed.evidence
    values = {
        "status": failed.status,
        "final": failed.final,
        "measurement_version": MEASUREMENT_VERSION,
        "stand_in": stand_in,
        "failed_stage": failed.stage,
        "error_type": failed.error_type or None,
        "error": scrub(failed.message),
        "error_frame": evidence.frame,
        "hint": scrub(failed.hint) or None,
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "stderr_tail": scrub(evidence.stderr_tail or "") or None,
        "stack_dump": scrub(evidence.stacks or "") or None,
        "peak_memory_bytes": evidence.peak_memory_bytes or peak_memory(runs),
    }
    rows = constant_rows(plan, constants) if plan else []
    values["hint"] = values["hint"] or of_a_window(failed, rows)
    values["constants_key"] = rows[0]["constants_key"] if rows else None
    said = [*code_findings(plan), *findings]
    told = [{"kind": "prompt" if finding["prompt"] else "warning", **finding} for finding in said]
    return replace(new_result(values, plan, runs, seconds), findings=told, constants=rows, loading=loading)


def of_a_window(failed: Failure, constants: Sequence[dict]) -> str | None:
    """One explanation of a run that failed in attention and of a sliding window that its graph has lost."""
    lost = next((row for row in constants if row["kind"] == "window" and row["verdict"] == "dropped"), None)
    if failed.stage != "candidate" or lost is None or "Attention" not in failed.message:
        return None
    if "genai_config.json declares none" in lost["says"] or "genai_config.json declares" not in lost["says"]:
        return None
    return (
        f"{lost['says']}: the runtime sizes its cache by that window, and the graph's attention keeps every position,"
        " so that a sequence which is longer than the window may not fit; see whether it runs without sliding_window"
        " in genai_config.json, or with a shorter prompt"
    )


def new_result(
    values: dict, plan: Plan | None, runs: Sequence[StageRun], seconds: float, prompts: Sequence[dict] = ()
) -> NewResult:
    """`values` and what every result has: environments, machine, stages, hashes."""
    if plan is not None:
        values |= {
            "hash": plan.result_hash,
            "checkpoint_hash": plan.checkpoint.hash,
            "checkpoint_dtype": dtypes_of(plan),
            "prompts_key": plan.stages["prompts"].key if "prompts" in plan.stages else None,
            "model_key": plan.origin.key if plan.origin.loading else None,
            "overlay_tree": plan.overlay.tree if plan.overlay else None,
        }
    roles = dict(plan.resolutions) if plan else {}
    if plan and plan.reference_environment is not None:
        del roles["reference"]
        values |= {"reference_environment_id": plan.reference_environment}
    return NewResult(
        values=values | {"seconds": seconds},
        environments={
            role: {"hash": resolution.hash, "platform": resolution.platform, "packages": resolution.packages}
            for role, resolution in roles.items()
        },
        machine=machine.describe(),
        stages=[run.row() for run in runs],
        prompts=prompts,
    )


def provenance(cell: Cell, plan: Plan | None, failed: Failure | None = None) -> Provenance:
    """What a cell's export was made of; where there is no plan, what its failure knows of it."""
    if cell.config is None:
        return Provenance()
    patched = plan.overlay if plan else None
    outcomes = patched.outcomes if patched else failed.outcomes if failed else ()
    statuses = {outcome["status"] for outcome in outcomes}
    values: dict = {
        "patch_hash": patched.patch_hash if patched else None,
        "checkpoint_origin": plan.origin.said if plan else None,
        "patch_outcome": next((status for status in STRONGEST_FIRST if status in statuses), "none"),
    }
    source = plan.source if plan else failed.source if failed else None
    if source:
        values |= {"source": scrub(source.said), "source_commit": source.commit, "source_dirty": source.dirty}
        values["source_tree"] = source.tree
    elif plan:
        values["source"] = candidate_source(cell.config.backend, plan)
    hashes = patched.change_hashes if patched else {}
    changes = [{key: o[key] for key in ("change", "status", "detail")} for o in outcomes]
    overlay = None
    if patched:
        overlay = {"tree": patched.tree, "source_tree": source.tree, "diff": patched.diff}
    rows = [{**change, "hash": hashes.get(change["change"])} for change in changes]
    return Provenance(values, rows, overlay, source.history if source else None)


def candidate_source(backend: schema.Backend, plan: Plan) -> str:
    """What a candidate without a builder is computed by, which no label says."""
    packages = plan.resolutions["runtime"].packages
    given = {}
    for stage in ("export", "candidate"):
        given |= plan.stages[stage].inputs if stage in plan.stages else {}
    names = dict.fromkeys(("transformers", *backends.stages(backend.name).REQUIRES))
    told = [f"{name} {packages[name]}" for name in names if name in packages]
    told += [f"{given['attention']} attention"] if given.get("attention") else []
    told += [f"computed in {given['compute_dtype']}"] if given.get("compute_dtype") else []
    told += [f"{backend.tp} processes"] if hasattr(backend, "tp") else []
    return ", ".join(told)


def dtypes_of(plan: Plan) -> str:
    """What the checkpoint's own files hold."""
    return ",".join(sorted(plan.checkpoint.dtypes))


def peak_memory(runs: Sequence[StageRun]) -> int | None:
    return max((run.peak_memory_bytes for run in runs if run.peak_memory_bytes), default=None)
