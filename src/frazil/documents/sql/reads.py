"""The reads of a document store, on an engine. Present and past are answered by the same queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, Row, func, select

from frazil.documents import lifecycle
from frazil.documents.cursors import decode_cursor, encode_cursor
from frazil.documents.decide import StoredRevision
from frazil.documents.fields import is_document_id
from frazil.documents.fingerprint import Fingerprint
from frazil.documents.model import Column, Document, Revision, from_micros, parse_time, plain_time, to_micros
from frazil.documents.sql.arrow_reads import read_history_table
from frazil.documents.sql.counts import count_rows, read_counts
from frazil.documents.sql.engine import connect
from frazil.documents.sql.fingerprints import read_fingerprint
from frazil.documents.sql.query import (
    Listing,
    after_place,
    at_moment,
    check_limit,
    check_moment,
    conditions_of,
    make_listing,
    order_of,
    place_of,
)
from frazil.documents.sql.records import load_columns, load_current, read_clock, read_histories
from frazil.documents.sql.rows import to_document, to_revision
from frazil.documents.sql.schema import REVISION_COLUMNS, document_history
from frazil.documents.store import DocumentFilter, Page, Statistics, Time
from frazil.errors import NotFoundError, UsageError

_BATCH = 1000
_HISTORY_BATCH = 5000
_TABLE_BATCH = 25_000
_DOCUMENT_COLUMNS = REVISION_COLUMNS[:-2]


class SqlReads:
    """The reading half of a document store.

    Args:
        engine: of a database with the tables of `frazil.documents.sql.schema`.
        cursor_key: signs cursors; the same in all processes that serve one store.
    """

    def __init__(self, engine: Engine, cursor_key: bytes) -> None:
        self._engine = engine
        self._cursor_key = cursor_key

    def connection(self) -> AbstractContextManager[Connection]:
        """Opens a connection for reads."""
        return connect(self._engine)

    def get_metadata(self, document_id: str) -> Document:
        """Returns a document.

        Raises:
            NotFoundError: it does not exist, or was deleted.
        """
        current: Revision | None = None
        if is_document_id(document_id):
            with self.connection() as connection:
                current = load_current(connection, [document_id]).get(document_id)
        return lifecycle.require_present(current, _shown(document_id)).document

    def list_metadata(
        self,
        storage_tier: str | None = None,
        start_date: Time | None = None,
        end_date: Time | None = None,
        *,
        limit: int | None = None,
        as_of: Time | None = None,
        **filters: Any,
    ) -> list[Document]:
        """Returns all documents that match, newest first. `filters` are the other fields of `DocumentFilter`."""
        try:
            where = DocumentFilter(storage_tier=storage_tier, start_date=start_date, end_date=end_date, **filters)
        except TypeError:
            names = ", ".join(DocumentFilter.__dataclass_fields__)
            unknown = next((name for name in filters if name not in DocumentFilter.__dataclass_fields__), "?")
            raise UsageError(f"filter '{unknown[:80]}' does not exist", hint=f"one of: {names}") from None
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise UsageError(f"limit is invalid: {str(limit)[:80]}", hint="a whole number from 1, or None for all")
        found: list[Document] = []
        for batch in self._stream(make_listing(where, "created_at", True, as_of), limit):
            found += batch
        return found if limit is None else found[:limit]

    def page(
        self,
        where: DocumentFilter | None = None,
        *,
        sort: str = "created_at",
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
        as_of: Time | None = None,
    ) -> Page:
        """Returns one page. Pages that follow by cursor neither repeat nor skip documents that did not change."""
        listing, limit = make_listing(where, sort, descending, as_of), check_limit(limit)
        place = None if cursor is None else decode_cursor(self._cursor_key, listing.to_dict(), cursor)
        rows = self._fetch(listing, place, limit + 1)
        following = None
        if len(rows) > limit:
            rows = rows[:limit]
            following = encode_cursor(self._cursor_key, listing.to_dict(), _place(listing, rows[-1]))
        return Page([to_document(row) for row in rows], following)

    def iterate(self, where: DocumentFilter | None = None, *, as_of: Time | None = None) -> Iterator[list[Document]]:
        """Streams all documents that match, oldest first, in batches.

        Documents that are created or changed meanwhile may be among them or not; with `as_of` all are of one moment.
        """
        return self._stream(make_listing(where, as_of=as_of), None)

    def get_statistics(self, *, as_of: Time | None = None) -> Statistics:
        moment = check_moment(as_of)
        with self.connection() as connection:
            if moment is None:
                return read_counts(connection)
            return count_rows(connection, document_history, at_moment(moment))

    def get_time_travel_snapshot(self, document_id: str, timestamp: Time) -> Document:
        """Returns the document as it was acknowledged at a moment.

        Raises:
            NotFoundError: it did not exist at that moment.
        """
        moment = to_micros(parse_time(timestamp, "timestamp"))
        c = document_history.c
        row = None
        if is_document_id(document_id):
            query = select(*_columns(document_history)).where(c.document_id == document_id)
            with self.connection() as connection:
                row = connection.execute(query.where(c.valid_from <= moment, c.valid_to > moment)).first()
                first = connection.scalar(select(func.min(c.valid_from)).where(c.document_id == document_id))
        if row is not None:
            return lifecycle.require_present(to_revision(row), document_id).document
        lifecycle_hint = f"frazil docs history {_shown(document_id)}"
        if is_document_id(document_id) and first is not None:
            raise NotFoundError(
                f"document '{document_id}' did not exist at {plain_time(from_micros(moment))}",
                cause=f"its first revision is of {plain_time(from_micros(first))}",
                hint=lifecycle_hint,
            )
        return lifecycle.require_present(None, _shown(document_id)).document

    def history(self, document_id: str, *, after: int = 0, limit: int | None = None) -> list[Revision]:
        """Returns the revisions with a greater number than `after`, oldest first, and at most `limit`.

        Raises:
            NotFoundError: the document never existed.
        """
        c = document_history.c
        rows: list[Any] = []
        if is_document_id(document_id):
            query = select(*_columns(document_history)).where(c.document_id == document_id, c.revision > after)
            with self.connection() as connection:
                rows = list(connection.execute(query.order_by(c.revision).limit(limit)))
        if not rows and not (after and self.latest_revisions([document_id])):
            lifecycle.require_present(None, _shown(document_id))
        return [to_revision(row) for row in rows]

    def latest_revisions(self, ids: Collection[str]) -> dict[str, Revision]:
        """Returns the latest revisions of documents, as far as they ever existed; a deleted one's is its delete."""
        with self.connection() as connection:
            return load_current(connection, [document_id for document_id in ids if is_document_id(document_id)])

    def revisions(self, after: str | None = None) -> Iterator[list[Revision]]:
        """Streams all revisions ordered by document id and revision, in batches that never split a document."""
        for batch in self.stored_revisions(after):
            yield [stored.revision for stored in batch]

    def history_tables(self, after: str | None = None) -> Iterator[pa.Table]:
        """Streams what `revisions` does as Arrow tables in `REVISION_SCHEMA`, without idempotency keys."""
        while True:
            with self.connection() as connection:
                rows = read_history_table(connection, after, _TABLE_BATCH)
            if not rows.num_rows:
                return
            yield rows
            after = rows.column("document_id")[-1].as_py()

    def stored_revisions(self, after: str | None = None) -> Iterator[list[StoredRevision]]:
        """Streams what `revisions` does, with idempotency keys."""
        while True:
            with self.connection() as connection:
                batch = read_histories(connection, after, _HISTORY_BATCH)
            if not batch:
                return
            yield batch
            after = batch[-1].revision.document_id

    def fingerprint(
        self, progress: Callable[[int], None] = lambda _: None, *, canonical: bool = False, lists: bool = True
    ) -> Fingerprint:
        """Returns counts and hashes of all that the store has, see `read_fingerprint`."""
        with self.connection() as connection:
            return read_fingerprint(connection, progress, canonical=canonical, lists=lists)

    def last_change(self) -> datetime | None:
        """Returns the moment of the last acknowledgement, or of the newest loaded revision; None: there is none."""
        with self.connection() as connection:
            return read_clock(connection)

    def columns(self) -> dict[str, Column]:
        with self.connection() as connection:
            return load_columns(connection)

    def refresh(self) -> None:
        """Does nothing: every read sees all that is acknowledged."""

    def _stream(self, listing: Listing, limit: int | None) -> Iterator[list[Document]]:
        place: list[Any] | None = None
        size = _BATCH if limit is None else min(limit, _BATCH)
        while True:
            rows = self._fetch(listing, place, size)
            if rows:
                yield [to_document(row) for row in rows]
            if limit is not None:
                limit -= len(rows)
            if len(rows) < size or limit == 0:
                return
            place = _place(listing, rows[-1])

    def _fetch(self, listing: Listing, place: list[Any] | None, limit: int) -> list[Row[Any]]:
        dialect = self._engine.dialect.name
        query = select(*_columns(listing.table)).where(*conditions_of(listing))
        if place is not None:
            query = query.where(after_place(listing, place, dialect))
        with self.connection() as connection:
            return list(connection.execute(query.order_by(*order_of(listing, dialect)).limit(limit)).all())


def _columns(table: Any) -> list[Any]:
    return [table.c[name] for name in REVISION_COLUMNS]


def _place(listing: Listing, row: Row[Any]) -> list[Any]:
    return place_of(listing, row.document_id, row._mapping[listing.sort])


def _shown(document_id: Any) -> str:
    return document_id if is_document_id(document_id) else str(document_id)[:80]
