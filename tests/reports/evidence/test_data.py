"""What the unit test of the folder is held to."""

from __future__ import annotations

import pytest

from reports.evidence import data

THRESHOLDS = {"within": 10.0, "broken": 1000.0}


def cell(status="ok", multiple=None, identical=True, verdict="elevated", builder="0.18.0"):
    prompts = [{"prompt": "p", "tokens_identical": identical}] if status == "ok" else []
    thresholds = THRESHOLDS if status == "ok" else None
    return {
        "cell": 1, "builder": builder, "status": status, "verdict": verdict, "thresholds": thresholds,
        "multiple_of_noise": multiple, "prompts": prompts,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("expect", "verdicts", "bound"),
    [
        ({"at_most": 40}, ["broken"], 40),
        ({"multiple_at_most": 40, "verdict": ["elevated"]}, ["broken"], 40),
        ({"verdict": ["within_noise", "near_tie", "elevated"]}, ["broken"], 1000),
        ({"verdict": ["within_noise"]}, ["broken"], 10),
        ({"above": 1000}, ["broken", "elevated"], 1000),
        ({"above": 1000}, ["broken", "within_noise"], 10),
    ],
)
def test_the_bound_is_the_claims_or_a_verdicts(expect, verdicts, bound):
    assert data.bound_of([cell(verdict=verdict) for verdict in verdicts], expect) == bound


def test_each_cell_says_what_its_unit_test_gives():
    cells = [
        cell(multiple=460.0), cell(multiple=3e6, identical=False), cell("export_failed"), cell("run_failed"),
        cell(multiple=None), cell(multiple=1.0, builder="none"),
    ]  # fmt: skip
    data.with_checks(cells, {"verdict": ["elevated"]})
    assert [one["check"]["expected"] for one in cells] == ["passes", "fails", "fails", "fails", None, None]
    assert (
        cells[1]["check"]["why"] == "1 of 1 texts part from the reference's, and up to 3.0e+06 × noise is above 1000 ×"
    )
    assert cells[2]["thresholds"] == THRESHOLDS  # those of the others, for an export that will be there one day
