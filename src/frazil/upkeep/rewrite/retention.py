"""Rows older than a moment leave the table, by a time column.

Options of the step:

- `column`: a timestamp or date.
- `before_us`: microseconds since 1970, UTC; rows before that leave. Rows without a time stay.
- `exact`: also rows in files that hold younger ones. Without it whole files go, once all their rows are old: that is a
  commit of metadata alone and reads no row, so that it can be done often. With it the files at the boundary are
  written anew, or get deletes, as the table's `write.delete.mode` says.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from frazil.errors import UsageError
from frazil.tables import list_data_files
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite.compact import condition, files_at
from frazil.upkeep.rewrite.deletes import both
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TYPES = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "date")


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Whole files first; then, if asked, the old rows of the others.

    Raises:
        UsageError: no such column, or one that holds no time. Nothing has changed.
    """
    column, moment = str(step.options["column"]), int(step.options["before_us"])  # type: ignore[call-overload]
    kind = _kind(table, column)
    whole = run_rewrite(context, table, "retention", lambda turn: _remove_files(turn, column, kind, moment))
    if not step.options.get("exact") or whole.result not in ("done", "nothing"):
        return whole
    rows = run_rewrite(context, table, "retention", lambda turn: _delete_rows(turn, column, kind, moment))
    return both(whole, rows)


def _kind(table: Table, column: str) -> str:
    try:
        kind = str(table.schema().find_type(column))
    except ValueError as error:
        raise UsageError(
            f"'{column}' is no column of {'.'.join(table.name())}",
            cause=f"there are {', '.join(table.schema().column_names)}",
            hint="upkeep.policy.retention_column: a timestamp or date",
        ) from error
    if kind not in _TYPES:
        raise UsageError(
            f"rows cannot leave by '{column}': it is a {kind}", hint="retention_column: a timestamp or date"
        )
    return kind


def _remove_files(turn: RewriteCommit, column: str, kind: str, moment: int) -> None:
    from pyiceberg.expressions.parser import parse
    from pyiceberg.expressions.visitors import ROWS_MUST_MATCH, _StrictMetricsEvaluator

    with turn.step("plan"):
        test = _StrictMetricsEvaluator(turn.table.schema(), parse(f"{column} < '{_text(kind, moment)}'"))
        files = list_data_files(turn.context.store, turn.table)
        old = {str(f.file_path) for f in files if test.eval(f) == ROWS_MUST_MATCH}
    if not old:
        raise NothingToDoError("no file has only rows of that age")
    # A file that somebody has written anew meanwhile is a conflict: its old rows are in another one now.
    delete = turn.java.newDelete().validateFilesExist()
    for key, value in turn.properties.items():
        delete = delete.set(key, value)
    with turn.step("commit"):
        # As files, never by path: for a text py4j takes another method of that name, which deletes from storage.
        for file in files_at(turn, condition(turn, _condition(column, kind, moment)), old):
            delete = delete.deleteFile(file)
        delete.commit()


def _delete_rows(turn: RewriteCommit, column: str, kind: str, moment: int) -> None:
    old = _condition(column, kind, moment)
    session = turn.context.spark().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for key, value in turn.properties.items():
        session.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
    target = turn.context.sql_name(turn.table)
    with turn.step("rows"):
        if session.sql(f"SELECT 1 FROM {target} WHERE {old} LIMIT 1").isEmpty():  # noqa: S608 - quoted, typed
            raise NothingToDoError("no row is of that age")
        session.sql(f"DELETE FROM {target} WHERE {old}").collect()  # noqa: S608


def _moment(microseconds: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=microseconds)


def _text(kind: str, microseconds: int) -> str:
    moment = _moment(microseconds)
    if kind == "date":
        return moment.date().isoformat()
    return moment.isoformat() if "tz" in kind else moment.replace(tzinfo=None).isoformat()


def _condition(column: str, kind: str, microseconds: int) -> str:
    name = ".".join(f"`{part}`" for part in column.split("."))
    return f"{name} < {_literal(kind, microseconds)}"


def _literal(kind: str, microseconds: int) -> str:
    """As Spark writes it; the session is in UTC."""
    name = "DATE" if kind == "date" else "TIMESTAMP" if "tz" in kind else "TIMESTAMP_NTZ"
    return f"{name} '{_text(kind, microseconds)}'"
