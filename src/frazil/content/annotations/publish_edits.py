"""Publishes edits of objects by people: tags, a note, a rating, or erasure.

All edits are checked before anything is published, so a refused one changes nothing. The sink applies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from frazil.content.annotations.edits import MAX_TAGS, Edit
from frazil.content.annotations.messages import edit as edit_message
from frazil.content.intake.messages import headers_of, store
from frazil.content.query.filters import plain_version
from frazil.content.query.objects import nearest_key, quoted_name, require_bucket
from frazil.content.tables import ContentTables
from frazil.errors import NotFoundError, UnavailableError, UsageError
from frazil.log.protocol import Ack, LogAccess
from frazil.settings import Settings
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_EDITS: Final = 10_000
SOURCE: Final = "edit"

#: Maximum keys that an error names.
_NAMED = 10
_WANTED = ("key", "version_id", "etag", "is_latest", "is_deleted", "is_delete_marker", "user_tags")


def make_entries(
    tables: ContentTables, bucket: str, edits: Sequence[Edit], *, suggest: bool = False
) -> list[dict[str, Any]]:
    """Checks edits against the table, and returns the entries of their messages. Changes nothing.

    Args:
        tables: where.
        bucket: its name in the tables.
        edits: the edits.
        suggest: whether the error for an unknown key names the nearest one, which reads all keys of the bucket.

    Raises:
        UsageError: an edit is invalid.
        NotFoundError: the table does not have some of the objects; names them.
    """
    if not edits:
        raise UsageError("no objects are named", hint="a key")
    if len(edits) > MAX_EDITS:
        raise UsageError(f"{len(edits):,} objects are too many at once", hint=f"at most {MAX_EDITS:,}")
    for edit in edits:
        edit.check()
    by_key = _rows_by_key(tables, bucket, {edit.key for edit in edits})
    found: list[dict[str, Any]] = []
    unknown: list[str] = []
    for edit in edits:
        rows = _select_rows(edit, by_key.get(edit.key, []))
        if not rows:
            unknown.append(edit.key)
        for row in rows:
            _check_count(edit, row)
            found.append(edit.entry(row))
    if unknown:
        require_bucket(tables, bucket)
        raise _not_there(bucket, edits, unknown, nearest_key(tables, bucket, unknown[0]) if suggest else None)
    return found


def publish(
    access: LogAccess, topic: str, bucket: str, told: Sequence[dict[str, Any]], max_message: int
) -> tuple[Ack, int]:
    """Publishes entries atomically, and returns once they are on disk, with the offset after the last message."""
    now = datetime.now(UTC)
    messages = [edit_message(bucket, part, now) for part in _split_entries(bucket, told, now, max_message)]
    ack = store(access, topic, messages, headers_of(SOURCE), internal=True)
    return ack, ack.offset + ack.count


def forget_thumbnails(settings: Settings, tables: ContentTables, bucket: str, told: Sequence[dict[str, Any]]) -> int:
    """Deletes the thumbnails of erased objects, of this and previous contents. Returns the number of possible ones.

    Raises:
        FrazilError: they cannot be deleted.
    """
    from frazil.content.thumbnails import ThumbnailStore, thumbnail_key

    erased = {(entry["key"], entry["version_id"], entry["etag"]) for entry in told if entry.get("erase")}
    if not erased:
        return 0
    versions = {(key, version_id) for key, version_id, _ in erased}
    former = {told for told in _previous_contents(tables, bucket, {key for key, _ in versions}) if told[:2] in versions}
    names = sorted(thumbnail_key(bucket, *of) for of in erased | former)
    try:
        ThumbnailStore.of(settings).delete(*names)
    except OSError as error:
        raise UnavailableError("thumbnails cannot be deleted", hint="the same again") from error
    return len(names)


def _previous_contents(tables: ContentTables, bucket: str, keys: set[str]) -> set[tuple[str, str, str | None]]:
    """Returns key, version and etag of all contents in the journal."""
    from pyiceberg.expressions import And, EqualTo, In

    where = And(EqualTo(term="bucket", value=bucket), In(term="key", literals=keys))
    columns = ["key", "version_id", "e_tag"]

    def look(table: Table) -> set[tuple[str, str, str | None]]:
        found: set[tuple[str, str, str | None]] = set()
        for rows in RowScan(tables.store, table, where, columns):
            found.update((row["key"], row["version_id"] or "", row["e_tag"]) for row in rows.to_pylist())
        return found

    try:
        return tables.read(tables.journal, look)
    except NotFoundError:
        return set()


def _split_entries(
    bucket: str, told: Sequence[dict[str, Any]], now: datetime, max_message: int
) -> Iterable[Sequence[dict[str, Any]]]:
    """Splits entries into messages: halves them until they fit."""
    if len(told) > 1 and len(edit_message(bucket, told, now)) > max_message:
        half = len(told) // 2
        yield from _split_entries(bucket, told[:half], now, max_message)
        yield from _split_entries(bucket, told[half:], now, max_message)
    else:
        yield told


def _rows_by_key(tables: ContentTables, bucket: str, keys: set[str]) -> dict[str, list[dict[str, Any]]]:
    from pyiceberg.expressions import And, EqualTo, In

    where = And(EqualTo(term="bucket", value=bucket), In(term="key", literals=keys))

    def look(table: Table) -> dict[str, list[dict[str, Any]]]:
        # A table of an older version gets its new columns when a pipeline first opens it.
        columns = [name for name in _WANTED if name in table.schema().column_names]
        found: dict[str, list[dict[str, Any]]] = {}
        for rows in RowScan(tables.store, table, where, columns):
            for row in rows.select(columns).to_pylist():
                found.setdefault(row["key"], []).append(row)
        return found

    return tables.read(tables.objects, look)


def _select_rows(edit: Edit, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if edit.version_id is not None:
        rows = [row for row in rows if row["version_id"] == plain_version(edit.version_id)]
        return rows if edit.erase else [row for row in rows if _is_there(row)]
    if edit.erase:
        return rows
    return [row for row in rows if row["is_latest"] and _is_there(row)]


def _is_there(row: dict[str, Any]) -> bool:
    return not row["is_deleted"] and not row["is_delete_marker"]


def _check_count(edit: Edit, row: dict[str, Any]) -> None:
    count = 0 if edit.erase else len(edit.tags(row.get("user_tags") or ()))
    if count > MAX_TAGS:
        raise UsageError(f"'{edit.key}' would have {count} tags; nothing was changed", hint=f"at most {MAX_TAGS}")


def _not_there(bucket: str, edits: Sequence[Edit], unknown: Sequence[str], near: str | None) -> NotFoundError:
    named = ", ".join(f"'{key}'" for key in unknown[:_NAMED]) + (", …" if len(unknown) > _NAMED else "")
    of_version = "such version of " if any(edit.version_id is not None for edit in edits) else ""
    return NotFoundError(
        f"bucket '{bucket}' has no {of_version}{named}, as far as is known; nothing was changed",
        cause=f"{len(unknown):,} of {len(edits):,} objects are not known" if len(edits) > 1 else None,
        hint=f"{quoted_name(near)}, which is the nearest known key"
        if near is not None and near not in unknown
        else "frazil content list, or frazil content scan if it is new",
    )
