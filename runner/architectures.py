"""What the text models of transformers are made of: each family's tensors, their shapes, and how each may be divided.

Names and shapes are those of transformers 5.13; how they are divided is `sharding`'s to decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from runner.failures import ConfigFailed


@dataclass(frozen=True)
class Family:
    """What a model type is made of. Source: {modeling,configuration}_TYPE.py of transformers.

    attention_bias, mlp_bias: the config's field that gives them a bias. biased: those that always have one.
    full_every: without layer_types, each so-manieth layer is full, the others slide; 0: all slide if there is a window.
    defaults: what the config class fills in; vocab_size only where all published checkpoints agree with it.
    """

    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_tensors: tuple[str, ...] = ("weight",)
    head_norms: tuple[str, ...] = ()
    attention_bias: str = ""
    mlp_bias: str = ""
    biased: tuple[str, ...] = ()
    full_every: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)


LLAMA = Family(attention_bias="attention_bias", mlp_bias="mlp_bias")
GEMMA = replace(LLAMA, mlp_bias="", defaults={"head_dim": 256, "tie_word_embeddings": True, "vocab_size": 256000})
GEMMA2 = replace(GEMMA, norms=(*GEMMA.norms, "pre_feedforward_layernorm", "post_feedforward_layernorm"), full_every=2)
GEMMA3 = replace(GEMMA2, head_norms=("q_norm", "k_norm"), full_every=6, defaults=GEMMA.defaults | {"vocab_size": None})
GEMMA4 = replace(GEMMA3, defaults=GEMMA.defaults | {"global_head_dim": 512, "vocab_size": 262144})
PER_LAYER = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144}
ALTUP = {"altup_num_inputs": 4, "laurel_rank": 64, "num_kv_shared_layers": 15, "vocab_size": 262400}
SMALL_HEADS = {"head_dim": 128}

FAMILIES = {
    "llama": LLAMA,
    "granite": LLAMA,
    "mistral": Family(full_every=0),
    "phi3": Family(full_every=0),
    "qwen2": Family(biased=("q_proj", "k_proj", "v_proj")),
    "qwen3": Family(attention_bias="attention_bias", head_norms=("q_norm", "k_norm"), defaults=SMALL_HEADS),
    "smollm3": replace(LLAMA, defaults={"tie_word_embeddings": True}),
    "ernie4_5": Family(
        attention_bias="use_bias", mlp_bias="use_bias", defaults=SMALL_HEADS | {"tie_word_embeddings": True}
    ),
    "hunyuan_v1_dense": Family(attention_bias="attention_bias", head_norms=("query_layernorm", "key_layernorm")),
    "olmo": replace(LLAMA, mlp_bias="", norm_tensors=()),
    "nemotron": replace(LLAMA, norm_tensors=("weight", "bias")),
    "gpt_oss": Family(
        attention_bias="attention_bias",
        full_every=2,
        defaults={"head_dim": 64, "attention_bias": True, "vocab_size": 201088},
    ),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3n": replace(GEMMA3, full_every=5, defaults=GEMMA.defaults | PER_LAYER | ALTUP),
    "gemma4": replace(GEMMA4, defaults=GEMMA4.defaults | PER_LAYER),
    "gemma4_unified": GEMMA4,
}


@dataclass(frozen=True)
class Model:
    """A config as it is read here: with its type's defaults. where: what stands before a field on the command line."""

    type: str
    family: Family
    fields: Mapping[str, Any]
    where: str
    tied: bool
    prefix: str
    kinds: tuple[str, ...] = ()

    def size(self, name: str, least: int = 1) -> int:
        """A field that is needed and counts something."""
        value = self.fields.get(name)
        if value is None:
            hint = f"give a whole config.json (model=path model.path=DIR); of model=random: +{self.where}{name}=N"
            raise ConfigFailed(f"sharding: the config of this {self.type} has no {name}", hint=hint)
        if type(value) is not int or value < least:
            raise ConfigFailed(f"sharding: {name} is {value!r}", hint=f"a whole number, {least} or more, is needed")
        return value

    @property
    def own_cache(self) -> int:
        """The layers before those that take keys and values from others."""
        shared = self.fields.get("num_kv_shared_layers")
        return len(self.kinds) - (self.size("num_kv_shared_layers", least=0) if shared is not None else 0)


