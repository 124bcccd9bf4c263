"""Inserts many rows at once, as fast as each driver can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table
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


def copy_rows(connection: Connection, table: Table, source: Select[Any], parameters: Mapping[str, Any]) -> None:
    """Inserts the rows of a query, which has the columns of the table; they replace rows with the same key."""
    connection.execute(_copy(table, source, connection.dialect.name), parameters)


@lru_cache(maxsize=64)
def _copy(table: Table, source: Select[Any], dialect: str) -> Any:
    made = _sql(dialect).insert(table).from_select([column.name for column in table.columns], source)
    return _replacing(made, table, dialect)


@lru_cache(maxsize=64)
def _statement(table: Table, dialect: str, replace: bool) -> str:
    sql = _sql(dialect)
    made = sql.insert(table)
    if replace:
        made = _replacing(made, table, dialect)
    return str(made.compile(dialect=sql.dialect(paramstyle="qmark" if dialect == "sqlite" else "format")))


def _replacing(made: Any, table: Table, dialect: str) -> Any:
    keys = [column.name for column in table.primary_key]
    changed = [column.name for column in table.columns if column.name not in keys]
    if dialect in ("postgresql", "sqlite"):
        return made.on_conflict_do_update(index_elements=keys, set_={name: made.excluded[name] for name in changed})
    return made.on_duplicate_key_update({name: made.inserted[name] for name in changed})


def _sql(dialect: str) -> Any:
    """Returns one of the modules of SQLAlchemy that have the same functions for each database."""
    return {"postgresql": postgresql, "sqlite": sqlite}.get(dialect, mysql)


def _split(statement: str) -> tuple[str, str, str]:
    """Splits `INSERT … VALUES (…) …` around the parenthesis with the values."""
    start = statement.index("VALUES (") + len("VALUES ")
    end = statement.index(")", start) + 1
    return statement[:start], statement[start:end], statement[end:]
