"""The document record: its fields, and its allowed values and transitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

from frazil.errors import UsageError

Operation = Literal["put", "update", "delete", "undelete"]

#: Storage tiers, and where a document may go from each. Leaving an archive tier requires a restored copy.
TIERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "standard": ("infrequent", "archive", "deep_archive"),
        "infrequent": ("standard", "archive", "deep_archive"),
        "archive": ("standard", "infrequent", "deep_archive"),
        "deep_archive": ("standard", "infrequent", "archive"),
    }
)
ARCHIVE_TIERS = frozenset({"archive", "deep_archive"})

#: Restore states, and what may follow each. All but `none` require an archive tier, which a restore keeps.
RESTORE_STATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": ("requested", "in_progress", "restored"),
        "requested": ("in_progress", "restored", "failed", "none"),
        "in_progress": ("restored", "failed"),
        "restored": ("requested", "restored", "expired", "none"),
        "expired": ("requested", "in_progress", "restored", "none"),
        "failed": ("requested", "in_progress", "restored", "none"),
    }
)

#: How far the clock of a client may be ahead.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)
#: From this absolute value a number is a time in milliseconds: as seconds it would lie beyond the year 5138.
_MILLISECONDS_FROM = 100_000_000_000


@dataclass(frozen=True, slots=True)
class Document(Mapping[str, Any]):
    """One revision of a document's metadata. It is also a mapping of its fields, as in `document["filename"]`."""

    document_id: str
    filename: str
    content_type: str | None = None
    size_bytes: int | None = None
    checksum: str | None = None
    provider: str | None = None
    bucket: str | None = None
    object_key: str | None = None
    version_id: str | None = None
    storage_tier: str = "standard"
    restore_status: str = "none"
    restore_requested_at: datetime | None = None
    restore_expiry: datetime | None = None
    created_at: datetime = _EPOCH
    updated_at: datetime = _EPOCH
    tags: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Values of the columns that were added to the store."""

    def __getitem__(self, name: str) -> Any:
        if name in FIELD_NAMES:
            return getattr(self, name)
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        yield from FIELD_NAMES
        yield from self.columns

    def __len__(self) -> int:
        return len(FIELD_NAMES) + len(self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Returns the record with times as ISO-8601 in UTC, for JSON. Added columns stand beside the fields."""
        return {name: plain_time(value) for name, value in self.items()}


@dataclass(frozen=True, slots=True)
class Revision:
    """One acknowledged change of a document: its state from `valid_from` on, until the next revision.

    Attributes:
        document: the state after the change. A delete keeps the last state.
        operation: what was done.
        valid_from: the moment of acknowledgement, by the clock of the store. It never runs backwards within a store.
    """

    document: Document
    operation: Operation
    valid_from: datetime

    @property
    def document_id(self) -> str:
        return self.document.document_id

    @property
    def revision(self) -> int:
        return self.document.revision

    @property
    def is_deleted(self) -> bool:
        return self.operation == "delete"

    def to_dict(self) -> dict[str, Any]:
        return {"operation": self.operation, "valid_from": plain_time(self.valid_from), **self.document.to_dict()}


@dataclass(frozen=True, slots=True)
class Column:
    """A metadata column that was added to a store."""

    name: str
    type: Literal["string", "long", "double", "boolean", "timestamp"]


#: The fields of the record that every store has, in order. `columns` holds what was added.
FIELD_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Document) if f.name != "columns")
#: Set by the store. A request may contain them, as a record that was read does; they are ignored.
READ_ONLY = frozenset({"revision", "updated_at"})
#: Cannot be changed after the first revision.
IMMUTABLE = frozenset({"document_id", "created_at"})
COLUMN_TYPES = ("string", "long", "double", "boolean", "timestamp")


def parse_time(value: Any, name: str = "timestamp") -> datetime:
    """Returns a moment in UTC from epoch seconds, epoch milliseconds, ISO-8601 or a datetime.

    Numbers of 100,000,000,000 and more are milliseconds. A time without a zone is taken as UTC.

    Raises:
        UsageError: it is none of these, or lies outside of the years 1 to 9999.
    """
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,16}(\.\d{1,9})?", value.strip()):
        value = float(value) if "." in value else int(value)
    try:
        made = _to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        made = None
    if made is None or not _EARLIEST <= made <= _LATEST:
        shown = repr(value)
        raise UsageError(
            f"field '{name}' is invalid: {shown if len(shown) <= 80 else shown[:77] + '…'}",
            cause="it is no time between the years 1 and 9999",
            hint="epoch seconds or milliseconds, or ISO-8601: 2026-02-28T12:00:00Z",
        )
    return made


def _to_datetime(value: Any) -> datetime | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        in_ms = abs(value) >= _MILLISECONDS_FROM
        return _EPOCH + (timedelta(milliseconds=value) if in_ms else timedelta(seconds=value))
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def to_micros(moment: datetime) -> int:
    """Returns microseconds since 1970 in UTC."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Returns the moment of microseconds since 1970 in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def plain_time(value: Any) -> Any:
    """Returns a time as ISO-8601 in UTC, a mapping as a dictionary, and any other value as it is."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return dict(value) if isinstance(value, Mapping) else value
