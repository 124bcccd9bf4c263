"""What a replica remembers: in properties of its table, in a list of relocated files that they name, and in the runs.

The properties change in the commit that publishes a version, so that state and table never differ. They also guard
the table: `gc.enabled=false` keeps engines from deleting replicated files, and a fingerprint of what was published
shows commits of other writers.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from frazil.catalogs.pointers import read_metadata
from frazil.errors import ConflictError, FrazilError, IntegrityError, NotAllowedError, NotFoundError
from frazil.replica.choose import ServedVersion, number_of
from frazil.replica.closure import KnownFiles
from frazil.tables.metadata_losses import normalize
from frazil.tables.relocation.manifests import FileSize, ManifestListEntry
from frazil.tables.relocation.table_metadata import TableMetadata, list_metadata_paths

if TYPE_CHECKING:
    from frazil.tables import TableStore
    from frazil.tables.relocation.target_folder import TargetFolder

Role = Literal["replica", "primary"]

_PREFIX = "frazil.replica."
_GC = "gc.enabled"
#: Folders of the primary in properties. A replica has its own place.
_FOLDERS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
#: Snapshots that are shown of each history.
_SHOWN = 5


@dataclass(frozen=True)
class ReplicaState:
    """What the properties of a replica's table say.

    Attributes:
        role: `primary` after a failover.
        uuid: of the primary's table.
        source_metadata: the primary's metadata file that is served, as the primary spells it.
        updated_ms: its `last-updated-ms`.
        witnessed: whether it was known to be committed.
        parent: name of the version before it.
        snapshot_id: its current snapshot, the last one that primary and replica have in common.
        replicated_path: where the primary's storage was copied to.
        folder: of the table in it.
        prefixes: source prefixes, and where they landed.
        prepared: the metadata file as the replica wrote it.
        files: the list of relocated files.
        content: fingerprint of what was published.
        synced_at: in ISO 8601.
        source_gc: what the primary has for `gc.enabled`; empty: nothing.
        source_name: of the primary's table, if a beacon told.
    """

    role: Role
    uuid: str
    source_metadata: str
    updated_ms: int
    witnessed: bool
    parent: str | None
    snapshot_id: int | None
    replicated_path: str
    folder: str
    prefixes: tuple[tuple[str, str], ...]
    prepared: str
    files: str
    content: str
    synced_at: str
    source_gc: str = ""
    source_name: str = ""

    @property
    def name(self) -> str:
        """The name of the primary's metadata file."""
        return self.source_metadata.rpartition("/")[2]

    @property
    def version(self) -> int:
        return number_of(self.name)

    @property
    def served(self) -> ServedVersion:
        return ServedVersion(self.name, self.updated_ms, self.uuid, self.witnessed, self.parent)

    def to_properties(self) -> dict[str, str | None]:
        """Returns the properties to set, and None for those to remove. A replica has the guard among them."""
        found: dict[str, str | None] = {
            f"{_PREFIX}{name.replace('_', '-')}": None if value is None else _to_text(value)
            for name, value in ((f.name, getattr(self, f.name)) for f in fields(self))
        }
        found[_GC] = "false" if self.role == "replica" else self.source_gc or None
        return found

    def apply_to(self, metadata: TableMetadata) -> TableMetadata:
        """Returns metadata with these properties."""
        changed = {**(metadata.get("properties") or {}), **self.to_properties()}
        return {**metadata, "properties": {name: value for name, value in changed.items() if value is not None}}


@dataclass(frozen=True)
class ServedTable:
    """A replica's table as its catalog shows it.

    Attributes:
        pointer: the metadata file that the catalog names.
        metadata: its content.
        state: what its properties say.
    """

    pointer: str
    metadata: TableMetadata = field(repr=False)
    state: ReplicaState

    @property
    def is_written(self) -> bool:
        """Whether another writer has committed to it since the last sync."""
        return compute_fingerprint(self.metadata) != self.state.content


