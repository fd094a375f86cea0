"""What is measured beside the logits' difference, on real cells: noise, verdicts, prompts, what decoding leaves out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from lab import Lab, artifacts, results, table_of

from runner import paths

pytestmark = pytest.mark.slow

FIXED = ("builder=0.14.1", "patch=rope_fix")
HANDMADE = """
template: none
prompts:
  - {name: split, text: "<|im_start|>user\\nWhat is the capital of France?<|im_end|>\\n", expect: Paris}
  - {name: doubled, text: "<bos><start_of_turn>user\\nWhat is the capital of France?<end_of_turn>\\n"}
"""


def newest(lab: Lab, *arguments: str) -> list[dict]:
    return results(lab, "--sweep", "latest", *arguments)


def copy_of(name: str, to: Path) -> Path:
    return Path(shutil.copytree(paths.PROJECT / "checkpoints" / name, to))


def edit(path: Path, **entries) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= entries
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}), encoding="utf-8")


def findings(lab: Lab, cell: int) -> str:
    return lab.call("db", "show", str(cell)).stdout


@pytest.fixture(scope="module")
def conf(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "prompts").mkdir()
    (folder / "prompts" / "handmade.yaml").write_text(HANDMADE, encoding="utf-8")
    return str(folder)


def test_every_column_of_a_finished_cell_is_filled(shared_lab, rope):
    for row in results(shared_lab, "--sweep", "1", "--status", "ok"):
        empty = {name for name, value in row.items() if value is None}
        assert empty <= {"error", "options", "stand_in"}


def test_the_verdict_follows_the_multiple_of_the_noise(shared_lab, rope):
    rows = results(shared_lab, "--sweep", "1", "--status", "ok")
    assert {row["verdict"] for row in rows if row["patch"] == "none"} == {"broken"}
    assert {row["verdict"] for row in rows if row["patch"] == "rope_fix"} == {"elevated"}
    for row in rows:
        assert row["noise_ratio"] == pytest.approx(row["logits_max_abs_diff"] / row["noise_floor"])
        assert 0 < row["noise_floor"] < 1e-4
    done = shared_lab.run(*FIXED[:1], "patch=[rope_fix,embed_scale_exact]")
    assert done.returncode == 0, done.stderr
    assert {row["verdict"] for row in newest(shared_lab)} == {"within_noise"}


def test_forced_numbers_agree_with_free_ones_while_the_tokens_do(shared_lab, rope):
    for row in results(shared_lab, "--sweep", "1", "--patch", "rope_fix", "--status", "ok"):
        assert row["tokens_identical"]
        # One pass and step by step round otherwise: apart by noise at most.
        assert abs(row["forced_logits_max_abs_diff"] - row["logits_max_abs_diff"]) < 10 * row["noise_floor"]


def test_noise_is_measured_once_for_a_reference(shared_lab, rope):
    before = artifacts(shared_lab, "noise")
    assert shared_lab.run("builder=0.15.2", "patch=none").returncode == 0
    assert artifacts(shared_lab, "noise") == before
    done = shared_lab.call("reports", "noise", "--sweep", "1")
    assert done.returncode == 0 and "persian_sky" in done.stdout and "float32 / float64" in done.stdout
    assert len(table_of(done)) == 1 + 2 + 5  # the floor, then head, rule and a row a prompt


def test_other_thresholds_judge_the_same_numbers_again(shared_lab, rope):
    before = {stage: artifacts(shared_lab, stage) for stage in ("reference", "noise", "candidate")}
    done = shared_lab.run(*FIXED, "verdict.within=1000", "verdict.broken=1e5")
    assert done.returncode == 0, done.stderr
    assert {row["verdict"] for row in newest(shared_lab)} == {"within_noise"}
    assert before == {stage: artifacts(shared_lab, stage) for stage in before}
    assert shared_lab.run(*FIXED, "verdict.within=5000").returncode == 2


def test_without_noise_there_is_no_verdict(shared_lab, rope):
    done = shared_lab.run(*FIXED, "noise.variants=[]")
    assert done.returncode == 0 and "no noise floor" in done.stdout
    assert all(row["noise_floor"] is None and row["verdict"] is None for row in newest(shared_lab))
    assert shared_lab.run(*FIXED, "noise.variants=[dtyp]").returncode == 2


def test_a_repetition_penalty_comes_out_right(shared_lab, rope, tmp_path):
    path = copy_of("tiny_llama", tmp_path / "penalised")
    asked = {"repetition_penalty": 1.1, "min_length": 30, "suppress_tokens": [5], "do_sample": True, "num_beams": 4}
    edit(path / "generation_config.json", **asked)
    done = shared_lab.run("model=path", f"model.path={path}")
    assert done.returncode == 0, done.stderr
    one = newest(shared_lab)
    assert shared_lab.run("model=tiny_llama").returncode == 0
    two = newest(shared_lab)
    same = ("first_logits_max_abs_diff", "logits_max_abs_diff", "forced_logits_max_abs_diff", "outcome", "verdict")
    assert [[row[name] for name in same] for row in one] == [[row[name] for name in same] for row in two]
    assert {row["verdict"] for row in one} == {"within_noise"} and {row["outcome"] for row in one} == {"answer"}
    assert "repetition_penalty 1.1" in done.stdout and r"suppress_tokens \[5\]" in done.stdout


def test_a_prompt_that_is_taken_apart_is_a_warning_and_its_match_is_nonsense(shared_lab, rope, conf):
    done = shared_lab.run("--config-dir", conf, "prompts=handmade", *FIXED)
    assert done.returncode == 0, done.stderr
    assert "split_marker: `<|im_start|> -> ['<', '|'," in done.stdout
    assert "<bos> (id 2) stands 2 times, at [0, 1]" in done.stdout
    assert "runtime_tokenizer" in done.stdout  # the runtime puts no BOS of its own
    split, doubled = newest(shared_lab)
    assert split["sensible"] is False and split["match"] == "nonsense" and doubled["match"] == "identical"
    assert "2 of 2 (1 on nonsense)" in done.stdout
    assert "split_marker" in findings(shared_lab, split["cell"])


def test_a_strict_audit_fails_the_cell_whether_it_was_found_or_not(shared_lab, rope, conf):
    for _ in range(2):
        done = shared_lab.run("--config-dir", conf, "prompts=handmade", *FIXED, "audit=strict")
        assert done.returncode == 2
        (row,) = newest(shared_lab)
        assert row["status"] == "config_failed" and row["error"].startswith("PromptAudit: split: split_marker")
        assert "stands 2 times" in findings(shared_lab, row["cell"])
    assert shared_lab.run(*FIXED, "audit=strict").returncode == 0
    assert shared_lab.run(*FIXED, "audit=loud").returncode == 2


def test_a_template_of_its_own_file_gives_the_same_ids(shared_lab, rope, tmp_path):
    path = copy_of("tiny_llama", tmp_path / "separate")
    config = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    (path / "chat_template.jinja").write_text(config["chat_template"], encoding="utf-8")
    edit(path / "tokenizer_config.json", chat_template=None)
    cells = []
    for model in (("model=path", f"model.path={path}"), ("model=tiny_llama",)):
        done = shared_lab.run(*model)
        assert done.returncode == 0, done.stderr
        cells.append(newest(shared_lab)[0]["cell"])
    one, two = (json.loads(shared_lab.call("db", "prompts", str(c), "--format", "json").stdout) for c in cells)
    assert [row["ids"] for row in one] == [row["ids"] for row in two]
    assert {row["template_source"] for row in one} == {"chat_template.jinja"}
    assert {row["template_source"] for row in two} == {"tokenizer_config.json"}
    assert {row["template_hash"] for row in one} == {row["template_hash"] for row in two}
    assert one[0]["text"].startswith("<bos><start_of_turn>user\nWhat is")


def test_no_template_says_where_it_looked(shared_lab, rope, tmp_path):
    path = copy_of("tiny_llama", tmp_path / "bare")
    edit(path / "tokenizer_config.json", chat_template=None)
    done = shared_lab.run("model=path", f"model.path={path}")
    (row,) = newest(shared_lab)
    assert done.returncode == 2 and row["error"].startswith("MissingChatTemplate")
    for place in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json", str(path)):
        assert place in row["error"]


def test_boundary_prompts_find_layers_whose_windows_are_swapped(shared_lab, rope):
    """Gemma 2's even layers look through the window; builder 0.14.1 gives it to the odd ones."""
    done = shared_lab.run("prompts=boundaries", "model=tiny_gemma2", "builder=0.14.1,0.18.0", "patch=gemma_precision")
    assert done.returncode == 0, done.stderr
    rows = newest(shared_lab)
    assert [row["prompt"] for row in rows[:3]] == ["window-1", "window", "window+1"]
    first = {(row["builder"], row["prompt"]): row["first_logits_max_abs_diff"] / row["noise_floor"] for row in rows}
    assert all(first["0.18.0", name] < 10 for name in ("window-1", "window", "window+1"))
    assert first["0.14.1", "window"] < 10 and first["0.14.1", "window+1"] > 100
    assert "sliding-window layers: [0, 2, 4] in the reference, [1, 3, 5] in the export" in done.stdout
    prompts = json.loads(shared_lab.call("db", "prompts", str(rows[0]["cell"]), "--format", "json").stdout)
    assert [row["tokens"] for row in prompts] == [511, 512, 513]


