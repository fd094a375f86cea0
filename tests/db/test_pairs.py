"""When one of two cells is called the better."""

from __future__ import annotations

import pytest

from db.models import VERDICTS
from db.pairs import Member, chosen, flips


def member(verdict: str, multiple: float | None = None, cell: int = 1, value: str = "a") -> Member:
    return Member(VERDICTS.index(verdict), cell, value, multiple)


@pytest.mark.parametrize(
    ("one", "two", "flip"),
    [
        (member("within_noise", 1), member("broken", 5000), True),
        (member("near_tie", 1), member("elevated", 50), True),
        (member("elevated", 50), member("broken", 5000), True),
        (member("within_noise", 3), member("failed"), True),
        (member("within_noise", 3), member("non_finite"), True),
        (member("within_noise", 0.1), member("within_noise", 3.9), False),
        (member("within_noise", 1), member("near_tie", 3), False),
        (member("elevated", 5), member("elevated", 900), False),
        (member("within_noise", 3.9), member("elevated", 4.1), False),  # a threshold alone parts them
        (member("elevated", 900), member("broken", 1100), False),
    ],
)
def test_what_is_a_flip(one, two, flip):
    assert flips(one, two) is flips(two, one) is flip


def test_a_fault_within_the_noise_is_no_better_side_than_a_right_export():
    right, fault = member("near_tie", 1.1, 1, "none"), member("within_noise", 3.9, 2, "fault")
    assert chosen([right, fault], (), lambda one, two: one != two) is None


def test_the_newest_right_one_is_put_beside_the_unpatched():
    cells = [
        member("within_noise", 1, 1, "a"), member("near_tie", 1, 4, "b"), member("broken", 1e6, 2, "none"),
        member("elevated", 99, 3, "c"),
    ]  # fmt: skip
    assert chosen(cells, (), lambda one, two: one != two) == (4, 2)
    assert chosen(cells, ("c",), lambda one, two: one != two) == (3, 2)
    assert chosen(cells, ("d",), lambda one, two: one != two) is None
