"""The public interface of extractors: everything that a plugin needs.

    @extractor("shouting", version="1", types=["text/*"])
    def shouting(item: Item) -> dict[str, object]:
        text = item.whole().decode("utf-8", "replace")
        return {"capitals": sum(c.isupper() for c in text)}

Register it in the entry point group `frazil.extractors`. Its result is stored as JSON in `metadata`, under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Protocol

__all__ = ["Extractor", "Item", "Limits", "Look", "Reads", "TooMuch", "Unsupported", "extractor"]

#: How much of an object an extractor reads: ranges of it, or the whole object.
Reads = Literal["ranges", "whole"]


class Unsupported(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised by an extractor for an object that it cannot read although the type fits: encrypted, a rare variant."""


class TooMuch(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when an object exceeds a limit: bytes, pixels, entries."""


@dataclass(frozen=True)
class Limits:
    """The limits for one object.

    Attributes:
        max_bytes: size of an object that is read as a whole.
        max_range_bytes: bytes that may be read of one object by ranges.
        max_pixels: size of a picture that is decoded.
        max_json_bytes: size of the result of one extractor, as JSON.
        max_memory_bytes: memory of the extractor process, beyond what it uses when it starts.
        timeout_s: time for one extractor and one object.
    """

    max_bytes: int = 256 << 20
    max_range_bytes: int = 16 << 20
    max_pixels: int = 200_000_000
    max_json_bytes: int = 1 << 20
    max_memory_bytes: int = 2 << 30
    timeout_s: float = 30.0


class Item(Protocol):
    """The object that an extractor reads. Bytes that were read once are cached until all extractors are done with it.

    Attributes:
        bucket: its bucket, or the URI of a folder.
        key: its key.
        version_id: its version; empty in a bucket without versions.
        etag: the etag of the content; reads fail if the object has changed since.
        size: size in bytes.
        content_type: the type that it was uploaded with; None if unknown.
        detected_type: the media type that the extractor `type` detected; "application/octet-stream" if unknown.
        limits: the limits for this object.
        shared: results that extractors share with those that run after them, by name.
    """

    bucket: str
    key: str
    version_id: str
    etag: str | None
    size: int
    content_type: str | None
    detected_type: str
    limits: Limits
    shared: dict[str, Any]

    def head(self, count: int = 4096) -> bytes:
        """Returns the first bytes; fewer if the object is shorter."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Returns a range of bytes; fewer if the object ends before."""
        ...

    def open(self) -> BinaryIO:
        """Returns the object as a seekable file that fetches ranges as they are read."""
        ...

    def whole(self) -> bytes:
        """Returns the whole content.

        Raises:
            TooMuch: the object is larger than `limits.max_bytes`.
        """
        ...


Look = Callable[[Item], Any]


@dataclass(frozen=True)
class Extractor:
    """A function that reads objects, and its properties.

    Attributes:
        name: the name of its result in `metadata`: letters, digits and `_`.
        version: changes when its results change; `frazil content extract --stale` runs it again on older results.
        types: media types that it reads: `application/pdf`, `image/*`, `*/*`.
        look: the function; returns a value that JSON can represent.
        reads: how much of the object it reads.
        alone: whether it may hang, crash or use much memory, so that it runs in a process of its own.
        default: whether it runs without being named.
        doc: one sentence for the reference.
        fields: the fields of its result, for the reference: name → one phrase.
    """

    name: str
    version: str
    types: tuple[str, ...]
    look: Look
    reads: Reads = "ranges"
    alone: bool = False
    default: bool = True
    doc: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    def takes(self, media_type: str) -> bool:
        """Returns whether it reads objects of a media type."""
        family = media_type.partition("/")[0]
        return any(t in ("*/*", media_type) or t == f"{family}/*" for t in self.types)


def extractor(
    name: str,
    *,
    version: str = "1",
    types: Sequence[str] = ("*/*",),
    reads: Reads = "ranges",
    alone: bool = False,
    default: bool = True,
    fields: dict[str, str] | None = None,
) -> Callable[[Look], Extractor]:
    """Makes a function an extractor. The first line of its docstring becomes the sentence for the reference."""

    def made(look: Look) -> Extractor:
        doc = (look.__doc__ or "").strip().splitlines()
        return Extractor(
            name, version, tuple(types), look, reads, alone, default, doc[0] if doc else "", dict(fields or {})
        )

    return made
