"""Which causes are of the moment: each in the words of the libraries that say it, and from real processes."""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from pathlib import Path

import pytest
import task as worker_task

from runner import failures
from runner.causes import as_failure
from runner.failures import Evidence
from runner.hashing import of_value
from runner.schema import Limits
from runner.stages import Work, refuse_lost
from runner.store import Store
from runner.workers import Task, TaskFailed, Workers


def raised(error: BaseException) -> TaskFailed:
    """A task's failure by an exception, as the worker writes it."""
    return TaskFailed("error", Evidence(exit_code=1), json.loads(json.dumps(worker_task.describe(error, {}))))


def ended(signal: str | None = None, code: int | None = None, log: str = "") -> TaskFailed:
    return TaskFailed("ended", Evidence(signal=signal, exit_code=code, stderr_tail=log))


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class _ArrayMemoryError(MemoryError):
    """As NumPy's is called."""


OF_THE_MOMENT = {
    "no space": OSError(errno.ENOSPC, "No space left on device"),
    "quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "no space, safetensors": RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    "no space, numpy": OSError("262144 requested and 65536 written"),
    "no space, torch": RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
    "no space, behind another": chained(ValueError("cannot save"), OSError(errno.ENOSPC, "x")),
    "MemoryError": MemoryError(),
    "MemoryError, numpy": _ArrayMemoryError("Unable to allocate 3.00 GiB for an array with shape (1, 2)"),
    "MemoryError, behind another": chained(RuntimeError("export failed"), MemoryError()),
    "memory, torch": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
        " allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "memory, CUDA": RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "memory, ONNX Runtime": RuntimeError(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code: Failed to allocate memory for requested"
        " buffer of size 4096"
    ),
    "memory, C++": RuntimeError("std::bad_alloc"),
    "memory, the system": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "too many open files": OSError(errno.EMFILE, "Too many open files"),
    "no more threads": RuntimeError("can't start new thread"),
    "the disk fails": OSError(errno.EIO, "Input/output error"),
    "a time-out": TimeoutError("timed out"),
    "the network": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "a killed program": RuntimeError("Command '['cc']' died with <Signals.SIGKILL: 9>."),
    "interrupted": KeyboardInterrupt(),
}


@pytest.mark.parametrize("stage", ["export", "candidate", "reference"])
@pytest.mark.parametrize("name", OF_THE_MOMENT)
def test_a_cause_of_the_moment_is_not_final_in_any_stage(name, stage):
    failure = as_failure(stage, raised(OF_THE_MOMENT[name]))
    assert not failure.final
    assert failure.status in failures.STATUSES


@pytest.mark.parametrize(
    "error",
    [
        KeyError("rope_type"),
        AttributeError("'Gemma3Config' object has no attribute 'rope_local_base_freq'"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "generation_config.json"),
        SystemExit(2),
        ValueError("memory_efficient is no option"),
        worker_task.StageError("Unsupported model IR version", kind="LoadFailed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_second_run_would_repeat_is_final(error):
    failure = as_failure("export", raised(error))
    assert failure.final and failure.status in ("export_failed", "load_failed")


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "SIGINT", "SIGBUS", "SIGHUP", "SIGXCPU", "SIGXFSZ"])
def test_a_process_that_was_ended_from_outside_says_nothing(signal):
    failure = as_failure("export", ended(signal))
    assert (failure.status, failure.final) == ("killed", False)


@pytest.mark.parametrize("reason", ["timeout", "stalled", "memory", "worker"])
def test_a_process_that_had_to_be_ended_says_nothing(reason):
    failure = as_failure("export", TaskFailed(reason, Evidence(signal="SIGKILL")))
    assert not failure.final and failure.status in ("timeout", "stalled", "killed")


def test_a_crash_of_its_own_is_a_finding_unless_memory_ran_out():
    crash = as_failure("export", ended("SIGSEGV"))
    assert (crash.status, crash.error_type, crash.final) == ("export_failed", "SIGSEGV", True)
    assert as_failure("export", ended("SIGABRT", log="double free or corruption (out)")).final
    log = "terminate called after throwing an instance of 'std::bad_alloc'"
    short = as_failure("export", ended("SIGABRT", log=log))
    assert not short.final and short.message == "export crashed (SIGABRT): no memory"
    assert not as_failure("export", ended("SIGABRT", log="memory allocation of 4096 bytes failed")).final


def test_a_task_that_could_not_say_how_it_ended_says_nothing():
    unsaid = as_failure("export", ended(code=worker_task.UNSAID))
    assert (unsaid.error_type, unsaid.final) == ("Unwritten", False)
    full = as_failure("export", ended(code=1), full=True)
    assert (full.error_type, full.final) == ("DiskFull", False)
    assert as_failure("export", ended(code=3)).final
    assert as_failure("export", ended("SIGSEGV"), full=True).final


def test_a_warning_in_the_log_takes_no_finding_away():
    known = raised(KeyError("rope_type"))
    known.evidence = Evidence(stderr_tail="warning: Connection refused, so the cache is used\nKeyError: 'rope_type'")
    assert as_failure("export", known).final


# From real processes


STAGE = """
import errno, os, resource, signal, time


def run(arguments, out):
    {body}
"""
BODIES = {
    "no space": "raise OSError(errno.ENOSPC, 'No space left on device', out)",
    "too many open files": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)); return [open(out + '/x', 'w') for _ in range(99)]"
    ),
    "a file that may not grow": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); open(out + '/x', 'wb').write(bytes(9999))"
    ),
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "MemoryError": "return {'a': bytearray(1 << 62)}",
    "time-out": "time.sleep(60)",
    "nothing can be written": (
        "import __main__, task; __main__.write = task.write = lambda *_: 1 / 0; raise KeyError('rope_type')"
    ),
}


