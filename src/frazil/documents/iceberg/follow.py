"""Follows the log: applies what a projection does not have yet, each part in one transaction with its position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import delete, update

from frazil.documents.arrow import OFFSET, table_to_revisions
from frazil.documents.decide import KEY_AGE
from frazil.documents.iceberg.projection import Projection, ProjectionPosition, write_position
from frazil.documents.messages import BulkFile, DecodedBatch, decode_messages
from frazil.documents.model import Column, from_micros, to_micros
from frazil.documents.sql.arrow_rows import find_new_histories, insert_new_histories
from frazil.documents.sql.bulk import insert_rows
from frazil.documents.sql.counts import add_counts, counts_of
from frazil.documents.sql.records import (
    StoredRevision,
    apply_revisions,
    free_old_keys,
    insert_column,
    load_columns,
    load_current,
    read_clock,
    write_clock,
)
from frazil.documents.sql.rows import to_row
from frazil.documents.sql.schema import FOREVER, document_history, documents
from frazil.log.messages import decode_chunk
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.observe.logs import get_logger

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Reads a staged file: its revisions in `REVISION_SCHEMA`.
BulkReader = Callable[[BulkFile], pa.Table]

#: Revisions that are held as Python objects at once.
_AT_ONCE: Final = 10_000

log = get_logger(__name__)


def find_mismatch(access: LogAccess, info: TopicInfo, position: ProjectionPosition | None) -> str | None:
    """Returns why a projection cannot go on from its position; None: it can."""
    if position is None:
        return "it was never finished"
    if position.log_id != info.log_id:
        return f"it belongs to log {position.log_id}, and this is log {info.log_id}"
    if position.offset > info.end:
        return f"it is at offset {position.offset:,}, and the log ends at {info.end:,}"
    if position.offset < info.start:
        return f"it is at offset {position.offset:,}, and the log begins at {info.start:,}"
    if any(end > position.offset for _, end in info.gaps):
        return "the log has a gap behind it"
    epoch = access.epoch_below(info.name, position.offset)
    if position.epoch and epoch and epoch != position.epoch:
        return "the log has other messages before its position"
    return None


def follow_log(access: LogAccess, info: TopicInfo, projection: Projection, read_bulk: BulkReader) -> ProjectionPosition:
    """Applies the messages up to the visible end, and returns the position there.

    Raises:
        OffsetGoneError: retention has removed messages that the projection needs.
        NotFoundError: a staged file is missing that the tables do not have yet.
    """
    position = projection.position()
    assert position is not None, "it has been compared with the log"
    for chunk in access.chunks(info.name, position.offset, info.end):
        messages = decode_chunk(chunk, info.view, position.offset, info.end)
        if not messages.num_rows:
            continue
        batch = decode_messages(messages)
        for misfit in batch.misfits:
            offset = messages.column("offset")[misfit.row].as_py()
            log.warning("a message is no change of documents", offset=offset, reason=misfit.reason, error=misfit.error)
        end = int(pc.max(messages.column("offset")).as_py()) + 1
        with projection.write() as connection:
            added = apply_batch(connection, batch, read_bulk)
            position = position.advanced(end, access.epoch_below(info.name, end), added)
            write_position(connection, position)
    if position.offset < info.end:
        with projection.write() as connection:
            position = position.advanced(info.end, position.epoch, 0)
            write_position(connection, position)
    return position


def apply_batch(connection: Connection, batch: DecodedBatch, read_bulk: BulkReader) -> int:
    """Applies decoded messages in the order of the log, and returns how many revisions were new."""
    add_columns(connection, batch.columns)
    added, start = 0, 0
    offsets = batch.revisions_table.column(OFFSET.name).to_pylist()
    for offset, files in groupby(batch.bulk, key=lambda file: file.offset):
        end = next((row for row in range(start, len(offsets)) if offsets[row] > offset), len(offsets))
        added += apply_table(connection, batch.revisions_table.slice(start, end - start))
        added += sum(apply_table(connection, read_bulk(file)) for file in files)
        start = end
    return added + apply_table(connection, batch.revisions_table.slice(start))


def add_columns(connection: Connection, columns: Sequence[Column]) -> None:
    """Adds columns that the projection does not have."""
    if not columns:
        return
    known = load_columns(connection)
    for column in columns:
        if column.name not in known:
            insert_column(connection, column)
            known[column.name] = column


def apply_table(connection: Connection, rows: pa.Table) -> int:
    """Applies revisions, without those that the projection has, and returns how many were new."""
    rows = _without_old_keys(connection, rows)
    if (new := find_new_histories(connection, rows)) is not None:
        insert_new_histories(connection, new)
        _advance_clock(connection, from_micros(pc.max(new.column("valid_from").cast(pa.int64())).as_py()))
        return int(new.num_rows)
    added = 0
    for start in range(0, rows.num_rows, _AT_ONCE):
        added += apply_new(connection, table_to_revisions(rows.slice(start, _AT_ONCE)))
    return added


def _without_old_keys(connection: Connection, rows: pa.Table) -> pa.Table:
    """Leaves out idempotency keys that are too old, and frees them in the projection: they may have come again."""
    keys = rows.column("idempotency_key")
    if keys.null_count == rows.num_rows:
        return rows
    times = rows.column("valid_from").cast(pa.int64())
    newest, clock = from_micros(pc.max(times).as_py()), read_clock(connection)
    moment = newest if clock is None else max(newest, clock)
    free_old_keys(connection, pc.unique(keys.drop_null()).to_pylist(), moment)
    is_old = pc.less(times, to_micros(moment - KEY_AGE))
    for name in ("idempotency_key", "digest"):
        at = rows.schema.get_field_index(name)
        kept = pc.if_else(is_old, pa.scalar(None, pa.string()), rows.column(name))
        rows = rows.set_column(at, rows.schema.field(at), kept)
    return rows


def apply_new(connection: Connection, revisions: Sequence[StoredRevision]) -> int:
    """Applies revisions, without those that the projection has, and returns how many were new.

    A message can come twice: a dead letter that is replayed, or the log beside the table. Its first one counts. One can
    be missing too: what became a dead letter is not in the table from which a projection is built.
    """
    latest = {i: r.revision for i, r in load_current(connection, {s.revision.document_id for s in revisions}).items()}
    new: list[StoredRevision] = []
    added = 0
    for stored in revisions:
        revision = stored.revision
        before = latest.get(revision.document_id, 0)
        if revision.revision <= before:
            continue
        latest[revision.document_id] = revision.revision
        added += 1
        if revision.revision == before + 1:
            new.append(stored)
            continue
        apply_revisions(connection, new)
        new = []
        _apply_after_gap(connection, stored, before)
    apply_revisions(connection, new)
    if added:
        _advance_clock(connection, max(stored.revision.valid_from for stored in revisions))
    return added


def _apply_after_gap(connection: Connection, stored: StoredRevision, before: int) -> None:
    """Applies a revision although some before it are missing: `verify` tells of them."""
    revision = stored.revision
    log.warning(
        "revisions of a document are missing",
        document=revision.document_id,
        revision=revision.revision,
        latest=before,
        hint="frazil docs verify; frazil topic dead-letters list",
    )
    row, counts = to_row(revision), counts_of(connection, [revision.document_id])
    of_document = document_history.c.document_id == revision.document_id
    is_last = document_history.c.valid_to == FOREVER
    connection.execute(
        update(document_history).where(of_document, is_last).values(valid_to=to_micros(revision.valid_from))
    )
    insert_rows(connection, document_history, [(*row, FOREVER, stored.idempotency_key, stored.digest)])
    if revision.is_deleted:
        connection.execute(delete(documents).where(documents.c.document_id == revision.document_id))
    else:
        insert_rows(connection, documents, [row], replace=True)
        counts.add(row)
    add_counts(connection, counts)


def _advance_clock(connection: Connection, moment: datetime) -> None:
    clock = read_clock(connection)
    if clock is None or moment > clock:
        write_clock(connection, moment)
