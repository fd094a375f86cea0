"""What a sweep shows, on a terminal of any width and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from runner.progress import SweepProgress


def shown(width: int, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, soft_wrap=True)
    with SweepProgress(3, console) as progress:
        progress.preparing("planning")
        progress.cell("a found one", "ok", found=True)
        progress.planned(2)
        progress.stage("model [bf16] 0.18.0 patch", "export")
        progress.cell("model [bf16] 0.18.0 patch", "export_failed", found=False, error="KeyError: 'x'")
        if progress.bar:
            progress.bar.refresh()
        progress.cell("another", "ok", found=False)
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    lines = shown(80, terminal=False).splitlines()
    assert lines[0] == "3 cells: 1 found, 2 to run"
    assert lines[1] == "  model [bf16] 0.18.0 patch: export"
    assert lines[2].startswith("[2/3] model [bf16] 0.18.0 patch: export_failed: KeyError: 'x'; about ")
    assert lines[2].endswith("s left") and lines[3] == "[3/3] another: ok"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_count_and_the_time_left_are_never_crowded_out(width):
    text = shown(width, terminal=True)
    assert "2/3" in text and "s left" in text and "export" in text


def test_one_cell_is_not_one_cells():
    out = io.StringIO()
    SweepProgress(1, Console(file=out)).planned(1)
    assert out.getvalue().startswith("1 cell:")
