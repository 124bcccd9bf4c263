"""The numbers and sizes of documents by provider, tier and restore state, kept up to date by every write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, literal_column, select, tuple_

from frazil.documents.model import FIELD_NAMES
from frazil.documents.sql.bulk import chunks, insert_rows, is_among
from frazil.documents.sql.schema import document_counts, documents
from frazil.documents.store import Statistics

#: The name in statistics of documents whose provider is not known.
UNKNOWN_PROVIDER = "unknown"

_PROVIDER, _TIER, _STATUS, _SIZE = (
    FIELD_NAMES.index(name) for name in ("provider", "storage_tier", "restore_status", "size_bytes")
)
_LOW_BITS = 2**32 - 1
Group = tuple[str, str, str]


@dataclass
class CountChanges:
    """How many documents, and bytes, are added to each group."""

    by_group: dict[Group, list[int]] = field(default_factory=dict)

    def add(self, row: Sequence[Any]) -> None:
        """Counts a document of `documents` in."""
        self._change((row[_PROVIDER] or "", row[_TIER], row[_STATUS]), 1, row[_SIZE] or 0)

    def remove(self, group: Group, size: int) -> None:
        self._change(group, -1, -size)

    def _change(self, group: Group, number: int, size: int) -> None:
        change = self.by_group.get(group)
        if change is None:
            self.by_group[group] = [number, size]
        else:
            change[0] += number
            change[1] += size


def counts_of(connection: Connection, ids: Sequence[str]) -> CountChanges:
    """Returns changes that take out documents as they are stored now, as far as they exist."""
    changes = CountChanges()
    c = documents.c
    query = select(c.provider, c.storage_tier, c.restore_status, c.size_bytes)
    query = query.where(is_among(connection.dialect.name, c.document_id))
    for some in chunks(ids, 500):
        for provider, tier, status, size in connection.execute(query, {"ids": some}):
            changes.remove((provider or "", tier, status), size or 0)
    return changes


def add_counts(connection: Connection, changes: CountChanges) -> None:
    """Adds changes to what is stored, under the lock of writers."""
    wanted = [group for group, change in changes.by_group.items() if any(change)]
    c = document_counts.c
    key = tuple_(c.provider, c.storage_tier, c.restore_status)
    for some in chunks(wanted, 100):
        stored = {
            (row.provider, row.storage_tier, row.restore_status): (row.documents, int(row.bytes))
            for row in connection.execute(select(document_counts).where(key.in_(some)))
        }
        rows, empty = [], []
        for group in some:
            number, size = (
                old + new for old, new in zip(stored.get(group, (0, 0)), changes.by_group[group], strict=True)
            )
            if number:
                rows.append((*group, number, str(size)))
            else:
                empty.append(group)
        insert_rows(connection, document_counts, rows, replace=True)
        if empty:
            connection.execute(delete(document_counts).where(key.in_(empty)))


def read_counts(connection: Connection) -> Statistics:
    return to_statistics(
        ((row.provider, row.storage_tier, row.restore_status), row.documents, int(row.bytes))
        for row in connection.execute(select(document_counts))
    )


def count_rows(connection: Connection, source: Any, conditions: Sequence[Any]) -> Statistics:
    """Counts rows of `documents` or of the history."""
    c = source.c
    # The sum of sizes may exceed 64 bits; of their halves it does not.
    half: ColumnElement[int] = literal_column("32")  # PostgreSQL does not shift by a parameter, which is a bigint
    high, low = func.sum(c.size_bytes.bitwise_rshift(half)), func.sum(c.size_bytes.bitwise_and(_LOW_BITS))
    group = (c.provider, c.storage_tier, c.restore_status)
    rows = connection.execute(select(*group, func.count(), high, low).where(*conditions).group_by(*group))
    return to_statistics(
        ((provider or "", tier, status), number, (int(high or 0) << 32) + int(low or 0))
        for provider, tier, status, number, high, low in rows
    )


def to_statistics(groups: Iterable[tuple[Group, int, int]]) -> Statistics:
    made = Statistics(total_documents=0, total_size_bytes=0, by_provider={}, by_tier={}, by_restore_status={})
    for (provider, tier, status), number, size in sorted(groups):
        made["total_documents"] += number
        made["total_size_bytes"] += size
        for counts, name in (
            (made["by_provider"], provider or UNKNOWN_PROVIDER),
            (made["by_tier"], tier),
            (made["by_restore_status"], status),
        ):
            counts[name] = counts.get(name, 0) + number
    return made