def read(config: Mapping[str, Any]) -> Model:
    """A config's text model. Errors: `ConfigFailed`, for a type that is not known and layers that do not add up."""
    text = config.get("text_config") or config
    kind = str(text.get("model_type") or config.get("model_type") or "").removesuffix("_text")
    if kind not in FAMILIES:
        message = f"sharding: model_type {kind!r} is not known" if kind else "sharding: the config has no model_type"
        raise ConfigFailed(message, hint=f"known: {', '.join(sorted(FAMILIES))}")
    family, nested = FAMILIES[kind], text is not config
    fields = {**family.defaults, **text}
    tied = config.get("tie_word_embeddings", fields.get("tie_word_embeddings", False))
    where, prefix = ("model.config.text_config.", "model.language_model.") if nested else ("model.config.", "model.")
    model = Model(kind, family, fields, where, bool(tied), prefix)
    number, given = model.size("num_hidden_layers"), fields.get("layer_types")
    kinds = [str(name).removesuffix("_attention") for name in given or ()]
    if not given:
        every = fields.get("sliding_window_pattern") if family.full_every > 1 else None
        every = every or family.full_every or (number + 1 if fields.get("sliding_window") else 1)
        kinds = ["sliding" if (index + 1) % every else "full" for index in range(number)]
    if len(kinds) != number or not set(kinds) <= {"full", "sliding"}:
        what = f"{len(kinds)} layer_types, {', '.join(sorted(set(kinds)))}, for {number} layers"
        raise ConfigFailed(f"sharding: {what}", hint="one a layer is needed: full_attention or sliding_attention")
    if kind.startswith("gemma4"):
        kinds[-1] = "full"  # whatever the config says: its __post_init__
    model = replace(model, kinds=tuple(kinds))
    if not set(kinds) <= set(kinds[: max(0, model.own_cache)]):
        shared = fields["num_kv_shared_layers"]
        raise ConfigFailed(f"sharding: num_kv_shared_layers={shared} of {number} layers leaves some no keys to take")
    return model


class Span(NamedTuple):
    """A dimension: its length, what each rank holds, and the zeros among what all ranks hold.

    divided: ranks hold other parts of it, though each may hold as much as there is (repeated KV heads).
    """

    length: int
    held: int
    zeros: int = 0
    divided: bool = False

    def times(self, factor: int) -> Span:
        return Span(factor * self.length, factor * self.held, factor * self.zeros, self.divided)


class Heads(NamedTuple):
    """How a layer's attention lies: in a word, and its query and KV heads."""

    layout: str
    query: Span
    kv: Span


@dataclass(frozen=True)
class Tensor:
    """A tensor of the checkpoint, and what of it each rank holds; all hold as much.

    split: column, row, vocabulary or experts; "padded" where zeros fill it up, "repeated" where KV heads are on several
    ranks; replicated; whole at TP 1; tied: the embedding once more, which counts as nothing.
    padding, copies: elements over all ranks that are zeros, or on another rank as well:
    ``tp * rank_elements == elements + padding + copies``.
    kind: parameter; or buffer, which ModelBuilder's loader leaves at its default.
    """

    name: str
    shape: tuple[int, ...]
    rank_shape: tuple[int, ...]
    split: str
    kind: str
    elements: int
    rank_elements: int
    padding: int
    copies: int
    bytes: int
    rank_bytes: int


