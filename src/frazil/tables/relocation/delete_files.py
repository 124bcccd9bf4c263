"""Paths inside position-delete files: which rows of which data files are deleted.

Equality deletes and deletion vectors hold none; the footers of Puffin files are rewritten by `puffin`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from frazil.errors import IntegrityError, UnsupportedError
from frazil.tables.metadata.avro import AvroBlock, AvroFile, long, read_avro, read_long
from frazil.tables.metadata.avro_codecs import compress, decompress
from frazil.tables.metadata.avro_records import layout_of
from frazil.tables.relocation.manifests import PATH_COLUMN, FileSize

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from frazil.tables.relocation.prefixes import PrefixMap

#: Columns of a position-delete file, as the specification names them.
_PATH, _POS = "file_path", "pos"
_POSITION_COLUMN = 2147483545
_FIELD_ID = b"PARQUET:field_id"
_ENCRYPTED = b"PARE"
#: Types that Parquet has with and without a name.
_PLAIN = {"Int(bitWidth=64, isSigned=true)": "None", "Int(bitWidth=32, isSigned=true)": "None"}
#: Longest share of distinct values for which ORC keeps a dictionary; Iceberg's own writers use the same.
_ORC_DICTIONARY = 0.8
#: Rows of an ORC file that are in memory at once.
_ORC_BATCH = 64 * 1024


def relocate_position_deletes(data: bytes, file_format: str, prefixes: PrefixMap) -> bytes:
    """Returns a position-delete file that refers to relocated data files.

    Key-value metadata, schema, field ids, codec and row groups are kept. Rows are sorted by path and position, also
    where the relocated paths sort differently. Memory: the file, its copy, and one row group, with each distinct path
    once; if rows have to be sorted, all of them.

    Args:
        data: the whole file.
        file_format: PARQUET, AVRO or ORC, in any case.
        prefixes: where each path goes.

    Raises:
        IntegrityError: this is not a whole file of position deletes.
        UnmappedPathError: a path lies below none of the prefixes.
        UnsupportedError: the format is unknown, the file is encrypted, or it holds a column that would change.
    """
    relocate = _choose(file_format, {"PARQUET": _relocate_parquet, "ORC": _relocate_orc, "AVRO": _relocate_avro})
    try:
        return relocate(data, prefixes)
    except _damage() as error:
        raise IntegrityError(
            f"a file of position deletes ({file_format}) cannot be read", hint="frazil table verify, or restore it"
        ) from error


def measure_delete_file(data: bytes, file_format: str) -> FileSize:
    """Returns what a manifest records of a file of position deletes: its size and, as far as its format tells, more."""
    if file_format.upper() == "PARQUET":
        return _measure_parquet(data)
    return FileSize(len(data), path_bounds=_measure_orc(data) if file_format.upper() == "ORC" else None)


def _choose(file_format: str, ways: dict[str, Callable[[bytes, PrefixMap], bytes]]) -> Callable[..., bytes]:
    if file_format.upper() not in ways:
        raise UnsupportedError(
            f"cannot rewrite position deletes in format {file_format!r}", cause=f"known are {', '.join(ways)}"
        )
    return ways[file_format.upper()]


def _damage() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, ValueError, KeyError, EOFError, OSError, IndexError, TypeError)


def _relocate_parquet(data: bytes, prefixes: PrefixMap) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if data.startswith(_ENCRYPTED) or data.endswith(_ENCRYPTED):
        raise UnsupportedError("cannot rewrite an encrypted file of position deletes")
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=[_PATH])
    known = dict[str, str]()
    count = file.num_row_groups

    def read(columns: list[str] | None = None) -> Iterator[pa.Table]:
        for number in range(count):
            yield _map_paths(file.read_row_group(number, columns=columns), prefixes, known)

    groups = read() if _is_sorted(read([_PATH, _POS])) else _sort(list(read()))
    out = io.BytesIO()
    with _parquet_writer(out, file) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(group.num_rows, 1))
        writer.add_key_value_metadata({k: v for k, v in (file.metadata.metadata or {}).items() if k != b"ARROW:schema"})
    _require_same_columns(file.schema, pq.ParquetFile(pa.BufferReader(out.getbuffer())).schema)
    return out.getvalue()


def _parquet_writer(out: io.BytesIO, file: pq.ParquetFile) -> pq.ParquetWriter:
    import pyarrow.parquet as pq

    meta = file.metadata
    first = meta.row_group(0).column(0) if meta.num_row_groups else None
    codec = first.compression.lower() if first else "zstd"
    return pq.ParquetWriter(
        out,
        file.schema_arrow,
        # Arrow writes the LZ4 that the specification calls LZ4_RAW, and cannot write Hadoop's.
        compression={"uncompressed": "none", "lz4_raw": "lz4"}.get(codec, codec),
        version="2.6",
        store_schema=False,
        write_page_index=bool(first and first.has_offset_index),
        store_decimal_as_integer=_has_integer_decimals(file.schema),
    )


def _has_integer_decimals(schema: pq.ParquetSchema) -> bool:
    columns = [schema.column(i) for i in range(len(schema.names))]
    return any(c.logical_type.type == "DECIMAL" and c.physical_type.startswith("INT") for c in columns)


def _require_same_columns(old: pq.ParquetSchema, new: pq.ParquetSchema) -> None:
    """Refuses what Arrow writes differently than it was: types in the optional column `row` that it does not have."""

    def describe(schema: pq.ParquetSchema) -> list[tuple[Any, ...]]:
        columns = [schema.column(i) for i in range(len(schema.names))]
        return [
            (
                *(c.path, c.physical_type, c.length, _PLAIN.get(str(c.logical_type), str(c.logical_type))),
                *(c.max_definition_level, c.max_repetition_level),
            )
            for c in columns
        ]

    _require(describe(old) == describe(new) and _field_ids(old.to_arrow_schema()) == _field_ids(new.to_arrow_schema()))


def _field_ids(fields: Iterable[pa.Field]) -> list[Any]:
    import pyarrow as pa

    def inner(kind: pa.DataType) -> list[Any]:
        return _field_ids([kind.field(i) for i in range(kind.num_fields)]) if pa.types.is_nested(kind) else []

    return [((field.metadata or {}).get(_FIELD_ID), inner(field.type)) for field in fields]


def _require(kept: bool) -> None:
    if not kept:
        raise UnsupportedError(
            "cannot rewrite a file of position deletes",
            cause="its column 'row' has a type that would change",
            hint="rewrite the table's position deletes first: CALL system.rewrite_position_delete_files",
        )


def _measure_parquet(data: bytes) -> FileSize:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    ids = {field.name: int((field.metadata or {}).get(_FIELD_ID, -1)) for field in file.schema_arrow}
    sizes: dict[int, int] = {}
    offsets, bounds = [], []
    for group in groups:
        columns = [group.column(i) for i in range(group.num_columns)]
        bounds += [c.statistics for c in columns if c.path_in_schema == _PATH]
        starts = (columns[0].dictionary_page_offset, columns[0].data_page_offset)
        offsets.append(min(start for start in starts if start))
        for column in columns:
            if (field := ids.get(column.path_in_schema, -1)) >= 0:
                sizes[field] = sizes.get(field, 0) + column.total_compressed_size
    known = bool(bounds) and all(each is not None and each.has_min_max for each in bounds)
    return FileSize(
        len(data),
        split_offsets=tuple(offsets),
        column_sizes=sizes,
        path_bounds=(min(each.min for each in bounds), max(each.max for each in bounds)) if known else None,
    )


def _relocate_orc(data: bytes, prefixes: PrefixMap) -> bytes:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import orc

    file = orc.ORCFile(pa.BufferReader(data))
    known = dict[str, str]()

    def read(columns: list[str] | None = None) -> Iterator[pa.Table]:
        # A stripe of a few kilobytes may have millions of rows, each with the whole path once it is read.
        fragment = ds.OrcFileFormat().make_fragment(pa.BufferReader(data))
        for batch in fragment.to_batches(
            columns=columns, batch_size=_ORC_BATCH, batch_readahead=0, use_threads=False, schema=file.schema
        ):
            yield _map_paths(pa.Table.from_batches([batch]), prefixes, known)

    batches = read() if _is_sorted(read([_PATH, _POS])) else _sort(list(read()))
    out = io.BytesIO()
    with orc.ORCWriter(
        out,
        compression=file.compression,
        compression_block_size=file.compression_size or 64 * 1024,
        row_index_stride=file.row_index_stride,
        dictionary_key_size_threshold=_ORC_DICTIONARY,
    ) as writer:
        writer.write(file.schema.empty_table())  # a file without rows has its columns, too
        for batch in batches:
            column = batch.schema.get_field_index(_PATH)
            writer.write(batch.set_column(column, file.schema.field(_PATH), batch[_PATH].cast(pa.string())))
    written = orc.ORCFile(pa.BufferReader(out.getbuffer()))
    _require(written.schema.remove_metadata().equals(file.schema.remove_metadata(), check_metadata=True))
    return _with_orc_metadata(out.getvalue(), dict(file.metadata or {}), compressed=file.compression != "UNCOMPRESSED")


def _measure_orc(data: bytes) -> tuple[str, str] | None:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import orc

    found = pc.min_max(orc.ORCFile(pa.BufferReader(data)).read(columns=[_PATH])[_PATH]).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _with_orc_metadata(data: bytes, metadata: dict[bytes, bytes], *, compressed: bool) -> bytes:
    """Adds key-value metadata, which Arrow does not write, to the footer of an ORC file.

    A footer is a message of Protocol Buffers: what is appended to it counts as its further fields. Compression is by
    chunks, each of which may be stored as it is.
    """
    if not metadata:
        return data
    items = b"".join(_message(5, _message(1, key) + _message(2, value)) for key, value in metadata.items())
    if compressed:
        items = b"".join(_stored(items[i : i + 65536]) for i in range(0, len(items), 65536))
    end = len(data) - 1 - data[-1]
    script, at = b"", end
    while at < len(data) - 1:
        key, after = _read_varint(data, at)
        if key & 7 == 0:
            value, after = _read_varint(data, after)
        else:
            size, after = _read_varint(data, after)
            after += size
        # Field 1 is the length of the footer.
        script += _varint(key) + _varint(value + len(items)) if key == 1 << 3 else data[at:after]
        at = after
    return data[:end] + items + script + bytes([len(script)])


def _stored(chunk: bytes) -> bytes:
    return (len(chunk) << 1 | 1).to_bytes(3, "little") + chunk


def _message(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return result, at


def _map_paths(rows: pa.Table, prefixes: PrefixMap, known: dict[str, str]) -> pa.Table:
    """Replaces each distinct path once; the column is a dictionary afterwards.

    Args:
        rows: of a row group.
        prefixes: where each path goes.
        known: paths that were mapped before, to which new ones are added.
    """
    import pyarrow as pa

    column = rows[_PATH]
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = column.unify_dictionaries().combine_chunks()
    if codes.null_count:
        raise ValueError("a row has no path")
    for path in codes.dictionary.to_pylist():
        if path not in known:
            known[path] = prefixes.map(path)
    mapped = pa.array([known[path] for path in codes.dictionary.to_pylist()], pa.string())
    at = rows.schema.get_field_index(_PATH)
    field = rows.schema.field(at).with_type(pa.dictionary(codes.indices.type, pa.string()))
    return rows.set_column(at, field, pa.DictionaryArray.from_arrays(codes.indices, mapped))


def _is_sorted(groups: Iterable[pa.Table]) -> bool:
    import numpy as np

    last = (b"", -1)
    for rows in groups:
        if not rows.num_rows:
            continue
        paths, ranks, positions = _keys(rows)
        steps = np.diff(ranks)
        if ((steps < 0) | ((steps == 0) & (np.diff(positions) < 0))).any():
            return False
        if (paths[ranks[0]], positions[0]) < last:
            return False
        last = (paths[ranks[-1]], positions[-1])
    return True


def _sort(groups: list[pa.Table]) -> list[pa.Table]:
    """Sorts all rows by path and position, and divides them into groups of the same sizes."""
    import numpy as np
    import pyarrow as pa

    rows = pa.concat_tables(groups).unify_dictionaries()
    _, ranks, positions = _keys(rows)
    rows = rows.take(pa.array(np.lexsort((positions, ranks))))
    ends = np.cumsum([group.num_rows for group in groups])
    return [rows.slice(end - group.num_rows, group.num_rows) for end, group in zip(ends, groups, strict=True)]


def _keys(rows: pa.Table) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Returns the distinct paths in order, and each row's place among them and position."""
    import numpy as np

    codes = rows[_PATH].unify_dictionaries().combine_chunks()
    texts = [path.encode() for path in codes.dictionary.to_pylist()]
    paths = sorted(set(texts))
    rank = {path: number for number, path in enumerate(paths)}
    places = np.array([rank[text] for text in texts], dtype=np.int64)
    return paths, places[codes.indices.to_numpy()], rows[_POS].to_numpy()


