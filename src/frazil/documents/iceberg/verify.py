"""Compares the parts of the store row by row: the projection with tables and log, and the tables with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from frazil.documents.arrow import DOCUMENT_SCHEMA, HISTORY_SCHEMA, OFFSET, table_to_revisions
from frazil.documents.consistency import ConsistencyReport
from frazil.documents.decide import KEY_AGE, StoredRevision
from frazil.documents.iceberg.projection import read_position
from frazil.documents.iceberg.sorting import ArrowSource, RowSource, TableSource, sort_rows
from frazil.documents.messages import DECODED_SCHEMA, BulkFile, decode_messages
from frazil.documents.model import Document
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.documents.sql.records import load_histories, read_clock, read_histories
from frazil.documents.tables import added_columns, find_history_position
from frazil.errors import NotFoundError
from frazil.log.columns import PARTITION
from frazil.log.messages import decode_chunk
from frazil.log.protocol import LogAccess
from frazil.tables import Position, TableStore, find_position, find_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from sqlalchemy import Connection

    from frazil.settings import Settings

T = TypeVar("T")
Key = tuple[str, int]

_AT_ONCE: Final = 5_000


@dataclass(frozen=True)
class ComparedTables:
    """The two tables, and the offsets that they have reached. They are loaded before the projection is read."""

    store: TableStore
    history: Table | None
    metadata: Table | None
    history_end: int
    metadata_end: int

    @classmethod
    def load(cls, store: TableStore, settings: Settings) -> ComparedTables:
        topic = settings.model.documents.topic
        metadata = find_table(store, metadata_name(settings))
        history = find_table(store, history_name(settings))
        return cls(
            store,
            history,
            metadata,
            _end_of(find_history_position(history, metadata, topic)),
            _end_of(None if metadata is None else find_position(metadata, DOCUMENTS, topic)),
        )


@dataclass
class PartsComparison:
    """A comparison of all parts.

    Attributes:
        access: the log.
        topic: of documents.
        tables: loaded before the connection was opened.
        connection: sees one state of the projection.
        read_bulk: reads staged files.
        folder: for temporary files.
        report: gets what is found.
    """

    access: LogAccess
    topic: str
    tables: ComparedTables
    connection: Connection
    read_bulk: Callable[[BulkFile], pa.Table]
    folder: Path
    report: ConsistencyReport

    def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Compares. `progress` is told how many revisions have been compared."""
        info, position = self.access.info(self.topic), read_position(self.connection)
        assert position is not None, "it was followed up to the end of the log"
        self._compare_history(position.offset, progress)
        self._compare_present()
        self._compare_messages(info.start, min(self.tables.history_end, position.offset))

    def _compare_history(self, end: int, progress: Callable[[int], None]) -> None:
        """The history table and the messages behind it, beside the history of the projection."""
        expected = self._merged_history(end)
        for number, (given, found) in enumerate(_pair(_first_of_each(expected, self.report), self._projected(), _key)):
            if given is None or found is None:
                missing = "the history table and the log" if given is None else "the projection"
                self.report.add(f"{_name(_key(given or found))} is missing in {missing}")
            elif not self._is_same(given, found):
                self.report.add(f"{_name(_key(given))} differs in the projection: {_difference(given, found)}")
            if number % _AT_ONCE == 0:
                progress(number)

    def _compare_present(self) -> None:
        """The table of present documents beside what the history says at its position."""
        from pyiceberg.expressions import AlwaysTrue

        if self.tables.metadata is None:
            return
        names = (*DOCUMENT_SCHEMA.names, *(column.name for column in added_columns(self.tables.metadata)))
        source = TableSource(self.tables.store, self.tables.metadata, AlwaysTrue(), names)
        stored = (
            revision.revision.document
            for some in sort_rows([source], ("document_id",), self.folder)
            for revision in table_to_revisions(some)
        )
        for given, found in _pair(self._expected_documents(), stored, lambda document: document.document_id):
            if given is None or found is None:
                wrong = "should not be" if given is None else "is missing"
                document_id = (given or found).document_id  # type: ignore[union-attr]  # one of them is there
                self.report.add(f"document '{document_id}' {wrong} in the table of present documents")
            elif given != found:
                names_of = _differing(given, found)
                self.report.add(f"document '{given.document_id}' differs in the table of present documents: {names_of}")

    def _compare_messages(self, start: int, end: int) -> None:
        """What the log still has of the messages that the tables have too."""
        for rows in self._messages(start, end, are_merged=True):
            for first in range(0, rows.num_rows, _AT_ONCE):
                messages = table_to_revisions(rows.slice(first, _AT_ONCE))
                stored = load_histories(self.connection, {m.revision.document_id for m in messages})
                known = {_key(revision): revision for history in stored.values() for revision in history}
                for message in messages:
                    found = known.get(_key(message))
                    if found is None:
                        self.report.add(f"{_name(_key(message))} is in the log, and missing in the projection")
                    elif not self._is_same(message, found):
                        text = _difference(message, found)
                        self.report.add(f"{_name(_key(message))} differs from its message in the log: {text}")

    def _is_same(self, given: StoredRevision, found: StoredRevision) -> bool:
        """Whether the projection has what was published. It forgets idempotency keys that are too old."""
        if found.idempotency_key is None and given.idempotency_key is not None:
            clock = read_clock(self.connection)
            if clock is not None and given.revision.valid_from < clock - KEY_AGE:
                return found.revision == given.revision
        return found == given

    # -- sources -----------------------------------------------------------------------------------------------------

    def _merged_history(self, end: int) -> Iterator[tuple[int, StoredRevision]]:
        """The rows of the history table and the messages behind it, below an offset, by id and revision."""
        from pyiceberg.expressions import LessThan

        tail = [*self._messages(self.tables.history_end, end), DECODED_SCHEMA.empty_table()]
        sources: list[RowSource] = [ArrowSource(rows) for rows in tail]
        if self.tables.history is not None:
            names = (*HISTORY_SCHEMA.names, *(column.name for column in added_columns(self.tables.history)))
            below = LessThan(term="offset", value=end)
            sources.append(TableSource(self.tables.store, self.tables.history, below, names))
        for rows in sort_rows(sources, ("document_id", "revision", "offset"), self.folder):
            yield from zip(rows.column(OFFSET.name).to_pylist(), table_to_revisions(rows), strict=True)

    def _expected_documents(self) -> Iterator[Document]:
        merged = self._merged_history(self.tables.metadata_end)
        for _, revisions in groupby(merged, key=lambda row: row[1].revision.document_id):
            *_, (_, last) = revisions
            if not last.revision.is_deleted:
                yield last.revision.document

    def _messages(self, start: int, end: int, *, are_merged: bool = False) -> Iterator[pa.Table]:
        """The revisions of messages in a range, those of staged files too. Merged ones may have been removed."""
        if start >= end:
            return
        info = self.access.info(self.topic)
        for chunk in self.access.chunks(self.topic, start, end):
            batch = decode_messages(decode_chunk(chunk, info.view, start, end))
            yield batch.revisions_table
            for file in batch.bulk:
                try:
                    rows = self.read_bulk(file)
                except NotFoundError:
                    if are_merged:
                        continue
                    raise
                yield rows.append_column(OFFSET, pa.repeat(pa.scalar(file.offset, pa.int64()), rows.num_rows))

    def _projected(self) -> Iterator[StoredRevision]:
        after = None
        while batch := read_histories(self.connection, after, _AT_ONCE):
            yield from batch
            after = batch[-1].revision.document_id


