"""A sharding plan run on processes: the reference's logits on every layout, and what is wrong is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from runner import families, paths
from runner.backends.tp_cpu.plan import plan_arguments
from runner.sharding import STRATEGIES, plan

pytestmark = pytest.mark.slow

LAYER, TP_DEGREE, MHA = STRATEGIES
# As the worker does it: this process imports, and each stage is a child that it forks.
STAGES = """
import os, pathlib, shutil, signal, time
import numpy as np
import warm
warm.modules()
import task

def stage(module, name, **arguments):
    out, work = os.path.abspath(name), os.path.abspath(name + ".work")
    for folder in (out, work):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    pid = os.fork()
    if pid == 0:
        os._exit(task.perform({"module": module, "arguments": arguments, "out": out, "work": work, "threads": 1}))
    failed = os.waitpid(pid, 0)[1]
    with open(f"{work}/{'error' if failed else 'result'}.json") as file:
        return json.load(file)

def reference(checkpoint, texts, **options):
    stage("prompts", "prompts", checkpoint=checkpoint, template="chat", prompts=texts, boundaries=None)
    same = {"checkpoint": checkpoint, "prompts": os.path.abspath("prompts/prompts.json"), "stop_at_end": True,
            "compute_dtype": "float32", "attention": "eager", "max_new_tokens": 24, **options}
    ends = stage("reference", "reference", **same)["end_tokens"]
    return {**same, "reference": os.path.abspath("reference"), "end_tokens": ends, "threads": 1}

def candidate(same, copied=True):
    # Its result, and how far it is from the reference.
    found = stage("tp_candidate", "candidate", **same, export=os.path.abspath("shards"), copied=copied)
    if "type" in found:
        return found
    entries = []
    for folder in ("reference", "candidate"):
        with open(f"{folder}/continuations.json") as file:
            entries.append(json.load(file))
    free, forced, identical = 0.0, 0.0, True
    for one, two in zip(*entries, strict=True):
        a = np.load("reference/" + one["logits"])
        b, fed = (np.load("candidate/" + two[key]) for key in ("logits", "forced_logits"))
        assert a.shape[1] == b.shape[1] == fed.shape[1]
        both = min(len(a), len(b))
        free = max(free, float(np.abs(a[:both] - b[:both]).max()))
        forced = max(forced, float(np.abs(a - fed).max()))
        identical = identical and one["tokens"] == two["tokens"]
    with open("candidate/loading.json") as file:
        rows = json.load(file)
    return {**found, "free": free, "forced": forced, "identical": identical, "rows": rows}
"""
RUNS = """
checkpoint, texts, plans, options = (json.loads(argument) for argument in sys.argv[1:])
same, found = reference(checkpoint, texts, **options), []
for plan, copy in plans:
    made = stage("shards", "shards", checkpoint=checkpoint, plan=plan, copy_buffers=copy)
    found.append({"made": made, **candidate(same, copy)})
