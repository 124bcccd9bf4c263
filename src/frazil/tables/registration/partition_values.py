"""The partition of a data file: from the names of its folders, or from the bounds of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyiceberg.expressions.literals import IntAboveMax, IntBelowMin, LongAboveMax, LongBelowMin, literal
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec, _to_partition_representation
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
)

from frazil.errors import UsageError

#: Hive's name for the folder of rows without a value.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_OUT_OF_RANGE = (IntAboveMax, IntBelowMin, LongAboveMax, LongBelowMin)
#: Digits of a number that may begin with a zero.
_PADDED = 2
#: What the values of folders may be, in this order.
_INFERRED: tuple[PrimitiveType, ...] = (IntegerType(), LongType(), DateType())


class PartitionError(UsageError):
    """The partition of a file cannot be determined without reading its rows."""


@dataclass(frozen=True)
class ColumnRange:
    """The values of a column in one file.

    Attributes:
        lower: the smallest value, as Python has it; None if it is not known, or there is none.
        upper: the largest one.
        nulls: how many rows have none; None if that is not known.
        rows: in the file.
    """

    lower: Any
    upper: Any
    nulls: int | None
    rows: int


def parse_folders(path: str) -> dict[str, str | None]:
    """Returns names and values of folders like `year=2026`, of a path below the table's folder; outermost first."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = None if value == _NULL else unquote(value)
    return found


def infer_type(values: Iterable[str | None]) -> PrimitiveType:
    """Returns the type of a column by all its values in folders: int, long, date or string."""
    known = [value for value in values if value is not None]
    for kind in _INFERRED if known else ():
        if all(_is_a(value, kind) for value in known):
            return kind
    return StringType()


def _is_a(text: str, kind: PrimitiveType) -> bool:
    try:
        parse_value(text, kind)
    except ValueError:
        return False
    if not isinstance(kind, (IntegerType, LongType)):
        return True
    digits = text.removeprefix("-")
    # 03 is a month; 01067 is a postal code, and would not be the same without its zero.
    return digits.isdecimal() and (len(digits) <= _PADDED or not digits.startswith("0"))


def parse_value(text: str, kind: PrimitiveType) -> Any:
    """Returns a folder's value as partitions have it.

    Raises:
        ValueError: it is none of this type.
    """
    found: Any = literal(text).to(kind)
    if isinstance(found, _OUT_OF_RANGE):
        raise ValueError(f"{text} is out of range")  # noqa: TRY004 - it is a number, and too large
    return found.value


def folder_spec(schema: Schema, names: Iterable[str]) -> PartitionSpec:
    """Returns the partitions of a table whose folders have these names."""
    fields = (schema.find_field(name) for name in names)
    return PartitionSpec(
        *(
            PartitionField(field.field_id, PARTITION_FIELD_ID_START + i, IdentityTransform(), field.name)
            for i, field in enumerate(fields)
        )
    )


def find_partition(
    spec: PartitionSpec, schema: Schema, folders: Mapping[str, str | None], ranges: Mapping[int, ColumnRange]
) -> Record:
    """Returns the partition of a file.

    Args:
        spec: of the table.
        schema: of the table.
        folders: names and values in the file's path.
        ranges: of the columns that the file has, by field id. Columns that it lacks are null in each of its rows.

    Raises:
        PartitionError: with the reason.
    """
    values = []
    left = dict(folders)
    for field in spec.fields:
        column = schema.find_field(field.source_id)
        name = schema.find_column_name(field.source_id) or column.name
        if isinstance(field.transform, IdentityTransform) and name in folders:
            values.append(_from_folder(column, left.pop(name), ranges.get(field.source_id)))
        elif isinstance(field.transform, IdentityTransform) and field.source_id not in ranges:
            raise PartitionError(
                f"it lies in no folder '{name}=…', and has no such column", hint="keep it in a separate table"
            )
        else:
            values.append(_from_range(field, name, column, ranges.get(field.source_id)))
    for name in left:
        if name not in schema.column_names or schema.find_field(name).field_id not in ranges:
            raise PartitionError(
                f"its folder names '{name}', by which the table is not partitioned",
                hint="keep files with other folders in a table of their own, or name the column in partition_by",
            )
    return Record(*values)


def _from_folder(column: NestedField, text: str | None, found: ColumnRange | None) -> Any:
    kind = column.field_type
    assert isinstance(kind, PrimitiveType)
    try:
        value = None if text is None else parse_value(text, kind)
    except (ValueError, TypeError) as error:
        raise PartitionError(
            f"its folder says {column.name}={text}, which is no {kind}",
            hint="rename the folder; or make the table anew, with the type that all folders have",
        ) from error
    for bound in _list_values(kind, found):
        if bound != value:
            raise PartitionError(
                f"its folder says {column.name}={text}, but the column has other values", hint="move the file"
            )
    return value


def _list_values(kind: PrimitiveType, found: ColumnRange | None) -> Iterator[Any]:
    """Values that the column certainly has."""
    if found is not None:
        if found.nulls:
            yield None
        for bound in (found.lower, found.upper):
            if bound is not None:
                yield _to_partition_representation(kind, bound)


def _from_range(field: PartitionField, name: str, column: NestedField, found: ColumnRange | None) -> Any:
    if found is None:
        return None
    if found.nulls == found.rows:
        return None
    kind = column.field_type
    has_bounds = found.lower is not None and found.upper is not None
    if found.nulls is None or not has_bounds or isinstance(kind, (FloatType, DoubleType)):
        raise _unknown(name, "the footer does not say what values the column has")
    if found.nulls:
        raise _unknown(name, f"{found.nulls} of its rows have no value there, and others have one")
    assert isinstance(kind, PrimitiveType)
    transform = field.transform.transform(kind)
    lower = transform(_to_partition_representation(kind, found.lower))
    upper = transform(_to_partition_representation(kind, found.upper))
    is_one = lower == upper if field.transform.preserves_order else found.lower == found.upper
    if not is_one:
        raise _unknown(name, f"its values go from {found.lower} to {found.upper}")
    return lower


def _unknown(name: str, cause: str) -> PartitionError:
    return PartitionError(
        f"it has no single partition by '{name}'",
        cause=cause,
        hint="write a file for each partition, or leave the table without partitions",
    )
