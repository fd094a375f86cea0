"""N processes that compute together on this machine: forked, joined by gloo, and ended together.

They are forked before anything is computed, since a process that has used torch leaves its threads' locks to its
children. Each dies with the stage's process, and where one fails the others are ended, which would wait for it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import task
from server import die_with_parent
from task import StageError

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
# How long a rank waits for the others: the slowest of them may still load while the first is done.
TIMEOUT = timedelta(minutes=30)
# What a rank says that another one has left. The other's own error is the one to report.
LEFT = re.compile(r"by peer|gloo|broken pipe", re.IGNORECASE)


def run(number: int, threads: int, work: Callable[[int], dict]) -> list[dict]:
    """What `work(rank)` returns in each of `number` processes, as JSON holds it.

    threads: of each rank. Errors: `StageError` of the rank that failed first: its error's type, and in the message
    which rank it was.
    """

    def joined(rank: int) -> dict:
        join(rank, number, threads, folder)
        result = work(rank)
        leave()
        return result

    if not hasattr(os, "fork"):
        raise StageError("its processes are forked, and this system has no fork", kind="NoFork")
    folder = tempfile.mkdtemp(prefix="ranks-", dir=os.getcwd())
    parent, running = os.getpid(), {}
    try:
        for rank in range(number):
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                become(rank, joined, folder, parent)
            running[pid] = rank
        wait(running, folder)
    finally:
        end(running)
    return [read(folder, rank, "result") for rank in range(number)]


def join(rank: int, number: int, threads: int, folder: str) -> None:
    """Make this process rank `rank` of `number`: its threads, and a process group over the loopback interface.

    The ranks meet by a file in `folder`, so that no port has to be free.
    """
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(threads)
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    store = distributed.FileStore(os.path.join(folder, "rendezvous"), number)
    try:
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=number, timeout=TIMEOUT)
    except RuntimeError as error:
        raise StageError(
            f"the ranks do not find each other over {LOOPBACK}: {str(error).splitlines()[0][:200]}",
            kind="NoLoopback",
            hint=f"gloo needs the loopback interface: ip link set {LOOPBACK} up",
        ) from error


def leave() -> None:
    """Wait for the others, and leave the group."""
    import torch.distributed as distributed

    distributed.barrier()
    distributed.destroy_process_group()


def become(rank: int, work: Callable[[int], dict], folder: str, parent: int) -> None:
    """The life of a rank's process: `work`, and what comes of it in `folder`."""
    code = 1
    try:
        die_with_parent()
        if os.getppid() != parent:  # it has ended before that was asked for
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        task.write(path_of(folder, rank, "result"), work(rank))
        code = 0
    except BaseException as error:  # whatever ends a rank is what it has to say
        said = {**task.describe(error, {}), "at": time.monotonic()}
        traceback.print_exc()
        task.write(path_of(folder, rank, "error"), said)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the stage's clean-up is not a rank's to run


def wait(running: dict[int, int], folder: str) -> None:
    """Wait for the processes, by id, of these ranks. Errors: `StageError`."""
    number = len(running)
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        rank = running.pop(pid)
        if status:
            failures = [failure(folder, rank, status)]
            # Those that have ended as well, before the rest are made to.
            for other in list(running):
                done, status = os.waitpid(other, os.WNOHANG)
                if done and status:
                    failures.append(failure(folder, running[other], status))
                if done:
                    running.pop(other)
            ended = dict(running)
            end(running)
            failures += [said for rank in ended.values() if (said := read(folder, rank, "error"))]
            raise first(failures, number)


def end(running: dict[int, int]) -> None:
    """Kill what still runs, and wait for its end."""
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in list(running):
        os.waitpid(pid, 0)
        running.pop(pid)


def failure(folder: str, rank: int, status: int) -> dict:
    """How a rank failed: {"rank", "type", "message", "hint", "at"}."""
    said = read(folder, rank, "error")
    if said:
        return {"rank": rank, **said}
    code = os.waitstatus_to_exitcode(status)
    kind = "RankKilled" if -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGBUS) else "RankEnded"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    hint = "memory may have run out: each rank has its own part, and what is replicated, once" if code == -9 else ""
    return {"rank": rank, "type": kind, "message": how, "hint": hint, "at": time.monotonic()}


def first(failures: list[dict], number: int) -> StageError:
    """The failure that brought the others about."""
    cause = min(failures, key=lambda said: (bool(LEFT.search(said["message"])), said["at"]))
    error = StageError(f"rank {cause['rank']} of {number}: {cause['message']}", kind=cause["type"], hint=cause["hint"])
    error.chain = cause.get("chain")
    return error


def path_of(folder: str, rank: int, what: str) -> str:
    return os.path.join(folder, f"rank{rank}.{what}.json")


def read(folder: str, rank: int, what: str) -> dict | None:
    """What a rank has left, or None. Errors of it have their rank."""
    try:
        with open(path_of(folder, rank, what), encoding="utf-8") as file:
            return {**json.load(file), "rank": rank}
    except FileNotFoundError:
        return None
