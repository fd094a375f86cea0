"""``python -m benchmarks.marginal``: what one tiny cell more costs, against the bare work in it.

Timed: ``python -m runner`` on N cells and on 2 N, each from a store without
artifacts, and the slope between them, so that start-up and imports cancel;
with the runner's jobs at a time and with one. Every cell has an export and a
candidate of its own (dtype x patch; the further N have a layer less). A
reference, and a cast or cut checkpoint, is made once a dtype and layer count,
as in real sweeps. The bare work is the further N cells' builder runs,
references and candidates in one process after its imports; checkpoints are
given to it, and it records nothing. Not timed: environments, sources, overlays.

The runner's own cost: the slope between one cell and 2 N, all of them finished.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import func, select

from benchmarks import common, compare
from benchmarks.common import Run
from db.engine import open_database, reading
from db.models import StageRun

LAYERS = ("all", "5")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.marginal", description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, choices=(2, 4, 6, 8), default=8, help="N")
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many is taken")
    parser.add_argument("--environments", type=Path, default=common.default_environments(), help="a store's folder")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the runner, such as model.path=DIR")
    return parser


def slope(few: Run, many: Run, further: int) -> Run:
    """Wall and CPU seconds a further cell."""
    return Run((many.seconds - few.seconds) / further, (many.cpu_seconds - few.cpu_seconds) / further, [])


def measure(cells: int, repeats: int, environments: Path, extra: Sequence[str], folder: Path) -> dict[str, Run]:
    """Seconds a cell, by what was timed; "stage NAME" is that stage's share with one job."""
    few, many = ([f"layers={','.join(LAYERS[:n])}", *compare.overrides_of(cells, extra)] for n in (1, 2))
    lab = Lab(environments, folder, many)
    common.run_lab(few, lab.fresh(), environments)  # not counted: byte code and page cache
    found: dict[str, Run] = {}
    for name, jobs in {"runner": [], "runner, jobs=1": ["jobs=1"]}.items():
        first, all_of_them = lab.least(repeats, [*few, *jobs]), lab.least(repeats, [*many, *jobs])
        found[name] = slope(first, all_of_them, cells)
        found[f"{name}, the first {cells}"] = Run(first.seconds / cells, first.cpu_seconds / cells, [])
    last = lab.last
    for name, seconds in stage_seconds(last / "results.db").items():
        found[f"stage {name}"] = Run(seconds / (2 * cells), 0.0, [])
    two = [f"layers={LAYERS[0]}", *compare.overrides_of(2, extra)]
    found["finished"] = slope(lab.least(3 * repeats, two, last), lab.least(3 * repeats, many, last), 2 * cells - 2)
    further = [f"layers={LAYERS[1]}", *compare.overrides_of(cells, extra)]
    asked = common.harness_cells(folder / "bare", environments, common.cells_of(further))
    asked["cells"].sort(key=lambda cell: cell["builder"])
    bare = [common.call_script("bare_work.py", asked["python"], asked, folder).rows for _ in range(repeats)]
    found["bare work"] = Run(
        *(min(sum(row[key] for row in rows) for rows in bare) / cells for key in ("seconds", "cpu_seconds")), []
    )
    return found


class Lab:
    """Fresh stores with everything but artifacts, and timed runs on them; `last` is the newest."""

    def __init__(self, environments: Path, folder: Path, overrides: Sequence[str]):
        self.environments, self.folder = environments, folder
        self.cells = common.cells_of(overrides)
        self.last, self.count = folder, 0

    def fresh(self) -> Path:
        self.count += 1
        self.last = self.folder / str(self.count)
        common.prepare(self.last / "store", self.environments, self.cells)
        return self.last

    def least(self, repeats: int, overrides: Sequence[str], folder: Path | None = None) -> Run:
        """The least seconds of some runs, on `folder` or each on a fresh store: other work slows the rest."""
        runs = [common.run_lab(overrides, folder or self.fresh(), self.environments) for _ in range(repeats)]
        return Run(min(run.seconds for run in runs), min(run.cpu_seconds for run in runs), [])


def stage_seconds(database: Path) -> dict[str, float]:
    """Seconds in each stage's processes, over all cells of a database."""
    engine = open_database(str(database), create=False)
    query = select(StageRun.stage, func.sum(StageRun.seconds)).where(StageRun.found.is_(False))
    with reading(engine) as session:
        rows = session.execute(query.group_by(StageRun.stage)).all()
    engine.dispose()
    return {stage: seconds for stage, seconds in rows}


def report(found: dict[str, Run], cells: int) -> str:
    bare = found["bare work"]
    named = {"bare work, one process": bare, **{name: found[name] for name in ("runner", "runner, jobs=1")}}
    rows = [[name, run.seconds, run.seconds / bare.seconds, run.cpu_seconds] for name, run in named.items()]
    further = common.table(["A further tiny cell", "Seconds", "Times the bare work", "CPU seconds"], rows)
    named = {f"{name}, start-up included": run for name, run in found.items() if name.endswith(f"the first {cells}")}
    named["a finished cell, looked up and recorded again"] = found["finished"]
    named |= {f"in a cell with jobs=1: {name}": run for name, run in found.items() if name.startswith("stage ")}
    rows = [[name, run.seconds, run.cpu_seconds or ""] for name, run in named.items()]
    return f"{further}\n\n{common.table(['A cell', 'Seconds', 'CPU seconds'], rows)}"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    machine = common.machine_line()
    with tempfile.TemporaryDirectory(prefix="paritylab-") as folder:
        found = measure(asked.cells, asked.repeats, asked.environments, asked.overrides, Path(folder))
    print(report(found, asked.cells))
    print(f"\nThe least of {asked.repeats} runs each. The runner uses every core, the bare work one. {machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
