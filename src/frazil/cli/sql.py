"""`frazil sql`."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, command, new_app

app = new_app("Query and modify tables with SQL.")


class EngineChoice(StrEnum):
    auto = "auto"
    duckdb = "duckdb"
    spark = "spark"


class SqlOutput(StrEnum):
    text = "text"
    json = "json"
    csv = "csv"
    parquet = "parquet"


@command(app, example='frazil sql "SELECT * FROM demo.photos LIMIT 5" --output csv', no_args_is_help=True)
def sql(
    run: Run,
    statement: Annotated[str, typer.Argument(help="one SQL statement; - reads it from standard input")],
    engine: Annotated[
        EngineChoice, typer.Option(help="auto: DuckDB for a SELECT on tables that it can read, else Spark")
    ] = EngineChoice.auto,
    output: Annotated[SqlOutput, typer.Option("--output", "-o", help="format of the rows")] = SqlOutput.text,
    out: Annotated[
        Path | None, typer.Option(readable=False, help="write to this file instead of standard output")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="at most this many rows [default: 1000 as text, else all]")
    ] = None,
    catalog: CatalogOption = None,
) -> None:
    """Run a statement. Rows go to standard output; engine and duration go to standard error."""
    from frazil.cli.results import check_output, write_result
    from frazil.query import run_sql

    check_output(output.value, out)
    settings = run.settings(*CATALOG_SECTIONS)
    text = sys.stdin.read() if statement == "-" else statement
    shown = limit if limit is not None else (1000 if output is SqlOutput.text else None)
    began = time.perf_counter()
    result = run_sql(text, settings, engine=engine.value, catalog=catalog, limit=shown)
    write_result(result.table, output.value, out)
    more = f" (only the first {shown}: --limit gives more)" if result.truncated else ""
    took = time.perf_counter() - began
    rows = "1 row" if result.table.num_rows == 1 else f"{result.table.num_rows} rows"
    run.printer.note(f"{rows}{more}, {result.engine}, {result.seconds:.2f} s ({took:.2f} s including start)")
