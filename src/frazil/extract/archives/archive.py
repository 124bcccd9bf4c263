"""The extractor `archive`: lists entries by the directory. Only compressed tars are decompressed, to find headers."""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from frazil.extract import Item, TooMuch, Unsupported, extractor
from frazil.extract.archives import tar
from frazil.extract.archives.zip import Zip
from frazil.extract.normalize import drop_empty
from frazil.extract.window import Damaged

#: Maximum entries that are counted, names that are stored, and characters of one and of all names.
COUNTED: Final = 100_000
NAMES: Final = 1_000
NAME: Final = 1_024
ALL_NAMES: Final = 256 * 1024

_FOREIGN: Final = (
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "RAR"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"\x04\x22\x4d\x18", "LZ4"),
)


def _gzip() -> Any:
    return zlib.decompressobj(31)


def _xz() -> Any:
    return lzma.LZMADecompressor(memlimit=tar.MEMORY)


_PACKED: Final[tuple[tuple[bytes, str, Callable[[], Any]], ...]] = (
    (b"\x1f\x8b", "gz", _gzip),
    (b"BZh", "bz2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\0", "xz", _xz),
)


class _Listing:
    """The counts so far."""

    def __init__(self) -> None:
        self.entries = self.total = self._length = 0
        self.names: list[str] = []

    def add(self, name: str, size: int) -> None:
        self.entries += 1
        self.total += size
        if len(self.names) < NAMES and self._length < ALL_NAMES:
            self.names.append(name[:NAME])
            self._length += len(self.names[-1])


@extractor(
    "archive",
    types=(
        "application/zip",
        "application/x-zip-compressed",
        "application/java-archive",
        "application/vnd.android.package-archive",
        "application/vnd.google-earth.kmz",
        "application/x-tar",
        "application/gzip",
        "application/x-gzip",
        "application/x-compressed-tar",
        "application/x-bzip2",
        "application/x-xz",
        "application/x-7z-compressed",
        "application/vnd.rar",
        "application/x-rar-compressed",
        "application/zstd",
    ),
    fields={
        "format": "zip, tar, tar.gz, tar.bz2, tar.xz, gz, bz2, xz",
        "entries": "files and folders in it",
        "total_bytes": "of all entries unpacked, as declared",
        "compressed_bytes": "of all entries compressed",
        "encrypted": "whether an entry requires a password",
        "names": "the first 1,000",
        "truncated": "whether there are more than were counted",
    },
)
def ARCHIVE(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes a constant: the decorator makes an Extractor of it
    """Number, size and names of the entries of an archive."""
    head = item.head(512)
    if not head:
        raise Unsupported("the object is empty")
    for mark, name in _FOREIGN:
        if head.startswith(mark):
            raise Unsupported(f"{name} is not read")
    for mark, name, unpacker in _PACKED:
        if head.startswith(mark):
            return _packed(item, name, tar.Unpacked(item, unpacker))
    if tar.is_header(head):
        plain = tar.Plain(item)
        return _tar(item, "tar", plain, plain.take(512))
    return _zip(item)


def _zip(item: Item) -> dict[str, Any]:
    zipped = Zip(item)
    listing, compressed, encrypted = _Listing(), 0, False
    more = zipped.total > COUNTED
    try:
        for entry in zipped.entries(COUNTED):
            listing.add(entry.name, entry.size)
            compressed += entry.packed
            encrypted = encrypted or entry.encrypted
    except TooMuch:
        more = True
    return {
        "format": "zip",
        "entries": zipped.total if more else listing.entries,
        "total_bytes": listing.total,
        "compressed_bytes": compressed,
        "encrypted": encrypted,
        "names": listing.names,
        "truncated": more,
    }


def _packed(item: Item, name: str, source: tar.Unpacked) -> dict[str, Any]:
    first = source.take(512)
    if tar.is_header(first):
        return _tar(item, f"tar.{name}", source, first)
    inside = _name_in_gzip(item.head(4096)) if name == "gz" else None
    size = struct.unpack("<I", item.read(item.size - 4, 4))[0] if name == "gz" and item.size >= 18 else None
    return drop_empty(
        format=name,
        entries=1,
        total_bytes=size,
        compressed_bytes=item.size,
        encrypted=False,
        names=[inside] if inside else [],
        truncated=False,
    )


def _name_in_gzip(head: bytes) -> str | None:
    flags, at = head[3], 10
    if flags & 4:
        at += 2 + int.from_bytes(head[10:12], "little")
    end = head.find(b"\0", at)
    return head[at:end].decode("latin-1")[:NAME] if flags & 8 and end > at else None


def _tar(item: Item, name: str, source: tar.Source, first: bytes) -> dict[str, Any]:
    listing, more = _Listing(), False
    try:
        for member, size in _first(tar.members(source, first), COUNTED):
            listing.add(member, size)
    except TooMuch:
        more = True
    except Damaged:
        if not listing.entries:
            raise
        more = True
    return {
        "format": name,
        "entries": listing.entries,
        "total_bytes": listing.total,
        "compressed_bytes": item.size,
        "encrypted": False,
        "names": listing.names,
        "truncated": more or listing.entries >= COUNTED,
    }


def _first(found: Iterator[tuple[str, int]], most: int) -> Iterator[tuple[str, int]]:
    return (member for member, _ in zip(found, range(most), strict=False))
