"""Waiting, from the event loop, for what another program says, and for what a blocking function returns."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def output(*command: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a program, which is ended if the wait is.

    It runs in the temporary folder, where no project's settings (uv's, Python's path) reach it.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tempfile.gettempdir(),
        env=environment,
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace")


async def in_thread(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """`function(...)` in a thread of its own, which nobody waits for: an interrupted sweep ends at once.

    `asyncio.to_thread` would be joined before the program can end, and a download may take an hour.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(done: Callable[[], None]) -> None:
        if not future.done():  # it was cancelled meanwhile
            done()

    def work() -> None:
        try:
            result = function(*arguments, **named)
        except StopIteration as error:  # which a future does not take
            told = partial(future.set_exception, RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:
            told = partial(future.set_exception, error)
        else:
            told = partial(future.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the program ends
            loop.call_soon_threadsafe(settle, told)

    threading.Thread(target=work, daemon=True).start()
    return await future
