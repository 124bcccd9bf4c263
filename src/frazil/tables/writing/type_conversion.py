"""Converts rows to a table's types. Rows that do not fit are returned apart, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.column_rules import check_values
from frazil.errors import UnavailableError, UsageError


@dataclass(frozen=True)
class RejectedRow:
    """A row that the table cannot take."""

    row: int
    reason: str
    error: str


@dataclass(frozen=True)
class ConvertedRows:
    """The rows that fit, in the table's types, and those that do not."""

    rows: pa.Table
    rejected: list[RejectedRow]


def convert_rows(rows: pa.Table, schema: pa.Schema) -> ConvertedRows:
    """Rows with the columns and types of a schema, in its order; columns that the rows lack are null."""
    rejected: dict[int, RejectedRow] = {}
    columns = []
    for field in schema:
        column, found = _fitted(rows, field)
        columns.append(column)
        for row in found:
            rejected.setdefault(row.row, row)
    for row in _find_unknown_columns(rows, schema):
        rejected.setdefault(row.row, row)
    if not rejected:
        return ConvertedRows(pa.table(columns, schema=schema), [])
    keep = np.ones(rows.num_rows, bool)
    keep[list(rejected)] = False
    kept = [column.filter(pa.array(keep)) for column in columns]
    return ConvertedRows(pa.table(kept, schema=schema), [rejected[row] for row in sorted(rejected)])


def convert_all_rows(rows: pa.Table, schema: pa.Schema, what: str = "a row") -> pa.Table:
    """Returns all rows in the types of a schema.

    Args:
        rows: the rows.
        schema: the schema of the table.
        what: what one of the rows is, for the error.

    Raises:
        UnavailableError: a row does not fit, as where the columns of the table have been changed by hand. No row is
            left out, and another try sees the columns as they are by then.
    """
    found = convert_rows(rows, schema)
    if found.rejected:
        raise UnavailableError(
            f"{what} does not fit the columns of its table",
            cause=found.rejected[0].error,
            hint="give the table the columns back that it had; the next try goes on from there",
        )
    return found.rows


def _fitted(rows: pa.Table, field: pa.Field) -> tuple[pa.ChunkedArray, list[RejectedRow]]:
    at = rows.schema.get_field_index(field.name)
    if at < 0:
        column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)], field.type)
        found: list[RejectedRow] = []
    else:
        column, found = _cast(rows.column(at), field)
        bad = {m.row for m in found}
        found += [m for m in find_out_of_range(column, field) if m.row not in bad]
    if not field.nullable and column.null_count:
        bad = {m.row for m in found}
        missing = [int(row) for row in np.flatnonzero(_is_null(column)) if int(row) not in bad]
        found += [RejectedRow(row, "null", f"column '{field.name}' of the table must not be null") for row in missing]
    return column, found


def _cast(column: pa.ChunkedArray, field: pa.Field) -> tuple[pa.ChunkedArray, list[RejectedRow]]:
    if column.type == field.type:
        return column, []
    told = f"column '{field.name}' is {column.type}, the table has {field.type}"
    try:
        return column.cast(field.type), []
    except pa.ArrowNotImplementedError:
        nothing = pa.chunked_array([pa.nulls(len(column), field.type)], field.type)
        return nothing, [RejectedRow(int(row), "type", told) for row in np.flatnonzero(~_is_null(column))]
    except pa.ArrowException:
        return _cast_by_halves(column, field, told)


def _cast_by_halves(column: pa.ChunkedArray, field: pa.Field, told: str) -> tuple[pa.ChunkedArray, list[RejectedRow]]:
    """Halves what fails until it is one row: cheap as long as few rows are bad."""
    good: list[pa.ChunkedArray] = []
    found: list[RejectedRow] = []
    pieces = [(0, len(column))]
    while pieces:
        start, count = pieces.pop()
        try:
            good.append(column.slice(start, count).cast(field.type))
        except pa.ArrowException as error:
            if count > 1:
                half = count // 2
                pieces += [(start + half, count - half), (start, half)]
            else:
                good.append(pa.chunked_array([pa.nulls(1, field.type)]))
                found.append(RejectedRow(start, "type", f"{told}: {_told(error)}"))
    return pa.chunked_array([chunk for part in good for chunk in part.chunks], field.type), found


def find_out_of_range(column: pa.ChunkedArray, field: pa.Field) -> list[RejectedRow]:
    """Rows with a date or time that readers of the table do not have: the log refuses them, but did not always."""
    found = []
    start = 0
    for chunk in column.chunks:
        pieces = [(0, len(chunk))]
        while pieces:
            first, count = pieces.pop()
            try:
                check_values(field.name, chunk.slice(first, count))
            except UsageError as error:
                half = count // 2
                if half:
                    pieces += [(first + half, count - half), (first, half)]
                else:
                    found.append(RejectedRow(start + first, "value", error.message))
        start += len(chunk)
    return found


def _find_unknown_columns(rows: pa.Table, schema: pa.Schema) -> list[RejectedRow]:
    """Rows with a value in a column that the table does not have."""
    found = []
    for name in rows.column_names:
        column = rows.column(name)
        if name not in schema.names and column.null_count < len(column):
            told = f"the table has no column '{name}' of type {column.type}"
            found += [RejectedRow(int(row), "column", told) for row in np.flatnonzero(~_is_null(column))]
    return found


def _is_null(column: pa.ChunkedArray) -> Any:
    return pc.is_null(column).to_numpy()


def _told(error: Exception) -> str:
    return str(error).splitlines()[0][:300]
