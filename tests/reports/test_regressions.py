"""Whether a newer builder is worse."""

from __future__ import annotations

from datetime import datetime

import pytest

from db.models import FACTORS
from reports import regressions


def row(builder: str = "2", **given) -> dict:
    base = dict.fromkeys(FACTORS, "x") | {
        "builder": builder, "options": None, "cell": 1, "status": "ok", "error": None, "verdict": "elevated",
        "multiple_largest": 100.0, "thresholds": {"within": 10.0}, "identical_count": 5, "prompts_count": 5,
        "created": datetime(2026, 11, 29), "order_known": True,
    }  # fmt: skip
    return base | given


@pytest.mark.parametrize(
    ("before", "newest", "said"),
    [
        ({}, {}, ""),
        ({}, {"multiple_largest": 150.0}, ""),
        ({}, {"multiple_largest": 250.0}, "2.5 times further"),
        ({}, {"verdict": "broken"}, "elevated → broken"),
        ({}, {"status": "export_failed", "verdict": None}, "export_failed"),
        ({"status": "export_failed", "verdict": None}, {"verdict": "broken"}, ""),
        ({"verdict": "within_noise", "multiple_largest": 1}, {"verdict": "within_noise", "multiple_largest": 9}, ""),
        ({"verdict": "within_noise"}, {"verdict": "near_tie"}, "within noise → near tie"),
        ({}, {"identical_count": 3}, "2 texts fewer"),
        (
            {"verdict": "within_noise", "constants_wrong": 0},
            {"verdict": "within_noise", "constants_wrong": 1},
            "a constant is wrong",
        ),
        ({"verdict": "within_noise"}, {"verdict": "within_noise", "constants_wrong": 1}, ""),  # not compared before
        ({"reservations": []}, {"reservations": ["run its own way it does not stop"]}, "it does not stop"),
        ({"reservations": ["x"]}, {"reservations": ["x"]}, ""),
        ({"reservations": []}, {"reservations": ["constants not compared"]}, ""),
        ({"reservations": None}, {"reservations": ["x"]}, ""),  # whether that is new is not known
        ({"verdict": "broken"}, {"verdict": "elevated"}, ""),
        ({"verdict": None, "multiple_largest": None}, {}, ""),
        ({"verdict": "within_noise", "thresholds": {"within": 1e3}}, {"verdict": "elevated"}, ""),
    ],
)
def test_worse(before, newest, said):
    found = regressions.worse(row("1", **before), row(**newest))
    assert said in found if said else found == ""


def test_the_worse_lines_come_first_and_are_counted():
    found = (("m", 90), ("n", 900))
    good, bad = (regressions.pair_of(row("1"), row("2", model=m, multiple_largest=v)) for m, v in found)
    lines = regressions.markdown({"rows": [good, bad]}).split("\n")
    assert "| n " in lines[2] and "9 times further" in lines[2] and "| m " in lines[3]
    assert lines[-1] == "- 1 of 2 lines are worse with their newest builder."


def test_nothing_to_compare_says_what_to_run():
    assert "+experiment=history" in regressions.markdown({"rows": []})
