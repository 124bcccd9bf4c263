"""Partitions and sort orders, as people write them: `day(publish_time)`, `bucket(16, key)`, `offset`, `name desc`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import NestedField

from frazil.errors import UsageError

_TERM = re.compile(r"(?:(?P<name>\w+)\(\s*(?:(?P<number>\d+)\s*,\s*)?(?P<of>[\w.]+)\s*\)|(?P<column>[\w.]+))")
_BY_TIME: dict[str, Callable[[], Transform[Any, Any]]] = {
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
}
_BY_NUMBER: dict[str, Callable[[int], Transform[Any, Any]]] = {"bucket": BucketTransform, "truncate": TruncateTransform}
_WAYS = [*_BY_TIME, *(f"{name}(N, column)" for name in _BY_NUMBER), "identity"]


def parse_partition_spec(schema: Schema, terms: Sequence[str]) -> PartitionSpec:
    """Parses terms like `day(publish_time)` into a partition spec for a schema with field ids."""
    fields = []
    for i, term in enumerate(terms):
        column, transform, name = _parse(schema, term)
        label = column.name if isinstance(transform, IdentityTransform) else f"{column.name.replace('.', '_')}_{name}"
        fields.append(PartitionField(column.field_id, PARTITION_FIELD_ID_START + i, transform, label))
    return PartitionSpec(*fields)


def parse_sort_order(schema: Schema, terms: Sequence[str]) -> SortOrder:
    """Parses terms into a sort order; each may end in `asc` or `desc`."""
    fields = []
    for term in terms:
        text, _, way = term.strip().rpartition(" ")
        descending = way.lower() == "desc"
        column, transform, _ = _parse(schema, text if way.lower() in ("asc", "desc") else term)
        fields.append(
            SortField(
                source_id=column.field_id,
                transform=transform,
                direction=SortDirection.DESC if descending else SortDirection.ASC,
                null_order=NullOrder.NULLS_LAST if descending else NullOrder.NULLS_FIRST,
            )
        )
    return SortOrder(*fields)


def _parse(schema: Schema, term: str) -> tuple[NestedField, Transform[Any, Any], str]:
    match = _TERM.fullmatch(term.strip())
    if match is None:
        raise UsageError(
            f"'{term}' is not a transform to partition or sort by", hint=f"a column, or {', '.join(_WAYS)}"
        )
    name = (match["name"] or "identity").removesuffix("s")
    text = match["of"] or match["column"]
    try:
        column = schema.find_field(text)
    except ValueError as error:
        raise UsageError(
            f"'{term}' names a column that the table does not have",
            cause=f"the table has {', '.join(schema.column_names)}",
            hint="choose one of these",
        ) from error
    transform = _transform(term, name, match["number"])
    if not transform.can_transform(column.field_type):
        raise UsageError(f"'{term}' does not support the type {column.field_type}", hint=f"one of {', '.join(_WAYS)}")
    return column, transform, name


def _transform(term: str, name: str, number: str | None) -> Transform[Any, Any]:
    if name in _BY_TIME and number is None:
        return _BY_TIME[name]()
    if name in _BY_NUMBER and number is not None:
        return _BY_NUMBER[name](int(number))
    if name == "identity" and number is None:
        return IdentityTransform()
    raise UsageError(f"'{term}' is not a transform to partition or sort by", hint=f"one of {', '.join(_WAYS)}")
