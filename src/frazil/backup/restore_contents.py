"""What of a backed-up table comes back: its snapshots, and the files that these need. Reads the repository only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from frazil.backup.format import BackedUpTable, CopiedFile, ManifestState, PathBlob, TableState
from frazil.backup.repository import Repository
from frazil.errors import IntegrityError, NotFoundError, UsageError
from frazil.storage import normalise
from frazil.tables.relocation.manifests import read_manifest_list
from frazil.tables.relocation.table_metadata import TableMetadata, list_metadata_paths, parse_metadata, trim_metadata
from frazil.upkeep.plans.format_amounts import format_count

_SHOWN = 10


@dataclass(frozen=True)
class RestoreContents:
    """The part of a backed-up table that is restored, as the source had it.

    Attributes:
        metadata: metadata.json with the snapshots that come back.
        manifest_lists: of these.
        manifests: that these lists name, each once.
        first_row_ids: of manifests, by path (format version 3).
        statistics: files of statistics.
    """

    metadata: TableMetadata
    manifest_lists: tuple[PathBlob, ...]
    manifests: tuple[ManifestState, ...]
    first_row_ids: Mapping[str, int]
    statistics: tuple[PathBlob, ...]


class SeenSet:
    """Texts that were seen, by 64 bits of a digest each: memory for millions."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def add(self, text: str) -> bool:
        """Returns whether a text is new."""
        number = _digest(text)
        if number in self._seen:
            return False
        self._seen.add(number)
        return True

    def discard(self, text: str) -> bool:
        """Takes a text out, and returns whether it was in."""
        number = _digest(text)
        if number not in self._seen:
            return False
        self._seen.discard(number)
        return True

    def __contains__(self, text: str) -> bool:
        return _digest(text) in self._seen

    def __len__(self) -> int:
        return len(self._seen)


def load_contents(
    repository: Repository,
    state: TableState,
    *,
    snapshot: int | None = None,
    as_of: datetime | None = None,
    current_only: bool = False,
) -> tuple[RestoreContents, list[str]]:
    """Returns what is restored, and what the restored table lacks in comparison with the source, a sentence each.

    Raises:
        NotFoundError: the snapshot or time is not in the backup, or the repository lacks metadata.
        IntegrityError: metadata is damaged.
        UnsupportedError: it is of a newer format version.
    """
    metadata = parse_metadata(repository.get_meta(state.metadata.blob), state.metadata.path)
    metadata, notes = select_history(metadata, snapshot=snapshot, as_of=as_of, current_only=current_only)
    return _collect(repository, state, metadata), notes


def select_history(
    metadata: TableMetadata,
    *,
    snapshot: int | None = None,
    as_of: datetime | None = None,
    current_only: bool = False,
) -> tuple[TableMetadata, list[str]]:
    """Returns metadata as it was at a snapshot or time, and a sentence for each thing that is left out.

    The snapshot becomes current, with its columns. Its ancestors stay, and the branches and tags that are not newer.

    Raises:
        NotFoundError: there was no such snapshot, or none at that time.
        UsageError: both are given.
    """
    if snapshot is not None and as_of is not None:
        raise UsageError("a snapshot and a time are given: only one of them can be restored")
    chosen = _find_at(metadata, as_of) if as_of is not None else snapshot
    notes: list[str] = []
    if chosen is not None:
        metadata = _select_snapshot(metadata, chosen, notes)
    if current_only:
        metadata = _select_current(metadata, notes)
    elif get_current_snapshot(metadata) is None and (refs := get_refs(metadata)):
        notes.append(f"no snapshot is current, so that the table is empty except in {', '.join(sorted(refs))}")
    return metadata, notes


def get_current_snapshot(metadata: TableMetadata) -> int | None:
    """Returns the id of the current snapshot; None for an empty table."""
    found = metadata.get("current-snapshot-id")
    return None if found is None or found == -1 else int(found)


def get_refs(metadata: TableMetadata) -> dict[str, dict[str, Any]]:
    """Returns branches and tags by name; of old metadata without any: main."""
    refs = metadata.get("refs")
    if refs:
        return dict(refs)
    current = get_current_snapshot(metadata)
    return {} if current is None else {"main": {"snapshot-id": current, "type": "branch"}}


def list_source_folders(table: BackedUpTable, state: TableState) -> tuple[str, ...]:
    """Returns the folders that cover all paths of a backed-up table, its location first."""
    others = [folder.rstrip("/") for folder in state.prefixes]
    location = table.location.rstrip("/")
    return (location, *(folder for folder in dict.fromkeys(others) if folder != location))


