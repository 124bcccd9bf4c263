"""Headers of ISO media files: HEIC, HEIF, AVIF, JPEG 2000 and Canon's CR3."""

from __future__ import annotations

from collections.abc import Iterator

from frazil.extract.images.header import Header
from frazil.extract.images.jpeg import exif
from frazil.extract.images.tiff import Tiff, read_tiff, shift_offsets
from frazil.extract.window import Damaged, Window

_MAX_ITEMS = 4096
_CANON = bytes.fromhex("85c0b687820f11e08111f4ce462b6a48")
_CANON_PREVIEW = bytes.fromhex("eaf42b5e1c984b88b9fbb7dc406e4d16")
#: (counter-clockwise quarter turns, mirror axis; 1: left and right change places) → EXIF orientation.
_TURNED: dict[tuple[int, int | None], int] = {
    (0, None): 1, (1, None): 8, (2, None): 3, (3, None): 6,
    (0, 1): 2, (0, 0): 4, (1, 1): 7, (1, 0): 5, (2, 1): 4, (2, 0): 2, (3, 1): 5, (3, 0): 7,
}  # fmt: skip


def boxes(window: Window) -> Iterator[tuple[bytes, Window]]:
    """Yields the boxes in a part, as (name, contents)."""
    for name, start, end in window.boxes():
        yield name, window.part(start, end - start)


def _first(window: Window, name: bytes) -> Window | None:
    return next((inside for found, inside in boxes(window) if found == name), None)


def read_heif(window: Window, header: Header) -> None:
    """Reads size and orientation of the main picture, and the offsets of EXIF and XMP.

    Raises:
        Damaged: the size is not found.
    """
    meta = _first(window, b"meta")
    if meta is None:
        raise Damaged("no box with metadata")
    parts = dict(boxes(meta.part(4)))
    main = 0
    if b"pitm" in parts:
        wide = parts[b"pitm"].unpack(">B", 0)[0] > 0
        (main,) = parts[b"pitm"].unpack(">I" if wide else ">H", 4)
    if b"iprp" in parts:
        _properties(parts[b"iprp"], main, header)
    items = _items(parts[b"iinf"]) if b"iinf" in parts else {}
    wanted = {number for number, kind in items.items() if kind in (b"Exif", b"mime")}
    places = _places(parts[b"iloc"], wanted) if wanted and b"iloc" in parts else {}
    for number, (method, offset, length) in places.items():
        source = parts.get(b"idat") if method == 1 else window
        if source is not None:
            _attach(items[number], source.part(offset, length), header)
    if header.width is None:
        raise Damaged("the main picture has no size")


def _attach(kind: bytes, data: Window, header: Header) -> None:
    if kind == b"mime":
        header.xmp = header.xmp or data
    elif header.tiff is None:
        turned = header.orientation
        (skip,) = data.unpack(">I", 0)
        exif(data.part(4 + skip), header)
        # The boxes have the orientation; the one in EXIF is a copy that may be stale.
        header.orientation = turned


def _items(box: Window) -> dict[int, bytes]:
    """Returns number → kind of the items that are EXIF or XMP."""
    (version,) = box.unpack(">B", 0)
    found: dict[int, bytes] = {}
    at = 8 if version else 6
    for _ in range(_MAX_ITEMS):
        start = box.get(at, 64)
        size = int.from_bytes(start[:4], "big")
        if len(start) < 20 or size < 20 or start[4:8] != b"infe":
            break
        wide = start[8] >= 3
        number = int.from_bytes(start[12 : 16 if wide else 14], "big")
        kind = start[18:22] if wide else start[16:20]
        if kind == b"Exif" or (kind == b"mime" and b"rdf+xml" in start[:size]):
            found[number] = kind
        at += size
    return found


def _places(box: Window, wanted: set[int]) -> dict[int, tuple[int, int, int]]:
    """Returns number → (method, offset, length) of contiguous items."""
    version, sizes, more = box.unpack(">B3xBB", 0)
    offset_size, length_size, base_size, index_size = sizes >> 4, sizes & 15, more >> 4, more & 15
    wide = 4 if version == 2 else 2
    count = int.from_bytes(box.get(6, wide), "big")
    at = 6 + wide
    found: dict[int, tuple[int, int, int]] = {}
    each = (index_size if version else 0) + offset_size + length_size
    for _ in range(min(count, _MAX_ITEMS)):
        head = box.get(at, wide + (2 if version else 0) + 2 + base_size + 2)
        number = int.from_bytes(head[:wide], "big")
        method = int.from_bytes(head[wide : wide + 2], "big") & 15 if version else 0
        base_at = wide + (4 if version else 2)
        base = int.from_bytes(head[base_at : base_at + base_size], "big")
        pieces = int.from_bytes(head[base_at + base_size : base_at + base_size + 2], "big")
        at += len(head)
        if number in wanted and pieces == 1:
            piece = box.get(at + (index_size if version else 0), offset_size + length_size)
            offset = int.from_bytes(piece[:offset_size], "big")
            found[number] = (method, base + offset, int.from_bytes(piece[offset_size:], "big"))
        at += pieces * each
        if at >= box.size:
            break
    return found


