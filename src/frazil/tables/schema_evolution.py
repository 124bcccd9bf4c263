"""Columns that a table learns while it is being written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertLastAssignedFieldId, AssertTableUUID
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)

from frazil.errors import first_line
from frazil.observe.faultpoints import reach
from frazil.tables.commit_retry import commit_with_retry
from frazil.tables.errors import SchemaMismatchError
from frazil.tables.properties import require_no_replica
from frazil.tables.store import TableStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table

Path = tuple[str, ...]
#: Path and type of a column, and whether it is new.
ColumnChange = tuple[Path, IcebergType, bool]


def evolve_schema(store: TableStore, table: Table, columns: Schema | pa.Schema, *, widen: bool = False) -> Table:
    """Adds missing columns to a table, optional and last; no data is rewritten.

    Args:
        store: where.
        table: may be out of date.
        columns: the columns of the rows. Further columns of the table are ignored.
        widen: let a column of the table take a wider type (int to long, float to double, more digits).

    Raises:
        SchemaMismatchError: a column has another type than the table's, or differs from one by case alone.
        NotAllowedError: the table is a replica.
    """
    require_no_replica(table)
    wanted = columns if isinstance(columns, Schema) else convert_columns(columns)

    def prepare(now: Table) -> list[ColumnChange] | None:
        return find_changes(now.schema(), wanted, widen=widen) or None

    return commit_with_retry(store, table, prepare, partial(_commit, store))


def find_changes(have: Schema, want: Schema, *, widen: bool) -> list[ColumnChange]:
    """Returns what a schema lacks for rows of another one. See `evolve_schema`.

    Raises:
        SchemaMismatchError: a column has another type, or differs from one by case alone.
    """
    return list(_changes(have.as_struct(), want.as_struct(), (), widen))


def preview_schema(table: Table, columns: Schema) -> Schema:
    """Returns the schema that `evolve_schema` would give a table, with the field ids of new columns.

    Raises:
        SchemaMismatchError: it would refuse them.
    """
    changes = find_changes(table.schema(), columns, widen=True)
    return _update(table, changes)[1] if changes else table.schema()


def _update(table: Table, changes: list[ColumnChange]) -> tuple[UpdateSchema, Schema]:
    from pyiceberg.table import Transaction

    update = UpdateSchema(Transaction(table))
    try:
        for path, kind, is_new in changes:
            if is_new:
                update.add_column(path, kind, required=False)
            else:
                assert isinstance(kind, PrimitiveType)
                update.update_column(path, kind)
        changed = update._apply()
    except ValueError as error:
        raise _unreadable(first_line(error)) from error
    require_readable(changed, table.specs().values())
    return update, changed


def _commit(store: TableStore, table: Table, changes: list[ColumnChange]) -> None:
    update, _ = _update(table, changes)
    updates, requirements = update._commit()
    requirements = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertLastAssignedFieldId(last_assigned_field_id=table.metadata.last_column_id),
        *requirements,
    )
    reach("tables.evolve.before")
    store.call_once(lambda: store.catalog.commit_table(table, requirements, updates))
    reach("tables.evolve.after")


def require_readable(schema: Schema, specs: Iterable[PartitionSpec]) -> None:
    """Refuses a schema that Iceberg would write and Spark or PyIceberg could not read.

    Raises:
        SchemaMismatchError: with the reason.
    """
    try:
        Schema.model_validate_json(schema.model_dump_json())
        names = schema.column_names
    except ValueError as error:
        raise _unreadable(first_line(error)) from error
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise _unreadable(f"'{other}' and '{name}' differ only in case")
    for field in (f for spec in specs for f in spec.fields):
        if field.name in names and not isinstance(field.transform, (IdentityTransform, VoidTransform)):
            raise _unreadable(f"'{field.name}' is the name of a partition field")


def _unreadable(cause: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        "a table with these columns could not be read", cause=cause, hint="choose another name or type for the column"
    )


def _changes(have: StructType, want: StructType, path: Path, widen: bool) -> Iterator[ColumnChange]:
    """Yields what `have` lacks, as (path, type, whether it is new)."""
    by_name = {f.name: f for f in have.fields}
    lowered = {f.name.lower(): f.name for f in have.fields}
    for column in want.fields:
        here = (*path, column.name)
        found = by_name.get(column.name)
        if found is not None:
            yield from _type_changes(found, column, here, widen)
        elif (near := lowered.get(column.name.lower())) is not None:
            raise SchemaMismatchError(
                f"the column '{'.'.join(here)}' differs from the table's '{near}' only in case",
                hint=f"name it '{near}', or choose another name",
            )
        else:
            lowered[column.name.lower()] = column.name
            yield here, column.field_type, True


def _type_changes(found: NestedField, column: NestedField, path: Path, widen: bool) -> Iterator[ColumnChange]:
    have, want = found.field_type, column.field_type
    if isinstance(have, StructType) and isinstance(want, StructType):
        yield from _changes(have, want, path, widen)
    elif isinstance(have, ListType) and isinstance(want, ListType) and _is_plain(have) and _is_plain(want):
        yield from _type_changes(have.element_field, want.element_field, (*path, "element"), widen)
    elif _same(have, want) or _becomes(want, have):
        return
    elif widen and _becomes(have, want):
        yield path, want, False
    else:
        wider = " (a wider type: evolve may widen the column when asked)" if _becomes(have, want) else ""
        raise SchemaMismatchError(
            f"the column '{'.'.join(path)}' is {_shown(want)}, but {_shown(have)} in the table{wider}",
            hint=f"send {_shown(have)}, or choose another name for the column",
        )


def _is_plain(kind: ListType) -> bool:
    return isinstance(kind.element_type, PrimitiveType)


def _becomes(narrow: IcebergType, wide: IcebergType) -> bool:
    """Whether each value of one type is one of the other, by Iceberg's rules of promotion."""
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return (type(narrow), type(wide)) in ((IntegerType, LongType), (FloatType, DoubleType))


