"""What is counted of a table's files: the data of a partition, what deletes rows of it, and how old the rows are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.types import DateType, PrimitiveType, TimestampNanoType, TimestamptzNanoType

from frazil.tables.metadata.bounds import decode_bound

_Bounds = Mapping[int, bytes] | None
#: Where a group of files lies: id of the spec, and the values of the partition.
Key = tuple[int, tuple[Any, ...]]
#: The column of a position-delete file that names the data file.
DELETED_PATH = 2147483546


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
        position_files: files of position deletes for this partition that can be merged: not deletion vectors, and not
            the only one of its data file, unless the table wants one for all.
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
class Target:
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
    by_file: dict[str, Target] = field(default_factory=dict)
    by_partition: dict[Key, Target] = field(default_factory=dict)
    equality: dict[Key, Target] = field(default_factory=dict)
    everywhere: Target = field(default_factory=Target)
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
            if (kind := self.types.get(column)) is None:
                continue
            first, last = decode_bound(lower, column, kind), decode_bound(upper, column, kind)
            if first is not None and last is not None:
                found[column] = (first, last)
        return found

    def applying(self, key: Key, path: str, sequence: int, ranges: _Ranges, enough: int) -> int:
        """How many delete files apply to a data file; no more are counted than are enough."""
        count = 0
        of_file, of_partition = self.by_file.get(path), self.by_partition.get(key)
        if of_file is not None:
            of_file.hit = True
            count += len(of_file.each)
        if of_partition is not None:
            count += of_partition.applying(sequence, {DELETED_PATH: (path, path)}, enough)
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
        bound = decode_bound(bounds, self.field_id, self.kind)
        if bound is None:
            return None
        value = int(bound)
        if isinstance(self.kind, DateType):
            return value * 86_400_000_000
        return value // 1000 if isinstance(self.kind, (TimestampNanoType, TimestamptzNanoType)) else value
