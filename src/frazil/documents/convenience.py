"""What every store offers on top of `write` and its reads: one method per operation, and async twins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from frazil.documents.consistency import ConsistencyReport, check_consistency
from frazil.documents.model import Document, Revision
from frazil.documents.store import DocumentFilter, DocumentStore, Page, Statistics, Time, Write


class Convenience:
    """A mixin of stores."""

    def put_metadata(
        self: DocumentStore,
        document: Mapping[str, Any],
        *,
        if_match: int | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Creates a document, or replaces the metadata of one. Without `document_id` it gets a new UUIDv7."""
        made = self.write([Write("put", None, document, if_match, idempotency_key)])
        return made[0].document

    def update_metadata(
        self: DocumentStore,
        document_id: str,
        changes: Mapping[str, Any],
        *,
        if_match: int | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Changes some fields. None clears a field; `tags` and `attributes` are merged key by key."""
        made = self.write([Write("update", document_id, changes, if_match, idempotency_key)])
        return made[0].document

    def delete_metadata(
        self: DocumentStore, document_id: str, *, if_match: int | None = None, idempotency_key: str | None = None
    ) -> Document:
        """Deletes a document, and returns its last state. Its history stays."""
        return self.write([Write("delete", document_id, {}, if_match, idempotency_key)])[0].document

    def undelete_metadata(
        self: DocumentStore, document_id: str, *, if_match: int | None = None, idempotency_key: str | None = None
    ) -> Document:
        """Brings a deleted document back, with the metadata that it had."""
        return self.write([Write("undelete", document_id, {}, if_match, idempotency_key)])[0].document

    async def awrite(self: DocumentStore, writes: Sequence[Write]) -> list[Revision]:
        return await asyncio.to_thread(self.write, writes)

    async def aput_metadata(self: DocumentStore, document: Mapping[str, Any], **conditions: Any) -> Document:
        return await asyncio.to_thread(self.put_metadata, document, **conditions)

    async def aupdate_metadata(
        self: DocumentStore, document_id: str, changes: Mapping[str, Any], **conditions: Any
    ) -> Document:
        return await asyncio.to_thread(self.update_metadata, document_id, changes, **conditions)

    async def adelete_metadata(self: DocumentStore, document_id: str, **conditions: Any) -> Document:
        return await asyncio.to_thread(self.delete_metadata, document_id, **conditions)

    async def aundelete_metadata(self: DocumentStore, document_id: str, **conditions: Any) -> Document:
        return await asyncio.to_thread(self.undelete_metadata, document_id, **conditions)

    async def aget_metadata(self: DocumentStore, document_id: str) -> Document:
        return await asyncio.to_thread(self.get_metadata, document_id)

    async def alist_metadata(self: DocumentStore, *arguments: Any, **filters: Any) -> list[Document]:
        return await asyncio.to_thread(self.list_metadata, *arguments, **filters)

    async def apage(self: DocumentStore, where: DocumentFilter | None = None, **options: Any) -> Page:
        return await asyncio.to_thread(self.page, where, **options)

    async def aiterate(
        self: DocumentStore, where: DocumentFilter | None = None, *, as_of: Time | None = None
    ) -> AsyncIterator[list[Document]]:
        batches = iter(self.iterate(where, as_of=as_of))
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def aget_statistics(self: DocumentStore, *, as_of: Time | None = None) -> Statistics:
        return await asyncio.to_thread(self.get_statistics, as_of=as_of)

    async def aget_time_travel_snapshot(self: DocumentStore, document_id: str, timestamp: Time) -> Document:
        return await asyncio.to_thread(self.get_time_travel_snapshot, document_id, timestamp)

    async def ahistory(self: DocumentStore, document_id: str) -> list[Revision]:
        return await asyncio.to_thread(self.history, document_id)

    def verify(self: DocumentStore, progress: Callable[[int], None] = lambda _: None) -> ConsistencyReport:
        """Reads all of the store, and checks that its parts agree: documents, history, statistics.

        Args:
            progress: is told again and again how many revisions were read.
        """
        return check_consistency(self, progress)

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
