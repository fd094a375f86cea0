"""SQL for reading: whatever is asked, the connection cannot write."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, ResourceClosedError, StatementError


class SqlProblem(Exception):
    """A statement that the database refused, and why."""


def read(engine: Engine, statement: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of a statement, run where nothing can be written. Errors: `SqlProblem`.

    SQLite's ``query_only`` and PostgreSQL's read-only transactions are the
    database's own; what a statement says does not matter.
    """
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only = ON")
                connection.connection.driver_connection.set_authorizer(authorize)
            else:
                connection = connection.execution_options(postgresql_readonly=True)
            try:
                result = connection.execute(text(statement.replace(":", "\\:")))
                columns = list(result.keys())
                return columns, [dict(row) for row in result.mappings()]
            finally:
                if engine.dialect.name == "sqlite":  # the connection may be used again
                    connection.connection.driver_connection.set_authorizer(None)
                    connection.connection.driver_connection.execute("PRAGMA query_only = OFF")
    except ResourceClosedError:
        raise SqlProblem("the statement gives no rows; only queries are run here") from None
    except (DBAPIError, StatementError) as error:
        raise SqlProblem(str(getattr(error, "orig", None) or error)) from error


def authorize(action: int, first: str | None, *_rest: Any) -> int:
    """Let a statement read, and neither attach another file nor lift the restriction."""
    import sqlite3

    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and first and first.lower() not in ("table_info", "table_list", "index_list"):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