def _relocate_avro(data: bytes, prefixes: PrefixMap) -> bytes:
    """Replaces the paths in the records; all other bytes of a record stay, whatever its schema."""
    file = read_avro(data)
    layout = layout_of(file.meta["avro.schema"], (PATH_COLUMN, _POSITION_COLUMN))
    if layout.kinds != {PATH_COLUMN: "string", _POSITION_COLUMN: "long"}:
        raise ValueError("its schema lacks the columns of position deletes")
    text_at, pos_at = (1 + 2 * layout.ids.index(column) for column in (PATH_COLUMN, _POSITION_COLUMN))
    known = dict[bytes, bytes]()

    def records(block: AvroBlock) -> Iterator[tuple[bytes, int, bytes]]:
        raw = decompress(file.codec, block.data)
        for places in layout.find_records(raw, block.count):
            size, begin = read_long(raw, places[text_at])
            end = begin + size
            path = raw[begin:end]
            if path not in known:
                known[path] = prefixes.map(path.decode()).encode()
            new = known[path]
            pos, _ = read_long(raw, places[pos_at])
            yield new, pos, b"".join((raw[places[0] : places[text_at]], long(len(new)), new, raw[end : places[-1]]))

    blocks, last = [], (b"", -1)
    for block in file.blocks:
        parts = []
        for path, pos, record in records(block):
            if (path, pos) < last:
                return file.with_blocks(_sort_avro(file, records))
            last = path, pos
            parts.append(record)
        blocks.append(AvroBlock(block.count, compress(file.codec, b"".join(parts))))
    return file.with_blocks(blocks)


def _sort_avro(file: AvroFile, records: Callable[[AvroBlock], Iterable[tuple[bytes, int, bytes]]]) -> list[AvroBlock]:
    every = iter(sorted(record for block in file.blocks for record in records(block)))
    return [
        AvroBlock(block.count, compress(file.codec, b"".join(record for _, _, record in islice(every, block.count))))
        for block in file.blocks
    ]
