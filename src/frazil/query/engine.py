"""Runs a statement on the engine that was asked for, or on the lightest one that can do it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, SetupError, UnsupportedError
from frazil.query.duck import DialectError, DuckQuery
from frazil.query.statements import require_one_statement
from frazil.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

Engine = Literal["spark", "duckdb", "auto"]


@dataclass(frozen=True)
class Result:
    """A statement's rows, the engine that made them, and how long it took without the engine's start."""

    table: pa.Table
    engine: str
    seconds: float
    truncated: bool = False


def run_sql(
    statement: str,
    settings: Settings,
    *,
    engine: Engine = "auto",
    catalog: str | None = None,
    limit: int | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> Result:
    """Runs one statement.

    Args:
        statement: SQL; tables as namespace.table or catalog.namespace.table.
        settings: the settings, with the catalogs.
        engine: `auto` takes DuckDB for a SELECT over tables that it can read, and Spark for all else.
        catalog: the catalog of names that do not say; the default one otherwise.
        limit: fetch at most this many rows.
        spark: gives a session that the caller closes; None: one is started for the statement.
    """
    require_one_statement(statement)
    chosen = settings.catalog(catalog)
    obstacle: FrazilError | None = None
    if engine != "spark":
        try:
            return _run_on_duckdb(DuckQuery.parse(statement, chosen, settings.model.network), limit)
        except FrazilError as error:
            if engine == "duckdb" or not isinstance(error, (UnsupportedError, DialectError)):
                raise
            obstacle = error
    from frazil.query.on_spark import run_on_spark
    from frazil.spark.session import check_ready

    try:
        if spark is None:
            check_ready(settings)
        open_catalog(chosen, settings.model.network)  # says within seconds what Spark would take minutes to find out
        session = None if spark is None else spark()
    except SetupError as error:
        if obstacle is not None:
            error.adding(f"and DuckDB cannot run this: {obstacle.in_one_line}")
        raise
    table, seconds, truncated = run_on_spark(statement, settings, chosen.name, limit, session)
    return Result(table, "spark", seconds, truncated)


def _run_on_duckdb(query: DuckQuery, limit: int | None) -> Result:
    query.require_readable()
    began = time.perf_counter()
    table = query.run(limit + 1 if limit is not None else None)
    truncated = limit is not None and table.num_rows > limit
    return Result(table.slice(0, limit) if truncated else table, "duckdb", time.perf_counter() - began, truncated)
