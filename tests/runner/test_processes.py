"""Blocking functions beside the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from runner import paths
from runner.processes import in_thread


def test_what_it_returns_and_what_it_raises():
    def divide(a, b):
        return a / b

    assert asyncio.run(in_thread(divide, 6, b=3)) == 2
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(divide, 1, 0))


def test_the_loop_goes_on_meanwhile():
    async def both():
        waiting = asyncio.ensure_future(in_thread(time.sleep, 0.2))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await waiting

    asyncio.run(both())


INTERRUPTED = """
import asyncio, time
from runner.processes import in_thread
async def main():
    task = asyncio.ensure_future(in_thread(time.sleep, 60))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
asyncio.run(main())
"""


def test_nobody_waits_for_it_at_the_end():
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=paths.PROJECT, check=True)
    assert time.monotonic() - started < 30