def _end_of(position: Position | None) -> int:
    return 0 if position is None else position.offsets.get(PARTITION, 0)


def _first_of_each(rows: Iterable[tuple[int, StoredRevision]], report: ConsistencyReport) -> Iterator[StoredRevision]:
    before: Key | None = None
    for _, stored in rows:
        if _key(stored) == before:
            report.add(f"{_name(_key(stored))} is in the history table more than once")
            continue
        before = _key(stored)
        yield stored


def _pair(left: Iterable[T], right: Iterable[T], key: Callable[[T], Any]) -> Iterator[tuple[T | None, T | None]]:
    """Pairs two sorted streams by key; None stands for what the other does not have."""
    lefts, rights = iter(left), iter(right)
    one, other = next(lefts, None), next(rights, None)
    while one is not None or other is not None:
        if other is None or (one is not None and key(one) < key(other)):
            yield one, None
            one = next(lefts, None)
        elif one is None or key(other) < key(one):
            yield None, other
            other = next(rights, None)
        else:
            yield one, other
            one, other = next(lefts, None), next(rights, None)


def _key(stored: StoredRevision | None) -> Key:
    assert stored is not None, "one of a pair is there"
    return stored.revision.document_id, stored.revision.revision


def _name(key: Key) -> str:
    return f"revision {key[1]} of document '{key[0]}'"


def _difference(given: StoredRevision, found: StoredRevision) -> str:
    names = [_differing(given.revision.document, found.revision.document)]
    names += [n for n in ("operation", "valid_from") if getattr(given.revision, n) != getattr(found.revision, n)]
    names += [n for n in ("idempotency_key", "digest") if getattr(given, n) != getattr(found, n)]
    return ", ".join(filter(None, names))


def _differing(given: Document, found: Document) -> str:
    return ", ".join(f.name for f in fields(Document) if getattr(given, f.name) != getattr(found, f.name))
