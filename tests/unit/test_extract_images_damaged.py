"""Files that are cut, changed or made of chance: an answer or a reason, at once, and never a crash."""

from __future__ import annotations

import json
import random
import time

import pytest

from frazil.extract import Limits, TooMuch, Unsupported
from frazil.extract.images.exif import EXIF
from frazil.extract.images.image import IMAGE
from frazil.extract.images.iptc import IPTC
from frazil.extract.images.picture import PICTURE
from frazil.extract.images.xmp import XMP
from frazil.extract.types.detect import TYPE
from frazil.extract.window import Damaged
from tests import extract_files as files
from tests.extract_kit import MemoryItem

ALLOWED = (Unsupported, TooMuch, Damaged)


def full() -> bytes:
    return files.exif(gps=(1.5, 2.5, 3), orientation=6, thumbnail=files.jpeg((32, 24)), maker_note=b"\7" * 300)


def whole_files() -> dict[str, bytes]:
    size, exif, xmp = (64, 48), full(), files.xmp()
    iptc = files.iptc([(2, 5, b"Name"), (2, 25, b"cat")])
    preview = files.jpeg(size, exif=exif)
    return {
        "jpeg": files.jpeg(size, exif=exif, xmp=xmp, iptc=iptc, icc=b"\1" * 500),
        "png": files.png(size, exif=exif, xmp=xmp),
        "png2": files.png(size, exif=exif, xmp=xmp, exif_at_end=True),
        "webp": files.webp(size, exif=exif, xmp=xmp),
        "lossless": files.webp(size, lossless=True),
        "tiff": files.tiff(size, xmp=xmp, tags={271: "Canon", 33723: iptc}),
        "gif": files.gif(size, frames=2),
        "bmp": files.bmp(size),
        "avif": files.avif(size, exif=exif, xmp=xmp),
        "heic": files.heic(exif=exif, xmp=xmp, quarter_turns=1),
        "svg": b'<svg xmlns="x" width="10" height="20"/>',
        **{kind: files.raw(kind, preview=preview) for kind in ("cr2", "nef", "arw", "dng", "orf", "rw2", "raf")},
        "cr3": files.raw("cr3", preview=preview),
    }


FILES = whole_files()


def survives(data: bytes, *, media: str | None = None, decode: bool = False) -> None:
    """Once more where it took long: a collection of garbage, or of a machine's time, is not its fault."""
    assert any(seconds_for(data, media, decode) < 1.5 for _ in range(2))


def seconds_for(data: bytes, media: str | None, decode: bool) -> float:
    item = MemoryItem(data, "a.jpg", detected_type=media, limits=Limits(max_pixels=4_000_000))
    start = time.process_time()
    # libheif may crash on a damaged file: in the engine `picture` has a process of its own, here it has not.
    pixels = (PICTURE,) if decode and media not in ("image/heic", "image/heif") else ()
    for extractor in (TYPE, IMAGE, EXIF, XMP, IPTC, *pixels):
        try:
            found = extractor.look(item)
        except ALLOWED as failure:
            assert str(failure)
        else:
            json.dumps(found, allow_nan=False).encode()
    seconds = time.process_time() - start
    assert item.bytes_read < 20 * max(len(data), 4096)
    return seconds


@pytest.mark.parametrize("name", FILES)
def test_a_file_may_be_cut_anywhere(name: str):
    data = FILES[name]
    media = MemoryItem(data, f"a.{name}").detected_type
    step = max(1, min(len(data), 4000) // 250)
    for cut in [*range(0, min(len(data), 4000), step), *range(4000, len(data), max(1, len(data) // 20))]:
        survives(data[:cut], media=media, decode=cut % 20 == 0)


@pytest.mark.parametrize("name", FILES)
def test_bytes_may_change(name: str):
    data = FILES[name]
    media = MemoryItem(data, f"a.{name}").detected_type
    dice = random.Random(name)
    for _ in range(250):
        broken = bytearray(data)
        for _ in range(dice.choice((1, 3, 20))):
            at = dice.randrange(min(len(broken), dice.choice((60, 700, len(broken)))))
            broken[at] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        survives(bytes(broken), media=media, decode=dice.random() < 0.1)


def test_chance_may_be_called_anything():
    dice = random.Random(7)
    types = [MemoryItem(data, f"a.{name}").detected_type for name, data in FILES.items()]
    for n in range(600):
        data = dice.randbytes(dice.choice((0, 1, 7, 30, 200, 5000)))
        if n % 3 == 0:
            start = FILES[dice.choice(list(FILES))]
            data = start[: dice.choice((4, 8, 12, 16, 30, 100))] + data
        survives(data, media=dice.choice(types) if n % 2 else None)


def test_exif_may_be_chance():
    dice = random.Random(11)
    for order in (b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08"):
        for _ in range(150):
            survives(files.jpeg((16, 16), exif=order + dice.randbytes(dice.choice((2, 50, 2000)))))


def test_a_bigtiff_is_read():
    import struct

    entries = b"".join(struct.pack("<HHQQ", *entry) for entry in ((256, 4, 1, 70_000), (257, 4, 1, 50_000)))
    data = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2) + entries + struct.pack("<Q", 0)
    found = IMAGE.look(MemoryItem(data))
    assert (found["width"], found["height"]) == (70_000, 50_000)
    for cut in range(len(data)):
        survives(data[:cut], media="image/tiff")


def test_boxes_and_chunks_without_end_are_left():
    survives(files.box(b"ftyp", b"heic", b"\0\0\0\0") + files.box(b"free") * 100_000)
    survives(FILES["png"][:33] + files.chunk(b"tEXt", b"a\0b") * 50_000)
    survives(b"\xff\xd8" + b"\xff\xfe\0\2" * 200_000)
    survives(b"\xff\xd8" + b"\xff" * 200_000, media="image/jpeg")
    survives(b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0" + b"\0" * 10 + b"ANMF\0\0\0\0" * 50_000)
