"""What the threshold of a verdict is taken from."""

from __future__ import annotations

from benchmarks import right_exports


def row(multiple: float, **given) -> dict:
    usual = {"model": "m", "precision": "fp32", "patch": "none", "non_finite_count": 0, "constants_wrong": 0}
    return usual | {"verdict": "within_noise", "multiple_largest": multiple} | given


def test_the_threshold_is_the_largest_right_export_and_a_half_more():
    rows = [
        row(1.0), row(2.1), row(1.4, model="n"),
        row(90, constants_wrong=1),  # a known fault says nothing of right exports
        row(8e4, verdict="broken"),  # nor does one that nobody has named; it is listed
        row(9.0, patch="norm_1.0001"), row(3.5, patch="norm_1.0001"),
        row(1.1, precision="int4"),
    ]  # fmt: skip
    text = right_exports.report(rows)
    assert "fp32: the largest of 3 right exports × 1.5, rounded up: 4." in text
    assert "other: the largest of 1 right exports × 1.5, rounded up: 2." in text
    assert "No cause is known: m, 8e+04 × noise" in text
    assert "Planted, norm_1.0001: 1 of 2 are beyond 4: 3.5 to 9 × noise." in text


def test_quantiles_are_values_that_were_seen():
    values = [float(n) for n in range(1, 11)]
    assert right_exports.distribution("x", values) == ["x", 10, 1.0, 5.5, 9.0, 10.0, 10.0]
    assert right_exports.distribution("x", [2.0])[2:] == [2.0] * 5


def test_a_planted_fault_is_one_line_of_the_builder(tmp_path):
    text = right_exports.fault(1.00001, tmp_path).read_text(encoding="utf-8")
    assert text.count("\n-") == 1 == text.count("\n+ ")
    assert "weight.float()" in text and "* (1.00001 if layer_id == 1" in text
