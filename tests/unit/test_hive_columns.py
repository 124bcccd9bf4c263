"""Columns as Hive and Glue show them."""

from __future__ import annotations

from frazil.catalogs.hive_columns import list_columns


def field(number: int, name: str, kind: object, required: bool = False) -> dict:
    return {"id": number, "name": name, "required": required, "type": kind}


def test_types_have_hives_names_and_unknown_ones_are_binary():
    struct = {"type": "struct", "fields": [field(20, "a", "long"), field(21, "b", "timestamptz")]}
    kinds = {
        "int": "int",
        "long": "bigint",
        "decimal(9, 2)": "decimal(9,2)",
        "fixed[16]": "binary",
        "timestamptz": "zoned",
        "timestamptz_ns": "zoned",
        "timestamp_ns": "timestamp",
        "uuid": "string",
        "variant": "binary",
        "geometry(OGC:CRS84)": "binary",
        "unknown": "void",
    }
    nested = [
        (struct, "struct<a:bigint,b:zoned>"),
        ({"type": "list", "element-id": 1, "element": struct}, "array<struct<a:bigint,b:zoned>>"),
        ({"type": "map", "key-id": 1, "key": "string", "value-id": 2, "value": "date"}, "map<string,date>"),
    ]
    pairs = [*kinds.items(), *nested]
    fields = [field(n, f"c{n}", kind) for n, (kind, _) in enumerate(pairs)]
    metadata = {"schemas": [{"schema-id": 0, "fields": fields}], "current-schema-id": 0}
    assert [column.type for column in list_columns(metadata, zoned="zoned")] == [hive for _, hive in pairs]


def test_columns_of_earlier_schemas_come_after_the_current_ones():
    first = {"schema-id": 0, "fields": [field(1, "id", "long", True), field(2, "gone", "string")]}
    second = {"schema-id": 1, "fields": [field(3, "new", "int"), field(1, "id", "long", True)]}
    columns = list(list_columns({"schemas": [first, second], "current-schema-id": 1}))
    assert [(c.name, c.field_id, c.is_current) for c in columns] == [
        ("new", 3, True),
        ("id", 1, True),
        ("gone", 2, False),
    ]
    assert [c.required for c in columns] == [False, True, False]


def test_metadata_of_format_version_1_has_one_schema():
    assert [c.name for c in list_columns({"schema": {"fields": [field(1, "id", "long")]}})] == ["id"]
