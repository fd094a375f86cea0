"""What reports say of results that an older version of the measuring made."""

from __future__ import annotations

import pytest
import rows
from typer.testing import CliRunner

from db import pairs, query, record
from db.engine import open_database
from db.models import MEASUREMENT_VERSION
from reports import older
from reports.__main__ import app


@pytest.fixture
def engine(tmp_path):
    return open_database(str(tmp_path / "results.db"))


def stored(engine, factors: list[dict], versions: list[int], worst: float = 1, overrides=("-m",)) -> list[int]:
    """One sweep's cells, each measured by a version."""
    _, ids = record.begin_sweep(engine, list(overrides), "1", [rows.cell(**each) for each in factors])
    for cell, version in zip(ids, versions, strict=True):
        result = rows.ok(rows.prompt("p", worst, worst), hash=f"{cell}", measurement_version=version)
        record.record_result(engine, cell, result, rows.PATCH)
    return ids


PATCHES = [{"patch": "none", "builder": "0.18.0"}, {"patch": "a+b", "builder": "0.18.0"}]


def test_nothing_is_said_of_one_version(engine):
    stored(engine, PATCHES, [MEASUREMENT_VERSION] * 2)
    assert older.lines(engine, query.cell_rows(engine)) == []


def test_what_this_program_would_measure_otherwise_is_told_though_nothing_newer_is_stored(engine):
    stored(engine, PATCHES, [1, MEASUREMENT_VERSION - 1])
    one, two = older.lines(engine, query.cell_rows(engine))
    newest = MEASUREMENT_VERSION
    assert f"Cell 1: measured by version 1, left out beside those of version {newest - 1};" in one
    assert f"Cell 2: measured by version {newest - 1}, shown, though the newest is {newest};" in two
    assert older.of_builders(engine, {})[1] == two  # the history shows what it has


def test_a_whole_sweep_is_measured_again_by_its_own_command(engine):
    stored(engine, PATCHES, [2, 2], overrides=("-m", "builder=0.18.0", "patch=none,[a,b]", "rerun=failed"))
    stored(engine, [{"patch": "c"}], [3])
    (line,) = older.lines(engine, query.cell_rows(engine))
    assert line == (
        "Cells 1, 2: measured by version 2, left out beside those of version 3; measure again:"
        " `python -m runner -m builder=0.18.0 'patch=none,[a,b]'`"
    )


def test_some_cells_of_a_sweep_have_commands_of_their_own(engine):
    stored(engine, PATCHES, [2, 3], overrides=("-m", "patch=none,[a,b]"))
    (line,) = older.lines(engine, query.cell_rows(engine))
    assert line.startswith("Cell 1: measured by version 2") and line.endswith("`python -m runner -m patch=none`")
    assert "'patch=[a,b]'" not in line


def test_what_a_newer_version_measured_too_is_not_listed(engine):
    stored(engine, PATCHES, [2, 2])
    stored(engine, PATCHES, [3, 3])
    assert older.lines(engine, query.cell_rows(engine)) == []


def test_rows_that_are_all_old_are_shown_and_said_to_be(engine):
    first, _ = stored(engine, PATCHES, [2, 2])
    stored(engine, [{"patch": "c"}], [3])
    (line,) = older.lines(engine, query.cell_rows(engine, {"patch": ["none"]}))
    assert line.startswith(f"Cell {first}: measured by version 2, shown, though the newest is 3; measure again: ")


def test_a_pair_has_no_side_of_an_older_version(engine):
    stored(engine, [PATCHES[0]], [2], worst=9)
    stored(engine, [PATCHES[1]], [3])
    stored(engine, [{**PATCHES[1], "patch": "c"}], [3])
    assert pairs.pair_rows(engine, {}, ["patch"]) == []
    stored(engine, [PATCHES[0]], [3], worst=9)
    assert [pair["worse"]["patch"] for pair in pairs.pair_rows(engine, {}, ["patch"])] == ["none"]


@pytest.mark.parametrize(
    "report", ["proof", "pairs", "noise", "depth", "history", "regressions", "constants", "families", "sweep"]
)
def test_every_report_lists_them(engine, tmp_path, report):
    family = {"model": "random_x", "builder": "0.18.0"}
    stored(engine, [{**family, "patch": "none"}, {**family, "patch": "a"}], [2, 2], overrides=("-m", "patch=none,a"))
    stored(engine, [{**family, "patch": "b"}], [3])
    one = ["--sweep", "1"] if report in ("constants", "families", "sweep") else []
    of_all = ["--model", "random_x"] if report in ("proof", "history", "regressions") else []
    if report in ("history", "regressions"):
        of_all += ["--patch", "none", "--patch", "a", "--patch", "b"]
    done = CliRunner().invoke(app, [report, *one, *of_all, "--db", str(tmp_path / "results.db")])
    assert done.exit_code == 0, done.output
    last = done.output.rstrip().splitlines()[-1]
    assert last.startswith("- Cells 1, 2: measured by version 2") and last.endswith(
        "`python -m runner -m patch=none,a`"
    )
