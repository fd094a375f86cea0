"""The constants of a checkpoint as transformers computes them.

Measured where a measurement can tell: norms and rotary modules are called, a
forward pass of a few tokens shows what each layer hands to its attention, and
what surrounds the layers is fed known numbers in fp32.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import clip_probe
import norm_probe
import numpy as np
import rope_reference
import torch
from constants_export import role_of
from rope_reference import REFUSALS, first_line
from task import StageError
from transformers import AutoModelForCausalLM

TOKENS = 3
ROWS = 4
# What is put in place of the last layer's output: the one shows a factor, the other a cap.
SMALL, LARGE = 2.0**-10, 2.0**40
ALIASES = {"query": "q", "key": "k", "value": "v"}


@dataclass
class Attention:
    """As `constants_export.Attention`; rotation: the call of the rotary module whose cos and sin are applied."""

    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    sinks: np.ndarray | None = None
    rotation: rope_reference.Call | str | None = None
    layout: str | None = None


@dataclass(frozen=True)
class Norm:
    """measured: a text where the norm could not be measured."""

    layer: int | None
    role: str
    measured: norm_probe.Measured | str


@dataclass
class Reference:
    """All that was measured. Texts stand where something could not be.

    biases, vectors: the parameters with one dimension, the norms' left out, by
    layer (None outside) and module. multipliers: of a layer's output, and of
    what each of its blocks adds to that. logits: (factor, cap or None).
    """

    layers: int
    positions: int | None
    layer_types: list[str] | None
    attention: dict[int, Attention] = field(default_factory=dict)
    norms: list[Norm] = field(default_factory=list)
    biases: dict[tuple[int | None, str], np.ndarray] = field(default_factory=dict)
    vectors: dict[tuple[int | None, str], np.ndarray] = field(default_factory=dict)
    multipliers: dict[int, tuple[float, list[float]] | str] = field(default_factory=dict)
    model: torch.nn.Module | None = None  # for what is compared matrix by matrix
    clip: float | str | None = None  # of queries, keys and values, to both sides of 0
    embedding_rows: np.ndarray | None = None  # the first few, fp32
    embedding_scale: float | str = ""
    logits: tuple[float, float | None] | str = ""


class Reached(Exception):
    """A forward pass has come as far as it has to."""


def measure(folder: str) -> Reference:
    """Load the checkpoint in the dtype it is stored in, eager, and measure its constants."""
    model = load(folder)
    config = model.config.get_text_config()
    prefix, layers = layers_of(model)
    found = Reference(
        len(layers), getattr(config, "max_position_embeddings", None), getattr(config, "layer_types", None)
    )
    found.model = model
    watch = Watch(model, prefix, layers)
    watch.run()
    found.attention = watch.attention
    found.norms = [Norm(layer, role, measured(module, width)) for module, (layer, role, width) in watch.norms.items()]
    found.logits = watch.logits
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        if parameter.ndim == 1 and model.get_submodule(owner) not in watch.norms:
            layer = layer_in(name, prefix)
            values = parameter.detach().float().numpy()
            if leaf == "sinks" and layer is not None:
                found.attention.setdefault(layer, Attention()).sinks = values
            elif leaf == "bias":
                found.biases[(layer, owner.rpartition(".")[2])] = values
            else:
                found.vectors[(layer, leaf)] = values
    for name, values in model.state_dict().items():  # buffers that files hold: the bias that experts are chosen by
        if values.ndim == 1 and values.numel() > 1 and values.is_floating_point() and name not in parameters:
            found.vectors[(layer_in(name, prefix), name.rpartition(".")[2])] = values.float().numpy()
    found.embedding_scale = embedding_scale(model, layers)
    found.embedding_rows = model.get_input_embeddings().weight[:ROWS].detach().float().numpy()
    found.clip = clip_probe.measure(model, lambda note: watching_values(layers, note))
    found.multipliers = {n: multipliers(layer, watch.calls.get(n), watch) for n, layer in enumerate(layers)}
    return found


def measured(norm: torch.nn.Module, width: int | None) -> norm_probe.Measured | str:
    if width is None:
        return "it takes more than one input"
    try:
        return norm_probe.measure(norm, width)
    except REFUSALS as error:
        return f"it was not to be called by itself: {first_line(error)}"


def load(folder: str) -> torch.nn.Module:
    """The model in its stored dtype; in fp32 where that dtype has rounded a number that no file holds.

    A scalar buffer, such as Gemma's factor on its embeddings, is made in the dtype that the model is loaded in.
    Errors: StageError where tensors are missing.
    """
    model = loaded(folder, "auto")
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers[name]
            if buffer is None or buffer.ndim or not buffer.is_floating_point() or buffer.dtype == torch.float32:
                continue
            number = getattr(module, f"scalar_{name}", None)
            if number is None:
                del model
                return loaded(folder, "float32")
            module._buffers[name] = torch.tensor(number, dtype=torch.float32)
    return model


def loaded(folder: str, dtype: str) -> torch.nn.Module:
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    if missing := sorted(loading["missing_keys"]):
        # transformers fills them with random numbers.
        raise StageError(
            f"the checkpoint lacks {len(missing)} tensors of its model: {', '.join(missing[:5])}", kind="MissingTensors"
        )
    return model.eval()


def layers_of(model: torch.nn.Module) -> tuple[str, torch.nn.ModuleList]:
    """The text model's decoder layers, and their name in the model."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    decoders = [item for item in lists if type(item[1][0]).__name__.endswith(("DecoderLayer", "Block"))]
    return (decoders or lists)[0]


