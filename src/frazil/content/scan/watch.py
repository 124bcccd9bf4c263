"""Watches a folder: looks again and again, and tells the log of what is new, changed or gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from frazil.content.names import objects_name
from frazil.content.query.filters import ObjectFilter
from frazil.content.scan.debounce import Change, Settling
from frazil.content.scan.folder import Folder
from frazil.content.scan.listing import Object, Shard, Skipped
from frazil.content.scan.publish import Teller
from frazil.settings import Settings
from frazil.tables.reading.rows import RowScan
from frazil.tables.store import LazyStore, find_table


def known_etags(store: LazyStore, settings: Settings, bucket: str) -> dict[str, str]:
    """What the table says is there: etags by key."""
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
    teller: Teller,
    settling: Settling,
    *,
    every_s: float,
    stop: threading.Event,
    told: Callable[[list[Change], datetime], None],
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


def look(folder: Folder, settling: Settling) -> tuple[list[Change], datetime]:
    observed_at = folder.now()
    skipped: list[Skipped] = []
    files: list[Object] = []
    for _, entry in folder.walk(Shard("")):
        if isinstance(entry, Skipped):
            skipped.append(entry)
        else:
            files.append(entry)
    return settling.look(files, skipped, time.time()), observed_at
