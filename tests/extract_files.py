"""Makes the files that tests of extractors look into. Every function returns the bytes of a file.

Pictures are made with Pillow; what it cannot write (IPTC, HEIC, RAW, broken EXIF) is put together by hand.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any

import numpy as np
from PIL import Image

# ---------------------------------------------------------------- pictures


def picture(size: tuple[int, int] = (320, 240), seed: int = 0) -> Image.Image:
    """A smooth picture that looks unlike those of other seeds, and like itself in other sizes."""
    rng = np.random.default_rng(seed)
    width, height = (min(side, 320) for side in size)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    out = np.zeros((height, width, 3))
    for _ in range(12):
        fx, fy = rng.uniform(-4, 4, 2)
        out += np.cos(2 * math.pi * (fx * x + fy * y) + rng.uniform(0, 6.3))[..., None] * rng.uniform(-1, 1, 3)
    out -= out.min()
    out *= 255 / max(float(out.max()), 1e-9)
    return Image.fromarray(out.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **{k: v for k, v in options.items() if v is not None})
    return file.getvalue()


# ---------------------------------------------------------------- EXIF

BYTE, ASCII, SHORT, LONG, RATIONAL, UNDEFINED, SLONG, SRATIONAL = 1, 2, 3, 4, 5, 7, 9, 10
_CODES = {1: "B", 2: "s", 3: "H", 4: "I", 5: "II", 6: "b", 7: "s", 8: "h", 9: "i", 10: "ii", 11: "f", 12: "d", 13: "I"}

#: Tag → (type, value): text or bytes, a number, a list of numbers, or for rationals a list of pairs.
Tags = Mapping[int, tuple[int, Any]]


def _packed(order: str, kind: int, value: Any) -> tuple[int, bytes]:
    if kind in (ASCII, UNDEFINED):
        data = value if isinstance(value, bytes) else value.encode() + b"\0"
        return len(data), data
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    flat = [n for pair in values for n in pair] if kind in (RATIONAL, SRATIONAL) else values
    per = _CODES[kind][0]
    return len(values), struct.pack(f"{order}{len(flat)}{per}", *flat)


def _ifd(order: str, at: int, tags: Tags, following: int = 0) -> bytes:
    """An IFD that lies at an offset, with its values behind it."""
    entries, values = b"", b""
    base = at + 2 + 12 * len(tags) + 4
    for tag in sorted(tags):
        kind, value = tags[tag]
        count, data = _packed(order, kind, value)
        if len(data) <= 4:
            field = data.ljust(4, b"\0")
        else:
            field = struct.pack(order + "I", base + len(values))
            values += data + b"\0" * (len(data) % 2)
        entries += struct.pack(order + "HHI", tag, kind, count) + field
    return struct.pack(order + "H", len(tags)) + entries + struct.pack(order + "I", following) + values


def tiff_block(
    ifd0: Tags | None = None,
    exif: Tags | None = None,
    gps: Tags | None = None,
    *,
    ifd1: Tags | None = None,
    subs: Sequence[Tags] = (),
    thumbnail: bytes = b"",
    order: str = "<",
    magic: bytes | None = None,
    start: int = 8,
) -> bytes:
    """A TIFF header with IFDs: EXIF without its prefix, or the front of a RAW file."""
    head = (
        (b"II" if order == "<" else b"MM") + (magic or struct.pack(order + "H", 42)) + struct.pack(order + "I", start)
    )
    out = head.ljust(start, b"\0")
    main = dict(ifd0 or {})
    if exif is not None:
        main[0x8769] = (LONG, 0)
    if gps is not None:
        main[0x8825] = (LONG, 0)
    if subs:
        main[0x014A] = (LONG, [0] * len(subs))
    at = start + len(_ifd(order, start, main))
    rest = b""
    for tag, tags in ((0x8769, exif), (0x8825, gps)):
        if tags is not None:
            main[tag] = (LONG, at + len(rest))
            rest += _ifd(order, at + len(rest), tags)
    places = []
    for tags in subs:
        places.append(at + len(rest))
        rest += _ifd(order, places[-1], tags)
    if subs:
        main[0x014A] = (LONG, places)
    following = 0
    if ifd1 is not None or thumbnail:
        following = at + len(rest)
        last = dict(ifd1 or {})
        if thumbnail:
            last |= {0x0103: (SHORT, 6), 0x0201: (LONG, 0), 0x0202: (LONG, len(thumbnail))}
            last[0x0201] = (LONG, following + len(_ifd(order, following, last)))
        rest += _ifd(order, following, last) + thumbnail
    return out + _ifd(order, start, main, following) + rest


def degrees(value: float) -> list[tuple[int, int]]:
    """Degrees, minutes and seconds as GPS tags have them."""
    value = abs(value)
    whole = int(value)
    minutes = int((value - whole) * 60)
    seconds = (value - whole - minutes / 60) * 3600
    return [(whole, 1), (minutes, 1), (round(seconds * 10_000), 10_000)]


def exif(
    *,
    maker: str | None = "Canon",
    model: str | None = "Canon EOS R5",
    lens: str | None = "RF24-105mm F4 L IS USM",
    taken: datetime | None = datetime(2024, 5, 1, 12, 34, 56),
    offset: str | None = None,
    gps: tuple[float, float] | tuple[float, float, float] | None = None,
    orientation: int | None = None,
    description: str | None = None,
    artist: str | None = None,
    size: tuple[int, int] | None = None,
    thumbnail: bytes = b"",
    maker_note: bytes = b"",
    ifd0: Tags | None = None,
    exif: Tags | None = None,
    gps_tags: Tags | None = None,
    subs: Sequence[Tags] = (),
    order: str = "<",
    magic: bytes | None = None,
    start: int = 8,
) -> bytes:
    """A TIFF block as a camera writes it; `ifd0`, `exif`, `gps_tags` add tags or replace them."""
    main: dict[int, tuple[int, Any]] = {}
    texts = {0x010E: description, 0x010F: maker, 0x0110: model, 0x013B: artist}
    main |= {tag: (ASCII, text) for tag, text in texts.items() if text is not None}
    if orientation is not None:
        main[0x0112] = (SHORT, orientation)
    if size is not None:
        main |= {0x0100: (LONG, size[0]), 0x0101: (LONG, size[1])}
    shot: dict[int, tuple[int, Any]] = {
        0x829A: (RATIONAL, [(1, 250)]),
        0x829D: (RATIONAL, [(56, 10)]),
        0x8827: (SHORT, 400),
        0x9000: (UNDEFINED, b"0232"),
        0x920A: (RATIONAL, [(50, 1)]),
    }
    if taken is not None:
        main[0x0132] = (ASCII, f"{taken:%Y:%m:%d %H:%M:%S}")
        shot[0x9003] = (ASCII, f"{taken:%Y:%m:%d %H:%M:%S}")
        if taken.microsecond:
            shot[0x9291] = (ASCII, f"{taken.microsecond:06d}".rstrip("0"))
    if offset is not None:
        shot[0x9011] = (ASCII, offset)
    if lens is not None:
        shot[0xA434] = (ASCII, lens)
    if maker_note:
        shot[0x927C] = (UNDEFINED, maker_note)
    place: dict[int, tuple[int, Any]] | None = None
    if gps is not None or gps_tags is not None:
        place = {0: (BYTE, [2, 3, 0, 0])}
    if gps is not None and place is not None:
        lat, lon, *alt = gps
        place |= {1: (ASCII, "N" if lat >= 0 else "S"), 2: (RATIONAL, degrees(lat))}
        place |= {3: (ASCII, "E" if lon >= 0 else "W"), 4: (RATIONAL, degrees(lon))}
        if alt:
            exact = Fraction(abs(alt[0])).limit_denominator(1000)
            place |= {5: (BYTE, 0 if alt[0] >= 0 else 1), 6: (RATIONAL, [(exact.numerator, exact.denominator)])}
    if place is not None:
        place |= dict(gps_tags or {})
    return tiff_block(
        main | dict(ifd0 or {}), shot | dict(exif or {}), place,
        subs=subs, thumbnail=thumbnail, order=order, magic=magic, start=start,
    )  # fmt: skip


# ---------------------------------------------------------------- XMP and IPTC


def xmp(
    title: str | None = "A title",
    creators: Sequence[str] = ("A. Person",),
    keywords: Sequence[str] = ("cat", "garden"),
    rating: int | None = 4,
    body: str = "",
) -> bytes:
    """An XMP packet; `body` is further RDF inside the description."""
    parts = [f"<xmp:Rating>{rating}</xmp:Rating>"] if rating is not None else []
    if title is not None:
        parts.append(f'<dc:title><rdf:Alt><rdf:li xml:lang="x-default">{title}</rdf:li></rdf:Alt></dc:title>')
    if creators:
        parts.append(
            "<dc:creator><rdf:Seq>" + "".join(f"<rdf:li>{c}</rdf:li>" for c in creators) + "</rdf:Seq></dc:creator>"
        )
    if keywords:
        parts.append(
            "<dc:subject><rdf:Bag>" + "".join(f"<rdf:li>{k}</rdf:li>" for k in keywords) + "</rdf:Bag></dc:subject>"
        )
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/"'
        ' xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"'
        f' photoshop:City="Turku">{"".join(parts)}{body}</rdf:Description></rdf:RDF></x:xmpmeta>'
        '<?xpacket end="w"?>'
    ).encode()


def iptc(records: Sequence[tuple[int, int, bytes]], *, utf8: bool = False) -> bytes:
    """IIM datasets (record, number, value) inside a Photoshop resource."""
    if utf8:
        records = [(1, 90, b"\x1b%G"), *records]
    iim = b"".join(b"\x1c" + struct.pack(">BBH", r, n, len(v)) + v for r, n, v in records)
    return b"8BIM\x04\x04\0\0" + struct.pack(">I", len(iim)) + iim + b"\0" * (len(iim) % 2)


# ---------------------------------------------------------------- formats that Pillow writes


def segment(marker: int, data: bytes) -> bytes:
    """A JPEG segment."""
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def jpeg(
    size: tuple[int, int] = (320, 240),
    *,
    seed: int = 0,
    image: Image.Image | None = None,
    exif: bytes | None = None,
    xmp: bytes | None = None,
    iptc: bytes | None = None,
    icc: bytes = b"",
    quality: int = 85,
    pad_to: int = 0,
    progressive: bool = False,
) -> bytes:
    """A JPEG; `pad_to` makes it that large with what a decoder never looks at."""
    plain = _saved(image or picture(size, seed), "JPEG", quality=quality, progressive=progressive)
    front = b""
    if exif is not None:
        front += segment(0xE1, b"Exif\0\0" + exif)
    if xmp is not None:
        front += segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp)
    if iptc is not None:
        front += segment(0xED, b"Photoshop 3.0\0" + iptc)
    pieces = [icc[i : i + 65_000] for i in range(0, len(icc), 65_000)]
    for n, piece in enumerate(pieces, 1):
        front += segment(0xE2, b"ICC_PROFILE\0" + bytes([n, len(pieces)]) + piece)
    return (plain[:2] + front + plain[2:]).ljust(pad_to, b"\0")


def chunk(name: bytes, data: bytes) -> bytes:
    """A PNG chunk."""
    import zlib

    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    size: tuple[int, int] = (320, 240),
    *,
    seed: int = 0,
    image: Image.Image | None = None,
    exif: bytes | None = None,
    xmp: bytes | None = None,
    exif_at_end: bool = False,
) -> bytes:
    """A PNG with eXIf and iTXt chunks, before the pixels or behind them."""
    plain = _saved(image or picture(size, seed), "PNG")
    more = b""
    if exif is not None:
        more += chunk(b"eXIf", exif)
    if xmp is not None:
        more += chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)
    at = len(plain) - 12 if exif_at_end else 33
    return plain[:at] + more + plain[at:]


def webp(
    size: tuple[int, int] = (320, 240),
    *,
    seed: int = 0,
    exif: bytes | None = None,
    xmp: bytes | None = None,
    lossless: bool = False,
) -> bytes:
    """A WebP."""
    return _saved(picture(size, seed), "WEBP", exif=exif, xmp=xmp, lossless=lossless)


def gif(size: tuple[int, int] = (320, 240), *, seed: int = 0, frames: int = 1) -> bytes:
    """A GIF of one frame or several."""
    first, *rest = [picture(size, seed + n).convert("P") for n in range(frames)]
    return _saved(first, "GIF", save_all=frames > 1, append_images=rest)


def bmp(size: tuple[int, int] = (320, 240), *, seed: int = 0) -> bytes:
    """A BMP."""
    return _saved(picture(size, seed), "BMP")


def avif(
    size: tuple[int, int] = (320, 240), *, seed: int = 0, exif: bytes | None = None, xmp: bytes | None = None
) -> bytes:
    """An AVIF."""
    return _saved(picture(size, seed), "AVIF", exif=exif, xmp=xmp, quality=60, speed=10)


def tiff(
    size: tuple[int, int] = (320, 240),
    *,
    seed: int = 0,
    xmp: bytes | None = None,
    tags: Mapping[int, Any] | None = None,
    compression: str | None = None,
) -> bytes:
    """A TIFF; `tags` are those of its first IFD."""
    return _saved(
        picture(size, seed), "TIFF", tiffinfo={**(tags or {}), **({700: xmp} if xmp else {})}, compression=compression
    )


# ---------------------------------------------------------------- HEIC and CR3, by hand


def box(name: bytes, *contents: bytes, version: int | None = None, flags: int = 0) -> bytes:
    """A box of ISO-BMFF; with a version it is a full box."""
    data = b"".join(contents)
    if version is not None:
        data = struct.pack(">I", version << 24 | flags) + data
    return struct.pack(">I4s", 8 + len(data), name) + data


def heic(
    size: tuple[int, int] = (4032, 3024),
    *,
    exif: bytes | None = None,
    xmp: bytes | None = None,
    quarter_turns: int = 0,
    brand: bytes = b"heic",
    pixels: bytes = b"\0" * 2000,
) -> bytes:
    """The boxes of a HEIC without a picture that could be decoded: sizes, turn, EXIF and XMP are all there."""
    items = [(1, b"hvc1", pixels)]
    if exif is not None:
        items.append((2, b"Exif", struct.pack(">I", 6) + b"Exif\0\0" + exif))
    if xmp is not None:
        items.append((3, b"mime", xmp))

    def entry(number: int, kind: bytes) -> bytes:
        more = b"application/rdf+xml\0" if kind == b"mime" else b""
        return box(b"infe", struct.pack(">HH4s", number, 0, kind), b"\0", more, version=2)

    infos = b"".join(entry(n, kind) for n, kind, _ in items)
    properties = [box(b"ispe", struct.pack(">II", *size), version=0)]
    if quarter_turns:
        properties.append(box(b"irot", bytes([quarter_turns])))
    links = struct.pack(">IHB", 1, 1, len(properties)) + bytes(range(1, len(properties) + 1))

    def meta(first: int) -> bytes:
        places, at = b"", first
        for number, _, data in items:
            places += struct.pack(">HHHII", number, 0, 1, at, len(data))
            at += len(data)
        return box(
            b"meta",
            box(b"hdlr", b"\0\0\0\0pict" + b"\0" * 13, version=0),
            box(b"pitm", struct.pack(">H", 1), version=0),
            box(b"iinf", struct.pack(">H", len(items)), infos, version=0),
            box(b"iprp", box(b"ipco", *properties), box(b"ipma", links, version=0)),
            box(b"iloc", b"\x44\x00", struct.pack(">H", len(items)), places, version=0),
            version=0,
        )

    front = box(b"ftyp", brand, b"\0\0\0\0", b"mif1", brand)
    return front + meta(len(front) + len(meta(0)) + 8) + box(b"mdat", *(data for *_, data in items))


def cr3(
    size: tuple[int, int] = (8192, 5464),
    *,
    shot: bytes | None = None,
    gps: bytes | None = None,
    preview: bytes = b"",
) -> bytes:
    """A Canon CR3: TIFF blocks for IFD0, Exif and GPS in boxes of their own, and a preview."""
    main: dict[int, tuple[int, Any]] = {0x0100: (LONG, size[0]), 0x0101: (LONG, size[1])}
    main |= {0x010F: (ASCII, "Canon"), 0x0110: (ASCII, "Canon EOS R5")}
    blocks = [
        box(b"CMT1", tiff_block(main)),
        box(b"CMT2", shot if shot is not None else tiff_block({0x9003: (ASCII, "2024:05:01 12:34:56")})),
        box(b"CMT4", gps if gps is not None else tiff_block({0: (BYTE, [2, 3, 0, 0])})),
    ]
    out = box(b"ftyp", b"crx ", b"\0\0\0\1", b"crx isom")
    out += box(b"moov", box(b"uuid", bytes.fromhex("85c0b687820f11e08111f4ce462b6a48"), *blocks))
    if preview:
        inner = box(b"PRVW", struct.pack(">IHHHHI", 0, 1, 1620, 1080, 1, len(preview)), preview)
        out += box(b"uuid", bytes.fromhex("eaf42b5e1c984b88b9fbb7dc406e4d16"), struct.pack(">II", 0, 1), inner)
    return out + box(b"mdat", b"\0" * 4000)


# ---------------------------------------------------------------- RAW, by hand

_RAW: dict[str, dict[str, Any]] = {
    "cr2": {"maker": "Canon", "model": "Canon EOS 5D"},
    "nef": {"maker": "NIKON CORPORATION", "model": "NIKON D850"},
    "arw": {"maker": "SONY", "model": "ILCE-7M3"},
    "dng": {"maker": "Leica", "model": "LEICA Q2", "ifd0": {50706: (BYTE, [1, 4, 0, 0])}},
    "orf": {"maker": "OLYMPUS CORPORATION", "model": "E-M1", "magic": b"RO"},
    "rw2": {"maker": "Panasonic", "model": "DC-G9", "magic": b"U\0"},
}


def raw(kind: str, size: tuple[int, int] = (6000, 4000), *, preview: bytes = b"", **more: Any) -> bytes:
    """A RAW file as far as its tags: cr2, nef, arw, dng, orf, rw2, raf or cr3; the preview is a JPEG."""
    if kind == "cr3":
        return cr3(size, preview=preview, **more)
    if kind == "raf":
        return raf(size, preview=preview or jpeg((640, 480), exif=exif(maker="FUJIFILM", model="X-T4"), **more))
    known = dict(_RAW[kind]) | more
    known["start"] = 16 if kind == "cr2" else 8
    main: dict[int, tuple[int, Any]] = dict(known.pop("ifd0", {}))
    below: dict[int, tuple[int, Any]] = {}
    small = {0x00FE: (LONG, 1), 0x0100: (LONG, 160), 0x0101: (LONG, 120)}
    whole = {0x0100: (LONG, size[0]), 0x0101: (LONG, size[1])}
    if kind == "rw2":
        main |= {2: (SHORT, size[0]), 3: (SHORT, size[1]), 4: (SHORT, 0), 5: (SHORT, 0), 6: (SHORT, size[1])}
        main[7] = (SHORT, size[0])
    elif kind in ("nef", "arw", "dng"):
        main |= small
        below = {0x00FE: (LONG, 0), **whole}
    else:
        main |= whole

    def block(at: int) -> bytes:
        if preview and kind == "cr2":
            main.update({0x0103: (SHORT, 6), 0x0111: (LONG, at), 0x0117: (LONG, len(preview))})
        elif preview and kind == "rw2":
            main[0x002E] = (UNDEFINED, preview)
        elif preview:
            main.update({0x0201: (LONG, at), 0x0202: (LONG, len(preview))})
        return exif(ifd0=main, subs=[below] if below else [], **known)

    front = block(len(block(0)))
    if kind == "cr2":
        front = front[:8] + b"CR\x02\0\0\0\0\0" + front[16:]
    return front + preview + b"\0" * 2000


def raf(size: tuple[int, int] = (6240, 4160), *, preview: bytes = b"") -> bytes:
    """A Fujifilm RAF: a header that says where the JPEG with the EXIF lies, and a directory with the size."""
    entry = struct.pack(">HHHH", 0x0100, 4, size[1], size[0])
    directory = struct.pack(">I", 1) + entry
    at = 160
    head = b"FUJIFILMCCD-RAW 0201FF383501X-T4".ljust(84, b"\0")
    head += struct.pack(">IIII", at, len(preview), at + len(preview), len(directory))
    return head.ljust(at, b"\0") + preview + directory + b"\0" * 1000
