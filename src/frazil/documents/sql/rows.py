"""Converts revisions to rows of the tables, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from frazil.documents.model import FIELD_NAMES, Document, Revision, from_micros, to_micros

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = tuple(FIELD_NAMES.index(n) for n in ("restore_requested_at", "restore_expiry", "created_at", "updated_at"))
_REQUESTED, _EXPIRY, _CREATED, _UPDATED = _TIMES
_TAGS, _ATTRIBUTES = FIELD_NAMES.index("tags"), FIELD_NAMES.index("attributes")
_ADDED = len(FIELD_NAMES)

#: Between the parts of `search_text`. Texts have no control characters.
_SEARCHED, _TAG, _VALUE = "\x1c", "\x1d", "\x1e"
_WITHOUT_MARKS = str.maketrans({_TAG: "\x1f", _VALUE: "\x1f"})


def to_row(revision: Revision) -> tuple[Any, ...]:
    """Returns the row of a revision in `documents`."""
    d = revision.document
    created, valid_from = _micros(d.created_at), _micros(revision.valid_from)
    return (
        d.document_id,
        d.filename,
        d.content_type,
        d.size_bytes,
        d.checksum,
        d.provider,
        d.bucket,
        d.object_key,
        d.version_id,
        d.storage_tier,
        d.restore_status,
        None if d.restore_requested_at is None else _micros(d.restore_requested_at),
        None if d.restore_expiry is None else _micros(d.restore_expiry),
        created,
        valid_from if d.updated_at is revision.valid_from else _micros(d.updated_at),
        _encode(d.tags) if d.tags else "{}",
        _encode(d.attributes) if d.attributes else "{}",
        d.revision,
        _encode_added(d.columns) if d.columns else None,
        revision.operation,
        valid_from,
        search_text(d.filename, d.tags),
    )


def to_document(row: Sequence[Any]) -> Document:
    """Returns the document of a row that begins with the fields of the model and `columns`."""
    values = list(row[: _ADDED + 1])
    for place in _TIMES:
        if values[place] is not None:
            values[place] = _EPOCH + timedelta(microseconds=values[place])
    for place in (_TAGS, _ATTRIBUTES):
        values[place] = {} if values[place] == "{}" else orjson.loads(values[place])
    added = values[_ADDED]
    values[_ADDED] = _decode_added(added) if added is not None else {}
    return Document(*values)


def to_revision(row: Sequence[Any]) -> Revision:
    """Returns the revision of a row with `REVISION_COLUMNS`."""
    return Revision(to_document(row), row[_ADDED + 1], from_micros(row[_ADDED + 2]))


def search_text(filename: str, tags: Mapping[str, str]) -> str:
    """Returns the text in which words and tags are found: case-folded, and then the tags as they are."""
    found = filename.casefold()
    if not tags:
        return found
    exact = "".join(tag_text(name, value) for name, value in tags.items())
    folded = exact.casefold()
    if folded == exact:
        return f"{found}{_SEARCHED}{exact}"
    return f"{found}{_SEARCHED}{folded.translate(_WITHOUT_MARKS)}{_SEARCHED}{exact}"


def tag_text(name: str, value: str | None) -> str:
    """Returns how a tag stands in `search_text`; without a value, how any tag of this name begins."""
    return f"{_TAG}{name}{_VALUE}" if value is None else f"{_TAG}{name}{_VALUE}{value}{_TAG}"


def _micros(moment: datetime) -> int:
    """Returns what `to_micros` does, in half the time: it is called for each value that is stored."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _encode(value: Mapping[str, Any]) -> str:
    return orjson.dumps(dict(value)).decode()


def _encode_added(columns: Mapping[str, Any]) -> str | None:
    plain = {
        name: {"micros": to_micros(value)} if isinstance(value, datetime) else value
        for name, value in columns.items()
        if value is not None
    }
    return orjson.dumps(plain).decode() if plain else None


def _decode_added(text: str) -> dict[str, Any]:
    values: dict[str, Any] = orjson.loads(text)
    return {name: from_micros(value["micros"]) if isinstance(value, dict) else value for name, value in values.items()}
