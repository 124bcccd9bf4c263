"""Parses messages with annotations. Invalid ones get a reason, like events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from frazil.content.annotations.messages import EDIT, EXTRACTION, FIELDS, VERSION, Annotation
from frazil.content.events.fields import read_bucket, read_key, read_time, read_version
from frazil.content.events.model import Parsed, Problem, Unreadable
from frazil.extract.status import CHANGED, FAILED, GONE, OK, UNSUPPORTED

_STATUSES = frozenset({OK, GONE, CHANGED, UNSUPPORTED, FAILED})
_LISTS = {EXTRACTION: "results", EDIT: "edits"}


def is_note(document: Any) -> bool:
    return type(document) is dict and document.get("frazil") in (EXTRACTION, EDIT, FIELDS)


def read_note(message: dict[str, Any]) -> Parsed:
    """Parses a message into annotations, or into a change of the table's custom columns.

    Raises:
        Unreadable: nothing of the message can be used.
    """
    kind = message["frazil"]
    if message.get("version") != VERSION:
        raise Unreadable(
            "version", f"a message of version {message.get('version')!r:.50}, this version of Frazil reads {VERSION}"
        )
    if kind == FIELDS:
        return Parsed(orders=[_order(message)])
    bucket = read_bucket(message.get("bucket"))
    at = message.get("at")
    read_time(at)
    entries = message.get(_LISTS[kind])
    if type(entries) is not list:
        raise Unreadable("not_an_event", f"it has no list of {_LISTS[kind]}")
    parsed = Parsed()
    check = _check_result if kind == EXTRACTION else _check_edit
    for index, entry in enumerate(entries):
        try:
            note = _note(kind, bucket, str(at), index, entry)
            check(entry)
        except Unreadable as error:
            parsed.problems.append(Problem(error.reason, str(error), index))
        else:
            parsed.notes.append(note)
    return parsed


def set_offsets(notes: list[Annotation], offset: int) -> list[Annotation]:
    """Sets the offset of annotations."""
    return [replace(note, offset=offset) for note in notes]


def _note(kind: str, bucket: str, at: str, index: int, entry: Any) -> Annotation:
    if type(entry) is not dict:
        raise Unreadable("not_an_event", f"an entry must be a JSON object, not {entry!r:.50}")
    try:
        orjson.dumps(entry)
    except TypeError as error:  # a number that is too large, half a surrogate pair, too deep
        raise Unreadable("bad_text", f"an entry cannot be kept as JSON: {error}") from None
    key = read_key(entry.get("key"), encoded=False)
    return Annotation(kind, bucket, key, read_version(entry.get("version_id")), 0, index, at, entry)


def _check_result(entry: dict[str, Any]) -> None:
    extractors = entry.get("extractors")
    if type(extractors) is not dict:
        raise Unreadable("not_an_event", "a result needs an object of extractors")
    for name, result in extractors.items():
        status = result.get("status") if type(result) is dict else None
        if type(status) is not str or status not in _STATUSES:
            raise Unreadable("not_an_event", f"the result of {name!r:.50} has an unknown status")
    if entry.get("last_modified") is not None:
        read_time(entry["last_modified"])


def _check_edit(entry: dict[str, Any]) -> None:
    for name in ("add", "remove", "set"):
        tags = entry.get(name)
        if tags is not None and (type(tags) is not list or not all(type(t) is str and t for t in tags)):
            raise Unreadable("bad_text", f"{name} must be a list of tags")
    if type(entry.get("note", "")) not in (str, type(None)):
        raise Unreadable("bad_text", "a note must be a string")
    rating = entry.get("rating")
    if rating is not None and (type(rating) is not int or not 1 <= rating <= 5):
        raise Unreadable("bad_number", f"a rating must be 1 to 5, not {rating!r:.50}")


def _order(message: dict[str, Any]) -> dict[str, Any]:
    for name in ("fields", "drop", "backfill"):
        if type(message.get(name, [])) is not list:
            raise Unreadable("not_an_event", f"{name} is a list")
    return message
