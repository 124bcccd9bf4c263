"""Registers data files that lie somewhere already, and takes out others, in one commit of metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.observe.faultpoints import reach
from frazil.tables.commit import apply_response, discard_replaced_metadata
from frazil.tables.commit_draft import Draft, add_to_manifests, build_draft, expire_old_snapshots, read_live_manifests
from frazil.tables.commit_retry import commit_with_retry
from frazil.tables.create import require_writable
from frazil.tables.durability import sync_metadata
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.metadata.manifest_entries import DELETED, PATH, SIZE, STATUS, read_entries
from frazil.tables.position import list_ancestors
from frazil.tables.store import TableStore

if TYPE_CHECKING:
    from pyiceberg.table import Table

_READS = 8
NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class RegisteredFile:
    """A data file of a table.

    Attributes:
        size: as the table knows it.
        manifest: path of the manifest that holds it.
    """

    size: int
    manifest: str


@dataclass(frozen=True)
class Registration:
    """What one commit changes.

    Attributes:
        added: entries of new files.
        removed: paths of files to take out.
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[str] = ()


#: Returns what a table still lacks, by the files that it has; None if nothing.
Decide = Callable[["Table", Mapping[str, RegisteredFile]], "Registration | None"]


def read_registered(store: TableStore, table: Table) -> dict[str, RegisteredFile]:
    """Returns the data files of the current snapshot by their paths, from the manifests alone."""
    manifests = [m for m in read_live_manifests(store, table) if m.content == ManifestContent.DATA]
    return {
        path: RegisteredFile(size, manifest)
        for manifest, status, path, size in _read_all(store, table, manifests)
        if status != DELETED
    }


def read_compacted(store: TableStore, table: Table) -> dict[str, int]:
    """Returns paths and sizes of files whose rows a compaction has written into others, in the history of main.

    As long as no snapshot is expired, these are all.
    """
    manifests = [
        manifest
        for snapshot in list_ancestors(table.metadata)
        if snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE
        for manifest in store.read_manifests(table.io, snapshot.manifest_list)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        and manifest.content == ManifestContent.DATA
        and manifest.deleted_files_count
    ]
    return {path: size for _, status, path, size in _read_all(store, table, manifests) if status == DELETED}


def _read_all(
    store: TableStore, table: Table, manifests: Sequence[ManifestFile]
) -> Iterator[tuple[str, int, str, int]]:
    """Yields the manifest's path, and the status, path and size of each entry."""

    def read(manifest: ManifestFile) -> bytes:
        def load() -> bytes:
            with table.io.new_input(manifest.manifest_path).open() as stream:
                return stream.read()

        return store.call(load, "read_manifest", "storage")

    with ThreadPoolExecutor(_READS, "frazil-manifests") as pool:
        for manifest, data in zip(manifests, pool.map(read, manifests), strict=True):
            place = manifest.manifest_path
            for status, path, size in read_entries(data, (STATUS, PATH, SIZE), place):
                yield place, status, path, size


def register_files(
    store: TableStore,
    table: Table,
    decide: Decide,
    *,
    summary: Mapping[str, str],
    properties: Mapping[str, str],
    keep_snapshots: int,
    known: Mapping[str, RegisteredFile] | None = None,
) -> tuple[Table, Registration]:
    """Commits what a table lacks, and nothing if it lacks nothing. Others may register files at the same time.

    Args:
        store: the catalog.
        table: may be out of date.
        decide: is called before each attempt with the table as it is then.
        summary: further fields of the snapshot.
        properties: that the table has with the commit. The name mapping of its schema is set besides, by which engines
            find columns in files without field ids.
        keep_snapshots: how many stay for time travel, where the table may expire any.
        known: files of `table`, if the caller has read them.

    Returns:
        The table, and what was changed.

    Raises:
        ConflictError: other writers were faster too often.
        UnavailableError: no answer. The call may be repeated.
    """
    require_writable(table)
    read_for = table.metadata_location if known is not None else None
    files = known or {}
    attempts: dict[int, Registration] = {}

    def prepare(now: Table) -> Draft | None:
        nonlocal read_for, files
        if now.metadata_location != read_for:
            files, read_for = read_registered(store, now), now.metadata_location
        change = decide(now, files)
        if change is None:
            return None
        wanted = {**properties, NAME_MAPPING: now.schema().name_mapping.model_dump_json()}
        draft = _draft(store, now, change, files, summary, wanted)
        attempts[draft.snapshot.snapshot_id] = change
        return expire_old_snapshots(store, draft, keep_snapshots)

    def commit(_: Table, draft: Draft) -> Table:
        reach("tables.register.before")
        response = store.call_once(lambda: store.catalog.commit_table(draft.base, draft.requirements, draft.updates))
        reach("tables.register.after")
        after = apply_response(draft.base, response.metadata, response.metadata_location)
        sync_metadata(after)
        store.cache_manifests(draft.snapshot.manifest_list, draft.manifests)
        discard_replaced_metadata(store, draft, after)
        return after

    table = commit_with_retry(store, table, prepare, commit)
    # After an attempt without an answer only the table says whether it was this one.
    landed = (change for number, change in attempts.items() if table.metadata.snapshot_by_id(number) is not None)
    return table, next(landed, Registration())


def _draft(
    store: TableStore,
    base: Table,
    change: Registration,
    files: Mapping[str, RegisteredFile],
    summary: Mapping[str, str],
    properties: Mapping[str, str],
) -> Draft:
    shop = ManifestWriter(store, base)
    removed: list[DataFile] = []
    left: list[ManifestFile] = []
    rewritten: list[ManifestFile] = []
    gone = frozenset(change.removed)
    touched = {files[path].manifest for path in gone}
    for manifest in read_live_manifests(store, base):
        if manifest.manifest_path not in touched:
            left.append(manifest)
            continue
        living = shop.entries(manifest)
        going = [e for e in living if e.data_file.file_path in gone]
        removed += [e.data_file for e in going]
        staying = (e for e in living if e.data_file.file_path not in gone)
        rewritten.append(shop.rewritten(manifest.partition_spec_id, staying, going))
    manifests = [*rewritten, *add_to_manifests(shop, left, change.added)]
    have = base.metadata.properties
    lacking = {name: value for name, value in properties.items() if have.get(name) != value}
    more = [SetPropertiesUpdate(updates=lacking)] if lacking else []
    operation = Operation.DELETE if not change.added else Operation.OVERWRITE if removed else Operation.APPEND
    return build_draft(
        base, shop, manifests, operation, added=change.added, removed=removed, summary=summary, more=more
    )
