"""Exports documents, or their whole history, to CSV, NDJSON or Parquet, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import DOCUMENT_SCHEMA, STAMP_SCHEMA, TIME, added_fields, revisions_to_table
from frazil.documents.decide import StoredRevision
from frazil.documents.model import FIELD_NAMES, Column, Revision
from frazil.documents.store import DocumentFilter, DocumentStore, Time
from frazil.documents.transfer import STAMPS, Format
from frazil.documents.transfer.values import json_text

_GROUP_BYTES = 16 << 20


class Writer(Protocol):
    def write(self, revisions: Sequence[Revision]) -> None: ...

    def finish(self) -> None: ...


def export_documents(
    store: DocumentStore,
    file: IO[bytes],
    form: Format,
    where: DocumentFilter | None = None,
    *,
    as_of: Time | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Writes all documents that match, as they are or were at a moment, and returns how many."""
    batches = (
        [Revision(document, "put", document.updated_at) for document in documents]
        for documents in store.iterate(where, as_of=as_of)
    )
    return _export(batches, file, form, store.columns(), with_stamps=False, progress=progress)


def export_history(
    store: DocumentStore, file: IO[bytes], form: Format, *, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Writes all revisions of all documents, deleted ones too, and returns how many revisions."""
    return _export(store.revisions(), file, form, store.columns(), with_stamps=True, progress=progress)


def _export(
    batches: Iterable[Sequence[Revision]],
    file: IO[bytes],
    form: Format,
    columns: Mapping[str, Column],
    *,
    with_stamps: bool,
    progress: Callable[[int], None],
) -> int:
    count = 0
    target = _Position(file)
    writer = _WRITERS[form](target, list(columns.values()), with_stamps)
    try:
        for batch in batches:
            writer.write(batch)
            count += len(batch)
            progress(count)
        writer.finish()
    finally:
        target.detach()
    return count


def export_schema(columns: Sequence[Column], *, with_stamps: bool) -> pa.Schema:
    """Returns the columns of an export: stamps, the fields of the record, added columns."""
    stamps = [STAMP_SCHEMA.field(name) for name in STAMPS] if with_stamps else []
    return pa.schema([*stamps, *DOCUMENT_SCHEMA, *added_fields(columns)])


def to_table(revisions: Sequence[Revision], schema: pa.Schema) -> pa.Table:
    rows = revisions_to_table([StoredRevision(revision) for revision in revisions])
    arrays = []
    for field in schema:
        if field.name in rows.column_names:
            arrays.append(rows[field.name])
        else:
            arrays.append(pa.array([r.document.columns.get(field.name) for r in revisions], field.type))
    return pa.table(arrays, schema=schema)


class _Ndjson:
    """One object per line. Fields without a value are there, as null."""

    def __init__(self, file: _Position, columns: Sequence[Column], with_stamps: bool) -> None:
        self._file, self._with_stamps = file, with_stamps
        self._added = [column.name for column in columns]

    def write(self, revisions: Sequence[Revision]) -> None:
        self._file.write(b"".join(map(self._line, revisions)))

    def _line(self, revision: Revision) -> bytes:
        document = revision.document
        row: dict[str, Any] = {}
        if self._with_stamps:
            row = {"operation": revision.operation, "valid_from": revision.valid_from}
        for name in FIELD_NAMES:
            row[name] = getattr(document, name)
        for name in self._added:
            row[name] = document.columns.get(name)
        options = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(row, default=dict, option=options)

    def finish(self) -> None:
        """Every line is written."""


class _Csv:
    """Texts in quotation marks; without any: null. Tags and attributes as JSON, times in UTC."""

    def __init__(self, file: _Position, columns: Sequence[Column], with_stamps: bool) -> None:
        from pyarrow import csv

        self._file = file
        self._schema = export_schema(columns, with_stamps=with_stamps)
        self._options = csv.WriteOptions(include_header=False)
        file.write(",".join(self._schema.names).encode() + b"\n")

    def write(self, revisions: Sequence[Revision]) -> None:
        from pyarrow import csv

        rows = to_table(revisions, self._schema)
        for place, field in enumerate(self._schema):
            if field.type == TIME:
                shown = pc.strftime(rows[field.name], format="%Y-%m-%dT%H:%M:%SZ", locale="C")
                rows = rows.set_column(place, field.name, shown)
            elif field.name == "tags":
                texts = [json_text(revision.document.tags) for revision in revisions]
                rows = rows.set_column(place, field.name, pa.array(texts, pa.string()))
        csv.write_csv(rows, self._file, self._options)

    def finish(self) -> None:
        """Every line is written."""


class _Parquet:
    """Columns in their types: tags as a map, attributes as JSON."""

    def __init__(self, file: _Position, columns: Sequence[Column], with_stamps: bool) -> None:
        import pyarrow.parquet as pq

        self._schema = export_schema(columns, with_stamps=with_stamps)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._waiting: list[pa.Table] = []

    def write(self, revisions: Sequence[Revision]) -> None:
        self._waiting.append(to_table(revisions, self._schema))
        if sum(rows.nbytes for rows in self._waiting) > _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []

    def finish(self) -> None:
        self._flush()
        self._writer.close()


class _Position:
    """A file that knows its position, which Parquet needs and a pipe does not have.

    Once it is detached it drops what is written: Arrow ends a Parquet file that was broken off, so that it looks whole.
    """

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file: IO[bytes] | None = file
        self._position = 0

    def write(self, data: Any) -> int:
        if self._file is not None:
            self._file.write(data)
            self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def detach(self) -> None:
        self._file = None

    def close(self) -> None:
        """The file is the caller's."""


_WRITERS: Mapping[Format, Callable[[_Position, Sequence[Column], bool], Writer]] = {
    "csv": _Csv,
    "ndjson": _Ndjson,
    "parquet": _Parquet,
}
