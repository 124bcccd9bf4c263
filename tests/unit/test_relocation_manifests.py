"""Manifests and manifest lists with other paths in them, and every other byte as it was."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.manifest import read_manifest_list as pyiceberg_list
from pyiceberg.table import StaticTable

from frazil.errors import FrazilError, IntegrityError, UnsupportedError
from frazil.tables.metadata.avro import read_avro
from frazil.tables.metadata.avro_codecs import decompress
from frazil.tables.relocation import PrefixMap, UnmappedPathError
from frazil.tables.relocation.manifests import (
    PATH_COLUMN,
    FileSize,
    OmittedCounts,
    RelocatedManifest,
    read_manifest_files,
    read_manifest_list,
    relocate_manifest,
    relocate_manifest_list,
)
from frazil.tables.relocation.table_metadata import (
    format_metadata,
    list_metadata_paths,
    parse_metadata,
    relocate_metadata,
)
from tests.avro_files import avro_file, entry_of, field, manifest_file, manifest_schema
from tests.golden import DATA, HOME, VERSIONS
from tests.unit.test_upkeep_entries import ROWS, make_table

OLD, NEW = "s3://old/warehouse/t", "/new/t"
PREFIXES = PrefixMap([(OLD, NEW), ("/imported", "s3://new/imported")])
BACK = PrefixMap([(NEW, OLD), ("s3://new/imported", "/imported")])
CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]

#: Partition fields of every type that a manifest can hold, also of columns that were dropped since.
PARTITION = [
    ("day", {"type": "int", "logicalType": "date"}),
    ("word", "string"),
    ("dropped_bucket", "int"),
    ("price", {"type": "fixed", "size": 5, "name": "d", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("id", {"type": "fixed", "size": 16, "name": "uuid_fixed", "logicalType": "uuid"}),
    ("sure", "boolean"),
    ("ratio", "double"),
]  # fmt: skip
VALUES = {
    "day": 20000,
    "word": "ä" * 50,
    "dropped_bucket": 7,
    "price": b"12345",
    "id": b"u" * 16,
    "sure": True,
    "ratio": 0.5,
}


def make_entries(schema: dict[str, Any], paths: list[str], **more: Any) -> list[dict[str, Any]]:
    """Entries with all that writers record, no two alike."""
    return [
        entry_of(
            schema, file_path=path, snapshot_id=100 + n, sequence_number=n if n % 2 else None, file_sequence_number=n,
            status=n % 3, partition=VALUES if n % 4 else {}, record_count=n, file_size_in_bytes=n * 1000,
            column_sizes=[(c, n * c) for c in range(n % 5)], value_counts=[(c, n) for c in range(12)],
            null_value_counts=None, nan_value_counts=[],
            lower_bounds=[(c, bytes([n % 256]) * (c * 9)) for c in range(12)], upper_bounds=[(1, b""), (2, b"\0")],
            split_offsets=[4, n + 5], sort_order_id=n % 2, first_row_id=None if n % 2 else n,
            **more,
        )
        for n, path in enumerate(paths)
    ]  # fmt: skip


def paths_in(folder: str, count: int = 40) -> list[str]:
    return [f"{folder}/data/day={n}/{'x' * (n * 7)}{n}.parquet" for n in range(count)]


def moved(entries: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """The entries with their paths mapped and other values changed."""
    return [
        {**e, "data_file": {**e["data_file"], "file_path": PREFIXES.map(e["data_file"]["file_path"]), **changes}}
        for e in entries
    ]


# ── data manifests ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_only_paths_change_in_a_data_manifest(version: int, codec: str) -> None:
    """Partition values, bounds, explicit sequence numbers and row ids stay, whatever the table now knows of them."""
    schema = manifest_schema(version, PARTITION)
    entries = make_entries(schema, paths_in(OLD))
    data = manifest_file(schema, entries, version, codec=codec)
    expected = manifest_file(schema, moved(entries), version, codec=codec)
    assert relocate_manifest(data, PREFIXES, {}).data == expected
    assert relocate_manifest(expected, BACK).data == data
    files = list(read_manifest_files(data, "m"))
    assert [f.path for f in files] == paths_in(OLD)
    assert [(f.size, f.status, f.content, f.format, f.rows) for f in files] == [
        (n * 1000, n % 3, 0, "PARQUET", n) for n in range(40)
    ]
    assert [f.is_live for f in files] == [n % 3 != 2 for n in range(40)]


def test_fields_and_facts_that_are_not_known_are_carried_over() -> None:
    schema = manifest_schema(3, PARTITION)
    file = next(f for f in schema["fields"] if f["name"] == "data_file")
    file["type"]["fields"].append({"name": "tomorrow", "type": ["null", "string"], "field-id": 9000})
    file["type"]["fields"].insert(0, {"name": "no_id", "type": {"type": "map", "values": "double"}})
    schema["fields"].append({"name": "last", "type": {"type": "enum", "name": "e", "symbols": ["A"]}, "field-id": 9001})
    entries = make_entries(schema, paths_in(OLD), tomorrow=f"{OLD}/x", no_id={"a": 1.0}, last=0)
    meta = {"format-version": "3", "content": "data", "schema": OLD, "written.by": "tomorrow"}
    data = avro_file(schema, entries, meta)
    assert relocate_manifest(data, PREFIXES).data == avro_file(schema, moved(entries), meta)


def test_spellings_of_one_place_are_mixed_in_a_manifest() -> None:
    schema = manifest_schema(2)
    paths = ["/imported/a", "file:/imported/b", "file:///imported/c", f"{OLD}/d", "s3a://old/warehouse/t/e"]
    data = relocate_manifest(manifest_file(schema, make_entries(schema, paths), 2), PREFIXES).data
    assert [f.path for f in read_manifest_files(data, "m")] == [
        "s3://new/imported/a", "s3://new/imported/b", "s3://new/imported/c", "/new/t/d", "/new/t/e",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["s3://old/warehouse/tt/x", f"{OLD}/../x", f"{OLD}//x", "/elsewhere/x"])
def test_a_path_that_no_prefix_covers_is_refused(path: str) -> None:
    schema = manifest_schema(2)
    data = manifest_file(schema, make_entries(schema, [f"{OLD}/a", path]), 2)
    with pytest.raises(UnmappedPathError) as caught:
        relocate_manifest(data, PREFIXES, where="m.avro")
    assert path in caught.value.message
    assert "m.avro" in caught.value.message


def test_an_identity_map_gives_the_same_bytes() -> None:
    same = PrefixMap([(OLD, OLD), ("/imported", "/imported"), (f"{OLD}/data", f"{OLD}/data")])
    for version in (1, 2, 3):
        schema = manifest_schema(version, PARTITION)
        data = manifest_file(schema, make_entries(schema, paths_in("s3a://old/warehouse/t")), version, per_block=3)
        assert relocate_manifest(data, same, {}).data == data


def test_small_blocks_are_joined_and_blocks_without_a_change_copied() -> None:
    schema = manifest_schema(2)
    entries = make_entries(schema, [*paths_in(OLD, 30), *paths_in("/imported", 30)])
    data = manifest_file(schema, entries, 2, per_block=1)
    found = relocate_manifest(data, PrefixMap([(OLD, NEW), ("/imported", "/imported")])).data
    before, after = read_avro(data), read_avro(found)
    assert after.head == before.head
    assert after.blocks[-30:] == before.blocks[-30:]
    assert sum(block.count for block in after.blocks) == 60
    assert len(after.blocks) < 40
    assert len(list(read_manifest_files(found, "m"))) == 60
    assert relocate_manifest(manifest_file(schema, [], 2), PREFIXES).data == manifest_file(schema, [], 2)


_TEXT = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=150)
_NAMES = _TEXT.filter(lambda name: name not in (".", ".."))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.sampled_from(CODECS), st.integers(1, 5), st.booleans(),
    st.lists(st.tuples(_NAMES, st.integers(0, 3), st.binary(max_size=99), st.text(max_size=5)), min_size=1, max_size=9),
)  # fmt: skip
def test_a_map_and_its_inverse_give_the_records_of_the_original(
    version: int, codec: str, per_block: int, sized: bool, files: list[tuple[str, int, bytes, str]]
) -> None:
    schema = manifest_schema(version, PARTITION)
    entries = [
        entry_of(
            schema, file_path=f"{OLD}/{name}", partition={**VALUES, "word": word.encode("utf8", "replace").decode()},
            lower_bounds=[(PATH_COLUMN, bound)] * repeat, content_offset=repeat or None,
        )
        for name, repeat, bound, word in files
    ]  # fmt: skip
    data = manifest_file(schema, entries, version, codec=codec, per_block=per_block, sized=sized)
    there = relocate_manifest(data, PREFIXES).data
    back = relocate_manifest(there, BACK).data
    assert records_of(back) == records_of(data)
    assert read_avro(back).head == read_avro(there).head == read_avro(data).head
    assert [f.path for f in read_manifest_files(there, "m")] == [f"{NEW}/{name}" for name, *_ in files]


def records_of(data: bytes) -> tuple[int, bytes]:
    file = read_avro(data)
    return sum(b.count for b in file.blocks), b"".join(decompress(file.codec, b.data) for b in file.blocks)


# ── delete manifests ─────────────────────────────────────────────────────────────────────────────────────────────────


def delete_entry(schema: dict[str, Any], path: str, low: str, high: str | None = None, **more: Any) -> dict[str, Any]:
    usual = {
        "content": 1, "status": 1, "sequence_number": 3, "file_path": f"{OLD}/data/{path}", "file_size_in_bytes": 1234,
        "column_sizes": [(PATH_COLUMN, 50), (2147483545, 60)], "split_offsets": [4],
        "lower_bounds": [(PATH_COLUMN, low.encode()), (2147483545, b"\1" * 8)],
        "upper_bounds": [(2147483545, b"\2" * 8), (PATH_COLUMN, (high or low).encode())],
    }  # fmt: skip
    return entry_of(schema, **{**usual, **more})


@pytest.mark.parametrize("version", [2, 3])
def test_position_deletes_have_mapped_paths_bounds_and_measured_sizes(version: int) -> None:
    schema = manifest_schema(version, PARTITION)
    one = f"{OLD}/data/1.parquet"
    entries = [delete_entry(schema, f"{n}-deletes.parquet", one, referenced_data_file=one) for n in range(6)]
    sizes = {e["data_file"]["file_path"]: FileSize(99 + n, (4, 50 + n), {PATH_COLUMN: 7, 1: n})
             for n, e in enumerate(entries)}  # fmt: skip
    found = relocate_manifest(manifest_file(schema, entries, version, "deletes"), PREFIXES, sizes)
    there = f"{NEW}/data/1.parquet"
    bounds = {
        "lower_bounds": [(PATH_COLUMN, there.encode()), (2147483545, b"\1" * 8)],
        "upper_bounds": [(2147483545, b"\2" * 8), (PATH_COLUMN, there.encode())],
    }
    expected = [
        {**e, "data_file": {**e["data_file"], "file_size_in_bytes": 99 + n, "split_offsets": [4, 50 + n],
                            "column_sizes": [(PATH_COLUMN, 7), (1, n)]}}
        for n, e in enumerate(moved(entries, referenced_data_file=there, **bounds))
    ]  # fmt: skip
    assert found.data == manifest_file(schema, expected, version, "deletes")
    files = list(read_manifest_files(found.data, "m"))
    assert [(f.size, f.content, f.referenced) for f in files] == [(99 + n, 1, there) for n in range(6)]


def test_deletion_vectors_keep_their_place_in_the_file_and_equality_deletes_their_columns() -> None:
    schema = manifest_schema(3)
    vector = {
        "content": 1, "file_format": "PUFFIN", "file_path": f"{OLD}/data/dv.puffin", "file_size_in_bytes": 500,
        "content_offset": 4, "content_size_in_bytes": 40, "referenced_data_file": f"{OLD}/data/1.parquet",
    }  # fmt: skip
    equal = {"content": 2, "file_path": f"{OLD}/data/eq.parquet", "equality_ids": [1, 3], "file_size_in_bytes": 700,
             "lower_bounds": [(1, b"s3://old/warehouse/t/x")], "column_sizes": [(1, 2)]}  # fmt: skip
    entries = [entry_of(schema, **vector), entry_of(schema, **equal)] * 3
    found = relocate_manifest(
        manifest_file(schema, entries, 3, "deletes"), PREFIXES, {f"{OLD}/data/dv.puffin": FileSize(456)}
    )
    vector |= {"file_path": f"{NEW}/data/dv.puffin", "file_size_in_bytes": 456,
               "referenced_data_file": f"{NEW}/data/1.parquet"}  # fmt: skip
    equal |= {"file_path": f"{NEW}/data/eq.parquet"}
    assert found.data == manifest_file(
        schema, [entry_of(schema, **vector), entry_of(schema, **equal)] * 3, 3, "deletes"
    )
    first, second, *_ = read_manifest_files(found.data, "m")
    assert (first.content_offset, first.content_size, first.format) == (4, 40, "PUFFIN")
    assert (second.content, second.size) == (2, 700)


def test_what_was_not_measured_is_not_carried_over() -> None:
    """A stale size makes readers fail, or skip entries without a word."""
    schema = manifest_schema(2)
    entry = delete_entry(schema, "d.parquet", f"{OLD}/data/1")
    data = manifest_file(schema, [entry], 2, "deletes")
    with pytest.raises(IntegrityError, match=r"d\.parquet was not measured"):
        relocate_manifest(data, PREFIXES, {})
    assert next(read_manifest_files(relocate_manifest(data, PREFIXES).data, "m")).size == 1234
    found = relocate_manifest(data, PREFIXES, {f"{OLD}/data/d.parquet": FileSize(9)}).data
    expected = delete_entry(schema, "d.parquet", f"{NEW}/data/1", file_path=f"{NEW}/data/d.parquet",
                            file_size_in_bytes=9, column_sizes=None, split_offsets=None)  # fmt: skip
    assert found == manifest_file(schema, [expected], 2, "deletes")
    # Of a file that was deleted, nothing is copied.
    gone = manifest_file(schema, [{**entry, "status": 2}], 2, "deletes")
    assert next(read_manifest_files(relocate_manifest(gone, PREFIXES, {}).data, "m")).size == 1234


_LONG = f"{OLD}/data/{'y' * 300}"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (f"{OLD}/data/1", f"{OLD}/data/2", (f"{NEW}/data/1", f"{NEW}/data/2")),
        (_LONG, _LONG, (_LONG.replace(OLD, NEW), _LONG.replace(OLD, NEW))),
        (f"{OLD}/data/aa", f"{OLD}/data/b", (f"{NEW}/data/aa", f"{NEW}/data/b")),  # the upper one is cut and raised
        ("/imported/a", f"{OLD}/data/1", None),  # two prefixes, whose order the map changes
        (f"{OLD}/data/1", "s3://old/warehouse/u", None),  # cut within the prefix
        (f"{OLD}/", f"{OLD}/data/2", (f"{NEW}/", f"{NEW}/data/2")),
    ],
)
def test_bounds_of_several_paths_are_mapped_or_dropped(low: str, high: str, expected: tuple[str, str] | None) -> None:
    schema = manifest_schema(2)
    path = f"{OLD}/data/d.parquet"
    data = manifest_file(schema, [delete_entry(schema, "d.parquet", low, high)] * 3, 2, "deletes")
    for sizes in ({}, {"path_bounds": ("/a", "/b")}):
        found = relocate_manifest(data, PREFIXES, {path: FileSize(9, (4,), {1: 1}, **sizes)}).data
        first, last = ("/a", "/b") if sizes else expected or (None, None)
        entry = delete_entry(schema, "d.parquet", "", file_path=f"{NEW}/data/d.parquet", file_size_in_bytes=9,
                             column_sizes=[(1, 1)])  # fmt: skip
        file = entry["data_file"]
        low_path, high_path = ([(PATH_COLUMN, text.encode())] if text else [] for text in (first, last))
        file["lower_bounds"] = [*low_path, (2147483545, b"\1" * 8)]
        file["upper_bounds"] = [(2147483545, b"\2" * 8), *high_path]
        assert found == manifest_file(schema, [entry] * 3, 2, "deletes")


# ── entries that are left out ────────────────────────────────────────────────────────────────────────────────────────


def test_entries_of_erased_files_are_left_out_and_counted() -> None:
    schema = manifest_schema(2)
    entries = make_entries(schema, paths_in(OLD, 12))
    omit = {paths_in(OLD)[n] for n in (0, 1, 2, 4, 11)}
    found = relocate_manifest(manifest_file(schema, entries, 2, per_block=3), PREFIXES, omit=omit)
    kept = [e for e in entries if e["data_file"]["file_path"] not in omit]
    assert found.data == manifest_file(schema, moved(kept), 2)
    assert found.omitted == OmittedCounts(
        added_files=2, existing_files=1, deleted_files=2, added_rows=5, existing_rows=0, deleted_rows=13
    )
    none = relocate_manifest(manifest_file(schema, entries, 2), PREFIXES, omit=paths_in(OLD, 12))
    assert list(read_manifest_files(none.data, "m")) == []


def test_the_row_ids_of_other_files_stay_where_files_before_them_are_left_out() -> None:
    """A file without a first row id of its own takes it from the rows before it in the manifest."""
    schema = manifest_schema(3)
    rows = [5, 7, 11, 13, 17]
    entries = [
        entry_of(schema, file_path=f"{OLD}/{n}", record_count=count, first_row_id=900 if n == 3 else None,
                 status=2 if n == 1 else 1) for n, count in enumerate(rows)
    ]  # fmt: skip
    found = relocate_manifest(manifest_file(schema, entries, 3), PREFIXES, omit={f"{OLD}/0"}, first_row_id=100).data
    expected = moved(entries[1:])
    expected[1]["data_file"]["first_row_id"] = 105  # the deleted one before it has none
    expected[3]["data_file"]["first_row_id"] = 116
    assert found == manifest_file(schema, expected, 3)
    # Where the list gives the manifest none, its files have none.
    found = relocate_manifest(manifest_file(schema, entries, 3), PREFIXES, omit={f"{OLD}/0"}).data
    assert found == manifest_file(schema, moved(entries[1:]), 3)
    old = manifest_schema(2)
    entries = [entry_of(old, file_path=f"{OLD}/{n}") for n in range(3)]
    with pytest.raises(UnsupportedError, match="cannot be left out"):
        relocate_manifest(manifest_file(old, entries, 2), PREFIXES, omit={f"{OLD}/1"}, first_row_id=100)
    relocate_manifest(manifest_file(old, entries, 2), PREFIXES, omit={f"{OLD}/2"}, first_row_id=100)


# ── manifest lists ───────────────────────────────────────────────────────────────────────────────────────────────────


def list_schema(version: int) -> dict[str, Any]:
    summary = {"type": "record", "name": "r508", "fields": [
        field(509, "contains_null", "boolean"), field(510, "lower_bound", "bytes", optional=True)]}  # fmt: skip
    counts = [(504, "added_files_count"), (505, "existing_files_count"), (506, "deleted_files_count")]
    rows = [(512, "added_rows_count"), (513, "existing_rows_count"), (514, "deleted_rows_count")]
    fields = [
        field(500, "manifest_path", "string"),
        field(501, "manifest_length", "long"),
        field(502, "partition_spec_id", "int"),
        *([field(517, "content", "int"), field(515, "sequence_number", "long"),
           field(516, "min_sequence_number", "long")] if version > 1 else []),
        field(503, "added_snapshot_id", "long", optional=version == 1),
        *(field(n, name, "int", optional=version == 1) for n, name in counts),
        *(field(n, name, "long", optional=version == 1) for n, name in rows),
        field(507, "partitions", {"type": "array", "items": summary}, optional=True),
        field(519, "key_metadata", "bytes", optional=True),
        *([field(520, "first_row_id", "long", optional=True)] if version > 2 else []),
    ]  # fmt: skip
    return {"type": "record", "name": "manifest_file", "fields": fields}


def list_entry(schema: dict[str, Any], **values: Any) -> dict[str, Any]:
    usual = {"manifest_length": 5000, "partition_spec_id": 3, "content": 0, "sequence_number": 9, "first_row_id": 77,
             "min_sequence_number": 2, "added_snapshot_id": 42, "added_files_count": 4, "existing_files_count": 3,
             "deleted_files_count": 2, "added_rows_count": 40, "existing_rows_count": 30, "deleted_rows_count": 20,
             "partitions": [(True, b"s3://old/warehouse/t"), (False, None)]}  # fmt: skip
    return {f["name"]: {**usual, **values}.get(f["name"]) for f in schema["fields"]}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_a_list_has_mapped_paths_measured_lengths_and_adjusted_counts(version: int, codec: str) -> None:
    schema = list_schema(version)
    meta = {"format-version": str(version), "snapshot-id": "42", "parent-snapshot-id": "null"}
    names = [f"m{n}.avro" for n in range(4)]
    manifests: dict[str, RelocatedManifest | int] = {f"{OLD}/metadata/{name}": 10**n for n, name in enumerate(names)}
    manifests[f"{OLD}/metadata/m2.avro"] = RelocatedManifest(b"x" * 321, OmittedCounts(1, 1, 0, 10, 5, 0))
    entries = [list_entry(schema, manifest_path=f"{OLD}/metadata/{name}") for name in names]
    data = avro_file(schema, entries, meta, codec=codec)
    new = [dict(e, manifest_path=f"{NEW}/metadata/{name}", manifest_length=10**n)
           for n, (e, name) in enumerate(zip(entries, names, strict=True))]  # fmt: skip
    new[2] |= {"manifest_length": 321, "added_files_count": 3, "existing_files_count": 2, "added_rows_count": 30,
               "existing_rows_count": 25}  # fmt: skip
    assert relocate_manifest_list(data, PREFIXES, manifests) == avro_file(schema, new, meta, codec=codec)
    found = read_manifest_list(data, "l")
    assert [m.path for m in found] == list(manifests)
    one = found[0]
    assert (one.length, one.spec_id, one.content, one.files, one.added_snapshot_id) == (5000, 3, 0, 9, 42)
    assert (one.sequence_number, one.first_row_id) == (9 if version > 1 else 0, 77 if version > 2 else None)


def test_counts_that_an_old_writer_left_out_stay_out() -> None:
    schema = list_schema(1)
    unknown = dict.fromkeys(name for name in list_entry(schema) if name.endswith("_count"))
    entry = list_entry(schema, manifest_path=f"{OLD}/m", added_snapshot_id=None, **unknown)
    data = avro_file(schema, [entry])
    found = relocate_manifest_list(data, PREFIXES, {f"{OLD}/m": RelocatedManifest(b"12", OmittedCounts(1))})
    assert found == avro_file(schema, [entry | {"manifest_path": f"{NEW}/m", "manifest_length": 2}])
    assert read_manifest_list(data, "l")[0].files is None


def test_a_manifest_that_was_not_relocated_fails_its_list() -> None:
    schema = list_schema(2)
    data = avro_file(schema, [list_entry(schema, manifest_path=f"{OLD}/m")], {"format-version": "2"})
    with pytest.raises(IntegrityError, match=r"s3://old/warehouse/t/m of snap\.avro was not relocated"):
        relocate_manifest_list(data, PREFIXES, {}, where="snap.avro")


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def each_reader(data: bytes, where: str) -> Iterator[Any]:
    yield lambda: list(read_manifest_files(data, where))
    yield lambda: relocate_manifest(data, PREFIXES, {}, where=where)


def each_list_reader(data: bytes, where: str) -> Iterator[Any]:
    yield lambda: read_manifest_list(data, where)
    yield lambda: relocate_manifest_list(data, PREFIXES, {f"{OLD}/m": 1}, where=where)


def test_encrypted_files_are_refused() -> None:
    for version in (1, 2, 3):
        schema = manifest_schema(version)
        entries = [*make_entries(schema, paths_in(OLD, 9)), entry_of(schema, file_path=f"{OLD}/x", key_metadata=b"k")]
        listed = list_schema(version)
        one = list_entry(listed, manifest_path=f"{OLD}/m", key_metadata=b"k")
        calls = [*each_reader(manifest_file(schema, entries, version), "m.avro"),
                 *each_list_reader(avro_file(listed, [one]), "m.avro")]  # fmt: skip
        for call in calls:
            with pytest.raises(UnsupportedError, match=r"^m\.avro names encrypted files$"):
                call()


def test_newer_format_versions_are_refused() -> None:
    schema = manifest_schema(3)
    listed = list_schema(3)
    calls = [*each_reader(manifest_file(schema, [], 4), "m.avro"),
             *each_list_reader(avro_file(listed, [], {"format-version": "4"}), "m.avro")]  # fmt: skip
    for call in calls:
        with pytest.raises(UnsupportedError, match=r"^m\.avro is of format version 4$"):
            call()


@pytest.mark.parametrize("codec", CODECS)
def test_damage_is_an_integrity_error_that_names_the_file(codec: str) -> None:
    """Cut at any place; and with a flipped bit it is either noticed or leads to a value, never to another error."""
    chance = random.Random(codec)
    schema, listed = manifest_schema(2, PARTITION), list_schema(2)
    manifest = manifest_file(schema, make_entries(schema, paths_in(OLD, 9)), 2, codec=codec, per_block=4)
    listing = avro_file(listed, [list_entry(listed, manifest_path=f"{OLD}/m")], {"format-version": "2"}, codec=codec)
    blocks = read_avro(manifest).blocks
    ends = {len(read_avro(manifest).with_blocks(blocks[:n])) for n in range(len(blocks) + 1)}
    for cut in {chance.randrange(len(manifest)) for _ in range(30)} - ends:
        for call in each_reader(manifest[:cut], "m.avro"):
            with pytest.raises(IntegrityError, match=r"^m\.avro cannot be read$"):
                call()
    for data, calls in ((manifest, each_reader), (listing, each_list_reader)):
        for _ in range(60):
            broken = bytearray(data)
            broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            for call in calls(bytes(broken), "m.avro"):
                try:
                    call()
                except FrazilError as error:
                    assert "m.avro" in error.message


@pytest.mark.parametrize(
    "data",
    [
        b"", b"Obj\x01", b"PAR1", b"{}", avro_file("string", ["x"]), avro_file([], []),
        avro_file({"type": "record", "name": "x", "fields": []}, [()]),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    for call in (*each_reader(data, "m.avro"), *each_list_reader(data, "m.avro")):
        with pytest.raises(IntegrityError, match=r"^m\.avro cannot be read$"):
            call()


# ── files of real writers ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_of_java_and_pyiceberg_are_relocated(version: str, tmp_path: Path) -> None:
    """As PyIceberg reads them: equal but for the paths. In two steps the records are as in one."""
    with tarfile.open(DATA / f"{version}.tar.gz") as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive if m.name.endswith(".avro")}  # type: ignore[union-attr]
    there, straight = PrefixMap([(HOME, "s3://b/home")]), PrefixMap([(HOME, "/x")])
    further = PrefixMap([("s3a://b/home", "/x")])
    io = PyArrowFileIO()
    seen = 0
    for name, data in files.items():
        if "snap-" not in name:
            continue
        listed = read_manifest_list(data, name)
        own = {m.path: files.get("home" + m.path.partition(HOME)[2], b"") for m in listed}
        if not all(own.values()):
            continue  # of an expired snapshot
        relocated = {path: relocate_manifest(content, there) for path, content in own.items()}
        listing = relocate_manifest_list(data, there, relocated)
        assert [m.path for m in read_manifest_list(listing, name)] == [there.map(path) for path in own]
        assert [m.length for m in read_manifest_list(listing, name)] == [len(m.data) for m in relocated.values()]
        lengths = {m.path: m.length for m in listed}
        twice = relocate_manifest_list(listing, further, {there.map(path): length for path, length in lengths.items()})
        assert records_of(twice) == records_of(relocate_manifest_list(data, straight, lengths))
        for path, content in own.items():
            new = relocated[path].data
            twice = relocate_manifest(new, further).data
            assert records_of(twice) == records_of(relocate_manifest(content, straight).data)
            before = entries_of(io, tmp_path, data, content, there)
            assert before == entries_of(io, tmp_path, listing, new, PrefixMap([("s3://b/home", "s3://b/home")]))
            seen += len(before)
    assert seen > 10


def entries_of(io: PyArrowFileIO, folder: Path, listing: bytes, manifest: bytes, prefixes: PrefixMap) -> list[Any]:
    """All that PyIceberg reads of a manifest, with mapped paths."""
    (folder / "list").write_bytes(listing)
    (folder / "manifest").write_bytes(manifest)
    one: ManifestFile = next(iter(pyiceberg_list(io.new_input(str(folder / "list")))))
    local = ManifestFile.from_args(
        2, manifest_path=str(folder / "manifest"), manifest_length=len(manifest), partition_spec_id=0,
        content=one.content, sequence_number=one.sequence_number, added_snapshot_id=one.added_snapshot_id,
        min_sequence_number=one.min_sequence_number,
    )  # fmt: skip
    found = []
    for entry in local.fetch_manifest_entry(io, discard_deleted=False):
        file = entry.data_file
        values = [dict(v) if isinstance(v, Mapping) else repr(v) for v in file._data]
        for value in values:
            if isinstance(value, dict) and isinstance(value.get(PATH_COLUMN), bytes):
                value[PATH_COLUMN] = prefixes.map(value[PATH_COLUMN].decode()).encode()
        values[values.index(repr(file.file_path))] = prefixes.map(file.file_path)
        found.append([entry.status, entry.snapshot_id, entry.sequence_number, values])
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_a_moved_table_of_pyiceberg_gives_the_same_rows_at_every_snapshot(version: int, tmp_path: Path) -> None:
    """Partitioned by every column, one of which is dropped. The original is away while the copy is read."""
    table = make_table(tmp_path / "source", version)
    with table.update_spec() as update:
        update.remove_field("word")
    table.append(ROWS)
    io = PyArrowFileIO()
    source = table.location().removeprefix("file://")
    rows = {s.snapshot_id: table.scan(snapshot_id=s.snapshot_id).to_arrow().to_pylist() for s in table.snapshots()}
    metadata = parse_metadata(Path(table.metadata_location.removeprefix("file://")).read_bytes())
    target = tmp_path / "target"
    prefixes = PrefixMap([(table.location(), str(target))])
    Path(source).rename(target)
    done: dict[str, RelocatedManifest] = {}
    read = lambda path: Path(prefixes.map(path)).read_bytes()  # noqa: E731
    lists = {path: read(path) for path in list_metadata_paths(metadata).manifest_lists}
    for data in lists.values():
        for manifest in read_manifest_list(data, "list"):
            if manifest.path not in done:
                done[manifest.path] = relocate_manifest(read(manifest.path), prefixes, {})
    for path, manifest in done.items():
        Path(prefixes.map(path)).write_bytes(manifest.data)
    for path, data in lists.items():
        Path(prefixes.map(path)).write_bytes(relocate_manifest_list(data, prefixes, done))
    (target / "v.metadata.json").write_bytes(
        format_metadata(relocate_metadata(metadata, prefixes, metadata_log="drop"))
    )
    found = StaticTable.from_metadata(str(target / "v.metadata.json"))
    assert len(rows) >= 3
    for snapshot_id, expected in rows.items():
        assert found.scan(snapshot_id=snapshot_id).to_arrow().to_pylist() == expected
    for snapshot in found.metadata.snapshots:
        for manifest in snapshot.manifests(io):
            assert manifest.manifest_length == Path(manifest.manifest_path).stat().st_size
