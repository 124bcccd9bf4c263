"""Reads documents from the Iceberg tables and the log's tail, without the projection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import DOCUMENT_SCHEMA, OFFSET, STAMP_SCHEMA, TIME, table_to_revisions
from frazil.documents.cursors import decode_cursor, encode_cursor
from frazil.documents.iceberg.staging import open_staging
from frazil.documents.iceberg.table_scan import TableScanner
from frazil.documents.messages import DECODED_SCHEMA, DecodedBatch, decode_messages
from frazil.documents.model import Document, to_micros
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.documents.sql.counts import to_statistics
from frazil.documents.sql.query import Listing, check_limit, check_moment, make_listing, place_of
from frazil.documents.sql.rows import search_text, tag_text
from frazil.documents.store import DocumentFilter, Page, Statistics, Time
from frazil.documents.tables import added_columns, find_history_position
from frazil.errors import NotFoundError, UnavailableError
from frazil.tables.reading.measured_io import ScanExplanation
from frazil.tables.reading.retrying import read_current
from frazil.tables.store import LazyStore, find_table
from frazil.topics.dead_letters.batches import REPLAYED_FROM
from frazil.topics.reading.tail import Bound, Lag, Opener, TailReader

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.settings import Settings

#: A longer tail is left to the pipeline.
BOUND: Final = Bound(messages=50_000, bytes=64 << 20)
_COUNTED: Final = ("provider", "storage_tier", "restore_status", "size_bytes")
_COUNT: Final = """
SELECT coalesce(provider, ''), storage_tier, restore_status, count(*), sum(size_bytes::HUGEINT)::VARCHAR
FROM found GROUP BY 1, 2, 3"""
_LATEST: Final = """
SELECT row_at FROM (
    SELECT row_at, operation, row_number() OVER (PARTITION BY document_id ORDER BY revision DESC) AS place FROM found
) WHERE place = 1 AND operation <> 'delete' ORDER BY row_at"""
_AT: Final = "row_at"
_AT_ONCE: Final = 5_000


class TableReads:
    """Listings and statistics from the tables, with what the log has behind them. For one thread at a time.

    What matches is held and sorted in memory.

    Args:
        settings: the settings.
        tables: the catalog.
        open_log: opens the log for one read.
        cursor_key: signs cursors.
        explains: whether row groups are counted too, which reads the footers of files once more.
    """

    def __init__(
        self, settings: Settings, tables: LazyStore, open_log: Opener, cursor_key: bytes, *, explains: bool = False
    ) -> None:
        self._settings, self._tables, self._cursor_key, self._explains = settings, tables, cursor_key, explains
        self._topic = settings.model.documents.topic
        self._tail = TailReader(open_log, self._topic, DOCUMENTS, _decode, BOUND, live=True)
        self._scanner = TableScanner(settings.model.network)
        self.explanation = ScanExplanation()
        """Of the last query."""

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
        """Returns one page, as the store does."""
        listing, limit = make_listing(where, sort, descending, as_of), check_limit(limit)
        bound_to = {**listing.to_dict(), "via": "table"}
        place = None if cursor is None else decode_cursor(self._cursor_key, bound_to, cursor)
        documents = _documents(self._select(listing, place, limit + 1))
        if len(documents) <= limit:
            return Page(documents, None)
        last = documents[limit - 1]
        value = to_micros(last[sort]) if sort in ("created_at", "updated_at") else last[sort]
        following = encode_cursor(self._cursor_key, bound_to, place_of(listing, last.document_id, value))
        return Page(documents[:limit], following)

    def iterate(self, where: DocumentFilter | None = None, *, as_of: Time | None = None) -> Iterator[list[Document]]:
        """Yields all documents that match, oldest first, in batches."""
        rows = self._select(make_listing(where, as_of=as_of), None, None)
        for start in range(0, rows.num_rows, _AT_ONCE):
            yield _documents(rows.slice(start, _AT_ONCE))

    def get_statistics(self, *, as_of: Time | None = None) -> Statistics:
        rows = self._rows(Listing({}, as_of=check_moment(as_of)), ("document_id", *_COUNTED))
        groups = [tuple(group.values()) for group in _query(rows.select(_COUNTED), _COUNT).to_pylist()]
        return to_statistics(((group[0], group[1], group[2]), group[3], int(group[4] or 0)) for group in groups)

    def _select(self, listing: Listing, place: list[Any] | None, limit: int | None) -> pa.Table:
        """The rows of a listing behind a place, in its order."""
        rows = self._rows(listing, None)
        conditions, values = _conditions_of(listing, place)
        direction = "DESC NULLS LAST" if listing.descending else "ASC NULLS FIRST"
        order = f"{listing.sort} {direction}, document_id {direction}"
        where = " AND ".join(conditions) or "true"
        found = _query(
            _comparable(rows, listing),
            f"SELECT {_AT} FROM found WHERE {where} ORDER BY {order} LIMIT {limit or 'NULL'}",  # noqa: S608 - names of ours
            values,
        )
        return rows.take(found.column(_AT))

    # -- rows --------------------------------------------------------------------------------------------------------

    def _rows(self, listing: Listing, columns: Sequence[str] | None) -> pa.Table:
        """The documents that may match: all conditions are still to be checked."""
        name = (metadata_name if listing.as_of is None else history_name)(self._settings)
        store = self._tables.store()
        metadata = find_table(store, metadata_name(self._settings))  # before the history, whose end it helps to find
        if find_table(store, name) is None:
            return self._read(None, metadata, listing, columns)

        def missing() -> NotFoundError:
            return NotFoundError(f"table {name} does not exist", hint="frazil pipeline")

        return read_current(
            lambda: find_table(store, name), lambda table: self._read(table, metadata, listing, columns), missing, name
        )

    def _read(
        self, table: Table | None, metadata: Table | None, listing: Listing, columns: Sequence[str] | None
    ) -> pa.Table:
        from frazil.tables import find_position

        if listing.as_of is not None:
            position = find_history_position(table, metadata, self._topic)
        else:
            position = None if table is None else find_position(table, DOCUMENTS, self._topic)
        found = self._tail.read(position)
        if isinstance(found, Lag):
            raise UnavailableError("the tables are too far behind the log", cause=str(found), hint="frazil pipeline")
        parts = [part.decoded for part in found.parts]
        tail = self._tail_rows([part.batch for part in parts])
        stored, self.explanation = self._stored(table, listing, columns)
        self.explanation.tail_messages = found.end - found.start
        if listing.as_of is None:
            tail = self._without_outdated(tail, frozenset().union(*(part.replayed for part in parts)), found.end)
            changed = tail.column("document_id").combine_chunks()
            stored = stored.filter(pc.invert(pc.is_in(stored.column("document_id"), value_set=changed)))
            return pa.concat_tables([stored, _latest(tail)], promote_options="default")
        past = pa.concat_tables([stored, tail], promote_options="default")
        return _latest(past.filter(pc.less_equal(past.column("valid_from").cast(pa.int64()), listing.as_of)))

    def _stored(
        self, table: Table | None, listing: Listing, columns: Sequence[str] | None
    ) -> tuple[pa.Table, ScanExplanation]:
        if table is None:
            return DECODED_SCHEMA.empty_table(), ScanExplanation()
        names = columns or (*DOCUMENT_SCHEMA.names, *(column.name for column in added_columns(table)))
        if listing.as_of is not None:
            names = tuple(dict.fromkeys((*names, "revision", *STAMP_SCHEMA.names, OFFSET.name)))
        return self._scanner.scan(table, listing, names, explains=self._explains)

    def _tail_rows(self, batches: Sequence[DecodedBatch]) -> pa.Table:
        parts = [DECODED_SCHEMA.empty_table()]
        for batch in batches:
            parts.append(batch.revisions_table)
            if batch.bulk:
                staging = open_staging(self._tables.store(), self._settings)
                for file in batch.bulk:
                    rows = staging.read(file)
                    parts.append(
                        rows.append_column(OFFSET, pa.repeat(pa.scalar(file.offset, OFFSET.type), rows.num_rows))
                    )
        return pa.concat_tables(parts, promote_options="default")

    def _without_outdated(self, tail: pa.Table, replayed: Collection[int], end: int) -> pa.Table:
        """Leaves out revisions that come late, as replayed dead letters, after the tables have taken in later ones.

        The history tells, also of documents that are deleted or do not match a listing.
        """
        late = tail.filter(pc.is_in(tail.column(OFFSET.name), pa.array(sorted(replayed), OFFSET.type)))
        history = find_table(self._tables.store(), history_name(self._settings)) if late.num_rows else None
        if history is None:
            return tail
        ids = pc.unique(late.column("document_id")).to_pylist()
        latest, explanation = self._scanner.latest_revisions(history, ids, end)
        for name in ("requests", "bytes", "manifests_fetched"):
            setattr(self.explanation, name, getattr(self.explanation, name) + getattr(explanation, name))
        pairs = zip(tail.column("document_id").to_pylist(), tail.column("revision").to_pylist(), strict=True)
        return tail.filter(pa.array([number >= latest.get(name, 0) for name, number in pairs], pa.bool_()))


@dataclass(frozen=True)
class _Decoded:
    """Decoded messages, and the offsets of those that are dead letters sent again."""

    batch: DecodedBatch
    replayed: frozenset[int]


def _decode(messages: pa.Table) -> _Decoded:
    headers = messages.column("headers").to_pylist() if "headers" in messages.column_names else []
    offsets = zip(messages.column("offset").to_pylist(), headers, strict=False)
    replayed = frozenset(offset for offset, pairs in offsets if pairs and REPLAYED_FROM in dict(pairs))
    return _Decoded(decode_messages(messages), replayed)


def _documents(rows: pa.Table) -> list[Document]:
    return [stored.revision.document for stored in table_to_revisions(rows)]


def _latest(rows: pa.Table) -> pa.Table:
    """The last revision of each document, without documents that are deleted."""
    compared = rows.select(["document_id", "revision", "operation"])
    return rows.take(_query(_numbered(compared), _LATEST).column(_AT))


def _query(found: pa.Table, sql: str, values: Sequence[Any] = ()) -> pa.Table:
    import duckdb

    with duckdb.connect(":memory:") as duck:
        duck.register("found", found)
        return duck.execute(sql, list(values)).to_arrow_table()


def _numbered(rows: pa.Table) -> pa.Table:
    return rows.append_column(_AT, pa.array(range(rows.num_rows), pa.int64()))


def _comparable(rows: pa.Table, listing: Listing) -> pa.Table:
    """The columns that conditions and order need, with times as microseconds."""
    names = {"document_id", "created_at", "size_bytes", "filename", listing.sort, *listing.conditions}
    made = rows.select([name for name in DOCUMENT_SCHEMA.names if name in names and name != "tags"])
    for at, field in enumerate(made.schema):
        if field.type == TIME:
            made = made.set_column(at, field.name, made.column(at).cast(pa.int64()))
    if {"tags", "words"} & listing.conditions.keys():
        tags = [dict(found or ()) for found in rows.column("tags").to_pylist()]
        texts = map(search_text, rows.column("filename").to_pylist(), tags)
        made = made.append_column("search_text", pa.array(texts, pa.string()))
    return _numbered(made)


def _conditions_of(listing: Listing, place: list[Any] | None) -> tuple[list[str], list[Any]]:
    """The conditions of a listing as SQL, with their values; the same as those of the projection."""
    made: list[tuple[str, list[Any]]] = []
    for name, value in listing.conditions.items():
        match name:
            case "start_date" | "end_date":
                made.append((f"created_at {'>=' if name == 'start_date' else '<'} ?", [value]))
            case "min_size" | "max_size":
                made.append((f"size_bytes {'>=' if name == 'min_size' else '<='} ?", [value]))
            case "name_prefix":
                made.append(("starts_with(filename, ?)", [value]))
            case "tags":
                made += [("contains(search_text, ?)", [tag_text(tag, text)]) for tag, text in value.items()]
            case "words":
                made += [("contains(search_text, ?)", [word]) for word in value]
            case _:
                made.append((f"{name} = ?", [value]))
    if place is not None:
        made.append(_after(listing, place))
    return [condition for condition, _ in made], [value for _, values in made for value in values]


def _after(listing: Listing, place: list[Any]) -> tuple[str, list[Any]]:
    """The condition for the rows behind a place in the order of a listing: without a value they are the smallest."""
    beyond, name = "<" if listing.descending else ">", listing.sort
    if name == "document_id":
        return f"document_id {beyond} ?", place
    value, document_id = place
    if value is None and listing.descending:
        return f"({name} IS NULL AND document_id < ?)", [document_id]
    if value is None:
        return f"({name} IS NOT NULL OR document_id > ?)", [document_id]
    rest = f" OR {name} IS NULL" if listing.descending else ""
    return f"({name} {beyond} ? OR ({name} = ? AND document_id {beyond} ?){rest})", [value, value, document_id]
