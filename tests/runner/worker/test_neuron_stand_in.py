"""The stand-in for neuronx-distributed does in silence what the package does, and is as strict."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STAND_IN = Path(__file__).parents[2] / "neuron_stand_in"
MODULES = """
import torch
from neuronx_distributed.parallel_layers.layers import ColumnParallelLinear, ParallelEmbedding, RowParallelLinear
from torch import nn

class Pair(nn.Module):
    def __init__(self, ranked=True):
        super().__init__()
        self.embed = ParallelEmbedding(8, 4, use_spmd_rank=ranked)
        self.up = ColumnParallelLinear(4, 6, gather_output=False)
        self.down = RowParallelLinear(6, 4, input_is_parallel=True)
        self.register_buffer("scale", torch.ones(1))
    def forward(self, tokens):
        return self.down(self.up(self.embed(tokens))) * self.scale

class Unranked(Pair):
    def __init__(self):
        super().__init__(ranked=False)

class Branch(Pair):
    def forward(self, tokens):
        return super().forward(tokens) if tokens.sum() > 3 else super().forward(tokens) * 2

class Further(Pair):
    def forward(self, tokens):
        return super().forward(tokens) + 100

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(1), requires_grad=False)
    def forward(self, tokens):
        return tokens + self.count, self.count + 1
"""
SCRIPT = """
import os
sys.path[:0] = [os.getcwd(), sys.argv[1]]
import torch
torch.set_num_threads(1)
from neuronx_distributed.trace import ModelBuilder
from neuronx_distributed.trace.model_builder import BaseModelInstance
from pairs import Branch, Counting, Further, Pair, Unranked

torch.manual_seed(0)
weights = {"embed.weight": torch.randn(8, 4), "embed.rank_util.rank": torch.arange(2, dtype=torch.int32),
           "up.weight": torch.randn(6, 4), "up.bias": torch.randn(6), "down.weight": torch.randn(4, 6),
           "down.bias": torch.randn(4), "scale": torch.full((1,), 3.0), "of_nobody": torch.ones(2)}
tokens = torch.arange(8)[None]

def built(makes, checkpoint=weights, **options):
    builder = ModelBuilder(None, 2, lambda: dict(checkpoint), compiler_workdir="work", **options)
    for key, make in makes.items():
        builder.add(key, BaseModelInstance(make, {}), [(tokens,)])
    return builder.trace()

def off(model, weights=weights):
    hidden = torch.nn.functional.linear(weights["embed.weight"][tokens], weights["up.weight"], weights["up.bias"])
    wanted = torch.nn.functional.linear(hidden, weights["down.weight"], weights["down.bias"])
    return float((model(tokens) - wanted).abs().max())

def error(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"

class Counted(BaseModelInstance):
    def get(self, bucket_rank, **kwargs):
        return self.module, {self.module.count: place}

found = {"right": off(built({"main": Pair})), "unranked": off(built({"main": Unranked}))}
found["shards"] = sorted(os.listdir("work"))
lacking = {name: tensor for name, tensor in weights.items() if name != "down.bias"}
found["lacking"] = off(built({"main": Pair}, lacking), {**weights, "down.bias": torch.zeros(4)})
found["collision"] = off(built({"first": Pair, "last": Further}))
found["shape"] = error(built, {"main": Pair}, {**weights, "up.weight": torch.randn(8, 4)})
found["branch"] = error(built, {"main": Branch})
found["argument"], found["undone"] = error(built, {}, workdir="x"), error(built, {}, pp_degree=2)
found["tuples"] = error(ModelBuilder(None, 2, dict).add, "main", None, [tokens])
found["outside"] = error(Pair)
for place in (1, 0, 2):
    builder = ModelBuilder(None, 2, lambda: {"count": torch.full((1,), 5.0)}, compiler_workdir="work")
    builder.add("main", Counted(Counting, {}), [(tokens,)])
    if place == 1:
        model = builder.trace()
        found["state"] = [float(model(tokens)[0, 0]) for _ in range(3)]
    else:
        found[f"alias {place}"] = error(builder.trace)
print(json.dumps(found))
"""


def test_the_stand_in(with_torch, tmp_path):
    (tmp_path / "pairs.py").write_text(MODULES, encoding="utf-8")
    found = with_torch(SCRIPT, STAND_IN)
    assert found["right"] < 1e-5  # the buffer keeps its default: the checkpoint has 3
    assert found["unranked"] > 0.1  # one rank is traced for all: its rows of the vocabulary are everybody's
    assert found["shards"] == [f"tp{rank}_sharded_checkpoint.safetensors" for rank in (0, 1)]
    assert found["lacking"] < 1e-5  # skipped without a word
    assert 90 < found["collision"] < 110  # of two graphs for the same shapes the last
    assert found["shape"].startswith("RuntimeError: expected shape")
    assert found["branch"].startswith("RuntimeError: HLO generation failed")
    assert found["argument"].startswith("TypeError") and found["undone"].startswith("NotImplementedError")
    assert found["tuples"].startswith("TypeError")
    assert found["outside"].startswith("RuntimeError: Parallel state is not initialized")
    assert found["state"] == [0, 1, 2]  # it starts at zero, whatever the checkpoint has
    assert found["alias 0"].startswith("RuntimeError: output 0 is") and found["alias 2"].startswith("IndexError")
