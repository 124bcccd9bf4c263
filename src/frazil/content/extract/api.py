"""What an extractor is, and what it is given. Whoever writes a plugin needs nothing else.

    @extractor("shouting", version="1", types=["text/*"])
    def shouting(item: Item) -> dict[str, object]:
        text = item.whole().decode("utf-8", "replace")
        return {"capitals": sum(c.isupper() for c in text)}

It is registered under the entry point group `frazil.extractors`. What it returns is JSON, and stands in `metadata`
under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Protocol

#: How much of an object an extractor reads: some ranges of it, or all.
Reads = Literal["ranges", "whole"]


class Unsupported(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised by an extractor for an object of its types that it cannot look into: encrypted, a rare variant."""


class TooMuch(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised where an object is beyond a limit: bytes, pixels, entries."""


@dataclass(frozen=True)
class Limits:
    """How much one object may take.

    Attributes:
        max_bytes: of an object that is read as a whole.
        max_range_bytes: that may be read of an object by ranges.
        max_pixels: of a picture that is decoded.
        max_json_bytes: of what one extractor returns, as JSON.
        max_memory_bytes: of the process that looks inside, beyond what it has when it starts.
        timeout_s: for one extractor and one object.
    """

    max_bytes: int = 256 << 20
    max_range_bytes: int = 16 << 20
    max_pixels: int = 200_000_000
    max_json_bytes: int = 1 << 20
    max_memory_bytes: int = 2 << 30
    timeout_s: float = 30.0


class Item(Protocol):
    """An object that is looked into. What is read once is kept as long as the extractors are at this object.

    Attributes:
        bucket: its bucket, or the URI of a folder.
        key: its key.
        version_id: its version; empty in a bucket without versions.
        etag: of the content that is read, and of no other.
        size: bytes.
        content_type: as it was uploaded; None: not known.
        detected_type: media type, told by `type`; "application/octet-stream" where nobody knows.
        limits: how much it may take.
        shared: what one extractor has found that others can use, by name.
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
        """The first bytes; fewer where there are no more."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Some bytes; fewer where there are no more."""
        ...

    def open(self) -> BinaryIO:
        """The object as a file that can be sought in, and reads ranges as it needs them."""
        ...

    def whole(self) -> bytes:
        """All of it.

        Raises:
            TooMuch: it is larger than the limits say.
        """
        ...


Look = Callable[[Item], Any]


@dataclass(frozen=True)
class Extractor:
    """A function that looks into objects, and what is to be known of it.

    Attributes:
        name: under which its result stands in `metadata`: letters, digits and `_`.
        version: changes when its results do; `frazil content extract --stale` runs older ones again.
        types: media types that it looks into: `application/pdf`, `image/*`, `*/*`.
        look: gives something that JSON can hold.
        reads: how much of the object.
        alone: whether it may hang, crash or eat memory, so that nothing else should share its process with it.
        default: whether it runs where nobody has named it.
        doc: one sentence for the reference.
        fields: what its result holds, for the reference: name → one phrase.
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
        """Whether it looks into objects of a type."""
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
    """Makes an extractor of a function; its docstring's first line is the sentence for the reference."""

    def made(look: Look) -> Extractor:
        doc = (look.__doc__ or "").strip().splitlines()
        return Extractor(
            name, version, tuple(types), look, reads, alone, default, doc[0] if doc else "", dict(fields or {})
        )

    return made