print(json.dumps(found))
"""


def config_of(checkpoint: str | Path) -> dict:
    return json.loads((Path(checkpoint) / "config.json").read_text(encoding="utf-8"))


def given(config: dict, tp: int, gqa: str = LAYER, vocabulary: str = "sharded") -> dict:
    return plan_arguments(plan(config, tp, gqa=gqa, vocabulary=vocabulary))


def texts(number: int = 5) -> list[dict]:
    content = yaml.safe_load((paths.CONF / "prompts" / "five.yaml").read_text(encoding="utf-8"))
    return [{"name": prompt["name"], "text": prompt["text"]} for prompt in content["prompts"][:number]]


def shipped(name: str) -> str:
    return str(paths.PROJECT / "checkpoints" / name)


@pytest.fixture
def run(with_torch):
    """Results of the plans (and whether buffers are copied) of a checkpoint, in their order."""

    def run(checkpoint: str, plans: list[tuple[dict, bool]], prompts: list[dict], **options) -> list[dict]:
        arguments = (checkpoint, prompts, plans, options)
        return with_torch(STAGES + RUNS, *(json.dumps(argument) for argument in arguments))

    return run


def test_gemma4_on_two_and_four_ranks_and_without_its_buffers(run, tmp_path):
    checkpoint = shipped("tiny_gemma4")
    config = config_of(checkpoint)
    plans = [(given(config, 2), True), (given(config, 4), True), (given(config, 2), False)]
    two, four, without = run(checkpoint, plans, texts())
    for found, number in ((two, 2), (four, 4)):
        assert max(found["free"], found["forced"]) < 1e-5
        assert found["identical"] and (found["layers"], found["loaded_dtype"]) == (6, "float32")
        assert (found["loading"], found["findings"]) == ("", [])
        assert len(found["made"]["buffers_copied"]) == 6
        assert found["made"]["sliding_layers"] == [0, 1, 3, 4] and found["made"]["loaded_dtype"] == "float32"
        assert found["made"]["bytes_per_rank"] == [plan(config, number, bytes_per_parameter=4).rank_bytes] * number
        measured = ("load_seconds", "first_token_seconds", "decode_tokens_per_second")
        assert all(found["timings"][name] > 0 for name in measured)
        outcomes = {row["name"]: row["outcome"] for row in found["rows"]}
        assert outcomes["model.layers.*.layer_scalar"] == "copied"
        assert {outcomes[f"model.{name}.weight"] for name in ("embed_tokens", "layers.*.mlp.up_proj")} == {"sharded"}
        assert outcomes["model.norm.weight"] == "replicated"
    assert min(without["free"], without["forced"]) > 1 and not without["identical"]
    assert without["made"]["buffers_copied"] == []
    assert without["loading"].startswith("6 buffers keep their default") and "layer_scalar" in without["loading"]
    # The files are the last run's.
    whole = load_file(f"{checkpoint}/model.safetensors")
    ranks = [load_file(tmp_path / "shards" / f"tp{rank}_sharded_checkpoint.safetensors") for rank in range(2)]
    assert {name for name in whole if "layer_scalar" not in name} == set(ranks[0]) == set(ranks[1])
    for name, rows in (("model.layers.0.self_attn.q_proj.weight", 64), ("model.embed_tokens.weight", 244)):
        assert [
            (rank[name] == part).all()
            for rank, part in zip(ranks, (whole[name][:rows], whole[name][rows:]), strict=True)
        ]
    assert json.loads((tmp_path / "shards" / "plan.json").read_text())["tp"] == 2


@pytest.mark.parametrize("name", ["tiny_llama", "tiny_gemma3"])
def test_every_strategy_gives_the_references_logits(run, name):
    """Two KV heads on four ranks; on three, query heads, MLP and vocabulary are filled with zeros besides."""
    config = config_of(shipped(name))
    plans = [given(config, 4, gqa) for gqa in (LAYER, TP_DEGREE)]
    plans += [given(config, 4, MHA, "replicated"), given(config, 3, MHA)]
    words = [{layer["attention"] for layer in made["layers"]} for made in plans]
    assert words == [{"replicated"}, {TP_DEGREE}, {MHA}, {MHA}]
    for found in run(shipped(name), [(made, True) for made in plans], texts(2), max_new_tokens=6):
        assert max(found["free"], found["forced"]) < 1e-5 and found["identical"]
        assert found["loading"] == ""


RANDOM = """
configs, texts, tokenizer = (json.loads(argument) for argument in sys.argv[1:])
found = {}
for name, (config, plan) in configs.items():
    made = stage("model", name, kind="random", config=config, seed=1, tokenizer=tokenizer)
    if "type" in made:
        raise SystemExit(f"{name}: {made}")
    same = reference(os.path.abspath(name), texts, compute_dtype="float64", max_new_tokens=4)
    made = stage("shards", "shards", checkpoint=os.path.abspath(name), plan=plan, copy_buffers=True)
    found[name] = candidate(same)
print(json.dumps(found))
"""


def family(name: str, **fields) -> dict:
    config = families.read(name)["config"]
    return config | {"text_config": config["text_config"] | fields} if "text_config" in config else config | fields


def test_biases_fused_matrices_tied_keys_and_embeddings_of_layers(with_torch):
    """In float64 the ranks keep norms and rotary angles in fp32, the reference does not: what is left is that rounding.

    A bias that each rank adds, or a wrong part of a fused matrix, moves the logits a thousand times further.
    """
    words = json.loads((Path(shipped("tiny_llama")) / "config.json").read_text())["vocab_size"]
    sizes = {"vocab_size": words, "vocab_size_per_layer_input": words}
    biased = family("llama", attention_bias=True, mlp_bias=True)
    configs = {
        "biased": (biased, given(biased | sizes, 2)),
        "qwen2": (family("qwen2"), given(family("qwen2", **sizes), 4, TP_DEGREE)),
        "phi3": (family("phi3"), given(family("phi3", **sizes), 3, MHA)),
        "gemma4": (family("gemma4"), given(family("gemma4", **sizes), 3, MHA)),
    }
    found = with_torch(STAGES + RANDOM, json.dumps(configs), json.dumps(texts(2)), json.dumps(shipped("tiny_llama")))
    for name, result in found.items():
        assert max(result["free"], result["forced"]) < 2e-5 and result["identical"], (name, result)
        assert result["loading"] == ""


WRONG = """
from safetensors.numpy import load_file, save_file
checkpoint, texts, plan = (json.loads(argument) for argument in sys.argv[1:])
same = reference(checkpoint, texts, max_new_tokens=4)
stage("shards", "shards", checkpoint=checkpoint, plan=plan, copy_buffers=True)
paths = [f"shards/tp{rank}_sharded_checkpoint.safetensors" for rank in range(2)]
right = [load_file(path) for path in paths]
def tried(change):
    held = [dict(rank) for rank in right]
    change(*held)
    for path, rank in zip(paths, held):
        save_file(rank, path)
    began = time.monotonic()
    return {**candidate(same), "seconds": time.monotonic() - began}
