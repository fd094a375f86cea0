"""Where the project's own things lie, and the defaults of where results go."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CONF = PROJECT / "conf"
WORKER = Path(__file__).resolve().parent / "worker"


def state_root() -> Path:
    """The folder of the default store and database: in the project, or here when it is installed."""
    return (PROJECT if (PROJECT / "pyproject.toml").exists() else Path.cwd()) / ".paritylab"
