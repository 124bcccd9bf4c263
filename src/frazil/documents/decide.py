"""Decides a batch of writes: which revisions it makes, or why it is refused. Pure, and the same on every store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Self

import orjson

from frazil.documents import lifecycle
from frazil.documents.fields import check_text, is_document_id
from frazil.documents.model import Column, Document, Revision, plain_time, to_micros
from frazil.documents.store import Write
from frazil.errors import ConflictError, FrazilError, UsageError

MAX_KEY = 255
MAX_WRITES = 50_000
#: How long an idempotency key tells that a request is repeated. Then it is forgotten, and may name another request.
KEY_AGE = timedelta(days=7)
#: Bytes of text in the revisions that one batch makes: a small request may repeat large documents.
MAX_BATCH_BYTES = 64 << 20
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StoredRevision:
    """A revision with what the store keeps beside it.

    Attributes:
        revision: the acknowledged change.
        idempotency_key: the key of the request that made it.
        digest: of that request, to tell a repetition from another request under the same key.
    """

    revision: Revision
    idempotency_key: str | None = None
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Decision(StoredRevision):
    """What one write comes to. A repetition has the first result, and nothing is to be stored."""

    is_repeat: bool = False


def next_moment(clock: datetime | None, now: datetime) -> datetime:
    """Returns the moment of the next acknowledgement: now, but later than the last one even if the clock ran back."""
    return now if clock is None else max(now, clock + _TICK)


def ids_of(writes: Iterable[Write]) -> set[str]:
    """Returns the ids whose latest revisions `decide_writes` needs."""
    named = (_requested_id(write) for write in writes)
    return {document_id for document_id in named if is_document_id(document_id)}


def keys_of(writes: Iterable[Write]) -> set[str]:
    """Returns the idempotency keys whose first results `decide_writes` needs.

    Raises:
        UsageError: a key is none.
    """
    return {_check_key(write.idempotency_key) for write in writes if write.idempotency_key is not None}


@dataclass(frozen=True)
class WriteBatch:
    """Writes that are applied together, and what `decide_writes` needs for them."""

    writes: Sequence[Write]
    ids: set[str]
    keys: set[str]

    @classmethod
    def of(cls, writes: Sequence[Write]) -> Self:
        """Raises UsageError if an idempotency key is none."""
        return cls(writes, ids_of(writes), keys_of(writes))

    def decide(
        self,
        latest: Mapping[str, Revision],
        repeats: Mapping[str, StoredRevision],
        columns: Mapping[str, Column],
        now: datetime,
    ) -> list[Decision]:
        """Returns what `decide_writes` does, from what is known of these documents and keys, and of others."""
        current = {i: latest[i] for i in self.ids if i in latest}
        first_results = {key: repeats[key] for key in self.keys if key in repeats}
        return decide_writes(self.writes, current, first_results, columns, now)


def decide_writes(
    writes: Sequence[Write],
    current: Mapping[str, Revision],
    repeats: Mapping[str, StoredRevision],
    columns: Mapping[str, Column],
    now: datetime,
) -> list[Decision]:
    """Returns the result of each write, as if they were applied in order. Nothing is applied.

    Args:
        writes: a batch; any number of them may be of one document.
        current: the latest revisions of `ids_of(writes)`, as far as they exist.
        repeats: the first results of `keys_of(writes)`, as far as they exist.
        columns: the added columns of the store.
        now: the moment of acknowledgement, from `next_moment`.

    Raises:
        UsageError: a field is wrong.
        NotFoundError: an update or delete of a document that does not exist.
        ConflictError: another revision than expected, a forbidden transition, or a key of another request.
    """
    if len(writes) > MAX_WRITES:
        raise UsageError(
            f"the batch has {len(writes):,} writes", hint=f"at most {MAX_WRITES:,}; or: frazil docs import"
        )
    latest, first_results = dict(current), dict(repeats)
    decisions, sizes = [], _Sizes()
    for number, write in enumerate(writes, 1):
        try:
            made = _decide(write, latest, first_results, columns, now)
        except FrazilError as error:
            if len(writes) > 1:
                error.adding(f"this is write {number} of {len(writes)}, and none was applied", write=number)
            raise
        decisions.append(made)
        sizes.add(made.revision.document)
        if not made.is_repeat:
            latest[made.revision.document_id] = made.revision
            if made.idempotency_key is not None:
                first_results[made.idempotency_key] = made
    return decisions


class _Sizes:
    """Adds up how much text the documents of a batch have."""

    def __init__(self) -> None:
        self._total = 0
        #: By identity: an update that does not touch tags or attributes shares them with the revision before.
        self._known: dict[int, tuple[object, int]] = {}

    def add(self, document: Document) -> None:
        """Raises UsageError if the batch has become too large."""
        self._total += self._size(document.tags) + self._size(document.attributes) + self._size(document.columns)
        if self._total > MAX_BATCH_BYTES:
            raise UsageError(
                f"the batch makes revisions of more than {MAX_BATCH_BYTES >> 20} MiB",
                hint="smaller batches, or: frazil docs import",
            )

    def _size(self, values: Mapping[str, Any]) -> int:
        if not values:
            return 0
        known = self._known.get(id(values))
        if known is None:
            # The mapping is kept, so that no other one gets its identity.
            known = self._known[id(values)] = values, _measure(values)
        return known[1]


def _measure(values: Mapping[str, Any]) -> int:
    """Returns the bytes of values as JSON."""
    try:
        return len(orjson.dumps(values, default=str))
    except TypeError:  # what orjson does not write: other mappings, whole numbers of more than 64 bits
        return len(json.dumps(values, default=str))


def new_document_id(now: datetime) -> str:
    """Returns a UUIDv7: ids that are made later sort later."""
    millis = to_micros(now) // 1000 & (1 << 48) - 1
    chance = int.from_bytes(os.urandom(10), "big")
    text = f"{millis << 80 | 0x7 << 76 | chance >> 68 << 64 | 0b10 << 62 | chance & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _decide(
    write: Write,
    latest: Mapping[str, Revision],
    first_results: Mapping[str, StoredRevision],
    columns: Mapping[str, Column],
    now: datetime,
) -> Decision:
    key, digest = write.idempotency_key, None
    if key is not None:
        digest = _digest(write)
        first = first_results.get(_check_key(key))
        if first is not None:
            return _repeat(first, key, digest)
    revision = _without_empty_columns(_apply(write, latest, columns, now))
    return Decision(revision, key, digest)


def _repeat(first: StoredRevision, key: str, digest: str) -> Decision:
    if first.digest != digest:
        raise ConflictError(
            f"idempotency key '{key}' belongs to another request",
            cause=f"it made revision {first.revision.revision} of document '{first.revision.document_id}'",
            hint="use a new key for each request, and the same one only to repeat it unchanged",
        )
    return Decision(first.revision, key, digest, is_repeat=True)


def _apply(write: Write, latest: Mapping[str, Revision], columns: Mapping[str, Column], now: datetime) -> Revision:
    if_match = write.if_match
    if if_match is not None and (isinstance(if_match, bool) or not isinstance(if_match, int) or if_match < 0):
        raise UsageError(f"the expected revision is invalid: {str(if_match)[:80]!r}", hint="a whole number, 0 or more")
    if write.operation == "put":
        return _put(write, latest, columns, now)
    if write.operation not in ("update", "delete", "undelete"):
        raise UsageError(
            f"operation '{str(write.operation)[:80]}' does not exist", hint="one of: put, update, delete, undelete"
        )
    document_id = _requested_id(write)
    if not is_document_id(document_id):
        raise UsageError(f"document id is invalid: {str(document_id)[:80]!r}", hint="list them: frazil docs list")
    current = latest.get(document_id)
    if write.operation == "undelete":
        # The revision that a client has read of a deleted document is that of the delete.
        if current is None or not current.is_deleted or if_match != current.revision:
            lifecycle.check_revision(current, document_id, if_match)
        return lifecycle.undelete(current, document_id, now)
    lifecycle.require_present(current, document_id)
    lifecycle.check_revision(current, document_id, if_match)
    if write.operation == "delete":
        return lifecycle.delete(current, document_id, now)
    return lifecycle.update(current, document_id, write.values, columns, now)


def _put(write: Write, latest: Mapping[str, Revision], columns: Mapping[str, Column], now: datetime) -> Revision:
    values = write.values
    if isinstance(values, Mapping):
        named = values.get("document_id", write.document_id)
        if write.document_id is not None and named != write.document_id:
            raise UsageError(
                f"field 'document_id' is {str(named)[:80]!r}, and the request is for '{str(write.document_id)[:80]}'",
                hint="leave the field out",
            )
        if "document_id" not in values:
            named = named if named is not None else new_document_id(now)
        values = {**values, "document_id": named}
    document_id = values.get("document_id") if isinstance(values, Mapping) else None
    current = latest.get(document_id) if is_document_id(document_id) else None
    lifecycle.check_revision(current, str(document_id), write.if_match)
    return lifecycle.put(current, values, columns, now)


def _requested_id(write: Write) -> Any:
    if write.document_id is None and isinstance(write.values, Mapping):
        return write.values.get("document_id")
    return write.document_id


def _without_empty_columns(revision: Revision) -> Revision:
    columns = revision.document.columns
    if None not in columns.values():
        return revision
    kept = {name: value for name, value in columns.items() if value is not None}
    return replace(revision, document=replace(revision.document, columns=kept))


def _check_key(key: Any) -> str:
    text = check_text("idempotency_key", key, MAX_KEY)
    if not text:
        raise UsageError("the idempotency key is empty", hint="such as a UUID; or leave it out")
    return text


def _digest(write: Write) -> str:
    request = [write.operation, write.document_id, write.values, write.if_match]
    try:
        text = json.dumps(request, sort_keys=True, default=_plain, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise UsageError("the request cannot be written as JSON", hint="texts, numbers, booleans, times") from None
    return sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    made = plain_time(value)
    return repr(value) if made is value else made