def evenly(tp: int, length: int) -> Span:
    """A dimension filled up to a multiple of `tp`, as pad=True does in neuronx-distributed's layers."""
    return Span(length, -(-length // tp), -length % tp)


def make_tensor(
    tp: int, width: float, name: str, *dimensions: Span | int, word: str = "", kind: str = "parameter"
) -> Tensor:
    """A tensor of which no dimension or one is divided. width: bytes an element. word: the split, if no linear's."""
    spans = [size if isinstance(size, Span) else Span(size, size) for size in dimensions]
    shape, held = tuple(span.length for span in spans), tuple(span.held for span in spans)
    elements, on_rank = (0, 0) if word == "tied" else (math.prod(shape), math.prod(held))
    padding = sum(elements // span.length * span.zeros for span in spans)
    copies = tp * on_rank - elements - padding
    if word != "tied":
        word = word or ("column" if shape[0] != held[0] or spans[0].zeros or spans[0].divided else "row")
        word = ("padded " if padding else "") + ("repeated " if copies else "") + word
        alike = shape == held and not padding and not any(span.divided for span in spans)
        word = "whole" if tp == 1 else "replicated" if alike else word
    size = (math.ceil(elements * width), math.ceil(on_rank * width))
    return Tensor(name, shape, held, word, kind, elements, on_rank, padding, copies, *size)


def linear(make: Any, name: str, out: Span | int, into: Span | int, bias: bool) -> Iterator[Tensor]:
    """A matrix and its bias, which is divided as its rows are: whole where the columns are divided."""
    yield make(f"{name}.weight", out, into)
    if bias:
        yield make(f"{name}.bias", out)


def attention(
    model: Model, laid: Heads, head_dim: int, make: Any, shares: bool, key_is_value: bool
) -> Iterator[Tensor]:
    """A layer's attention. shares: it has no keys and values of its own; key_is_value: it has no values."""
    hidden, family = model.size("hidden_size"), model.family
    query, kv = laid.query.times(head_dim), laid.kv.times(head_dim)
    projections = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, query)}
    if model.type == "phi3":
        fused = Span(*(q + 2 * k for q, k in zip(query[:3], kv[:3], strict=True)), divided=query.divided)
        projections = {"qkv_proj": (fused, hidden), "o_proj": (hidden, query)}
    for name, (out, into) in projections.items():
        if not (shares and name in ("k_proj", "v_proj")) and not (key_is_value and name == "v_proj"):
            bias = name in family.biased or bool(model.fields.get(family.attention_bias))
            yield from linear(make, f"self_attn.{name}", out, into, bias)
    for name in family.head_norms[: 1 if shares else 2]:
        yield make(f"self_attn.{name}.weight", head_dim)
    if model.type == "gpt_oss":
        yield make("self_attn.sinks", laid.query)


def feed_forward(model: Model, index: int, make: Any, tp: int) -> tuple[str, list[Tensor]]:
    """The MLP's and the experts' tensors, and in words what a rank holds of them."""
    fields, hidden = model.fields, model.size("hidden_size")
    words, tensors = [], []
    if model.type != "gpt_oss":
        width = fields.get("intermediate_size")
        if isinstance(width, list | tuple) and len(width) != len(model.kinds):
            raise ConfigFailed(f"sharding: {len(width)} intermediate sizes for {len(model.kinds)} layers")
        width = width[index] if isinstance(width, list | tuple) else model.size("intermediate_size")
        width *= 2 if fields.get("use_double_wide_mlp") and index >= model.own_cache else 1
        span, bias = evenly(tp, width), bool(fields.get(model.family.mlp_bias))
        up = {"gate_proj": span, "up_proj": span}
        up = {"gate_up_proj": span.times(2)} if model.type == "phi3" else up
        for name in up:
            if (model.type, name) != ("nemotron", "gate_proj"):
                tensors += linear(make, f"mlp.{name}", up[name], hidden, bias)
        tensors += linear(make, "mlp.down_proj", hidden, span, bias)
        words.append(f"{span.held} of {width}" + (", padded" if span.zeros else ""))
    if model.type == "gpt_oss" or fields.get("enable_moe_block"):
        number = model.size("num_local_experts" if model.type == "gpt_oss" else "num_experts")
        experts = evenly(tp, number) if number % tp == 0 else Span(number, number)
        tensors += expert_tensors(model, experts, hidden, partial(make, word="experts"))
        words.append(f"{experts.held} of {number} experts")
    return " and ".join(words), tensors


def expert_tensors(model: Model, experts: Span, hidden: int, make: Any) -> Iterator[Tensor]:
    """Router and experts; experts are divided among the ranks, not within."""
    number = experts.length
    if model.type == "gpt_oss":
        width = model.size("intermediate_size")
        yield from linear(make, "mlp.router", number, hidden, True)
        yield make("mlp.experts.gate_up_proj", experts, hidden, 2 * width)
        yield make("mlp.experts.gate_up_proj_bias", experts, 2 * width)
        yield make("mlp.experts.down_proj", experts, width, hidden)
        yield make("mlp.experts.down_proj_bias", experts, hidden)
        return
    width = model.size("moe_intermediate_size")
    yield make("router.proj.weight", number, hidden)
    yield make("router.scale", hidden)
    yield make("router.per_expert_scale", number)
    yield make("experts.gate_up_proj", experts, 2 * width, hidden)
    yield make("experts.down_proj", experts, hidden, width)
    for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        yield make(f"{name}.weight", hidden)


def around(model: Model, make: Any) -> Iterator[Tensor]:
    """A layer's norms, and what Gemma 3n and 4 have besides: whole on every rank."""
    hidden, family, per_layer = model.size("hidden_size"), model.family, per_layer_size(model)
    for name in family.norms:
        yield from (make(f"{name}.{tensor}", hidden) for tensor in family.norm_tensors)
    if per_layer:
        yield make("per_layer_input_gate.weight", per_layer, hidden)
        yield make("per_layer_projection.weight", hidden, per_layer)
        yield make("post_per_layer_input_norm.weight", hidden)
    if model.type.startswith("gemma4"):
        yield make("layer_scalar", 1, kind="buffer")
    if model.type == "gemma3n":
        inputs, rank = model.size("altup_num_inputs"), model.size("laurel_rank")
        yield make("altup.correct_output_scale", hidden)
        yield make("altup.correction_coefs.weight", inputs, inputs)
        yield make("altup.prediction_coefs.weight", inputs**2, inputs)
        yield make("altup.modality_router.weight", inputs, hidden)
        yield make("altup.router_norm.weight", hidden)
        yield make("laurel.linear_left.weight", rank, hidden)
        yield make("laurel.linear_right.weight", hidden, rank)
        yield make("laurel.post_laurel_norm.weight", hidden)


def per_layer_size(model: Model) -> int:
    """The width of a layer's own embedding: 0 without."""
    known = "hidden_size_per_layer_input" in model.family.defaults
    return model.size("hidden_size_per_layer_input", least=0) if known else 0


def outside_layers(model: Model, make: Any, tp: int, vocabulary: str) -> Iterator[Tensor]:
    """Embeddings, final norm and logits."""
    hidden, prefix = model.size("hidden_size"), model.prefix

    def tokens(name: str) -> Span:
        number = model.size(name)
        return evenly(tp, number) if vocabulary == "sharded" else Span(number, number)

    vocab = tokens("vocab_size")
    yield make(f"{prefix}embed_tokens.weight", vocab, hidden, word="vocabulary")
    if per_layer := per_layer_size(model):
        packed = per_layer * len(model.kinds)
        own = tokens("vocab_size_per_layer_input")
        yield make(f"{prefix}embed_tokens_per_layer.weight", own, packed, word="vocabulary")
        yield make(f"{prefix}per_layer_model_projection.weight", packed, hidden)
        yield make(f"{prefix}per_layer_projection_norm.weight", per_layer)
    if model.type == "gemma3n":
        for kind in ("altup_projections", "altup_unembed_projections"):
            for index in range(model.size("altup_num_inputs") - 1):
                yield make(f"{prefix}{kind}.{index}.weight", hidden, hidden)
    yield from (make(f"{prefix}norm.{tensor}", hidden) for tensor in model.family.norm_tensors)
    yield make("lm_head.weight", vocab, hidden, word="tied" if model.tied else "")
