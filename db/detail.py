"""Reading one cell's, or some results', details: what they were given, what was measured, what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, literal, select, union_all
from sqlalchemy.orm import Session

from db.artifacts import (
    LOADING_FAULTS,
    OUTCOMES,
    ConstantValue,
    GenerationSetting,
    LoadedTensor,
    NoiseValue,
    PromptInput,
)
from db.engine import reading
from db.models import Cell, Finding, MetricName, MetricValue, Package, PromptResult, Result, StageRun
from db.query import KINDS, NotInDatabase, cell_part

ROLES = ("builder", "runtime", "reference")
PACKAGE_COLUMNS = ("package", *ROLES)
CHANGE_COLUMNS = ("change", "status", "detail")
STAGE_COLUMNS = ("stage", "found", "seconds", "peak_memory_bytes", "artifact")
TEXT_COLUMNS = ("prompt", "verdict", "reference_outcome", "outcome", "parting", "reference_text", "candidate_text")
FINDING_COLUMNS = ("kind", "prompt", "check", "evidence")
SETTING_COLUMNS = ("name", "reference", "export", "verdict", "weight", "says")
OWN_WAY_COLUMNS = ("side", "prompt", "rendered_by", "prompt_ids", "tokens", "stopped", "text", "says")
CONSTANT_COLUMNS = (
    "kind", "what", "layers", "reference", "export", "max_abs_diff", "positions", "verdict", "says",
)  # fmt: skip
LOADING_COLUMNS = (
    "side", "loader", "name", "layers", "count", "kind", "outcome", "shape", "held", "stored", "loaded", "says",
)  # fmt: skip
INPUT_COLUMNS = ("prompt", "tokens", "text", "ids", "template_source", "template_hash")


def cell_detail(engine: Engine, cell_id: int) -> dict[str, Any]:
    """Everything about one cell but its numbers and packages.

    {"cell": its row, "result": the result's columns, "prompts", "findings", "own way", "settings", "changes",
    "stages": rows}.
    """
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        result = cell.result
        return {
            "cell": cell_part(cell, result) | {"sweep started": cell.sweep.started},
            "result": {k: v for k, v in columns_of(result).items() if k != "own_way_detail"} if result else {},
            "prompts": [text_part(row) for row in (result.prompts if result else [])],
            "findings": [{c: getattr(row, c) for c in FINDING_COLUMNS} for row in (result.findings if result else [])],
            "own way": own_way_rows(result.own_way_detail if result else None),
            "settings": settings_of(session, result.settings_key) if result and result.settings_key else [],
            "changes": [{c: getattr(row, c) for c in CHANGE_COLUMNS} for row in cell.changes],
            "stages": [stage_part(row) for row in (result.stages if result else [])],
        }


def settings_of(session: Session, key: str) -> list[dict[str, Any]]:
    """Every generation setting of a candidate's artifact, with `SETTING_COLUMNS`."""
    query = select(GenerationSetting).where(GenerationSetting.settings_key == key).order_by(GenerationSetting.position)
    return [{c: getattr(row, c) for c in SETTING_COLUMNS} for row in session.scalars(query)]


