"""What an export in another precision is held to: the reference's own weights rounded, and verdicts by that."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from compare import verdict
from lab import Lab, results, with_transformers_5

from runner import paths
from runner.schema import Verdict

CHECKPOINTS = paths.PROJECT / "checkpoints"
LIMITS = Verdict(within=10.0, broken=1000.0, precision_within=3.0, precision_broken=10.0)


@pytest.mark.parametrize(
    ("precision", "multiple", "word"),
    [
        ("fp32", 9.9, "within_noise"), ("fp32", 28.0, "elevated"), ("fp32", 1001.0, "broken"),
        ("int4", 2.9, "within_noise"), ("int4", 9.9, "elevated"), ("int4", 28.0, "broken"),
        ("fp16", 3.1, "elevated"),
    ],
)  # fmt: skip
def test_a_floor_that_is_the_rounding_itself_has_thresholds_of_its_own(precision, multiple, word):
    assert verdict(True, [1.0, multiple], True, None, 0.5, LIMITS.of(precision)) == word


def test_what_an_export_in_fp32_is_judged_by_names_no_precision():
    """The key of its comparison is made of it."""
    assert LIMITS.of("fp32") == {"within": 10.0, "broken": 1000.0}


def test_thresholds_out_of_order_are_refused(lab):
    done = lab.call("runner", "-m", "verdict.precision_within=20")
    assert done.returncode == 2 and "precision_within=20, precision_broken=10" in done.stderr


# Copies of a checkpoint with a head of keys and values for each of queries: the CPU provider runs no other in fp16.
# The loud one computes the same with activations in its MLP that fp16 cannot hold.
UNSHARED = """
import json, shutil, sys
from safetensors.torch import load_file, save_file
for target, loud in ((sys.argv[2], 1.0), (sys.argv[3], 1e5)):
    shutil.copytree(sys.argv[1], target)
    with open(target + "/config.json") as file:
        config = json.load(file)
    heads, shared, size = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    tensors = load_file(target + "/model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            rows = tensor.view(shared, size, -1).repeat_interleave(heads // shared, 0)
            tensors[name] = rows.reshape(heads * size, -1).contiguous()
        if name.endswith(("up_proj.weight", "down_proj.weight")):
            tensors[name] = tensor * loud ** (1 if "up_proj" in name else -1)
    save_file(tensors, target + "/model.safetensors", {"format": "pt"})
    with open(target + "/config.json", "w") as file:
        json.dump({**config, "num_key_value_heads": heads}, file)
"""


@dataclass(frozen=True)
class Swept:
    """A sweep of the shared lab: the rows of its prompts, and what the runner printed."""

    lab: Lab
    rows: list[dict]
    printed: str

    def of(self, **factors: str) -> list[dict]:
        return [row for row in self.rows if factors.items() <= row.items()]

    def artifact(self, stage: str, **factors: str) -> Path:
        """The folder that a stage of a cell made."""
        with closing(sqlite3.connect(self.lab.db)) as connection:
            query = "select key from stage_run join cell using (result_id) where cell.id = ? and stage = ?"
            ((key,),) = connection.execute(query, (self.of(**factors)[0]["cell"], stage)).fetchall()
        return self.lab.store / stage / key

    def noise(self, **factors: str) -> dict:
        return json.loads((self.artifact("noise", **factors) / "noise.json").read_text(encoding="utf-8"))


def sweep(lab: Lab, *overrides: str) -> Swept:
    done = lab.run(*overrides)
    assert done.returncode == 0, done.stderr
    return Swept(lab, results(lab, "--sweep", "latest"), " ".join(done.stdout.split()))


@pytest.fixture(scope="module")
def shipped(shared_lab, rope) -> Swept:
    """The experiment, on a builder that exports Gemma 3 with and without its fault."""
    return sweep(
        shared_lab, "+experiment=export_precision", "builder=0.14.1", "precision=fp32,int4",
        "patch=none,[rope_fix,gemma_precision]",
        "exclude=[{patch:none,model:[tiny_gemma2,tiny_llama]},{patch:none,precision:fp32}]",
    )  # fmt: skip


@pytest.fixture(scope="module")
def copies(rope, tmp_path_factory) -> Path:
    """Folders of tiny_llama in which every precision runs: quiet, and loud."""
    folder = tmp_path_factory.mktemp("checkpoints")
    script = [with_transformers_5(), "-c", UNSHARED, CHECKPOINTS / "tiny_llama", folder / "quiet", folder / "loud"]
    subprocess.run(list(map(str, script)), check=True)
    return folder


@pytest.fixture(scope="module")
def unshared(shared_lab, copies) -> Swept:
    """The copies by the newest builder."""
    models = f"model.path={copies / 'quiet'},{copies / 'loud'}"
    return sweep(shared_lab, "model=path", models, "precision=fp16,int4,int8")


@pytest.mark.slow
def test_right_exports_are_within_the_noise_of_their_precision(shipped, unshared):
    right = [*shipped.of(patch="rope_fix+gemma_precision"), *unshared.of(model="quiet")]
    assert {(row["model"], row["precision"]) for row in right} == {
        *((model, name) for model in ("tiny_gemma2", "tiny_gemma3", "tiny_llama") for name in ("fp32", "int4")),
        *(("quiet", name) for name in ("fp16", "int4", "int8")),
    }
    assert {row["verdict"] for row in right} == {"within_noise"}
    assert all(row["noise_ratio"] < 2 for row in right)
    floors = {row["precision"]: row["noise_floor"] for row in right}
    assert floors["int4"] > 5 * floors["int8"] > 20 * floors["fp16"] > 5000 * floors["fp32"]


@pytest.mark.slow
def test_a_fault_is_beyond_the_noise_of_its_precision(shipped):
    faulty = shipped.of(model="tiny_gemma3", patch="none", precision="int4")
    assert {row["verdict"] for row in faulty} == {"broken"} and {row["outcome"] for row in faulty} == {"wrong"}
    # Of the size of the logits themselves, and yet no hundred times what the precision costs.
    assert all(3 < row["noise_ratio"] < 100 for row in faulty)


@pytest.mark.slow
def test_what_exports_are_held_to_is_told(shipped, unshared):
    assert "weights rounded so (float32 / int4 in blocks of 32). Up to 3 is within noise, above 10" in shipped.printed
    assert "Up to 3 is within noise, above 1000 broken" in shipped.printed
    assert "above 1000" not in unshared.printed
    done = unshared.lab.call("reports", "noise", "--model", "quiet")
    versus = "float32 / float16, float32 / int4 in blocks of 32, float32 / int8 in blocks of 32"
    assert f"Own precision: {versus}." in done.stdout


@pytest.mark.slow
def test_the_noise_of_an_export_in_fp32_is_the_one_that_there_was(shipped):
    plain = {"dtype", "attention", "threads", "passes"}
    for precision, variants in (("fp32", plain), ("int4", {*plain, "precision"})):
        found = shipped.noise(model="tiny_llama", precision=precision)
        assert set(found["versus"]) == variants
        for prompt in found["prompts"]:
            assert prompt["floor"] == max(max(steps) for steps in prompt["variants"].values())


@pytest.mark.slow
def test_a_precision_that_cannot_hold_the_numbers_gives_no_floor_and_says_so(unshared):
    loud = unshared.of(model="loud", precision="fp16")
    assert {row["noise_floor"] for row in loud} == {None} and {row["verdict"] for row in loud} <= {None, "non_finite"}
    found = unshared.noise(model="loud", precision="fp16")
    assert "precision" in found["left_out"] and {prompt["floor"] for prompt in found["prompts"]} == {None}
    assert all(max(prompt["variants"]["dtype"]) > 0 for prompt in found["prompts"])
    assert "there is no floor and no verdict, cell" in unshared.printed
    assert "fp16 gives no finite logits for english, rare_words" in unshared.printed.replace("\\", "")
    assert {row["verdict"] for row in unshared.of(model="loud", precision="int4")} == {"within_noise"}


# Of each layer of an export: how many steps its weights are from the reference's, rounded here.
HELD = """
import numpy as np
import onnx
import torch
from precision import quantise, rounded, rounded_activations
from transformers import AutoModelForCausalLM
def held(export):
    found, graph = {}, onnx.load(export + "/model.onnx").graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            continue
        facts = {fact.name: fact.i for fact in node.attribute}
        steps, scales = tensors[node.input[1]], tensors[node.input[2]][..., None]
        if facts["bits"] == 4:
            steps = np.stack([steps & 15, steps >> 4], -1).reshape(*steps.shape[:2], -1)
        weights = ((steps.astype(int) - 2 ** (facts["bits"] - 1)) * scales).reshape(facts["N"], -1)
        name = node.name.strip("/").replace("/", ".").split(".MatMul")[0].replace(".attn.", ".self_attn.")
        parts = [name.replace("qkv_proj", part) for part in ("q_proj", "k_proj", "v_proj")] if "qkv" in name else [name]
        ours = rounded(torch.cat([model.get_submodule(part).weight.detach() for part in parts]), facts["bits"])
        off = np.abs(ours.numpy() - weights) / np.abs(scales).repeat(32, -1).reshape(weights.shape)
        said = facts["bits"], facts["block_size"]
        found |= dict.fromkeys(parts, [float(off.max()), float((off > 1e-3).mean()), *said])
    return found
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
values = torch.tensor([[-8, 7, 7.5, 3.49, 3.5, 0.4], [8, -7.5, 1, 0, 2, -2.5], [0] * 6], dtype=torch.bfloat16)
unknown = torch.nn.Module()
unknown.experts = torch.nn.ParameterList([torch.zeros(2, 32, 32)])
try:
    quantise(unknown, "int4")
except ValueError as error:
    why = str(error)
print(json.dumps({
    "held": {name: held(export) for name, export in (("int4", sys.argv[2]), ("int8", sys.argv[3]))},
    "linear": [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)],
    "whole": rounded(values, 4).tolist(), "blocks": rounded(values, 4, block=4)[:2, 4:].tolist(),
    "activations": rounded_activations(torch.tensor([127, -63.4, 0.4, 1.5, 0]), block=3).tolist(),
    "dtype": str(rounded(values, 4).dtype), "finer": (rounded(values, 8) - values).abs().max().item(), "why": why,
}))
"""


@pytest.mark.slow
def test_the_rounding_is_what_exports_hold(copies, unshared, with_torch):
    """Another step only where a weight is halfway between two."""
    exports = [unshared.artifact("export", model="quiet", precision=precision) for precision in ("int4", "int8")]
    found = with_torch(HELD, copies / "quiet", *exports)
    for precision, layers in found["held"].items():
        assert sorted(layers) == sorted(found["linear"]) and "lm_head" in layers
        for most, others, bits, block in layers.values():
            assert most < 1.001 and others < 1e-3 and (f"int{bits}", block) == (precision, 32)
    # The value of a block that is farthest from 0 becomes the lowest step.
    assert found["whole"] == [[-8, 7, 7, 3, 4, 0], [8, -7, 1, 0, 2, -3], [0] * 6]
    assert found["blocks"] == [[3.5, 0.4375], [1.875, -2.5]]
    assert found["activations"] == [127, -63, 0, 1.5, 0]
    assert found["dtype"] == "torch.bfloat16" and found["finer"] <= 1 / 16
    assert found["why"] == "how int4 rounds experts (ParameterList) is not known"
