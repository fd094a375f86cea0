"""A process a rank on this machine, joined by gloo."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import wait

import torch
import torch.distributed as distributed

from .files import packed, unpacked
from .graphs import Loaded
from .parallel_layers import parallel_state

LIMIT = 300  # seconds that an answer may take


class Ranks:
    """Processes that run graphs. make(rank): what is loaded there."""

    def __init__(self, size: int, make: Callable[[int], Loaded]):
        context = multiprocessing.get_context("fork")
        folder = tempfile.mkdtemp(prefix="neuron-cpu-")
        self.connections, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, size, folder, make, there, os.getpid()), daemon=True)
            process.start()
            there.close()
            self.connections.append(here)
            self.processes.append(process)
        weakref.finalize(self, end, self.processes)

    def run(self, key: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of rank 0."""
        request, answers = packed((key, inputs)), {}
        for connection in self.connections:
            connection.send_bytes(request)
        while len(answers) < len(self.connections):
            ready = wait([c for c in self.connections if c not in answers], LIMIT)
            if not ready:
                end(self.processes)
                raise RuntimeError(f"the ranks gave no answer for {LIMIT} seconds")
            for connection in ready:
                error, outputs = unpacked(connection.recv_bytes())
                if error:
                    end(self.processes)
                    raise RuntimeError(f"rank {self.connections.index(connection)}: {error}")
                answers[connection] = outputs
        return answers[self.connections[0]]


def end(processes: list) -> None:
    for process in processes:
        process.kill()


def serve(rank: int, size: int, folder: str, make: Callable[[int], Loaded], connection, parent: int) -> None:
    join(rank, size, folder)
    loaded = make(rank)
    while True:
        while not connection.poll(0.5):
            if os.getppid() != parent:
                return
        try:
            key, inputs = unpacked(connection.recv_bytes())
            outputs = loaded.run(key, inputs)
            answer = None, outputs if rank == 0 else None
        except EOFError:
            return
        except Exception as error:
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}", None
        connection.send_bytes(packed(answer))


def join(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)  # of the threads of the process that this one was forked from, none is here
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = distributed.FileStore(os.path.join(folder, "rendezvous"), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    parallel_state.set_ranks(size, rank, live=True)