def _properties(box: Window, main: int, header: Header) -> None:
    """Reads the properties of the main picture: size, crop, rotation and mirroring."""
    parts = dict(boxes(box))
    if b"ipco" not in parts or b"ipma" not in parts:
        return
    known = list(boxes(parts[b"ipco"]))
    turns, shown = 0, (0, 0)
    mirror: int | None = None
    for index in _linked(parts[b"ipma"], main):
        if not 0 < index <= len(known):
            continue
        name, data = known[index - 1]
        if name == b"ispe":
            width, height = data.unpack(">II", 4)
            header.width, header.height = width or None, height or None
        elif name == b"clap":
            wide, wide_by, high, high_by = data.unpack(">4I", 0)
            if wide_by and high_by:
                shown = round(wide / wide_by), round(high / high_by)
        elif name == b"irot":
            turns = data.unpack(">B", 0)[0] & 3
        elif name == b"imir":
            mirror = data.unpack(">B", 0)[0] & 1
    if all(shown):
        header.width, header.height = shown
    header.orientation = _TURNED[turns, mirror]


def _linked(box: Window, main: int) -> list[int]:
    version, flags, count = box.unpack(">B2xBI", 0)
    at, wide, long = 8, 4 if version else 2, bool(flags & 1)
    for _ in range(min(count, _MAX_ITEMS)):
        head = box.get(at, wide + 1)
        if len(head) <= wide:
            break
        number, links = int.from_bytes(head[:wide], "big"), head[wide] * (2 if long else 1)
        at += wide + 1
        if number == main:
            data = box.get(at, links)
            if long:
                return [int.from_bytes(data[i : i + 2], "big") & 0x7FFF for i in range(0, len(data) - 1, 2)]
            return [index & 0x7F for index in data]
        at += links
    return []


def read_jpeg2000(window: Window, header: Header) -> None:
    """Reads the size of a JP2.

    Raises:
        Damaged: the size is not found.
    """
    inside = _first(window, b"jp2h")
    size = _first(inside, b"ihdr") if inside else None
    if size is None:
        raise Damaged("the picture has no size")
    height, width, parts = size.unpack(">IIH", 0)
    header.width, header.height = width or None, height or None
    header.mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(parts)


def read_cr3(window: Window, header: Header) -> None:
    """Reads Canon's boxes with the TIFF blocks, and the offset of the preview.

    Raises:
        Damaged: the size is not found.
    """
    blocks: dict[bytes, Tiff] = {}
    for name, data in boxes(window):
        if name == b"moov":
            for inner, inside in boxes(data):
                if inner == b"uuid" and inside.get(0, 16) == _CANON:
                    blocks |= {n: read_tiff(d) for n, d in boxes(inside.part(16)) if n in (b"CMT1", b"CMT2", b"CMT4")}
        elif name == b"uuid" and data.get(0, 16) == _CANON_PREVIEW:
            preview = _first(data.part(24), b"PRVW")
            if preview is not None:
                header.previews.append(preview.part(16, preview.unpack(">12xI", 0)[0]))
        elif name == b"mdat":
            break
    first = blocks.get(b"CMT1")
    if first is None:
        raise Damaged("no box with the tags of the camera")
    # Each block counts offsets from its own start; here they all count from the start of the file.
    merged = Tiff(window, first.order, shift_offsets(first.main, first.window.start - window.start))
    for name, group in ((b"CMT2", "exif"), (b"CMT4", "gps")):
        block = blocks.get(name)
        if block is not None and block.order == first.order:
            setattr(merged, group, shift_offsets(block.main, block.window.start - window.start))
    header.tiff = merged
    header.width, header.height = merged.number(merged.main, 0x0100), merged.number(merged.main, 0x0101)
    turned = merged.number(merged.main, 0x0112)
    header.orientation = turned if turned is not None and 1 <= turned <= 8 else 1
