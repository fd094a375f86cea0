"""What a sweep shows while it runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column


class SweepProgress:
    """Cells done of all, the running stages, the time left.

    Writes to standard error: standard output is the table's.
    """

    def __init__(self, total: int, console: Console | None = None):
        self.console = console or Console(stderr=True, soft_wrap=True, highlight=False)
        self.total, self.done, self.found, self.failed, self.waiting = total, 0, 0, 0, 0
        self.first_stage: float | None = None  # when the first stage began: what came before is start-up
        self.running: dict[str, str] = {}
        self.bar: Progress | None = None
        if self.console.is_terminal:
            fixed = {"no_wrap": True}
            self.bar = Progress(
                BarColumn(bar_width=16),
                MofNCompleteColumn(table_column=Column(**fixed)),
                TimeElapsedColumn(table_column=Column(**fixed)),
                TextColumn("{task.fields[left]}", table_column=Column(**fixed)),
                TextColumn("{task.fields[stage]}", table_column=Column(ratio=1, overflow="ellipsis", **fixed)),
                console=self.console,
                transient=True,
                expand=True,
            )
            self.task = self.bar.add_task("cells", total=total, stage="", left="")

    def __enter__(self) -> SweepProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def preparing(self, what: str) -> None:
        if self.bar:
            self.bar.update(self.task, stage=what)

    def planned(self, waiting: int) -> None:
        """Every cell's stages are known, and that so many have to be run."""
        self.waiting = waiting
        failed = f", {self.failed} failed" if self.failed else ""
        self.say(f"{self.total} cell{'s' * (self.total != 1)}: {self.found} found{failed}, {waiting} to run")

    def stage(self, cell: str, stage: str) -> None:
        """A stage of a cell starts to work; "": its work, which is no cell's, is done."""
        if not stage:
            self.running.pop(cell, None)
            return
        self.running[cell] = stage
        if self.first_stage is None and "worker" not in stage:
            self.first_stage = time.monotonic()
        if self.bar:
            more = f" (and {len(self.running) - 1} more)" if len(self.running) > 1 else ""
            self.bar.update(self.task, stage=escape(f"{stage}: {cell}{more}"))
        else:
            self.say(f"  {cell}: {stage}")

    def cell(self, cell: str, status: str, found: bool, error: str = "") -> None:
        """A cell has its row."""
        self.done += 1
        self.found += found
        self.failed += status != "ok" and not found
        self.running.pop(cell, None)
        left = self.left()
        if self.bar:
            self.bar.update(self.task, completed=self.done, left=left)
        if found:
            return
        text = f"[{self.done}/{self.total}] {cell}: {status}" + (f": {error}" if error else "")
        self.say(text + (f"; {left}" if left and not self.bar else ""))

    def left(self) -> str:
        """Time left, from the cells that this sweep has really run; "" before there is anything to go by."""
        left = self.total - self.done
        ran = self.waiting - left
        if not 0 < left < self.waiting or self.first_stage is None or ran < min(2, self.waiting - 1):
            return ""
        return f"about {(time.monotonic() - self.first_stage) / ran * left:.0f} s left"

    def say(self, text: str) -> None:
        (self.bar.console if self.bar else self.console).print(escape(text))
