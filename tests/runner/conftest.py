"""Fixtures that the runner's tests share."""

from __future__ import annotations

import composing
import pytest


@pytest.fixture(scope="module")
def loader():
    with composing.hydra() as found:
        yield found
