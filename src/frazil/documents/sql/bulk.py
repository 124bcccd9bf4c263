"""Inserts many rows at once, as fast as each driver can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite

T = TypeVar("T")
#: PostgreSQL takes at most 32,767 parameters.
_MAX_PARAMETERS = 30_000


def insert_rows(connection: Connection, table: Table, rows: Sequence[Sequence[Any]], *, replace: bool = False) -> None:
    """Inserts rows whose values are in the order of the table's columns.

    Args:
        connection: within a transaction.
        table: where to.
        rows: as tuples.
        replace: rows with the same primary key are replaced.
    """
    if not rows:
        return
    statement = _statement(table, connection.dialect.name, replace)
    if connection.dialect.name != "postgresql":
        connection.exec_driver_sql(statement, list(map(tuple, rows)))
        return
    # Its driver would send the rows one by one.
    start, values, rest = _split(statement)
    for chunk in chunks(rows, _MAX_PARAMETERS // len(table.columns)):
        sql = f"{start}{', '.join([values] * len(chunk))}{rest}"
        connection.exec_driver_sql(sql, tuple(value for row in chunk for value in row))


def chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


@lru_cache(maxsize=64)
def _statement(table: Table, dialect: str, replace: bool) -> str:
    keys = [column.name for column in table.primary_key]
    changed = [column.name for column in table.columns if column.name not in keys]
    # Modules of SQLAlchemy that have the same functions.
    sql: Any = {"postgresql": postgresql, "sqlite": sqlite}.get(dialect, mysql)
    made = sql.insert(table)
    if replace and dialect in ("postgresql", "sqlite"):
        made = made.on_conflict_do_update(index_elements=keys, set_={name: made.excluded[name] for name in changed})
    elif replace:
        made = made.on_duplicate_key_update({name: made.inserted[name] for name in changed})
    return str(made.compile(dialect=sql.dialect(paramstyle="qmark" if dialect == "sqlite" else "format")))


def _split(statement: str) -> tuple[str, str, str]:
    """Splits `INSERT … VALUES (…) …` around the parenthesis with the values."""
    start = statement.index("VALUES (") + len("VALUES ")
    end = statement.index(")", start) + 1
    return statement[:start], statement[start:end], statement[end:]
