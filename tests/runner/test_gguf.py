"""GGUF files: what is read of them, what is set besides, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from lab import Lab, results

from runner import paths

pytestmark = pytest.mark.slow

LLAMA = paths.PROJECT / "checkpoints" / "tiny_llama"
GEMMA3 = paths.PROJECT / "checkpoints" / "tiny_gemma3"


def rows_of(lab: Lab, *overrides: str) -> list[dict]:
    done = lab.run(*overrides, "max_new_tokens=4", "noise.variants=[dtype]")
    assert done.returncode in (0, 1), done.stderr
    return results(lab, "--sweep", "latest")


def shown(lab: Lab, row: dict) -> str:
    return lab.call("db", "show", str(row["cell"])).stdout


def write_gguf(python: Path, target: Path, *options: str) -> Path:
    script = paths.PROJECT / "tests" / "gguf_file.py"
    subprocess.run([python, script, LLAMA, target, *options], check=True, capture_output=True)
    return target


def test_a_gguf_file_answers_as_the_checkpoint_it_was_made_of(shared_lab, gguf_python, tmp_path):
    path = write_gguf(gguf_python, tmp_path / "llama-f16.gguf", "f16")
    rows = rows_of(shared_lab, "model=path", f"model.path={path}")
    assert {(row["status"], row["verdict"], row["tokens_identical"]) for row in rows} == {("ok", "within_noise", True)}
    assert {row["model"] for row in rows} == {"llama-f16.gguf"}
    ours = rows_of(shared_lab, "model=tiny_llama")
    text = shown(shared_lab, rows[0])
    assert "GGUF llama-f16.gguf, sha256" in text
    for row in ours:
        assert row["status"] == "ok"
    # What both sides said of the prompt; the runtime's own way depends on the tokenizer that the export was given.
    told, mine = (
        [line.split() for line in shown.splitlines() if line.split()[:1] == ["english"] and "The capital of" in line]
        for shown in (text, shown(shared_lab, ours[0]))
    )
    assert mine and told == mine


def test_a_gguf_file_whose_tokenizer_cannot_be_made_is_refused(shared_lab, gguf_python, tmp_path):
    path = write_gguf(gguf_python, tmp_path / "spells.gguf", "f16", "no-merges")
    (row,) = rows_of(shared_lab, "model=path", f"model.path={path}")
    assert row["status"] == "checkpoint_failed" and "transformers cannot read spells.gguf" in row["error"]
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:1000])
    (row,) = rows_of(shared_lab, "model=path", f"model.path={cut}")
    assert row["status"] == "checkpoint_failed" and "cut.gguf" in row["error"]


# Writes each of the given files and makes a checkpoint of it: its config, and whether it is the model that was written.
SCALED = """
import os, sys, torch, gguf, gguf_file, gguf_model
from pathlib import Path
from types import SimpleNamespace
from transformers import AutoModelForCausalLM
def state(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rotary = model.model.rotary_emb
    return {**model.state_dict(), **dict(rotary.named_buffers())}, getattr(rotary, "attention_scaling", None)
def made(checkpoint, fields):
    name = str(len(os.listdir()))
    config = json.loads((Path(checkpoint) / "config.json").read_text()) | fields
    for folder in (f"{name}-wanted", f"{name}-made"):
        os.mkdir(folder)
    os.symlink(Path(checkpoint) / "model.safetensors", f"{name}-wanted/model.safetensors")
    Path(f"{name}-wanted/config.json").write_text(json.dumps(config))
    gguf_file.write(Path(checkpoint), Path(f"{name}.gguf"), "f32", fields=fields)
    gguf_model.make(os.path.abspath(f"{name}.gguf"), f"{name}-made")
    (one, by_one), (other, by_other) = state(f"{name}-wanted"), state(f"{name}-made")
    same = one.keys() == other.keys() and all(torch.allclose(one[key], other[key], 1e-6, 2e-7) for key in one)
    return json.loads(Path(f"{name}-made/config.json").read_text()), same and by_one == by_other
def told(config, fields, tensors):
    said = {"general.architecture": "x", **{f"x.{key}": value for key, value in fields.items()}}
    fields = {key: SimpleNamespace(contents=lambda value=value: value) for key, value in said.items()}
    kind = gguf.GGMLQuantizationType.F32
    arrays = {name: torch.tensor(values).numpy() for name, values in tensors.items()}
    tensors = [SimpleNamespace(name=name, data=array, tensor_type=kind) for name, array in arrays.items()]
    return gguf_model.held_to(config, SimpleNamespace(fields=fields, tensors=tensors))
def lacking(packages, *given):
    gguf_model.PACKAGES = packages
    return gguf_model.make(*given)
def tried(what, *given):
    try:
        return {"made": made, "told": told, "lacking": lacking}[what](*given)
    except gguf_model.StageError as error:
        return f"{error.kind}: {error}; {error.hint}"
print(json.dumps({name: tried(*given) for name, given in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture
def with_gguf(run_script, gguf_python):
    """Each case's result of one of the script's functions, or what it was refused with."""
    script = f"import sys; sys.path.insert(0, {str(paths.PROJECT / 'tests')!r})\n{SCALED}"

    def each(what: str, cases: dict[str, tuple]) -> dict:
        given = {name: (what, *arguments) for name, arguments in cases.items()}
        return run_script(gguf_python, script, json.dumps(given))

    return each


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
FACTORS = [1.0 + number / 16 for number in range(16)]
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 256,
    "short_factor": FACTORS, "long_factor": [1.08 * factor**2 for factor in FACTORS],
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LINEAR = {"rope_type": "linear", "factor": 8.0}


def test_a_gguf_files_rope_scaling_is_kept(with_gguf):
    def llama(scaling: dict, **fields):
        return str(LLAMA), {"max_position_embeddings": 16384, "rope_scaling": scaling, **fields}

    cases = {
        "none": llama({}),
        "linear": llama(LINEAR),
        "yarn": llama({**YARN, "beta_fast": 16.0}),
        "llama3": llama(LLAMA3, rope_theta=500000.0),
        "llama3.2": llama({**LLAMA3, "factor": 32.0}),
        "longrope": llama(LONGROPE, original_max_position_embeddings=256),
        # Of its global layers alone.
        "gemma3": (str(GEMMA3), {"final_logit_softcapping": 30.0}),
    }
    found = with_gguf("made", cases)
    assert {name: same for name, (_, same) in found.items()} == dict.fromkeys(cases, True)
    for name in ("linear", "yarn", "llama3", "llama3.2"):
        assert found[name][0]["rope_scaling"] == cases[name][1]["rope_scaling"]
    assert not found["none"][0]["rope_scaling"] and found["longrope"][0]["rope_scaling"]["type"] == "longrope"
    gemma = found["gemma3"][0]
    assert gemma["rope_scaling"] == LINEAR and gemma["rope_theta"] == 1e6 and gemma["rope_local_base_freq"] == 1e4
    assert gemma["query_pre_attn_scalar"] == 32 and gemma["sliding_window"] == 512
    assert gemma["final_logit_softcapping"] == 30.0 and gemma["attn_logit_softcapping"] is None
    assert [number for number, kind in enumerate(gemma["layer_types"]) if kind == "full_attention"] == [5]


def test_a_gguf_files_fields_are_in_the_config_or_refused(with_gguf):
    llama = {
        "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32, "rope_theta": 10000.0,
        "num_hidden_layers": 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    wide = {"hidden_size": 5376, "num_attention_heads": 32, "head_dim": 128, "num_hidden_layers": 62}
    gemma = llama | wide | {"model_type": "gemma3_text", "sliding_window": 4096, "rope_local_base_freq": 1e4}
    phi = llama | {"model_type": "phi3", "sliding_window": None, "partial_rotary_factor": 1.0, "head_dim": None}
    nested = {key: value for key, value in llama.items() if key != "rope_theta"} | {"rope_parameters": {"a": {}}}
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    long = {"rope_factors_long.weight": FACTORS[:12], "rope_factors_short.weight": FACTORS[:12]}
    length = {"rope.scaling.original_context_length": 256, "rope.dimension_count": 24}
    right = {
        "epsilon": (llama, {"attention.layer_norm_rms_epsilon": 9.999999747378752e-06}, {}),
        "factor_alone": (llama, {"rope.scale_linear": 4.0}, {}),
        "ones": (llama, {}, {"rope_freqs.weight": [1.0] * 16}),
        "phi3": (phi, {**length, "attention.sliding_window": 2047, "rope.scaling.attn_factor": 1.118034}, long),
        "gemma3_27b": (gemma, {**scaled, "attention.sliding_window": 1024, "rope.freq_base": 1e6}, {}),
    }
    wrong = {
        "rope_freqs.weight": (llama, {}, {"rope_freqs.weight": [1.0] * 8 + [2.0, 3.0] * 4}),
        "rope_freqs.weight beside": (llama, scaled, {"rope_freqs.weight": [1.0] * 8 + [8.0] * 8}),
        "rope_factors_short.weight has 12": (llama, length | {"rope.dimension_count": 32}, long),
        "rope.scaling.type=of_tomorrow": (llama, {"rope.scaling.type": "of_tomorrow"}, {}),
        "original_context_length": (llama, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {}),
        "rope.dimension_count=16": (llama, {"rope.dimension_count": 16}, {}),
        "rope scaling linear": (nested, scaled, {}),
        "attention.sliding_window=512": (llama, {"attention.sliding_window": 512}, {}),
        "sliding_window": (gemma, {}, {}),
        "final_logit_softcapping=30": (llama, {"final_logit_softcapping": 30.0}, {}),
        "logit_scale=2": (llama, {"logit_scale": 2.0}, {}),
    }
    found = with_gguf("told", right | wrong)
    assert found["epsilon"]["rms_norm_eps"] == 1e-5 and found["ones"] == llama
    assert found["factor_alone"]["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert found["phi3"]["rope_scaling"] == {
        "type": "longrope",
        "short_factor": FACTORS[:12],
        "long_factor": FACTORS[:12],
    }
    assert found["phi3"]["partial_rotary_factor"] == 0.75 and found["phi3"]["sliding_window"] == 2047
    assert found["gemma3_27b"]["query_pre_attn_scalar"] == 168 and found["gemma3_27b"]["rope_scaling"] == LINEAR
    for name in wrong:
        said = found[name]
        assert isinstance(said, str) and said.startswith("GgufRefused: ") and name in said, name
        assert said.endswith("give the checkpoint as a folder")


def test_a_part_of_a_gguf_file_and_an_environment_without_gguf_are_told(with_gguf):
    parts = {"part": ([], "/nowhere/m-00001-of-00003.gguf", "out"), "lacks": (["nowhere"], "/nowhere/m.gguf", "out")}
    found = with_gguf("lacking", parts)
    assert found["part"].startswith("GgufRefused: m-00001-of-00003.gguf is one of 3 files")
    assert "needs nowhere" in found["lacks"] and "conf/releases.yaml" in found["lacks"]
    assert "env.extras=[gguf==…,accelerate==…]" in found["lacks"]
