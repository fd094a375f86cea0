"""One tree of exceptions: every way a cell can fail is a type with a status.

Each says the stage, what was asked for, what is there, and what to do. The
statuses are the ones that rows carry; `FINAL` are those that a second run
would only repeat, so that they count as finished.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from db.models import error_line


@dataclass(frozen=True)
class Evidence:
    """What a stage's process left behind: absent values are None.

    frame: the last place in the builder's own sources that an error passed.
    stacks: what each of its processes did when it had to be ended.
    """

    exit_code: int | None = None
    signal: str | None = None
    stderr_tail: str | None = None
    peak_memory_bytes: int | None = None
    seconds: float | None = None
    frame: str | None = None
    stacks: str | None = None


class Failure(Exception):
    """A cell's failure.

    message: what happened, in one line if it can be.
    hint: what the user can do about it.
    error_type: the class of the underlying error where there is one ("KeyError").
    """

    status = "run_failed"
    stage = "cell"
    outcomes: Sequence[dict] = ()  # of a patch's changes, where one of them is what failed
    loading: Sequence[dict] = ()  # what became of each key of the checkpoint, where that is what failed
    source: Any = None  # the builder's `sources.Source`, where that was known already

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        error_type: str = "",
        stage: str = "",
        transient: bool = False,
        evidence: Evidence = Evidence(),
    ):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.error_type = error_type
        self.stage = stage or type(self).stage
        self.transient = transient
        self.evidence = evidence

    @property
    def final(self) -> bool:
        """Whether running the same cell again would give the same failure."""
        return self.status in FINAL and not self.transient

    def line(self) -> str:
        """The failure in one line, as tables show it."""
        return error_line(self.error_type, self.message) or ""


class ConfigFailed(Failure):
    status, stage = "config_failed", "config"


class SourceFailed(Failure):
    status, stage = "source_failed", "source"


class EnvFailed(Failure):
    status, stage = "env_failed", "environment"


class PatchFailed(Failure):
    status, stage = "patch_failed", "overlay"


class CheckpointFailed(Failure):
    status, stage = "checkpoint_failed", "checkpoint"


class PromptsFailed(Failure):
    status, stage = "config_failed", "prompts"


class ReferenceFailed(Failure):
    status, stage = "reference_failed", "reference"


class ExportFailed(Failure):
    status, stage = "export_failed", "export"


class LoadFailed(Failure):
    status, stage = "load_failed", "candidate"


class RunFailed(Failure):
    status, stage = "run_failed", "candidate"


class TimedOut(Failure):
    status = "timeout"


class Stalled(Failure):
    status = "stalled"


class Killed(Failure):
    status = "killed"


class Skipped(Failure):
    status = "skipped"


class Preempted(Failure):
    status = "preempted"


class Fault(Failure):
    """A fault of this program, met while it worked on a cell; the others go on."""

    status, stage = "run_failed", "paritylab"


class StoreFailed(Failure):
    """The runner's own folders could not be written."""

    status, stage = "run_failed", "store"

    def __init__(self, error: OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or says_disk_full(str(error))
        super().__init__(
            str(error),
            error_type="DiskFull" if full else type(error).__name__,
            hint=DISK_FULL_HINT if full else "check store.root (or PARITYLAB_STORE), where artifacts are kept",
            transient=True,
        )


DISK_FULL_HINT = "the disk is full: make room, or set store.root to a larger one; the next run tries the cell again"


DISK_FULL_WORDS = (
    "No space left on device", "Disk quota exceeded", "not enough space on the disk", "disk is full", "os error 28",
    "os error 122",
)  # fmt: skip


def says_disk_full(*texts: str | None) -> bool:
    """Whether an error message is about a full disk, in whatever library's words."""
    return any(word in text for word in DISK_FULL_WORDS for text in texts if text)


STATUSES = (
    "ok", "config_failed", "source_failed", "env_failed", "patch_failed", "checkpoint_failed",
    "reference_failed", "export_failed", "load_failed", "run_failed", "timeout", "stalled",
    "killed", "preempted", "skipped",
)  # fmt: skip

FINAL = frozenset({"reference_failed", "export_failed", "load_failed", "run_failed"})

STAGE_FAILURES = {
    "model": CheckpointFailed,
    "checkpoint": CheckpointFailed,
    "prompts": PromptsFailed,
    "reference": ReferenceFailed,
    "noise": ReferenceFailed,
    "export": ExportFailed,
    "constants": RunFailed,
    "candidate": RunFailed,
    "compare": RunFailed,
}
