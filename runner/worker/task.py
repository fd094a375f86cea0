"""One task: run a stage's function and leave its result, or its error, as JSON.

A request is ``{"stage", "module", "arguments", "out", "work", "threads"}``. `out` is the
folder that becomes the artifact; `work` is the task's own: temporary folder,
builder cache, ``log`` (both streams) and ``result.json`` or ``error.json``.
Run as ``python task.py REQUEST.json`` where there is no fork.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))

OF_THE_STORE = re.compile(r"[^\s'\"]*/(?:model|checkpoint)/[0-9a-f]{64}")


class StageError(Exception):
    """A failure that a stage foresaw: `kind` names it, `hint` says what to do; `loading`: the audit's rows, where it is
    about them."""

    def __init__(self, message: str, kind: str = "", hint: str = "", loading: list[dict] | None = None):
        super().__init__(message)
        self.kind, self.hint, self.loading = kind, hint, loading
        self.chain: list[dict] | None = None  # of another process that met it, as `chain_of` gives it


# What a task ends with that could leave neither a result nor an error, on a full disk say.
UNSAID = 70
# How far an error's causes are followed.
MOST_CAUSES = 20


def perform(request: dict) -> int:
    """Run the task in this process. Returns the exit code: 0 result, 1 error written, `UNSAID` neither."""
    try:
        return attempt(request)
    except Exception:  # the task's own folder cannot be written
        traceback.print_exc()
        return UNSAID


def attempt(request: dict) -> int:
    """`perform`, which leaves what goes wrong in writing about it to its caller."""
    work = request["work"]
    log = os.open(os.path.join(work, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if hasattr(signal, "SIGUSR1"):  # a watcher without py-spy asks so for the stacks of a task that hangs
        faulthandler.register(signal.SIGUSR1)
    try:
        settle(work, request["threads"])
        stage = importlib.import_module(module_of(request["module"]))
        result = stage.run(request["arguments"], request["out"])
    except BaseException as error:  # whatever ends a stage is its result
        traceback.print_exc()
        write(os.path.join(work, "error.json"), describe(error, request["arguments"]))
        return 1
    write(os.path.join(work, "result.json"), result or {})
    return 0


def module_of(name: str) -> str:
    """`name`, where it is a module beside this one."""
    if not name.isidentifier() or not os.path.exists(os.path.join(HERE, name + ".py")):
        raise ValueError(f"module {name!r}: {HERE} has no {name}.py")
    return name


def settle(work: str, threads: int) -> None:
    """Give the process its own temporary folder, its threads and no network."""
    temporary = os.path.join(work, "tmp")
    os.makedirs(temporary, exist_ok=True)
    for name in ("TMPDIR", "TEMP", "TMP"):
        os.environ[name] = temporary
    tempfile.tempdir = None
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.chdir(temporary)
    torch = sys.modules.get("torch")
    if torch is None:
        try:
            import torch
        except ImportError:
            return
    torch.set_num_threads(threads)


def describe(error: BaseException, arguments: dict) -> dict:
    """An exception as data; its traceback is at the end of the log."""
    overlay = arguments.get("overlay")
    return {
        "type": getattr(error, "kind", "") or type(error).__name__,
        # A checkpoint of the store has a name that says nothing.
        "message": OF_THE_STORE.sub("CHECKPOINT", str(error) or type(error).__name__),
        "hint": getattr(error, "hint", ""),
        "loading": getattr(error, "loading", None),
        "frame": frame_inside(error, overlay) if overlay else None,
        "chain": getattr(error, "chain", None) or chain_of(error),
    }


def chain_of(error: BaseException) -> list[dict]:
    """An error and what brought it about: {"kinds": the names of its type and of those that this is derived from,
    "errno": the system's number or None}."""
    found: list[dict] = []
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen and len(found) < MOST_CAUSES:
        seen.add(id(one))
        kinds = [kind.__name__ for kind in type(one).__mro__ if kind not in (Exception, BaseException, object)]
        number = getattr(one, "errno", None)
        found.append({"kinds": kinds, "errno": number if isinstance(number, int) else None})
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return found


def frame_inside(error: BaseException, folder: str) -> str | None:
    """The last frame of an error's traceback in a folder: ``file:line in function: text``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(folder + os.sep):
            return f"{os.path.relpath(frame.filename, folder)}:{frame.lineno} in {frame.name}: {frame.line}"
    return None


def write(path: str, content: dict) -> None:
    """Write JSON aside and rename, so that a reader never sees half of it."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as request_file:
        sys.exit(perform(json.load(request_file)))
