"""Avro files taken apart and put together, against PyIceberg's own reader and writer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record

from frazil.tables.create import assign_field_ids
from frazil.tables.layout import parse_partition_spec
from frazil.tables.manifest_writer import _kind, convert_to_existing
from frazil.tables.metadata.avro import AvroBlock, long, read_avro, read_long, single_records
from tests.tables import SCHEMA

LONGS = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(LONGS, st.binary(max_size=5))
def test_a_long_comes_back_as_it_was(value, rest):
    data = long(value)
    assert read_long(data + rest, 0) == (value, len(data))


def file_of(path: str) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(20454),
        record_count=3,
        file_size_in_bytes=99,
        column_sizes={1: 5},
        value_counts={1: 3},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\0" * 8},
        upper_bounds={1: b"\2" + b"\0" * 7},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=1,
    )


def manifest_of_pyiceberg(folder, codec: str = "gzip"):
    schema = assign_field_ids(SCHEMA)
    spec = parse_partition_spec(schema, ["day(publish_time)"])
    io = PyArrowFileIO()
    with write_manifest(2, spec, schema, io.new_output(f"{folder}/m.avro"), 77, codec) as writer:
        for i in range(3):
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=77, data_file=file_of(f"f{i}")
            )
            writer.add_entry(entry)
    return schema, spec, writer.to_manifest_file(), (folder / "m.avro").read_bytes()


def kind_for(schema, spec: PartitionSpec, codec: str = "gzip"):
    return _kind(schema.model_dump_json(), spec.model_dump_json(), codec, ManifestContent.DATA)


@pytest.mark.parametrize("codec", ["gzip", "null"])
def test_blocks_of_pyiceberg_are_ours(tmp_path, codec):
    schema, spec, _, data = manifest_of_pyiceberg(tmp_path, codec)
    form = kind_for(schema, spec, "uncompressed" if codec == "null" else codec).format
    content = read_avro(data)
    assert form.takes(content)
    assert [b.count for b in content.blocks] == [1, 1, 1]
    assert len(single_records(content)) == 3


def test_an_entry_becomes_existing_with_what_it_inherits(tmp_path):
    schema, spec, manifest, data = manifest_of_pyiceberg(tmp_path)
    manifest.sequence_number = 12
    kind = kind_for(schema, spec)
    changed = [convert_to_existing(entry, manifest) for entry in single_records(read_avro(data))]
    (tmp_path / "m.avro").write_bytes(kind.format.file(kind.meta, kind.format.blocks(changed)))
    manifest.sequence_number = 500  # the new manifest's own number must not be inherited
    found = manifest.fetch_manifest_entry(PyArrowFileIO())
    assert [(e.status, e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in found] == [
        (ManifestEntryStatus.EXISTING, 77, 12, 12)
    ] * 3
    assert [e.data_file for e in found] == [file_of(f"f{i}") for i in range(3)]
    assert found[0].data_file._data == [*file_of("f0")._data]


def test_an_entry_that_says_its_numbers_keeps_them(tmp_path):
    schema, spec, manifest, _ = manifest_of_pyiceberg(tmp_path)
    manifest.sequence_number = 900
    form = kind_for(schema, spec).format
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=5,
        sequence_number=6,
        file_sequence_number=7,
        data_file=file_of("f"),
    )
    assert convert_to_existing(form.encode(entry), manifest) == form.encode(entry)


def test_a_file_with_many_entries_in_a_block_is_not_split(tmp_path):
    schema, spec, _, data = manifest_of_pyiceberg(tmp_path)
    kind = kind_for(schema, spec)
    together = kind.format.file(kind.meta, kind.format.blocks(single_records(read_avro(data))))
    content = read_avro(together)
    assert [b.count for b in content.blocks] == [3]
    assert single_records(content) is None


def test_another_schema_or_codec_is_not_ours(tmp_path):
    schema, spec, _, data = manifest_of_pyiceberg(tmp_path)
    assert not kind_for(schema, spec, "uncompressed").format.takes(read_avro(data))
    assert not kind_for(schema, parse_partition_spec(schema, ["payload"])).format.takes(read_avro(data))


def test_a_damaged_file_is_an_error_at_every_byte(tmp_path):
    _, _, _, data = manifest_of_pyiceberg(tmp_path)
    whole = read_avro(data)
    assert isinstance(whole.blocks[0], AvroBlock)
    for cut in range(0, len(data) - 1, 7):
        try:
            found = read_avro(data[:cut])
        except ValueError:
            continue
        assert len(found.blocks) < len(whole.blocks), "a torn block was taken for a whole one"
