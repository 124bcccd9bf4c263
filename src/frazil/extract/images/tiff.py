"""Directories of tags (IFDs) of EXIF, TIFF files and most RAW files."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from frazil.extract.window import Damaged, Window

EXIF_IFD, GPS_IFD, SUB_IFDS = 0x8769, 0x8825, 0x014A

#: Size of one value and its `struct` code, by type.
_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8)
_CODES = " BsHI*bshi*fdI  QqQ"
_MAX_ENTRIES = 1024
_MAX_IFDS = 32

#: A value where it lies: type, count, offset in the window.
Entry = tuple[int, int, int]
Ifd = dict[int, Entry]


@dataclass
class Tiff:
    """Directories of a TIFF block.

    Attributes:
        window: where offsets count from.
        order: `<` or `>`.
        main: the first directory.
        exif: how the picture was taken.
        gps: where.
        others: further pages and, of RAW files, further pictures: only where they were asked for.
        pages: directories in the main chain; None: too many to count.
        warnings: what was wrong and left out.
    """

    window: Window
    order: str
    main: Ifd = field(default_factory=dict)
    exif: Ifd = field(default_factory=dict)
    gps: Ifd = field(default_factory=dict)
    others: list[Ifd] = field(default_factory=list)
    pages: int | None = 1
    big: bool = False
    warnings: list[str] = field(default_factory=list)

    def value(self, ifd: Ifd, tag: int, most: int = 65_536) -> Any:
        """Returns a value: text as bytes, rationals as pairs in one flat tuple; None if missing.

        One number comes alone, several as a tuple.
        """
        entry = ifd.get(tag)
        if entry is None:
            return None
        kind, count, at = entry
        size = _SIZES[kind] * count
        if size > most:
            return None
        data = self.window.get(at, size)
        if len(data) < size:
            self.warnings.append(f"tag 0x{tag:04X} lies beyond the end")
            return None
        code = _CODES[kind]
        if code == "s":
            return data
        if code == "*":
            return struct.unpack(f"{self.order}{2 * count}{'I' if kind == 5 else 'i'}", data)
        found = struct.unpack(f"{self.order}{count}{code}", data)
        return found[0] if count == 1 else found

    def number(self, ifd: Ifd, tag: int) -> int | None:
        """Returns a whole number; the first of several."""
        found = self.value(ifd, tag)
        if isinstance(found, tuple):
            found = found[0] if found else None
        return found if isinstance(found, int) else None


def read_tiff(window: Window, *, deep: bool = False) -> Tiff:
    """Reads the directories of a TIFF block.

    Args:
        window: starts with the block.
        deep: whether to follow the chain of pages and the directories below the first one.

    Raises:
        Damaged: it does not start as a TIFF block does.
    """
    order, first, big = _start(window)
    tiff = Tiff(window, order, big=big)
    seen: set[int] = set()
    tiff.main, following = _directory(tiff, first, seen)
    for tag, name in ((EXIF_IFD, "exif"), (GPS_IFD, "gps")):
        where = tiff.number(tiff.main, tag)
        if where:
            setattr(tiff, name, _directory(tiff, where, seen)[0])
    if deep:
        _follow(tiff, following, seen)
    return tiff


def shift_offsets(ifd: Ifd, by: int) -> Ifd:
    """Shifts the offsets of a directory."""
    return {tag: (kind, count, at + by) for tag, (kind, count, at) in ifd.items()}


def _start(window: Window) -> tuple[str, int, bool]:
    head = window.get(0, 16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2])
    if order is None or len(head) < 8:
        raise Damaged("no TIFF header")
    if struct.unpack_from(order + "H", head, 2)[0] == 43 and len(head) == 16:
        return order, struct.unpack_from(order + "Q", head, 8)[0], True
    return order, struct.unpack_from(order + "I", head, 4)[0], False


def _directory(tiff: Tiff, at: int, seen: set[int]) -> tuple[Ifd, int]:
    """Reads a directory, and the offset of the next one (0 if there is none)."""
    if at in seen or len(seen) > _MAX_IFDS:
        tiff.warnings.append("directories form a loop" if at in seen else "too many directories")
        return {}, 0
    seen.add(at)
    window, order = tiff.window, tiff.order
    head = window.get(at, 8 if tiff.big else 2)
    if len(head) < (8 if tiff.big else 2):
        tiff.warnings.append(f"a directory lies beyond the end, at {at}")
        return {}, 0
    (count,) = struct.unpack(order + ("Q" if tiff.big else "H"), head)
    start = at + len(head)
    width, room, form = (20, 8, "HHQ8x") if tiff.big else (12, 4, "HHI4x")
    told, count = count, min(count, _MAX_ENTRIES)
    data = window.get(start, count * width)
    found: Ifd = {}
    for index, (tag, kind, length) in enumerate(struct.iter_unpack(order + form, data[: len(data) // width * width])):
        if not 0 < kind < 19 or not _SIZES[kind] or tag in found:
            continue
        where = start + index * width + width - room
        if _SIZES[kind] * length > room:
            (where,) = struct.unpack_from(order + ("Q" if tiff.big else "I"), data, index * width + width - room)
        found[tag] = (kind, length, where)
    if len(data) < count * width or told > count:
        tiff.warnings.append(f"a directory of {told} tags is cut, at {at}")
        return found, 0
    following = window.get(start + count * width, room)
    return found, struct.unpack(order + ("Q" if tiff.big else "I"), following)[0] if len(following) == room else 0


def _follow(tiff: Tiff, following: int, seen: set[int]) -> None:
    below = tiff.value(tiff.main, SUB_IFDS)
    for at in below if isinstance(below, tuple) else (below,):
        if isinstance(at, int):
            tiff.others.append(_directory(tiff, at, seen)[0])
    pages = 1
    while following and following not in seen and len(seen) < _MAX_IFDS:
        ifd, following = _directory(tiff, following, seen)
        tiff.others.append(ifd)
        pages += 1
    tiff.pages = pages if not following or following in seen else None
