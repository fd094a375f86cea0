"""What is recorded of a failure beside its own message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from db.reserved import NOT_COMPARED
from runner import recording
from runner.failures import ExportFailed, RunFailed

MESSAGE = "Non-zero status code returned while running GroupQueryAttention node"
LOST = {
    "kind": "window", "verdict": "dropped",
    "says": "sliding window of 16 dropped; genai_config.json declares it for no layer",
}  # fmt: skip


def test_a_run_that_failed_for_a_lost_window_has_one_explanation():
    hint = recording.of_a_window(RunFailed(MESSAGE, stage="candidate"), [LOST])
    assert hint.startswith("sliding window of 16 dropped; genai_config.json declares it for no layer: the runtime")


@pytest.mark.parametrize(
    ("failures", "said"), [((), None), ((RunFailed("no attention operator", stage="constants"),), [NOT_COMPARED])]
)
def test_constants_that_could_not_be_compared_are_told_beside_every_verdict(failures, said):
    plan = SimpleNamespace(
        stages={}, checkpoint=SimpleNamespace(hash="c", dtypes={"fp32"}), origin=SimpleNamespace(loading=None),
        resolutions={}, overlay=None, result_hash="r", reference_environment=None, code=(),
    )  # fmt: skip
    measured = recording.Measured(metas={}, constants_failures=failures)
    assert recording.success(plan, measured, [], 1.0).values.get("reservations") == said


@pytest.mark.parametrize(
    ("failed", "row"),
    [
        (ExportFailed(MESSAGE), LOST),
        (RunFailed("no space left", stage="candidate"), LOST),
        (RunFailed(MESSAGE, stage="candidate"), LOST | {"verdict": "same"}),
        (
            RunFailed(MESSAGE, stage="candidate"),
            LOST | {"says": "sliding window of 16 dropped; genai_config.json declares none"},
        ),
    ],
)
def test_other_failures_and_other_windows_are_not_explained_by_it(failed, row):
    assert recording.of_a_window(failed, [row]) is None
