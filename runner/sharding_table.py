"""``action=sharding``: each model's sharding plan as text, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psutil

from db.output import markdown_table
from runner import cells, checkpoints, families, models, schema, sharding
from runner.cells import Cell
from runner.failures import ConfigFailed, Failure
from runner.sharding import ShardingPlan

DEGREES = (64, 32, 16, 8, 4, 2)
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
GB = 1e9


def report(cells_: Sequence[Cell], settings: schema.Sharding) -> tuple[str, bool]:
    """The plans of all cells at each TP degree, and whether each fits; a cell that gives none says why."""
    parts, good = [], True
    for cell in cells_:
        own = as_its_backend(cell, settings)
        for tp in degrees(own.tp):
            try:
                text, fits = of_cell(cell, tp, own)
            except Failure as failure:
                text, fits = f"{failure.status}: {failure.line()}" + f" ({failure.hint})" * bool(failure.hint), False
            how = f"gqa {own.gqa}, vocabulary {own.vocabulary}"
            parts.append(f"## {cell.factors['model']}, {cell.factors['dtype']}, TP {tp}, {how}\n\n{text}")
            good = good and fits
    return "\n\n".join(parts), good


def as_its_backend(cell: Cell, settings: schema.Sharding) -> schema.Sharding:
    """What a cell's plan is made by: its backend's own degree, where that has one."""
    backend = cell.config.backend if cell.config else None
    if not hasattr(backend, "tp"):
        return settings
    return replace(settings, tp=backend.tp, gqa=backend.gqa, vocabulary=backend.vocabulary)


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

    def at(degree: int, gqa: str = settings.gqa) -> ShardingPlan:
        plan = sharding.plan(config, degree, size, gqa, settings.vocabulary)
        return plan if layers == "all" else replace(plan, layers=plan.layers[: int(layers)])

    # The others are planned only where a refusal, or a core that is too small, asks for them.
    plan = at(tp)
    fits_a_core = partial(fits, settings=settings)
    others = filter(fits_a_core, map(at, [degree for degree in DEGREES if degree < tp]))
    text, good = told(plan, settings, others)
    if not fits_a_core(plan):
        text += f"\n- {what_fits(plan, settings, at)}"
    return text, good


def fits(plan: ShardingPlan, settings: schema.Sharding) -> bool:
    """Whether a rank's weights and its cache fit a core."""
    return plan.fits(settings.core_gb * GB, plan.kv_cache_bytes(settings.batch, settings.tokens))


def what_fits(plan: ShardingPlan, settings: schema.Sharding, at: Callable[..., ShardingPlan]) -> str:
    """What to do where a rank does not fit a core: another strategy at the degree, or the least degree that fits."""
    ways = []
    for gqa in sharding.STRATEGIES:
        if gqa != settings.gqa and fits(other := at(plan.tp, gqa), settings):
            ways.append(f"sharding.gqa={gqa} ({gb(other.rank_bytes)} a rank)")
            break
    for degree in [degree for degree in reversed(DEGREES) if degree > plan.tp]:
        try:
            other = at(degree)
        except ConfigFailed:  # more ranks than query heads
            break
        if fits(other, settings):
            ways.append(f"TP {degree} ({gb(other.rank_bytes)} a rank)")
            break
    return (
        f"What would fit a core: {', or '.join(ways)}." if ways else "No other division of it fits a core: cut layers=."
    )


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
    seen = plan.kv_cache_bytes(settings.batch, settings.tokens, windowed=True)
    kept = f" ({gb(seen)} with no more than its window in a sliding layer)" if seen != cache else ""
    free = settings.host_gb * GB if settings.host_gb else psutil.virtual_memory().available
    good, refused = fits(plan, settings), sharding.refusal(plan, free, settings.tracer, others)
    lines = [
        f"{len(plan.layers)} layers by attention: {counts}. {plan.parameters:,} parameters,"
        f" {gb(plan.checkpoint_bytes)}; {gb(plan.rank_bytes)} a rank.",
        f"Keys and values of {settings.tokens:,} tokens, batch {settings.batch}: {gb(cache)} a rank{kept}. With them a"
        f" rank {'fits' if good else 'DOES NOT FIT'} a core of {settings.core_gb:g} GB; activations are not counted.",
        *(memory_line(plan, tracer) for tracer in sharding.TRACERS),
        f"Refused: {refused}." if refused else f"Tracing {settings.tracer} fits this host: {gb(free)} are free.",
    ]
    lines += [f"Left out of the plan: {', '.join(plan.left_out)}."] if plan.left_out else []
    text = "\n".join([markdown_table(header, body), "", *(f"- {line}" for line in lines)])
    return text, good and not refused


def memory_line(plan: ShardingPlan, tracer: str) -> str:
    need = sharding.host_memory(plan, tracer)
    parts = ", ".join(f"{name} {gb(size)}" for name, size in need.parts.items())
    return f"Host memory to trace {tracer}, an estimate: {gb(need.total)} ({parts})."


def shown(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def gb(size: float) -> str:
    return f"{size / GB:.4g} GB"