def read_served(store: TableStore, identifier: tuple[str, ...]) -> ServedTable | None:
    """Returns the table of a replica, None if there is none of this name.

    Raises:
        NotAllowedError: there is a table that is no replica.
        IntegrityError: its properties are damaged.
    """
    found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
    if found is None:
        return None
    pointer, metadata = found
    state = parse_state(metadata.get("properties") or {}, ".".join(identifier))
    if state is None:
        raise NotAllowedError(
            f"the table {'.'.join(identifier)} exists in the catalog '{store.settings.name}', and is no replica",
            cause=f"its UUID is {metadata.get('table-uuid')}, its metadata {pointer}",
            hint="choose another name or catalog, or drop the table",
        )
    return ServedTable(pointer, metadata, state)


def parse_state(properties: Mapping[str, str], name: str) -> ReplicaState | None:
    """Returns what properties say; None if they are not those of a replica."""
    if f"{_PREFIX}role" not in properties:
        return None
    texts = {f.name: properties.get(f"{_PREFIX}{f.name.replace('_', '-')}") for f in fields(ReplicaState)}
    try:
        return ReplicaState(
            role="primary" if texts["role"] == "primary" else "replica",
            uuid=_require(texts, "uuid"),
            source_metadata=_require(texts, "source_metadata"),
            updated_ms=int(_require(texts, "updated_ms")),
            witnessed=texts["witnessed"] == "true",
            parent=texts["parent"],
            snapshot_id=None if texts["snapshot_id"] is None else int(texts["snapshot_id"]),
            replicated_path=_require(texts, "replicated_path"),
            folder=_require(texts, "folder"),
            prefixes=tuple((str(one), str(other)) for one, other in json.loads(_require(texts, "prefixes"))),
            prepared=_require(texts, "prepared"),
            files=_require(texts, "files"),
            content=_require(texts, "content"),
            synced_at=_require(texts, "synced_at"),
            source_gc=texts["source_gc"] or "",
            source_name=texts["source_name"] or "",
        )
    except (ValueError, TypeError, KeyError) as error:
        raise IntegrityError(
            f"the properties {_PREFIX}* of {name} are damaged",
            cause=str(error),
            hint="drop the table from the replica's catalog without its files, and sync again",
        ) from error


