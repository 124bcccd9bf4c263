"""Checks the fields of requests: every value in its type, or an error that names the field and what it may be."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeGuard, cast

import orjson

from frazil.documents.model import (
    COLUMN_TYPES,
    FIELD_NAMES,
    IMMUTABLE,
    READ_ONLY,
    RESTORE_STATES,
    TIERS,
    Column,
    parse_time,
    plain_time,
)
from frazil.errors import UsageError

#: How far the clock of a client may be ahead.
CLOCK_TOLERANCE = timedelta(minutes=5)
MAX_TEXT = 1024
MAX_TAGS = 256
MAX_TAG = 256
MAX_ATTRIBUTES_BYTES = 64 * 1024
#: Levels of nesting: JSON libraries and databases have limits of their own, none below 100.
MAX_ATTRIBUTES_DEPTH = 64

#: What the whole of a text matches, by field.
PATTERNS: Mapping[str, re.Pattern[str]] = {
    "document_id": re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,254}"),
    "provider": re.compile(r"[a-z0-9][a-z0-9_-]{0,62}"),
    "content_type": re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(;[\x20-\x7e]{0,255})?"),
    "checksum": re.compile(r"[a-z0-9-]{1,32}:[A-Za-z0-9+/=_-]{1,256}"),
}
_ID = PATTERNS["document_id"]
_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,62}")
_RESERVED = frozenset({"columns", "operation", "valid_from", "valid_to", "is_deleted", "position", "offset"})


def check_request(request: Mapping[str, Any], columns: Mapping[str, Column], now: datetime) -> dict[str, Any]:
    """Returns the fields of a request in their types, without those that the store sets."""
    if not isinstance(request, Mapping):
        raise UsageError("document metadata must be a mapping of fields", hint='{"filename": "report.pdf", …}')
    values: dict[str, Any] = {}
    for name, value in request.items():
        if name in READ_ONLY:
            continue
        if name in _CHECKS:
            values[name] = _CHECKS[name](name, value)
        elif name in columns:
            values[name] = check_column_value(columns[name], value)
        else:
            raise UsageError(
                f"field '{name}' does not exist",
                hint=f"one of: {', '.join([*_CHECKS, *columns])}; or add it: frazil docs schema add-column",
            )
    for name in ("created_at", "restore_requested_at"):
        moment = values.get(name)
        if moment is not None and moment > now + CLOCK_TOLERANCE:
            raise UsageError(
                f"field '{name}' lies in the future: {plain_time(moment)}", hint=f"now it is {plain_time(now)}"
            )
    if values.get("document_id", "") is None:
        raise UsageError("field 'document_id' is empty", hint="leave it out to get a new id")
    if "created_at" in values and values["created_at"] is None:
        del values["created_at"]
    return values


def record_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Separates the fields of the record from the added columns, and leaves out what is None by default."""
    made = {name: value for name, value in values.items() if name in _CHECKS}
    for name, default in (("storage_tier", "standard"), ("restore_status", "none"), ("tags", {}), ("attributes", {})):
        if name in made and made[name] is None:
            made[name] = default
    added = {name: value for name, value in values.items() if name not in _CHECKS}
    return {**made, "columns": added} if added else made


def check_sizes(values: Mapping[str, Any]) -> None:
    if "tags" in values:
        _check_tags("tags", values["tags"])
    if "attributes" in values:
        _check_attributes("attributes", values["attributes"])


def _wrong(name: str, value: Any, cause: str, hint: str) -> UsageError:
    shown = repr(value)
    return UsageError(
        f"field '{name}' is invalid: {shown if len(shown) <= 80 else shown[:77] + '…'}", cause=cause, hint=hint
    )


