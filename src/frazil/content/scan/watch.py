"""Watches a folder: looks again and again, and tells the log of what is new, changed or gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from frazil.content.scan.folder import Folder
from frazil.content.scan.known_objects import rows_of
from frazil.content.scan.publish import LazyObservationPublisher
from frazil.content.tables import ContentTables

if TYPE_CHECKING:
    from pyiceberg.table import Table


import threading
import time
from collections.abc import Callable

from frazil.content.choice import Choice
from frazil.content.names import objects_name
from frazil.content.scan.debounce import Debouncer, FileChange
from frazil.content.scan.listing import Object, Shard, Skipped
from frazil.content.scan.publish import ObservationPublisher
from frazil.settings import Settings
from frazil.tables.reading.rows import RowScan
from frazil.tables.store import LazyStore, find_table


def publish_missing_files(folder: Folder, keys: Sequence[tuple[str, str]], teller: LazyObservationPublisher) -> int:
    """Tells of those keys that have no file, and gives their number. Nothing is said of what cannot be looked at.

    Args:
        folder: where.
        keys: key and version of rows that the listing did not show. After a scan that broke off and went on, many are
            there: they were seen before.
        teller: tells the log.
    """
    count = 0
    for observed_at, found in folder.ask_what_can_be_seen([key for key, _ in keys]):
        gone = [thing for thing in found if not thing["exists"]]
        teller.tell(gone, observed_at)
        count += len(gone)
    return count


def publish_bucket_gone(
    tables: ContentTables, bucket: str, prefix: str, observed_at: datetime, teller: LazyObservationPublisher
) -> int:
    """Publishes for every row of a bucket that it no longer exists, and returns the number of rows.

    Args:
        tables: where the rows are.
        bucket: a bucket that does not exist any more.
        prefix: only keys that begin with it.
        observed_at: when the store said so, by its clock.
        teller: publishes.
    """

    def publish(table: Table) -> int:
        count = 0
        for rows in rows_of(tables, table, bucket, prefix, ("key", "version_id")):
            teller.tell([{**row, "exists": False} for row in rows.to_pylist()], observed_at)
            count += rows.num_rows
        return count

    return tables.read(tables.objects, publish)


def known_etags(store: LazyStore, settings: Settings, bucket: str) -> dict[str, str]:
    """What the table says is there: etags by key."""
    table = find_table(store.store(), objects_name(settings))
    if table is None or table.metadata.current_snapshot_id is None:
        return {}
    rows = RowScan(store.store(), table, Choice(bucket=bucket).condition(), ["key", "etag"])
    return {
        key: etag or ""
        for batch in rows
        for key, etag in zip(batch.column("key").to_pylist(), batch.column("etag").to_pylist(), strict=True)
    }


def watch(
    folder: Folder,
    teller: ObservationPublisher,
    settling: Debouncer,
    *,
    every_s: float,
    stop: threading.Event,
    told: Callable[[list[FileChange], datetime], None],
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Looks until told to stop; the last look is after that.

    Args:
        folder: what to watch.
        teller: tells the log.
        settling: knows what was told.
        every_s: seconds between two looks.
        stop: ends it.
        told: is given what the log has acknowledged.
        idle: is called between two looks.

    Raises:
        NotFoundError: the folder itself has gone.
    """
    while True:
        last = stop.is_set()
        changes, observed_at = look(folder, settling)
        if changes:
            teller.tell([change.found for change in changes], observed_at)
            told(changes, observed_at)
        if last:
            return
        idle()
        stop.wait(every_s)


def look(folder: Folder, settling: Debouncer) -> tuple[list[FileChange], datetime]:
    observed_at = folder.now()
    skipped: list[Skipped] = []
    files: list[Object] = []
    for _, entry in folder.walk(Shard("")):
        if isinstance(entry, Skipped):
            skipped.append(entry)
        else:
            files.append(entry)
    return settling.look(files, skipped, time.time()), observed_at
