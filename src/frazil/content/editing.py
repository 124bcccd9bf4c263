"""What people say of objects: tags, a note, a rating; or that all that is known of one is to be forgotten.

Everything is looked at before anything is published, so that a refused edit changes nothing. The sink applies them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final

from frazil.content.buckets import require_text
from frazil.content.choice import plain_version
from frazil.content.intake.messages import headers_of, store
from frazil.content.notes.messages import edit as edit_message
from frazil.content.reading import nearest_key, quoted_name, require_bucket
from frazil.content.tables import ContentTables
from frazil.errors import NotFoundError, UnavailableError, UsageError
from frazil.log.access import Ack, LogAccess
from frazil.settings import Settings
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_TAG: Final = 128
MAX_TAGS: Final = 100
MAX_NOTE: Final = 64 * 1024
MAX_EDITS: Final = 10_000
SOURCE: Final = "edit"

#: What is not mentioned stays as it is.
STAYS: Final = ...
#: Keys that an error names.
_NAMED = 10
_WANTED = ("key", "version_id", "etag", "is_latest", "is_deleted", "is_delete_marker", "user_tags")


@dataclass(frozen=True)
class Edit:
    """What is said of one object.

    Attributes:
        key: its key.
        version_id: which version; None: the latest that is there, and for `erase` all of them.
        add: tags that it gets.
        remove: tags that it loses.
        only: all the tags that it has from now on, before `add` and `remove`; None: those that it has.
        note: a text; None: it has none any more.
        rating: 1 to 5; None: it has none any more.
        erase: forget all that was extracted or entered.
    """

    key: str
    version_id: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    note: str | EllipsisType | None = STAYS
    rating: int | EllipsisType | None = STAYS
    erase: bool = False

    def check(self) -> None:
        """Raises UsageError where it cannot be, or says nothing."""
        require_text(self.key, "key")
        if not self.key:
            raise UsageError("the key is empty", hint="the object's key, or path in the folder")
        for tag in (*self.add, *self.remove, *(self.only or ())):
            check_tag(tag)
        if both := sorted(set(self.add) & set(self.remove)):
            raise UsageError(f"the tag '{both[0]}' is to be added and removed", hint="one of them")
        if isinstance(self.note, str):
            _check_note(self.note)
        if isinstance(self.rating, int) and not 1 <= self.rating <= 5:
            raise UsageError(f"a rating is 1 to 5, not {self.rating}", hint="a number from 1 to 5")
        entered = self.add or self.remove or self.only is not None or self.note is not STAYS or self.rating is not STAYS
        if self.erase and entered:
            raise UsageError("what is erased has no tags, note or rating", hint="erase it, or edit it")
        if not self.erase and not entered:
            raise UsageError(f"nothing is said of '{self.key}'", hint="tags, a note, a rating, or erase")

    def tags(self, had: Iterable[str]) -> list[str]:
        """The tags that it has then, as the sink makes them."""
        before = had if self.only is None else self.only
        return [tag for tag in dict.fromkeys((*before, *self.add)) if tag not in self.remove]

    def entry(self, row: dict[str, Any]) -> dict[str, Any]:
        """As the message has it, about one row."""
        entry: dict[str, Any] = {"key": row["key"], "version_id": row["version_id"]}
        if self.erase:
            # Of this content: what comes under the same key later is another.
            return entry | {"erase": True, "etag": row["etag"]}
        if self.only is not None:
            entry["set"] = list(dict.fromkeys(self.only))
        entry |= {name: list(tags) for name, tags in (("add", self.add), ("remove", self.remove)) if tags}
        entry |= {name: value for name in ("note", "rating") if (value := getattr(self, name)) is not STAYS}
        return entry


def check_tag(tag: str) -> None:
    """Raises UsageError where something cannot be a tag."""
    require_text(tag, "tag")
    if not tag.strip():
        raise UsageError("a tag is empty", hint="a word, such as holiday")
    if len(tag) > MAX_TAG:
        raise UsageError(f"the tag '{tag[:20]}…' has {len(tag)} characters", hint=f"at most {MAX_TAG}")
    if any(unicodedata.category(char) == "Cc" for char in tag):
        raise UsageError(f"the tag {tag!r} has a control character", hint="letters, digits and other visible ones")


def _check_note(note: str) -> None:
    require_text(note, "note")
    size = len(note.encode())
    if size > MAX_NOTE:
        raise UsageError(f"the note has {size:,} bytes", hint=f"at most {MAX_NOTE:,}")
    if "\x00" in note:
        raise UsageError("the note has a NUL character", hint="text")


def entries(
    tables: ContentTables, bucket: str, edits: Sequence[Edit], *, suggest: bool = False
) -> list[dict[str, Any]]:
    """What a message says, about rows that are there. Nothing is changed by it.

    Args:
        tables: where.
        bucket: the bucket, as the tables have it.
        edits: what is entered.
        suggest: whether the error for an unknown key names the nearest one, which reads all keys of the bucket.

    Raises:
        UsageError: an edit cannot be.
        NotFoundError: the table does not know one of the objects; it names them.
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
        rows = _meant(edit, by_key.get(edit.key, []))
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
    """Tells the log, all or nothing, and returns when it is on disk; with the offset after the last message."""
    now = datetime.now(UTC)
    messages = [edit_message(bucket, part, now) for part in _parts(bucket, told, now, max_message)]
    ack = store(access, topic, messages, headers_of(SOURCE), internal=True)
    return ack, ack.offset + ack.count


