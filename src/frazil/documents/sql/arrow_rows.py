"""Revisions in Arrow tables become rows of the projection, without an object for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import ADDED, TIME, encode_added
from frazil.documents.model import Column, from_micros
from frazil.documents.sql.bulk import CACHED_ROWS, insert_rows
from frazil.documents.sql.counts import CountChanges, add_counts
from frazil.documents.sql.rows import search_text
from frazil.documents.sql.schema import FOREVER, document_history, documents

if TYPE_CHECKING:
    from sqlalchemy import Connection

_PRESENT = f"FROM document_history WHERE rowid > ? AND valid_to = {FOREVER} AND operation <> 'delete'"
_COPY = f"INSERT INTO documents SELECT {', '.join(documents.columns.keys())} {_PRESENT}"
_COUNT = f"""
SELECT coalesce(provider, ''), storage_tier, restore_status, count(*),
       sum(size_bytes >> 32), sum(size_bytes & 4294967295) {_PRESENT} GROUP BY 1, 2, 3"""
_ANY_KNOWN = "SELECT 1 FROM json_each(?) AS given JOIN document_history AS h ON h.document_id = given.value LIMIT 1"


def find_new_histories(connection: Connection, revisions: pa.Table) -> pa.Table | None:
    """Returns revisions by id and revision if they are whole histories of documents that the projection does not have.

    Args:
        connection: to the projection.
        revisions: in `REVISION_SCHEMA`, in any order.

    Returns:
        None: each revision has to be looked at.
    """
    rows = revisions.take(pc.sort_indices(revisions, [("document_id", "ascending"), ("revision", "ascending")]))
    if not rows.num_rows or not _are_whole(rows):
        return None
    ids = orjson.dumps(pc.unique(rows.column("document_id")).to_pylist()).decode()
    return rows if connection.exec_driver_sql(_ANY_KNOWN, (ids,)).first() is None else None


def insert_new_histories(connection: Connection, rows: pa.Table) -> None:
    """Inserts what `find_new_histories` has returned."""
    before = connection.exec_driver_sql("SELECT coalesce(max(rowid), 0) FROM document_history").scalar_one()
    for batch in with_ends([rows]):
        insert_history(connection, batch)
    copy_present(connection, before)


def insert_history(connection: Connection, rows: pa.Table, columns: Sequence[Column] = ()) -> None:
    """Inserts rows into `document_history`.

    Args:
        connection: to the projection.
        rows: as `with_ends` yields them.
        columns: the added columns, if the values do not stand in the column `columns`.
    """
    for start in range(0, rows.num_rows, CACHED_ROWS):
        insert_rows(connection, document_history, to_history_rows(rows.slice(start, CACHED_ROWS), columns))


def copy_present(connection: Connection, after: int = 0) -> None:
    """Copies the last revisions of documents that exist from the history, and counts them.

    Args:
        connection: to a projection that does not have these documents yet.
        after: the last row of the history that is older.
    """
    connection.exec_driver_sql(_COPY, (after,))
    counts = CountChanges()
    for provider, tier, status, number, high, low in connection.exec_driver_sql(_COUNT, (after,)):
        counts.by_group[provider, tier, status] = [number, (int(high or 0) << 32) + int(low or 0)]
    add_counts(connection, counts)


def _are_whole(rows: pa.Table) -> bool:
    """Whether sorted revisions are whole histories: from the first on, without gaps, in the order of time."""
    ids = rows.column("document_id")
    is_next = np.zeros(rows.num_rows, bool)
    is_next[1:] = pc.equal(ids.slice(1), ids.slice(0, rows.num_rows - 1)).to_numpy()
    numbers = rows.column("revision").to_numpy()
    moments, created = (rows.column(name).cast(pa.int64()).to_numpy() for name in ("valid_from", "created_at"))
    first = pa.array(np.flatnonzero(~is_next))
    return bool(
        (numbers[~is_next] == 1).all()
        and (np.diff(numbers)[is_next[1:]] == 1).all()
        and (np.diff(moments)[is_next[1:]] >= 0).all()
        and (np.diff(created)[is_next[1:]] == 0).all()
        and not pc.any(pc.equal(rows.column("operation").take(first), "delete")).as_py()
    )


def with_ends(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Adds `valid_to`, which the next row says, and leaves out repeated rows. Times become microseconds.

    Args:
        batches: of revisions, by id and revision.
    """
    before: pa.Table | None = None
    for batch in batches:
        rows = _plain_times(batch)
        if before is not None:
            rows = pa.concat_tables([before, rows])
        rows = _without_repeats(rows)
        before = rows.slice(rows.num_rows - 1)
        if rows.num_rows > 1:
            yield _ended(rows)
    if before is not None:
        yield before.append_column("valid_to", pa.array([FOREVER], pa.int64()))


def _without_repeats(rows: pa.Table) -> pa.Table:
    ids, revisions = rows.column("document_id"), rows.column("revision")
    same = pc.and_(pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1)), pc.equal(revisions.slice(1), revisions[:-1]))
    if not pc.any(same, min_count=0).as_py():
        return rows
    return rows.filter(pa.array([True, *pc.invert(same).to_pylist()]))


def _ended(rows: pa.Table) -> pa.Table:
    """All rows but the last, each with the moment of the next one of its document."""
    ids = rows.column("document_id")
    continues = pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1))
    ends = pc.if_else(continues, rows.column("valid_from").slice(1), FOREVER)
    return rows.slice(0, rows.num_rows - 1).append_column("valid_to", ends)


def _plain_times(rows: pa.Table) -> pa.Table:
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(at, field.name, rows.column(at).cast(TIME).cast(pa.int64()))
    return rows


def to_history_rows(batch: pa.Table, columns: Sequence[Column] = ()) -> list[tuple[Any, ...]]:
    """Returns rows of `document_history`.

    Args:
        batch: as `with_ends` yields it.
        columns: the added columns, if the values do not stand in the column `columns`.
    """
    read = {name: batch.column(name).to_pylist() for name in batch.column_names if name != "tags"}
    tags = [_texts_of_tags(tuple(found) if found else ()) for found in batch.column("tags").to_pylist()]
    read["tags"] = [json for json, _ in tags]
    read["attributes"] = [text or "{}" for text in read["attributes"]]
    if ADDED.name not in read:
        read[ADDED.name] = _added_values(read, columns, batch.num_rows)
    names = map(str.casefold, read["filename"])
    read["search_text"] = [name + searched for name, (_, searched) in zip(names, tags, strict=True)]
    return list(zip(*(read[column.name] for column in document_history.columns), strict=True))


@lru_cache(maxsize=10_000)
def _texts_of_tags(tags: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Returns tags as JSON, and what `search_text` has of them after the name. Few combinations make up an archive."""
    found = dict(tags)
    return orjson.dumps(found).decode(), search_text("", found)


def _added_values(read: dict[str, list[Any]], columns: Sequence[Column], count: int) -> list[str | None]:
    if not columns:
        return [None] * count
    values = [
        [None if value is None else from_micros(value) for value in read[c.name]]
        if c.type == "timestamp"
        else read[c.name]
        for c in columns
    ]
    names = [column.name for column in columns]
    return [encode_added(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]
