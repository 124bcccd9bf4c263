"""The source of a backup: a table's metadata as its file has it, the storage of its files, and a pin on its head.

The bytes of metadata.json are what counts: a table may have types and features that PyIceberg does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frazil.catalogs import load_without_schema, parse_name
from frazil.errors import FrazilError, NotFoundError, UnsupportedError
from frazil.observe.logs import get_logger
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.relocation.table_metadata import (
    TableMetadata,
    drop_refs,
    list_metadata_paths,
    parse_metadata,
    trim_metadata,
)
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import pins
from frazil.upkeep.expiry.expire import PIN_PREFIX

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = get_logger(__name__)

#: Seconds that the pin of a backup which was killed stays.
PIN_LEASE_S = 3600.0
_LOADS = 5


@dataclass(frozen=True)
class TableSource:
    """A table at one moment.

    Attributes:
        identifier: its name.
        location: of its metadata.json.
        data: the bytes of that file.
        metadata: what they say.
        storage: its files; can be pickled.
        table: for pins; its schema may be missing.
    """

    identifier: tuple[str, ...]
    location: str
    data: bytes
    metadata: TableMetadata
    storage: UriStorage
    table: Table

    @property
    def name(self) -> str:
        return ".".join(self.identifier)

    @property
    def uuid(self) -> str:
        return str(self.metadata["table-uuid"])


def load_source(care: UpkeepContext, name: str) -> TableSource:
    """Loads a table as it is now.

    Raises:
        NotFoundError: there is no such table, or its metadata file is missing.
        IntegrityError: its metadata is damaged.
        UnsupportedError: it is encrypted, or of a newer format version.
    """
    identifier = parse_name(name, care.catalog.name)
    for attempt in range(1, _LOADS + 1):
        table = _load(care, identifier)
        storage = care.storage_of(table)
        try:
            data = storage.read(table.metadata_location)
        except NotFoundError:  # commits may delete former metadata files
            if attempt == _LOADS or _load(care, identifier).metadata_location == table.metadata_location:
                raise
        else:
            metadata = parse_metadata(data, table.metadata_location)
            return TableSource(identifier, table.metadata_location, data, metadata, storage, table)
    raise AssertionError("unreachable")


def select_refs(metadata: TableMetadata, ref: str | None) -> TableMetadata:
    """Returns metadata without pins, and with one branch or tag only if `ref` is given.

    The same object if nothing had to go.

    Raises:
        NotFoundError: there is no such branch or tag.
    """
    metadata = drop_refs(metadata, [r for r in metadata.get("refs", {}) if r.startswith(PIN_PREFIX)])
    return metadata if ref is None else trim_metadata(metadata, refs=[ref])


def head_of(metadata: TableMetadata, ref: str | None = None) -> int | None:
    """Returns the snapshot that a branch or tag points to, by default the current one; None: there is none."""
    refs = metadata.get("refs") or {}
    found: Any = refs.get(ref, {}).get("snapshot-id") if ref else metadata.get("current-snapshot-id")
    return None if found in (None, -1) else int(found)


def snapshot_ids(metadata: TableMetadata) -> set[int]:
    return {int(snapshot["snapshot-id"]) for snapshot in metadata.get("snapshots") or ()}


def drop_expired(metadata: TableMetadata, fresh: TableMetadata) -> TableMetadata | None:
    """Returns metadata without the snapshots and statistics that the table does not have any more.

    None where nothing of it went: then no expiry explains why a file is missing.
    """
    lost = snapshot_ids(metadata) - snapshot_ids(fresh)
    statistics, present = _statistics(metadata), _statistics(fresh)
    if not lost and statistics <= present:
        return None
    kept = trim_metadata(metadata, keep=snapshot_ids(metadata) - lost) if lost else dict(metadata)
    for key in ("statistics", "partition-statistics"):
        if key in kept:
            kept[key] = [one for one in kept[key] if one.get("statistics-path") in present]
    return kept


@contextmanager
def pinned_head(care: UpkeepContext, source: TableSource, snapshot_id: int) -> Iterator[bool]:
    """Pins a snapshot for the time of a block, where the catalog keeps tags and lets us set one.

    A backup is whole without a pin too: what was expired while it ran is left out of it.

    Yields:
        Whether there is a pin.

    Raises:
        NotFoundError: the snapshot was expired.
    """
    with ExitStack() as held:
        try:
            held.enter_context(pins.pinned(care, source.table, "backup", PIN_LEASE_S, snapshot_id))
        except NotFoundError:
            raise
        except FrazilError as error:
            log.info("the backup goes on without a pin", table=source.name, reason=error.in_one_line)
            yield False
        else:
            yield True


def _load(care: UpkeepContext, identifier: tuple[str, ...]) -> Table:
    try:
        return care.store.load(identifier)
    except UnsupportedError:
        return load_without_schema(care.store.catalog, care.catalog, identifier, inline_manifests=True)


def _statistics(metadata: TableMetadata) -> set[str]:
    paths = list_metadata_paths(metadata)
    return {*paths.statistics, *paths.partition_statistics}