def own_way_rows(found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """A row a side that ran its own way, with `OWN_WAY_COLUMNS`; the export's says what came of it."""
    sides = {"export": found.get("generation") or {}, "reference": found.get("reference") or {}} if found else {}
    return [
        {
            "side": side, "says": found["says"] if side == "export" else one.get("why") or None,
            "prompt_ids": len(one.get("ids", ())), "tokens": len(one.get("tokens", ())),
            **{name: one.get(name) for name in ("prompt", "rendered_by", "stopped", "text")},
        }
        for side, one in sides.items()
        if one or side == "export"
    ]  # fmt: skip


def text_part(prompt: PromptResult) -> dict[str, Any]:
    """What both sides said of a prompt, and where they parted."""
    return {c: getattr(prompt, c) for c in TEXT_COLUMNS} | {"parting": parting(prompt)}


def parting(prompt: PromptResult) -> str | None:
    """Where two texts part: the step, each side's two likeliest tokens, and by how little the reference chose."""
    if not prompt.parting:
        return None
    sides = [
        f"{side} " + ", ".join(f"{token!r} {logit:.4g}" for _, token, logit in top[:2] if logit is not None)
        for side, top in prompt.parting["top"].items()
    ]
    gap = prompt.parting["gap"]["value"]
    return f"at {prompt.parting['step']}: {'; '.join(sides)}" + ("" if gap is None else f"; gap {gap:.2g}")


def stage_part(stage: StageRun) -> dict[str, Any]:
    """A stage's columns, with its artifact's place in the store."""
    columns = {c: getattr(stage, c) for c in ("stage", "found", "seconds", "peak_memory_bytes")}
    return columns | {"artifact": f"{stage.stage}/{stage.key}"}


def stages_of(engine: Engine, result_ids: Sequence[int], name: str) -> dict[int, dict[str, Any]]:
    """One stage of some results, by result, with `STAGE_COLUMNS`."""
    query = select(StageRun).where(StageRun.result_id.in_(result_ids), StageRun.stage == name)
    with reading(engine) as session:
        return {stage.result_id: stage_part(stage) for stage in session.scalars(query)}


def columns_of(row: Any) -> dict[str, Any]:
    """A row's own columns, references to other tables left out."""
    return {c.key: getattr(row, c.key) for c in row.__table__.columns if not c.foreign_keys}


def existing_cell(session: Session, cell_id: int) -> Cell:
    cell = session.get(Cell, cell_id) if abs(cell_id) < 2**63 else None
    if cell is None:
        raise NotInDatabase(f"cell {cell_id} is not in the database: see python -m db results")
    return cell


def package_rows(engine: Engine, cell_id: int) -> list[dict[str, Any]]:
    """One dict a package, with its version in each of a cell's environments."""
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        versions: dict[str, dict[str, Any]] = {}
        for role in ROLES:
            environment = getattr(cell.result, f"{role}_environment_id") if cell.result else None
            for package in session.scalars(select(Package).where(Package.environment_id == environment)):
                versions.setdefault(package.name, {})[role] = package.version
        return [{"package": name, **versions[name]} for name in sorted(versions)]


def input_rows(engine: Engine, cell_id: int) -> list[dict[str, Any]]:
    """One dict a prompt of a cell, with `INPUT_COLUMNS`: what both sides were given."""
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        key = cell.result.prompts_key if cell.result else None
        query = select(PromptInput).where(PromptInput.prompts_key == key).order_by(PromptInput.position)
        return [
            {c: len(row.ids) if c == "tokens" else getattr(row, c) for c in INPUT_COLUMNS}
            for row in session.scalars(query)
        ]


def metric_rows(engine: Engine, cell_id: int, steps: bool) -> list[dict[str, Any]]:
    """Every number of a cell: a dict a prompt, or a step of one, with a key for each metric.

    Keys: "prompt", "step" (None for the whole continuation), and the metrics' names.
    """
    query = (
        select(PromptResult.prompt, PromptResult.position, MetricName.name, MetricValue)
        .join(MetricValue, MetricValue.prompt_result_id == PromptResult.id)
        .join(MetricName, MetricName.id == MetricValue.metric_id)
        .where(MetricValue.step >= 0 if steps else MetricValue.step < 0)
    )
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        for prompt, position, name, number in session.execute(query.where(PromptResult.result_id == cell.result_id)):
            key = {"prompt": prompt, "step": number.step if steps else None}
            row = rows.setdefault((position, number.step), key)
            row[name] = number.value if number.kind == "finite" else KINDS[number.kind]
        return [rows[key] for key in sorted(rows)]


def noise_rows(engine: Engine, keys: Sequence[str]) -> dict[str, list[NoiseValue]]:
    """The variants of some noise artifacts, by key, in order of variant and prompt."""
    query = select(NoiseValue).where(NoiseValue.noise_key.in_(keys))
    found: dict[str, list[NoiseValue]] = {}
    with reading(engine) as session:
        for row in session.scalars(query.order_by(NoiseValue.noise_key, NoiseValue.variant, NoiseValue.position)):
            found.setdefault(row.noise_key, []).append(row)
    return found


def constant_rows(engine: Engine, keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The constants of some artifacts, by key, in order, with `CONSTANT_COLUMNS`."""
    query = select(ConstantValue).where(ConstantValue.constants_key.in_(keys))
    found: dict[str, list[dict[str, Any]]] = {}
    with reading(engine) as session:
        for row in session.scalars(query.order_by(ConstantValue.constants_key, ConstantValue.position)):
            found.setdefault(row.constants_key, []).append({c: getattr(row, c) for c in CONSTANT_COLUMNS})
    return found


def cell_constants(engine: Engine, cell_id: int) -> list[dict[str, Any]]:
    """The constants of one cell's export, with `CONSTANT_COLUMNS`."""
    with reading(engine) as session:
        cell = existing_cell(session, cell_id)
        key = cell.result.constants_key if cell.result else None
    return constant_rows(engine, [key]).get(key, []) if key else []


def loading_of(engine: Engine, result_ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """What became of each key of the checkpoint where the sides of some results loaded it: by result, in stage order,
    with `LOADING_COLUMNS`. A made checkpoint's own loading ("checkpoint") comes first."""
    stages = select(StageRun.result_id, StageRun.position.label("place"), StageRun.stage, StageRun.key)
    made = select(Result.id, literal(-1), literal("checkpoint"), Result.model_key)
    sides = union_all(
        stages.where(StageRun.result_id.in_(result_ids)), made.where(Result.id.in_(result_ids))
    ).subquery()
    query = (
        select(sides.c.result_id, sides.c.stage, LoadedTensor)
        .join(LoadedTensor, LoadedTensor.loading_key == sides.c.key)
        .order_by(sides.c.result_id, sides.c.place, LoadedTensor.position)
    )
    found: dict[int, list[dict[str, Any]]] = {}
    with reading(engine) as session:
        for result, side, row in session.execute(query):
            columns = {c: getattr(row, c) for c in LOADING_COLUMNS if c != "side"}
            found.setdefault(result, []).append({"side": side, **columns})
    return found


def cell_loading(engine: Engine, cell_id: int, every: bool = True) -> list[dict[str, Any]]:
    """What became of each key of the checkpoint where a cell's sides loaded it, with `LOADING_COLUMNS`. every: not
    the faults alone."""
    with reading(engine) as session:
        result = existing_cell(session, cell_id).result_id
    rows = loading_of(engine, [result]).get(result, []) if result else []
    return [row for row in rows if every or row["outcome"] in LOADING_FAULTS]


def loading_counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many tensors of each side had which outcome, the worst first: "reference: 51 tensors cast, 6 computed"."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row["side"], Counter())[row["outcome"]] += row["count"]
    return "; ".join(f"{side}: {told_counts(found)}" for side, found in counts.items())


def told_counts(found: Counter[str]) -> str:
    first, *others = sorted(found, key=OUTCOMES.index)
    head = f"{found[first]} tensor{'s' * (found[first] != 1)} {first}"
    return ", ".join([head, *(f"{found[outcome]} {outcome}" for outcome in others)])


def findings_of(engine: Engine, result_ids: Sequence[int]) -> dict[int, list[Finding]]:
    """The findings of some results, in order."""
    query = select(Finding).where(Finding.result_id.in_(result_ids)).order_by(Finding.result_id, Finding.position)
    found: dict[int, list[Finding]] = {}
    with reading(engine) as session:
        for finding in session.scalars(query):
            found.setdefault(finding.result_id, []).append(finding)
    return found


def configs_of(engine: Engine, cell_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The configs of some cells as they were asked."""
    with reading(engine) as session:
        return dict(session.execute(select(Cell.id, Cell.config).where(Cell.id.in_(cell_ids))).all())


def prompts_of(engine: Engine, result_ids: Sequence[int]) -> dict[int, list[PromptResult]]:
    """The prompts of some results, in order."""
    query = (
        select(PromptResult)
        .where(PromptResult.result_id.in_(result_ids))
        .order_by(PromptResult.result_id, PromptResult.position)
    )
    found: dict[int, list[PromptResult]] = {}
    with reading(engine) as session:
        for prompt in session.scalars(query):
            found.setdefault(prompt.result_id, []).append(prompt)
    return found


def ids_of(engine: Engine, keys: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """The token ids of some prompts artifacts: by key, then by prompt."""
    query = select(PromptInput).where(PromptInput.prompts_key.in_(keys))
    found: dict[str, dict[str, list[int]]] = {}
    with reading(engine) as session:
        for row in session.scalars(query):
            found.setdefault(row.prompts_key, {})[row.prompt] = row.ids
    return found
