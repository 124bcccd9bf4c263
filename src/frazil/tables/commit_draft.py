"""A snapshot made ready on a base, with all that its commit requires and changes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from frazil.errors import UnavailableError
from frazil.observe.faultpoints import reach
from frazil.tables.durability import sync_files
from frazil.tables.manifest_merging import choose
from frazil.tables.manifest_writer import ManifestWriter, count_entries, get_manifest_content
from frazil.tables.metrics import MERGED
from frazil.tables.position import Position
from frazil.tables.snapshot_retention import NO_SNAPSHOTS, ExpiringSnapshots, Unreferenced, select_expiring

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables.store import TableStore


#: Entries of a new manifest. Scans read manifests side by side, and skip those without a partition that they want.
_LARGEST = 10_000

#: Manifests of one kind: their content, and the id of their partition spec.
_Pile: TypeAlias = tuple[ManifestContent, int]


@dataclass(frozen=True)
class Draft:
    """One attempt to commit.

    Attributes:
        base: the table it stands on; it lands on no other state of main.
        snapshot: the one to be.
        manifests: its content.
        written: metadata files made for it, of no use if it does not land.
        requirements: what must be so at the commit.
        updates: what the commit changes.
        gone: old snapshots that it takes along.
    """

    base: Table
    snapshot: Snapshot
    manifests: tuple[ManifestFile, ...]
    written: tuple[str, ...]
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    gone: ExpiringSnapshots = NO_SNAPSHOTS


def draft_append(store: TableStore, base: Table, files: Sequence[DataFile], position: Position) -> Draft:
    """Drafts the commit of new data or delete files and of the position that they reach."""
    shop = ManifestWriter(store, base)
    reach("tables.commit.manifests.before")
    manifests = add_to_manifests(shop, read_live_manifests(store, base), files)
    reach("tables.commit.manifests.after")
    text = position.anchored(shop.snapshot_id, shop.sequence).to_json()
    more = [SetPropertiesUpdate(updates={position.key: text})]
    is_append = all(get_manifest_content(file) == ManifestContent.DATA for file in files)
    operation = Operation.APPEND if is_append else Operation.OVERWRITE
    return build_draft(base, shop, manifests, operation, added=files, summary={position.key: text}, more=more)


def expire_old_snapshots(store: TableStore, draft: Draft, keep_snapshots: int) -> Draft:
    """Adds the removal of snapshots outside of the retention window to a draft.

    Call it right before the commit: a branch or tag that points to an expired snapshot by then would be removed too.
    So the table is reloaded if any snapshot expires, and catalogs that support it check again (`Unreferenced`).
    """
    base = draft.base
    if not select_expiring(base.metadata, keep_snapshots).snapshots:
        return draft
    try:
        now = store.load(base.name()).metadata
    except UnavailableError:
        return draft  # the next commit will take them
    if now.current_snapshot_id != base.metadata.current_snapshot_id:
        return draft  # it will not land
    gone = select_expiring(now, keep_snapshots)
    # One update for each: servers built on older Iceberg refuse several ids in one.
    removals = tuple(RemoveSnapshotsUpdate(snapshot_ids=[s.snapshot_id]) for s in gone.snapshots)
    checks: tuple[TableRequirement, ...] = ()
    if isinstance(store.catalog, MetastoreCatalog):
        checks = (Unreferenced(snapshot_ids=tuple(s.snapshot_id for s in gone.snapshots)),)  # type: ignore[assignment]
    return replace(draft, requirements=(*draft.requirements, *checks), updates=(*draft.updates, *removals), gone=gone)


def build_draft(
    base: Table,
    shop: ManifestWriter,
    manifests: Sequence[ManifestFile],
    operation: Operation,
    *,
    added: Iterable[DataFile] = (),
    removed: Iterable[DataFile] = (),
    summary: Mapping[str, str] | None = None,
    more: Sequence[TableUpdate] = (),
) -> Draft:
    """Writes the manifest list and puts the commit together."""
    metadata = base.metadata
    parent = metadata.current_snapshot()
    parent_id = parent.snapshot_id if parent else None
    path = shop.manifest_list(manifests, parent_id)
    reach("tables.commit.list.after")
    sync_files(shop.written)
    snapshot = Snapshot(
        snapshot_id=shop.snapshot_id,
        parent_snapshot_id=parent_id,
        manifest_list=path,
        sequence_number=shop.sequence,
        summary=_summary(base, parent, operation, added, removed, summary or {}),
        schema_id=metadata.current_schema_id,
        # Clocks of two writers differ; the history must not run backwards.
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
    )
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=parent_id),
        AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
    )
    updates = (AddSnapshotUpdate(snapshot=snapshot), _set_main(base, shop.snapshot_id), *more)
    return Draft(base, snapshot, tuple(manifests), tuple(shop.written), requirements, updates)


def _set_main(base: Table, snapshot_id: int) -> SetSnapshotRefUpdate:
    main = base.metadata.refs.get(MAIN_BRANCH)
    return SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        # Left out, a user's retention of the branch would be lost.
        max_ref_age_ms=main.max_ref_age_ms if main else None,
        max_snapshot_age_ms=main.max_snapshot_age_ms if main else None,
        min_snapshots_to_keep=main.min_snapshots_to_keep if main else None,
    )


def _summary(
    base: Table,
    parent: Snapshot | None,
    operation: Operation,
    added: Iterable[DataFile],
    removed: Iterable[DataFile],
    more: Mapping[str, str],
) -> Summary:
    schema, specs = base.schema(), base.specs()
    collector = SnapshotSummaryCollector()
    for file in added:
        collector.add_file(file, schema, specs[file.spec_id])
    for file in removed:
        collector.remove_file(file, schema, specs[file.spec_id])
    return update_snapshot_summaries(
        Summary(operation, **collector.build(), **more), parent.summary if parent is not None else None
    )


def read_live_manifests(store: TableStore, base: Table) -> tuple[ManifestFile, ...]:
    """Returns the manifests of the current snapshot that have live files."""
    current = base.metadata.current_snapshot()
    if current is None:
        return ()
    found = store.read_manifests(base.io, current.manifest_list)
    return tuple(m for m in found if m.has_added_files() or m.has_existing_files())


def add_to_manifests(
    shop: ManifestWriter, manifests: Iterable[ManifestFile], files: Sequence[DataFile]
) -> list[ManifestFile]:
    """Returns the manifests of the new snapshot: data first, new files first among them; small manifests are merged."""
    new: dict[_Pile, list[DataFile]] = defaultdict(list)
    for file in files:
        new[get_manifest_content(file), file.spec_id].append(file)
    old: dict[_Pile, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        old[manifest.content, manifest.partition_spec_id].append(manifest)
    found: list[ManifestFile] = []
    for pile in sorted({*new, *old}, key=lambda pile: (pile[0], -pile[1])):
        found += _merged(shop, pile[1], new[pile], old[pile])
    return found


def _merged(
    shop: ManifestWriter, spec_id: int, files: Sequence[DataFile], old: Sequence[ManifestFile]
) -> list[ManifestFile]:
    added = [shop.added(spec_id, files[i : i + _LARGEST]) for i in range(0, len(files), _LARGEST)]
    going = [old[i] for i in choose([count_entries(m) for m in old])]
    if not going:
        return [*added, *old]
    MERGED.inc(len(going))
    paths = {m.manifest_path for m in going}
    return [*added, shop.merged(spec_id, going), *(m for m in old if m.manifest_path not in paths)]
