"""Says in SQL which rows are those of a partition, so that an action can be told to keep to it."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

_EPOCH = datetime.datetime(1970, 1, 1)


class _CannotSayError(Exception):
    pass


def condition_of(schema: Schema, spec: PartitionSpec, values: tuple[Any, ...]) -> str | None:
    """The condition of Spark SQL that holds for the rows of a partition, and for no others.

    Args:
        schema: of the table.
        spec: under which the partition is; the current one, or files of others may hold such rows too.
        values: as manifests have them.

    Returns:
        None where there is no such condition: no partitioning, or a type that SQL has no words for.
    """
    try:
        parts = [
            _part(schema, field, value)
            for field, value in zip(spec.fields, values, strict=True)
            if not isinstance(field.transform, VoidTransform)
        ]
    except (_CannotSayError, ValueError, OverflowError):
        return None
    return " AND ".join(parts) or None


def _part(schema: Schema, field: PartitionField, value: Any) -> str:
    name = schema.find_column_name(field.source_id)
    if name is None:
        raise _CannotSayError
    column = ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))
    kind = schema.find_type(field.source_id)
    transform = str(field.transform)
    if value is None:
        return f"{column} IS NULL"
    if transform == "identity":
        return f"{column} = {_literal(kind, value)}"
    if transform in _PERIODS:
        begin, end = (_PERIODS[transform](int(value) + more) for more in (0, 1))
        return f"{column} >= {_moment(kind, begin)} AND {column} < {_moment(kind, end)}"
    if found := re.fullmatch(r"bucket\[(\d+)\]", transform):
        return f"system.bucket({found[1]}, {column}) = {int(value)}"
    if found := re.fullmatch(r"truncate\[(\d+)\]", transform):
        return f"system.truncate({found[1]}, {column}) = {_literal(kind, value)}"
    raise _CannotSayError


def _month(number: int) -> datetime.datetime:
    return _EPOCH.replace(year=1970 + number // 12, month=number % 12 + 1)


_PERIODS: dict[str, Callable[[int], datetime.datetime]] = {
    "year": lambda number: _EPOCH.replace(year=1970 + number),
    "month": _month,
    "day": lambda number: _EPOCH + datetime.timedelta(days=number),
    "hour": lambda number: _EPOCH + datetime.timedelta(hours=number),
}


def _moment(kind: IcebergType, moment: datetime.datetime) -> str:
    if isinstance(kind, DateType):
        return f"DATE '{moment:%Y-%m-%d}'"
    text = moment.isoformat(sep=" ", timespec="microseconds")
    if isinstance(kind, TimestamptzType):
        return f"TIMESTAMP_LTZ '{text}+00:00'"
    if isinstance(kind, TimestampType):
        return f"TIMESTAMP_NTZ '{text}'"
    raise _CannotSayError


def _literal(kind: IcebergType, value: Any) -> str:
    if isinstance(kind, (IntegerType, LongType)):
        return f"{int(value)}L" if isinstance(kind, LongType) else str(int(value))
    if isinstance(kind, BooleanType):
        return "true" if value else "false"
    if isinstance(kind, StringType):
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(kind, (BinaryType, FixedType)):
        return f"X'{bytes(value).hex()}'"
    if isinstance(kind, DecimalType) and isinstance(value, decimal.Decimal):
        return f"CAST('{value:f}' AS DECIMAL({kind.precision}, {kind.scale}))"
    if isinstance(kind, DateType):
        return _moment(kind, _EPOCH + datetime.timedelta(days=int(value)))
    if isinstance(kind, (TimestampType, TimestamptzType)):
        return _moment(kind, _EPOCH + datetime.timedelta(microseconds=int(value)))
    raise _CannotSayError
