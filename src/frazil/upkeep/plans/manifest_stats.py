"""Counts the entries of manifests: data files per partition and tier, and what deletes rows of them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.types import PrimitiveType, StringType

from frazil.catalogs import local_path
from frazil.errors import IntegrityError
from frazil.tables.cache import LruCache
from frazil.tables.metadata import manifest_entries as read
from frazil.upkeep.plans.groups import DELETED_PATH, Deletes, Group, Key, Removed, Target, Watch

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from frazil.tables import TableStore

#: Manifests that are fetched while one is counted.
_AHEAD = 8
#: Counts of partitions that `ManifestStatsCache` remembers.
_REMEMBERED = 200_000


@dataclass
class ManifestStats:
    """The data files of one manifest, or of several."""

    groups: dict[Key, Group] = field(default_factory=dict)
    each: array[int] = field(default_factory=lambda: array("q"))
    """The size of every file."""

    def add(self, other: ManifestStats) -> None:
        for key, group in other.groups.items():
            mine = self.groups.get(key)
            if mine is None:
                self.groups[key] = replace(group, files=list(group.files), bytes=list(group.bytes))
            else:
                mine.add(group)
        self.each.extend(other.each)

    def sizes(self) -> tuple[int, int, int]:
        """The smallest file, the one in the middle, and the largest."""
        import numpy as np

        if not self.each:
            return 0, 0, 0
        every = np.frombuffer(self.each, dtype=np.int64)
        middle = np.partition(every, (len(every) - 1) // 2)[(len(every) - 1) // 2]
        return int(every.min()), int(middle), int(every.max())


class ManifestStatsCache(LruCache[tuple[str, tuple[int, ...]], ManifestStats]):
    """Tallies of manifests by their path and the bounds that were counted."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        super().__init__(most)


def count_deletes(store: TableStore, table: Table, manifests: Sequence[ManifestFile]) -> tuple[Deletes, Removed]:
    """What the delete manifests hold; `dangling` is not known before the data was counted."""
    removed = Removed(_types(table))
    counted = dict.fromkeys(("position_files", "position_bytes", "vectors", "vector_bytes", "rows"), 0)
    counted |= {"equality_files": 0, "equality_bytes": 0}
    files: Counter[tuple[Key, str | None]] = Counter()
    fields = (
        read.STATUS, read.SEQUENCE, read.CONTENT, read.FORMAT, read.PARTITION, read.ROWS, read.SIZE,
        read.REFERENCED, read.CONTENT_SIZE, read.LOWER, read.UPPER, read.EQUALITY_IDS,
    )  # fmt: skip
    for manifest, data in _contents(store, table, manifests):
        spec_id = manifest.partition_spec_id
        for status, own, content, form, partition, rows, size, referenced, part, lower, upper, ids in read.read_entries(
            data, fields, manifest.manifest_path
        ):
            if status == read.DELETED:
                continue
            sequence = manifest.sequence_number if own is None else own
            key = (spec_id, partition)
            if content == read.EQUALITY_DELETES:
                counted["equality_files"] += 1
                counted["equality_bytes"] += size
                target = removed.equality.setdefault(key, Target()) if partition else removed.everywhere
                target.add(rows, sequence, removed.ranges(ids or (), lower, upper))
                removed.columns.update(ids or ())
                continue
            counted["rows"] += rows
            path = referenced or _only_path(lower, upper)
            if form.lower() == "puffin":
                counted["vectors"] += 1
                counted["vector_bytes"] += part or 0
            else:
                counted["position_files"] += 1
                counted["position_bytes"] += size
                files[key, path] += 1
            where: dict[Any, Target] = removed.by_partition if path is None else removed.by_file
            ranges = removed.ranges((DELETED_PATH,), lower, upper) if path is None else {}
            where.setdefault(key if path is None else path, Target()).add(rows, sequence, ranges)
    for (key, path), count in files.items():
        if path is None or count > 1 or are_joined(table):
            removed.position_files[key] = removed.position_files.get(key, 0) + count
    return Deletes(**counted), removed


def are_joined(table: Table) -> bool:
    """Whether a merge of delete files joins those of several data files: else each data file keeps one of its own."""
    granularity = table.metadata.properties.get("write.delete.granularity", "file")
    return granularity == "partition" or table.metadata.format_version >= 3  # where they become vectors


def _types(table: Table) -> dict[int, PrimitiveType]:
    """Of the columns whose values can be compared, the one of position deletes among them."""
    fields = {field.field_id: field.field_type for field in table.schema().fields}
    return {DELETED_PATH: StringType()} | {i: kind for i, kind in fields.items() if isinstance(kind, PrimitiveType)}


def _only_path(lower: Mapping[int, bytes] | None, upper: Mapping[int, bytes] | None) -> str | None:
    """The one data file that a file of position deletes is about, if it is about one."""
    first, last = (lower or {}).get(DELETED_PATH), (upper or {}).get(DELETED_PATH)
    return first.decode() if first is not None and first == last else None


