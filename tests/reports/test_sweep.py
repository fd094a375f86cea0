"""The table of a sweep, from rows made by hand."""

from __future__ import annotations

import pytest

from db.models import FACTORS
from reports import sweep
from reports.table import number, span


def row(**given) -> dict:
    base = dict.fromkeys(FACTORS, "x") | {
        "cell": 7, "model": "m", "status": "ok", "error": None, "hint": None, "texts": "as expected",
        "patch_outcome": "none", "options": None, "source": "release x", "checkpoint_dtype": "fp32",
        "logit_range": [11.0, 13.0], "first_diff_least": 1e-4, "first_diff_largest": 2e-4, "diff_largest": 3e-4,
        "identical_count": 5, "prompts_count": 5, "stand_in": None, "non_finite_count": 0,
    }  # fmt: skip
    return base | given


def table(*rows: dict) -> str:
    return sweep.table({"rows": list(rows)})


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_one_row_an_export_with_the_factors_that_vary():
    header, _, one, two, *rest = table(row(builder="0.14.1"), row(builder="0.18.0", dtype="bf16")).split("\n")
    assert columns(header)[:5] == ["cell", "model", "dtype", "builder", "patch"]
    assert "1.0e-04 – 2.0e-04" in one and "5 of 5" in one and "0.14.1" in one and "bf16" in two
    assert "layers x" in "\n".join(rest) and "dtype" not in "\n".join(rest)
    assert "span 11.0 – 13.0" in "\n".join(rest)


def test_what_reaches_inside_a_factor_is_a_column():
    text = table(row(options="reference.attention=sdpa"), row())
    assert "options" in columns(text.split("\n")[0]) and "reference.attention=sdpa" in text
    assert "options reference.attention=sdpa" in table(row(options="reference.attention=sdpa"))


def test_a_dtype_as_stored_says_what_that_is():
    assert "dtype stored (fp32)" in table(row(dtype="stored"))


def test_a_failed_export_shows_its_error_and_what_to_do():
    failed = row(cell=3, status="export_failed", error="KeyError: 'rope_type'", hint="do this")
    text = table(failed, row())
    assert "export_failed: KeyError: 'rope_type'" in text.split("\n")[2]
    assert "Cell 3: export_failed: KeyError: 'rope_type' (do this); `python -m db show 3`" in text


def test_a_long_error_is_cut_in_the_table_and_whole_below_it():
    text = table(row(status="run_failed", error="x" * 300))
    assert len(text.split("\n")[2]) < 160 and "x" * 300 in text


def test_equal_failures_are_one_line():
    failed = [row(cell=n, status="skipped", error="interrupted", hint="again") for n in range(12)]
    assert "Cells 0, 1, 2, 3, 4, 5, 6, 7 …: skipped: interrupted (again)" in table(*failed)


def test_a_patch_that_changed_nothing_is_said():
    text = table(row(patch="fix", patch_outcome="present", builder="main", source="git abc (main)"))
    assert "fix is already in builder main." in text and "Builder main is git abc (main)." in text


def test_a_stand_in_is_named():
    assert "stand-in fake" in table(row(stand_in="fake"))


def test_a_number_that_is_not_finite_is_not_hidden_by_those_that_are():
    line = table(row(non_finite_count=1, texts="1 not finite")).split("\n")[2]
    assert "not finite" in line and "1.0e-04" not in line


def test_the_report_stands_alone():
    about = {"sweep": 1, "started": "2026-11-29 10:00:00", "command": "python -m runner -m a=b"}
    text = sweep.markdown({"sweep": about, "rows": [row()], "packages": {"transformers": "5.13.0"}})
    assert text.startswith("Sweep 1, 2026-11-29 10:00:00 UTC: `python -m runner -m a=b`")
    assert "Packages: transformers 5.13.0." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.23e-6, "1.2e-06"), (0.0023, "0.0023"), (26.84, "26.8"), (0.0, "0"), (float("nan"), "nan"), (None, "")],
)
def test_numbers(value, text):
    assert number(value) == text


def test_a_range_of_one_number_is_that_number():
    assert span(0.5, 0.5) == "0.5" and span(0.5, 1.0) == "0.5 – 1" and span(None, None) == ""
