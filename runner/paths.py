"""Where the project's own things lie, and the defaults of where results go."""

from __future__ import annotations

from pathlib import Path

from db.engine import PROJECT, state_root

__all__ = ["CONF", "PROJECT", "WORKER", "state_root"]

CONF = PROJECT / "conf"
WORKER = Path(__file__).resolve().parent / "worker"
