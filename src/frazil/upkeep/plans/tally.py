"""Counts the entries of manifests: data files per partition and tier, and what deletes rows of them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import from_bytes
from pyiceberg.types import DateType, PrimitiveType, StringType, TimestampNanoType, TimestamptzNanoType

from frazil.catalogs import local_path
from frazil.errors import IntegrityError
from frazil.upkeep.plans import entries as read

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from frazil.tables import TableStore

_Bounds = Mapping[int, bytes] | None
#: Where a group of files lies: id of the spec, and the values of the partition.
Key = tuple[int, tuple[Any, ...]]
#: The column of a position-delete file that names the data file.
_DELETED_PATH = 2147483546
#: Manifests that are fetched while one is counted.
_AHEAD = 8
#: Counts of partitions that `Tallies` remembers.
_REMEMBERED = 200_000


@dataclass(slots=True)
class Group:
    """The data files of one partition.

    Attributes:
        spec_id: of the partitioning under which they were written.
        partition: its values, as manifests hold them.
        files: per tier; the last are large enough.
        bytes: likewise.
        rows: deleted ones too.
        newest: sequence number of the commit that added the latest file.
        deleted_rows: by position, where it is known of which file or partition.
        dirty_files: of whose rows at least the policy's share is deleted.
        dirty_bytes: the size of these.
        position_files: files of position deletes for this partition; deletion vectors are none.
        equality_files: files of equality deletes that are younger than a file here.
        burdened_files: data files that at least the policy's number of delete files apply to.
        burdened_bytes: the size of these.
    """

    spec_id: int
    partition: tuple[Any, ...]
    files: list[int]
    bytes: list[int]
    rows: int = 0
    newest: int = 0
    deleted_rows: int = 0
    dirty_files: int = 0
    dirty_bytes: int = 0
    position_files: int = 0
    equality_files: int = 0
    burdened_files: int = 0
    burdened_bytes: int = 0

    @property
    def small_files(self) -> int:
        return sum(self.files[:-1])

    @property
    def key(self) -> Key:
        return self.spec_id, self.partition

    def add(self, other: Group) -> None:
        for tier, count in enumerate(other.files):
            if count:
                self.files[tier] += count
                self.bytes[tier] += other.bytes[tier]
        self.rows += other.rows
        if other.newest > self.newest:
            self.newest = other.newest
        self.deleted_rows += other.deleted_rows
        self.dirty_files += other.dirty_files
        self.dirty_bytes += other.dirty_bytes
        self.burdened_files += other.burdened_files
        self.burdened_bytes += other.burdened_bytes


@dataclass(frozen=True)
class Deletes:
    """What takes rows away without touching their files.

    Attributes:
        position_files: files of positions (format version 2).
        position_bytes: their size.
        vectors: deletion vectors (format version 3).
        vector_bytes: their size.
        rows: that these two delete.
        equality_files: files of values; how many rows they match is not known.
        equality_bytes: their size.
        dangling: files and vectors for data that is gone already.
    """

    position_files: int = 0
    position_bytes: int = 0
    vectors: int = 0
    vector_bytes: int = 0
    rows: int = 0
    equality_files: int = 0
    equality_bytes: int = 0
    dangling: int = 0


#: Per column the lowest and the highest value, decoded.
_Ranges = dict[int, tuple[Any, Any]]


@dataclass(slots=True)
class _Target:
    """What is deleted from one data file, or from one partition without saying of which file.

    Attributes:
        each: of the delete files, the sequence number and what is known of the values.
        rows: that they delete.
        hit: whether one of them is about a file that is there.
    """

    each: list[tuple[int, _Ranges]] = field(default_factory=list)
    rows: int = 0
    hit: bool = False

    def add(self, rows: int, sequence: int, ranges: _Ranges) -> None:
        self.each.append((sequence, ranges))
        self.rows += rows

    def applying(self, sequence: int, ranges: _Ranges, enough: int) -> int:
        """How many of the delete files can apply to a data file that none of them can be older than."""
        count = 0
        for own, theirs in self.each:
            if own >= sequence:
                self.hit = True
                count += _overlap(ranges, theirs)
                if count >= enough:
                    break
        return count


def _overlap(ranges: _Ranges, others: _Ranges) -> bool:
    """Whether two files can have a row in common, as far as their bounds tell."""
    for column, (lowest, highest) in others.items():
        own = ranges.get(column)
        if own is not None and (own[1] < lowest or highest < own[0]):
            return False
    return True


@dataclass
class Removed:
    """The deletes of a snapshot, by what they apply to."""

    types: Mapping[int, PrimitiveType]
    by_file: dict[str, _Target] = field(default_factory=dict)
    by_partition: dict[Key, _Target] = field(default_factory=dict)
    equality: dict[Key, _Target] = field(default_factory=dict)
    everywhere: _Target = field(default_factory=_Target)
    """Equality deletes without a partition apply to all data."""
    position_files: dict[Key, int] = field(default_factory=dict)
    columns: set[int] = field(default_factory=set)
    """By which equality deletes find their rows."""

    def __bool__(self) -> bool:
        return bool(self.by_file or self.by_partition or self.has_values)

    @property
    def has_values(self) -> bool:
        return bool(self.equality or self.everywhere.each)

    def ranges(self, columns: Iterable[int], lower: _Bounds, upper: _Bounds) -> _Ranges:
        """Between which values of these columns a file's rows are; a column of which it is not known is left out."""
        found = {}
        for column in columns:
            kind = self.types.get(column)
            first, last = (lower or {}).get(column), (upper or {}).get(column)
            if kind is not None and first is not None and last is not None:
                found[column] = (from_bytes(kind, first), from_bytes(kind, last))
        return found

    def applying(self, key: Key, path: str, sequence: int, ranges: _Ranges, enough: int) -> int:
        """How many delete files apply to a data file; no more are counted than are enough."""
        count = 0
        of_file, of_partition = self.by_file.get(path), self.by_partition.get(key)
        if of_file is not None:
            of_file.hit = True
            count += len(of_file.each)
        if of_partition is not None:
            count += of_partition.applying(sequence, {_DELETED_PATH: (path, path)}, enough)
        for target in (self.equality.get(key), self.everywhere):
            if target is not None:
                # By values only what was written before is deleted, not what came with the same commit.
                count += target.applying(sequence + 1, ranges, enough)
        return count

    def dangling(self) -> int:
        every = [self.everywhere]
        for targets in (self.by_file, self.by_partition, self.equality):
            every += targets.values()
        return sum(len(target.each) for target in every if not target.hit)


