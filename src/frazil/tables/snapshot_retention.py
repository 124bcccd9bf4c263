"""Which old snapshots a commit takes along, so that metadata stays small; and which files nothing refers to then.

Only the oldest go, and only our own commits, which add files and take none away, where another of ours followed. At
the first snapshot of anybody else it stops: what a compaction or a delete replaced is known by its snapshot alone, and
engines which expire later need that snapshot to be an ancestor still. What a branch or tag holds stays, with all its
ancestors, and so does what main or the table's own properties (`history.expire.*`) ask for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import ValidatableTableRequirement

from frazil.tables.position import PREFIX, list_ancestors

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata

    from frazil.tables.store import TableStore

AGE_PROPERTY = "history.expire.max-snapshot-age-ms"
KEEP_PROPERTY = "history.expire.min-snapshots-to-keep"

#: A commit that finds more than the one it adds takes them in several goes.
_AT_ONCE = 16


#: They go together when this share of the window is over: before they go the table has to be loaded.
_SHARE = 5


@dataclass(frozen=True)
class ExpiringSnapshots:
    """Snapshots that go with a commit.

    Attributes:
        snapshots: these.
        oldest_kept: the oldest that stays in the history of main; None where only the new one does.
        others: what stays outside that history.
    """

    snapshots: tuple[Snapshot, ...] = ()
    oldest_kept: Snapshot | None = None
    others: tuple[Snapshot, ...] = ()


NO_SNAPSHOTS = ExpiringSnapshots()


def select_expiring(metadata: TableMetadata, keep: int) -> ExpiringSnapshots:
    """Selects the snapshots that expire with the next commit: all but `keep`, or more if table properties say so."""
    main = metadata.refs.get(MAIN_BRANCH)
    own = int(parse_number_property(metadata.properties, KEEP_PROPERTY) or 0)
    keep = max(keep, 1, own, (main.min_snapshots_to_keep or 0) if main else 0)
    collects = metadata.properties.get("gc.enabled", "true").lower() != "false"
    if not collects or len(metadata.snapshots) < keep:
        return NO_SNAPSHOTS
    history = list(list_ancestors(metadata))
    if len(history) + 1 - keep < max(1, keep // _SHARE):
        return NO_SNAPSHOTS
    held = _held(metadata)
    since = _kept_since(metadata)
    going: list[Snapshot] = []
    for i in range(len(history) - 1, keep - 2, -1):
        snapshot = history[i]
        if snapshot.snapshot_id in held:
            continue
        if snapshot.timestamp_ms >= since:
            break
        # The one before the newest is followed by the snapshot to be, which is ours.
        if not is_own_commit(snapshot) or (i > 0 and not is_own_commit(history[i - 1])) or len(going) == _AT_ONCE:
            break
        going.append(snapshot)
    if not going:
        return NO_SNAPSHOTS
    return _split(metadata, history, going)


def _kept_since(metadata: TableMetadata) -> float:
    """Returns the time after which all snapshots stay, set by `main` or the table; a future time if unset."""
    main = metadata.refs.get(MAIN_BRANCH)
    age: float | None = main.max_snapshot_age_ms if main else None
    age = parse_number_property(metadata.properties, AGE_PROPERTY) if age is None else age
    return float("inf") if age is None else time.time() * 1000 - age


def parse_number_property(properties: Mapping[str, str], key: str) -> float | None:
    """Parses a numeric table property; None if it is not a number."""
    try:
        return float(properties[key])
    except (KeyError, ValueError):
        return None


class Unreferenced(ValidatableTableRequirement):
    """That no branch or tag has come to point to snapshots which a commit removes: these would go with them.

    PyIceberg's own catalogs check it in the same step as they commit. REST servers know no such requirement.
    """

    type: str = "frazil-unheld"
    snapshot_ids: tuple[int, ...]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        for name, ref in base_metadata.refs.items() if base_metadata else ():
            if ref.snapshot_id in self.snapshot_ids:
                raise CommitFailedException(f"Requirement failed: {name} now references snapshot {ref.snapshot_id}")


def _split(metadata: TableMetadata, history: list[Snapshot], going: list[Snapshot]) -> ExpiringSnapshots:
    newest_gone = going[-1].snapshot_id
    kept = history[: next(i for i, s in enumerate(history) if s.snapshot_id == newest_gone)]
    inside = {s.snapshot_id for s in (*kept, *going)}
    others = tuple(s for s in metadata.snapshots if s.snapshot_id not in inside)
    return ExpiringSnapshots(tuple(going), kept[-1] if kept else None, others)


def is_own_commit(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    return (
        summary is not None
        and summary.operation in (Operation.APPEND, Operation.OVERWRITE)
        and "deleted-data-files" not in summary.additional_properties
        and "removed-delete-files" not in summary.additional_properties
        and any(key.startswith(PREFIX) for key in summary.additional_properties)
    )


def _held(metadata: TableMetadata) -> set[int]:
    """Returns the snapshots of branches and tags, with the ancestors that their retention keeps."""
    held: set[int] = set()
    for name, ref in metadata.refs.items():
        if name == MAIN_BRANCH:
            continue
        for snapshot in list_ancestors(metadata, metadata.snapshot_by_id(ref.snapshot_id)):
            if snapshot.snapshot_id in held:
                break
            held.add(snapshot.snapshot_id)
    return held


def find_unreferenced_metadata(
    store: TableStore, io: FileIO, gone: ExpiringSnapshots, new: Sequence[ManifestFile]
) -> list[str]:
    """Finds manifest lists and manifests that no snapshot refers to any more. Data files are not examined."""
    if not gone.snapshots:
        return []

    def paths(snapshot: Snapshot) -> set[str]:
        return {m.manifest_path for m in store.read_manifests(io, snapshot.manifest_list)}

    # A manifest that the history has dropped does not come back in it: its oldest snapshot speaks for all.
    used = paths(gone.oldest_kept) if gone.oldest_kept else {m.manifest_path for m in new}
    loose = set().union(*(paths(s) for s in gone.snapshots)) - used
    for snapshot in gone.others:
        if not loose:
            break
        loose -= paths(snapshot)
    return [s.manifest_list for s in gone.snapshots] + sorted(loose)
