"""Data-file mode: which folder of bare Parquet files a table follows, and whether it is still that folder's replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation

from frazil.errors import ConflictError, NotAllowedError
from frazil.tables.position import list_ancestors

if TYPE_CHECKING:
    from pyiceberg.table import Table

#: `replica`, or `primary` after a failover.
ROLE = "frazil.replica.data-files"
PATH = "frazil.replica.replicated-path"
#: In the summary of each snapshot of a sync.
SYNC = "frazil.replica.sync"
#: Besides, in that of a sync which left no difference: the fingerprint of the listing that the table equals.
LISTING = "frazil.replica.listing"


@dataclass(frozen=True)
class DataFileTable:
    """A folder of Parquet files to replicate as a table.

    Attributes:
        replicated_path: the folder that the files are copied to.
        identifier: of the replica's table.
        warehouse: where its metadata goes: `<warehouse>/<namespace>/<table>`.
        partition_by: how a new table is partitioned, as terms like `region` or `day(ts)`; by default by the folders
            like `year=2026` that there are.
        prune_missing: take files out of the table that are no longer in the folder.
        keep_snapshots: how many stay for time travel once the table may expire any.
    """

    replicated_path: str
    identifier: tuple[str, ...]
    warehouse: str
    partition_by: tuple[str, ...] = ()
    prune_missing: bool = False
    keep_snapshots: int = 50

    @property
    def name(self) -> str:
        return ".".join(self.identifier)


def is_data_file_replica(properties: Mapping[str, str]) -> bool:
    """Returns whether properties are those of a table in data-file mode, also after its failover."""
    return ROLE in properties


def require_own(table: Table, root: str) -> None:
    """Refuses a table that is no replica of this folder, or that others have written to.

    Raises:
        NotAllowedError: it is no replica, or no longer.
        ConflictError: it belongs to another folder, or others have written to it.
    """
    name, properties = ".".join(table.name()), table.metadata.properties
    current = table.metadata.current_snapshot()
    role = properties.get(ROLE)
    if role is None and current is None:
        return  # prepared by someone who wants other columns or partitions
    if role != "replica":
        raise NotAllowedError(
            f"the table {name} exists, and is {'no replica any more' if role else 'not a replica of data files'}",
            hint="choose another name, or drop the table from the catalog without its files",
        )
    if properties.get(PATH) != root:
        raise ConflictError(
            f"the table {name} is the replica of another folder than {root}",
            cause=f"it is that of {properties.get(PATH)}",
            hint="choose another name for this folder",
        )
    foreign = _list_foreign(table)
    if foreign:
        raise ConflictError(
            f"another writer committed to the replica {name}: {len(foreign)} snapshots are not from a sync",
            cause=", ".join(foreign[:5]),
            hint="roll the table back to the last sync's snapshot, or fail over and write to it as a primary",
        ).adding("nothing was changed", written=foreign)


def read_listing(table: Table) -> str | None:
    """Returns the fingerprint of the folder that the table equals since the last sync; None: it may not."""
    for snapshot in list_ancestors(table.metadata):
        extra = snapshot.summary.additional_properties if snapshot.summary else {}
        if SYNC in extra:
            return extra.get(LISTING)
    return None


def _list_foreign(table: Table) -> list[str]:
    """Commits of others since the last sync, newest first."""
    found: list[str] = []
    for snapshot in list_ancestors(table.metadata):
        summary = snapshot.summary
        operation = summary.operation.value if summary else "unknown"
        extra = summary.additional_properties if summary else {}
        # Catalogs that need a first snapshot get one without files.
        if SYNC in extra or (snapshot.parent_snapshot_id is None and extra.get("total-data-files", "0") == "0"):
            return found
        if operation != Operation.REPLACE.value:  # a compaction changes no row
            found.append(f"{snapshot.snapshot_id} ({operation})")
    return found
