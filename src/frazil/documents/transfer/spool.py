"""Checked rows on disk between check and load, so that a file is checked as a whole in bounded memory."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import REVISION_SCHEMA, table_to_revisions
from frazil.documents.model import Revision, to_micros
from frazil.documents.transfer.checks import CHECKED_SCHEMA, LINE

#: Rows that are loaded at once.
_BATCH = 20_000


class Spool:
    """A temporary file of revisions with their lines, written once and then read any number of times.

    Memory is bounded but for 8 bytes per document, by which repeated ids are found.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="frazil-import-")  # noqa: SIM115 - closed by __exit__
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(self._file, CHECKED_SCHEMA, options=options)
        self._hashes = array("q")
        self._tables: list[pa.Table] = []
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Adds rows in `CHECKED_SCHEMA`, which will be in one batch."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        self._tables.append(rows)
        firsts = rows.column("document_id").filter(pc.equal(rows.column("revision"), 1))
        self._hashes.extend(map(hash, firsts.to_pylist()))
        if sum(rows.num_rows for rows in self._tables) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        tables, self._tables = self._tables, []
        if tables:
            self._writer.write_table(pa.concat_tables(tables).combine_chunks())

    def finish(self) -> None:
        self._flush()
        self._writer.close()
        self._file.flush()

    def find_repeated(self) -> dict[int, tuple[int, str]]:
        """Returns the lines of documents whose id a former line has: their line → the former line, and the id."""
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        wanted = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        if not wanted:
            return {}
        first: dict[str, int] = {}
        repeated: dict[int, tuple[int, str]] = {}
        for rows in self.tables():
            firsts = rows.filter(pc.equal(rows["revision"], 1))
            ids = firsts["document_id"].to_pylist()
            for document_id, hashed, line in zip(ids, map(hash, ids), firsts["line"].to_pylist(), strict=True):
                if hashed not in wanted:
                    continue
                if document_id in first:
                    repeated[line] = (first[document_id], document_id)
                else:
                    first[document_id] = line
        return repeated

    def tables(self) -> Iterator[pa.Table]:
        """Streams what was added, in `REVISION_SCHEMA` with the column `line`."""
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def stamp(rows: pa.Table, checked_at: Any, moment: Any) -> pa.Table:
    """Returns first revisions as acknowledged at a moment; `created_at` too where no other is given."""
    then, now = (pa.scalar(to_micros(time), pa.int64()).cast(REVISION_SCHEMA.field("valid_from").type)
                 for time in (checked_at, moment))  # fmt: skip
    created = pc.if_else(pc.equal(rows["created_at"], then), now, rows["created_at"])
    for name, values in (("created_at", created), ("updated_at", now), ("valid_from", now)):
        if isinstance(values, pa.Scalar):
            values = pa.repeat(values, rows.num_rows)
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), values)
    return rows


def without(rows: pa.Table, lines: AbstractSet[int]) -> pa.Table:
    """Returns the rows of all other lines."""
    if not lines:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["line"], pa.array(sorted(lines), LINE.type))))


def sort_revisions(rows: pa.Table) -> pa.Table:
    """Returns rows in `REVISION_SCHEMA`, by document id and revision."""
    order = pc.sort_indices(rows, [("document_id", "ascending"), ("revision", "ascending")])
    return rows.select(REVISION_SCHEMA.names).take(order)


def to_revisions(rows: pa.Table) -> list[Revision]:
    return [stored.revision for stored in table_to_revisions(rows.drop_columns([LINE.name]))]
