"""The runner's side of the workers: one warm process an environment, one child a task.

`Workers.run` is the one door: it starts a worker when its environment is first
wanted, waits for a free slot, watches the task's time, and returns the task's
result or raises `TaskFailed`. Where there is no fork, a process is started per
task instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from runner import paths
from runner.failures import Evidence
from runner.schema import Limits
from runner.watchdog import watch

LINE_LIMIT = 1 << 20
TAIL_BYTES = 8000
# How long a worker may take to import everything, to fork a child, and to see a killed child's end.
START_SECONDS, LAUNCH_SECONDS, KILL_SECONDS = 900.0, 300.0, 10.0


@dataclass(frozen=True)
class Task:
    """A stage to run: its name and arguments, the folder to fill, and a folder of its own; the worker's module where
    that is not the stage's name."""

    stage: str
    arguments: dict
    out: Path
    work: Path
    threads: int
    model_type: str = ""
    module: str = ""

    def request(self) -> dict:
        return {
            "stage": self.stage,
            "module": self.module or self.stage,
            "arguments": self.arguments,
            "out": str(self.out),
            "work": str(self.work),
            "threads": self.threads,
            "model_type": self.model_type,
        }


class TaskFailed(Exception):
    """A task that gave no result.

    reason: "error" (`error` is what the task wrote: type, message, hint,
    frame), "ended" (it wrote nothing), "timeout", "stalled", "memory" (it had
    to be ended), or "worker" (the worker itself ended).
    """

    def __init__(self, reason: str, evidence: Evidence, error: dict | None = None):
        super().__init__(reason)
        self.reason, self.evidence, self.error = reason, evidence, error or {}


# All that a worker gets of the runner's environment: where things are, and what keeps a BLAS from crashing. Numbers
# must not depend on what else somebody has exported (ATEN_CPU_CAPABILITY, MKL_*, PYTHON*).
PASSED = re.compile(
    r"PATH|HOME|USER|LANG|LC_\w+|TMPDIR|TEMP|TMP|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|SYSTEMROOT|OPENBLAS_(CORETYPE|L2_SIZE)"
)


def clean_environment(byte_code: Path) -> dict[str, str]:
    """The environment of a worker: nothing of the runner's Python, one thread, no network.

    byte_code: where Python keeps what it compiles, apart from packages and
    overlays, which stay as they are. uv compiles nothing, and compiling anew
    would be two thirds of a worker's start.
    """
    environment = {key: value for key, value in os.environ.items() if PASSED.fullmatch(key)}
    # With one thread a library's import starts no thread pool, which fork would break.
    one = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment |= dict.fromkeys(one, "1")
    return environment | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "warning",
        "PYTHONPYCACHEPREFIX": str(byte_code),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
    }


class ForkWorker:
    """A warm worker process and the tasks it has in flight."""

    def __init__(self, python: Path, log: Path, byte_code: Path):
        self.python, self.log, self.byte_code = python, log, byte_code
        self.process: asyncio.subprocess.Process | None = None
        self.numbers = itertools.count()
        self.ended: dict[int, asyncio.Future] = {}
        self.started: dict[int, asyncio.Future] = {}
        self.ready: asyncio.Future | None = None

    async def start(self) -> None:
        """Start the process once and wait until its imports are done."""
        if self.ready is None:
            self.ready = asyncio.get_running_loop().create_future()
            with self.log.open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    str(self.python), "-s", str(paths.WORKER / "server.py"),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env=clean_environment(self.byte_code), limit=LINE_LIMIT,
                    start_new_session=True,  # Ctrl-C is the runner's to handle
                )  # fmt: skip
            self.reader = asyncio.create_task(self.read())
        await self.within(asyncio.shield(self.ready), START_SECONDS)

    async def within(self, answer: Awaitable, seconds: float):
        """The worker's answer; one that gives none is ended, and its tasks with it."""
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            assert self.process
            self.process.kill()
            said = f"the worker gave no answer for {seconds:.0f} s"
            raise TaskFailed("worker", Evidence(stderr_tail=said)) from None

    async def read(self) -> None:
        """Deliver the worker's messages; when they end, fail whatever is in flight."""
        assert self.process and self.process.stdout and self.ready
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "ready" in message:
                self.ready.set_result(message["ready"])
                continue
            # A task that was cancelled meanwhile waits for nothing any more.
            waiting = self.ended if "ended" in message else self.started
            future = waiting.get(message["id"])
            if future is None or future.done():
                continue
            if "refused" in message:
                future.set_exception(TaskFailed("worker", Evidence(stderr_tail=message["refused"])))
            else:
                future.set_result(message.get("ended", message.get("started")))
        code = await self.process.wait()
        gone = TaskFailed("worker", Evidence(exit_code=code, stderr_tail=tail(self.log)))
        for future in (self.ready, *self.started.values(), *self.ended.values()):
            if not future.done():
                future.set_exception(gone)
                future.exception()  # nobody may be waiting for it

    @property
    def warm(self) -> bool:
        return self.ready is not None and self.ready.done()

    @property
    def alive(self) -> bool:
        return self.process is None or self.process.returncode is None

    async def launch(self, task: Task) -> tuple[int, asyncio.Future, Callable[[], None]]:
        """Start a task: its pid, the future of how it ended, and what kills it."""
        if self.reader.done():  # nobody would answer
            raise TaskFailed("worker", Evidence(stderr_tail=tail(self.log)))
        loop = asyncio.get_running_loop()
        number = next(self.numbers)
        self.started[number], self.ended[number] = loop.create_future(), loop.create_future()
        ended = self.ended[number]
        ended.add_done_callback(lambda _: self.ended.pop(number, None))
        self.send({"id": number, "run": task.request()})
        try:
            pid = await self.within(asyncio.shield(self.started[number]), LAUNCH_SECONDS)
        except asyncio.CancelledError:
            self.send({"id": number, "kill": True})  # it may have begun already
            raise
        finally:
            del self.started[number]
        return pid, ended, lambda: self.send({"id": number, "kill": True})

    def kill(self) -> None:
        assert self.process
        self.process.kill()

    def send(self, message: dict) -> None:
        assert self.process and self.process.stdin
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """End the worker and, with it, its children."""
        if self.process is None or self.process.returncode is not None:
            return
        assert self.process.stdin and self.ready
        self.process.stdin.close()
        if not self.ready.done():  # still importing: it would not look at its input for seconds
            self.process.kill()
        try:
            await asyncio.wait_for(self.process.wait(), 5)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


