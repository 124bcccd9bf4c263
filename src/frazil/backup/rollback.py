"""Undoes a restore with `--replace`: the name goes back to the metadata file that it stood for before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from frazil.backup.restore import BACKUP_PROPERTY, PREVIOUS_PROPERTY, SNAPSHOT_PROPERTY
from frazil.backup.restore_contents import get_current_snapshot
from frazil.backup.restore_location import get_target_folder
from frazil.catalogs import parse_name
from frazil.catalogs.pointers import read_metadata, read_metadata_file
from frazil.errors import ConflictError, FrazilError, IntegrityError, NotFoundError
from frazil.observe.faultpoints import reach
from frazil.tables.metadata.locations import UriStorage
from frazil.tables.publishing import plan_publication, publish
from frazil.upkeep.expiry.expire import PIN_PREFIX

if TYPE_CHECKING:
    from frazil.upkeep.context import UpkeepContext

#: What a commit may change that a rollback would take back, beside snapshots and refs.
_CHANGEABLE = (
    "schemas", "current-schema-id", "partition-specs", "default-spec-id", "sort-orders", "default-sort-order-id",
    "properties", "location", "format-version",
)  # fmt: skip


@dataclass(frozen=True)
class RollbackReport:
    """A table as it was before the restore.

    Attributes:
        name: of the table.
        catalog: that it is in.
        metadata_location: that the catalog names now.
        restored: the metadata file of the restored table, which stays in storage.
        snapshot_id: the current snapshot.
        location: of the table.
        losses: what the catalog could not bring back, one sentence each.
    """

    name: str
    catalog: str
    metadata_location: str
    restored: str
    snapshot_id: int | None
    location: str
    losses: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "losses": list(self.losses)}


def rollback_restore(
    care: UpkeepContext, name: str, *, discard_newer: bool = False, dry_run: bool = False
) -> RollbackReport:
    """Re-points a table to what it was before `restore --replace`, in one commit.

    Needs nothing but the catalog: the restored table names its predecessor in a property.

    Args:
        care: of its catalog.
        name: `namespace.table`.
        discard_newer: also where the restored table has commits since, which become invisible.
        dry_run: only check, and report what would be.

    Raises:
        NotFoundError: there is no such table; it was not restored with `--replace`; or its predecessor is gone.
        ConflictError: there are commits since the restore; or a writer was faster.
        IntegrityError: the predecessor lacks files.
    """
    store, identifier = care.store, parse_name(name, care.catalog.name)
    name = ".".join(identifier)
    found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
    if found is None:
        store.load(name)  # it names similar tables
        raise NotFoundError(f"the catalog '{care.catalog.name}' has no table '{name}'", hint="frazil table list")
    pointer, restored = found
    properties = restored.get("properties") or {}
    previous = properties.get(PREVIOUS_PROPERTY)
    if previous is None:
        raise NotFoundError(
            f"{name} did not replace another table: there is nothing to roll back to",
            cause=f"it has no property {PREVIOUS_PROPERTY}",
            hint="to go back to a snapshot: frazil sql --engine spark \"CALL system.rollback_to_snapshot('ns.t', ID)\"",
        )
    if not discard_newer and _has_newer(care, restored, previous):
        raise ConflictError(
            f"{name} has commits since it was restored from backup '{properties.get(BACKUP_PROPERTY)}'",
            cause="a rollback makes them invisible",
            hint="--discard-newer rolls back all the same",
        )
    former = _read_former(care, name, previous)
    plan = plan_publication(store, identifier, former, replace=True)
    if plan.expected != pointer:
        raise ConflictError(f"{name} was changed by another writer", hint="try again")
    report = RollbackReport(
        name, care.catalog.name, previous, pointer, get_current_snapshot(former), former["location"], plan.losses
    )
    if dry_run:
        return report
    reach("rollback.publish.before")
    published = publish(store, plan, previous, former)
    reach("rollback.publish.after")
    return replace(report, metadata_location=published.metadata_location, losses=published.losses)


def _has_newer(care: UpkeepContext, restored: dict[str, Any], previous: str) -> bool:
    """Whether there were commits since the restore. Pins and snapshots that were expired are none."""
    if str(get_current_snapshot(restored) or "") != restored["properties"].get(SNAPSHOT_PROPERTY, ""):
        return True
    log = [entry["metadata-file"] for entry in restored.get("metadata-log") or ()]
    later = log[log.index(previous) + 1 :] if previous in log else log
    if not later:
        return False
    try:
        first = care.store.call(lambda: read_metadata_file(care.store.catalog, later[0]), "read_metadata", "storage")
    except (NotFoundError, FileNotFoundError):  # what was committed since is not known any more
        return True
    before = [entry["metadata-file"] for entry in first.get("metadata-log") or ()]
    if before and before[-1] != previous:  # nor here
        return True
    return _describe(first) != _describe(restored) or not _snapshots(restored) <= _snapshots(first)


def _describe(metadata: dict[str, Any]) -> list[Any]:
    refs = {name: ref for name, ref in (metadata.get("refs") or {}).items() if not name.startswith(PIN_PREFIX)}
    return [refs, *(metadata.get(key) for key in _CHANGEABLE)]


def _snapshots(metadata: dict[str, Any]) -> set[int]:
    return {snapshot["snapshot-id"] for snapshot in metadata.get("snapshots") or ()}


def _read_former(care: UpkeepContext, name: str, location: str) -> dict[str, Any]:
    """Reads the metadata that the name stood for, and requires that its current manifest list is still there."""
    store = care.store
    gone = f"{name} cannot be rolled back: what it was before is not in storage any more"
    hint = "restore a backup that was made before the replacement"
    try:
        former = store.call(lambda: read_metadata_file(store.catalog, location), "read_metadata", "storage")
    except (NotFoundError, FileNotFoundError) as error:
        raise NotFoundError(gone, cause=f"{location} is gone", hint=hint) from error
    current = get_current_snapshot(former)
    lists = [s.get("manifest-list") for s in former.get("snapshots") or () if s["snapshot-id"] == current]
    target = get_target_folder(care, former["location"])
    files = UriStorage(target.s3, target.network)
    for path in filter(None, lists):
        try:
            storage, key = files.find(path)
            storage.head(key)
        except NotFoundError as error:
            raise IntegrityError(gone, cause=f"{path} is gone", hint=hint) from error
        except FrazilError as error:
            if error.retryable:
                raise
    return former