def forget_thumbnails(settings: Settings, tables: ContentTables, bucket: str, told: Sequence[dict[str, Any]]) -> int:
    """Deletes the thumbnails of objects that are erased, of this content and of those before. How many that may be.

    Raises:
        FrazilError: they cannot be deleted.
    """
    from frazil.content.extract.thumbnails import ThumbnailStore, thumbnail_key

    erased = {(entry["key"], entry["version_id"], entry["etag"]) for entry in told if entry.get("erase")}
    if not erased:
        return 0
    versions = {(key, version_id) for key, version_id, _ in erased}
    former = {told for told in _former(tables, bucket, {key for key, _ in versions}) if told[:2] in versions}
    names = sorted(thumbnail_key(bucket, *of) for of in erased | former)
    try:
        ThumbnailStore.of(settings).delete(*names)
    except OSError as error:
        raise UnavailableError("thumbnails cannot be deleted", hint="the same again") from error
    return len(names)


def _former(tables: ContentTables, bucket: str, keys: set[str]) -> set[tuple[str, str, str | None]]:
    """Key, version and etag of all contents that the journal knows."""
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


def _parts(
    bucket: str, told: Sequence[dict[str, Any]], now: datetime, max_message: int
) -> Iterable[Sequence[dict[str, Any]]]:
    """So many entries at once as a message holds: halves, until they fit."""
    if len(told) > 1 and len(edit_message(bucket, told, now)) > max_message:
        half = len(told) // 2
        yield from _parts(bucket, told[:half], now, max_message)
        yield from _parts(bucket, told[half:], now, max_message)
    else:
        yield told


def _rows_by_key(tables: ContentTables, bucket: str, keys: set[str]) -> dict[str, list[dict[str, Any]]]:
    from pyiceberg.expressions import And, EqualTo, In

    where = And(EqualTo(term="bucket", value=bucket), In(term="key", literals=keys))

    def look(table: Table) -> dict[str, list[dict[str, Any]]]:
        # A table of an older Frazil gets its newer columns when a pipeline first opens it.
        columns = [name for name in _WANTED if name in table.schema().column_names]
        found: dict[str, list[dict[str, Any]]] = {}
        for rows in RowScan(tables.store, table, where, columns):
            for row in rows.select(columns).to_pylist():
                found.setdefault(row["key"], []).append(row)
        return found

    return tables.read(tables.objects, look)


def _meant(edit: Edit, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
