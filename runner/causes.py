"""Why a task gave no result, as a typed failure; and which causes are the machine's moment, not the cell's.

A cause of the moment (no space, no memory, a kill, a time limit, a network, a
broken disk) makes its failure `transient`: the next run tries the cell again,
and no report takes it for a finding. The rest a second run would only repeat.
"""

from __future__ import annotations

import errno
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.failures import (
    DISK_FULL_HINT,
    DISK_FULL_WORDS,
    STAGE_FAILURES,
    CheckpointFailed,
    Failure,
    Killed,
    LoadFailed,
    Stalled,
    TimedOut,
)
from runner.workers import TaskFailed

# Errors that say more about what failed than the stage that met them.
NAMED_FAILURES = {"LoadFailed": LoadFailed, "RemoteCode": CheckpointFailed, "RankKilled": Killed}
# A library's or builder's own crash: a finding. By any other signal a process is ended from outside.
CRASHES = ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
# What a task ends with that could leave neither result nor error (`worker/task.py`).
UNSAID = 70
# With less than this a disk is full for whoever wants to write an export.
FULL_BYTES = 1 << 16


@dataclass(frozen=True)
class Cause:
    """A cause of the moment. words: what libraries say of it; errnos: the system's numbers; kinds: Python's exceptions,
    also those that others are derived from; logged: its words count also where an error was raised and they stand in
    the task's log alone, as those of a program that the task called."""

    name: str
    hint: str
    words: re.Pattern[str]
    errnos: frozenset[int]
    kinds: frozenset[str]
    logged: bool = False


def cause(name: str, hint: str, words: str, numbers: str, kinds: str = "", logged: bool = False) -> Cause:
    known = frozenset(getattr(errno, number) for number in numbers.split() if hasattr(errno, number))
    return Cause(name, hint, re.compile(words, re.IGNORECASE), known, frozenset(kinds.split()), logged)


MEMORY_HINT = "memory ran out: try jobs=1 or fewer layers; the next run tries the cell again"
NO_SPACE = "no space"
# In this order: the first that fits is told.
CAUSES = (
    cause(
        NO_SPACE,
        DISK_FULL_HINT,
        # numpy and PyTorch have words of their own for a write that ended early.
        "|".join([*map(re.escape, DISK_FULL_WORDS), r"\d+ requested and \d+ written", "file write failed"]),
        "ENOSPC EDQUOT",
        logged=True,
    ),
    cause(
        "no memory",
        MEMORY_HINT,
        r"can't allocate memory|cannot allocate memory|bad_alloc|bad allocation|out of memory|failed to allocate memory"
        r"|unable to allocate .*\barray\b|memory allocation of \d+ bytes failed|memory allocation still failed"
        r"|available memory of \d+ is smaller|insufficient system memory|RESOURCE_EXHAUSTED",
        "ENOMEM",
        "MemoryError OutOfMemoryError",
        logged=True,
    ),
    cause(
        "ended from outside",
        "the next run tries the cell again",
        r"died with <Signals\.SIG(KILL|TERM|INT|BUS)|forcibly killed",
        "",
        "KeyboardInterrupt",
        logged=True,
    ),
    cause(
        "the machine's limits",
        "raise the limits of files and processes (ulimit -n, -f, -u); the next run tries the cell again",
        r"too many open files|resource temporarily unavailable|can't start new thread|thread creation failed"
        r"|pthread_create failed",
        "EMFILE ENFILE EAGAIN EFBIG",
        "BlockingIOError",
    ),
    cause(
        "the disk",
        "the disk or its mount fails: see its system's log; the next run tries the cell again",
        r"input/output error|stale file handle|read-only file system|transport endpoint is not connected",
        "EIO ESTALE EROFS ENXIO ENOTCONN",
    ),
    cause(
        "the network",
        "",
        r"connection refused|connection reset|name resolution|name or service not known|network is unreachable"
        r"|address already in use|couldn't connect to|max retries exceeded",
        "ETIMEDOUT ECONNREFUSED ECONNRESET ECONNABORTED ENETUNREACH ENETDOWN EHOSTUNREACH EADDRINUSE EPIPE",
        "ConnectionError TimeoutError ConnectTimeout ReadTimeout ConnectError NoLoopback DistNetworkError"
        " DistStoreError",
    ),
)
# Of the task's own error, not of those behind it, which a library may have met and got over.
OF_THE_MACHINE = ("OSError", "PermissionError", "InterruptedError")


