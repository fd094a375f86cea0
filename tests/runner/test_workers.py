"""Workers: a warm parent that only forks, a child per task, and what ends a child.

They run on the tests' own interpreter, which has no torch, so that they are
fast; the stage is compare, which needs NumPy only. A named pipe in place of
its input makes a task that waits for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from continuation import save

from runner import watchdog
from runner import workers as workers_module
from runner.schema import Limits
from runner.workers import Task, TaskFailed, Workers, clean_environment

PYTHON = Path(sys.executable)


class Tokenizer:
    def decode(self, tokens, skip_special_tokens):
        return "text"

    def convert_ids_to_tokens(self, ids):
        return [str(i) for i in ids]


@pytest.fixture
def task(tmp_path):
    """Makes a task; `waiting` makes one that never gets its input."""
    number = 0

    def task(waiting: bool = False, missing: bool = False) -> Task:
        nonlocal number
        number += 1
        root = tmp_path / str(number)
        for name in ("side", "out", "work"):
            (root / name).mkdir(parents=True)
        if waiting:
            os.mkfifo(root / "side" / "continuations.json")
        elif not missing:
            logits = np.zeros((1, 4), np.float32)
            save(str(root / "side"), 0, "p", [1], logits, Tokenizer(), set(), forced=logits)
        arguments = {
            "reference": str(root / "side"), "candidate": str(root / "side"), "expect": {}, "noise": None,
            "reject": {}, "format": None, "suspect": [], "thresholds": {"within": 10.0, "broken": 1000.0},
        }  # fmt: skip
        return Task("compare", arguments, root / "out", root / "work", threads=1)

    return task


@pytest.fixture(params=[True, False], ids=["fork", "process"])
def fork(request):
    return request.param


def with_workers(tmp_path, fork, use, timeout=60.0, stall=60.0, jobs=2, memory=None):
    """Run `use(workers)` and close the workers whatever happens."""

    async def main():
        workers = Workers(jobs, Limits(timeout, stall, memory), tmp_path / "logs", tmp_path / "bytecode", fork=fork)
        try:
            return await use(workers)
        finally:
            await workers.close()

    return asyncio.run(main())


async def child_of(workers: Workers, work: Path) -> int:
    """The pid of the only running task, once it has begun."""
    while True:  # it makes its folder, and then goes there
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(work / "tmp"):
                    return process.pid
        await asyncio.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_task_gives_its_result_and_what_it_cost(tmp_path, fork, task):
    wanted = task()
    result, evidence = with_workers(tmp_path, fork, lambda w: w.run(PYTHON, wanted, print))
    assert result == {"findings": []}
    assert (wanted.out / "comparison.json").exists()
    assert evidence.exit_code == 0 and evidence.signal is None
    assert evidence.seconds > 0 and evidence.peak_memory_bytes > 1e6


def test_many_tasks_share_one_parent(tmp_path, task):
    tasks = [task() for _ in range(8)]

    async def use(workers):
        await asyncio.gather(*(workers.run(PYTHON, t, print) for t in tasks))
        return len(workers.workers)

    assert with_workers(tmp_path, True, use) == 1
    assert all((t.out / "comparison.json").exists() for t in tasks)


def test_an_error_comes_back_with_its_type_and_traceback(tmp_path, fork, task):
    with pytest.raises(TaskFailed) as caught:
        with_workers(tmp_path, fork, lambda w: w.run(PYTHON, task(missing=True), print))
    failed = caught.value
    assert failed.reason == "error" and failed.error["type"] == "FileNotFoundError"
    assert "compare.py" in failed.evidence.stderr_tail and failed.evidence.exit_code == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_child_is_its_own_failure_alone(tmp_path, fork, task, how):
    victim, other = task(waiting=True), task()

    async def use(workers):
        running = asyncio.create_task(workers.run(PYTHON, victim, print))
        os.kill(await child_of(workers, victim.work), how)
        with pytest.raises(TaskFailed) as caught:
            await running
        await workers.run(PYTHON, other, print)
        return caught.value

    failed = with_workers(tmp_path, fork, use)
    assert failed.reason == "ended" and failed.evidence.signal == how.name
    assert (other.out / "comparison.json").exists()


@pytest.mark.parametrize(("limits", "reason"), [({"timeout": 0.5}, "timeout"), ({"stall": 0.5}, "stalled")])
def test_a_task_that_never_ends_is_ended(tmp_path, fork, task, limits, reason):
    with pytest.raises(TaskFailed) as caught:
        with_workers(tmp_path, fork, lambda w: w.run(PYTHON, task(waiting=True), print), **limits)
    assert caught.value.reason == reason
    assert caught.value.evidence.signal == "SIGKILL"


@pytest.mark.parametrize("spy", [True, False], ids=["py-spy", "no py-spy"])
def test_a_stall_has_the_stacks_of_its_processes(tmp_path, task, monkeypatch, spy):
    if spy:
        assert shutil.which("py-spy", path=str(PYTHON.parent))
    else:
        monkeypatch.setattr(watchdog.shutil, "which", lambda *_, **__: None)
    with pytest.raises(TaskFailed) as caught:
        with_workers(tmp_path, True, lambda w: w.run(PYTHON, task(waiting=True), print), stall=0.5)
    stacks = caught.value.evidence.stacks
    assert "sleeping" in stacks and "s of CPU" in stacks
    assert "continuation.py" in stacks and ("perform (task.py" if spy else "in perform") in stacks


def test_a_task_beyond_its_memory_is_ended(tmp_path, task):
    with pytest.raises(TaskFailed) as caught:
        with_workers(tmp_path, True, lambda w: w.run(PYTHON, task(waiting=True), print), memory=1e-6)
    assert caught.value.reason == "memory" and caught.value.evidence.peak_memory_bytes > 1e6


def test_a_killed_worker_fails_its_tasks_and_the_next_gets_a_new_one(tmp_path, task):
    victim, other = task(waiting=True), task()

    async def use(workers):
        running = asyncio.create_task(workers.run(PYTHON, victim, print))
        child = await child_of(workers, victim.work)
        workers.workers[PYTHON].process.kill()
        with pytest.raises(TaskFailed) as caught:
            await running
        await workers.run(PYTHON, other, print)
        return caught.value, child

    failed, child = with_workers(tmp_path, True, use)
    assert failed.reason == "worker"
    assert (other.out / "comparison.json").exists()
    assert gone(child)


def test_a_cancelled_task_leaves_no_child(tmp_path, fork, task):
    victim = task(waiting=True)

    async def use(workers):
        running = asyncio.create_task(workers.run(PYTHON, victim, print))
        child = await child_of(workers, victim.work)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for _ in range(100):
            if gone(child):
                return True
            await asyncio.sleep(0.05)
        return False

    assert with_workers(tmp_path, fork, use)


def test_a_worker_that_gives_no_answer_is_ended_with_its_tasks(tmp_path, task, monkeypatch):
    monkeypatch.setattr(workers_module, "KILL_SECONDS", 0.5)
    victim, other = task(waiting=True), task()

    async def use(workers):
        running = asyncio.create_task(workers.run(PYTHON, victim, print))
        await child_of(workers, victim.work)
        os.kill(workers.workers[PYTHON].process.pid, signal.SIGSTOP)
        with pytest.raises(TaskFailed) as caught:
            await running
        await workers.run(PYTHON, other, print)
        return caught.value

    assert with_workers(tmp_path, True, use, timeout=3.0).reason == "worker"
    assert (other.out / "comparison.json").exists()


def test_a_task_that_the_worker_cannot_start_is_its_failure_alone(tmp_path, task):
    odd, other = task(), task()
    odd = replace(odd, model_type=["a"])

    async def use(workers):
        with pytest.raises(TaskFailed) as caught:
            await workers.run(PYTHON, replace(odd, stage=["no"]), print)
        await workers.run(PYTHON, other, print)
        return caught.value

    assert with_workers(tmp_path, True, use).reason in ("worker", "error", "ended")
    assert (other.out / "comparison.json").exists()


def test_an_interpreter_that_cannot_start_is_a_failure(tmp_path, task):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no luck >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(TaskFailed) as caught:
        with_workers(tmp_path, True, lambda w: w.run(broken, task(), print))
    assert caught.value.reason == "worker" and caught.value.evidence.exit_code == 3
    assert "no luck" in caught.value.evidence.stderr_tail


def test_a_worker_gets_nothing_of_the_runners_python(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    environment = clean_environment(Path("/somewhere"))
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "ATEN_CPU_CAPABILITY", "PYTHONOPTIMIZE"} & set(environment)
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_a_task_that_waits_for_its_turn_starts_no_worker_once_all_are_closed(tmp_path, task):
    async def use(workers):
        running = asyncio.create_task(workers.run(PYTHON, task(waiting=True), lambda _: None))
        await asyncio.sleep(1)
        queued = asyncio.create_task(workers.run(PYTHON, task(), lambda _: None))
        await asyncio.sleep(0.2)
        await workers.close()
        ends = await asyncio.gather(running, queued, return_exceptions=True)
        return ends, len(workers.workers)

    ends, count = with_workers(tmp_path, True, use, jobs=1)
    assert [type(end) for end in ends] == [TaskFailed, TaskFailed] and count == 1


def test_a_task_whose_worker_ended_while_it_waited_gets_a_new_one(tmp_path, task):
    async def use(workers):
        running = asyncio.create_task(workers.run(PYTHON, task(waiting=True), lambda _: None))
        await asyncio.sleep(1)
        queued = asyncio.create_task(workers.run(PYTHON, task(), lambda _: None))
        await asyncio.sleep(0.2)
        workers.workers[PYTHON].kill()
        return await asyncio.gather(running, queued, return_exceptions=True)

    first, second = with_workers(tmp_path, True, use, jobs=1)
    assert isinstance(first, TaskFailed) and not isinstance(second, BaseException), second
