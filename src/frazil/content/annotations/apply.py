"""Applies annotations to rows before they are written: pure functions on Arrow tables.

A result of extraction applies only to the content that it was made from. Edits by people are never changed by results,
and stay with the key when the content changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.annotations.messages import EXTRACTION, Annotation
from frazil.content.annotations.standard_columns import standard_columns
from frazil.content.columns import EXTRACTED, USERS
from frazil.content.fields import Fields, compute
from frazil.content.fields.types import array_of, select_values
from frazil.extract.status import CHANGED, FAILED, GONE, OK, UNSUPPORTED

PENDING = "pending"
ERASED = "erased"
#: Statuses that need a retry, or a person.
_BAD = frozenset({FAILED, GONE, CHANGED})
_READ = ("etag", "last_modified", "is_deleted", "is_delete_marker", "frazil_order")
Row: TypeAlias = dict[str, Any]
Document: TypeAlias = dict[str, Any] | None
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


def apply_notes(
    rows: pa.Table, notes: Sequence[Annotation], about: Sequence[int], fields: Fields
) -> tuple[pa.Table, Bools]:
    """Applies annotations. Returns the rows, and which of them have changed.

    Args:
        rows: with all columns of the table.
        notes: in log order.
        about: the row of each annotation; -1: none, and the annotation is ignored.
        fields: the custom columns.
    """
    touched = np.zeros(rows.num_rows, bool)
    by_row: dict[int, list[Annotation]] = {}
    for note, place in zip(notes, about, strict=True):
        if place >= 0:
            by_row.setdefault(int(place), []).append(note)
    if not by_row:
        return rows, touched
    places = list(by_row)
    columns = [*_READ, *(f.name for f in (*EXTRACTED, *USERS)), *fields.own_names]
    found: list[Row] = rows.select(columns).take(pa.array(places)).to_pylist()
    documents: list[Document] = []
    for place, row in zip(places, found, strict=True):
        document = _document(row)
        before = document is not None
        for note in by_row[place]:
            if note.kind == EXTRACTION:
                document, applied = _apply_result(row, note, document, fields)
            else:
                document, applied = _apply_edit(row, note, document, fields)
            touched[place] |= applied
        documents.append(document)
        if document is None and before:
            row["metadata"] = None
    _compute(found, documents, fields)
    names = [*(f.name for f in (*EXTRACTED, *USERS)), *fields.own_names]
    return _replaced(rows, places, found, names), touched


def with_fields(rows: pa.Table, fields: Fields) -> pa.Table:
    """Recomputes some custom columns from `metadata`; others stay as they are."""
    made = compute(rows.column("metadata"), fields)
    names = set(fields.names)
    errors, marks = [], []
    before = zip(rows.column("field_errors").to_pylist(), rows.column("frazil_fields").to_pylist(), strict=True)
    for new, (old_errors, old_marks) in zip(made.errors, before, strict=True):
        kept = [(name, why) for name, why in old_errors or () if name not in names]
        errors.append([*kept, *(new or {}).items()] or None)
        marks.append([*(mark for mark in old_marks or () if mark.partition(":")[0] not in names), *made.marks])
    kinds = {name: rows.schema.field(name).type for name in ("field_errors", "frazil_fields")}
    told = {
        "field_errors": pa.array(errors, kinds["field_errors"]),
        "frazil_fields": pa.array(marks, kinds["frazil_fields"]),
    }
    # If the document was not kept, the computed values are all there is.
    known = pc.is_valid(rows.column("metadata"))
    columns = {name: select_values(known, new, rows.column(name)) for name, new in made.columns.items()}
    return _set(rows, {**columns, **told})


def _document(row: Row) -> Document:
    try:
        found = orjson.loads(row["metadata"]) if row["metadata"] else None
    except orjson.JSONDecodeError:  # written by another program
        return None
    return found if isinstance(found, dict) else None


def _apply_result(
    row: Row, note: Annotation, document: dict[str, Any] | None, fields: Fields
) -> tuple[dict[str, Any] | None, bool]:
    body = note.body
    if (
        row["is_deleted"]
        or row["is_delete_marker"]
        or row["extraction_status"] == ERASED
        or not _matches_content(row, body)
    ):
        return document, False
    document = dict(document or {})
    states = dict(row["extraction"] or ())
    at = _parse_time(note.at)
    for name, result in body["extractors"].items():
        status = result["status"]
        states[name] = {
            "version": _text(result.get("version")), "status": status, "reason": _text(result.get("reason")), "at": at,
        }  # fmt: skip
        if status == OK:
            document[name] = result.get("data")
        elif status == UNSUPPORTED:
            # After a failure the previous result stays: it was made from the same content.
            document.pop(name, None)
    row["extraction"] = sorted(states.items())
    row["extraction_status"] = FAILED if any(s["status"] in _BAD for s in states.values()) else OK
    standard = standard_columns(document)
    if fields.include_raw_metadata:
        row |= standard
        row["metadata"] = orjson.dumps(document).decode()
    else:
        # Without the whole document, only the values of this result are new.
        row |= {name: value for name, value in standard.items() if value is not None}
        row["metadata"] = None
    return document, True


def _matches_content(row: Row, body: dict[str, Any]) -> bool:
    """Whether a result was made from the content that the row has."""
    etag, created = body.get("etag"), body.get("created")
    if etag != row["etag"]:
        return False
    if etag is None and _parse_time(body.get("last_modified")) != row["last_modified"]:
        return False
    known = (row["frazil_order"] or {}).get("created")
    return created is None or known is None or created == known


def _apply_edit(
    row: Row, note: Annotation, document: dict[str, Any] | None, fields: Fields
) -> tuple[dict[str, Any] | None, bool]:
    body = note.body
    if body.get("erase"):
        row |= dict.fromkeys(f.name for f in USERS)
        if body.get("etag", row["etag"]) != row["etag"]:
            return document, True  # the content has changed since
        row |= dict.fromkeys((*(f.name for f in EXTRACTED), *fields.own_names))
        row["extraction_status"] = None if row["is_deleted"] or row["is_delete_marker"] else ERASED
        return None, True
    tags = list(row["user_tags"] or ()) if body.get("set") is None else list(body["set"])
    tags = [tag for tag in (*tags, *(body.get("add") or ())) if tag not in set(body.get("remove") or ())]
    row["user_tags"] = list(dict.fromkeys(tags)) or None
    for name in ("note", "rating"):
        if name in body:
            row[name] = body[name] or None
    return document, True


def _compute(rows: Sequence[Row], documents: Sequence[Document], fields: Fields) -> None:
    """Computes the custom columns of rows whose document is known."""
    if not fields:
        return
    known = [i for i, document in enumerate(documents) if document is not None]
    texts = pa.array([orjson.dumps(documents[i]).decode() for i in known], pa.string())
    made = compute(texts, fields)
    columns = {name: column.to_pylist() for name, column in made.columns.items()}
    for place, i in enumerate(known):
        row = rows[i]
        values = {name: column[place] for name, column in columns.items()}
        if not fields.include_raw_metadata:
            values = {name: value for name, value in values.items() if value is not None}
        row |= values
        errors = made.errors[place] or {}
        if not fields.include_raw_metadata:
            errors = {k: v for k, v in dict(row["field_errors"] or ()).items() if row.get(k) is None} | errors
        row["field_errors"] = list(errors.items()) or None
        row["frazil_fields"] = made.marks


def _replaced(rows: pa.Table, places: Sequence[int], made: Sequence[Row], names: Iterable[str]) -> pa.Table:
    index = np.arange(rows.num_rows)
    index[list(places)] = rows.num_rows + np.arange(len(places))
    chosen = pa.array(index)
    columns: dict[str, Any] = {}
    for name in names:
        kind = rows.schema.field(name).type
        values = array_of([row[name] for row in made], kind)
        columns[name] = pa.chunked_array([*rows.column(name).chunks, values], kind).take(chosen)
    return _set(rows, columns)


def _set(rows: pa.Table, columns: dict[str, Any]) -> pa.Table:
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), values.cast(rows.schema.field(place).type))
    return rows


def _parse_time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