def of_the_moment(failed: TaskFailed) -> Cause | None:
    """The cause of the moment that a task's error or last words name, if any."""
    error = failed.error
    chain = error.get("chain") or ()
    kinds = {str(error.get("type")), *(kind for one in chain for kind in one["kinds"])}
    numbers = {one["errno"] for one in chain}
    message, log = str(error.get("message", "")), failed.evidence.stderr_tail or ""

    def says(words: Cause) -> bool:
        return bool(words.words.search(message if error and not words.logged else f"{message}\n{log}"))

    return next((c for c in CAUSES if kinds & c.kinds or numbers & c.errnos or says(c)), None)


def disk_is_full(root: Path) -> bool:
    """Whether nothing more can be written where the store is."""
    try:
        return shutil.disk_usage(root).free < FULL_BYTES
    except OSError:
        return False


def as_failure(stage: str, failed: TaskFailed, full: bool = False) -> Failure:
    """The typed failure of a stage whose task gave no result. full: the disk was when it ended."""
    evidence, error = failed.evidence, failed.error
    common: dict[str, Any] = {"stage": stage, "evidence": evidence}
    moment = of_the_moment(failed)
    unsaid = failed.reason == "ended" and evidence.signal is None
    if (moment and moment.name == NO_SPACE) or (unsaid and full):
        said = f"no space left while writing {stage}"
        return STAGE_FAILURES[stage](said, error_type="DiskFull", hint=DISK_FULL_HINT, transient=True, **common)
    if failed.reason != "error":
        return ended(stage, failed, moment, common)
    kind = NAMED_FAILURES.get(str(error.get("type")), STAGE_FAILURES[stage])
    hint = str(error.get("hint", "")) or (moment.hint if moment else "")
    transient = moment is not None or error.get("type") in OF_THE_MACHINE
    named = {"error_type": str(error.get("type", "")), "hint": hint, "transient": transient}
    failure = kind(str(error.get("message", "")), **named, **common)
    failure.loading = error.get("loading") or ()
    return failure


def ended(stage: str, failed: TaskFailed, moment: Cause | None, common: dict[str, Any]) -> Failure:
    """The failure of a stage whose process had to be ended, or ended without a word."""
    evidence = failed.evidence
    if failed.reason == "timeout":
        said = f"{stage} took longer than allowed and was ended"
        return TimedOut(said, hint="raise limits.timeout_seconds", **common)
    if failed.reason == "stalled":
        return Stalled(
            f"{stage} used no CPU for longer than allowed and was ended",
            hint="python -m db show CELL has the stacks of its processes; raise limits.stall_seconds if it only waits",
            **common,
        )
    if failed.reason == "memory":
        return Killed(
            f"{stage} needed more than limits.memory_gb and was ended",
            error_type="MemoryLimit",
            hint="raise limits.memory_gb, or take fewer layers",
            **common,
        )
    if failed.reason == "worker":
        return Killed(
            f"the worker that ran {stage} ended (exit code {evidence.exit_code})",
            hint="see the end of its stderr: python -m db results --format json",
            **common,
        )
    if evidence.signal and evidence.signal not in CRASHES:
        return Killed(
            f"{stage} was ended by {evidence.signal}",
            hint="the kernel does this when memory runs out: try jobs=1 or fewer layers;"
            " the next run tries the cell again",
            **common,
        )
    if evidence.exit_code == UNSAID:
        said = f"{stage} could not write how it ended (exit code {UNSAID})"
        hint = "see whether the disk of the store is full or fails; the next run tries the cell again"
        return STAGE_FAILURES[stage](said, error_type="Unwritten", hint=hint, transient=True, **common)
    how = evidence.signal or f"exit code {evidence.exit_code}"
    named = {"error_type": evidence.signal or "Exit", "hint": moment.hint if moment else ""}
    said = f"{stage} crashed ({how})" + (f": {moment.name}" if moment else "")
    return STAGE_FAILURES[stage](said, transient=moment is not None, **named, **common)
