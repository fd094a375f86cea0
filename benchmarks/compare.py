"""``python -m benchmarks.compare``: the plain harness against the runner, on the same cells.

Timed: `plain_harness.py` from its start to its end, and ``python -m runner``
likewise, from a store without artifacts and a new database, with as many jobs
at a time as it takes by itself and with one. Not timed, for either:
environments, builder sources, overlays, and one run before, which leaves byte
code and page cache warm. The harness is given cast checkpoints; the runner
makes its own.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import common
from benchmarks.common import Run
from reports.table import span

AXES = {
    "dtype": ["bf16", "fp32"],
    "patch": ["none", "norm_offset_fp32", "embed_scale_exact", "gemma_precision"],
}
MODEL = ["model=tiny_gemma2", "builder=0.18.0"]
CELLS = (2, 4, 6, 8, 16)  # 16: with five of the six layers too


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, choices=CELLS, default=8, help="how many tiny cells")
    parser.add_argument("--out", type=Path, help="a file that gets the tables too")
    parser.add_argument("--environments", type=Path, default=common.default_environments(), help="a store's folder")
    parser.add_argument(
        "--no-byte-code", action="store_true", help="the harness finds and keeps none, as with PYTHONDONTWRITEBYTECODE"
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the runner, such as model.path=DIR")
    return parser


def overrides_of(cells: int, extra: Sequence[str] = ()) -> list[str]:
    """The sweep's overrides, with as many patches as `cells` needs."""
    patches = AXES["patch"][: cells // len(AXES["dtype"])]
    layers = ["layers=all,5"] if cells == 16 else []
    return [*MODEL, *layers, f"dtype={','.join(AXES['dtype'])}", f"patch={','.join(patches)}", *extra]


def first_diffs(rows: Sequence[dict]) -> list[list[float]]:
    """The runner's first-token diffs, one list a cell in the sweep's order."""
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["cell"], []).append(row["first_logits_max_abs_diff"])
    return list(found.values())


def agree(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether two lists of diffs are the same up to the noise of fp32 logits."""
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=0.02, abs_tol=2e-6) for a, b in zip(ours, theirs, strict=True)
    )


def measure(overrides: list[str], environments: Path, byte_code: bool, folder: Path) -> tuple[Run, dict[str, Run]]:
    """The harness's run, and the runner's by the name of their setting."""
    cells = common.cells_of(overrides)
    stores = {name: folder / name for name in ("plain", "warm_up", "several", "one")}
    for store in stores.values():
        common.prepare(store / "store", environments, cells)
    asked = common.harness_cells(stores["plain"] / "store", environments, cells)
    common.run_lab(overrides, stores["warm_up"], environments)
    warm_up = asked | {"cells": asked["cells"][:1]}
    common.call_script("plain_harness.py", sys.executable, warm_up, stores["plain"], byte_code)
    measured = {
        "as it comes": common.run_lab(overrides, stores["several"], environments),
        "jobs=1": common.run_lab([*overrides, "jobs=1"], stores["one"], environments),
    }
    return common.call_script("plain_harness.py", sys.executable, asked, stores["plain"], byte_code), measured


def report(harness: Run, runs: dict[str, Run]) -> tuple[str, bool]:
    """The tables, and whether both gave the same diffs everywhere."""
    count = len(harness.rows)
    rows = [
        [name, run.seconds, run.cpu_seconds, run.seconds / count, harness.seconds / run.seconds]
        for name, run in {"plain harness": harness, **{f"runner, {name}": run for name, run in runs.items()}}.items()
    ]
    totals = common.table([f"{count} cells", "Seconds", "CPU seconds", "Seconds a cell", "Times faster"], rows)
    found = [first_diffs(run.rows) for run in runs.values()]
    body, good = [], True
    for n, line in enumerate(harness.rows):
        same = all(agree(line["first_diffs"], diffs[n]) for diffs in found)
        good = good and same
        both = [span(min(diffs), max(diffs)) for diffs in (line["first_diffs"], found[0][n])]
        body.append([line["name"], line["seconds"], *both, "yes" if same else "NO"])
    header = ["Cell", "Harness, seconds", "Harness, first-token diffs", "Runner, first-token diffs", "Same"]
    return f"{totals}\n\n{common.table(header, body)}", good


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    machine = common.machine_line()
    with tempfile.TemporaryDirectory(prefix="paritylab-") as folder:
        measured = measure(
            overrides_of(asked.cells, asked.overrides), asked.environments, not asked.no_byte_code, Path(folder)
        )
    text, good = report(*measured)
    text = f"{text}\n\n{machine}"
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