async def attempted(work: Task, fork: bool, folder: Path, timeout: float) -> None:
    workers = Workers(1, Limits(timeout, 60.0, None), folder / "logs", folder / "bytecode", fork=fork)
    try:
        await workers.run(Path(sys.executable), work, print)
    finally:
        await workers.close()


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Runs a stage of this test's own, compare's in name; gives its failure as an export's."""

    def failing(body: str, fork: bool, timeout: float = 60.0) -> failures.Failure:
        folder = tmp_path / "worker"
        folder.mkdir()
        for file in Path(worker_task.__file__).parent.glob("*.py"):
            (folder / file.name).symlink_to(file)
        (folder / "compare.py").unlink()
        (folder / "compare.py").write_text(STAGE.format(body=body))
        for name in ("task.py", "server.py"):  # a script's own folder is that of the file, not of the link
            (folder / name).unlink()
            (folder / name).write_text((Path(worker_task.__file__).parent / name).read_text())
        monkeypatch.setattr("runner.paths.WORKER", folder)
        out, own = tmp_path / "out", tmp_path / "work"
        out.mkdir()
        own.mkdir()
        with pytest.raises(TaskFailed) as caught:
            work = Task("compare", {}, out, own, threads=1)
            asyncio.run(attempted(work, fork, tmp_path, timeout))
        return as_failure("export", caught.value)

    return failing


@pytest.mark.skipif(sys.platform == "win32", reason="limits and signals are POSIX's")
@pytest.mark.parametrize("name", BODIES)
def test_a_process_that_fails_for_a_reason_of_the_moment_is_not_final(failing, name):
    failure = failing(BODIES[name], True, **({"timeout": 0.5} if name == "time-out" else {}))
    assert not failure.final, failure.line()
    known = {"no space": "DiskFull", "nothing can be written": "Unwritten", "MemoryError": "MemoryError"}
    assert failure.error_type == known.get(name, failure.error_type)


@pytest.mark.parametrize("fork", [True, False], ids=["fork", "process"])
def test_a_process_that_fails_by_itself_is_final(failing, fork):
    failure = failing("raise KeyError('rope_type')", fork)
    assert failure.final and failure.line() == "KeyError: 'rope_type'"


def test_without_fork_too_a_task_says_that_nothing_can_be_written(failing):
    assert failing(BODIES["nothing can be written"], False).error_type == "Unwritten"


# Lost inputs


@pytest.fixture
def export(tmp_path):
    """A store with an artifact of one file, and the work that is given it."""
    store = Store(tmp_path / "store")
    with store.draft("export") as draft:
        (draft / "model.onnx").write_text("weights")
        artifact = store.finish("export", of_value("k"), draft, {}, {})
    return store, artifact.path, Work("candidate", "k", {}, {"export": str(artifact.path), "threads": 1}, 1, "llama")


def test_an_input_that_is_whole_leaves_the_failure_as_it_is(export):
    store, _, work = export
    refuse_lost(work, store.root, failures.RunFailed("no such file", error_type="RuntimeError"))


@pytest.mark.parametrize("how", ["gone", "cut", "without its file"])
def test_an_input_that_was_lost_is_a_failure_of_the_moment(export, how):
    store, path, work = export
    if how == "gone":
        path.rename(path.with_name("elsewhere"))
    elif how == "cut":
        (path / "model.onnx").write_text("")
    else:
        (path / "model.onnx").unlink()
    with pytest.raises(failures.RunFailed, match="an input of candidate was lost or damaged") as caught:
        refuse_lost(work, store.root, failures.RunFailed("no such file", error_type="RuntimeError"))
    assert not caught.value.final and caught.value.error_type == "LostInput"
