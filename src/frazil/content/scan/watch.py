"""Watches a folder, and publishes new, changed and missing files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from frazil.content.names import objects_name
from frazil.content.query.filters import ObjectFilter
from frazil.content.scan.debounce import Debouncer, FileChange
from frazil.content.scan.folder import Folder
from frazil.content.scan.known_objects import rows_of
from frazil.content.scan.listing import Object, Shard, Skipped
from frazil.content.scan.publish import LazyObservationPublisher, ObservationPublisher
from frazil.content.tables import ContentTables
from frazil.settings import Settings
from frazil.tables.reading.rows import RowScan
from frazil.tables.store import LazyStore, find_table

if TYPE_CHECKING:
    from pyiceberg.table import Table


def publish_missing_files(folder: Folder, keys: Sequence[tuple[str, str]], publisher: LazyObservationPublisher) -> int:
    """Publishes the keys that have no file any more, and returns their number. Unreadable ones are left out.

    A folder is listed as a whole, by one clock and without late events, so a file that is not found twice is gone.

    Args:
        folder: the folder.
        keys: key and version of rows that the listing did not show. After a resumed scan many of them exist, because
            they were listed before.
        publisher: publishes observations.
    """
    count = 0
    for observed_at, found in folder.look_up_readable([key for key, _ in keys]):
        gone = [thing for thing in found if not thing["exists"]]
        publisher.publish(gone, observed_at)
        count += len(gone)
    return count


def publish_bucket_gone(
    tables: ContentTables, bucket: str, prefix: str, observed_at: datetime, publisher: LazyObservationPublisher
) -> int:
    """Publishes for every row of a bucket that it no longer exists, and returns the number of rows.

    Args:
        tables: where the rows are.
        bucket: a bucket that does not exist any more.
        prefix: only keys that begin with it.
        observed_at: when the store said so, by its clock.
        publisher: publishes observations.
    """

    def publish(table: Table) -> int:
        count = 0
        for rows in rows_of(tables, table, bucket, prefix, ("key", "version_id")):
            publisher.publish([{**row, "exists": False} for row in rows.to_pylist()], observed_at)
            count += rows.num_rows
        return count

    return tables.read(tables.objects, publish)


def known_etags(store: LazyStore, settings: Settings, bucket: str) -> dict[str, str]:
    """Returns the existing files in the table: etags by key."""
    table = find_table(store.store(), objects_name(settings))
    if table is None or table.metadata.current_snapshot_id is None:
        return {}
    rows = RowScan(store.store(), table, ObjectFilter(bucket=bucket).to_expression(), ["key", "etag"])
    return {
        key: etag or ""
        for batch in rows
        for key, etag in zip(batch.column("key").to_pylist(), batch.column("etag").to_pylist(), strict=True)
    }


def watch(
    folder: Folder,
    publisher: ObservationPublisher,
    debouncer: Debouncer,
    *,
    every_s: float,
    stop: threading.Event,
    told: Callable[[list[FileChange], datetime], None],
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Lists the folder repeatedly until stopped; once more after that.

    Args:
        folder: what to watch.
        publisher: publishes observations.
        debouncer: detects changes.
        every_s: seconds between two listings.
        stop: ends it.
        told: called with the changes that the log has acknowledged.
        idle: called between two listings.

    Raises:
        NotFoundError: the folder does not exist any more.
    """
    while True:
        last = stop.is_set()
        changes, observed_at = list_changes(folder, debouncer)
        if changes:
            publisher.publish([change.found for change in changes], observed_at)
            told(changes, observed_at)
        if last:
            return
        idle()
        stop.wait(every_s)


def list_changes(folder: Folder, debouncer: Debouncer) -> tuple[list[FileChange], datetime]:
    observed_at = folder.now()
    skipped: list[Skipped] = []
    files: list[Object] = []
    for _, entry in folder.walk(Shard("")):
        if isinstance(entry, Skipped):
            skipped.append(entry)
        else:
            files.append(entry)
    return debouncer.update(files, skipped, time.time()), observed_at
