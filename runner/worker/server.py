"""A warm worker: imports the heavy packages once, then forks a child per task.

Talks JSON lines on its standard streams. In: ``{"id", "run": {...}}`` or
``{"id", "kill": true}``. Out: one ``{"ready": …}`` line, then for each task
``{"id", "started": pid}`` and ``{"id", "ended": {exit_code, signal, seconds,
peak_memory_bytes}}``.

This process only imports; it never computes. A parent that has used torch
once leaves its thread pool's locks behind, and every child forked from it
hangs for good.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable

import task
import warm


def die_with_parent() -> None:
    """Ask the kernel to end this child when its worker ends (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG


class Server:
    """The loop: requests from `stdin`, ended children from a wake-up pipe."""

    def __init__(self, stdin: int, stdout: int):
        self.stdin, self.stdout = stdin, stdout
        self.children: dict[int, tuple[int, float]] = {}  # pid -> (id, started)
        self.warmed: set[str] = set()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
        signal.set_wakeup_fd(self.wake_write)

    def send(self, message: dict) -> None:
        os.write(self.stdout, json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self.stdin, selectors.EVENT_READ)
        selector.register(self.wake_read, selectors.EVENT_READ)
        pending = b""
        while True:
            for key, _ in selector.select():
                if key.fd == self.wake_read:
                    os.read(self.wake_read, 4096)
                    self.reap()
                    continue
                data = os.read(self.stdin, 1 << 16)
                if not data:  # the runner is gone, or done with this worker
                    for pid in self.children:
                        self.kill(pid)
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    try:
                        self.handle(message)
                    except Exception as error:  # no memory to fork, say: the task's failure, not the worker's
                        print(f"{type(error).__name__}: {error}", file=sys.stderr)
                        self.send({"id": message["id"], "refused": f"{type(error).__name__}: {error}"})

    def handle(self, message: dict) -> None:
        if message.get("kill"):
            for pid, (number, _) in self.children.items():
                if number == message["id"]:
                    self.kill(pid)
            return
        request = message["run"]
        self.warm_once(f"model {request['model_type']}", warm.model, request["model_type"])
        if "overlay" in request["arguments"]:  # a release's overlays import the same packages
            self.warm_once("builder", warm.builder_imports, request["arguments"]["overlay"])
        gc.freeze()  # a child's collector then neither looks at nor copies what is here already
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self.become_child(request)
        self.children[pid] = (message["id"], started)
        self.send({"id": message["id"], "started": pid})

    def warm_once(self, what: str, imports: Callable[[str], None], argument: str) -> None:
        if what not in self.warmed:
            self.warmed.add(what)
            imports(argument)

    def become_child(self, request: dict) -> None:
        code = 70
        try:
            gc.enable()
            os.setpgid(0, 0)
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            for fd in (self.stdin, self.stdout, self.wake_read, self.wake_write):
                os.close(fd)
            code = task.perform(request)
        finally:
            os._exit(code)  # the parent's clean-up is not this child's to run

    def kill(self, pid: int) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def reap(self) -> None:
        for pid in list(self.children):
            done, status, usage = os.wait4(pid, os.WNOHANG)
            if not done:
                continue
            number, started = self.children.pop(pid)
            killed = os.WIFSIGNALED(status)
            self.send({"id": number, "ended": {
                "exit_code": None if killed else os.WEXITSTATUS(status),
                "signal": signal.Signals(os.WTERMSIG(status)).name if killed else None,
                "seconds": time.monotonic() - started,
                "peak_memory_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            }})  # fmt: skip


def main() -> None:
    # The protocol keeps its own descriptors: what a library prints must not get into it.
    stdin, stdout = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    die_with_parent()
    started = time.monotonic()
    gc.disable()  # imports make some hundred thousand objects, none of them garbage
    missing = warm.modules()
    server = Server(stdin, stdout)
    server.send({"ready": {"seconds": time.monotonic() - started, "missing": missing}})
    server.serve()
    os._exit(0)  # taking a process with torch down in order takes up to a second


if __name__ == "__main__":
    main()