def check_text(name: str, value: Any, limit: int = MAX_TEXT) -> str | None:
    """Returns a text that every store and file format can hold; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong(name, value, f"it is {type(value).__name__}, not text", "text")
    if len(value) <= limit and value.isascii() and value.isprintable():
        return value
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise _wrong(name, value, "it is no valid Unicode text", "text without lone surrogates") from None
    if size > limit:
        raise _wrong(name, value, f"it has {size:,} bytes", f"at most {limit:,} bytes")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise _wrong(name, value, "it has a control character", "visible characters")
    return value


def is_document_id(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _check_id(name: str, value: Any) -> Any:
    if value is not None and not is_document_id(value):
        raise _wrong(
            name,
            value,
            "it is no document id",
            "letters, digits and . _ : @ + = -, at most 255, beginning with one of the first two; or leave it out",
        )
    return value


def _check_filename(name: str, value: Any) -> str | None:
    text = check_text(name, value)
    if text is not None and not text.strip():
        raise _wrong(name, value, "it is empty", "a name such as report.pdf")
    return text


def _like(example: str) -> Any:
    def check(name: str, value: Any) -> str | None:
        if value is not None and not (isinstance(value, str) and PATTERNS[name].fullmatch(value)):
            raise _wrong(name, value, "it does not have the form of this field", f"such as {example}")
        return value

    return check


def _one_of(allowed: Mapping[str, Any]) -> Any:
    def check(name: str, value: Any) -> str | None:
        if value is not None and (not isinstance(value, str) or value not in allowed):
            raise _wrong(name, value, "it is none of the allowed values", f"one of: {', '.join(allowed)}")
        return value

    return check


def _check_size(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise _wrong(name, value, "it is no number of bytes", "a whole number from 0 to 2^63 - 1")
    return value


def _check_time(name: str, value: Any) -> datetime | None:
    return None if value is None else parse_time(value, name)


def _check_tags(name: str, value: Any) -> dict[str, str | None] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "it is no map of texts", '{"project": "apollo"}')
    if len(value) > MAX_TAGS:
        raise UsageError(f"field '{name}' has {len(value):,} entries", hint=f"at most {MAX_TAGS}")
    made: dict[str, str | None] = {}
    for key, text in value.items():
        if not isinstance(key, str) or not key.strip():
            raise _wrong(name, key, "a tag has an empty name, or one that is no text", '{"project": "apollo"}')
        made[str(check_text(f"{name}.{key[:40]}", key, MAX_TAG))] = check_text(f"{name}.{key[:40]}", text, MAX_TAG)
    return made


def _check_attributes(name: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _wrong(name, value, "it is no JSON", 'an object such as {"pages": 12}') from None
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "it is no JSON object", 'an object such as {"pages": 12}')
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        made = json.loads(text)  # a copy, which nobody changes later
        orjson.dumps(made)  # refuses what stores cannot hold: lone surrogates, numbers beyond 64 bits
    except (TypeError, ValueError, RecursionError):
        raise _wrong(name, value, "JSON cannot hold it", "texts, numbers, booleans, lists and objects") from None
    if not is_nested_within(made, MAX_ATTRIBUTES_DEPTH):
        raise UsageError(f"field '{name}' is nested too deep", hint=f"at most {MAX_ATTRIBUTES_DEPTH} levels")
    if len(text) > MAX_ATTRIBUTES_BYTES:
        raise UsageError(f"field '{name}' has {len(text):,} bytes of JSON", hint=f"at most {MAX_ATTRIBUTES_BYTES:,}")
    return cast("dict[str, Any]", made)


def is_nested_within(value: Any, levels: int) -> bool:
    """Whether a JSON value has at most so many lists and objects inside of each other."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        inside = (v for outside in level for v in (outside.values() if isinstance(outside, dict) else outside))
        level = [v for v in inside if isinstance(v, (dict, list))]
        if not level:
            return True
    return False


_CHECKS: Mapping[str, Any] = MappingProxyType(
    {
        "document_id": _check_id,
        "filename": _check_filename,
        "content_type": _like("application/pdf"),
        "size_bytes": _check_size,
        "checksum": _like("sha256:9f86d081…"),
        "provider": _like("aws"),
        "bucket": check_text,
        "object_key": check_text,
        "version_id": check_text,
        "storage_tier": _one_of(TIERS),
        "restore_status": _one_of(RESTORE_STATES),
        "restore_requested_at": _check_time,
        "restore_expiry": _check_time,
        "created_at": _check_time,
        "tags": _check_tags,
        "attributes": _check_attributes,
    }
)


def is_valid(name: str, value: Any) -> bool:
    """Whether a field of the record can have a value."""
    try:
        _CHECKS[name](name, value)
    except UsageError:
        return False
    return True


def changeable_fields() -> list[str]:
    return [name for name in _CHECKS if name not in IMMUTABLE]


def check_column(name: str, kind: str) -> Column:
    """Returns a column that can be added to a store.

    Raises:
        UsageError: the name is taken or no name, or the type is unknown.
    """
    if not _COLUMN.fullmatch(name) or name in FIELD_NAMES or name in _RESERVED:
        taken = name in FIELD_NAMES or name in _RESERVED
        raise UsageError(
            f"column name '{name[:80]}' is {'taken' if taken else 'invalid'}",
            hint="lower-case letters, digits and '_', at most 63, beginning with a letter",
        )
    if kind not in COLUMN_TYPES:
        raise UsageError(f"column type '{kind[:80]}' does not exist", hint=f"one of: {', '.join(COLUMN_TYPES)}")
    return Column(name, cast("Any", kind))


def check_column_value(column: Column, value: Any) -> Any:
    """Returns the value of an added column in its type."""
    if value is None:
        return None
    match column.type:
        case "string":
            return check_text(column.name, value, MAX_ATTRIBUTES_BYTES)
        case "long":
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
                raise _wrong(column.name, value, "it is no whole number of 64 bits", "such as 12")
            return value
        case "double":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise _wrong(column.name, value, "it is no finite number", "such as 1.5")
            return float(value)
        case "boolean":
            if not isinstance(value, bool):
                raise _wrong(column.name, value, "it is no boolean", "true or false")
            return value
        case "timestamp":
            return parse_time(value, column.name)
