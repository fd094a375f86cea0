"""Running another program from the event loop and waiting for what it says."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Mapping


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
