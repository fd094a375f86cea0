"""The table of a sweep, from rows made by hand."""

from __future__ import annotations

import pytest

from db.models import FACTORS
from reports import sweep
from reports.table import number, span


def row(**given) -> dict:
    base = dict.fromkeys(FACTORS, "x") | {
        "cell": 7, "model": "m", "status": "ok", "error": None, "hint": None, "texts": "as expected",
        "patch_outcome": "none",
        "first_diff_least": 1e-4, "first_diff_largest": 2e-4, "diff_largest": 3e-4, "identical_count": 5,
        "prompts_count": 5, "stand_in": None,
    }  # fmt: skip
    return base | given


def test_one_row_an_export_with_the_factors_that_vary():
    text = sweep.markdown({"sweep": 1, "rows": [row(builder="0.14.1"), row(builder="0.18.0", dtype="bf16")]})
    header, _, one, two, *rest = text.split("\n")
    assert [h.strip() for h in header.split("|")[1:5]] == ["model", "dtype", "builder", "patch"]
    assert "1.0e-04 – 2.0e-04" in one and "5 of 5" in one and "0.14.1" in one and "bf16" in two
    assert "layers x" in "\n".join(rest) and "dtype" not in "\n".join(rest)


def test_a_failed_export_shows_its_error_and_its_hint():
    failed = row(status="export_failed", error="KeyError: 'rope_type'", hint="do this", patch="none")
    text = sweep.markdown({"sweep": 1, "rows": [failed, row()]})
    assert "export_failed: KeyError: 'rope_type'" in text
    assert "builder x, patch none: export_failed: do this." in text


def test_a_patch_that_changed_nothing_is_said():
    text = sweep.markdown({"sweep": 1, "rows": [row(patch="fix", patch_outcome="present", builder="main")]})
    assert "fix is already in builder main" in text


def test_a_stand_in_is_named():
    assert "stand-in fake" in sweep.markdown({"sweep": 1, "rows": [row(stand_in="fake")]})


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.23e-6, "1.2e-06"), (0.0023, "0.0023"), (26.84, "26.8"), (0.0, "0"), (float("nan"), "nan"), (None, "")],
)
def test_numbers(value, text):
    assert number(value) == text


def test_a_range_of_one_number_is_that_number():
    assert span(0.5, 0.5) == "0.5" and span(0.5, 1.0) == "0.5 – 1" and span(None, None) == ""
