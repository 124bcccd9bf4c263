"""What an event of an object changes in its document: pure functions, whoever reads the events and writes the result.

Events may come twice, late, and in another order than they happened. What was last heard of an object stands in the
attribute `object` of its document: with it an event that is older, or was applied before, is recognised.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from frazil.documents.fields import is_valid
from frazil.documents.lifecycle import allowed_tiers
from frazil.documents.model import ARCHIVE_TIERS, RESTORE_STATES, Document, Revision, parse_time, plain_time
from frazil.documents.objects import OBJECT_ATTRIBUTE, content_writes, id_of_object, tier_of
from frazil.documents.store import Write
from frazil.errors import UsageError
from frazil.settings.model import FollowedBucketSettings
from frazil.storage.files import StoredFile

Kind = Literal["created", "removed", "transitioned", "restore_started", "restored", "restore_expired"]

DEFAULT_PROVIDER: Final = "aws"
#: A copy may leave S3 some hours before the expiry that was told. Events of an earlier copy are much older.
_EXPIRY_TOLERANCE: Final = timedelta(days=1)


@dataclass(frozen=True)
class ObjectEvent:
    """An event of an object, as far as it concerns documents.

    Attributes:
        log_id, offset, index: where it stands: in which log, in which message, and which record of it.
        sequence: compares as the source orders its events of one key, within one dialect; None: it has no order.
        is_marker: the current version became a delete marker.
        etag: without quotes.
        restore_expiry: of a restored copy.
    """

    kind: Kind
    bucket: str
    key: str
    time: datetime
    log_id: str
    offset: int
    index: int = 0
    version_id: str = ""
    dialect: str = "aws"
    sequence: str | None = None
    is_marker: bool = False
    etag: str | None = None
    size: int | None = None
    content_type: str | None = None
    storage_class: str | None = None
    restore_expiry: datetime | None = None

    def mark(self) -> dict[str, Any]:
        """Returns what is remembered of this event."""
        mark = {
            "time": plain_time(self.time), "log": self.log_id, "offset": self.offset, "index": self.index,
            "dialect": self.dialect, "sequence": self.sequence,
        }  # fmt: skip
        return {name: value for name, value in mark.items() if value is not None}


@dataclass(frozen=True)
class Inspected:
    """An object as the store describes it now.

    Attributes:
        file: None: it does not exist.
        is_known: false where this process may not ask, or nobody answers.
    """

    file: StoredFile | None
    is_known: bool = True


#: Describes an object by bucket, key and version.
Inspect = Callable[[str, str, str], Inspected]


def document_id_of(event: ObjectEvent, follow: FollowedBucketSettings) -> str:
    """Returns the id of the document of an object that `frazil docs add` or an event has registered."""
    return id_of_object(follow.provider or DEFAULT_PROVIDER, event.bucket, event.key)


def decide_event(
    event: ObjectEvent, latest: Revision | None, follow: FollowedBucketSettings, inspect: Inspect
) -> list[Write]:
    """Returns the writes that an event makes; none if it changes nothing.

    Args:
        event: the event.
        latest: the latest revision of the object's document, deleted or not; None: it has none.
        follow: what the settings say of the bucket.
        inspect: asked for a new object's tier and content, which events do not tell.
    """
    if latest is not None and _is_known(event, _mark_of(latest.document)):
        return []
    if event.kind == "created":
        return _created(event, latest, follow, inspect)
    if latest is None or latest.is_deleted:
        return []
    document = latest.document
    if event.kind == "removed":
        return _removed(event, document, inspect) if follow.delete else []
    if event.version_id and document.version_id and event.version_id != document.version_id:
        return []  # of a former version
    changes = _transition(event, document) if event.kind == "transitioned" else _restore(event, document, inspect)
    return [Write("update", document.document_id, changes, document.revision)] if changes else []


def _mark_of(document: Document) -> Mapping[str, Any]:
    mark = document.attributes.get(OBJECT_ATTRIBUTE)
    return mark if isinstance(mark, Mapping) else {}


def _is_known(event: ObjectEvent, mark: Mapping[str, Any]) -> bool:
    """Whether an event was applied before, or is older than one that was."""
    if mark.get("log") == event.log_id:
        last = (mark.get("offset", -1), mark.get("index", 0))
        if all(isinstance(number, int) for number in last) and (event.offset, event.index) <= last:
            return True
    if event.kind not in ("created", "removed"):
        return False  # these have no sequence; their own rules recognise late ones
    sequence = mark.get("sequence")
    if event.sequence is not None and isinstance(sequence, str) and mark.get("dialect") == event.dialect:
        return event.sequence <= sequence
    try:
        return "time" in mark and event.time < parse_time(mark["time"])
    except UsageError:  # somebody has written into it
        return False


def _created(
    event: ObjectEvent, latest: Revision | None, follow: FollowedBucketSettings, inspect: Inspect
) -> list[Write]:
    if latest is not None and not latest.is_deleted:
        return _replaced(event, latest.document, inspect)
    if not follow.create or event.key.endswith("/"):  # consoles show these as folders
        return []
    inspected = inspect(event.bucket, event.key, "")
    found = inspected.file
    if inspected.is_known and found is None:
        return []  # it is gone by now
    new = {
        "filename": posixpath.basename(event.key),
        "provider": follow.provider or DEFAULT_PROVIDER,
        "bucket": event.bucket,
        "object_key": event.key,
        **_content(event, found),
    }
    if latest is None:
        new["created_at"] = event.time if found is None else min(event.time, found.last_modified)
    return [Write("put", document_id_of(event, follow), {k: v for k, v in new.items() if v is not None}, 0)]


def _replaced(event: ObjectEvent, document: Document, inspect: Inspect) -> list[Write]:
    """A new content; or one that the document has already, as the event of `frazil docs add` tells it."""
    if not _has(document, event.etag, event.version_id):
        inspected = inspect(event.bucket, event.key, "")
        found = inspected.file
        if inspected.is_known and found is None:
            return []
        if found is None or not _has(document, found.etag, found.version_id):
            return content_writes(document, _content(event, found))
    mark = {"attributes": {OBJECT_ATTRIBUTE: event.mark()}}
    return [Write("update", document.document_id, mark, document.revision)]


def _has(document: Document, etag: str | None, version_id: str) -> bool:
    is_same = etag is not None and etag == _mark_of(document).get("etag")
    return is_same and version_id == (document.version_id or "")


def _content(event: ObjectEvent, found: StoredFile | None) -> dict[str, Any]:
    """The fields of a new object. What the store says now goes before what the event said then."""
    etag = found.etag if found is not None else event.etag
    storage_class = found.storage_class if found is not None else event.storage_class
    content_type = (found.content_type if found is not None else None) or event.content_type
    checksum = f"etag:{etag}" if etag else None
    return {
        # S3 stores any text as a content type. What no document can hold is left out.
        "content_type": content_type if is_valid("content_type", content_type) else None,
        "size_bytes": found.size if found is not None else event.size,
        "checksum": checksum if is_valid("checksum", checksum) else None,
        "version_id": (found.version_id if found is not None else event.version_id) or None,
        "storage_tier": tier_of(storage_class),
        "attributes": {OBJECT_ATTRIBUTE: {**event.mark(), **({"etag": etag} if etag else {})}},
    }


def _removed(event: ObjectEvent, document: Document, inspect: Inspect) -> list[Write]:
    if not event.is_marker and event.version_id and event.version_id != document.version_id:
        return []  # a former version was removed
    found = inspect(event.bucket, event.key, "").file
    if found is None:
        # The event is remembered first, so that a late one of the same object does not bring the document back.
        mark = {"attributes": {OBJECT_ATTRIBUTE: event.mark()}}
        marked = Write("update", document.document_id, mark, document.revision)
        return [marked, Write("delete", document.document_id)]
    if found.version_id == (document.version_id or ""):
        return []  # it was put again
    return content_writes(document, _content(event, found))  # the version before is the current one again


def _transition(event: ObjectEvent, document: Document) -> dict[str, Any]:
    tier = tier_of(event.storage_class)
    if event.storage_class is None or tier == document.storage_tier or tier not in allowed_tiers(document):
        return {}
    return {"storage_tier": tier, "attributes": {OBJECT_ATTRIBUTE: event.mark()}}


def _restore(event: ObjectEvent, document: Document, inspect: Inspect) -> dict[str, Any]:
    """The next state of a restore. The tier stays what it is: a restored copy does not leave the archive."""
    steps = {"restore_started": _started, "restored": _completed, "restore_expired": _expired}
    changes = steps[event.kind](event, document, inspect)
    was, wanted = document.restore_status, changes.get("restore_status")
    if wanted is None or (wanted != was and wanted not in RESTORE_STATES[was]):
        return {}
    if document.storage_tier not in ARCHIVE_TIERS:
        tier = tier_of(event.storage_class)
        if tier not in ARCHIVE_TIERS:
            return {}
        changes["storage_tier"] = tier  # the event of its transition is missing
    return {**changes, "attributes": {OBJECT_ATTRIBUTE: event.mark()}}


def _started(event: ObjectEvent, document: Document, _inspect: Inspect) -> dict[str, Any]:
    if document.restore_status == "in_progress":
        return {}
    asked = document.restore_requested_at if document.restore_status == "requested" else None
    return {
        "restore_status": "in_progress",
        "restore_requested_at": asked or event.time,
        "restore_expiry": None,
    }


def _completed(event: ObjectEvent, document: Document, inspect: Inspect) -> dict[str, Any]:
    expiry = event.restore_expiry
    if expiry is None:  # not every server tells
        found = inspect(event.bucket, event.key, event.version_id).file
        expiry = found.restored.expiry if found is not None and found.restored is not None else None
    before = document.restore_expiry if document.restore_status in ("restored", "expired") else None
    if expiry is None or (before is not None and before >= expiry):
        return {}
    return {"restore_status": "restored", "restore_expiry": expiry}


def _expired(event: ObjectEvent, document: Document, _inspect: Inspect) -> dict[str, Any]:
    expiry = document.restore_expiry
    if document.restore_status != "restored" or (expiry is not None and event.time < expiry - _EXPIRY_TOLERANCE):
        return {}
    return {"restore_status": "expired"}