@dataclass
class Watch:
    """Rows by the age of a time column.

    Attributes:
        field_id: of the column.
        kind: its type.
        before_us: rows before this moment are old; microseconds since 1970.
        old_files: all of whose rows are old.
        old_bytes: their size.
        old_rows: theirs.
        mixed_files: with old rows and others.
        mixed_bytes: their size.
        oldest_us: the earliest moment of all.
        unknown_files: that do not say.
    """

    field_id: int
    kind: PrimitiveType
    before_us: int
    old_files: int = 0
    old_bytes: int = 0
    old_rows: int = 0
    mixed_files: int = 0
    mixed_bytes: int = 0
    oldest_us: int | None = None
    unknown_files: int = 0

    def see(self, lower: Mapping[int, bytes] | None, upper: Mapping[int, bytes] | None, rows: int, size: int) -> None:
        first, last = self._moment(lower), self._moment(upper)
        if first is None or last is None:
            self.unknown_files += 1
            return
        self.oldest_us = first if self.oldest_us is None else min(first, self.oldest_us)
        if last < self.before_us:
            self.old_files, self.old_bytes = self.old_files + 1, self.old_bytes + size
            self.old_rows += rows
        elif first < self.before_us:
            self.mixed_files, self.mixed_bytes = self.mixed_files + 1, self.mixed_bytes + size

    def _moment(self, bounds: Mapping[int, bytes] | None) -> int | None:
        data = (bounds or {}).get(self.field_id)
        if data is None:
            return None
        value = int(from_bytes(self.kind, data))
        if isinstance(self.kind, DateType):
            return value * 86_400_000_000
        return value // 1000 if isinstance(self.kind, (TimestampNanoType, TimestamptzNanoType)) else value


@dataclass
class Tally:
    """The data files of one manifest, or of several."""

    groups: dict[Key, Group] = field(default_factory=dict)
    each: array[int] = field(default_factory=lambda: array("q"))
    """The size of every file."""

    def add(self, other: Tally) -> None:
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


