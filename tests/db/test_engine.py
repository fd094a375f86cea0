"""The database opens, migrates once, and loses no row to another writer."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from datetime import datetime

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, func, insert, select

from db import engine as database
from db.models import Base, CellRest, Machine, Result
from runner import paths

WRITER = """
import sys
from sqlalchemy import func, select
from db import engine as database
from db.models import Machine
engine = database.open_database(sys.argv[1])
for n in range(40):
    with database.writing(engine) as session:
        count = session.scalar(select(func.count(Machine.id)))
        name = f"{sys.argv[2]}-{n}"
        session.add(Machine(hash=name, host=str(count), system="", processor="", cores=1, memory_bytes=1))
"""


def test_the_schema_is_what_the_migrations_make(tmp_path):
    engine = database.open_database(str(tmp_path / "x.db"))
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    assert differences == []


def test_head_is_the_newest_migration():
    scripts = ScriptDirectory(str(paths.PROJECT / "db" / "migrations"))
    assert scripts.get_current_head() == database.HEAD


# What every result of revision 0006 must have.
OLD_RESULT = {
    "status": "ok", "final": True, "created": datetime(2026, 1, 1), "measurement_version": 2,
    **dict.fromkeys(("prompts_count", "identical_count", "non_finite_count"), 0),
}  # fmt: skip


@contextlib.contextmanager
def database_of_0006(path: str):
    """(a connection, its tables) of a database as revision 0006 left it."""
    config = Config()
    config.set_main_option("script_location", str(paths.PROJECT / "db" / "migrations"))
    old = create_engine(f"sqlite:///{path}")
    tables = MetaData()
    with old.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0006")
        tables.reflect(connection)
        yield connection, tables.tables
    old.dispose()


def test_a_database_with_data_gets_the_number_of_wrong_constants(tmp_path):
    path = str(tmp_path / "x.db")
    with database_of_0006(path) as (connection, tables):
        keys = {1: "some wrong", 2: "all right", 3: None}
        rows = [{**OLD_RESULT, "id": n, "constants_key": key} for n, key in keys.items()]
        connection.execute(insert(tables["result"]), rows)
        verdicts = [(keys[1], v) for v in ("same", "dropped", "differs", "unread")] + [(keys[2], "rounded")]
        constant = {"kind": "rope", "what": "all layers", "says": ""}
        rows = [{**constant, "constants_key": k, "position": n, "verdict": v} for n, (k, v) in enumerate(verdicts)]
        connection.execute(insert(tables["constant_value"]), rows)
    with database.reading(database.open_database(path)) as session:
        found = dict(session.execute(select(Result.id, Result.constants_wrong)).all())
    assert found == {1: 2, 2: 0, 3: None}


def test_old_failures_of_the_moment_are_no_findings_any_more(tmp_path):
    path = str(tmp_path / "x.db")
    ends = {
        1: {"error_type": "KeyError", "error": "'rope_type'", "failed_stage": "export"},
        2: {"error_type": "_ArrayMemoryError", "error": "Unable to allocate 3. GiB", "failed_stage": "export"},
        3: {"error_type": "Exit", "exit_code": 70, "error": "export crashed (exit code 70)", "failed_stage": "export"},
        4: {"error_type": "SIGABRT", "stderr_tail": "std::bad_alloc", "error": "crashed", "failed_stage": "export"},
        5: {"error_type": "ValueError", "error": "x", "failed_stage": "compare", "status": "run_failed"},
        6: {"error_type": "RuntimeError", "error": "9 requested and 0 written", "failed_stage": "export"},
        7: {"error_type": "RuntimeError", "error": "can't start new thread", "failed_stage": "export"},
    }
    texts = ("hash", "builder", "patch", "model", "dtype", "layers", "runtime", "backend", "precision", "prompts",
             "reference", "max_new_tokens", "threads", "options")  # fmt: skip
    with database_of_0006(path) as (connection, tables):
        about = {"state": "done", "action": "run", "overrides": [], "host": "h", "pid": 1, "version": "1"}
        connection.execute(insert(tables["sweep"]), [{**about, "id": 1, "started": datetime(2026, 1, 1)}])
        columns = {"status": "export_failed", **dict.fromkeys(("exit_code", "stderr_tail"))}
        rows = [{**OLD_RESULT, **columns, **end, "id": n} for n, end in ends.items()]
        connection.execute(insert(tables["result"]), rows)
        cell = {**dict.fromkeys(texts, "v"), "config": {}, "found": False, "sweep_id": 1}
        rows = [{**cell, "id": n, "position": n, "result_id": n} for n in ends]
        connection.execute(insert(tables["cell"]), rows)
        rows = [{"axis": 0, "rest": n, "cell_id": n, "verdict": 5} for n in ends]
        connection.execute(insert(tables["cell_rest"]), rows)
    with database.reading(database.open_database(path)) as session:
        final = set(session.scalars(select(Result.id).where(Result.final)))
        assert final == {1, 5}
        assert session.scalars(select(CellRest.cell_id)).all() == [1]


def test_writers_side_by_side_lose_nothing(tmp_path):
    path = tmp_path / "x.db"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(n)], cwd=paths.PROJECT) for n in range(4)]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    with database.reading(database.open_database(str(path))) as session:
        assert session.scalar(select(func.count(Machine.id))) == 160
        # Each read the count of all before it: reading and writing was one step.
        assert set(session.scalars(select(Machine.host))) == {str(n) for n in range(160)}


def test_a_reader_does_not_make_a_database(tmp_path):
    with pytest.raises(database.DatabaseProblem, match="run a sweep first"):
        database.open_database(str(tmp_path / "none.db"), create=False)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_is_refused_and_kept(tmp_path):
    path = tmp_path / "x.db"
    path.write_text("my thesis, the only copy")
    with pytest.raises(database.DatabaseProblem, match="not a database"):
        database.open_database(str(path))
    assert path.read_text() == "my thesis, the only copy"


def test_a_newer_schema_is_refused(tmp_path):
    engine = database.open_database(str(tmp_path / "x.db"))
    with database.writing(engine) as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(database.DatabaseProblem, match="9999"):
        database.open_database(str(tmp_path / "x.db"))


@pytest.mark.parametrize("url", ["nosuch://x", "://"])
def test_a_bad_url_is_named(url):
    with pytest.raises(database.DatabaseProblem, match="//"):
        database.open_database(url)


def test_where_the_database_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PARITYLAB_DB", str(tmp_path / "named.db"))
    assert database.url_of() == f"sqlite:///{tmp_path / 'named.db'}"
    assert database.url_of("postgresql://x/y") == "postgresql://x/y"
    monkeypatch.delenv("PARITYLAB_DB")
    assert database.url_of().endswith(".paritylab/results.db")


def test_other_peoples_databases_are_left_alone(tmp_path):
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE thesis (word TEXT)")
    for create in (True, False):
        with pytest.raises(database.DatabaseProblem, match="thesis"):
            database.open_database(str(path), create=create)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("thesis",)]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(database.DatabaseProblem, match="in memory"):
        database.open_database(url)


def test_a_database_that_cannot_be_opened_keeps_its_password():
    with pytest.raises(database.DatabaseProblem) as caught:
        database.open_database("postgresql://user:s3cret@127.0.0.1:1/lab", create=False)
    assert "s3cret" not in str(caught.value)
    assert "psycopg" in str(caught.value) or "refused" in str(caught.value)  # without the driver, and with it
