"""Tells the log of what the table has and a folder, or a store, has no more.

A folder is seen as a whole, by one clock and without events that may be late: what was not seen is looked at once more,
and where it is not there, it is gone.
"""

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
