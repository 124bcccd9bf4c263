"""Decides which revisions of other stores are loaded: complete histories, checked, and each only once. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, get_args

import orjson
import pyarrow as pa

from frazil.documents.decide import StoredRevision
from frazil.documents.fields import CLOCK_TOLERANCE, check_column_value, is_document_id
from frazil.documents.model import (
    ARCHIVE_TIERS,
    RESTORE_STATES,
    TIERS,
    Column,
    Document,
    Operation,
    Revision,
    plain_time,
)
from frazil.errors import ConflictError, UsageError

_OPERATIONS = frozenset(get_args(Operation))
_TEXTS = ("content_type", "checksum", "provider", "bucket", "object_key", "version_id")
_TIMES = ("restore_requested_at", "restore_expiry")
#: What `check_text` refuses: control characters, and halves of characters.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MAX_TEXT = 1024


def plan_load(
    revisions: Sequence[Revision],
    stored: Mapping[str, Sequence[StoredRevision]],
    columns: Mapping[str, Column],
    now: datetime,
) -> list[StoredRevision]:
    """Returns the revisions that the store does not have yet.

    Args:
        revisions: those of one document one after the other, in their order, from its first one on.
        stored: what the store has of these documents, from `load_histories`.
        columns: the added columns of the store.
        now: the time of the store.

    Raises:
        UsageError: a revision is wrong, or one is missing between two.
        ConflictError: the store has another past of the document.
    """
    made: list[StoredRevision] = []
    last: dict[str, Revision] = {}
    for given in revisions:
        revision = _checked(given, columns, now)
        document_id, number = revision.document_id, revision.revision
        past = stored.get(document_id, ())
        if number <= len(past):
            if past[number - 1].revision != revision:
                raise _another(revision)
            continue
        before = last.get(document_id) or (past[-1].revision if past else None)
        _check_order(before, revision)
        last[document_id] = revision
        made.append(StoredRevision(revision))
    return made


def require_columns(revisions: pa.Table, columns: Mapping[str, Column]) -> None:
    """Checks that a store has all added columns of which revisions have values.

    Args:
        revisions: in `REVISION_SCHEMA`.
        columns: the added columns of the store.

    Raises:
        UsageError: one does not exist.
    """
    texts = revisions.column("columns").drop_null()
    if not len(texts):
        return
    for text in texts.unique().to_pylist():
        for name in orjson.loads(text):
            if name not in columns:
                raise _unknown_column(name, "the revisions")


def _check_order(before: Revision | None, revision: Revision) -> None:
    expected = 1 if before is None else before.revision + 1
    if revision.revision != expected:
        raise UsageError(
            f"revision {revision.revision} of document '{revision.document_id}' comes where {expected} is expected",
            hint="load the complete history of each document, in its order",
        )
    if before is None:
        if revision.is_deleted:
            raise UsageError(f"document '{revision.document_id}' begins with a delete", hint="load its whole history")
        return
    if revision.valid_from < before.valid_from:
        raise UsageError(
            f"revision {revision.revision} of document '{revision.document_id}' is older than the one before it",
            hint="load the complete history of each document, in its order",
        )
    if revision.document.created_at != before.document.created_at:
        raise _another(revision)


def _checked(given: Revision, columns: Mapping[str, Column], now: datetime) -> Revision:
    document = given.document
    wrong = _wrong_field(given)
    if wrong is not None:
        value = repr(
            getattr(document, wrong, None) if wrong not in ("operation", "valid_from") else getattr(given, wrong)
        )
        raise UsageError(
            f"field '{wrong}' of document '{str(document.document_id)[:80]}', revision {given.revision}, is invalid: "
            f"{value[:80]}",
            hint="write the document with put instead, which says what is allowed",
        )
    if given.valid_from > now + CLOCK_TOLERANCE:
        raise UsageError(
            f"revision {given.revision} of document '{document.document_id}' lies in the future",
            cause=f"it is valid from {plain_time(given.valid_from)}, and now it is {plain_time(now)}",
            hint="check the clocks of both machines",
        )
    return replace(given, document=_with_columns(document, columns)) if document.columns else given


def _wrong_field(given: Revision) -> str | None:
    """Returns the name of a field that a store cannot hold. Quick: all of an archive passes here."""
    d = given.document
    if not is_document_id(d.document_id):
        return "document_id"
    if not _is_text(d.filename) or not d.filename.strip():
        return "filename"
    for name in _TEXTS:
        text = getattr(d, name)
        if text is not None and not _is_text(text):
            return name
    if d.size_bytes is not None and not (type(d.size_bytes) is int and 0 <= d.size_bytes < 2**63):
        return "size_bytes"
    if d.storage_tier not in TIERS:
        return "storage_tier"
    if d.restore_status not in RESTORE_STATES or (d.restore_status != "none" and d.storage_tier not in ARCHIVE_TIERS):
        return "restore_status"
    if type(d.revision) is not int or d.revision < 1:
        return "revision"
    if given.operation not in _OPERATIONS:
        return "operation"
    return _wrong_time(given) or _wrong_map(d)


def _wrong_time(given: Revision) -> str | None:
    d = given.document
    for name in _TIMES:
        moment = getattr(d, name)
        if moment is not None and not _is_time(moment):
            return name
    if not _is_time(d.created_at):
        return "created_at"
    if not _is_time(given.valid_from):
        return "valid_from"
    return None if d.updated_at == given.valid_from else "updated_at"


def _wrong_map(d: Document) -> str | None:
    if d.tags and not all(_is_text(name) and name and _is_text(value) for name, value in d.tags.items()):
        return "tags"
    return None if isinstance(d.attributes, Mapping) else "attributes"


def _is_text(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= _MAX_TEXT
        and (value.isascii() or len(value.encode("utf-8", "replace")) <= _MAX_TEXT)
        and (value.isprintable() or _FORBIDDEN.search(value) is None)
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _with_columns(document: Document, columns: Mapping[str, Column]) -> Document:
    made = {}
    for name, value in document.columns.items():
        if name not in columns:
            raise _unknown_column(name, f"document '{document.document_id}'")
        if value is not None:
            made[name] = check_column_value(columns[name], value)
    return replace(document, columns=made)


def _unknown_column(name: str, of: str) -> UsageError:
    return UsageError(
        f"column '{name[:80]}' of {of} does not exist in the store", hint="add it first: frazil docs schema add-column"
    )


def _another(revision: Revision) -> ConflictError:
    return ConflictError(
        f"the store has another revision {revision.revision} of document '{revision.document_id}'",
        hint="load into an empty store, or leave this document out",
    )
