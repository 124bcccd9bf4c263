"""SQL over the tables, on Spark or DuckDB."""

from frazil.query.engine import Engine, Result, run_sql

__all__ = ["Engine", "Result", "run_sql"]
