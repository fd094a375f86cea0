"""What a column of depths supports, and no more."""

from __future__ import annotations

import pytest

from reports import depth


def rows(**ratios: float | None) -> list[dict]:
    """Rows by layer count: l1=5.0 is five times the noise at one layer."""
    return [
        {
            "layer_count": int(name[1:]), "layers": name[1:], "multiple_largest": ratio, "first_diff_least": 1e-6,
            "diff_largest": 0.0, "forced_diff_largest": (ratio or 0) * 1e-6, "first_diff_largest": 1e-6,
            "noise_floor_largest": 1e-6,
            "non_finite_count": 0, "thresholds": {"within": 10.0, "broken": 1000.0}, "verdict": "broken",
            "identical_count": 1, "prompts_count": 2, "nonsense_count": 1,
        }
        for name, ratio in ratios.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (rows(l1=500.0, l2=400.0, l7=600.0), "5.0e-04 (500 × noise) at 1 layer already"),
        (rows(l1=500.0, l7=600.0), "an error is in the first layer, embedding, last norm or head"),
        (rows(l1=500.0, l7=600.0), "; depth does not build it up, though the same fault may be in every layer."),
        (rows(l1=20.0, l7=900.0), "45 times: layers 1 to 6 (counted from 0) adds an error, or amplifies that one"),
        (rows(l3=500.0, l7=600.0), "an error is in the first 3 layers"),
        (rows(l1=4.0, l2=9.0, l4=40.0, l8=300.0), "from 1 layer to 8 layers it grows from 4 to 300 × noise"),
        (rows(l1=1.0, l5=1.5, l6=900.0), "between 5 layers and 6 layers"),
        (rows(l1=1.0, l5=1.5, l6=900.0), "an error enters in layer 5 (counted from 0)"),
        # A tiny fault at the first layer and a large one at the fifth are two.
        (rows(l1=20.0, l2=22.0, l4=25.0, l5=24000.0, l7=23900.0), "20 × noise) at 1 layer already"),
        (rows(l1=20.0, l2=22.0, l4=25.0, l5=24000.0, l7=23900.0), "960 times: layer 4 (counted from 0) adds an error"),
        (rows(l1=20.0, l2=22.0, l4=25.0, l5=24000.0, l7=23900.0), "more than one error may be there"),
        (rows(l1=1.0, l7=2.0), "within the noise at every depth"),
        (rows(l1=None, l7=2.0), "no noise floor"),
        # What comes and goes, and what no step brings.
        (rows(l1=500.0, l2=9.0), "at 2 layers, with the same layers and more, it is within the noise (9 × noise)"),
        (rows(l1=5.0, l2=40.0, l4=300.0, l8=5.0), "from 1 layer to 4 layers it grows from 5 to 300 × noise"),
        (rows(l1=5.0, l2=40.0, l4=300.0, l8=5.0), "the shallower model's alone, or does not reach the logits there"),
        (rows(l1=20.0, l2=900.0, l4=50.0), "at 4 layers it is less again, 50 × noise"),
        (rows(l2=9.0, l4=11.0), "beyond the noise with 1.1e-05 (11 × noise) at 4 layers, and no step is large enough"),
    ],
)
def test_the_sentence_says_what_the_rows_support(found, said):
    assert said in depth.sentence(found)


@pytest.mark.parametrize(
    "found", [rows(l1=500.0, l2=9.0), rows(l1=5.0, l2=9.0, l4=19.0, l8=25.0), rows(l1=500.0, l2=1500.0)]
)
def test_nothing_builds_up_is_said_only_where_nothing_rises_or_falls(found):
    assert "depth does not build it up" not in depth.sentence(found)


def test_numbers_that_are_none_are_told_by_their_depth():
    found = rows(l1=1.0, l2=1.0, l4=1.0)
    found[1]["non_finite_count"] = 1
    assert depth.sentence(found) == "not finite at 2 layers, and finite deeper."
    found[2]["non_finite_count"] = 1
    assert depth.sentence(found) == "not finite from 2 layers on."


def test_what_is_too_noisy_for_a_verdict_is_no_statement():
    found = rows(l1=1.0, l2=1.0)
    found[1]["verdict"] = None
    assert depth.sentence(found) == "too noisy at 2 layers for a verdict, so nothing can be said."


def report(**ratios: float) -> dict:
    factors = dict.fromkeys(depth.NAMES, "x") | {"model": "m", "builder": "1", "patch": "none"}
    return {"lines": [{"factors": factors, "rows": rows(**ratios)}]}


def test_one_row_a_depth_with_its_multiple():
    text = depth.markdown(report(l1=500.0, l7=600.0))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n") if line.startswith("|")]
    assert lines[0] == [
        "model", "builder", "patch", "Layers", "First-token max abs diff", "Largest", "Noise floor", "× noise",
        "Verdict", "Identical",
    ]  # fmt: skip
    assert lines[2][3:] == [
        "1",
        "1.0e-06",
        "5.0e-04",
        "1.0e-06",
        "500",
        "broken (over 1000 ×)",
        "1 of 2 (1 on nonsense)",
    ]
    assert "m 1 none: 5.0e-04 (500 × noise) at 1 layer already" in text


def test_nothing_to_compare_says_what_to_run():
    assert "layers=1,2,all" in depth.markdown({"lines": []})


@pytest.mark.parametrize("name", ["depth.png", "depth.svg"])
def test_the_plot_is_drawn(tmp_path, name):
    depth.plot(report(l1=500.0, l7=600.0), tmp_path / name)
    start = (tmp_path / name).read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in start or b"<?xml" in start
