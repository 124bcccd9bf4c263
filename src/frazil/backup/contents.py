"""Describes what backups contain, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from frazil.backup.file_index import FileIndex
from frazil.backup.format import BackedUpTable, BackupRecord, ManifestState, TableState
from frazil.backup.repository import Repository
from frazil.tables.relocation.manifests import read_manifest_files
from frazil.tables.relocation.table_metadata import TableMetadata, parse_metadata

#: Fields of metadata.json that change with a pin too.
_VOLATILE = ("last-updated-ms", "metadata-log", "refs", "statistics", "partition-statistics")
#: Paths that a difference names.
_NAMED = 10


@dataclass(frozen=True)
class Column:
    """A column of the current schema; `type` as SQL writes it."""

    id: int
    name: str
    type: str
    required: bool


@dataclass(frozen=True)
class SnapshotSummary:
    """A snapshot.

    Attributes:
        refs: branches and tags that point to it.
        records: rows that a reader sees, where the snapshot counts them.
    """

    id: int
    parent_id: int | None
    committed_at: datetime
    operation: str | None
    refs: tuple[str, ...]
    records: int | None


@dataclass(frozen=True)
class TableContents:
    """A table in a backup."""

    table: BackedUpTable
    columns: tuple[Column, ...]
    partition_fields: tuple[str, ...]
    snapshots: tuple[SnapshotSummary, ...]
    properties: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        snapshots = [{**asdict(s), "committed_at": s.committed_at.isoformat()} for s in self.snapshots]
        return {
            "table": ".".join(self.table.identifier),
            "columns": [asdict(column) for column in self.columns],
            "partition_fields": list(self.partition_fields),
            "snapshots": snapshots,
            "properties": dict(self.properties),
        }


@dataclass(frozen=True)
class TableDifference:
    """How a table differs between two backups: files, snapshots and columns by set difference.

    Attributes:
        change: whether only one of the backups has the table.
        same_uuid: whether it is one table, rather than another of the same name.
        added_paths, removed_paths: the first few of the files.
    """

    table: str
    change: Literal["added", "removed", "changed", "same"]
    same_uuid: bool
    added_snapshots: tuple[int, ...]
    removed_snapshots: tuple[int, ...]
    added_refs: tuple[str, ...]
    removed_refs: tuple[str, ...]
    moved_refs: tuple[str, ...]
    added_columns: tuple[str, ...]
    removed_columns: tuple[str, ...]
    changed_columns: tuple[str, ...]
    added_files: int
    added_bytes: int
    removed_files: int
    removed_bytes: int
    added_paths: tuple[str, ...]
    removed_paths: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe_table(repository: Repository, table: BackedUpTable) -> TableContents:
    metadata = _read_metadata(repository, repository.read_state(table))
    return TableContents(
        table,
        tuple(_list_columns(metadata)),
        tuple(_list_partition_fields(metadata)),
        tuple(_list_snapshots(metadata)),
        dict(metadata.get("properties") or {}),
    )


def diff_backups(repository: Repository, before: BackupRecord, after: BackupRecord) -> list[TableDifference]:
    """Returns the difference of each table that either backup has. Memory does not grow with the number of files."""
    old = {(t.catalog, *t.identifier): t for t in before.tables}
    new = {(t.catalog, *t.identifier): t for t in after.tables}
    return [_diff_tables(repository, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]


def _diff_tables(repository: Repository, old: BackedUpTable | None, new: BackedUpTable | None) -> TableDifference:
    named = new or old
    assert named is not None
    states = [None if table is None else repository.read_state(table) for table in (old, new)]
    one, other = (_Facts.of(None if state is None else _read_metadata(repository, state)) for state in states)
    removed, added = _diff_files(repository, states[0], states[1])
    found: dict[str, Any] = {
        "added_snapshots": tuple(sorted(other.snapshots - one.snapshots)),
        "removed_snapshots": tuple(sorted(one.snapshots - other.snapshots)),
        "added_refs": tuple(sorted(other.refs.keys() - one.refs.keys())),
        "removed_refs": tuple(sorted(one.refs.keys() - other.refs.keys())),
        "moved_refs": tuple(sorted(r for r in one.refs.keys() & other.refs if one.refs[r] != other.refs[r])),
        "added_columns": tuple(c.name for i, c in other.columns.items() if i not in one.columns),
        "removed_columns": tuple(c.name for i, c in one.columns.items() if i not in other.columns),
        "changed_columns": tuple(
            c.name for i, c in other.columns.items() if i in one.columns and one.columns[i] != c
        ),
    }  # fmt: skip
    is_same = not any(found.values()) and not added.files and not removed.files and one.document == other.document
    change: Literal["added", "removed", "changed", "same"] = (
        "added" if old is None else "removed" if new is None else "same" if is_same else "changed"
    )
    return TableDifference(
        ".".join(named.identifier), change, old is not None and new is not None and old.uuid == new.uuid,
        added_files=added.files, added_bytes=added.bytes, removed_files=removed.files, removed_bytes=removed.bytes,
        added_paths=tuple(added.paths), removed_paths=tuple(removed.paths), **found,
    )  # fmt: skip


@dataclass
class _Facts:
    """What of a table's metadata is compared."""

    snapshots: set[int]
    refs: dict[str, int]
    columns: dict[int, Column]
    document: TableMetadata | None

    @classmethod
    def of(cls, metadata: TableMetadata | None) -> _Facts:
        if metadata is None:
            return cls(set(), {}, {}, None)
        return cls(
            {int(s["snapshot-id"]) for s in metadata.get("snapshots") or ()},
            {name: int(ref["snapshot-id"]) for name, ref in (metadata.get("refs") or {}).items()},
            {column.id: column for column in _list_columns(metadata)},
            {key: value for key, value in metadata.items() if key not in _VOLATILE},
        )


