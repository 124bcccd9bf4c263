"""Columns of Parquet files as Iceberg has them, and how those of many files become the columns of one table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    TableUpdate,
)
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.observe.faultpoints import reach
from frazil.tables.errors import SchemaMismatchError
from frazil.tables.schema_evolution import ColumnChange, convert_columns, find_changes
from frazil.tables.store import TableStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.table import Table

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class FileColumns:
    """The columns of a file.

    Attributes:
        schema: without field ids.
        ids: field ids that the file itself has, by the column's full name; none in most files.
    """

    schema: Schema
    ids: Mapping[str, int]


def read_columns(metadata: pq.FileMetaData) -> FileColumns:
    """Returns the columns of a file by its footer.

    Raises:
        SchemaMismatchError: Iceberg has no type for one of them.
    """
    arrow = metadata.schema.to_arrow_schema().remove_metadata()
    if pa.timestamp("ns") in arrow.types:
        columns = (metadata.schema.column(i) for i in range(len(metadata.schema)))
        arrow = _with_microseconds(arrow, {c.name for c in columns if c.physical_type == "INT96" and c.path == c.name})
    return _convert(arrow.serialize().to_pybytes())


def _with_microseconds(arrow: pa.Schema, names: set[str]) -> pa.Schema:
    """Converts nanoseconds to microseconds: Spark writes times as INT96, which Arrow reads as nanoseconds."""
    fields = [f.with_type(pa.timestamp("us")) if f.name in names else f for f in arrow]
    return pa.schema(fields)


@lru_cache(maxsize=1024)
def _convert(serialized: bytes) -> FileColumns:
    arrow = pa.ipc.read_schema(pa.py_buffer(serialized))
    if twice := {name for name in arrow.names if arrow.names.count(name) > 1}:
        raise SchemaMismatchError(f"it has the column '{min(twice)}' twice", hint="write the file with other names")
    plain = pa.schema([f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in arrow])
    ids = dict(_read_ids(arrow, ""))
    missing = [name for name, number in ids.items() if number is None]
    if missing and len(missing) < len(ids):
        raise SchemaMismatchError(
            f"only some of its columns have field ids: '{missing[0]}' has none",
            cause="engines find no column without an id in such a file",
            hint="write the file without field ids, or with all",
        )
    return FileColumns(convert_columns(plain), {name: number for name, number in ids.items() if number is not None})


def _read_ids(fields: Iterable[pa.Field], prefix: str) -> Iterator[tuple[str, int | None]]:
    for field in fields:
        name = prefix + field.name
        number = int((field.metadata or {}).get(_FIELD_ID, b"-1"))
        yield name, number if number >= 0 else None
        yield from _read_inner_ids(field.type, name)


def _read_inner_ids(kind: pa.DataType, name: str) -> Iterator[tuple[str, int | None]]:
    if pa.types.is_struct(kind):
        yield from _read_ids([kind.field(i) for i in range(kind.num_fields)], f"{name}.")
    elif pa.types.is_map(kind):
        yield from _read_ids([kind.key_field.with_name("key"), kind.item_field.with_name("value")], f"{name}.")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _read_ids([kind.value_field.with_name("element")], f"{name}.")


def list_ids(schema: Schema) -> dict[str, int]:
    """Returns the field ids of a table by the columns' full names."""
    return {name: number for number, name in schema._lazy_id_to_name.items()}


def find_other_id(schema: Schema, ids: Mapping[str, int]) -> str | None:
    """Returns a sentence about a column whose id in a file is not that of the table; None if all agree."""
    own = list_ids(schema)
    for name, number in ids.items():
        if own.get(name, number) != number:
            return f"the column '{name}' has the field id {number}, but {own[name]} in the table"
    names = {number: name for name, number in own.items()}
    for name, number in ids.items():
        if names.get(number, name) != name:
            return f"the column '{name}' has the field id {number}, which is '{names[number]}' in the table"
    return None


