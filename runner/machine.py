"""The machine that computes: what a result's numbers may depend on beside its packages."""

from __future__ import annotations

import platform
from functools import cache

import psutil

from runner import hashing


@cache
def describe() -> dict:
    """Host, system, processor, cores and memory, with a hash of them."""
    facts = {
        "host": platform.node(),
        "system": platform.platform(terse=True),
        "processor": processor(),
        "cores": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
    }
    return {"hash": hashing.of_value(facts), **facts}


def processor() -> str:
    """The processor's name; Linux's platform.processor() is often empty."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
