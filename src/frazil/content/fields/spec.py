"""Definitions of custom columns, the ones a table has, and the plan from those to others.

The table is the truth: its property `frazil.content.fields` has what is computed for each row. Settings say what is
wanted; `plan_fields` says what lies between, by Iceberg's rules.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from frazil.content.columns import EXTRACTED, OBJECTS
from frazil.content.fields.casting import CASTS, Cast
from frazil.content.fields.paths import compile_path
from frazil.content.fields.types import FieldType, parse_type
from frazil.errors import IntegrityError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

#: The table property with its fields, as JSON.
PROPERTY: Final = "frazil.content.fields"
#: The table property with the names of the fields that are being backfilled.
BACKFILL_PROPERTY: Final = "frazil.content.backfill"

#: Names that start with _ are reserved by Iceberg: _file, _pos, …
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
#: Columns about the extraction, and `metadata` itself, which no path can compute.
_BOOKKEEPING: Final = ("metadata", "extraction_status", "extraction", "field_errors", "frazil_fields")
#: Standard columns that a field may redefine.
STANDARD: Final[dict[str, pa.DataType]] = {f.name: f.type for f in EXTRACTED if f.name not in _BOOKKEEPING}
_OWN: Final = {name.lower(): name for name in OBJECTS.names}


@dataclass(frozen=True)
class FieldSpec:
    """A custom column.

    Attributes:
        name: of the column.
        type: as it is written: INTEGER, ARRAY<STRING>, …
        jpath: where its value lies in `metadata`.
        column_id: of the column, once the table has it: a name that is dropped and added again is another column.
    """

    name: str
    type: str
    jpath: str
    column_id: int = 0

    @property
    def kind(self) -> FieldType:
        return parse_type(self.type)

    @property
    def arrow(self) -> pa.DataType:
        return self.kind.arrow

    @property
    def is_standard(self) -> bool:
        """Whether it redefines a standard column."""
        return self.name in STANDARD

    def mark(self, cast: str) -> str:
        """The entry in `frazil_fields` of rows with this field; differs for each definition."""
        defined = json.dumps([self.kind.name, self.jpath, cast, self.column_id]).encode()
        return f"{self.name}:{hashlib.sha256(defined).hexdigest()[:8]}"

    def to_json(self) -> dict[str, Any]:
        known = {"column_id": self.column_id} if self.column_id else {}
        return {"name": self.name, "type": self.kind.name, "jpath": self.jpath, **known}

    @classmethod
    def of(cls, name: str, type: str, jpath: str) -> FieldSpec:  # noqa: A002 - as the settings call it
        """Creates a field after checking it.

        Raises:
            ValueError: name, type or path cannot be; the text says why.
        """
        check_name(name)
        kind = parse_type(type)
        compile_path(jpath)
        own = STANDARD.get(name)
        if own is not None and own != kind.arrow:
            raise ValueError(f"'{name}' is a column of every table, of type {format_type(own)}, not {kind.name}")
        return cls(name, kind.name, jpath)


def check_name(name: str) -> None:
    """Raises ValueError if a field cannot have this name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} cannot be the name of a column: letters, digits and _, a letter first")
    if name.lower().startswith("frazil"):
        raise ValueError(f"'{name}' begins with frazil, as Frazil's own columns do")
    own = _OWN.get(name.lower())
    if own is not None and name not in STANDARD:
        same = "" if own == name else f" '{own}'"
        raise ValueError(f"'{name}' is the name of a column{same} that the table has already")