def unite(have: Schema, want: Schema) -> Schema:
    """Returns columns for the rows of both, with the wider one of two types. The field ids are of no meaning.

    Raises:
        SchemaMismatchError: two types of one column have no common one.
    """
    kind: IcebergType = have.as_struct()
    for change in find_changes(have, want, widen=True):
        kind = _changed(kind, change)
    assert isinstance(kind, StructType)
    return Schema(*kind.fields)


def _changed(kind: IcebergType, change: ColumnChange) -> IcebergType:
    (name, *rest), new, is_new = change
    if isinstance(kind, ListType):
        inner = _changed(kind.element_type, (tuple(rest), new, is_new)) if rest else new
        return ListType(kind.element_id, inner, kind.element_required)
    assert isinstance(kind, StructType)
    fields = []
    for field in kind.fields:
        if field.name != name:
            fields.append(field)
            continue
        inner = _changed(field.field_type, (tuple(rest), new, is_new)) if rest else new
        fields.append(NestedField(field.field_id, field.name, inner, required=field.required))
    if is_new and not rest:
        fields.append(NestedField(-1, name, new, required=False))
    return StructType(*fields)


def assign_ids(schema: Schema, ids: Mapping[str, int]) -> Schema:
    """Returns the schema of a new table: all columns optional, with the ids that the files have, if they do."""
    optional = _optional(schema.as_struct())
    assert isinstance(optional, StructType)
    if not ids:
        return assign_fresh_schema_ids(Schema(*optional.fields))
    numbers = itertools.count(max(ids.values()) + 1)
    found = _numbered(optional, "", ids, numbers)
    assert isinstance(found, StructType)
    return Schema(*found.fields)


def _optional(kind: IcebergType) -> IcebergType:
    if isinstance(kind, StructType):
        fields = (NestedField(f.field_id, f.name, _optional(f.field_type), required=False) for f in kind.fields)
        return StructType(*fields)
    if isinstance(kind, ListType):
        return ListType(kind.element_id, _optional(kind.element_type), element_required=False)
    if isinstance(kind, MapType):
        value = _optional(kind.value_type)
        return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=False)
    return kind


def _numbered(kind: IcebergType, prefix: str, ids: Mapping[str, int], numbers: Iterator[int]) -> IcebergType:
    def number(name: str) -> int:
        return ids[prefix + name] if prefix + name in ids else next(numbers)

    def inner(name: str, kind: IcebergType) -> IcebergType:
        return _numbered(kind, f"{prefix}{name}.", ids, numbers)

    if isinstance(kind, StructType):
        return StructType(
            *(NestedField(number(f.name), f.name, inner(f.name, f.field_type), required=False) for f in kind.fields)
        )
    if isinstance(kind, ListType):
        return ListType(number("element"), inner("element", kind.element_type), element_required=False)
    if isinstance(kind, MapType):
        return MapType(
            number("key"),
            inner("key", kind.key_type),
            number("value"),
            inner("value", kind.value_type),
            value_required=False,
        )
    return kind


def set_columns(store: TableStore, table: Table, schema: Schema, spec: PartitionSpec) -> Table:
    """Gives a table that never had rows exactly these columns and ids: catalogs assign their own when they create it.

    Raises:
        ConflictError: the table has changed since it was loaded.
    """
    metadata = table.metadata
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
    )
    number = 1 + max(s.schema_id for s in metadata.schemas)
    updates: list[TableUpdate] = [
        AddSchemaUpdate(schema_=Schema(*schema.fields, schema_id=number)),
        SetCurrentSchemaUpdate(schema_id=-1),
    ]
    if spec.fields or table.spec().fields:
        spec_id = 1 + max(s.spec_id for s in metadata.partition_specs)
        updates += [
            AddPartitionSpecUpdate(spec=PartitionSpec(*spec.fields, spec_id=spec_id)),
            SetDefaultSpecUpdate(spec_id=-1),
        ]
    reach("tables.columns.before")
    store.call_once(lambda: store.catalog.commit_table(table, requirements, tuple(updates)))
    reach("tables.columns.after")
    return store.load(table.name())
