"""Inserts many rows at once, as fast as each driver can."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar, cast

import orjson
from sqlalchemy import ColumnElement, Connection, Dialect, Select, Table, Text, any_, bindparam, func, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeDecorator

from frazil.documents.sql.failures import classify

T = TypeVar("T")
#: Rows that are Python objects at once: those of more rows do not stay in the cache of the processor.
CACHED_ROWS = 2_000
#: PostgreSQL takes at most 32,767 parameters.
_MAX_PARAMETERS = 30_000
#: Rows from which COPY pays.
_COPY_FROM = 50
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class _JsonList(TypeDecorator[Sequence[str]]):
    """A list of texts as one parameter."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return orjson.dumps(value).decode()


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
    # Its driver would send the rows one by one, and takes long for many parameters.
    if len(rows) >= _COPY_FROM and not replace:
        _copy_in(connection, table, rows)
        return
    start, values, rest = _split(statement)
    for chunk in chunks(rows, _MAX_PARAMETERS // len(table.columns)):
        sql = f"{start}{', '.join([values] * len(chunk))}{rest}"
        connection.exec_driver_sql(sql, tuple(value for row in chunk for value in row))


def stream_rows(connection: Connection, query: Select[Any]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yields the rows of one statement, all of one moment, a part of them at a time."""
    if connection.dialect.name == "sqlite":  # half the time without SQLAlchemy's rows
        made = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(str(made))
            while rows := cursor.fetchmany(CACHED_ROWS):
                yield rows
        return
    for some in connection.execution_options(yield_per=CACHED_ROWS).execute(query).partitions():
        yield list(map(tuple, some))


def chunks(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def is_among(dialect: str, column: ColumnElement[str]) -> ColumnElement[bool]:
    """Returns the condition that a column has one of the values of the parameter `ids`, which is a list."""
    if dialect == "postgresql":  # its driver takes long for many parameters, and less for an array
        return column == any_(bindparam("ids", type_=postgresql.ARRAY(Text)))
    if dialect == "sqlite":  # SQLAlchemy takes long for many parameters, and SQLite has a limit of them
        return column.in_(select(func.json_each(bindparam("ids", type_=_JsonList)).table_valued("value").c.value))
    return column.in_(bindparam("ids", expanding=True))


def _copy_in(connection: Connection, table: Table, rows: Sequence[Sequence[Any]]) -> None:
    """Sends rows to PostgreSQL in the text format of COPY."""
    text = "".join(["\t".join([_copied(value) for value in row]) + "\n" for row in rows])
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    driver = cast("Any", connection.connection.driver_connection)
    statement = f"COPY {table.name} ({names}) FROM STDIN"
    try:
        with closing(driver.cursor()) as cursor:
            cursor.execute(statement, stream=BytesIO(text.encode()))
    except (cast("Any", connection.dialect).dbapi.Error, OSError) as error:
        failure = DBAPIError(statement, None, error)
        if classify(failure) == "lost":
            connection.invalidate()
        raise failure from error


def _copied(value: Any) -> str:
    if isinstance(value, str):
        return value.translate(_COPY_ESCAPES) if not value.isalnum() else value
    return "\\N" if value is None else str(value)


def copy_rows(dialect: str, table: Table, source: Select[Any]) -> Any:
    """Returns the statement that inserts what a query returns; rows with the same key are replaced.

    Args:
        dialect: of the database.
        table: where to.
        source: has the columns of the table, in their order.
    """
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
