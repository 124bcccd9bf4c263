"""The columns of a table as Hive and Glue show them to tools that do not read Iceberg's metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TYPES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "time": "string",
    "string": "string",
    "uuid": "string",
    "timestamp": "timestamp",
    "timestamp_ns": "timestamp",
    "unknown": "void",
}
_ZONED = ("timestamptz", "timestamptz_ns")


@dataclass(frozen=True)
class HiveColumn:
    """A column, of the current schema or of an earlier one."""

    name: str
    type: str
    doc: str | None
    field_id: int
    required: bool
    is_current: bool


def list_columns(metadata: Mapping[str, Any], *, zoned: str = "timestamp") -> Iterator[HiveColumn]:
    """Yields each column name of a table once, those of the current schema first.

    Args:
        metadata: of the table, as JSON. Types that Hive does not know become `binary`.
        zoned: Hive's type of timestamps with a time zone.
    """
    schemas = metadata.get("schemas") or [metadata["schema"]]
    current = metadata.get("current-schema-id", schemas[0].get("schema-id", 0))
    seen = set()
    for schema in sorted(schemas, key=lambda schema: schema.get("schema-id", 0) != current):
        for field in schema["fields"]:
            if field["name"] not in seen:
                seen.add(field["name"])
                yield HiveColumn(
                    field["name"],
                    _hive_type(field["type"], zoned),
                    field.get("doc"),
                    field["id"],
                    bool(field["required"]),
                    schema.get("schema-id", 0) == current,
                )


def _hive_type(kind: Any, zoned: str) -> str:
    if isinstance(kind, str):
        if kind in _ZONED:
            return zoned
        return kind.replace(" ", "") if kind.startswith("decimal(") else _TYPES.get(kind, "binary")
    if kind["type"] == "struct":
        fields = [f"{field['name']}:{_hive_type(field['type'], zoned)}" for field in kind["fields"]]
        return f"struct<{','.join(fields)}>"
    if kind["type"] == "list":
        return f"array<{_hive_type(kind['element'], zoned)}>"
    return f"map<{_hive_type(kind['key'], zoned)},{_hive_type(kind['value'], zoned)}>"
