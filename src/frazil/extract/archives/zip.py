"""Reads zip files by ranges: the directory at the end, then requested parts, each with a limit.

`zipfile` would read the whole directory into objects before a limit can apply.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from frazil.extract import Item, TooMuch, Unsupported
from frazil.extract.window import Damaged

#: Bytes of the directory that are read at once.
PIECE: Final = 64 * 1024
#: Maximum size of the end record, whose comment has up to 65,535 bytes.
END: Final = 22 + 65_535


@dataclass(frozen=True)
class Entry:
    """An entry of the directory.

    Attributes:
        name: with its folders.
        encrypted: whether it is password-protected.
        method: 0 is stored, 8 is deflated.
        packed: bytes in the zip.
        size: bytes unpacked, as declared.
        at: where its own header stands.
    """

    name: str
    encrypted: bool
    method: int
    packed: int
    size: int
    at: int


class Zip:
    """A zip file.

    Attributes:
        total: how many parts the directory should have.
    """

    def __init__(self, item: Item) -> None:
        """Finds the directory.

        Raises:
            Damaged: there is none: not a zip file, or truncated.
        """
        self._item = item
        tail = item.read(max(0, item.size - 1024), 1024)
        at = tail.rfind(b"PK\5\6")
        if at < 0 and item.size > 1024:
            tail = item.read(max(0, item.size - END), END)
            at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) < at + 22:
            raise Damaged("no directory of its parts at the end: not a zip file, or truncated")
        place = item.size - len(tail) + at
        self.total, self._length, offset = struct.unpack("<HII", tail[at + 10 : at + 20])
        if 0xFFFFFFFF in (self._length, offset) or self.total == 0xFFFF:
            place, offset = self._large(place, offset)
        #: Bytes before the archive, such as a self-extractor.
        self._before = place - self._length - offset
        self._start = offset + self._before
        if self._before < 0:
            raise Damaged("its directory would start before the file: truncated or concatenated")
        self.total = min(self.total, self._length // 46)

    def _large(self, place: int, offset: int) -> tuple[int, int]:
        """Reads the ZIP64 end record, if there is one."""
        locator = self._item.read(max(0, place - 20), 20)
        if locator[:4] != b"PK\6\7":
            return place, offset
        (where,) = struct.unpack("<Q", locator[8:16])
        record = self._item.read(where, 56) if where < self._item.size else b""
        if record[:4] != b"PK\6\6" or len(record) < 56:
            raise Damaged("the end of its directory is not where it should be")
        self.total, self._length, offset = struct.unpack("<QQQ", record[32:56])
        return where, offset

    def entries(self, most: int) -> Iterator[Entry]:
        """Yields the first entries.

        Raises:
            Damaged: the directory ends too early.
        """
        data, at, read = b"", 0, 0
        for _ in range(min(most, self.total)):
            while len(data) - at < 46 or len(data) - at < _length(data, at):
                piece = self._item.read(self._start + read, min(PIECE, self._length - read))
                if not piece:
                    raise Damaged("its directory is truncated")
                data, at, read = data[at:] + piece, 0, read + len(piece)
            if data[at : at + 4] != b"PK\1\2":
                raise Damaged("its directory is damaged")
            end = at + _length(data, at)
            yield _entry(data[at:end], self._before)
            at = end

    def part(self, entry: Entry, most: int) -> bytes:
        """Returns the first decompressed bytes of a part, at most `most`.

        Raises:
            Unsupported: it is password-protected, or a rare method.
            Damaged: it is not where it should be, or does not unpack.
            TooMuch: its unpacked beginning would need more than may be read.
        """
        if entry.encrypted:
            raise Unsupported("it is password-protected")
        if entry.method not in (0, 8):
            raise Unsupported(f"compressed by method {entry.method}, which is not supported")
        head = self._item.read(entry.at, 30)
        if head[:4] != b"PK\3\4" or len(head) < 30:
            raise Damaged(f"the part {entry.name[:100]!r} is not where it should be")
        at = entry.at + 30 + sum(struct.unpack("<HH", head[26:30]))
        if entry.method == 0:
            return self._item.read(at, min(entry.packed, most))
        return self._inflated(entry, at, most)

    def _inflated(self, entry: Entry, at: int, most: int) -> bytes:
        unpacker, made = zlib.decompressobj(-15), bytearray()
        done = 0
        while done < entry.packed and len(made) < most and not unpacker.eof:
            if done > self._item.limits.max_range_bytes:
                raise TooMuch(f"the part {entry.name[:100]!r} is beyond the limit")
            piece = self._item.read(at + done, min(PIECE, entry.packed - done))
            if not piece:
                raise Damaged(f"the part {entry.name[:100]!r} is truncated")
            done += len(piece)
            try:
                made += unpacker.decompress(piece, most - len(made))
            except zlib.error as error:
                raise Damaged(f"the part {entry.name[:100]!r} cannot be decompressed") from error
        return bytes(made)


def _length(data: bytes, at: int) -> int:
    name, extra, comment = struct.unpack_from("<HHH", data, at + 28)
    return int(46 + name + extra + comment)


def _entry(data: bytes, before: int) -> Entry:
    flags, method = struct.unpack("<HH", data[8:12])
    packed, size, name_length, extra_length = struct.unpack("<IIHH", data[20:32])
    (at,) = struct.unpack("<I", data[42:46])
    name = data[46 : 46 + name_length].decode("utf-8" if flags & 0x800 else "cp437", "replace")
    extra = data[46 + name_length : 46 + name_length + extra_length]
    if 0xFFFFFFFF in (packed, size, at):
        size, packed, at = _wide(extra, size, packed, at)
    return Entry(name, bool(flags & 1), method, packed, size, at + before)


def _wide(extra: bytes, *told: int) -> tuple[int, ...]:
    """Reads numbers beyond 32 bits from the extra field, which has only those that need it, in order."""
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        if kind == 1:
            body = extra[4 : 4 + length]
            wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            return tuple(next(wide, n) if n == 0xFFFFFFFF else n for n in told)
        extra = extra[4 + length :]
    return told
