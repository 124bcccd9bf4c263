"""Counts what a table is made of, in one pass over the manifests of its current snapshot. No JVM, no data is read.

Files are counted per partition and tier of size, and not kept one by one: a census of a million files fits in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError
from frazil.storage import join
from frazil.tables.position import list_ancestors
from frazil.upkeep.expiry import expired_file_lists
from frazil.upkeep.plans.groups import Deletes, Group, Watch
from frazil.upkeep.plans.manifest_stats import ManifestStatsCache, count_data, count_deletes
from frazil.upkeep.plans.size_tiers import tier_bounds

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from frazil.upkeep.context import UpkeepContext
    from frazil.upkeep.policy import Policy

#: The size that Iceberg gives to manifests, unless the table says otherwise.
_MANIFEST_SIZE = 8 * 1024 * 1024
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Sizes:
    """Bytes of the data files: the smallest, the one in the middle, the largest."""

    least: int = 0
    median: int = 0
    most: int = 0


@dataclass(frozen=True)
class Manifests:
    """Of the current snapshot.

    Attributes:
        count: all of them.
        bytes: their size.
        small: those of data below half of the size that the table wants them to have; of the spec with most of them,
            because only manifests of one spec can be merged.
        small_bytes: the size of these.
        target: the size that it wants.
    """

    count: int = 0
    bytes: int = 0
    small: int = 0
    small_bytes: int = 0
    target: int = _MANIFEST_SIZE


@dataclass(frozen=True)
class Growth:
    """What a table gained per day, over the history that is kept; negative where it shrank.

    Attributes:
        over_s: length of that history in seconds.
        commits: per day, like all that follows.
        rows: net of what was deleted.
        bytes: of data files.
        files: likewise.
    """

    over_s: float
    commits: float
    rows: float
    bytes: float
    files: float


@dataclass(frozen=True)
class ExpiredFiles:
    """A list of files whose snapshots were expired, and that wait for the end of their grace.

    Attributes:
        written_ms: when, by the storage's clock.
        bytes: of the list itself.
    """

    written_ms: int
    bytes: int


@dataclass(frozen=True)
class Census:
    """What a table is made of.

    Attributes:
        table: `namespace.table`.
        metadata: of the table as it was counted.
        taken_ms: when, in milliseconds since 1970.
        bounds: of the tiers, see `tiers`.
        groups: per partition and spec.
        sizes: of the data files.
        deletes: files that delete rows, and what they delete.
        manifests: of the current snapshot.
        json_bytes: of the newest metadata.json; None where it cannot be looked at.
        list_bytes: of the current manifest list; likewise.
        growth: None without at least two snapshots that tell.
        expired: lists of files that wait for their end, oldest first.
        watch: rows by the age of the policy's retention column; None without one.
    """

    table: str
    metadata: TableMetadata = field(repr=False)
    taken_ms: int
    bounds: tuple[int, ...]
    groups: tuple[Group, ...] = field(default=(), repr=False)
    sizes: Sizes = Sizes()
    deletes: Deletes = field(default_factory=Deletes)
    manifests: Manifests = Manifests()
    json_bytes: int | None = None
    list_bytes: int | None = None
    growth: Growth | None = None
    expired: tuple[ExpiredFiles, ...] = ()
    watch: Watch | None = None

    @property
    def files(self) -> int:
        return sum(sum(group.files) for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(sum(group.bytes) for group in self.groups)

    @property
    def small_files(self) -> int:
        return sum(group.small_files for group in self.groups)

    @property
    def rows(self) -> int:
        """In the data files, deleted ones too."""
        return sum(group.rows for group in self.groups)

    @property
    def deleted_rows(self) -> int:
        """By position; what equality deletes take away is known to nobody before it is read."""
        return self.deletes.rows

    @property
    def delete_ratio(self) -> float:
        return min(1.0, self.deleted_rows / self.rows) if self.rows else 0.0

    @property
    def delete_files(self) -> int:
        return self.deletes.position_files + self.deletes.vectors + self.deletes.equality_files

    @property
    def snapshots(self) -> int:
        return len(self.metadata.snapshots)

    @property
    def metadata_bytes(self) -> int:
        """Of what must be read to plan a scan, and of the statistics."""
        statistics = [*self.metadata.statistics, *self.metadata.partition_statistics]
        known = (self.json_bytes or 0) + (self.list_bytes or 0) + self.manifests.bytes
        return known + sum(s.file_size_in_bytes for s in statistics)


def take(context: UpkeepContext, table: Table, policy: Policy, *, known: ManifestStatsCache | None = None) -> Census:
    """Counts a table.

    Args:
        context: of which catalog.
        table: as it was loaded.
        policy: of this table; its target size makes the tiers.
        known: counts of manifests from former looks. Manifests never change, so that whoever looks again and again
            keeps one.

    Raises:
        IntegrityError: a manifest cannot be read.
        UnavailableError: the storage does not answer.
    """
    now = time.time()
    metadata = table.metadata
    bounds = tier_bounds(policy.target_file_size, policy.min_input_files)
    found: dict[str, Any] = {}
    snapshot = table.current_snapshot()
    if snapshot is not None:
        manifests = context.store.read_manifests(table.io, snapshot.manifest_list)
        deletes, removed = count_deletes(context.store, table, [m for m in manifests if m.content != 0])
        watch = _watch(table, policy, now)
        counted = count_data(
            context.store, table, [m for m in manifests if m.content == 0], bounds,
            removed=removed, watch=watch, delete_ratio=policy.delete_ratio,
            delete_files=policy.delete_files, known=known or ManifestStatsCache(),
        )  # fmt: skip
        found = {
            "groups": tuple(counted.groups.values()),
            "sizes": Sizes(*counted.sizes()),
            "deletes": replace(deletes, dangling=removed.dangling()),
            "manifests": _manifests(manifests, metadata.properties),
            "list_bytes": _length(context, table, snapshot.manifest_list),
            "watch": watch,
        }
    return Census(
        table=".".join(table.name()),
        metadata=metadata,
        taken_ms=int(now * 1000),
        bounds=bounds,
        json_bytes=_length(context, table, table.metadata_location),
        growth=_growth(metadata),
        expired=tuple(_expired(context, table)),
        **found,
    )


def _watch(table: Table, policy: Policy, now: float) -> Watch | None:
    if policy.retention_column is None or policy.retention_age_s is None:
        return None
    column = table.schema().find_field(policy.retention_column)
    kind = column.field_type
    assert kind.is_primitive, "a policy's column is a time"
    return Watch(column.field_id, kind, int((now - policy.retention_age_s) * 1e6))  # type: ignore[arg-type]


def _manifests(found: tuple[ManifestFile, ...], properties: Mapping[str, str]) -> Manifests:
    text = properties.get("commit.manifest.target-size-bytes", "")
    target = int(text) if text.isdigit() and int(text) else _MANIFEST_SIZE
    small: dict[int, list[int]] = {}
    for manifest in found:
        if manifest.content == 0 and manifest.manifest_length < target // 2:
            small.setdefault(manifest.partition_spec_id, []).append(manifest.manifest_length)
    most = max(small.values(), key=len, default=[])
    return Manifests(len(found), sum(m.manifest_length for m in found), len(most), sum(most), target)


def _length(context: UpkeepContext, table: Table, path: str) -> int | None:
    """The size of a file; None where that cannot be told: a catalog need not let us see its own files."""
    try:
        return context.store.call_once(lambda: len(table.io.new_input(path)), "storage")
    except FrazilError:
        return None


def _growth(metadata: TableMetadata) -> Growth | None:
    telling = [s for s in list_ancestors(metadata) if _total(s, "total-records") is not None]
    if len(telling) < 2:
        return None
    last, first = telling[0], telling[-1]
    over = last.timestamp_ms - first.timestamp_ms
    if over <= 0:
        return None

    def daily(key: str) -> float:
        return ((_total(last, key) or 0) - (_total(first, key) or 0)) * _DAY_MS / over

    return Growth(
        over_s=over / 1000,
        commits=(len(telling) - 1) * _DAY_MS / over,
        rows=daily("total-records"),
        bytes=daily("total-files-size"),
        files=daily("total-data-files"),
    )


def _total(snapshot: Snapshot, key: str) -> int | None:
    text = snapshot.summary.get(key) if snapshot.summary is not None else None
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _expired(context: UpkeepContext, table: Table) -> Iterator[ExpiredFiles]:
    """The lists in the table's metadata folder. Where keys come in order, only they are listed."""
    store, begin = context.storage_of(table).find(join(expired_file_lists.folder_of(table), expired_file_lists.PREFIX))
    found = []
    for info in store.list(begin.rpartition("/")[0], start_after=begin):
        if expired_file_lists.is_list(info.key):
            found.append(info)
        elif store.lists_in_key_order:
            break
    for info in sorted(found, key=lambda i: i.last_modified):
        yield ExpiredFiles(int(info.last_modified.timestamp() * 1000), info.size)