def compute_fingerprint(metadata: TableMetadata) -> str:
    """Returns a fingerprint of what commits change: references, snapshots, columns, partitioning and sort order.

    Equal for metadata that a REST server has written from the same content with other numbers of schemas.
    """
    found = normalize(metadata)
    schema = next(s for s in found["schemas"] if s["schema-id"] == found["current-schema-id"])
    spec = next(s for s in found["partition-specs"] if s["spec-id"] == found["default-spec-id"])
    orders = [s["fields"] for s in found["sort-orders"] if s["order-id"] == found["default-sort-order-id"]]
    content = {
        "refs": {name: ref["snapshot-id"] for name, ref in found["refs"].items()},
        "snapshots": sorted(s["snapshot-id"] for s in found["snapshots"]),
        "columns": [[c["id"], c["name"], c["required"], c["type"]] for c in schema["fields"]],
        "partitioning": [[f.get("source-id"), f["name"], f["transform"]] for f in spec["fields"]],
        "order": [[f.get("source-id"), f["transform"], f["direction"]] for f in (orders or [[]])[0]],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def strip_source_properties(metadata: TableMetadata) -> TableMetadata:
    """Returns the primary's metadata without its folders, and without the state of a replica that it once was."""
    properties = metadata.get("properties") or {}
    kept = {k: v for k, v in properties.items() if k not in _FOLDERS and not k.startswith(_PREFIX)}
    return {**metadata, "properties": kept} if kept != properties else metadata


def refuse_written(name: str, served: ServedTable, published: TableMetadata | None) -> ConflictError:
    """Returns the error for a replica that another writer has committed to, with both histories."""
    now = _describe_history(served.metadata)
    before = "its prepared metadata is gone" if published is None else _describe_history(published)
    error = ConflictError(
        f"another writer committed to the replica {name}: it is no longer what was synced",
        cause=f"synced: {before}; now: {now}",
        hint="keep what was written by copying it elsewhere, then sync with --discard-replica-writes, or fail over",
    )
    return error.adding(
        "nothing was changed", synced=[] if published is None else _list_history(published),
        now=_list_history(served.metadata),
    )  # fmt: skip


def _list_history(metadata: TableMetadata) -> list[dict[str, Any]]:
    snapshots = sorted(metadata.get("snapshots") or (), key=lambda s: s["timestamp-ms"])
    return [
        {
            "snapshot_id": s["snapshot-id"],
            "timestamp_ms": s["timestamp-ms"],
            "operation": (s.get("summary") or {}).get("operation"),
        }
        for s in snapshots
    ]


def _describe_history(metadata: TableMetadata) -> str:
    history = _list_history(metadata)
    newest = [f"{s['snapshot_id']} ({s['operation']})" for s in history[-_SHOWN:]]
    before = f"{len(history) - _SHOWN} snapshots, then " if len(history) > _SHOWN else ""
    return f"{before}{', '.join(newest) or 'no snapshots'}"


@dataclass(frozen=True)
class RelocatedDeletes:
    """A relocated file of position deletes, which other manifests may name too.

    Attributes:
        source_size: of the file that it was made from.
        measured: what a manifest says of it.
    """

    source_size: int
    measured: FileSize

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> RelocatedDeletes:
        """Raises TypeError or ValueError for what is none."""
        source_size, size, offsets, columns, bounds = values
        measured = FileSize(
            int(size),
            None if offsets is None else tuple(offsets),
            None if columns is None else {int(column): int(count) for column, count in columns.items()},
            None if bounds is None else (str(bounds[0]), str(bounds[1])),
        )
        return cls(int(source_size), measured)

    def to_json(self) -> list[Any]:
        found = self.measured
        return [self.source_size, found.size, found.split_offsets, found.column_sizes, found.path_bounds]


class RelocatedFiles:
    """The manifests and lists of the primary that were relocated, so that the next sync need not read them.

    Lists are numbered in the order of their snapshots. Each manifest has the first and the last list that names it: it
    is forgotten when no list of that range is left.
    """

    def __init__(self, signature: str) -> None:
        self.signature = signature
        #: Source path, and number.
        self.lists: dict[str, int] = {}
        #: Source path, and length there, relocated length, first and last list. A list of -1: inline in metadata.
        self.manifests: dict[str, tuple[int, int, int, int]] = {}
        self.statistics: set[str] = set()
        #: Source paths of the position deletes in a manifest, by its source path.
        self.deletes: dict[str, tuple[str, ...]] = {}
        #: These, by their source paths.
        self.relocated_deletes: dict[str, RelocatedDeletes] = {}
        #: Files of former versions, and since when (seconds) they are not needed any more.
        self.retired: dict[str, float] = {}
        self._next = 0

    def add_manifest(
        self, path: str, length: int, relocated: int, deletes: Mapping[str, RelocatedDeletes] | None = None
    ) -> None:
        self.manifests[path] = (length, relocated, -1, -1)
        if deletes:
            self.deletes[path] = tuple(deletes)
            self.relocated_deletes.update(deletes)

    def add_list(self, path: str, manifests: Iterable[str]) -> None:
        """Adds a list, all of whose manifests were added."""
        number = self._next
        self._next += 1
        self.lists[path] = number
        for name in manifests:
            length, relocated, first, _ = self.manifests[name]
            self.manifests[name] = (length, relocated, number if first < 0 else first, number)

    def has_manifest(self, entry: ManifestListEntry) -> bool:
        found = self.manifests.get(entry.path)
        return found is not None and found[0] == entry.length

    def measure(self) -> dict[str, int]:
        """Returns the relocated lengths of manifests by their source path."""
        return {path: found[1] for path, found in self.manifests.items()}

    def forget_all_but(self, metadata: TableMetadata) -> None:
        """Keeps what this metadata still refers to."""
        paths = list_metadata_paths(metadata)
        kept = set(paths.manifest_lists)
        self.lists = {path: number for path, number in self.lists.items() if path in kept}
        numbers, inline = sorted(self.lists.values()), set(paths.inline_manifests)

        def is_live(path: str, first: int, last: int) -> bool:
            place = bisect_left(numbers, first)
            return path in inline or (first >= 0 and place < len(numbers) and numbers[place] <= last)

        self.manifests = {
            path: found for path, found in self.manifests.items() if is_live(path, found[2], found[3])
        }  # fmt: skip
        self.deletes = {path: found for path, found in self.deletes.items() if path in self.manifests}
        named = {path for found in self.deletes.values() for path in found}
        self.relocated_deletes = {path: found for path, found in self.relocated_deletes.items() if path in named}
        self.statistics &= {*paths.statistics, *paths.partition_statistics}

    def list_sources(self) -> set[str]:
        """Returns the source paths of all relocated files."""
        return {*self.lists, *self.manifests, *(path for found in self.deletes.values() for path in found)}

    def encode(self) -> bytes:
        content = {
            "signature": self.signature,
            "next": self._next,
            "lists": self.lists,
            "manifests": self.manifests,
            "statistics": sorted(self.statistics),
            "deletes": self.deletes,
            "relocated_deletes": {path: found.to_json() for path, found in self.relocated_deletes.items()},
            "retired": self.retired,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> RelocatedFiles:
        try:
            content = json.loads(data)
            found = cls(content["signature"])
            found._next = int(content["next"])
            found.lists = {str(path): int(number) for path, number in content["lists"].items()}
            for path, (length, relocated, first, last) in content["manifests"].items():
                found.manifests[path] = (int(length), int(relocated), int(first), int(last))
            found.statistics = set(content["statistics"])
            found.deletes = {str(path): tuple(some) for path, some in content["deletes"].items()}
            # Older lists do not have it: deletes are then relocated again if a new manifest names them.
            measured = content.get("relocated_deletes", {})
            found.relocated_deletes = {str(path): RelocatedDeletes.from_json(one) for path, one in measured.items()}
            found.retired = {str(path): float(since) for path, since in content["retired"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(
                f"{where} is damaged", cause=str(error), hint="the next sync writes it anew"
            ) from error
        return found


@dataclass(frozen=True)
class KnownLater:
    """The relocated files of a replica, read when they are asked for: a sync that finds nothing new does not.

    Attributes:
        target: the folder of the replica's table; None: there is no list yet.
        path: of the list.
        signature: that it must have; a list for other folders is of no use.
    """

    target: TargetFolder | None
    path: str
    signature: str

    @cached_property
    def files(self) -> RelocatedFiles:
        """A new list where there is none, or none that is of use."""
        if self.target is not None:
            try:
                data = self.target.open().get(self.target.key_of(self.path))
                found = RelocatedFiles.decode(data, self.path)
            except (NotFoundError, IntegrityError):
                return RelocatedFiles(self.signature)
            if found.signature == self.signature:
                return found
        return RelocatedFiles(self.signature)

    @property
    def known(self) -> KnownFiles:
        """The same, as `check_closure` wants it."""
        return KnownFiles(
            _Later(lambda: self.files.lists),
            _Later(lambda: {(path, found[0]) for path, found in self.files.manifests.items()}),
            _Later(lambda: self.files.statistics),
        )


class _Later(Collection[Any]):
    """A collection that is made when it is looked at."""

    def __init__(self, make: Any) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Collection[Any]:
        found: Collection[Any] = self._make()
        return found

    def __contains__(self, item: object) -> bool:
        return item in self._made

    def __iter__(self) -> Iterator[Any]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def read_prepared(target: TargetFolder, served: ServedTable) -> TableMetadata | None:
    """Returns the metadata that the last sync published; None where it cannot be read."""
    try:
        found = json.loads(target.open().get(target.key_of(served.state.prepared)))
    except (FrazilError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, tuple) else str(value)


def _require(texts: Mapping[str, str | None], name: str) -> str:
    value = texts[name]
    if value is None:
        raise ValueError(f"{_PREFIX}{name.replace('_', '-')} is missing")
    return value
