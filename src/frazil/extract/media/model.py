"""What all containers are told as, and how they are read."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final

from frazil.extract import Item, TooMuch
from frazil.extract.damage import Damaged

#: Bytes of one read. Containers are read header by header; a request for each would be slow.
BLOCK: Final = 32 * 1024
#: Boxes, chunks, elements or pages in one file.
MOST: Final = 20_000


@dataclass
class Stream:
    """One track: `kind` is audio or video."""

    kind: str
    codec: str | None = None
    width: int | None = None
    height: int | None = None
    rotation: int = 0
    frame_rate: float | None = None
    sample_rate: int | None = None
    channels: int | None = None
    bits: int | None = None
    bit_rate: int | None = None


@dataclass
class Media:
    """What a container says. `tags` has the names that results have: title, author, album and so on."""

    container: str
    duration: float | None = None
    streams: list[Stream] = field(default_factory=list)
    tags: dict[str, Any] = field(default_factory=dict)
    cover: bool = False
    taken_at: str | None = None
    place: tuple[float, float, float | None] | None = None

    def tag(self, name: str | None, value: Any) -> None:
        """Keeps the first value of a name that is known."""
        if name and value and name not in self.tags:
            self.tags[name] = value

    def first(self, kind: str) -> Stream | None:
        """The first track of a kind."""
        return next((s for s in self.streams if s.kind == kind), None)


class Window:
    """An item that is read in blocks, each once."""

    def __init__(self, item: Item) -> None:
        self.size = item.size
        self._item = item
        self._blocks: dict[int, bytes] = {}
        self._steps = 0

    def read(self, at: int, length: int) -> bytes:
        """Exactly these bytes.

        Raises:
            Damaged: the file ends before.
            TooMuch: more than may be read by ranges.
        """
        if at < 0 or length < 0 or at + length > self.size:
            raise Damaged(f"the file ends at {self.size}, before what should be at {at}")
        first, last = at // BLOCK, (at + length - 1) // BLOCK
        blocks = b"".join(self._block(n) for n in range(first, last + 1))
        got = blocks[at - first * BLOCK :][:length]
        if len(got) < length:
            raise Damaged(f"the object has less than its {self.size} bytes")
        return got

    def some(self, at: int, length: int) -> bytes:
        """These bytes, or fewer at the end."""
        return self.read(at, max(0, min(length, self.size - at)))

    def numbers(self, form: str, at: int) -> tuple[Any, ...]:
        """What stands at a place, in the form of `struct`."""
        return struct.unpack(form, self.read(at, struct.calcsize(form)))

    def step(self) -> None:
        """Counts what was walked over.

        Raises:
            TooMuch: more than a sound file has.
        """
        self._steps += 1
        if self._steps > MOST:
            raise TooMuch(f"more than {MOST:,} parts")

    def _block(self, n: int) -> bytes:
        if n not in self._blocks:
            if len(self._blocks) * BLOCK >= self._item.limits.max_range_bytes:
                raise TooMuch(f"more than {self._item.limits.max_range_bytes:,} bytes would have to be read")
            self._blocks[n] = self._item.read(n * BLOCK, min(BLOCK, self.size - n * BLOCK))
        return self._blocks[n]