def test_a_model_without_a_boundary_says_so(shared_lab, rope):
    assert shared_lab.run("prompts=boundaries", "model=tiny_llama").returncode == 2
    assert newest(shared_lab)[0]["error"].startswith("NoBoundary")


def test_in_200_tokens_a_small_error_shows(shared_lab, rope):
    done = shared_lab.run("+experiment=long", "model=tiny_gemma3,tiny_llama", *FIXED)
    assert done.returncode == 0, done.stderr
    rows = newest(shared_lab)
    assert all(row["compared_tokens"] == 200 for row in rows)
    llama = [row for row in rows if row["model"] == "tiny_llama"]
    assert {(row["verdict"], row["tokens_identical"]) for row in llama} == {("within_noise", True)}
    (long, short) = (
        max(row["logits_max_abs_diff"] for row in found if row["model"] == "tiny_gemma3")
        for found in (rows, results(shared_lab, "--sweep", "1", "--status", "ok", "--patch", "rope_fix"))
    )
    assert long > short


def test_layers_are_cut_alike_and_the_depths_are_told_in_a_sentence(shared_lab, rope, tmp_path):
    done = shared_lab.run("layers=1,2,6,all", *FIXED[:1], "patch=none,rope_fix")
    assert done.returncode == 0 and "layer_types" not in done.stdout, done.stderr
    plot = tmp_path / "depth.svg"
    depth = shared_lab.call("reports", "depth", "--sweep", "latest", "--plot", str(plot))
    assert depth.returncode == 0, depth.stderr
    assert len(table_of(depth)) == 8 and plot.stat().st_size > 1000
    line = next(line for line in depth.stdout.splitlines() if "tiny_gemma3 0.14.1 none: " in line)
    assert "at 1 layer already: an error is in the first layer" in line and "7 (all)" in depth.stdout
    assert shared_lab.call("reports", "depth", "--plot", str(tmp_path / "depth.txt")).returncode == 2


def test_the_dtype_that_a_side_loaded_is_a_warning_where_it_is_not_the_files(shared_lab, rope):
    done = shared_lab.run("model=tiny_llama", "dtype=bf16", "builder=0.14.1,0.18.0")
    assert done.returncode == 0, done.stderr
    assert "the builder loaded fp32, the files hold bf16" in done.stdout  # transformers 4 does
    old, new = (findings(shared_lab, cell) for cell in dict.fromkeys(row["cell"] for row in newest(shared_lab)))
    assert "the builder loaded fp32" in old and "the builder loaded" not in new