def count_data(
    store: TableStore,
    table: Table,
    manifests: Sequence[ManifestFile],
    bounds: tuple[int, ...],
    *,
    removed: Removed,
    watch: Watch | None,
    delete_ratio: float,
    delete_files: int,
    known: ManifestStatsCache,
) -> ManifestStats:
    """Counts data files; those of manifests that are known already only where nothing has to be told file by file.

    Args:
        store: where.
        table: whose.
        manifests: of data.
        bounds: of the tiers.
        removed: deletes of the snapshot; it learns which of them apply to something.
        watch: learns of old rows.
        delete_ratio: share of deleted rows that makes a file dirty.
        delete_files: number of delete files that makes it burdened.
        known: what was counted before.
    """
    total = ManifestStats()
    one_by_one = bool(removed) or watch is not None
    unknown = []
    for manifest in manifests:
        found = None if one_by_one else known.get((manifest.manifest_path, bounds))
        if found is None:
            unknown.append(manifest)
        else:
            total.add(found)
    for manifest, data in _contents(store, table, unknown):
        if one_by_one:
            tally = _tally_each(manifest, data, bounds, removed, watch, delete_ratio, delete_files)
        else:
            tally = _tally(manifest, data, bounds)
            known.put((manifest.manifest_path, bounds), tally, len(tally.groups) + 1)
        _check(manifest, len(tally.each))
        total.add(tally)
    for group in total.groups.values():
        _settle(group, removed)
    return total


def _check(manifest: ManifestFile, living: int) -> None:
    """Avro has no checksum, and damaged bytes may still be read as something."""
    told = manifest.added_files_count, manifest.existing_files_count
    if None not in told and living != sum(count or 0 for count in told):
        raise IntegrityError(
            f"the manifest {manifest.manifest_path} does not match its manifest list",
            cause=f"it has {living} living entries, and should have {sum(count or 0 for count in told)}",
            hint="frazil table verify, or restore the table from a backup",
        )


def _tally(manifest: ManifestFile, data: bytes, bounds: tuple[int, ...]) -> ManifestStats:
    tally = ManifestStats()
    groups: dict[tuple[Any, ...], Group] = {}
    each, width, inherited = tally.each, len(bounds) + 1, manifest.sequence_number
    fields = (read.STATUS, read.FILE_SEQUENCE, read.PARTITION, read.ROWS, read.SIZE)
    for status, sequence, partition, rows, size in read.read_entries(data, fields, manifest.manifest_path):
        if status == read.DELETED:
            continue
        group = groups.get(partition)
        if group is None:
            group = groups[partition] = Group(manifest.partition_spec_id, partition, [0] * width, [0] * width)
        tier = bisect_right(bounds, size)
        group.files[tier] += 1
        group.bytes[tier] += size
        group.rows += rows
        if sequence is None:
            sequence = inherited
        if sequence > group.newest:
            group.newest = sequence
        each.append(size)
    tally.groups = {group.key: group for group in groups.values()}
    return tally


def _tally_each(
    manifest: ManifestFile,
    data: bytes,
    bounds: tuple[int, ...],
    removed: Removed,
    watch: Watch | None,
    delete_ratio: float,
    delete_files: int,
) -> ManifestStats:
    """The same, with what deletes and age do to each file."""
    tally, width = ManifestStats(), len(bounds) + 1
    fields = [read.STATUS, read.SEQUENCE, read.FILE_SEQUENCE, read.PARTITION, read.ROWS, read.SIZE, read.PATH]
    if watch is not None or removed.has_values:
        fields += [read.LOWER, read.UPPER]
    for entry in read.read_entries(data, tuple(fields), manifest.manifest_path):
        status, own, added, partition, rows, size, path = entry[:7]
        if status == read.DELETED:
            continue
        key = (manifest.partition_spec_id, partition)
        group = tally.groups.get(key)
        if group is None:
            group = tally.groups[key] = Group(manifest.partition_spec_id, partition, [0] * width, [0] * width)
        tier = bisect_right(bounds, size)
        group.files[tier] += 1
        group.bytes[tier] += size
        group.rows += rows
        group.newest = max(group.newest, manifest.sequence_number if added is None else added)
        tally.each.append(size)
        lower, upper = entry[7:] or (None, None)
        target = removed.by_file.get(path)
        if target is not None:
            group.deleted_rows += target.rows
            if target.rows >= delete_ratio * rows:
                group.dirty_files += 1
                group.dirty_bytes += size
        sequence = manifest.sequence_number if own is None else own
        ranges = removed.ranges(removed.columns, lower, upper)
        if removed.applying(key, path, sequence, ranges, delete_files) >= delete_files:
            group.burdened_files += 1
            group.burdened_bytes += size
        if watch is not None:
            watch.see(lower, upper, rows, size)
    return tally


def _settle(group: Group, removed: Removed) -> None:
    """What is known of the partition as a whole."""
    key = group.key
    group.position_files = removed.position_files.get(key, 0)
    if key in removed.by_partition:
        group.deleted_rows += removed.by_partition[key].rows
    for target in (removed.equality.get(key), removed.everywhere):
        if target is not None and target.hit:
            group.equality_files += len(target.each)


def _contents(
    store: TableStore, table: Table, manifests: Sequence[ManifestFile]
) -> Iterator[tuple[ManifestFile, bytes]]:
    """The bytes of manifests; those in a store beyond the network are fetched some ahead."""

    def fetch(manifest: ManifestFile) -> bytes:
        def get() -> bytes:
            with table.io.new_input(manifest.manifest_path).open() as stream:
                return stream.read()

        return store.call(get, "read_manifest", "storage")

    if not manifests or local_path(manifests[0].manifest_path) is not None:
        for manifest in manifests:
            yield manifest, fetch(manifest)
        return
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="frazil-census") as pool:
        waiting: deque[tuple[ManifestFile, Future[bytes]]] = deque()
        try:
            for manifest in manifests:
                waiting.append((manifest, pool.submit(fetch, manifest)))
                if len(waiting) > _AHEAD:
                    first, content = waiting.popleft()
                    yield first, content.result()
            while waiting:
                first, content = waiting.popleft()
                yield first, content.result()
        finally:
            for _, content in waiting:
                content.cancel()