def swap(one, two):
    key = "model.layers.1.self_attn.q_proj.weight"
    one[key], two[key] = two[key], one[key]
def lose(one, two):
    del two["model.layers.2.mlp.up_proj.weight"]
def cut(one, two):
    two["model.norm.weight"] = two["model.norm.weight"][:-1]
def add(one, two):
    one["model.other.weight"] = one["model.norm.weight"]
print(json.dumps([tried(change) for change in (swap, lose, cut, add)]))
"""


def test_what_is_wrong_in_a_rank_is_shown(with_torch):
    checkpoint = shipped("tiny_gemma4")
    arguments = (checkpoint, texts(2), given(config_of(checkpoint), 2))
    swapped, lost, cut, added = with_torch(STAGES + WRONG, *map(json.dumps, arguments))
    assert swapped["forced"] > 0.1
    (row,) = {(row["name"], row["outcome"]) for row in swapped["rows"] if row["outcome"] in ("differs", "defaulted")}
    assert row == ("model.layers.*.self_attn.q_proj.weight", "differs")
    assert "layer 1" in swapped["loading"]
    assert lost["forced"] > 0.1 and "rank 1" in lost["loading"] and "up_proj" in lost["loading"]
    assert cut["type"] == added["type"] == "ShardDiffers"
    assert cut["message"] == "rank 1 of 2: in the shard model.norm.weight is [95], and in the model [96]"
    assert added["message"].startswith("rank 0 of 2: the shard has model.other.weight")
    assert max(cut["seconds"], added["seconds"]) < 60


FAILING = """
import ranks
import torch.distributed as distributed
from task import StageError

def raises(rank):
    if rank == 1:
        time.sleep(1)
        raise KeyError("what is missing")
    distributed.barrier()
def foreseen(rank):
    if rank == 2:
        raise StageError("no such thing", kind="Foreseen", hint="do this")
    distributed.barrier()
def killed(rank):
    if rank == 0:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()
def leaves(rank):
    if rank == 1:
        os._exit(3)
    distributed.barrier()
def works(rank):
    return {"rank": rank, "threads": sys.modules["torch"].get_num_threads()}
def no_child_is_left():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
found = []
for work in (raises, foreseen, killed, leaves, works):
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            said = ranks.run(3, 1, work)
        except StageError as error:
            said = [error.kind, str(error), error.hint]
        pathlib.Path("said.json").write_text(json.dumps([said, no_child_is_left()]))
        os._exit(0)
    os.waitpid(pid, 0)
    found.append([*json.loads(pathlib.Path("said.json").read_text()), time.monotonic() - began])
print(json.dumps(found))
"""


def test_a_rank_that_fails_ends_the_others_and_is_named(with_torch):
    raises, foreseen, killed, leaves, works = with_torch(STAGES + FAILING)
    assert raises[0] == ["KeyError", "rank 1 of 3: 'what is missing'", ""]
    assert foreseen[0] == ["Foreseen", "rank 2 of 3: no such thing", "do this"]
    assert killed[0][:2] == ["RankKilled", "rank 0 of 3: was ended by SIGKILL"] and "memory" in killed[0][2]
    assert leaves[0] == ["RankEnded", "rank 1 of 3: ended with exit code 3", ""]
    assert works[0] == [{"rank": rank, "threads": 1} for rank in range(3)]
    assert all(none_left and seconds < 30 for _, none_left, seconds in (raises, foreseen, killed, leaves, works))


REFUSED = """
cases, found = json.loads(sys.argv[1]), []
for number, (config, plan, checkpoint) in enumerate(cases):
    folder = pathlib.Path(checkpoint or f"only_config_{number}")
    if not checkpoint:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    error = stage("shards", "shards", checkpoint=str(folder.resolve()), plan=plan, copy_buffers=True)
    found.append([error["type"], error["message"], os.listdir("shards")])
print(json.dumps(found))
"""


def test_what_torch_does_not_divide_is_refused_before_anything_is_made(with_torch, tmp_path):
    sizes = {"vocab_size": 301, "vocab_size_per_layer_input": 205, "pad_token_id": 0}
    experts = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48}
    oss, mixed = family("gpt_oss", **sizes), family("gemma4", **sizes, **experts)
    llama = config_of(shipped("tiny_llama"))
    cases = [
        (oss, given(oss, 2), ""),
        (mixed, given(mixed, 2), ""),
        (llama, given(llama | {"num_hidden_layers": 5}, 2), shipped("tiny_llama")),
    ]
    found = with_torch(STAGES + REFUSED, json.dumps(cases))
    assert [kind for kind, _, _ in found] == ["PlanNotRunnable"] * 3
    assert all(files == [] for *_, files in found)
    assert "model.layers.0.mlp.experts.gate_up_proj" in found[0][1]
    assert "model.language_model.layers.0.experts.down_proj" in found[1][1]
    assert "not in the model" in found[2][1] and "model.layers.4.self_attn.q_proj.weight" in found[2][1]
