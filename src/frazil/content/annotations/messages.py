"""Creates messages with annotations and changes of custom columns. `parse` reads them.

{"frazil": "extraction", "version": 1, "bucket": "b", "at": "…Z", "results": [{"key": "a", "version_id": "",
 "etag": "…", "created": null, "last_modified": "…Z", "detected_type": "image/jpeg",
 "extractors": {"exif": {"version": "1", "status": "ok", "reason": null, "data": {…}}}}]}
{"frazil": "edit", "version": 1, "bucket": "b", "at": "…Z", "edits": [{"key": "a", "version_id": "", "add": ["x"],
 "remove": [], "set": null, "note": "…", "rating": 5, "erase": false}]}
{"frazil": "fields", "version": 1, "cast": "lenient", "include_raw_metadata": true,
 "fields": [{"name": "iso", "type": "INTEGER", "jpath": "$.exif.ISOSpeedRatings"}], "drop": [], "backfill": ["iso"]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final


@dataclass(frozen=True)
class Annotation:
    """An entry of a message about one row.

    Attributes:
        kind: extraction or edit.
        bucket: of the row.
        key: of the row.
        version_id: of the row.
        offset: of the message; with `index` it defines the order of application.
        index: of the entry in its message.
        at: when it was created, as text.
        body: the entry as it was sent.
    """

    kind: str
    bucket: str
    key: str
    version_id: str
    offset: int
    index: int
    at: str
    body: dict[str, Any]


EXTRACTION: Final = "extraction"
EDIT: Final = "edit"
FIELDS: Final = "fields"
VERSION: Final = 1


def extraction(bucket: str, results: Sequence[Mapping[str, Any]], at: datetime) -> bytes:
    """Creates a message with extraction results of objects of a bucket.

    Args:
        bucket: its name, or the URI of a folder.
        results: each with `key`, `version_id`, and of the content that was read `etag`, `created` (the register of
            `frazil_order`) and `last_modified` as the row had them; `detected_type`; `extractors`: name → `version`,
            `status` (ok, gone, changed, unsupported, failed), `reason` where it is not ok, and `data`.
        at: time of the extraction.
    """
    return _message(EXTRACTION, bucket=bucket, at=_time_text(at), results=[_plain(r) for r in results])


def edit(bucket: str, edits: Iterable[Mapping[str, Any]], at: datetime) -> bytes:
    """Creates a message with edits of objects by a person.

    Args:
        bucket: its name, or the URI of a folder.
        edits: each with `key` and `version_id`, and any of `add`, `remove` (tags), `set` (all tags), `note`, `rating`
            (null takes them away, what is left out stays), `erase` (forget all that was extracted or entered).
        at: when.
    """
    return _message(EDIT, bucket=bucket, at=_time_text(at), edits=[dict(e) for e in edits])


def fields(
    made: Sequence[Mapping[str, str]],
    *,
    cast: str,
    include_raw_metadata: bool,
    drop: Sequence[str] = (),
    backfill: Sequence[str] = (),
) -> bytes:
    """Creates a message that adds, changes, drops or backfills custom columns; others stay.

    Args:
        made: each with `name`, `type` and `jpath`.
        cast: strict or lenient.
        include_raw_metadata: whether `metadata` is kept.
        drop: columns to take away.
        backfill: columns to compute for the rows that are there.
    """
    return _message(
        FIELDS,
        cast=cast,
        include_raw_metadata=include_raw_metadata,
        fields=[dict(f) for f in made],
        drop=list(drop),
        backfill=list(backfill),
    )


def _message(kind: str, **content: Any) -> bytes:
    whole = {"frazil": kind, "version": VERSION, **content}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _plain(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _time_text(v) if isinstance(v, datetime) else v for name, v in result.items()}


def _time_text(time: datetime) -> str:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return aware.isoformat(timespec="microseconds").replace("+00:00", "Z")
