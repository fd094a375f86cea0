"""Who holds what under tensor parallelism: from a model's config and a TP degree to the tensors of each rank.

Arithmetic only: where a config is from, and how a plan is printed, is elsewhere. Names and shapes are those of the text
models of transformers 5.13; rules are the port's, neuronx-distributed's (0.18.0) and its inference library's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from db.output import gigabytes, runs
from runner.architectures import (
    Heads,
    Model,
    Span,
    Tensor,
    around,
    attention,
    feed_forward,
    make_tensor,
    outside_layers,
    read,
)
from runner.failures import ConfigFailed

STRATEGIES = ("replicate-layer", "replicate-to-tp-degree", "convert-to-mha")
VOCABULARIES = ("sharded", "replicated")
ALL_RANKS, ONE_RANK = TRACERS = ("all ranks at once", "one rank")
CORE_BYTES = 16 * 10**9  # a NeuronCore of Inferentia2: 16 GB, in the smaller reading
FP32 = 4  # bytes
COLUMNS = ("layers", "number", "kind", "attention", "KV heads a rank", "MLP a rank", "bytes a rank, each")


@dataclass(frozen=True)
class LayerPlan:
    """A layer. Its tensors are named as within it.

    kind: sliding or full. attention: sharded, replicated, padded (zero heads, no fewer KV heads than query heads), the
    inference library's word where KV heads are repeated, whole at TP 1.
    query_heads, kv_heads: on each rank. window: how many tokens a sliding layer sees.
    cache_of: the layer whose keys and values it takes, where it has none of its own.
    """

    index: int
    kind: str
    attention: str
    query_heads: int
    kv_heads: int
    all_kv_heads: int
    head_dim: int
    window: int | None
    cache_of: int | None
    mlp: str
    tensors: tuple[Tensor, ...]

    @property
    def padding(self) -> int:
        """Zeros over all ranks, in elements."""
        return sum(tensor.padding for tensor in self.tensors)


@dataclass(frozen=True)
class ShardingPlan:
    """What `plan` found. left_out: the config's other towers, which are not planned."""

    model_type: str
    tp: int
    strategy: str
    prefix: str
    layers: tuple[LayerPlan, ...]
    outside: tuple[Tensor, ...]
    left_out: tuple[str, ...]

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor and its whole name."""
        yield from ((tensor.name, tensor) for tensor in self.outside)
        for layer in self.layers:
            yield from ((f"{self.prefix}layers.{layer.index}.{tensor.name}", tensor) for tensor in layer.tensors)

    def total(self, what: str, kind: str = "") -> int:
        """The sum of a field of `Tensor` over the model: total("rank_bytes")."""
        return sum(getattr(tensor, what) for _, tensor in self.named() if kind in ("", tensor.kind))

    @property
    def parameters(self) -> int:
        """How many the model has, a tied matrix once."""
        return self.total("elements", "parameter")

    @property
    def checkpoint_bytes(self) -> int:
        """Of the whole model, buffers included."""
        return self.total("bytes")

    @property
    def rank_bytes(self) -> int:
        """Of the weights on each rank."""
        return self.total("rank_bytes")

    def counts(self) -> dict[str, int]:
        """How many layers have which layout of attention: {"sharded": 50, "replicated": 10}."""
        return dict(Counter(layer.attention for layer in self.layers))

    def fits(self, core_bytes: float = CORE_BYTES, cache_bytes: float = 0) -> bool:
        """Whether weights and cache fit a core. What graph and activations need beside them is not known here."""
        return self.rank_bytes + cache_bytes <= core_bytes

    def kv_cache_bytes(self, batch: int, tokens: int, bytes_per_element: float = 2, windowed: bool = False) -> int:
        """Bytes of keys and values on each rank. windowed: a sliding layer keeps no more than it sees."""
        elements = 0
        for layer in self.layers:
            if layer.cache_of is None:
                length = min(tokens, layer.window) if windowed and layer.window else tokens
                elements += 2 * batch * length * layer.kv_heads * layer.head_dim
        return math.ceil(elements * bytes_per_element)


def plan(
    config: Mapping[str, Any],
    tp: int,
    bytes_per_parameter: float = 2,
    gqa: str = "replicate-layer",
    vocabulary: str = "sharded",
) -> ShardingPlan:
    """What each of `tp` ranks holds of the text model that a config.json's fields describe. Errors: `ConfigFailed`.

    gqa: "replicate-layer", the port's rule: attention is divided where the layer's KV heads divide by `tp`, else whole
    on every rank. "replicate-to-tp-degree", "convert-to-mha": the inference library's, which repeat KV heads up to `tp`
    or to the query heads, and add zero query heads; the first becomes the second where `tp` is no multiple of the KV
    heads, and both leave alone KV heads that divide by `tp`.
    vocabulary: embedding and logits divided by tokens, or on every rank. The port's file for Gemma 4 31B at TP 8 has
    108 GB; 8 ranks come to 107.4 GB with a replicated vocabulary, and to 87.6 GB with a sharded one.

    A tied matrix is held once; the inference library's own models hold a copy of it.
    """
    for name, value, known in (("gqa", gqa, STRATEGIES), ("vocabulary", vocabulary, VOCABULARIES)):
        if value not in known:
            raise ConfigFailed(f"sharding: {name}={value!r} is not known", hint=f"allowed: {', '.join(known)}")
    if type(tp) is not int or tp < 1:
        raise ConfigFailed(f"sharding: tp={tp!r} is no TP degree", hint="give a whole number, 1 or more")
    if not bytes_per_parameter > 0:
        raise ConfigFailed(f"sharding: bytes_per_parameter={bytes_per_parameter!r} is not above 0")
    model = read(config)
    heads = model.size("num_attention_heads")
    if tp > heads:
        raise ConfigFailed(f"sharding: tp={tp}, and the model has {heads} query heads", hint=f"at most tp={heads}")
    make = partial(make_tensor, tp, bytes_per_parameter)
    layers = tuple(plan_layer(model, index, make, tp, gqa) for index in range(len(model.kinds)))
    outside = tuple(outside_layers(model, make, tp, vocabulary))
    towers = tuple(name for name in ("vision_config", "audio_config") if config.get(name) is not None)
    return ShardingPlan(model.type, tp, gqa, model.prefix, layers, outside, towers)


def plan_layer(model: Model, index: int, make: Any, tp: int, gqa: str) -> LayerPlan:
    """One layer of the plan."""
    fields, kind, shares = model.fields, model.kinds[index], index >= model.own_cache
    heads, kv_heads = model.size("num_attention_heads"), model.size("num_key_value_heads")
    head_dim = model.size("head_dim") if fields.get("head_dim") else model.size("hidden_size") // heads
    key_is_value = False
    if model.type.startswith("gemma4") and kind == "full":
        head_dim = model.size("global_head_dim") if fields.get("global_head_dim") else head_dim
        key_is_value = bool(fields.get("attention_k_eq_v"))
        kv_heads = model.size("num_global_key_value_heads") if key_is_value else kv_heads
    if heads % kv_heads:
        raise ConfigFailed(f"sharding: {heads} query heads cannot be divided among {kv_heads} KV heads")
    laid = split_heads(tp, heads, kv_heads, gqa)
    mlp, tensors = feed_forward(model, index, make, tp)
    tensors += attention(model, laid, head_dim, make, shares, key_is_value)
    tensors += around(model, make)
    cache_of = max(i for i in range(model.own_cache) if model.kinds[i] == kind) if shares else None
    window = fields.get("sliding_window") if kind == "sliding" else None
    held = (laid.query.held, laid.kv.held, kv_heads, head_dim)
    return LayerPlan(index, kind, laid.layout, *held, window, cache_of, mlp, tuple(tensors))


def split_heads(tp: int, heads: int, kv_heads: int, gqa: str) -> Heads:
    """How a layer's heads are divided: see `plan`."""
    if tp == 1 or (gqa == "replicate-layer" and kv_heads % tp):
        return Heads("whole" if tp == 1 else "replicated", Span(heads, heads), Span(kv_heads, kv_heads))
    strategy = sharding_strategy(tp, kv_heads, gqa)
    query, kv = head_counts(tp, heads, kv_heads, strategy)
    layout = "sharded" if kv == kv_heads else "padded" if heads == kv_heads else strategy
    # Of KV heads only those beside zero query heads are zeros; the others that the config has not are repeated.
    zeros = query - heads if kv == query else 0
    held = Span(heads, query // tp, query - heads, True), Span(kv_heads, kv // tp, zeros, True)
    return Heads(layout, *held)


def sharding_strategy(tp: int, kv_heads: int, desired: str) -> str:
    """What the inference library does where `desired` is asked for.

    Source: neuronx-distributed-inference, modules/attention/gqa.py, determine_sharding_strategy.
    """
    return "convert-to-mha" if desired == "replicate-to-tp-degree" and tp % kv_heads else desired


def head_counts(tp: int, heads: int, kv_heads: int, strategy: str) -> tuple[int, int]:
    """Query and KV heads of all ranks together, with zero heads and repeated ones.

    Source: as above, get_shardable_head_counts; neuronx-distributed, parallel_layers/pad.py, get_number_of_extra_heads.
    """
    padded = heads + -heads % tp
    if heads != kv_heads and kv_heads % tp == 0:
        return padded, kv_heads
    return padded, tp if strategy == "replicate-to-tp-degree" and heads != kv_heads else padded


@dataclass(frozen=True)
class HostMemory:
    """An estimate, in bytes, of what tracing needs on the host at once, by its parts. No measurement."""

    tracer: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def host_memory(plan: ShardingPlan, tracer: str) -> HostMemory:
    """What a tracer has on the host at once, as its source has it; nothing is counted for the compiler itself.

    "all ranks at once", parallel_model_trace: in a process a rank, the checkpoint and an fp32 module of the rank.
    "one rank", ModelBuilder: an fp32 module of one rank; the checkpoint; and the shards of all ranks, which are loaded
    together to set the weights. Source: neuronx-distributed, trace/trace.py and trace/model_builder.py.

    Beside what a port saw of Gemma 4 31B at TP 8 (bf16, vocabulary replicated): all ranks at once 706 GB, and a box of
    384 GB was killed somewhere above 300; 88 GB a process, and with one at a time 83 were in use; one rank 196 GB, and
    the peak was 182. Processes that share a mapped checkpoint need less than is said here. Errors: `ConfigFailed`.
    """
    graph = FP32 * plan.total("rank_elements")
    if tracer == ALL_RANKS:
        parts = {"a checkpoint in each process": plan.tp * plan.checkpoint_bytes, "fp32 of all ranks": plan.tp * graph}
    elif tracer == ONE_RANK:
        shards = plan.tp * plan.rank_bytes
        parts = {"the checkpoint": plan.checkpoint_bytes, "shards of all ranks": shards, "fp32 of one rank": graph}
    else:
        raise ConfigFailed(f"sharding: tracer {tracer!r} is not known", hint=f"allowed: {', '.join(TRACERS)}")
    return HostMemory(tracer, parts)


def refusal(plan: ShardingPlan, free_bytes: float, tracer: str, others: Iterable[ShardingPlan] = ()) -> str | None:
    """Why tracing would not fit the host, and what would; None where the estimate fits. Errors: `ConfigFailed`.

    others: plans of the same model at other TP degrees, best first: the first that fits is named.
    """
    need = host_memory(plan, tracer)
    if need.total <= free_bytes:
        return None
    ways = []
    if tracer == ALL_RANKS and (single := host_memory(plan, ONE_RANK).total) <= free_bytes:
        ways.append(f"trace one rank (ModelBuilder), which needs about {gigabytes(single)}")
    needs = ((other.tp, host_memory(other, tracer).total) for other in others)
    ways += [f"take TP {tp}, which needs about {gigabytes(size)}" for tp, size in needs if size <= free_bytes][:1]
    cuts = (replace(plan, layers=plan.layers[:number]) for number in range(len(plan.layers) - 1, 0, -1))
    fitting = next((len(cut.layers) for cut in cuts if host_memory(cut, tracer).total <= free_bytes), 0)
    if fitting:
        ways.append(f"take fewer layers (layers={fitting})")
    ways = ways or [f"a host with {gigabytes(need.total)} free is needed"]
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in need.parts.items())
    return (
        f"tracing {tracer} at TP {plan.tp} needs about {gigabytes(need.total)} of host memory (an estimate: {parts}), "
        f"and {gigabytes(free_bytes)} are free: {', or '.join(ways)}"
    )


def table(plan: ShardingPlan) -> list[dict[str, Any]]:
    """Rows of `COLUMNS`: layers that are alike as one, with the bytes of each of them; then the rest."""
    rows = []
    kinds: dict[LayerPlan, list[int]] = {}
    for layer in plan.layers:
        kinds.setdefault(replace(layer, index=0), []).append(layer.index)
    for layer, alike in kinds.items():
        name, number = runs(alike), len(alike)
        taken = "" if layer.cache_of is None else f", those of layer {layer.cache_of}"
        repeated = layer.kv_heads * plan.tp if layer.attention in STRATEGIES else 0
        kv = f"{layer.kv_heads} of {repeated or layer.all_kv_heads}"
        kv += f" ({layer.all_kv_heads} repeated)" * bool(repeated) + taken
        size = sum(tensor.rank_bytes for tensor in layer.tensors)
        cells = (name, number, layer.kind, layer.attention, kv, layer.mlp, size)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    for tensor in plan.outside:
        rows.append({"layers": tensor.name, "kind": tensor.split, "bytes a rank, each": tensor.rank_bytes})
    return rows
