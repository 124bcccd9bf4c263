"""The objects that the table knows, in 16 bytes per row, so that a scan publishes only differences.

A row is two digests: of key and version, and of everything else that a listing shows. The strings of a million rows
would take hundreds of megabytes; digests are sorted, searched page by page, and can be a file that executors share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.query.filters import ObjectFilter
from frazil.content.scan.listing import Object
from frazil.content.tables import ContentTables
from frazil.errors import NotFoundError
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    from pyiceberg.table import Table

Digests: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_WHO = ("key", "version_id")
#: What both a listing and a row have, times in whole seconds. The type is left out: a folder guesses it, and other
#: machines guess otherwise.
_HOW = ("etag", "size", "last_modified", "storage_class", "is_latest", "is_delete_marker")
_EPOCH = datetime.fromtimestamp(0, UTC)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class KnownDiff:
    """The objects that differ from the table; how many of them are new, and how many have changed."""

    objects: list[Object]
    new: int
    changed: int


class KnownObjects:
    """The rows of a target as digests.

    Args:
        ids: sorted digests of key and version.
        states: the digest of the other columns for each.
    """

    def __init__(self, ids: Digests, states: Digests) -> None:
        self._ids, self._states = ids, states
        self._seen = np.zeros(len(ids), bool)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def unseen(self) -> int:
        """Number of rows that no object was compared with."""
        return int(len(self) - self._seen.sum())

    def diff(self, objects: Sequence[Object]) -> KnownDiff:
        """Returns the objects that the table does not know, or knows differently."""
        if not objects:
            return KnownDiff([], 0, 0)
        who, how = _of_objects(objects)
        place, found = self._places(who)
        same = found.copy()
        same[found] = self._states[place[found]] == how[found]
        self._seen[place[found]] = True
        news = [objects[index] for index in np.flatnonzero(~same).tolist()]
        new = int((~found).sum())
        return KnownDiff(news, new, len(news) - new)

    def is_unseen(self, who: Digests) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Returns which digests belong to rows that no object was compared with."""
        place, found = self._places(who)
        found[found] = ~self._seen[place[found]]
        return found

    def _places(self, who: Digests) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[np.bool_]]]:
        place = np.searchsorted(self._ids, who)
        found = np.zeros(len(who), bool)
        inside = place < len(self)
        found[inside] = self._ids[place[inside]] == who[inside]
        return place, found

    def save(self, path: Path) -> None:
        np.save(path, np.stack([self._ids, self._states]))

    @classmethod
    def load(cls, path: str | Path) -> KnownObjects:
        """Maps a saved file into memory; all processes of a machine share one copy."""
        who, how = np.load(path, mmap_mode="r")
        return cls(who, how)


def load_known_objects(tables: ContentTables, bucket: str, prefix: str) -> KnownObjects:
    """Loads the rows of a bucket, without tombstones; none if there is no table yet."""

    def look(table: Table) -> KnownObjects:
        made = [_of_rows(rows) for rows in rows_of(tables, table, bucket, prefix, (*_WHO, *_HOW))]
        nothing = np.zeros(0, np.uint64)
        who = np.concatenate([nothing, *(one for one, _ in made)])
        how = np.concatenate([nothing, *(other for _, other in made)])
        del made
        order = np.argsort(who)
        return KnownObjects(who[order], how[order])

    try:
        return tables.read(tables.objects, look)
    except NotFoundError:
        return KnownObjects(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def unseen_keys(tables: ContentTables, bucket: str, prefix: str, seen: KnownObjects) -> list[tuple[str, str]]:
    """Returns key and version of the rows that no object was compared with, sorted."""

    def look(table: Table) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for rows in rows_of(tables, table, bucket, prefix, _WHO):
            unseen = rows.filter(pa.array(seen.is_unseen(_digests(_joined(rows, _WHO)))))
            found += zip(unseen["key"].to_pylist(), unseen["version_id"].to_pylist(), strict=True)
        return sorted(found)

    return tables.read(tables.objects, look)


def count_rows(tables: ContentTables, bucket: str, prefix: str, *, latest: bool = False) -> int:
    """Counts the rows of a bucket, without tombstones."""

    def look(table: Table) -> int:
        found = rows_of(tables, table, bucket, prefix, ["is_latest"])
        return sum(pc.sum(rows["is_latest"]).as_py() or 0 if latest else rows.num_rows for rows in found)

    try:
        return tables.read(tables.objects, look)
    except NotFoundError:
        return 0


def count_pending(tables: ContentTables, bucket: str, prefix: str) -> int:
    """Counts the rows of a bucket that wait for extraction."""

    def look(table: Table) -> int:
        if "extraction_status" not in table.schema().column_names:
            return 0  # the sink adds the column with its next batch
        found = rows_of(tables, table, bucket, prefix, ["extraction_status"])
        return sum(pc.sum(pc.equal(rows["extraction_status"], "pending")).as_py() or 0 for rows in found)

    try:
        return tables.read(tables.objects, look)
    except NotFoundError:
        return 0


def rows_of(
    tables: ContentTables, table: Table, bucket: str, prefix: str, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Returns the rows of a bucket with some columns, without tombstones, a part at a time."""
    if table.metadata.current_snapshot_id is None:
        return iter(())
    choice = ObjectFilter(bucket=bucket, prefix=prefix, versions=True, markers=True)
    return iter(RowScan(tables.store, table, choice.to_expression(), columns))


def _of_rows(rows: pa.Table) -> tuple[Digests, Digests]:
    # HEAD responses have whole seconds; events and listings of some servers have fractions.
    modified = pc.floor_temporal(rows["last_modified"], unit="second").cast(pa.timestamp("s", "UTC")).cast(pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("last_modified"), "last_modified", modified)
    return _digests(_joined(rows, _WHO)), _digests(_joined(rows, _HOW))


def _joined(rows: pa.Table, names: Sequence[str]) -> Iterable[str]:
    texts = [pc.cast(rows[name], pa.string()) for name in names]
    joined = pc.binary_join_element_wise(*texts, "\0", null_handling="replace", null_replacement="")
    found: list[str] = joined.to_pylist()
    return found


def _of_objects(objects: Sequence[Object]) -> tuple[Digests, Digests]:
    who = (f"{found['key']}\0{found.get('version_id') or ''}" for found in objects)
    return _digests(who), _digests(map(_how, objects))


def _how(found: Object) -> str:
    """Returns the same text as `_joined` for the row that this object becomes."""
    modified, size = found.get("last_modified"), found.get("size")
    latest, marker = found.get("is_latest"), found.get("is_delete_marker", False)
    return "\0".join(
        (
            found.get("etag") or "",
            "" if size is None else str(size),
            "" if modified is None else str((datetime.fromisoformat(modified) - _EPOCH) // _SECOND),
            found.get("storage_class") or "",
            "true" if latest else "false",
            "true" if marker else "false",
        )
    )


def _digests(texts: Iterable[str]) -> Digests:
    return np.frombuffer(b"".join([blake2b(t.encode(), digest_size=8).digest() for t in texts]), np.uint64)
