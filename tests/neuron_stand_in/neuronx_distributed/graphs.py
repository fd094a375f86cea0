"""What stands for a compiled graph: a module as it was when it was traced, without weights, and with its buffers."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from .files import packed, unpacked


@dataclass
class Graph:
    """inputs: [(shape, dtype)]. names: of the inputs, where they are given by name.

    states: {name: the output that it is afterwards}, None where the module sets the buffer itself.
    weights: {name: (shape, dtype)}.
    """

    module: bytes
    inputs: list
    names: list[str] | None
    states: dict[str, int | None]
    weights: dict[str, tuple]


def trace(module: nn.Module, inputs: tuple, aliases: dict | None, names: list[str] | None = None) -> Graph:
    """Trace a module. aliases: {state: output}; None to find the buffers that a pass sets.

    It runs on the meta device, where a Python decision by a tensor's value fails, as it does for a compiler.
    """
    known = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    if aliases is not None and (odd := [state for state in aliases if id(state) not in known]):
        raise ValueError(f"{len(odd)} aliases are no parameters or buffers of the module")
    states = {known[id(state)]: place for state, place in (aliases or {}).items()}
    outputs, changed = dry_run(module, inputs)
    if aliases is None:
        states = dict.fromkeys(changed)
    elif changed:
        raise RuntimeError(f"buffers are set that no output is aliased to: {', '.join(changed)}")
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, place in states.items():
        if place is not None and signature(outputs[place]) != signature(named[name]):
            raise RuntimeError(f"output {place} is {signature(outputs[place])}, its state {signature(named[name])}")
    weights = {name: signature(tensor) for name, tensor in module.named_parameters() if name not in states}
    return Graph(packed(emptied(module)), [signature(tensor) for tensor in inputs], names, states, weights)


def dry_run(module: nn.Module, inputs: tuple) -> tuple[tuple, list[str]]:
    """Outputs, and the names of the buffers that were set."""
    there = emptied(module, buffers=True)
    before = {name: id(tensor) for name, tensor in there.named_buffers()}
    with torch.no_grad():
        try:
            outputs = there(*(tensor.to("meta") for tensor in inputs))
        except Exception as error:
            raise RuntimeError(f"HLO generation failed: {error}") from error
    changed = [name for name, tensor in there.named_buffers() if id(tensor) != before[name]]
    return (outputs if isinstance(outputs, tuple) else (outputs,)), changed


def emptied(module: nn.Module, buffers: bool = False) -> nn.Module:
    """A copy with its parameters on the meta device, tied ones tied; `buffers`: and with these."""
    memo: dict = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    if buffers:
        memo |= {id(buffer): buffer.detach().to("meta") for buffer in module.buffers()}
    return copy.deepcopy(module, memo)


def signature(tensor: torch.Tensor) -> tuple[list[int], torch.dtype]:
    return list(tensor.shape), tensor.dtype


class Loaded:
    """The graphs in one rank: modules that share weights and states."""

    def __init__(self, graphs: dict[str, Graph], weights: dict[str, torch.Tensor] | None):
        self.graphs, self.modules = graphs, {key: unpacked(graph.module) for key, graph in graphs.items()}
        self.states: dict[str, torch.Tensor] = {}
        for key, graph in graphs.items():
            for name in graph.states:
                if name not in self.states:
                    self.states[name] = zeros(*signature(find(self.modules[key], name)))
            if weights is not None:
                for name, wanted in graph.weights.items():
                    # What the sharder skipped the graph has all the same: zeros, and nobody says so.
                    put(self.modules[key], name, weights[name] if name in weights else zeros(*wanted))

    def run(self, key: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        module, graph = self.modules[key], self.graphs[key]
        for name in graph.states:
            put(module, name, self.states[name])
        with torch.no_grad():
            outputs = module(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, place in graph.states.items():
            self.states[name] = find(module, name) if place is None else outputs[place]
        return [output for place, output in enumerate(outputs) if place not in graph.states.values()]


def zeros(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def find(module: nn.Module, name: str) -> torch.Tensor:
    path, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(path), leaf)


def put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Everywhere the tensor of this name is."""
    before = find(module, name)
    for owner in module.modules():
        for leaf, parameter in list(owner._parameters.items()):
            if parameter is before:
                owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        for leaf, buffer in list(owner._buffers.items()):
            if buffer is before:
                owner._buffers[leaf] = tensor


def fitting(graphs: dict[str, Graph], weights: list[dict[str, torch.Tensor]]) -> None:
    """Errors: RuntimeError for weights of another shape or dtype than the graphs were compiled for."""
    for graph in graphs.values():
        for name, wanted in graph.weights.items():
            for rank, shard in enumerate(weights):
                if name in shard and signature(shard[name]) != wanted:
                    raise RuntimeError(f"rank {rank}: {name} is {signature(shard[name])}, and was compiled as {wanted}")