def _same(a: IcebergType, b: IcebergType) -> bool:
    """Whether two types are equal but for field ids and nullability."""
    if isinstance(a, ListType) and isinstance(b, ListType):
        return _same(a.element_type, b.element_type)
    if isinstance(a, MapType) and isinstance(b, MapType):
        return _same(a.key_type, b.key_type) and _same(a.value_type, b.value_type)
    if isinstance(a, StructType) and isinstance(b, StructType):
        names = [f.name for f in a.fields] == [f.name for f in b.fields]
        return names and all(_same(x.field_type, y.field_type) for x, y in zip(a.fields, b.fields, strict=True))
    return bool(a == b)


def _shown(kind: IcebergType) -> str:
    if isinstance(kind, ListType):
        return f"list<{_shown(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_shown(kind.key_type)}, {_shown(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{f.name}: {_shown(f.field_type)}' for f in kind.fields)}>"
    return str(kind)


def convert_columns(schema: pa.Schema) -> Schema:
    """Returns Arrow's columns as Iceberg's, without field ids.

    Raises:
        SchemaMismatchError: Iceberg has no type for one of them.
    """
    import pyarrow
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _ConvertToIcebergWithoutIDs, visit_pyarrow

    fields: list[NestedField] = []
    for column in schema:
        try:
            _refuse_unsigned(column.type)
            found = visit_pyarrow(pyarrow.schema([column]), _ConvertToIcebergWithoutIDs())
        except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
            raise SchemaMismatchError(
                f"the column '{column.name}' is {column.type}, which Iceberg does not support",
                hint="send int32, int64, float, double, string, binary, bool, date32, timestamp[us], decimal or nested",
            ) from error
        assert isinstance(found, Schema)
        fields.extend(found.fields)
    return Schema(*fields)


def _refuse_unsigned(kind: pa.DataType) -> None:
    """Rejects unsigned integers: PyIceberg reads them as signed ones of the same width and loses the upper half."""
    import pyarrow.types as kinds

    if kinds.is_uint32(kind) or kinds.is_uint64(kind):
        raise TypeError(f"{kind} has values that no Iceberg integer of its width has")
    for i in range(kind.num_fields):
        _refuse_unsigned(kind.field(i).type)