@dataclass
class _Files:
    """Files that only one side has."""

    files: int
    bytes: int
    paths: list[str]


def _diff_files(repository: Repository, old: TableState | None, new: TableState | None) -> tuple[_Files, _Files]:
    """Returns the files that are gone, and those that came. Manifests that both have are read only if needed."""
    before, after = _manifests(old), _manifests(new)
    gone = [m for key, m in before.items() if key not in after]
    came = [m for key, m in after.items() if key not in before]
    shared = [m for key, m in before.items() if key in after]
    return _only_in(repository, gone, [*came, *shared]), _only_in(repository, came, [*gone, *shared])


def _only_in(repository: Repository, some: Iterable[ManifestState], others: Iterable[ManifestState]) -> _Files:
    found = _Files(0, 0, [])
    some = list(some)
    if not some:
        return found
    index = FileIndex()
    try:
        for manifest in others:
            index.add_old((path, size, None) for path, size in _list_files(repository, manifest))
        for manifest in some:
            for path, size in _list_files(repository, manifest):
                if index.find(path, size) is None:
                    index.add_new(path, size, None)
                    found.files += 1
                    found.bytes += size
                    if len(found.paths) < _NAMED:
                        found.paths.append(path)
    finally:
        index.close()
    return found


def _manifests(state: TableState | None) -> dict[tuple[str, str], ManifestState]:
    return {} if state is None else {(m.path, m.blob.sha256): m for m in state.manifests}


def _list_files(repository: Repository, manifest: ManifestState) -> Iterator[tuple[str, int]]:
    """The live files of a manifest; where data is referenced, by the manifest itself."""
    if manifest.files is not None:
        yield from ((file.path, file.size) for file in repository.read_files(manifest))
    else:
        entries = read_manifest_files(repository.get_meta(manifest.blob), manifest.path)
        yield from {(entry.path, entry.size) for entry in entries if entry.is_live}


def _read_metadata(repository: Repository, state: TableState) -> TableMetadata:
    return parse_metadata(repository.get_meta(state.metadata.blob), state.metadata.path)


def _list_snapshots(metadata: TableMetadata) -> Iterator[SnapshotSummary]:
    refs: dict[int, list[str]] = {}
    for name, ref in sorted((metadata.get("refs") or {}).items()):
        refs.setdefault(int(ref["snapshot-id"]), []).append(name)
    for snapshot in metadata.get("snapshots") or ():
        summary = snapshot.get("summary") or {}
        yield SnapshotSummary(
            int(snapshot["snapshot-id"]),
            snapshot.get("parent-snapshot-id"),
            datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, UTC),
            summary.get("operation"),
            tuple(refs.get(int(snapshot["snapshot-id"]), ())),
            _count_rows(summary),
        )


def _count_rows(summary: Mapping[str, str]) -> int | None:
    """The rows that a reader sees; None where equality deletes decide, or the writer has not counted."""
    records, deletes = summary.get("total-records"), summary.get("total-position-deletes")
    if records is None or deletes is None or int(summary.get("total-equality-deletes", 1)):
        return None
    return int(records) - int(deletes)


def _list_columns(metadata: TableMetadata) -> Iterator[Column]:
    for field in _current(metadata, "schemas", "schema-id", "current-schema-id", "schema").get("fields", ()):
        yield Column(int(field["id"]), str(field["name"]), _describe_type(field["type"]), bool(field["required"]))


def _list_partition_fields(metadata: TableMetadata) -> Iterator[str]:
    names = {column.id: column.name for column in _list_columns(metadata)}
    spec = _current(metadata, "partition-specs", "spec-id", "default-spec-id", "partition-spec")
    for field in spec.get("fields", ()):
        source = names.get(field.get("source-id"), str(field.get("source-id", field.get("source-ids"))))
        transform = str(field["transform"])
        yield source if transform == "identity" else f"{transform}({source})"


def _current(metadata: TableMetadata, many: str, key: str, current: str, single: str) -> dict[str, Any]:
    """The current one of several schemas or specs; format version 1 may have only one."""
    wanted = metadata.get(current, 0)
    found = next((one for one in metadata.get(many) or () if one.get(key) == wanted), None)
    if found is None:
        found = metadata.get(single) or {}
    return found if isinstance(found, dict) else {"fields": found}


def _describe_type(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    match kind.get("type"):
        case "struct":
            fields = ", ".join(f"{field['name']}: {_describe_type(field['type'])}" for field in kind["fields"])
            return f"struct<{fields}>"
        case "list":
            return f"array<{_describe_type(kind['element'])}>"
        case "map":
            return f"map<{_describe_type(kind['key'])}, {_describe_type(kind['value'])}>"
        case other:
            return str(other)
