"""Order-independent fingerprints of documents and their history, by which two stores are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson

from frazil.documents.model import Document, Revision

_MODULUS = 1 << 128
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z
_SIZE = 16

Progress = Callable[[int], None]


@dataclass
class Sum:
    """How many records there are, and the sum of their hashes modulo 2^128: the same in any order."""

    count: int = 0
    hash: int = 0

    def add(self, records: Iterable[Document | Revision]) -> None:
        count, total = 0, 0
        for record in records:
            # Dataclasses and times as orjson writes them are canonical: sorted keys, UTC, no spaces.
            text = orjson.dumps(record, default=dict, option=_OPTIONS)
            total += int.from_bytes(hashlib.blake2b(text, digest_size=_SIZE).digest(), "little")
            count += 1
        self.count += count
        self.hash = (self.hash + total) % _MODULUS

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "hash": f"{self.hash:032x}"}


@dataclass
class Fingerprint:
    """All revisions of a store, and the documents that exist after them."""

    documents: Sum = field(default_factory=Sum)
    revisions: Sum = field(default_factory=Sum)

    def add(self, revisions: Sequence[Revision]) -> None:
        """Adds whole histories of documents."""
        self.revisions.add(revisions)
        following = [*revisions[1:], None]
        self.documents.add(
            revision.document
            for revision, after in zip(revisions, following, strict=True)
            if not revision.is_deleted and (after is None or after.document_id != revision.document_id)
        )

    def copy(self) -> Fingerprint:
        return Fingerprint(Sum(**vars(self.documents)), Sum(**vars(self.revisions)))

    def to_dict(self) -> dict[str, Any]:
        return {"documents": self.documents.to_dict(), "revisions": self.revisions.to_dict()}


def history_of(batches: Iterable[Sequence[Revision]], progress: Progress = lambda _: None) -> Fingerprint:
    """Reads batches of whole histories, as `DocumentStore.revisions` returns them."""
    made = Fingerprint()
    for revisions in batches:
        made.add(revisions)
        progress(made.revisions.count)
    return made


def documents_of(batches: Iterable[Sequence[Document]], progress: Progress = lambda _: None) -> Sum:
    """Reads batches of documents, as `DocumentStore.iterate` returns them."""
    made = Sum()
    for documents in batches:
        made.add(documents)
        progress(made.count)
    return made


def documents_in(batches: Iterable[Sequence[Revision]]) -> Iterator[list[Revision]]:
    """Returns the histories of single documents from batches that hold whole ones."""
    for batch in batches:
        for _, revisions in groupby(batch, key=lambda revision: revision.document_id):
            yield list(revisions)
