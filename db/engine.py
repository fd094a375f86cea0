"""Opening the database: URL, migration, and transactions that do not lose each other's rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from sqlalchemy import Engine, create_engine, event, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.orm import Session

PROJECT = Path(__file__).resolve().parent.parent
HEAD = "0007"
BUSY_SECONDS = 120


class DatabaseProblem(Exception):
    """The database cannot be used: what, where, and what to do."""


def state_root() -> Path:
    """The folder of the default store and database: in the project, or here when it is installed."""
    return (PROJECT if (PROJECT / "pyproject.toml").exists() else Path.cwd()) / ".paritylab"


def url_of(given: str | None = None) -> str:
    """The database's URL: what is given, else PARITYLAB_DB, else the project's SQLite file.

    A path stands for an SQLite file.
    """
    text = given or os.environ.get("PARITYLAB_DB")
    if not text:
        text = str(state_root() / "results.db")
    return text if "://" in text else f"sqlite:///{Path(text).expanduser().resolve()}"


def open_database(given: str | None = None, create: bool = True) -> Engine:
    """An engine on a database of the current schema.

    create: False for readers, to whom a missing file is an error and not a
    reason to make one. Errors: `DatabaseProblem`.
    """
    text = url_of(given)
    try:
        url = make_url(text)
        if (
            url.drivername == "postgresql"
        ):  # the driver that the project's extra brings, whatever SQLAlchemy's default is
            url = url.set(drivername="postgresql+psycopg")
        engine = create_engine(url)
    except ArgumentError as error:
        raise DatabaseProblem(f"db.url {text!r}: {error}") from error
    except ModuleNotFoundError as error:
        hint = "python -m pip install 'psycopg[binary]', which is the project's extra postgres"
        raise DatabaseProblem(f"db.url {url.render_as_string()}: {error} ({hint})") from error
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise DatabaseProblem(f"db.url {text!r}: a database in memory is gone when its sweep ends; name a file")
        prepare_sqlite(engine, url.database, create)
    try:
        refuse_foreign(engine, create)
        migrate(engine)
    except DatabaseError as error:
        raise DatabaseProblem(f"{engine.url}: {error.orig or error}") from error
    return engine


def prepare_sqlite(engine: Engine, path: str | None, create: bool) -> None:
    """WAL, a busy timeout, foreign keys, and transactions that begin as writers.

    A transaction that reads first and writes later loses against another
    writer at once, whatever the timeout; `BEGIN IMMEDIATE` waits instead.
    """
    if path and path != ":memory:":
        if not create and not Path(path).exists():
            raise DatabaseProblem(f"no database at {path}: run a sweep first, or name one with --db or PARITYLAB_DB")
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseProblem(f"{Path(path).parent} cannot be made: {error}") from error

    @event.listens_for(engine, "connect")
    def connect(connection, _record) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def refuse_foreign(engine: Engine, create: bool) -> None:
    """Leave other people's databases alone. Errors: `DatabaseProblem`."""
    with engine.connect() as connection:
        tables = set(inspect(connection).get_table_names())
    if "alembic_version" not in tables and (tables or not create):
        raise DatabaseProblem(
            f"{engine.url} is no database of paritylab's: it has {', '.join(sorted(tables)) or 'nothing'}"
        )


def migrate(engine: Engine) -> None:
    """Bring the schema to `HEAD`, once, under a file lock where the database is a file."""
    if current_revision(engine) == HEAD:
        return
    from alembic import command  # only a database that must change pays for the import
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    path = engine.url.database if engine.url.get_backend_name() == "sqlite" else None
    if path and path != ":memory:":
        with FileLock(path + ".migrate.lock"):
            upgrade(engine, config, command)
    else:
        upgrade(engine, config, command)


def upgrade(engine: Engine, config, command) -> None:
    """Errors: `DatabaseProblem` for a database that a newer paritylab has made."""
    from alembic.util import CommandError

    try:
        run_upgrade(engine, config, command)
    except CommandError as error:
        raise DatabaseProblem(
            f"{engine.url} has a schema that this version does not know ({error}): use a newer paritylab"
        ) from error


def run_upgrade(engine: Engine, config, command) -> None:
    with engine.execution_options(writes=True).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def current_revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A session for queries."""
    with Session(engine) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A transaction that begins as a writer and commits at the end."""
    with Session(engine.execution_options(writes=True)) as session, session.begin():
        yield session
