"""What a sweep shows while it runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class SweepProgress:
    """Cells done of all, the running stages, the time left.

    Writes to standard error: standard output is the table's.
    """

    def __init__(self, total: int, console: Console | None = None):
        self.console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        self.total, self.done, self.found, self.failed, self.waiting = total, 0, 0, 0, 0
        self.started = time.monotonic()
        self.running: dict[str, str] = {}
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"), TextColumn("{task.fields[stage]}"),
                console=self.console, transient=True,
            )  # fmt: skip
            self.task = self.bar.add_task("cells", total=total, stage="", left="")

    def __enter__(self) -> SweepProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def planned(self, waiting: int) -> None:
        """Every cell's stages are known, and that so many have to be run."""
        self.waiting, self.started = waiting, time.monotonic()
        failed = f", {self.failed} failed" if self.failed else ""
        self.say(f"{self.total} cells: {self.found} found{failed}, {waiting} to run")

    def preparing(self, what: str) -> None:
        self.show("", what)

    def stage(self, cell: str, stage: str) -> None:
        """A stage of a cell starts to work."""
        self.show(cell, stage)

    def show(self, cell: str, stage: str) -> None:
        self.running[cell] = stage
        if self.bar:
            text = "; ".join(f"{c}: {s}" if c else s for c, s in self.running.items())
            self.bar.update(self.task, stage=escape(text[-70:]))
        else:
            self.say(f"  {cell}: {stage}" if cell else f"  {stage}")

    def cell(self, cell: str, status: str, found: bool, error: str = "") -> None:
        """A cell has its row."""
        self.done += 1
        self.found += found
        self.failed += status != "ok" and not found
        self.running.pop(cell, None)
        self.running.pop("", None)
        left = self.left()
        if self.bar:
            self.bar.update(self.task, completed=self.done, left=left)
        if found and not error:
            return
        text = f"[{self.done}/{self.total}] {cell}: {status}{' (found)' if found else ''}"
        self.say(text + (f": {error}" if error else "") + (f"; {left}" if left and not self.bar else ""))

    def left(self) -> str:
        """Time left, from the cells that this sweep has really run."""
        left = self.total - self.done
        if not 0 < left < self.waiting:
            return ""
        seconds = (time.monotonic() - self.started) / (self.waiting - left) * left
        return f"about {seconds:.0f} s left"

    def say(self, text: str) -> None:
        (self.bar.console if self.bar else self.console).print(escape(text))
