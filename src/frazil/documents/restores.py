"""Restores of archived documents: requested of S3, and recorded as far as S3 has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from frazil.documents.model import ARCHIVE_TIERS, RESTORE_STATES, Document, plain_time
from frazil.documents.objects import location_of
from frazil.documents.store import DocumentStore
from frazil.errors import ConflictError, NotFoundError, UsageError
from frazil.settings import SettingsModel
from frazil.storage.files import RestoreTier, StoredFile, open_files

Outcome = Literal["requested", "extended", "in_progress"]
RESTORE_TIERS: tuple[str, ...] = get_args(RestoreTier)
#: S3 takes no more.
MAX_DAYS = 36_500


@dataclass(frozen=True)
class Requested:
    """A restore, and how S3 answered.

    Attributes:
        outcome: requested: it begins; extended: the copy stays longer; in_progress: it began before.
    """

    document: Document
    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        document = self.document
        return {
            "document_id": document.document_id,
            "outcome": self.outcome,
            "restore_status": document.restore_status,
            "restore_requested_at": plain_time(document.restore_requested_at),
            "restore_expiry": plain_time(document.restore_expiry),
        }


def request_restore(
    store: DocumentStore, settings: SettingsModel, document_id: str, *, days: int = 7, tier: RestoreTier = "Standard"
) -> Requested:
    """Asks S3 for a readable copy of an archived document, and records the state. May be repeated.

    S3 is asked first: after a crash in between the repetition finds the restore under way, and records it.

    Args:
        store: where the document is registered.
        settings: access to the storage.
        document_id: the document.
        days: how long the copy stays.
        tier: Standard (3 to 12 hours), Bulk (5 to 48 hours) or Expedited (minutes, not from deep_archive).

    Raises:
        NotFoundError: there is no such document, or no such object.
        ConflictError: the document is in no archive tier.
        UsageError: days or tier are impossible.
        UnsupportedError: the server has no archive.
    """
    if tier not in RESTORE_TIERS:
        raise UsageError(f"restore tier '{tier}' does not exist", hint=f"one of: {', '.join(RESTORE_TIERS)}")
    if not 1 <= days <= MAX_DAYS:
        raise UsageError(f"a restored copy cannot stay {days:,} days", hint=f"1 to {MAX_DAYS:,}")
    document = store.get_metadata(document_id)
    if document.storage_tier not in ARCHIVE_TIERS:
        raise ConflictError(
            f"document '{document_id}' is in tier '{document.storage_tier}', which needs no restore",
            hint=f"frazil docs fetch {document_id}",
        )
    if tier == "Expedited" and document.storage_tier == "deep_archive":
        raise UsageError(
            f"document '{document_id}' is in tier 'deep_archive', which has no expedited restore",
            hint="--tier Standard (12 hours) or Bulk (48 hours)",
        )
    root, key = location_of(document)
    files = open_files(root, s3=settings.s3, network=settings.network)
    version = document.version_id or ""
    asked_at = datetime.now(UTC)
    answer = files.restore(key, version, days, tier)
    found = files.find(key, version)
    if found is None:
        raise NotFoundError(f"{root.child(key)} does not exist any more", hint=f"frazil docs history {document_id}")
    if answer == "accepted":
        # What S3 does is told by its events, or by the next request.
        changes = {"restore_status": "requested", "restore_requested_at": asked_at, "restore_expiry": None}
        document = _record(store, document, changes)
        return Requested(document, "requested")
    return Requested(record_restore(store, document, found, asked_at), "extended" if answer == "extended" else answer)


def record_restore(
    store: DocumentStore, document: Document, found: StoredFile, asked_at: datetime | None = None
) -> Document:
    """Records what the store says of a restore, where the document does not say so yet. Returns the document."""
    if document.storage_tier not in ARCHIVE_TIERS or (document.version_id or found.version_id) != found.version_id:
        return document
    now, restored = datetime.now(UTC), found.restored
    expiry = document.restore_expiry
    changes: dict[str, Any] = {}
    if restored is None:
        if document.restore_status == "restored" and expiry is not None and expiry < now:
            changes = {"restore_status": "expired"}
    elif not restored.is_ongoing:
        if document.restore_status != "restored" or expiry != restored.expiry:
            changes = {"restore_status": "restored", "restore_expiry": restored.expiry}
    elif document.restore_status != "in_progress":
        asked = asked_at or document.restore_requested_at or now
        changes = {"restore_status": "in_progress", "restore_requested_at": asked, "restore_expiry": None}
    return _record(store, document, changes) if changes else document


def _record(store: DocumentStore, document: Document, changes: dict[str, Any]) -> Document:
    """Without `if_match`: a change of other fields meanwhile is no reason to lose the state of a restore."""
    was, wanted = document.restore_status, changes["restore_status"]
    if was != wanted and wanted not in RESTORE_STATES[was]:
        return document
    try:
        return store.update_metadata(document.document_id, changes)
    except (ConflictError, NotFoundError):  # an event of the object was faster, or the document was deleted
        return document