class Tallies:
    """Tallies of manifests that were counted before; the least used are forgotten. For several threads at once."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._found: OrderedDict[tuple[str, tuple[int, ...]], Tally] = OrderedDict()
        self._held = 0
        self._lock = Lock()

    def get(self, path: str, bounds: tuple[int, ...]) -> Tally | None:
        with self._lock:
            found = self._found.get((path, bounds))
            if found is not None:
                self._found.move_to_end((path, bounds))
            return found

    def put(self, path: str, bounds: tuple[int, ...], tally: Tally) -> None:
        with self._lock:
            self._found[path, bounds] = tally
            self._held += len(tally.groups) + 1
            while self._held > self._most:
                _, gone = self._found.popitem(last=False)
                self._held -= len(gone.groups) + 1


def count_deletes(store: TableStore, table: Table, manifests: Sequence[ManifestFile]) -> tuple[Deletes, Removed]:
    """What the delete manifests hold; `dangling` is not known before the data was counted."""
    removed = Removed(_types(table))
    counted = dict.fromkeys(("position_files", "position_bytes", "vectors", "vector_bytes", "rows"), 0)
    counted |= {"equality_files": 0, "equality_bytes": 0}
    fields = (
        read.STATUS, read.SEQUENCE, read.CONTENT, read.FORMAT, read.PARTITION, read.ROWS, read.SIZE,
        read.REFERENCED, read.CONTENT_SIZE, read.LOWER, read.UPPER, read.EQUALITY_IDS,
    )  # fmt: skip
    for manifest, data in _contents(store, table, manifests):
        spec_id = manifest.partition_spec_id
        for status, own, content, form, partition, rows, size, referenced, part, lower, upper, ids in read.entries(
            data, fields, manifest.manifest_path
        ):
            if status == read.DELETED:
                continue
            sequence = manifest.sequence_number if own is None else own
            key = (spec_id, partition)
            if content == read.EQUALITY_DELETES:
                counted["equality_files"] += 1
                counted["equality_bytes"] += size
                target = removed.equality.setdefault(key, _Target()) if partition else removed.everywhere
                target.add(rows, sequence, removed.ranges(ids or (), lower, upper))
                removed.columns.update(ids or ())
                continue
            counted["rows"] += rows
            if form.lower() == "puffin":
                counted["vectors"] += 1
                counted["vector_bytes"] += part or 0
            else:
                counted["position_files"] += 1
                counted["position_bytes"] += size
                removed.position_files[key] = removed.position_files.get(key, 0) + 1
            path = referenced or _only_path(lower, upper)
            where: dict[Any, _Target] = removed.by_partition if path is None else removed.by_file
            ranges = removed.ranges((_DELETED_PATH,), lower, upper) if path is None else {}
            where.setdefault(key if path is None else path, _Target()).add(rows, sequence, ranges)
    return Deletes(**counted), removed


def _types(table: Table) -> dict[int, PrimitiveType]:
    """Of the columns whose values can be compared, the one of position deletes among them."""
    fields = {field.field_id: field.field_type for field in table.schema().fields}
    return {_DELETED_PATH: StringType()} | {i: kind for i, kind in fields.items() if isinstance(kind, PrimitiveType)}


def _only_path(lower: Mapping[int, bytes] | None, upper: Mapping[int, bytes] | None) -> str | None:
    """The one data file that a file of position deletes is about, if it is about one."""
    first, last = (lower or {}).get(_DELETED_PATH), (upper or {}).get(_DELETED_PATH)
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
    known: Tallies,
) -> Tally:
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
    total = Tally()
    one_by_one = bool(removed) or watch is not None
    unknown = []
    for manifest in manifests:
        found = None if one_by_one else known.get(manifest.manifest_path, bounds)
        if found is None:
            unknown.append(manifest)
        else:
            total.add(found)
    for manifest, data in _contents(store, table, unknown):
        if one_by_one:
            tally = _tally_each(manifest, data, bounds, removed, watch, delete_ratio, delete_files)
        else:
            tally = _tally(manifest, data, bounds)
            known.put(manifest.manifest_path, bounds, tally)
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
            f"the manifest {manifest.manifest_path} does not hold what its list says",
            cause=f"it has {living} living entries, and should have {sum(count or 0 for count in told)}",
            hint="frazil table verify, or restore the table from a backup",
        )


def _tally(manifest: ManifestFile, data: bytes, bounds: tuple[int, ...]) -> Tally:
    tally = Tally()
    groups: dict[tuple[Any, ...], Group] = {}
    each, width, inherited = tally.each, len(bounds) + 1, manifest.sequence_number
    fields = (read.STATUS, read.FILE_SEQUENCE, read.PARTITION, read.ROWS, read.SIZE)
    for status, sequence, partition, rows, size in read.entries(data, fields, manifest.manifest_path):
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
) -> Tally:
    """The same, with what deletes and age do to each file."""
    tally, width = Tally(), len(bounds) + 1
    fields = [read.STATUS, read.SEQUENCE, read.FILE_SEQUENCE, read.PARTITION, read.ROWS, read.SIZE, read.PATH]
    if watch is not None or removed.has_values:
        fields += [read.LOWER, read.UPPER]
    for entry in read.entries(data, tuple(fields), manifest.manifest_path):
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
