"""The files that a table's snapshots hold: data, deletes, manifests and their lists, statistics, metadata.

Manifests and their lists never change, so that what was read of one is remembered. All names are `places.spelled`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from frazil.errors import IntegrityError
from frazil.observe.cancellation import raise_if_stopped
from frazil.tables.cache import LruCache
from frazil.tables.metadata.locations import canonical_uri
from frazil.tables.metadata.manifest_entries import CONTENT, DATA, DELETED, PATH, SIZE, STATUS, read_entries

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from frazil.tables import TableStore

Kind = Literal["data", "deletes", "manifest", "manifest list", "metadata", "statistics"]

#: Entries of manifests that are cached: some 100 MB.
_CAPACITY = 500_000
#: Files read at once: the wait for a server is longer than the work.
_AT_ONCE = 8

A = TypeVar("A")
B = TypeVar("B")


class ReferencedFile(NamedTuple):
    """A file that something refers to.

    Attributes:
        uri: as it is written in the metadata.
        size: that is recorded there; None where none is.
        kind: what it is.
    """

    uri: str
    size: int | None
    kind: Kind


Files = dict[str, ReferencedFile]


#: Live files by manifest, of one catalog.
_Cache = LruCache[str, tuple[ReferencedFile, ...]]
_caches: weakref.WeakKeyDictionary[TableStore, _Cache] = weakref.WeakKeyDictionary()


def find_reachable_files(store: TableStore, table: Table, stop: Event | None = None) -> Files:
    """Finds every file that a table refers to: those of all its snapshots, and its metadata.

    Args:
        store: of its catalog.
        table: which.
        stop: ends it, like all here that has one.

    Raises:
        IntegrityError: a manifest is damaged, so its files are unknown.
        NotFoundError: one is missing.
        StoppedError: `stop` was set.
    """
    return find_snapshot_files(store, table, table.metadata.snapshots, stop) | list_metadata_files(table)


def find_snapshot_files(
    store: TableStore, table: Table, snapshots: Iterable[Snapshot], stop: Event | None = None
) -> Files:
    """Finds the files of these snapshots, without statistics files."""
    snapshots = list(snapshots)
    manifests = _manifests(store, table.io, snapshots, stop)
    found = {canonical_uri(s.manifest_list): ReferencedFile(s.manifest_list, None, "manifest list") for s in snapshots}
    found |= {canonical_uri(p): ReferencedFile(p, m.manifest_length, "manifest") for p, m in manifests.items()}
    for files in _at_once(lambda m: read_live_files(store, table.io, m), manifests.values(), stop):
        found |= {canonical_uri(file.uri): file for file in files}
    return found


def list_metadata_files(table: Table) -> Files:
    """Lists the table's metadata.json, the previous ones of its metadata log, and its statistics files."""
    metadata = table.metadata
    paths = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)]
    found = {canonical_uri(path): ReferencedFile(path, None, "metadata") for path in paths}
    return found | _statistics(metadata, None)


def find_exclusive_files(
    store: TableStore, table: Table, snapshot_ids: Collection[int], stop: Event | None = None
) -> Files:
    """Finds the files that no snapshot would refer to without these. Of the others, reads only what decides that."""
    metadata, io = table.metadata, table.io
    going = [s for s in metadata.snapshots if s.snapshot_id in snapshot_ids]
    staying = [s for s in metadata.snapshots if s.snapshot_id not in snapshot_ids]
    kept = _manifests(store, io, staying, stop)
    loose = {p: m for p, m in _manifests(store, io, going, stop).items() if p not in kept}
    found = {canonical_uri(s.manifest_list): ReferencedFile(s.manifest_list, None, "manifest list") for s in going}
    found |= {canonical_uri(p): ReferencedFile(p, m.manifest_length, "manifest") for p, m in loose.items()}
    files: Files = {}
    for some in _at_once(lambda m: read_live_files(store, io, m), loose.values(), stop):
        files |= {canonical_uri(file.uri): file for file in some}
    if files:
        for some in _at_once(lambda m: read_live_files(store, io, m), kept.values(), stop):
            for file in some:
                files.pop(canonical_uri(file.uri), None)
    stays = _statistics(metadata, {s.snapshot_id for s in staying})
    gone = {k: f for k, f in _statistics(metadata, set(snapshot_ids)).items() if k not in stays}
    used = {canonical_uri(s.manifest_list) for s in staying}
    return {k: f for k, f in (found | files | gone).items() if k not in used}


def read_live_files(store: TableStore, io: FileIO, manifest: ManifestFile) -> tuple[ReferencedFile, ...]:
    """Reads the live data or delete files of a manifest."""
    path = manifest.manifest_path

    def read() -> tuple[ReferencedFile, ...]:
        return _living(store.call(lambda: _read(io, path), "read_manifest", "storage"), manifest)

    return _caches.setdefault(store, _Cache(_CAPACITY)).get_or_compute(path, read, lambda files: len(files) + 1)


def _living(data: bytes, manifest: ManifestFile) -> tuple[ReferencedFile, ...]:
    found: list[ReferencedFile] = []
    count = 0
    for status, content, path, size in read_entries(data, (STATUS, CONTENT, PATH, SIZE), manifest.manifest_path):
        count += 1
        if status != DELETED:
            found.append(ReferencedFile(path, size, "deletes" if content not in (None, DATA) else "data"))
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    if None not in counts and count != sum(c or 0 for c in counts):
        raise IntegrityError(
            f"the manifest {manifest.manifest_path} has {count} entries",
            cause=f"its list says {sum(c or 0 for c in counts)}",
            hint="restore the table from a backup, or roll it back to a snapshot without this manifest",
        )
    return tuple(found)


def _manifests(
    store: TableStore, io: FileIO, snapshots: Collection[Snapshot], stop: Event | None
) -> dict[str, ManifestFile]:
    lists = dict.fromkeys(s.manifest_list for s in snapshots)
    found: dict[str, ManifestFile] = {}
    for manifests in _at_once(lambda path: load_manifest_list(store, io, path), lists, stop):
        for manifest in manifests:
            found.setdefault(manifest.manifest_path, manifest)
    return found


def load_manifest_list(store: TableStore, io: FileIO, manifest_list: str) -> tuple[ManifestFile, ...]:
    """Loads the manifests of a snapshot by the path of its manifest list.

    Raises:
        IntegrityError: this is no list of manifests.
        NotFoundError: it is missing.
    """
    try:
        return store.read_manifests(io, manifest_list)
    except (ValueError, KeyError, EOFError, IndexError, AssertionError) as error:  # PyIceberg, on bytes of any kind
        raise IntegrityError(
            f"{manifest_list} is no list of manifests", hint="frazil table verify, or restore it"
        ) from error


def _statistics(metadata: TableMetadata, snapshot_ids: Collection[int] | None) -> Files:
    return {
        canonical_uri(s.statistics_path): ReferencedFile(s.statistics_path, s.file_size_in_bytes, "statistics")
        for s in (*metadata.statistics, *metadata.partition_statistics)
        if snapshot_ids is None or s.snapshot_id in snapshot_ids
    }


def _read(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open(seekable=False) as stream:
        return stream.read()


def _at_once(fn: Callable[[A], B], items: Collection[A], stop: Event | None) -> Iterable[B]:
    def one(item: A) -> B:
        raise_if_stopped(stop)
        return fn(item)

    if len(items) < 3:
        return [one(item) for item in items]
    with ThreadPoolExecutor(_AT_ONCE, "frazil-reachable") as pool:
        return list(pool.map(one, items))
