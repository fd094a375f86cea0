"""Watching a task from outside: its time, whether it works, its memory; and what its processes do when they stop.

A process is asked nothing that it must answer: one that hangs answers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from runner.processes import in_thread
from runner.schema import Limits

# How often a task is looked at.
EVERY_SECONDS = 1.0
# What share of one CPU is no work: the threads of a process that only waits wake up now and then. And the least of it
# that a system's clock can tell.
IDLE_SHARE, TICKS_SECONDS = 0.01, 0.02
DUMP_SECONDS = 10.0
MOST_STACK_BYTES = 60_000


@dataclass
class Watched:
    """reason: "" for a task that ended, else "timeout", "stalled" or "memory": it must be ended. peak_bytes: the most
    that its processes had at once, where there were several. stacks: what each did when it stalled."""

    reason: str = ""
    peak_bytes: int = 0
    stacks: str = ""


async def watch(pid: int, ended: asyncio.Future, limits: Limits, log: Path) -> Watched:
    """Wait until a task ends, or until it must be ended. log: where its own output goes."""
    found = Watched()
    begun = moved = time.monotonic()
    used, idle = 0.0, max(TICKS_SECONDS, IDLE_SHARE * limits.stall_seconds)
    most = limits.memory_gb * 1e9 if limits.memory_gb else None
    every = min(EVERY_SECONDS, limits.timeout_seconds / 4, limits.stall_seconds / 4)
    while True:
        done, _ = await asyncio.wait({ended}, timeout=every)
        if done:
            return found
        now, family = time.monotonic(), family_of(pid)
        if len(family) > 1 or most:
            found.peak_bytes = max(found.peak_bytes, memory_bytes(family))
        spent = cpu_seconds(family)
        # Processes that ended take their time with them.
        if not used <= spent <= used + idle:
            used, moved = spent, now
        if most and found.peak_bytes > most:
            found.reason = "memory"
        elif now - begun > limits.timeout_seconds:
            found.reason = "timeout"
        elif now - moved > limits.stall_seconds:
            found.reason = "stalled"
        if found.reason in ("timeout", "stalled"):
            found.stacks = await in_thread(stacks, family, log)
        if found.reason:
            return found


def family_of(pid: int) -> list[psutil.Process]:
    """A process and its children; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def cpu_seconds(family: list[psutil.Process]) -> float:
    """CPU time of some processes so far, and of their children that have ended."""
    spent = 0.0
    for process in family:
        with contextlib.suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])
    return spent


def memory_bytes(family: list[psutil.Process]) -> int:
    """Memory of some processes together: what several share is counted once, where the system says so."""
    total = 0
    for process in family:
        with contextlib.suppress(psutil.Error):
            full = process.memory_full_info()
            total += getattr(full, "pss", 0) or full.rss
    return total


def stacks(family: list[psutil.Process], log: Path) -> str:
    """What each process is doing: its state, what it waits for in the kernel, and its Python stack.

    By py-spy where it is installed; else the task writes its own stacks to its log at SIGUSR1 (see `worker/task.py`).
    """
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    start = log.stat().st_size if log.exists() else 0
    said, asked = [], False
    for process in family:
        said.append(state_of(process))
        if spy:
            said.append(spied(spy, process.pid))
        elif answers_signal(process.pid):
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGUSR1)
                asked = True
    if asked:
        time.sleep(0.5)  # each thread of each process writes a few lines
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(start)
            said.append(file.read().decode(errors="replace"))
    text = "\n".join(part for part in said if part)
    return text if len(text) <= MOST_STACK_BYTES else text[:MOST_STACK_BYTES] + "\n…"


def state_of(process: psutil.Process) -> str:
    """A line on a process: its state, its CPU time, and what it waits for in the kernel."""
    try:
        with process.oneshot():
            name, status, spent = process.name(), process.status(), sum(process.cpu_times()[:2])
    except psutil.Error:
        return f"process {process.pid} is gone"
    waits = ""
    with contextlib.suppress(OSError):
        waits = Path(f"/proc/{process.pid}/wchan").read_text().strip("0\n")
    return f"process {process.pid}, {name}: {status}{f' in {waits}' if waits else ''}, {spent:.1f} s of CPU"


def spied(spy: str, pid: int) -> str:
    """A process's Python stacks, by py-spy; why there are none where it is no Python's, or may not be looked at."""
    try:
        done = subprocess.run(
            [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=DUMP_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"  no stack: {type(error).__name__}"
    if done.returncode == 0:
        return done.stdout.strip()
    return "  no stack: " + (done.stderr.strip().splitlines() or ["py-spy said nothing"])[-1]


def answers_signal(pid: int) -> bool:
    """Whether a process has a handler for SIGUSR1, which would end it otherwise."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in text.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGUSR1 - 1) & 1)
