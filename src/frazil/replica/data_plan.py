"""What a sync of bare Parquet files will do: compares the listing of the folder with the table.

What is known of the folder is the table itself: a file whose path and size stand in a manifest is not looked at again,
so that a sync that was interrupted is simply repeated. That holds for files whose rows a compaction has moved, too:
their entries stay in the history. Not even manifests are read if the listing is that of the last sync.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from frazil.catalogs import parse_name
from frazil.errors import ConflictError, NotFoundError
from frazil.replica.data_files import PATH, DataFileTable, read_listing, require_own
from frazil.replica.listing import FolderListing, list_data_files
from frazil.replica.places import location_in, open_files, require_apart
from frazil.replica.scan import ReplicatedFile, canonical_path
from frazil.tables.registration.commit import Compaction, RegisteredFile, read_compactions, read_registered
from frazil.tables.store import find_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import TableStore
    from frazil.upkeep.context import UpkeepContext


@dataclass(frozen=True)
class ReplacedFile:
    """A file that has another size than the table says."""

    path: str
    size: int
    size_before: int


@dataclass(frozen=True)
class KnownDataFiles:
    """The data files that a table knows.

    Attributes:
        registered: that are in it.
        compactions: whose new files are in it.
    """

    registered: Mapping[str, RegisteredFile] = field(default_factory=dict)
    compactions: Sequence[Compaction] = ()

    @classmethod
    def read(cls, store: TableStore, table: Table, registered: Mapping[str, RegisteredFile]) -> KnownDataFiles:
        """Reads the history. A compaction that was taken back, by a sync or a rollback, does not count.

        Raises:
            ConflictError: the history was expired, and with it what a compacted file was made of.
        """
        live = set(registered)
        found = []
        for compaction in read_compactions(store, table):
            if not compaction.after or not live.isdisjoint(compaction.after):
                found.append(compaction)
                live.update(compaction.before)
        _require_known_origin(table, live, found)
        return cls(registered, found)

    @cached_property
    def compacted(self) -> dict[str, int]:
        """Paths and sizes of files whose rows are in other files now."""
        every = {path: size for compaction in self.compactions for path, size in compaction.before.items()}
        return {path: size for path, size in every.items() if path not in self.registered}

    @cached_property
    def sizes(self) -> dict[str, int]:
        return self.compacted | {path: known.size for path, known in self.registered.items()}

    def take_back(self, changed: Collection[str]) -> tuple[set[str], set[str]]:
        """Takes back the compactions of files that have changed, so that their rows stand apart again.

        Returns:
            The files that leave the table, and those whose rows they have, the changed ones among them.
        """
        paths = {path for path in changed if path in self.compacted}
        touched: list[Compaction] = []
        rest = list(self.compactions) if paths else []
        while found := [c for c in rest if not paths.isdisjoint(c.before) or not paths.isdisjoint(c.after)]:
            touched += found
            rest = [compaction for compaction in rest if compaction not in found]
            for compaction in found:
                paths |= compaction.before.keys() | compaction.after
        written = {path for compaction in touched for path in compaction.after}
        return written & self.registered.keys(), paths - written


def _require_known_origin(table: Table, files: Collection[str], compactions: Sequence[Compaction]) -> None:
    """Refuses a table with a compacted file whose compaction is no longer in the history.

    The files that it was made of would be taken for new ones, and their rows be in the table twice.
    """
    # The parent of the oldest snapshot is no sign of it: PyIceberg sets it to null when it expires snapshots.
    folder = f"{table.metadata.properties.get(PATH)}/"
    lost = {path for path in files if not path.startswith(folder)}.difference(*(c.after for c in compactions))
    if lost:
        name = ".".join(table.name())
        raise ConflictError(
            f"the history of {name} was expired: it is not known any more which files were compacted into {min(lost)}",
            cause=f"no snapshot that is left has written it, of {len(table.metadata.snapshots)}",
            hint="drop the table from the replica's catalog without its files, and sync again",
        ).adding("nothing was changed", lost=sorted(lost))


@dataclass(frozen=True)
class DataSyncPlan:
    """What a sync will do, as far as the footers of new files allow.

    Attributes:
        config: with canonical places.
        listing: of the folder.
        new: files that the table does not have, or that could not be registered yet.
        replaced: files that were written anew in place.
        gone: paths in the table that are no longer in the folder.
        separated: further files that are registered again: they were compacted together with ones that have changed.
        known: files that the table has; by the listing alone, with those that it left out.
        table: as it is; None: it does not exist yet.
        registered: its files; None: they were not read, because the listing is that of the last sync.
    """

    config: DataFileTable
    listing: FolderListing = field(repr=False)
    new: tuple[ReplicatedFile, ...] = ()
    replaced: tuple[ReplacedFile, ...] = ()
    gone: tuple[str, ...] = ()
    separated: tuple[ReplicatedFile, ...] = ()
    known: int = 0
    table: Table | None = field(repr=False, default=None)
    registered: Mapping[str, RegisteredFile] | None = field(repr=False, default=None)

    @property
    def has_work(self) -> bool:
        return bool(self.new or self.replaced or (self.gone and self.config.prune_missing))

    @property
    def files(self) -> list[tuple[str, int]]:
        """Paths and sizes of the files whose footers are to be read."""
        return [(f.path, f.size) for some in (self.new, self.replaced, self.separated) for f in some]

    @property
    def registered_count(self) -> int:
        """Files in the table."""
        if self.registered is not None:
            return len(self.registered)
        current = self.table.current_snapshot() if self.table is not None else None
        extra = current.summary.additional_properties if current is not None and current.summary is not None else {}
        return int(extra.get("total-data-files", self.known))

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        return {
            "table": self.config.name,
            "replicated_path": self.config.replicated_path,
            "action": "created" if self.table is None else "updated" if self.has_work else "unchanged",
            "known": self.known,
            "files_new": len(self.new),
            "bytes_new": sum(size for _, size in self.files),
            "replaced": [vars(file) for file in self.replaced],
            "gone": list(self.gone),
            "separated": len(self.separated),
            "prune_missing": self.config.prune_missing,
            "ignored": self.listing.ignored,
        }


def plan_data_sync(care: UpkeepContext, config: DataFileTable) -> DataSyncPlan:
    """Compares the folder with the table. Reads names, sizes and manifests, and no Parquet file. Changes nothing.

    Args:
        care: of the replica's catalog.
        config: what to replicate.

    Raises:
        ConflictError: others have written to the table or expired its history, or it is another one's replica.
        NotFoundError: there is no file at all.
        NotAllowedError: the table is no replica, or the warehouse lies in the folder.
        UsageError: the folder holds the metadata of a table.
    """
    root = canonical_path(config.replicated_path).rstrip("/")
    identifier = parse_name(config.name, care.store.settings.name)
    config = replace(config, replicated_path=root, identifier=identifier)
    table = find_table(care.store, config.name)
    location = table.location() if table is not None else location_in(config.warehouse, identifier)
    require_apart(config.name, location, [root])
    if table is not None:
        require_own(table, root)
    listing = list_data_files(open_files(care, root))
    if table is not None and listing.count and listing.fingerprint == read_listing(table):
        return DataSyncPlan(config, listing, known=listing.count, table=table)
    if not listing.count:
        raise NotFoundError(
            f"there are no data files in {root}",
            cause=None if table is None else f"the table {config.name} has files there",
            hint="check that the folder is mounted, and that the replication has run",
        )
    registered = {} if table is None else read_registered(care.store, table)
    known = KnownDataFiles() if table is None else KnownDataFiles.read(care.store, table, registered)
    return _compare(config, listing, table, known)


def _compare(config: DataFileTable, listing: FolderListing, table: Table | None, known: KnownDataFiles) -> DataSyncPlan:
    sizes = known.sizes
    unseen = {path for path in sizes if path.startswith(f"{config.replicated_path}/")}
    new: list[ReplicatedFile] = []
    replaced: list[ReplacedFile] = []
    for file in listing.files():
        size = sizes.get(file.path)
        if size is None:
            new.append(file)
            continue
        unseen.discard(file.path)
        if size != file.size:
            replaced.append(ReplacedFile(file.path, file.size, size))
    new.sort(key=lambda file: file.path)
    changed = {file.path for file in replaced} | (unseen if config.prune_missing else set())
    _, apart = known.take_back(changed)
    return DataSyncPlan(
        config,
        listing,
        tuple(new),
        tuple(replaced),
        tuple(sorted(unseen)),
        tuple(ReplicatedFile(path, known.compacted[path]) for path in sorted(apart - changed - unseen)),
        len(sizes),
        table,
        known.registered,
    )
