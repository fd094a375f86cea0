"""Where tests keep environments, and how they call the project's commands.

Environments are content-addressed and slow to make, so tests use the
project's own (``.paritylab/store/environments``); artifacts and databases are
always new ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from runner import paths

ENVIRONMENTS = paths.state_root() / "store" / "environments"


@dataclass(frozen=True)
class Lab:
    """A store and a database of a test's own, and the commands on them."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def db(self) -> Path:
        return self.root / "results.db"

    def variables(self) -> dict[str, str]:
        return {**os.environ, "PARITYLAB_DB": str(self.db), "PARITYLAB_STORE": str(self.store)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", *arguments]

    def call(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run ``python -m ARGUMENTS`` in the project's folder."""
        return subprocess.run(
            self.command(*arguments),
            cwd=paths.PROJECT,
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run(self, *overrides: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run the runner with environments shared among tests."""
        shared = f"store.environments={ENVIRONMENTS}"
        return self.call("runner", "-m", shared, *overrides, timeout=timeout)
