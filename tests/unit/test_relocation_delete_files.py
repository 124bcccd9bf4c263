"""Position deletes refer to relocated data files, and everything else about their files stays."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import InputFile
from pyiceberg.typedef import Record

from frazil.errors import IntegrityError, UnsupportedError
from frazil.tables.metadata.avro import read_avro
from frazil.tables.relocation.delete_files import measure_delete_file, relocate_position_deletes
from frazil.tables.relocation.prefixes import PrefixMap, UnmappedPathError
from tests.avro_files import avro_file

MOVE = PrefixMap([("file:/lake/t", "/copy/t")])
#: As they sort before and after: the second folder comes first then.
SWAP = PrefixMap([("/lake/a", "/copy/z"), ("/lake/b", "/copy/y")])
Rows = list[tuple[str, int]]
KEYS = {"delete-type": "position", "iceberg.schema": '{"type":"struct"}', "ä": "ö" * 70_000}


def field(name: str, kind: pa.DataType, number: int, key: str, *, required: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={key: str(number)})


def schema(key: str = "PARQUET:field_id", *, row: bool = False) -> pa.Schema:
    fields = [field("file_path", pa.string(), 2147483546, key), field("pos", pa.int64(), 2147483545, key)]
    if row:
        inner = [
            field("id", pa.int64(), 1, key),
            field("at", pa.timestamp("us", "UTC"), 2, key, required=False),
            field("tags", pa.list_(field("element", pa.string(), 4, key, required=False)), 3, key, required=False),
            field(
                "map",
                pa.map_(field("key", pa.string(), 6, key), field("value", pa.decimal128(9, 2), 7, key, required=False)),
                5,
                key,
                required=False,
            ),
            field("raw", pa.binary(16), 8, key, required=False),
        ]
        fields.append(field("row", pa.struct(inner), 2147483544, key, required=False))
    return pa.schema(fields)


def parquet(rows: Rows, *, codec: str = "zstd", group: int = 3, row: bool = False, index: bool = True) -> bytes:
    out = io.BytesIO()
    table = table_of(rows, schema(row=row))
    with pq.ParquetWriter(out, table.schema, compression=codec, store_schema=False, write_page_index=index) as writer:
        writer.write_table(table, row_group_size=group)
        writer.add_key_value_metadata(KEYS)
    return out.getvalue()


def table_of(rows: Rows, columns: pa.Schema) -> pa.Table:
    values: list[list[Any]] = [[path for path, _ in rows], [pos for _, pos in rows]]
    if "row" in columns.names:
        values.append([deleted_row(pos) for _, pos in rows])
    return pa.table([pa.array(v, f.type) for v, f in zip(values, columns, strict=True)], schema=columns)


def deleted_row(pos: int) -> dict[str, Any] | None:
    if pos % 3 == 0:
        return None
    return {"id": pos, "at": None, "tags": ["x", None][: pos % 3], "map": [("k", None)], "raw": bytes(16)}


def orc_file(rows: Rows, *, codec: str = "zlib", row: bool = False) -> bytes:
    columns = schema("iceberg.id", row=row)
    out = io.BytesIO()
    with orc.ORCWriter(out, compression=codec, dictionary_key_size_threshold=0.8) as writer:
        writer.write(columns.empty_table())
        for at in range(0, len(rows), 3):
            writer.write(table_of(rows[at : at + 3], columns))
    return out.getvalue()


def avro_schema(*, row: bool = False) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
    ]
    if row:
        inner = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "double", "field-id": 1}]}
        fields.insert(1, {"name": "row", "type": ["null", inner], "default": None, "field-id": 2147483544})
    return {"type": "record", "name": "delete", "fields": fields}


def avro(rows: Rows, *, codec: str = "deflate", row: bool = False) -> bytes:
    """Three records to a block."""
    records = [(path, ((0.5,) if pos % 2 else None), pos) if row else (path, pos) for path, pos in rows]
    return avro_file(avro_schema(row=row), records, KEYS, codec, per_block=3)


def rows_of(data: bytes, file_format: str) -> Rows:
    if file_format == "AVRO":
        with AvroFile[Record](BytesInput(data)) as reader:
            return [(record[0], record[1]) for record in reader]
    table = pq.read_table(io.BytesIO(data)) if file_format == "PARQUET" else orc.read_table(io.BytesIO(data))
    return list(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))


class BytesInput(InputFile):
    """Bytes that PyIceberg reads as a file."""

    def __init__(self, data: bytes) -> None:
        super().__init__("memory")
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self.data)


MAKE: dict[str, Callable[[Rows], bytes]] = {"PARQUET": parquet, "ORC": orc_file, "AVRO": avro}
BY_FORMAT = pytest.mark.parametrize("file_format", MAKE)


@BY_FORMAT
def test_rows_keep_their_positions_and_get_new_paths(file_format: str) -> None:
    rows = [(f"file:/lake/t/data/é {n}.parquet", p) for n in range(4) for p in (0, 7, 2**40)]
    moved = relocate_position_deletes(MAKE[file_format](rows), file_format.lower(), MOVE)
    assert rows_of(moved, file_format) == [(path.replace("file:/lake", "/copy"), pos) for path, pos in rows]


@BY_FORMAT
def test_rows_are_sorted_where_relocated_paths_sort_differently(file_format: str) -> None:
    rows = [(f"/lake/{f}/{n}", p) for f in "ab" for n in range(2) for p in range(5)]
    moved = relocate_position_deletes(MAKE[file_format](rows), file_format, SWAP)
    assert rows_of(moved, file_format) == [(f"/copy/{f}/{n}", p) for f in "yz" for n in range(2) for p in range(5)]


@BY_FORMAT
def test_spellings_of_one_file_become_one(file_format: str) -> None:
    rows = [("/lake/t/1", 1), ("/lake/t/1", 9), ("file:/lake/t/1", 0), ("file:///lake/t/1", 5)]
    moved = relocate_position_deletes(MAKE[file_format](rows), file_format, MOVE)
    assert rows_of(moved, file_format) == [("/copy/t/1", p) for p in (0, 1, 5, 9)]


@BY_FORMAT
def test_a_file_without_rows_keeps_its_columns(file_format: str) -> None:
    moved = relocate_position_deletes(MAKE[file_format]([]), file_format, MOVE)
    assert rows_of(moved, file_format) == []


@BY_FORMAT
def test_a_path_elsewhere_is_refused(file_format: str) -> None:
    with pytest.raises(UnmappedPathError, match="/lake/t2/1"):
        relocate_position_deletes(MAKE[file_format]([("/lake/t2/1", 0)]), file_format, MOVE)


@BY_FORMAT
def test_a_deletion_from_a_file_that_is_long_gone_is_kept_with_the_others(file_format: str) -> None:
    prefixes = PrefixMap(MOVE.pairs, strays="/copy/t/gone")
    moved = relocate_position_deletes(MAKE[file_format]([("/lake/t/1", 0), ("/old/1", 3)]), file_format, prefixes)
    kept, (stray, position) = rows_of(moved, file_format)
    assert (kept, position) == (("/copy/t/1", 0), 3)
    assert stray.startswith("/copy/t/gone/")


@BY_FORMAT
def test_damage_is_named(file_format: str) -> None:
    data = MAKE[file_format]([(f"/lake/t/{n}", n) for n in range(10)])
    for end in range(0, len(data), 7):
        with pytest.raises(IntegrityError, match="cannot be read"):
            relocate_position_deletes(data[:end], file_format, MOVE)
    with pytest.raises(IntegrityError, match="cannot be read"):
        relocate_position_deletes(b"", file_format, MOVE)


def test_other_formats_and_encrypted_files_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="'VORTEX'"):
        relocate_position_deletes(b"", "VORTEX", MOVE)
    with pytest.raises(UnsupportedError, match="encrypted"):
        relocate_position_deletes(b"PARE....PARE", "PARQUET", MOVE)


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "none", "lz4", "brotli"])
@pytest.mark.parametrize("index", [True, False])
def test_parquet_keeps_what_its_footer_says(codec: str, index: bool) -> None:
    rows = [(f"file:/lake/t/data/{n}.parquet", p) for n in range(4) for p in range(2)]
    old = parquet(rows, codec=codec, index=index)
    new = relocate_position_deletes(old, "PARQUET", MOVE)
    before, after = pq.ParquetFile(io.BytesIO(old)), pq.ParquetFile(io.BytesIO(new))
    assert str(before.schema).partition("\n")[2] == str(after.schema).partition("\n")[2]
    assert before.metadata.metadata == after.metadata.metadata
    assert [before.metadata.row_group(i).num_rows for i in range(3)] == [
        after.metadata.row_group(i).num_rows for i in range(3)
    ]
    columns = [(m.row_group(0).column(c)) for m in (before.metadata, after.metadata) for c in range(2)]
    assert {c.compression for c in columns} == {columns[0].compression}
    assert {c.has_offset_index for c in columns} == {index}


def test_parquet_keeps_the_deleted_rows_themselves() -> None:
    rows = [(f"/lake/{f}/{n}", p) for f in "ab" for n in range(2) for p in range(5)]
    old = parquet(rows, row=True)
    new = relocate_position_deletes(old, "PARQUET", SWAP)
    before, after = pq.ParquetFile(io.BytesIO(old)), pq.ParquetFile(io.BytesIO(new))
    assert str(before.schema).partition("\n")[2] == str(after.schema).partition("\n")[2]
    table = after.read()
    assert table["pos"].to_pylist() == [0, 1, 2, 3, 4] * 4
    assert table["row"].to_pylist() == [deleted_row(pos) for pos in [0, 1, 2, 3, 4] * 4]


@pytest.mark.parametrize("as_integer", [True, False])
def test_parquet_keeps_how_decimals_are_stored(as_integer: bool) -> None:
    old = io.BytesIO()
    options: dict[str, Any] = {"store_schema": False, "store_decimal_as_integer": as_integer}
    pq.write_table(table_of([("/lake/t/1", 1)], schema(row=True)), old, **options)
    new = relocate_position_deletes(old.getvalue(), "PARQUET", MOVE)
    before, after = pq.ParquetFile(old), pq.ParquetFile(io.BytesIO(new))
    assert str(before.schema).partition("\n")[2] == str(after.schema).partition("\n")[2]


def test_a_type_that_would_change_is_refused() -> None:
    old = io.BytesIO()
    table = table_of([("/lake/t/1", 1)], schema(row=True))
    pq.write_table(table, old, store_schema=False, use_deprecated_int96_timestamps=True)
    with pytest.raises(UnsupportedError) as refused:
        relocate_position_deletes(old.getvalue(), "PARQUET", MOVE)
    assert refused.value.cause == "its column 'row' has a type that would change"


def test_parquet_is_measured() -> None:
    data = parquet([(f"/lake/t/{n}", n) for n in range(7)])
    found = measure_delete_file(data, "PARQUET")
    meta = pq.ParquetFile(io.BytesIO(data)).metadata
    sizes = [[meta.row_group(g).column(c).total_compressed_size for g in range(3)] for c in range(2)]
    assert found.size == len(data)
    assert found.column_sizes == {2147483546: sum(sizes[0]), 2147483545: sum(sizes[1])}
    assert found.split_offsets == tuple(meta.row_group(g).column(0).dictionary_page_offset for g in range(3))
    assert found.split_offsets[0] == 4
    assert found.path_bounds == ("/lake/t/0", "/lake/t/6")
    assert measure_delete_file(parquet([]), "parquet").path_bounds is None


def test_orc_and_avro_are_measured_as_a_whole() -> None:
    data = orc_file([(f"/lake/t/{n}", n) for n in range(7)])
    found = measure_delete_file(data, "ORC")
    assert (found.size, found.split_offsets, found.column_sizes) == (len(data), None, None)
    assert found.path_bounds == ("/lake/t/0", "/lake/t/6")
    assert measure_delete_file(b"1234", "AVRO").size == 4


@pytest.mark.parametrize("codec", ["zlib", "zstd", "snappy", "lz4", "uncompressed"])
def test_orc_keeps_field_ids_codec_and_metadata(codec: str) -> None:
    from frazil.tables.relocation.delete_files import _with_orc_metadata

    plain = orc_file([(f"/lake/t/{n}", n) for n in range(7)], codec=codec)
    keys = {k.encode(): v.encode() for k, v in KEYS.items()}
    old = _with_orc_metadata(plain, keys, compressed=codec != "uncompressed")
    assert dict(orc.ORCFile(io.BytesIO(old)).metadata) == keys
    new = relocate_position_deletes(old, "ORC", MOVE)
    before, after = orc.ORCFile(io.BytesIO(old)), orc.ORCFile(io.BytesIO(new))
    assert after.schema.field("file_path").metadata == {b"iceberg.id": b"2147483546"}
    assert after.schema.field("pos").metadata == {b"iceberg.id": b"2147483545"}
    assert after.compression == before.compression == codec.upper()
    assert dict(after.metadata) == keys
    assert rows_of(new, "ORC") == [(f"/copy/t/{n}", n) for n in range(7)]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_avro_keeps_header_codec_and_blocks(codec: str) -> None:
    rows = [(f"/lake/t/{n}", n) for n in range(7)]
    moved = relocate_position_deletes(avro(rows, codec=codec), "AVRO", MOVE)
    assert moved == avro([(path.replace("/lake", "/copy"), pos) for path, pos in rows], codec=codec)
    assert [block.count for block in read_avro(moved).blocks] == [3, 3, 1]


def test_avro_keeps_the_deleted_rows_themselves() -> None:
    rows = [(f"/lake/{f}/{n}", p) for f in "ab" for n in range(2) for p in range(5)]
    moved = relocate_position_deletes(avro(rows, row=True), "AVRO", SWAP)
    assert moved == avro([(f"/copy/{f}/{n}", p) for f in "yz" for n in range(2) for p in range(5)], row=True)


def test_avro_without_the_columns_of_deletes_is_refused() -> None:
    data = avro([]).replace(b"2147483546", b"2147483547")
    with pytest.raises(IntegrityError):
        relocate_position_deletes(data, "AVRO", MOVE)


def test_orc_keeps_the_deleted_rows_themselves() -> None:
    rows = [(f"/lake/{f}/{n}", p) for f in "ab" for n in range(2) for p in range(5)]
    old = orc_file(rows, row=True)
    new = relocate_position_deletes(old, "ORC", SWAP)
    before, after = orc.ORCFile(io.BytesIO(old)), orc.ORCFile(io.BytesIO(new))
    assert before.schema.equals(after.schema, check_metadata=True)
    assert after.schema.field("row").type.field("tags").type.field(0).metadata == {b"iceberg.id": b"4"}
    table = after.read()
    assert table["pos"].to_pylist() == [0, 1, 2, 3, 4] * 4
    assert table["row"].to_pylist() == [deleted_row(pos) for pos in [0, 1, 2, 3, 4] * 4]


def test_orc_is_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.tables.relocation.delete_files._ORC_BATCH", 2)
    rows = [(f"/lake/t/{n}", p) for n in range(3) for p in range(5)]
    moved = relocate_position_deletes(orc_file(rows), "ORC", MOVE)
    assert rows_of(moved, "ORC") == [(path.replace("/lake", "/copy"), pos) for path, pos in rows]
