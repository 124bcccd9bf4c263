"""Finds the partition of each data file of a table, for position deletes: these lie in the partition of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.typedef import Record

from frazil.tables.cache import LruCache
from frazil.tables.commit_draft import read_live_manifests
from frazil.tables.metadata.manifest_entries import DELETED, PARTITION, PATH, STATUS, read_entries

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from frazil.tables.store import TableStore
    from frazil.tables.writing.position_deletes import FilePartition

#: Files whose partitions are remembered, by manifest.
_CACHED_FILES = 500_000


class FilePartitions:
    """Reads partitions from manifests, of which each is read once: PyIceberg's plan takes seconds for a thousand files.

    Args:
        store: the catalog of the tables.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._cache: LruCache[str, tuple[tuple[str, tuple[object, ...]], ...]] = LruCache(_CACHED_FILES)

    def find(self, table: Table) -> dict[str, FilePartition] | None:
        """Returns spec id and partition of each data file of the current snapshot.

        Returns:
            None if the table neither has nor had partitions.
        """
        if not any(spec.fields for spec in table.metadata.specs().values()):
            return None
        found: dict[str, FilePartition] = {}
        records: dict[FilePartition, FilePartition] = {}
        for manifest in read_live_manifests(self._store, table):
            if manifest.content == ManifestContent.DATA:
                spec_id = manifest.partition_spec_id
                for path, values in self._entries(table.io, manifest):
                    place = spec_id, Record(*values)
                    found[path] = records.setdefault(place, place)
        return found

    def _entries(self, io: FileIO, manifest: ManifestFile) -> tuple[tuple[str, tuple[object, ...]], ...]:
        def read() -> tuple[tuple[str, tuple[object, ...]], ...]:
            with io.new_input(manifest.manifest_path).open() as stream:
                data = stream.read()
            entries = read_entries(data, (STATUS, PATH, PARTITION), manifest.manifest_path)
            return tuple((path, values or ()) for status, path, values in entries if status != DELETED)

        def retried() -> tuple[tuple[str, tuple[object, ...]], ...]:
            return self._store.call(read, "read_manifest", "storage")

        return self._cache.get_or_compute(manifest.manifest_path, retried, len)
