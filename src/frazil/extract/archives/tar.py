"""Reads the headers of tar files, compressed or not, skipping the members.

`tarfile` takes extended headers of any length into memory; here each has a limit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

from frazil.extract import Item, TooMuch
from frazil.extract.window import Damaged

PIECE: Final = 64 * 1024
#: Maximum bytes of a compressed tar that are decompressed to find headers.
UNPACKED: Final = 128 << 20
#: Maximum bytes of an extended header: a long name, or attributes.
EXTENDED: Final = 64 * 1024
#: Maximum memory of the xz decompressor.
MEMORY: Final = 128 << 20


class Source(Protocol):
    """A sequential reader."""

    def take(self, count: int) -> bytes:
        """Returns the next bytes; fewer at the end."""
        ...

    def skip(self, count: int) -> None:
        """Skips bytes."""
        ...


class Plain:
    """An uncompressed object: skipped bytes are not read."""

    def __init__(self, item: Item) -> None:
        self._file = item.open()
        self._size = item.size

    def take(self, count: int) -> bytes:
        return self._file.read(count)

    def skip(self, count: int) -> None:
        self._file.seek(min(self._file.tell() + count, self._size))


class Unpacked:
    """A compressed object: skipped bytes are decompressed and discarded, within limits of bytes and time."""

    def __init__(self, item: Item, unpacker: Any) -> None:
        """Starts.

        Args:
            item: the object.
            unpacker: makes one decompressor for each stream in it: gzip and its like can be glued together.
        """
        self._item = item
        self._new = unpacker
        self._unpacker = unpacker()
        self._at = 0
        self._rest = b""
        self._made = 0
        self._until = time.monotonic() + item.limits.timeout_s / 3

    def take(self, count: int) -> bytes:
        made = bytearray()
        while len(made) < count and (piece := self._piece(count - len(made))):
            made += piece
        return bytes(made)

    def skip(self, count: int) -> None:
        while count > 0 and (piece := self._piece(min(count, PIECE))):
            count -= len(piece)

    def _piece(self, most: int) -> bytes:
        """Returns some decompressed bytes; none at the end.

        Raises:
            TooMuch: the limit.
            Damaged: it does not unpack.
        """
        while True:
            if self._made > UNPACKED or self._at > self._item.limits.max_range_bytes or time.monotonic() > self._until:
                raise TooMuch(f"more than {self._made:,} bytes would have to be unpacked")
            if self._unpacker.eof:
                self._rest = self._unpacker.unused_data.lstrip(b"\0") or self._packed().lstrip(b"\0")
                if not self._rest:
                    return b""
                self._unpacker = self._new()
            fed = self._rest or self._packed()
            try:
                piece: bytes = self._unpacker.decompress(fed, most)
            except Exception as error:
                raise Damaged(f"it cannot be decompressed: {str(error)[:200]}") from error
            self._rest = getattr(self._unpacker, "unconsumed_tail", b"")
            self._made += len(piece)
            if piece:
                return piece
            if not fed and self._at >= self._item.size and not self._unpacker.eof:
                raise Damaged("the file is truncated")

    def _packed(self) -> bytes:
        if not self._unpacker.eof and not getattr(self._unpacker, "needs_input", True):
            return b""
        piece = self._item.read(self._at, PIECE)
        self._at += len(piece)
        return piece


def is_header(block: bytes) -> bool:
    """Whether a block is the header of a member, by its checksum."""
    if len(block) < 512:
        return False
    told = _octal(block[148:156])
    return told > 0 and told == sum(block[:148]) + 256 + sum(block[156:512])


def members(source: Source, block: bytes) -> Iterator[tuple[str, int]]:
    """Yields name and size of each member; `block` is the first header.

    Raises:
        Damaged: something else stands where a header should be.
        TooMuch: the limit of the source, or an endless header.
    """
    name, size = "", None
    while block and block.strip(b"\0"):
        if not is_header(block):
            raise Damaged("the header of a member is invalid")
        length, kind = _number(block[124:136]), block[156:157]
        if kind in b"LKxgX" and kind:
            if length > EXTENDED:
                raise TooMuch(f"an extended header of {length:,} bytes")
            data = source.take(length)
            source.skip(-length % 512)
            if kind == b"L":
                name = data.rstrip(b"\0").decode("utf-8", "replace")
            elif kind == b"x":
                name, size = _attributes(data, name, size)
        else:
            stored = size if size is not None else length
            stored = 0 if kind in b"123456" and kind else stored
            yield name or _name(block), stored
            source.skip(stored + -stored % 512)
            name, size = "", None
        block = source.take(512)


def _attributes(data: bytes, name: str, size: int | None) -> tuple[str, int | None]:
    found = re.search(rb"(?:^|\n)\d+ path=([^\n]*)\n", data)
    if found:
        name = found[1].decode("utf-8", "replace")
    found = re.search(rb"(?:^|\n)\d+ size=(\d{1,18})\n", data)
    return name, int(found[1]) if found else size


def _name(block: bytes) -> str:
    name, prefix = block[:100].split(b"\0")[0], block[345:500].split(b"\0")[0]
    if prefix and block[257:262] == b"ustar":
        name = prefix + b"/" + name
    return name.decode("utf-8", "replace")


def _octal(told: bytes) -> int:
    digits = told.replace(b"\0", b" ").strip()
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else -1


def _number(told: bytes) -> int:
    """Parses octal digits, or a larger number in binary."""
    value = int.from_bytes(told[1:], "big") if told[0] == 0x80 else _octal(told)
    if not 0 <= value < 2**62:
        raise Damaged("a member has an impossible size")
    return value
