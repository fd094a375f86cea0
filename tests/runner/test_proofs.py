"""What the shipped checkpoints prove, whole: real builders, the command line, and the words of the verdicts."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from lab import Lab, with_transformers_5

from runner import paths

pytestmark = pytest.mark.slow

MAKE_144 = """
import sys
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(sys.argv[1]), dtype=torch.float32)
for name, parameter in model.named_parameters():
    if name.endswith("norm.weight"):
        torch.nn.init.normal_(parameter, std=0.5)
weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
save_file(weights, sys.argv[1] + "/model.safetensors", metadata={"format": "pt"})
"""


def proof(lab: Lab, *arguments: str) -> list[dict]:
    done = lab.call("reports", "proof", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["designs"]


def words(design: dict) -> dict[str, str]:
    return {verdict["change"]: verdict["word"] for verdict in design["verdicts"]}


def run(lab: Lab, *overrides: str) -> None:
    done = lab.run(*overrides)
    assert done.returncode == 0, done.stderr


def test_the_rope_fix_is_proven_for_the_wrong_text_and_the_embedding_scale_hides_behind_it(shared_lab, rope):
    run(shared_lab, "builder=0.14.1", "suspects=[rope_fix,embed_scale_exact]")
    (design,) = proof(shared_lab)
    assert words(design) == {"rope_fix": "proven", "embed_scale_exact": "masked"}
    rope_fix, scale = design["verdicts"]
    assert "for the wrong text" in rope_fix["why"] and "a residue of" in rope_fix["why"]
    assert rope_fix["share"] > 0.5 and rope_fix["share"] + scale["share"] == pytest.approx(1)
    assert "within the noise" in design["together"] and "complete" in design["together"]
    assert not design["command"]


def test_in_bf16_both_are_needed_and_the_offset_is_the_larger(shared_lab, rope):
    run(shared_lab, "model=tiny_gemma2", "dtype=bf16,fp32", "suspects=[norm_offset_fp32,embed_scale_exact]")
    designs = {design["object"]["dtype"]: design for design in proof(shared_lab)}
    assert words(designs["bf16"]) == {"norm_offset_fp32": "contributes", "embed_scale_exact": "masked"}
    assert "Both are needed; norm_offset_fp32 is the larger" in designs["bf16"]["together"]
    assert words(designs["fp32"]) == {"norm_offset_fp32": "no effect", "embed_scale_exact": "proven"}


def test_where_the_root_is_exact_the_embedding_scale_has_no_effect(shared_lab, rope, tmp_path):
    """The root of 144 is 12, as that of the published 2304 is 48: nothing is rounded."""
    model = tmp_path / "gemma2_144"
    shutil.copytree(
        paths.PROJECT / "checkpoints" / "tiny_gemma2", model, ignore=shutil.ignore_patterns("*.safetensors")
    )
    config = json.loads((model / "config.json").read_text()) | {"hidden_size": 144, "num_hidden_layers": 2}
    (model / "config.json").write_text(json.dumps(config))
    (tmp_path / "make.py").write_text(MAKE_144)
    subprocess.run([with_transformers_5(), str(tmp_path / "make.py"), str(model)], check=True, capture_output=True)
    run(shared_lab, "model=path", f"model.path={model}", "dtype=bf16", "suspects=[norm_offset_fp32,embed_scale_exact]")
    (design,) = proof(shared_lab)
    assert words(design) == {"norm_offset_fp32": "proven", "embed_scale_exact": "no effect"}


def test_a_pair_that_differs_in_transformers_too_is_confounded(shared_lab, rope):
    mine = ("model=tiny_gemma2", "dtype=bf16", "max_new_tokens=5")
    run(shared_lab, *mine, "patch=none")
    run(shared_lab, *mine, "patch=norm_offset_fp32", "builder.transformers=5.24.0")
    found = [d for d in proof(shared_lab, "--model", "tiny_gemma2") if d["object"]["max_new_tokens"] == "5"]
    (verdict,) = [verdict for design in found for verdict in design["verdicts"]]
    assert verdict["word"] == "confounded"
    assert "builder's transformers (5.13.0 / 5.24.0)" in verdict["why"]


def test_what_is_missing_is_a_command_that_runs_it(shared_lab, rope):
    run(shared_lab, "builder=0.14.1", "layers=2", "patch=none,embed_scale_exact,[rope_fix,embed_scale_exact]")
    (design,) = proof(shared_lab)
    assert words(design)["embed_scale_exact"] == "not enough cells"
    assert design["command"].endswith("layers=2 patch=rope_local_unscaled") or "patch=rope" in design["command"]
    words_of = design["command"].split()
    run(shared_lab, *[w.strip("'") for w in words_of[words_of.index("-m", 3) + 1 :] if "store." not in w])
    again = [d for d in proof(shared_lab, "--model", "tiny_gemma3") if d["object"]["layers"] == "2"]
    assert any("not enough cells" not in words(d).values() for d in again)


def test_a_release_with_the_fix_and_the_same_numbers_is_told(shared_lab, rope):
    texts = [line for design in proof(shared_lab, "--sweep", "1") for line in design["confirmed"]]
    assert any("0.18.0 with rope_fix gives the numbers of 0.14.1 with rope_fix" in text for text in texts)
    (builders,) = [
        d for d in proof(shared_lab, "--sweep", "1", "--factor", "builder") if d["object"]["patch"] != "none"
    ]
    (verdict,) = builders["verdicts"]
    assert verdict["word"] == "confounded" and "builder's transformers" in verdict["why"]
    assert verdict["command"] == ""  # the fix is another change on each of the two: no cross would decide
    printed = shared_lab.call("reports", "proof", "--sweep", "1").stdout
    assert "0.14.1, as it is" in printed and "0.14.1 with only rope_fix" in printed and "export_failed" in printed


def test_pairs_and_regressions_on_what_is_there(shared_lab, rope):
    pairs = shared_lab.call("reports", "pairs", "--factor", "patch", "--model", "tiny_gemma3")
    assert pairs.returncode == 0 and ": broken" in pairs.stdout and "| nothing" in pairs.stdout
    nightly = shared_lab.call("reports", "regressions", "--model", "tiny_gemma3")
    assert nightly.returncode == 1 and "export_failed" in nightly.stdout
    assert shared_lab.call("reports", "regressions", "--since", "2999-01-01").returncode == 0


def test_diff_why_and_sql_answer(shared_lab, rope):
    diff = shared_lab.call("db", "diff", "1", "2")
    assert "change rope_local_unscaled" in diff.stdout and "tiny_gemma3" not in diff.stdout
    why = shared_lab.call("db", "why", "2")
    assert "nearest finished cell" in why.stdout and "differs in (cell" in why.stdout and "change rope" in why.stdout
    done = shared_lab.call("db", "sql", "SELECT count(*) AS n FROM cell", "--format", "json")
    assert json.loads(done.stdout)[0]["n"] >= 4
    refused = shared_lab.call("db", "sql", "DELETE FROM cell")
    assert refused.returncode == 2 and "readonly" in refused.stderr
