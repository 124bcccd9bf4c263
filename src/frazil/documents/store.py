"""The interface of a document store, and what its reads take and return."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict

from frazil.documents.fingerprint import Fingerprint
from frazil.documents.model import Column, Document, Revision

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.documents.consistency import ConsistencyReport

StoreKind = Literal["sqlite", "mysql", "postgresql", "iceberg"]
Time = datetime | int | float | str
"""A moment: epoch seconds or milliseconds, ISO-8601, or a datetime. see `parse_time`."""
SORT_FIELDS = ("created_at", "updated_at", "filename", "size_bytes", "document_id")


@dataclass(frozen=True)
class DocumentFilter:
    """Conditions that all hold. None: no condition.

    Attributes:
        start_date: created at or after this moment.
        end_date: created before this moment.
        name_prefix: how the filename begins, case-sensitive.
        words: words that all occur in filename or tags, whatever their case.
        tags: tags with these values; a value of None: the tag exists.
    """

    storage_tier: str | None = None
    provider: str | None = None
    restore_status: str | None = None
    start_date: Time | None = None
    end_date: Time | None = None
    min_size: int | None = None
    max_size: int | None = None
    content_type: str | None = None
    bucket: str | None = None
    object_key: str | None = None
    tags: Mapping[str, str | None] = field(default_factory=dict)
    name_prefix: str | None = None
    words: str | None = None


@dataclass(frozen=True)
class Page:
    """Some documents in order, and the cursor of the next page; None: this is the last one."""

    documents: list[Document]
    next_cursor: str | None


class Statistics(TypedDict):
    total_documents: int
    total_size_bytes: int
    by_provider: dict[str, int]
    by_tier: dict[str, int]
    by_restore_status: dict[str, int]


@dataclass(frozen=True)
class Write:
    """One write of a batch.

    Attributes:
        operation: what to do.
        document_id: of which document; None with `put`: as the fields say, or a new one.
        values: fields of `put` and `update`.
        if_match: the revision that the client has read; 0: the document must not exist; None: any.
        idempotency_key: of a client that may repeat the request: the repetition returns the first result.
    """

    operation: Literal["put", "update", "delete", "undelete"]
    document_id: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    if_match: int | None = None
    idempotency_key: str | None = None


class DocumentStore(Protocol):
    """A store of document metadata with its whole past. Any number of threads may use one.

    A write returns when it is durable; the next read of any process sees it. A refused write changes nothing.
    """

    @property
    def kind(self) -> StoreKind: ...

    # -- writes

    def write(self, writes: Sequence[Write]) -> list[Revision]:
        """Applies a batch of writes in order, all or nothing. All other writing methods call this.

        Raises:
            UsageError: a field is wrong. NotFoundError, ConflictError: see `frazil.documents.model`.
        """
        ...

    def put_metadata(
        self, document: Mapping[str, Any], *, if_match: int | None = None, idempotency_key: str | None = None
    ) -> Document: ...

    def update_metadata(
        self,
        document_id: str,
        changes: Mapping[str, Any],
        *,
        if_match: int | None = None,
        idempotency_key: str | None = None,
    ) -> Document: ...

    def delete_metadata(
        self, document_id: str, *, if_match: int | None = None, idempotency_key: str | None = None
    ) -> Document: ...

    def undelete_metadata(
        self, document_id: str, *, if_match: int | None = None, idempotency_key: str | None = None
    ) -> Document: ...

    def load_revisions(self, revisions: Iterable[Sequence[Revision]]) -> int:
        """Adds the complete histories of documents that this store does not have yet, and returns how many revisions.

        For import and migration. Revisions of one document come one after the other, in their order. Each given
        sequence is applied as a whole; revisions that the store already has, equal in all fields, are skipped, so that
        an interrupted load may be repeated.

        Raises:
            ConflictError: the store has another document, or another past, under one of the ids.
        """
        ...

    def load_table(self, revisions: pa.Table) -> int:
        """Does what `load_revisions` does, from one Arrow table in `REVISION_SCHEMA`, several times as fast.

        Args:
            revisions: sorted by document id and revision. Their fields were checked, or come from another store.
        """
        ...

    # -- reads

    def get_metadata(self, document_id: str) -> Document:
        """Raises NotFoundError if the document does not exist or was deleted."""
        ...

    def list_metadata(
        self,
        storage_tier: str | None = None,
        start_date: Time | None = None,
        end_date: Time | None = None,
        *,
        limit: int | None = None,
        as_of: Time | None = None,
        **filters: Any,
    ) -> list[Document]:
        """Returns all documents that match, newest first. `filters` are the other fields of `DocumentFilter`."""
        ...

    def page(
        self,
        where: DocumentFilter | None = None,
        *,
        sort: str = "created_at",
        descending: bool = True,
        limit: int = 50,
        cursor: str | None = None,
        as_of: Time | None = None,
    ) -> Page:
        """Returns one page. Pages that follow by cursor neither repeat nor skip documents that did not change."""
        ...

    def iterate(
        self,
        where: DocumentFilter | None = None,
        *,
        as_of: Time | None = None,
    ) -> Iterator[list[Document]]:
        """Streams all documents that match, in batches, in bounded memory."""
        ...

    def get_statistics(self, *, as_of: Time | None = None) -> Statistics: ...

    def get_time_travel_snapshot(self, document_id: str, timestamp: Time) -> Document:
        """Returns the document as it was acknowledged at a moment.

        Raises:
            NotFoundError: it did not exist at that moment.
        """
        ...

    def history(self, document_id: str, *, after: int = 0, limit: int | None = None) -> list[Revision]:
        """Returns the revisions of a document, oldest first.

        Args:
            document_id: its id.
            after: only revisions with a greater number.
            limit: at most so many; None: all.

        Raises:
            NotFoundError: the document never existed.
        """
        ...

    def latest_revisions(self, ids: Collection[str]) -> dict[str, Revision]:
        """Returns the latest revisions of documents, as far as they ever existed; a deleted one's is its delete."""
        ...

    def revisions(self, after: str | None = None) -> Iterator[list[Revision]]:
        """Streams all revisions ordered by document id and revision, in batches that never split a document.

        Args:
            after: only documents with a greater id, to resume.
        """
        ...

    def fingerprint(
        self, progress: Callable[[int], None] = ..., *, canonical: bool = ..., lists: bool = ...
    ) -> Fingerprint:
        """Returns counts and order-independent hashes of all that the store has: equal for equal stores of any kind.

        Args:
            progress: is told again and again how many rows were read.
            canonical: sort the keys of tags, attributes and added values, which mean the same in any order.
            lists: read the documents that are listed too, not only their history.
        """
        ...

    def last_change(self) -> datetime | None:
        """Returns the moment of the last acknowledgement, or of the newest loaded revision; None: there is none."""
        ...

    def history_tables(self, after: str | None = None) -> Iterator[pa.Table]:
        """Streams what `revisions` does as Arrow tables in `REVISION_SCHEMA`, without idempotency keys."""
        ...

    # -- schema

    def columns(self) -> dict[str, Column]: ...

    def add_column(self, name: str, type: str) -> Column:  # noqa: A002 - the field's word
        """Adds a metadata column without rewriting data. Adding an equal one again changes nothing."""
        ...

    # -- life

    def refresh(self) -> None:
        """Waits until reads of this object see all that is acknowledged in the store by now."""
        ...

    def verify(self, progress: Callable[[int], None] = ...) -> ConsistencyReport:
        """Reads all of the store, and checks that its parts agree."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
