"""SQL for reading: whatever is asked, the connection cannot write."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, ResourceClosedError, StatementError

QUERIES = ("select", "with", "values", "explain", "show", "table")


class SqlProblem(Exception):
    """A statement that the database refused, and why."""


def read(engine: Engine, statement: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of a statement, run where nothing can be written. Errors: `SqlProblem`.

    SQLite's ``query_only`` and authorizer are the database's own. PostgreSQL's
    read-only transaction is too, but a statement that ends it could begin
    another: there one query is run, and nothing that is none.
    """
    sqlite = engine.dialect.name == "sqlite"
    if not sqlite:
        refuse_all_but_a_query(statement)
    try:
        with engine.connect() as connection:
            if sqlite:
                connection.exec_driver_sql("PRAGMA query_only = ON")
                connection.connection.driver_connection.set_authorizer(authorize)
            else:
                connection = connection.execution_options(postgresql_readonly=True)
            try:
                result = connection.execute(text(statement.replace(":", "\\:")))
                columns = apart(list(result.keys()))
                return columns, [dict(zip(columns, row, strict=True)) for row in result]
            finally:
                if sqlite:  # the connection may be used again
                    connection.connection.driver_connection.set_authorizer(None)
                    connection.connection.driver_connection.execute("PRAGMA query_only = OFF")
    except ResourceClosedError:
        raise SqlProblem("the statement gives no rows; only queries are run here") from None
    except UnicodeEncodeError:
        raise SqlProblem("the statement is not text") from None
    except (DBAPIError, StatementError) as error:
        raise SqlProblem(str(getattr(error, "orig", None) or error)) from error


def refuse_all_but_a_query(statement: str) -> None:
    """Errors: `SqlProblem` for several statements, and for one that is no query."""
    if ";" in statement.strip().rstrip(";"):
        raise SqlProblem("one statement at a time, and no ';' within it")
    first = statement.split(None, 1)[0].lower() if statement.split() else ""
    if first not in QUERIES:
        raise SqlProblem(f"{first or 'nothing'} is no query; allowed: {', '.join(QUERIES)}")


def apart(columns: list[str]) -> list[str]:
    """Names of columns, numbered where two are the same."""
    return [name if columns.index(name) == n else f"{name}_{n + 1}" for n, name in enumerate(columns)]


def authorize(action: int, first: str | None, *_rest: Any) -> int:
    """Let a statement read, and neither attach another file nor lift the restriction."""
    import sqlite3

    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and first and first.lower() not in ("table_info", "table_list", "index_list"):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
