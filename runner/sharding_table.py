"""``action=sharding``: each model's sharding plan as text, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import psutil

from db.output import markdown_table
from runner import cells, checkpoints, families, models, schema, sharding
from runner.cells import Cell
from runner.failures import ConfigFailed, Failure
from runner.sharding import ShardingPlan

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
GB = 1e9


def report(cells_: Sequence[Cell], settings: schema.Sharding) -> tuple[str, bool]:
    """The plans of all cells at each TP degree, and whether each fits; a cell that gives none says why."""
    parts, good = [], True
    for cell in cells_:
        for tp in degrees(settings.tp):
            try:
                text, fits = of_cell(cell, tp, settings)
            except Failure as failure:
                text, fits = f"{failure.status}: {failure.line()}" + f" ({failure.hint})" * bool(failure.hint), False
            parts.append(f"## {cell.factors['model']}, {cell.factors['dtype']}, TP {tp}\n\n{text}")
            good = good and fits
    return "\n\n".join(parts), good


def degrees(given: Any) -> list[Any]:
    """The TP degrees asked for: a number, or a list of them."""
    return list(given) if isinstance(given, list) else [given]


def of_cell(cell: Cell, tp: int, settings: schema.Sharding) -> tuple[str, bool]:
    """One plan as text, and whether it fits. Errors: `Failure`."""
    if cell.failure:
        raise cell.failure
    assert cell.config is not None
    config, layers = config_of(cell.config), cell.config.layers
    size = size_of(cell.config.dtype, config)

    def at(degree: int) -> ShardingPlan:
        plan = sharding.plan(config, degree, size, settings.gqa, settings.vocabulary)
        return plan if layers == "all" else replace(plan, layers=plan.layers[: int(layers)])

    # The others are planned only where a refusal asks for them.
    return told(at(tp), settings, map(at, smaller(tp)))


def smaller(tp: int) -> list[int]:
    """TP degrees below one that a refusal may name: with fewer ranks less is held several times over."""
    return [degree for degree in (16, 8, 4, 2) if degree < tp]


def config_of(config: schema.Factors) -> dict[str, Any]:
    """The fields of a model's config.json, wherever they are written down. Errors: `Failure`."""
    model = config.model
    if model.family:
        words = checkpoints.read_config(models.TOKENIZER)["vocab_size"]  # what the maker would give it
        given = models.merged(families.read(model.family)["config"], model.config)
        return {"vocab_size": words, **given, **with_words(given.get("text_config"), words)}
    if model.config:
        return model.config
    if model.path:
        path = cells.model_path(config)
        return checkpoints.read_config(path.parent if path.name == "config.json" else path)
    raise ConfigFailed(
        f"model={model.name}: no config is written down for it",
        hint="give model.path=DIR, a folder with its config.json",
    )


def with_words(text: dict[str, Any] | None, words: int) -> dict[str, Any]:
    """The nested part of a family's config, if it has one, with a vocabulary."""
    sizes = {"vocab_size": words, "vocab_size_per_layer_input": words}
    return {"text_config": {**sizes, **text}} if text else {}


def size_of(dtype: str, config: dict[str, Any]) -> int:
    """Bytes of a parameter; of a config that does not say, those of bf16, in which checkpoints are published."""
    inner = config.get("text_config") or config
    stored = inner.get("torch_dtype") or inner.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return BYTES.get(checkpoints.CONFIG_DTYPES.get(stored, stored) if dtype == "stored" else dtype, 2)


def told(plan: ShardingPlan, settings: schema.Sharding, others: Iterable[ShardingPlan]) -> tuple[str, bool]:
    """The table of a plan, its totals, and whether it fits core and host."""
    rows = sharding.table(plan)
    header = [name for name in sharding.COLUMNS if any(row.get(name) not in (None, "") for row in rows)]
    body = [[shown(row.get(name)) for name in header] for row in rows]
    counts = ", ".join(f"{number} {layout}" for layout, number in plan.counts().items())
    cache = plan.kv_cache_bytes(settings.batch, settings.tokens)
    core = settings.core_gb * GB
    free = settings.host_gb * GB if settings.host_gb else psutil.virtual_memory().available
    fits, refused = plan.fits(core, cache), sharding.refusal(plan, free, settings.tracer, others)
    lines = [
        f"{len(plan.layers)} layers by attention: {counts}. {plan.parameters:,} parameters,"
        f" {gb(plan.checkpoint_bytes)}; {gb(plan.rank_bytes)} a rank.",
        f"Keys and values of {settings.tokens:,} tokens, batch {settings.batch}: {gb(cache)} a rank. With them a rank"
        f" {'fits' if fits else 'DOES NOT FIT'} a core of {settings.core_gb:g} GB.",
        *(memory_line(plan, tracer) for tracer in sharding.TRACERS),
        f"Refused: {refused}." if refused else f"Tracing {settings.tracer} fits this host: {gb(free)} are free.",
    ]
    lines += [f"Left out of the plan: {', '.join(plan.left_out)}."] if plan.left_out else []
    text = "\n".join([markdown_table(header, body), "", *(f"- {line}" for line in lines)])
    return text, fits and not refused


def memory_line(plan: ShardingPlan, tracer: str) -> str:
    need = sharding.host_memory(plan, tracer)
    parts = ", ".join(f"{name} {gb(size)}" for name, size in need.parts.items())
    return f"Host memory to trace {tracer}, an estimate: {gb(need.total)} ({parts})."


def shown(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def gb(size: float) -> str:
    return f"{size / GB:.4g} GB"