class ProcessWorker:
    """The same interface without fork: a process per task, imports and all."""

    alive = warm = True

    def __init__(self, python: Path, log: Path, byte_code: Path):
        self.python, self.log, self.byte_code = python, log, byte_code
        self.processes: set[asyncio.subprocess.Process] = set()

    async def start(self) -> None:
        """Nothing is kept warm."""

    def kill(self) -> None:
        """There is no process beside the task's."""

    async def launch(self, task: Task) -> tuple[int, asyncio.Future, Callable[[], None]]:
        request = task.work / "request.json"
        request.write_text(json.dumps(task.request()))
        process = await asyncio.create_subprocess_exec(
            str(self.python), "-s", str(paths.WORKER / "task.py"), str(request),
            stdin=subprocess.DEVNULL, env=clean_environment(self.byte_code), start_new_session=os.name != "nt",
        )  # fmt: skip
        self.processes.add(process)
        return process.pid, asyncio.ensure_future(self.wait(process)), lambda: kill_tree(process.pid)

    async def wait(self, process: asyncio.subprocess.Process) -> dict:
        started, peak = time.monotonic(), 0
        while process.returncode is None:
            with contextlib.suppress(psutil.Error):
                peak = max(peak, psutil.Process(process.pid).memory_info().rss)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 0.2)
        self.processes.discard(process)
        code = process.returncode
        return {
            "exit_code": code if code >= 0 else None,
            "signal": signal.Signals(-code).name if code < 0 else None,
            "seconds": time.monotonic() - started,
            "peak_memory_bytes": peak,
        }

    async def close(self) -> None:
        for process in list(self.processes):
            kill_tree(process.pid)


class Workers:
    """The workers of all environments, with `jobs` tasks at a time among them."""

    def __init__(self, jobs: int, limits: Limits, log_root: Path, byte_code: Path, fork: bool | None = None):
        fork = fork if fork is not None else hasattr(os, "fork")
        self.kind = ForkWorker if fork else ProcessWorker
        self.slots = asyncio.Semaphore(jobs)
        self.limits = limits
        self.log_root, self.byte_code = log_root, byte_code
        self.workers: dict[Path, ForkWorker | ProcessWorker] = {}
        self.closed = False

    def of(self, python: Path) -> ForkWorker | ProcessWorker:
        """The worker of an environment; a new one where there is none, or it has ended. Errors: `TaskFailed`."""
        if self.closed:
            raise TaskFailed("worker", Evidence(stderr_tail="the workers have been closed"))
        worker = self.workers.get(python)
        if worker is None or not worker.alive:
            self.log_root.mkdir(parents=True, exist_ok=True)
            log = self.log_root / f"worker-{os.getpid()}-{len(self.workers)}.log"
            worker = self.workers[python] = self.kind(python, log, self.byte_code)
        return worker

    async def run(self, python: Path, task: Task, say: Callable[[str], None]) -> tuple[dict, Evidence]:
        """Run a task in the environment of `python`; `say` hears what it is doing. Errors: `TaskFailed`."""
        worker = self.of(python)
        if not worker.warm:
            say("worker starts")
        await worker.start()
        async with self.slots:
            if not worker.alive:  # it ended while this task waited for its turn
                worker = self.of(python)
                await worker.start()
            say(task.stage)
            pid, ended, kill = await worker.launch(task)
            try:
                seen = await watch(pid, ended, self.limits, task.work / "log")
            except asyncio.CancelledError:
                kill()
                raise
            if seen.reason:
                kill()
                how = await self.end(worker, pid, ended)
            else:
                how = await ended
        # A process counts its own memory only, and that of children that ended before it.
        how["peak_memory_bytes"] = max(how["peak_memory_bytes"] or 0, seen.peak_bytes)
        evidence = Evidence(**how, stderr_tail=tail(task.work / "log"), stacks=seen.stacks or None)
        if seen.reason:
            raise TaskFailed(seen.reason, evidence)
        if (task.work / "result.json").exists():
            return json.loads((task.work / "result.json").read_text(encoding="utf-8")), evidence
        if (task.work / "error.json").exists():
            error = json.loads((task.work / "error.json").read_text(encoding="utf-8"))
            raise TaskFailed("error", replace(evidence, frame=error.get("frame")), error)
        raise TaskFailed("ended", evidence)

    async def end(self, worker: ForkWorker | ProcessWorker, pid: int, ended: asyncio.Future) -> dict:
        """How a task that was killed ended; where its worker does not say, both are killed from here."""
        await asyncio.wait({ended}, timeout=KILL_SECONDS)
        if not ended.done():
            kill_tree(pid)
            worker.kill()
        return await ended

    async def close(self) -> None:
        """End the workers for good: what still waits for its turn must not start new ones."""
        self.closed = True
        await asyncio.gather(*(worker.close() for worker in self.workers.values()))
        for worker in self.workers.values():
            worker.log.unlink(missing_ok=True)


def kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                member.kill()


def tail(path: Path) -> str:
    """The end of a log, at most TAIL_BYTES of it."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