def map_folders(folders: Iterable[str], location: str, backup_id: str) -> tuple[tuple[str, str], ...]:
    """Pairs each source folder with its place in the restored table: the location itself, or a folder below it.

    The names of these folders differ between backups, so that a table which was restored before has none of them yet.
    """
    first, *others = folders
    pairs = [(first, location)]
    for folder in others:
        if not _is_below(folder, first):
            name = hashlib.sha256(f"{backup_id}\0{folder}".encode()).hexdigest()[:8]
            pairs.append((folder, f"{location}/relocated/{name}"))
    return tuple(pairs)


def iterate_files(repository: Repository, manifests: Iterable[ManifestState]) -> Iterator[CopiedFile]:
    """Yields the live files of manifests, each path once."""
    seen = SeenSet()
    for manifest in manifests:
        for file in repository.read_files(manifest):
            if seen.add(file.path):
                yield file


def _find_at(metadata: TableMetadata, as_of: datetime) -> int:
    """Returns the snapshot that was current at a time."""
    wanted = as_of.timestamp() * 1000
    known = {s["snapshot-id"] for s in metadata.get("snapshots") or ()}
    log = [e for e in metadata.get("snapshot-log") or () if e["snapshot-id"] in known]
    if not log:
        log = [s for s in metadata.get("snapshots") or () if s["snapshot-id"] in _ancestors(metadata)]
    # In the order of the commits, as engines read it: a clock may have been set back between two of them.
    found = [entry["snapshot-id"] for entry in log if entry["timestamp-ms"] <= wanted]
    if found:
        return int(found[-1])
    earliest = min((entry["timestamp-ms"] for entry in log), default=None)
    first = None if earliest is None else datetime.fromtimestamp(earliest / 1000, UTC).isoformat()
    raise NotFoundError(
        f"the backup has no snapshot that was current at {as_of.isoformat()}",
        cause=f"its history begins at {first}" if first else "the table had no snapshots",
        hint="choose a later time, or an older backup: frazil backup list",
    )


def _ancestors(metadata: TableMetadata) -> set[int]:
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in metadata.get("snapshots") or ()}
    found: set[int] = set()
    current = get_current_snapshot(metadata)
    while current is not None and current in parents and current not in found:
        found.add(current)
        current = parents[current]
    return found


def _select_snapshot(metadata: TableMetadata, chosen: int, notes: list[str]) -> TableMetadata:
    snapshots = {s["snapshot-id"]: s for s in metadata.get("snapshots") or ()}
    if chosen not in snapshots:
        newest = sorted(snapshots.values(), key=lambda s: s["timestamp-ms"])[-_SHOWN:]
        raise NotFoundError(
            f"the backup has no snapshot {chosen}",
            cause=f"it has {len(snapshots)}, the newest: {', '.join(str(s['snapshot-id']) for s in newest)}",
            hint="frazil backup show lists the snapshots",
        )
    if chosen == get_current_snapshot(metadata):
        return metadata
    limit = snapshots[chosen]["timestamp-ms"]
    refs = get_refs(metadata)
    newer = [
        name for name, ref in refs.items()
        if name != "main" and snapshots.get(ref["snapshot-id"], {}).get("timestamp-ms", limit + 1) > limit
    ]  # fmt: skip
    trimmed = trim_metadata(metadata, refs={"main", *refs} - set(newer), main=chosen)
    dropped = len(snapshots) - len(trimmed.get("snapshots") or ())
    if dropped:
        notes.append(f"left out: {format_count(dropped, 'snapshot')} that snapshot {chosen} does not need")
    if newer:
        notes.append(f"branches and tags newer than snapshot {chosen} are left out: {', '.join(sorted(newer))}")
    return _with_schema_of(trimmed, snapshots[chosen], notes)


