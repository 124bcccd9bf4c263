"""Manifests as DuckDB 1.5 writes them: types in objects, bounds under another id, empty texts for missing paths."""

from __future__ import annotations

from typing import Any

from frazil.tables.metadata.manifest_entries import LOWER, PATH, REFERENCED, SIZE, UPPER, read_entries
from frazil.tables.relocation.manifests import FileSize, relocate_manifest
from frazil.tables.relocation.prefixes import PrefixMap
from tests.avro_files import entry_of, manifest_file, manifest_schema

MOVE = PrefixMap([("/lake/t", "/copy/t")])
#: DuckDB's id of the column of paths in bounds.
FILE = 2147483646


def as_objects(kind: Any) -> Any:
    """A schema with `{"type": "int"}` in place of `"int"`."""
    if isinstance(kind, str):
        return kind if kind == "null" else {"type": kind}
    if isinstance(kind, list):
        return [as_objects(branch) for branch in kind]
    found = dict(kind)
    if "fields" in found:
        found["fields"] = [{**field, "type": as_objects(field["type"])} for field in found["fields"]]
    if "items" in found:
        found["items"] = as_objects(found["items"])
    return found


def manifest(content: int, referenced: str) -> bytes:
    path = b"/lake/t/data/1.parquet"
    plain = manifest_schema(3)
    entry = entry_of(
        plain,
        content=content,
        file_path="/lake/t/data/x",
        file_format="puffin" if content else "parquet",
        lower_bounds=[(1, b"\0" * 8), (FILE, path)],
        upper_bounds=[(1, b"\1" * 8), (FILE, path)],
        referenced_data_file=referenced,
    )
    return manifest_file(as_objects(plain), [entry], 3, "deletes" if content else "data")


def test_bounds_and_references_of_deletion_vectors_are_mapped() -> None:
    data = manifest(1, "/lake/t/data/1.parquet")
    moved = relocate_manifest(data, MOVE, {"/lake/t/data/x": FileSize(77)}).data
    mapped = b"/copy/t/data/1.parquet"
    fields = (PATH, SIZE, REFERENCED, LOWER, UPPER)
    assert list(read_entries(moved, fields)) == [
        ("/copy/t/data/x", 77, mapped.decode(), {1: b"\0" * 8, FILE: mapped}, {1: b"\1" * 8, FILE: mapped})
    ]


def test_a_data_file_that_refers_to_nothing_still_does() -> None:
    moved = relocate_manifest(manifest(0, ""), MOVE).data
    assert list(read_entries(moved, (PATH, REFERENCED))) == [("/copy/t/data/x", "")]
