"""``python -m runner action=sharding``: the plan of each cell as printed, and whether it fits."""

from __future__ import annotations

from runner.sharding_table import degrees


def test_gemma4_31b_is_shown_and_fits_a_host_that_is_large_enough(lab):
    done = lab.run("action=sharding", "model=gemma4_31b", "sharding.host_gb=384")
    assert done.returncode == 0, done.stderr
    assert "60 layers by attention: 50 sharded, 10 replicated." in done.stdout
    assert "1.51 GB a rank (0.7759 GB with no more than its window in a sliding layer)" in done.stdout
    assert "With them a rank fits a core of 16 GB" in done.stdout and "Refused" not in done.stdout
    assert not lab.db.exists() and not lab.store.exists()  # nothing is run, nothing recorded


def test_what_does_not_fit_is_refused_and_says_what_would(lab):
    asked = ("action=sharding", "model=gemma4_31b", "sharding.host_gb=384", "sharding.tracer=all ranks at once")
    done = lab.run(*asked)
    assert done.returncode == 1
    assert "Refused: tracing all ranks at once at TP 8 needs about" in done.stdout
    assert "trace one rank (ModelBuilder)" in done.stdout
    assert lab.run(*asked, "allow_failed=true").returncode == 0
    done = lab.run(
        "action=sharding", "model=gemma4_31b", "sharding.host_gb=384", "sharding.tp=4", "sharding.core_gb=12"
    )
    assert done.returncode == 1 and "DOES NOT FIT a core of 12 GB" in done.stdout
    assert "What would fit a core: TP 16 (" in done.stdout
    again = lab.run("action=sharding", "model=gemma4_31b", "sharding.host_gb=384", "sharding.core_gb=10")
    assert "What would fit a core: sharding.gqa=replicate-to-tp-degree (7.7" in again.stdout


def test_a_refusal_names_no_degree_that_does_not_fit_a_core(lab):
    asked = ("action=sharding", "model=gemma4_31b", "sharding.host_gb=384", "sharding.tracer=all ranks at once")
    assert "take TP 4" not in lab.run(*asked).stdout  # 15.35 GB a rank, and its cache
    assert "take TP 4, which needs about 368 GB" in lab.run(*asked, "sharding.core_gb=32").stdout


def test_a_backend_with_a_degree_is_planned_as_it_runs(lab):
    done = lab.run("action=sharding", "model=tiny_gemma4", "backend=tp_cpu", "backend.tp=4", "sharding.host_gb=9")
    assert "## tiny_gemma4, stored, TP 4, gqa replicate-layer, vocabulary sharded" in done.stdout


def test_what_else_would_fit_is_planned_for_the_same_dtype_and_layers(lab):
    asked = ("action=sharding", "model=gemma4_31b", "dtype=fp32", "sharding.host_gb=300", "sharding.core_gb=40")
    assert "take TP 4, which needs about 276 GB, or take fewer layers (layers=56)" in lab.run(*asked).stdout
    # Of six layers other degrees are planned with six layers too.
    cut = lab.run("action=sharding", "model=gemma4_31b", "layers=6", "sharding.host_gb=22")
    assert "take TP 4, which needs about 21.7 GB, or take fewer layers (layers=5)" in cut.stdout


def test_several_models_and_degrees(lab):
    done = lab.run(
        "action=sharding", "model=tiny_gemma3,gemma4_e2b", "sharding.tp=[1,2]", "sharding.host_gb=100", "layers=all,2"
    )
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if line.startswith("## ")]
    assert len(heads) == 8 and heads[0] == "## tiny_gemma3, stored, TP 1, gqa replicate-layer, vocabulary sharded"
    assert done.stdout.count("- 2 layers by attention:") == 4
    assert "those of layer 13" in done.stdout


def test_a_random_family_has_the_vocabulary_that_it_is_made_with(lab):
    done = lab.run(
        "action=sharding", "model=random", "model.family=gemma4,qwen3", "sharding.tp=2", "sharding.host_gb=9"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "embed_tokens_per_layer" in done.stdout


def test_a_bad_value_says_what_is_allowed(lab):
    for override, said in (
        ("sharding.tp=0", "is no TP degree"),
        ("sharding.gqa=none", "allowed: replicate-layer"),
        ("sharding.tracer=none", "allowed: all ranks at once, one rank"),
        ("model=granite_3.3_2b", "no config is written down"),
    ):
        done = lab.run("action=sharding", *(["model=gemma4_31b"] if "model=" not in override else []), override)
        assert done.returncode in (1, 2) and said in done.stdout + done.stderr, override


def test_degrees():
    assert degrees(8) == [8] and degrees([2, 4]) == [2, 4]