def _with_schema_of(metadata: TableMetadata, snapshot: Mapping[str, Any], notes: list[str]) -> TableMetadata:
    """Makes the columns of a snapshot the current ones, with a partitioning and a sort order that work with them."""
    wanted, current = snapshot.get("schema-id"), metadata.get("current-schema-id")
    schemas = {schema.get("schema-id"): schema for schema in metadata.get("schemas") or ()}
    if wanted is None or wanted == current or wanted not in schemas:
        return metadata
    columns = set(_field_ids(schemas[wanted]))
    spec = _newest_fitting(metadata.get("partition-specs") or (), "spec-id", metadata["default-spec-id"], columns)
    order = _newest_fitting(metadata.get("sort-orders") or (), "order-id", metadata["default-sort-order-id"], columns)
    if spec is None or order is None:
        notes.append("the columns are those of the newest snapshot in the backup, because its partitioning needs them")
        return metadata
    changed = {**metadata, "current-schema-id": wanted, "default-spec-id": spec["spec-id"]}
    changed["default-sort-order-id"] = order["order-id"]
    if "schema" in changed:  # format version 1 states the current ones once more
        changed["schema"] = schemas[wanted]
    if "partition-spec" in changed:
        changed["partition-spec"] = spec["fields"]
    return changed


def _newest_fitting(
    found: Iterable[dict[str, Any]], key: str, default: int, columns: set[int]
) -> dict[str, Any] | None:
    """Returns the default partition spec or sort order if it works with these columns, else the newest that does."""
    fitting = [each for each in found if _source_ids(each) <= columns]
    return max(fitting, key=lambda each: (each[key] == default, each[key]), default=None)


def _field_ids(kind: Any) -> Iterator[int]:
    """Yields the ids of all columns of a schema, nested ones too."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields") or ():
        yield int(field["id"])
        yield from _field_ids(field["type"])
    for part in ("element", "key", "value"):
        if part in kind:
            yield int(kind[f"{part}-id"])
            yield from _field_ids(kind[part])


def _source_ids(spec: Mapping[str, Any]) -> set[int]:
    """Returns the columns that a partition spec or sort order uses."""
    return {int(i) for field in spec["fields"] for i in field.get("source-ids") or [field["source-id"]]}


def _select_current(metadata: TableMetadata, notes: list[str]) -> TableMetadata:
    current = get_current_snapshot(metadata)
    snapshots, refs = metadata.get("snapshots") or (), get_refs(metadata)
    dropped = [name for name in refs if name != "main"]
    if current is None and dropped:
        raise NotFoundError(
            "the backup has no current snapshot",
            cause=f"it is of {', '.join(dropped)} only",
            hint=f"--snapshot {refs[dropped[0]]['snapshot-id']}",
        )
    if len(snapshots) <= 1 and not dropped:
        return metadata
    notes.append(f"only the current snapshot is restored; left out: {len(snapshots) - 1:,}")
    if dropped:
        notes.append(f"branches and tags are left out: {', '.join(sorted(dropped))}")
    keep = set() if current is None else {current}
    return trim_metadata(metadata, keep=keep, refs={"main"} & set(refs))


def _collect(repository: Repository, state: TableState, metadata: TableMetadata) -> RestoreContents:
    paths = list_metadata_paths(metadata)
    lists = _pick(state.manifest_lists, paths.manifest_lists, "manifest list")
    known = {manifest.path: manifest for manifest in state.manifests}
    wanted: dict[str, None] = {}
    first_row_ids: dict[str, int] = {}
    # The newest first: where an imported file was replaced, its path means the newest content.
    for found in reversed(lists):
        for entry in read_manifest_list(repository.get_meta(found.blob), found.path):
            wanted.setdefault(entry.path)
            if entry.first_row_id is not None:
                first_row_ids.setdefault(entry.path, entry.first_row_id)
    wanted.update(dict.fromkeys(paths.inline_manifests))
    for path in wanted:
        if path not in known:
            raise IntegrityError(f"the backup does not have the manifest {path}", hint="frazil backup verify")
    manifests = tuple(known[path] for path in wanted)
    statistics = _pick(state.statistics, (*paths.statistics, *paths.partition_statistics), "file of statistics")
    return RestoreContents(metadata, lists, manifests, first_row_ids, statistics)


def _pick(known: Iterable[PathBlob], paths: Iterable[str], what: str) -> tuple[PathBlob, ...]:
    found = {blob.path: blob for blob in known}
    for path in paths:
        if path not in found:
            raise IntegrityError(f"the backup does not have the {what} {path}", hint="frazil backup verify")
    return tuple(found[path] for path in dict.fromkeys(paths))


def shorten(names: Sequence[str]) -> str:
    """Returns the first names for an error, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _spell(path: str) -> str:
    try:
        return normalise(path)
    except UsageError:  # a storage that Frazil does not know
        return path


def _is_below(folder: str, other: str) -> bool:
    one, two = _spell(folder).rstrip("/"), _spell(other).rstrip("/")
    return one == two or one.startswith(f"{two}/")


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