@dataclass(frozen=True)
class Fields:
    """The custom columns, and how they are computed.

    Attributes:
        fields: the columns.
        cast: lenient or strict.
        include_raw_metadata: whether `metadata` is kept; without it nothing can be computed again.
    """

    fields: tuple[FieldSpec, ...] = ()
    cast: Cast = "lenient"
    include_raw_metadata: bool = True

    def __iter__(self) -> Iterator[FieldSpec]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.fields]

    @property
    def marks(self) -> list[str]:
        return [field.mark(self.cast) for field in self.fields]

    def get(self, name: str) -> FieldSpec | None:
        return next((field for field in self.fields if field.name == name), None)

    def only(self, names: Collection[str]) -> Fields:
        """Returns the fields with these names."""
        chosen = tuple(field for field in self.fields if field.name in names)
        return Fields(chosen, self.cast, self.include_raw_metadata)

    def columns(self) -> pa.Schema:
        """Returns the columns that a table needs for them, besides the standard ones."""
        own = [f for f in self.fields if not f.is_standard]
        return pa.schema([pa.field(f.name, f.arrow, metadata={"doc": f.jpath}) for f in own])

    def with_changes(self, changes: Fields, drop: Collection[str] = ()) -> Fields:
        """Returns the fields with others added or replaced by name, and without dropped ones."""
        merged = {f.name: f for f in self.fields if f.name not in drop} | {f.name: f for f in changes.fields}
        return Fields(tuple(merged.values()), changes.cast, changes.include_raw_metadata)

    @property
    def own_names(self) -> list[str]:
        """The names of columns that are not standard."""
        return [field.name for field in self.fields if not field.is_standard]

    def placed(self, ids: Mapping[str, int]) -> Fields:
        """Returns the fields with the column ids of the table."""
        return replace(self, fields=tuple(replace(f, column_id=ids.get(f.name, 0)) for f in self.fields))

    def to_property(self) -> str:
        """Formats the fields for the table property `PROPERTY`."""
        return json.dumps(
            {
                "cast": self.cast,
                "include_raw_metadata": self.include_raw_metadata,
                "fields": [field.to_json() for field in self.fields],
            },
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Fields:
        """Parses the fields in a message or property.

        Raises:
            ValueError: it is not what it should be; the text says why.
        """
        cast, raw, listed = found.get("cast"), found.get("include_raw_metadata"), found.get("fields")
        if cast not in CASTS:
            raise ValueError(f"cast is {str(cast)[:40]!r}, not {' or '.join(CASTS)}")
        if type(raw) is not bool or not isinstance(listed, list):
            raise ValueError("include_raw_metadata and fields must be there")
        fields: list[FieldSpec] = []
        for entry in listed:
            parts = [entry.get(key) if isinstance(entry, dict) else None for key in ("name", "type", "jpath")]
            if not all(isinstance(part, str) for part in parts):
                raise ValueError("a field must have name, type and jpath")
            column_id = entry.get("column_id", 0)
            fields.append(replace(FieldSpec.of(*map(str, parts)), column_id=column_id if type(column_id) is int else 0))
        check_distinct([field.name for field in fields])
        return cls(tuple(fields), cast, raw)


def check_distinct(names: Collection[str]) -> None:
    """Raises ValueError if two names are the same for some engine."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other is not name and other != name:
            raise ValueError(f"'{other}' and '{name}' differ only in case, and are one column for Spark")
    if len(seen) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValueError(f"'{twice}' appears twice")


def active_fields(properties: Mapping[str, str]) -> Fields:
    """Returns the fields in a table's properties.

    Raises:
        IntegrityError: the property is not what we write.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return Fields()
    try:
        found = json.loads(text)
        return Fields.parse(found if isinstance(found, dict) else {})
    except ValueError as error:
        raise IntegrityError(
            f"the table's property {PROPERTY} is damaged", cause=str(error), hint="frazil table show content.objects"
        ) from error


@dataclass(frozen=True)
class Plan:
    """The differences between the fields of a table and the wanted ones.

    Attributes:
        add: columns that the table has not.
        widen: columns that take a wider type.
        redefine: the column stays as it is, its values are computed in another way.
        drop: fields of the table that are not wanted. They stay until dropped explicitly.
        refused: name → why it cannot be.
        same: names of those that are as they are wanted.
    """

    add: tuple[FieldSpec, ...] = ()
    widen: tuple[FieldSpec, ...] = ()
    redefine: tuple[FieldSpec, ...] = ()
    drop: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    same: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[FieldSpec, ...]:
        return (*self.add, *self.widen, *self.redefine)

    @property
    def is_empty(self) -> bool:
        return not (self.changes or self.refused)


def plan_fields(have: Fields, wanted: Fields, schema: Schema) -> Plan:
    """Plans the change from a table's fields to others by Iceberg's rules: int to long, float to double, more digits.

    Args:
        have: the fields of the table.
        wanted: the fields as they should be.
        schema: the table's columns.
    """
    columns = {f.name: f.field_type for f in schema.fields}
    lowered = {name.lower(): name for name in columns}
    add, widen, redefine, same = [], [], [], []
    refused: list[tuple[str, str]] = []
    for spec in wanted:
        known, column = have.get(spec.name), columns.get(spec.name)
        near = lowered.get(spec.name.lower())
        if column is None and near is not None:
            refused.append((spec.name, f"it differs from the table's column '{near}' by case alone"))
        elif column is None:
            add.append(spec)
        elif not spec.is_standard and (why := _obstacle(column, spec)) is not None:
            refused.append((spec.name, why))
        elif not spec.is_standard and column != _iceberg(spec.arrow, column):
            widen.append(spec)
        elif known is None and not spec.is_standard:
            add.append(spec)
        elif known is not None and known.mark(have.cast) == replace(spec, column_id=known.column_id).mark(wanted.cast):
            same.append(spec.name)
        else:
            redefine.append(spec)
    drop = tuple(name for name in have.names if wanted.get(name) is None)
    return Plan(tuple(add), tuple(widen), tuple(redefine), drop, tuple(refused), tuple(same))


def _obstacle(column: IcebergType, spec: FieldSpec) -> str | None:
    """Returns why a column of the table cannot become the field's; None if it can, or is already."""
    from pyiceberg.types import ListType

    wanted = _iceberg(spec.arrow, column)
    old, new = column, wanted
    if isinstance(old, ListType) and isinstance(new, ListType):
        old, new = old.element_type, new.element_type
    if old == new or _becomes(old, new):
        return None
    narrower = ", and no column becomes narrower" if _becomes(new, old) else ""
    return (
        f"the column is {_iceberg_name(column)}, and Iceberg cannot make it {spec.kind.name}{narrower}: "
        "drop it first, or give the field another name"
    )


def _becomes(narrow: IcebergType, wide: IcebergType) -> bool:
    from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType

    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return (type(narrow), type(wide)) in ((IntegerType, LongType), (FloatType, DoubleType))


def _iceberg(arrow: pa.DataType, like: IcebergType) -> IcebergType:
    """Converts a type to Iceberg; an array keeps the element id of the table's column."""
    from pyiceberg.types import ListType

    from frazil.tables.create import assign_field_ids

    found = assign_field_ids(pa.schema([pa.field("c", arrow)])).fields[0].field_type
    if isinstance(found, ListType):
        element_id = like.element_id if isinstance(like, ListType) else -1
        required = like.element_required if isinstance(like, ListType) else False
        return ListType(element_id=element_id, element=found.element_type, element_required=required)
    return found


def _iceberg_name(kind: IcebergType) -> str:
    from pyiceberg.types import ListType

    return f"list<{kind.element_type}>" if isinstance(kind, ListType) else str(kind)


def format_type(arrow: pa.DataType) -> str:
    """Formats a type as in the settings."""
    for name in ("BOOLEAN", "INTEGER", "LONG", "FLOAT", "DOUBLE", "STRING", "DATE", "TIMESTAMP", "TIMESTAMPTZ"):
        for text in (name, f"ARRAY<{name}>"):
            if parse_type(text).arrow == arrow:
                return text
    return str(arrow)