def layer_in(name: str, prefix: str) -> int | None:
    """The layer that a module or parameter is in, by its name."""
    rest = name.removeprefix(prefix + ".")
    return int(rest.partition(".")[0]) if rest != name else None


class Watch:
    """What a forward pass of a few tokens shows.

    norms: each that was called -> (layer, role, width; None where it takes more than values). calls: each layer's
    arguments and what its blocks return.
    """

    def __init__(self, model: torch.nn.Module, prefix: str, layers: torch.nn.ModuleList):
        self.model, self.layers, self.prefix = model, layers, prefix
        self.attention: dict[int, Attention] = {}
        self.norms: dict[torch.nn.Module, tuple[int | None, str, int | None]] = {}
        self.calls: dict[int, tuple[tuple, dict]] = {}
        self.returned: dict[torch.nn.Module, object] = {}
        self.rotations: list[rope_reference.Call] = []
        self.layer: int | None = None
        self.fed: dict[float, int] = {}
        self.logits: tuple[float, float | None] | str = "the last layer was not called"

    @torch.inference_mode()
    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            for name, module in self.model.named_modules():
                if is_norm(module):
                    stack.callback(module.register_forward_hook(self.norm_hook(name)).remove)
                elif type(module).__name__.endswith("RotaryEmbedding"):
                    stack.callback(module.register_forward_hook(self.rotary_hook, with_kwargs=True).remove)
            for index, layer in enumerate(self.layers):
                stack.callback(layer.register_forward_pre_hook(self.enter(index), with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(self.leave).remove)
                for child in layer.children():
                    stack.callback(child.register_forward_hook(self.block_hook).remove)
            head = self.model.get_output_embeddings()
            if head is not None:
                stack.callback(head.register_forward_hook(self.feed).remove)
            for modelling in modelling_of(self.layers):
                for name, wrap in (("eager_attention_forward", self.attend), ("apply_rotary_pos_emb", self.rotate)):
                    if hasattr(modelling, name):
                        stack.enter_context(replaced(modelling, name, wrap(getattr(modelling, name))))
            logits = self.model(input_ids=torch.arange(TOKENS)[None], use_cache=False).logits
        if self.fed:
            small, large = (float(logits[0, -1, self.fed[value]]) for value in (SMALL, LARGE))
            self.logits = factor_and_cap(small, large)

    def norm_hook(self, name: str) -> Callable:
        def hook(module, args, output):
            owner, _, leaf = name.rpartition(".")
            layer, role = layer_in(name, self.prefix), role_of(leaf)
            if layer is None and self.calls:
                role = "final"
            elif role == "final":  # called "norm", within a block or before the layers
                role = owner.rpartition(".")[2]
            width = args[0].shape[-1] if len(args) == 1 else None
            self.norms.setdefault(module, (layer, ALIASES.get(role, role), width))

        return hook

    def rotary_hook(self, module, args, kwargs, output) -> None:
        if isinstance(output, tuple) and len(output) >= 2:
            self.rotations.append(rope_reference.Call(module, args, kwargs, output))

    def enter(self, index: int) -> Callable:
        def hook(module, args, kwargs):
            self.layer = index
            self.calls[index] = (args, kwargs)

        return hook

    def leave(self, module, args, output) -> None:
        self.layer = None

    def block_hook(self, module, args, output) -> None:
        self.returned[module] = output

    def feed(self, module, args, output) -> torch.Tensor:
        """Known numbers in place of what the last layer gives."""
        known = torch.zeros(output.shape, dtype=torch.float32)
        for index, value in enumerate((SMALL, LARGE)):
            known[..., index] = value
            self.fed[value] = index
        return known

    def current(self) -> Attention:
        return self.attention.setdefault(self.layer, Attention()) if self.layer is not None else Attention()

    def attend(self, eager: Callable) -> Callable:
        """In place of eager attention: the same, and a note of what it was told."""
        signature = inspect.signature(eager)

        def attention(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            told, rest = bound.arguments, bound.arguments.get("kwargs", {})
            scale, found = told.get("scaling"), self.current()
            found.scale = float(scale if scale is not None else told["query"].shape[-1] ** -0.5)
            # A cap that eager attention does not take is not computed.
            found.soft_cap = told.get("softcap")
            found.window = told.get("sliding_window", rest.get("sliding_window"))
            return eager(*args, **kwargs)

        return attention

    def rotate(self, apply: Callable) -> Callable:
        """In place of what applies a rotation: the same, and a note of whose cos and sin it was given."""

        def rotation(*args, **kwargs):
            found = self.current()
            if found.rotation is None:
                given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
                calls = [call for call in self.rotations if any(same(call.output[0], value) for value in given)]
                found.rotation = calls[-1] if calls else "the rotation is from no rotary module"
                with contextlib.suppress(*REFUSALS):
                    found.layout = rope_reference.layout(apply, args, kwargs)
            return apply(*args, **kwargs)

        return rotation


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def is_norm(module: torch.nn.Module) -> bool:
    return "Norm" in type(module).__name__ and not any(True for _ in module.children())


def modelling_of(layers: torch.nn.ModuleList) -> list:
    """The Python modules that the layers' attention is written in."""
    names = {type(module).__module__ for module in layers.modules() if "Attention" in type(module).__name__}
    return [sys.modules[name] for name in sorted(names)]


@contextlib.contextmanager
def watching_values(layers: torch.nn.ModuleList, note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Eager attention's values are noted on their way in."""
    with contextlib.ExitStack() as stack:
        for modelling in modelling_of(layers):
            if hasattr(modelling, name := "eager_attention_forward"):
                eager = getattr(modelling, name)
                signature = inspect.signature(eager)

                def attention(*args, eager=eager, signature=signature, **kwargs):
                    if (values := signature.bind(*args, **kwargs).arguments.get("value")) is not None:
                        note(values)
                    return eager(*args, **kwargs)

                stack.enter_context(replaced(modelling, name, attention))
        yield


@contextlib.contextmanager
def replaced(owner, name: str, value) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def factor_and_cap(small: float, large: float) -> tuple[float, float | None]:
    """What becomes of SMALL and of LARGE, as a factor and a cap."""
    factor = small / SMALL
    return factor, (large if abs(large) < abs(factor) * LARGE / 2 else None)


@torch.inference_mode()
def embedding_scale(model: torch.nn.Module, layers: torch.nn.ModuleList) -> float | str:
    """What the first layer is given for an embedding of ones."""
    embedding, given = model.get_input_embeddings(), []

    def hook(module, args, kwargs):
        given.append(args[0] if args else kwargs["hidden_states"])
        raise Reached

    handle = layers[0].register_forward_pre_hook(hook, with_kwargs=True)
    ones = torch.nn.Parameter(torch.ones(TOKENS, embedding.weight.shape[1]), requires_grad=False)
    try:
        with replaced(embedding, "weight", ones):
            model(input_ids=torch.arange(TOKENS)[None], use_cache=False)
    except Reached:
        pass
    except REFUSALS as error:
        return f"an embedding of ones was refused: {first_line(error)}"
    finally:
        handle.remove()
    seen = given[0].float()
    return float(seen.flatten()[0]) if seen.min() == seen.max() else "more than a factor is between them and the layers"


@torch.inference_mode()
def multipliers(
    layer: torch.nn.Module, call: tuple[tuple, dict] | None, watch: Watch
) -> tuple[float, list[float]] | str:
    """The factor that a layer puts on its output, and those that it puts on what each of its blocks adds.

    The layer is called with norms that do nothing and blocks that return ones or zeros.
    """
    if call is None:
        return "the layer was not called"
    args, kwargs = call
    norms = [child for child in layer.children() if is_norm(child)]
    # What has no parameters (dropout) passes on what it is given.
    weighted = [child for child in layer.children() if next(child.parameters(), None) is not None]
    blocks = [child for child in weighted if child in watch.returned and child not in norms]
    hidden = next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
    found = []
    for one in (None, *blocks):
        start = torch.full(hidden.shape, float(one is None))
        given = [start if value is hidden else value for value in args]
        named = {name: start if value is hidden else value for name, value in kwargs.items()}
        with contextlib.ExitStack() as stack:
            for norm in norms:
                stack.enter_context(replaced(norm, "forward", lambda x, *_: x))
            for block in blocks:
                known = answer(block, block is one, watch)
                stack.enter_context(replaced(block, "forward", lambda *_, known=known, **__: known))
            try:
                output = layer(*given, **named)
            except REFUSALS as error:
                return f"the layer was not to be called by itself: {first_line(error)}"
        output = output[0] if isinstance(output, tuple) else output
        if output.min() != output.max():
            return "the layer does more than add its blocks to its input"
        found.append(float(output.flatten()[0]))
    whole, *added = found
    if not whole or 0 in added:
        return "the layer does more than add its blocks to its input"
    return whole, [value / whole for value in added]


def answer(block: torch.nn.Module, ones: bool, watch: Watch):
    """What a block returned in the forward pass, its first tensor all ones or zeros."""
    returned = watch.returned[block]
    first = returned[0] if isinstance(returned, tuple) else returned
    known = torch.full(first.shape, float(ones))
    return (known, *returned[1:]) if isinstance(returned, tuple) else known
