"""The weight matrices of a checkpoint as transformers holds them, each with the place where the model uses it.

Views of the loaded model's parameters: nothing is copied. What is a gate, what
goes beside it and what closes an MLP is measured by calling the MLP with known
numbers in place of its linear layers' results; so is its activation.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import numpy as np
import torch
from constants_reference import layer_in, layers_of, replaced
from rope_reference import REFUSALS, first_line

# What attention modules call what comes after attention.
OUTPUTS = ("o_proj", "out_proj", "dense", "wo", "c_proj")
# Where activations are compared: beyond the limits that some have, and close enough to tell one gelu from the other.
POINTS = np.linspace(-9.0, 9.0, 73)
# What is in the other factor's place: usual, and beyond a limit.
OTHERS = (1.0, 9.0)


@dataclass(frozen=True)
class Wanted:
    """A matrix [rows, columns] of the checkpoint. what: its module's name; place: as `weights_export` calls it."""

    layer: int | None
    what: str
    place: str
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.tensor.shape)

    def values(self, first: int, end: int) -> np.ndarray:
        """Rows as fp32 [n, columns]."""
        return self.tensor[first:end].detach().float().numpy()

    def columns(self, first: int, end: int) -> np.ndarray:
        """Columns as fp32 [n, rows]."""
        return self.tensor.T[first:end].detach().float().numpy()

    def rows(self, first: int, end: int, what: str = "", place: str = "") -> Wanted:
        return Wanted(self.layer, what or self.what, place or self.place, self.tensor[first:end])

    def named(self, beside: int | None = None) -> str:
        """As a reader knows it, among those of a layer or of all."""
        return self.what if self.layer is None or self.layer == beside else f"layer {self.layer}'s {self.what}"


@dataclass(frozen=True)
class Experts:
    """The matrices of a layer's experts. gate_up: [experts, 2 × width, columns] or turned; alternate: gates and what
    goes beside them take turns, gates first."""

    layer: int | None
    what: str
    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    alternate: bool | str  # a text: why it is not known
    turned: bool = False  # their rows are inputs


@dataclass
class Weights:
    """All matrices of a model.

    activations: of each layer's MLPs, what they make of `POINTS`, a row for
    each of `OTHERS`; a text says why one was not measured. kinds: of each
    layer, what tells it from others.
    """

    wanted: list[Wanted] = field(default_factory=list)
    experts: list[Experts] = field(default_factory=list)
    activations: dict[tuple[int, str], np.ndarray | str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    tied: bool = False  # the head is the embedding
    said_tied: bool = False  # so the config says
    outside: set[str] = field(default_factory=set)  # modules beside the text model, whose matrices are not looked at


def read(model: torch.nn.Module) -> Weights:
    """The matrices of a loaded model, and its activations."""
    prefix, layers = layers_of(model)
    found = Weights(said_tied=bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False)))
    roles = {}
    for index, layer in enumerate(layers):
        found.kinds[index] = kind_of(layer, index, model)
        for name, module in layer.named_modules():
            if type(getattr(module, "gate_up_proj", None)) is torch.nn.Parameter and module.gate_up_proj.ndim == 3:
                mixture = experts(module, index, name)
                found.experts.append(mixture)
                found.activations[(index, f"{name}.act_fn")] = expert_activation(module, mixture)
            elif (mlp := probed(module)) is not None:
                roles |= mlp.roles
                found.activations[(index, mlp.what)] = mlp.activation
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    found.tied = head is not None and head.weight is embedding.weight
    taken = {id(t) for e in found.experts for t in (e.gate_up, e.down, e.gate_up_bias, e.down_bias) if t is not None}
    inside = prefix.rpartition(".")[0] + "."
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or id(parameter) in taken:
            continue
        if (
            not name.startswith(inside)
            and parameter is not embedding.weight
            and (head is None or parameter is not head.weight)
        ):
            found.outside.add(".".join(name.split(".")[:2]))
            continue
        layer, what = layer_in(name, prefix), name.removesuffix(".weight").rpartition(".")[2]
        place = roles.get(id(parameter)) or place_of(name.removesuffix(".weight"))
        if parameter is embedding.weight:
            what, place, layer = "embed_tokens", "embed_tokens", None
        elif head is not None and parameter is head.weight:
            what, place, layer = "lm_head", "lm_head", None
        found.wanted.append(Wanted(layer, what, place, parameter.detach().flatten(1)))
    if found.tied:
        found.wanted.append(Wanted(None, "lm_head", "lm_head", head.weight.detach()))
    return found


