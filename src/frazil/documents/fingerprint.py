"""Order-independent fingerprints of documents and their history, by which two stores are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

_MODULUS = 1 << 128
_SIZE = 16


@dataclass
class Sum:
    """How many records there are, and the sum of their hashes modulo 2^128: the same in any order."""

    count: int = 0
    hash: int = 0

    def add(self, hashes: Sequence[int]) -> None:
        self.count += len(hashes)
        self.hash = (self.hash + sum(hashes)) % _MODULUS

    def to_dict(self) -> dict[str, Any]:
        return {"count": self.count, "hash": f"{self.hash:032x}"}


def hash_record(record: Sequence[Any]) -> int:
    """Returns the hash of a tuple of texts, whole numbers and None, whose JSON is unambiguous."""
    return int.from_bytes(hashlib.blake2b(orjson.dumps(record), digest_size=_SIZE).digest(), "little")


@dataclass
class Fingerprint:
    """All that a store has.

    Attributes:
        revisions: of all documents, deleted ones too.
        documents: that exist, by their last revisions.
        listed: the documents that are listed. In a sound store they are the same. Left out on request.
    """

    revisions: Sum = field(default_factory=Sum)
    documents: Sum = field(default_factory=Sum)
    listed: Sum = field(default_factory=Sum)

    def to_dict(self) -> dict[str, Any]:
        return {"documents": self.documents.to_dict(), "revisions": self.revisions.to_dict()}
