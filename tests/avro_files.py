"""Avro files of any schema, written by hand: to have in tests what no library here writes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from frazil.tables.metadata.avro import long
from frazil.tables.metadata.avro_codecs import compress

SYNC = bytes(range(16))


def encode(kind: Any, value: Any, *, sized: bool = False) -> bytes:
    """Encodes a value: records as dicts or sequences. Lists that are `sized` say their bytes, as Go's writers do."""
    if isinstance(kind, list):
        null = kind.index("null") if "null" in kind else -1
        branch = null if value is None else next(i for i in range(len(kind)) if i != null)
        return long(branch) + encode(kind[branch], value, sized=sized)
    name = kind if isinstance(kind, str) else kind["type"]
    if isinstance(name, dict | list):
        return encode(name, value, sized=sized)
    if name == "record":
        values = [value[f["name"]] for f in kind["fields"]] if isinstance(value, Mapping) else value
        return b"".join(encode(f["type"], v, sized=sized) for f, v in zip(kind["fields"], values, strict=True))
    if name in ("array", "map"):
        pairs = {"type": "record", "fields": [{"type": "string"}, {"type": kind.get("values")}]}
        item = kind["items"] if name == "array" else pairs
        items = value if name == "array" else list(value.items())
        if not items:
            return b"\0"
        data = b"".join(encode(item, one, sized=sized) for one in items)
        head = long(-len(items)) + long(len(data)) if sized else long(len(items))
        return head + data + b"\0"
    simple = {
        "null": lambda v: b"",
        "boolean": lambda v: b"\1" if v else b"\0",
        "int": long,
        "long": long,
        "enum": long,
        "float": lambda v: struct.pack("<f", v),
        "double": lambda v: struct.pack("<d", v),
        "bytes": lambda v: long(len(v)) + v,
        "string": lambda v: long(len(v.encode())) + v.encode(),
        "fixed": lambda v: v,
    }
    return simple[name](value)


def avro_file(
    schema: Any,
    records: Sequence[Any],
    meta: Mapping[str, str] | None = None,
    codec: str = "deflate",
    per_block: int = 1000,
    *,
    sized: bool = False,
) -> bytes:
    """Returns an Avro file."""
    facts = {"avro.schema": json.dumps(schema), "avro.codec": codec, **(meta or {})}
    text = {"type": "map", "values": "string"}
    parts = [b"Obj\x01", encode(text, facts), SYNC]
    for at in range(0, len(records), per_block):
        some = records[at : at + per_block]
        data = compress(codec, b"".join(encode(schema, record, sized=sized) for record in some))
        parts += [long(len(some)), long(len(data)), data, SYNC]
    return b"".join(parts)


def field(number: int, name: str, kind: Any, *, optional: bool = False) -> dict[str, Any]:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": number}
    return {"name": name, "type": kind, "field-id": number}


def _map(key: int, value: int, kind: str) -> dict[str, Any]:
    item = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [field(key, "key", "int"), field(value, "value", kind)],
    }
    return {"type": "array", "items": item, "logicalType": "map"}


def manifest_schema(version: int, partition: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """The schema of a manifest as Java's writers make it."""
    folder = [field(1000 + i, name, kind, optional=True) for i, (name, kind) in enumerate(partition)]
    file = [
        *([field(134, "content", "int")] if version > 1 else []),
        field(100, "file_path", "string"),
        field(101, "file_format", "string"),
        field(102, "partition", {"type": "record", "name": "r102", "fields": folder}),
        field(103, "record_count", "long"),
        field(104, "file_size_in_bytes", "long"),
        *([field(105, "block_size_in_bytes", "long")] if version == 1 else []),
        field(108, "column_sizes", _map(117, 118, "long"), optional=True),
        field(109, "value_counts", _map(119, 120, "long"), optional=True),
        field(110, "null_value_counts", _map(121, 122, "long"), optional=True),
        field(137, "nan_value_counts", _map(138, 139, "long"), optional=True),
        field(125, "lower_bounds", _map(126, 127, "bytes"), optional=True),
        field(128, "upper_bounds", _map(129, 130, "bytes"), optional=True),
        field(131, "key_metadata", "bytes", optional=True),
        field(132, "split_offsets", {"type": "array", "items": "long", "element-id": 133}, optional=True),
        *(
            [field(135, "equality_ids", {"type": "array", "items": "int", "element-id": 136}, optional=True)]
            if version > 1
            else []
        ),
        field(140, "sort_order_id", "int", optional=True),
        *([field(142, "first_row_id", "long", optional=True)] if version > 2 else []),
        *([field(143, "referenced_data_file", "string", optional=True)] if version > 1 else []),
        *([field(144, "content_offset", "long", optional=True)] if version > 2 else []),
        *([field(145, "content_size_in_bytes", "long", optional=True)] if version > 2 else []),
    ]
    fields = [
        field(0, "status", "int"),
        field(1, "snapshot_id", "long", optional=version > 1),
        *([field(3, "sequence_number", "long", optional=True)] if version > 1 else []),
        *([field(4, "file_sequence_number", "long", optional=True)] if version > 1 else []),
        field(2, "data_file", {"type": "record", "name": "r2", "fields": file}),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


def entry_of(schema: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    """An entry of a manifest; fields that are not given are null, 0 or their usual value."""
    usual = {
        "status": 1, "snapshot_id": 42, "content": 0, "file_format": "PARQUET", "record_count": 10,
        "file_size_in_bytes": 1000, "block_size_in_bytes": 67108864,
    }  # fmt: skip
    inner = next(f["type"]["fields"] for f in schema["fields"] if f["name"] == "data_file")
    kind = next(f["type"] for f in inner if f["name"] == "partition")
    file = {f["name"]: values.get(f["name"], usual.get(f["name"])) for f in inner}
    folder = values.get("partition", {})
    file["partition"] = {f["name"]: folder.get(f["name"]) for f in kind["fields"]}
    return {**{f["name"]: values.get(f["name"], usual.get(f["name"])) for f in schema["fields"]}, "data_file": file}


def manifest_file(
    schema: Mapping[str, Any], entries: Sequence[Any], version: int, content: str = "data", **options: Any
) -> bytes:
    """A manifest of entries."""
    meta = {"schema": '{"type":"struct","fields":[]}', "partition-spec": "[]", "partition-spec-id": "0"}
    meta |= {"format-version": str(version)} | ({"content": content} if version > 1 else {})
    return avro_file(schema, entries, meta, **options)