def place_of(name: str) -> str:
    """The place of a module by its name, where no measurement tells."""
    owner, _, leaf = name.rpartition(".")
    around = owner.rpartition(".")[2]
    if leaf in OUTPUTS and ("attn" in around or "attention" in around) and "linear" not in around:
        return "o_proj"
    if around == "feed_forward":  # of an MLP that could not be called by itself
        return {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(leaf, leaf)
    return {"gate": "router"}.get(leaf, leaf)


def kind_of(layer: torch.nn.Module, index: int, model: torch.nn.Module) -> str:
    """What tells a layer from those of another kind: its modules, their shapes and their switches, its type."""
    types = getattr(model.config.get_text_config(), "layer_types", None)
    said = [str(types[index]) if types and index < len(types) else ""]
    for name, module in layer.named_modules():
        switches = sorted((k, v) for k, v in vars(module).items() if isinstance(v, bool) and k != "training")
        shapes = [tuple(p.shape) for p in module.parameters(recurse=False)]
        said.append(f"{name}:{type(module).__name__}{shapes}{switches}")
        said.append(str(getattr(module, "sliding_window", None)))
    return " ".join(said)


@dataclass(frozen=True)
class Probed:
    """An MLP: the places of its parameters by their id; `what` its activation is called."""

    what: str
    roles: dict[int, str]
    activation: np.ndarray | str


def probed(module: torch.nn.Module) -> Probed | None:
    """A module's linear layers and activation, where the module is an MLP: linear layers into one, one out of it."""
    linear = {name: child for name, child in module.named_children() if isinstance(child, torch.nn.Linear)}
    others = [
        child for name, child in module.named_children() if name not in linear and any(True for _ in child.parameters())
    ]
    if not 2 <= len(linear) <= 3 or others:
        return None
    names = list(linear)
    downs = [name for name in names if linear[name].in_features != linear[names[0]].in_features or name == names[-1]]
    for down in dict.fromkeys([*downs, *names]):
        into = [name for name in names if name != down]
        if found := as_mlp(module, linear, into, down):
            return found
    return None


def as_mlp(module: torch.nn.Module, linear: dict, into: list[str], down: str) -> Probed | None:
    """A module as an MLP whose linear layers `into` feed `down`; None where it is none."""
    width = linear[down].in_features
    fused = len(into) == 1 and linear[into[0]].out_features == 2 * width
    if any(linear[name].out_features != width for name in into) and not fused:
        return None
    points = np.resize([-3.0, -1.0, 0.5, 3.0], width)
    try:
        if fused:
            # Gates are the first half, in all that is known.
            seen = [run(module, linear, {into[0]: halves(a, b)}, down) for a, b in ((points, 1.0), (1.0, points))]
        else:
            seen = [run(module, linear, {n: points if n == name else 1.0 for n in into}, down) for name in into]
    except (*REFUSALS, NotAnMlp):
        return None
    bent = [bends(points, values) for values in seen]
    if sum(bent) != 1:
        return None
    gate = bent.index(True)
    if fused:
        roles = {id(linear[into[0]].weight): "gate_up_proj" if gate == 0 else "up_gate_proj"}
        name = into[0]
    else:
        name = into[gate]
        places = ["gate_proj" if at == gate else "up_proj" for at in range(len(into))]
        places = ["up_proj"] if len(into) == 1 else places
        roles = {id(linear[one].weight): place for one, place in zip(into, places, strict=True)}
    roles[id(linear[down].weight)] = "down_proj"

    def feed(points: np.ndarray, other: float) -> np.ndarray:
        if fused:
            return run(module, linear, {name: halves(*((points, other) if gate == 0 else (other, points)))}, down)
        return run(module, linear, {one: points if one == name else other for one in into}, down)

    return Probed("activation", roles, measured(feed, width))


def measured(feed, width: int) -> np.ndarray:
    """What becomes of `POINTS`, a row for each of `OTHERS`; feed: of `width` numbers at a time."""
    found = []
    for other in OTHERS:
        pieces = [
            feed(np.resize(POINTS[at : at + width], width), other)[: len(POINTS[at : at + width])]
            for at in range(0, len(POINTS), width)
        ]
        found.append(np.concatenate(pieces))
    return np.stack(found)


class NotAnMlp(Exception):
    """A module does something else than an MLP does."""


def halves(first: np.ndarray | float, second: np.ndarray | float) -> tuple:
    return first, second


@torch.inference_mode()
def run(module: torch.nn.Module, linear: dict, given: dict, down: str) -> np.ndarray:
    """What a module feeds to its layer `down` where the others' results are `given`. Errors: `NotAnMlp`."""
    fed: list[torch.Tensor] = []
    width = linear[down].in_features

    def result(name: str):
        def forward(x: torch.Tensor) -> torch.Tensor:
            values = given[name]
            parts = values if isinstance(values, tuple) else (values,)
            flat = [np.broadcast_to(np.asarray(part, np.float32), (width,)) for part in parts]
            return torch.tensor(np.concatenate(flat))[None, None]

        return forward

    def keep(x: torch.Tensor) -> torch.Tensor:
        fed.append(x)
        return torch.zeros(1, 1, linear[down].out_features)

    with contextlib.ExitStack() as stack:
        for name, layer in linear.items():
            stack.enter_context(replaced(layer, "forward", keep if name == down else result(name)))
        module(torch.ones(1, 1, next(iter(linear.values())).in_features))
    if len(fed) != 1 or fed[0].numel() != width:
        raise NotAnMlp
    return fed[0].flatten().double().numpy()


def bends(points: np.ndarray, values: np.ndarray) -> bool:
    """Whether values are no straight line over points, of which the first and the fourth span it."""
    line = (
        values[0] + (values[3] - values[0]) * (points - points[0]) / (points[3] - points[0]) if len(points) > 3 else 0
    )
    return bool(np.abs(values - line).max() > 1e-3)


def experts(module: torch.nn.Module, layer: int, name: str) -> Experts:
    """The matrices of a module that holds all experts in two parameters."""
    return Experts(
        layer, name.rpartition(".")[2], module.gate_up_proj, module.down_proj,
        getattr(module, "gate_up_proj_bias", None), getattr(module, "down_proj_bias", None), alternates(module),
        turned(module),
    )  # fmt: skip


def turned(module: torch.nn.Module) -> bool:
    """Whether the experts' matrices have inputs in their rows."""
    gate_up, down = module.gate_up_proj.shape, module.down_proj.shape
    straight = gate_up[2] == down[1] and gate_up[1] == 2 * down[2]
    other = gate_up[1] == down[2] and gate_up[2] == 2 * down[1]
    return bool(getattr(module, "is_transposed", other)) if straight and other else other


def alternates(module: torch.nn.Module) -> bool | str:
    """Whether gates take turns with what goes beside them, measured by what the experts make of known numbers."""
    width = module.down_proj.shape[1 if turned(module) else 2]
    points, others = np.resize([-3.0, -1.0, 0.5, 3.0], width), np.resize([0.7, 0.2, 0.9], width)
    try:
        for alternate in (False, True):
            near, low, high = (one_expert(module, points, others + by, alternate) for by in (0.0, -0.1, 0.1))
            # A product is a straight line in what goes beside a gate, and only there.
            swapped = [one_expert(module, points + by, others, alternate) for by in (0.0, -2.0, 2.0)]
            straight = np.abs(low + high - 2 * near).max() < 1e-4
            if straight and np.abs(swapped[1] + swapped[2] - 2 * swapped[0]).max() > 1e-3:
                return alternate
    except REFUSALS as error:
        return f"the experts were not to be called by themselves: {first_line(error)}"
    return "how the experts' rows are ordered was not found"


@torch.inference_mode()
def one_expert(module: torch.nn.Module, gates: np.ndarray, others: np.ndarray, alternate: bool) -> np.ndarray:
    """What one expert feeds to its second matrix, as far as its first outputs show it."""
    back = turned(module)
    hidden = module.gate_up_proj.shape[1 if back else 2]
    width = module.down_proj.shape[1 if back else 2]
    row = np.empty(2 * width, np.float32)
    if alternate:
        row[0::2], row[1::2] = gates, others
    else:
        row[:width], row[width:] = gates, others
    first = torch.zeros(1, 2 * width, hidden)
    first[0, :, 0] = torch.tensor(row)
    second = torch.eye(hidden, width)[None]
    if back:
        first, second = first.transpose(1, 2).contiguous(), second.transpose(1, 2).contiguous()
    x = torch.zeros(1, hidden)
    x[0, 0] = 1.0
    with contextlib.ExitStack() as stack:
        for name, values in (("gate_up_proj", first), ("down_proj", second)):
            stack.enter_context(replaced(module, name, torch.nn.Parameter(values, requires_grad=False)))
            bias = getattr(module, f"{name}_bias", None)
            if bias is not None:
                zeros = torch.nn.Parameter(torch.zeros(1, bias.shape[1]), requires_grad=False)
                stack.enter_context(replaced(module, f"{name}_bias", zeros))
        if hasattr(module, "num_experts"):
            stack.enter_context(replaced(module, "num_experts", 1))
        result = module(x, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1))
    return result.flatten().double().numpy()[:width]


def expert_activation(module: torch.nn.Module, mixture: Experts) -> np.ndarray | str:
    """What an expert makes of `POINTS`, as `measured`."""
    if isinstance(mixture.alternate, str):
        return mixture.alternate
    width = module.down_proj.shape[1 if turned(module) else 2]
    hidden = module.gate_up_proj.shape[1 if turned(module) else 2]
    seen = min(width, hidden)

    def feed(points: np.ndarray, other: float) -> np.ndarray:
        return one_expert(module, np.resize(points, width), np.full(width, other), mixture.alternate)[:seen]

    try:
        return measured(feed, seen)
    except REFUSALS as error:
        return f"the experts were not to be called by themselves: {first_line(error)}"
