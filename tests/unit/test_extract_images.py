"""`image`: the same answers for every format, from headers alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from frazil.extract import Unsupported
from frazil.extract.images.exif import EXIF
from frazil.extract.images.image import IMAGE
from frazil.extract.images.iptc import IPTC
from frazil.extract.images.xmp import XMP
from frazil.extract.types.detect import TYPE
from frazil.extract.window import Damaged
from tests import extract_files as files
from tests.extract_files import ASCII, BYTE, LONG, RATIONAL, SHORT, UNDEFINED
from tests.extract_kit import MemoryItem, look

HEADERS = (IMAGE, EXIF, XMP, IPTC)


def shot(**more: Any) -> bytes:
    return files.exif(gps=(60.1699, -24.9384, -12.5), offset="+02:00", artist="Ann", **more)


FORMATS: dict[str, tuple[str, Callable[..., bytes]]] = {
    "jpeg": ("JPEG", files.jpeg),
    "png": ("PNG", files.png),
    "png, behind the pixels": ("PNG", lambda **more: files.png(exif_at_end=True, **more)),
    "webp": ("WEBP", files.webp),
    "webp, lossless": ("WEBP", lambda **more: files.webp(lossless=True, **more)),
    "avif": ("AVIF", files.avif),
    "heic": ("HEIC", lambda **more: files.heic((320, 240), **more)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("order", ["<", ">"])
def test_every_format_tells_the_same(name: str, order: str):
    form, make = FORMATS[name]
    item = MemoryItem(make(exif=shot(order=order), xmp=files.xmp(title="Title", creators=["Ann", "Bob"])))
    found = IMAGE.look(item)
    assert {key: found[key] for key in found if key not in ("mode", "frames")} == {
        "format": form,
        "width": 320,
        "height": 240,
        "orientation": 1,
        "taken_at": "2024-05-01T12:34:56",
        "taken_offset": "+02:00",
        "camera": "Canon EOS R5",
        "lens": "RF24-105mm F4 L IS USM",
        "latitude": 60.1699,
        "longitude": -24.9384,
        "altitude": -12.5,
        "title": "Title",
        "author": "Ann, Bob",
    }
    assert EXIF.look(item)["GPSLongitude"] == -24.9384
    assert XMP.look(item)["dc"]["creator"] == ["Ann", "Bob"]
    assert IPTC.look(item) == {}


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "avif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_sizes_are_those_of_the_picture_as_it_is_shown(name: str, orientation: int):
    found = look(IMAGE, FORMATS[name][1](exif=files.exif(orientation=orientation)))
    assert (found["width"], found["height"]) == ((240, 320) if orientation >= 5 else (320, 240))
    assert found["orientation"] == orientation


def test_a_heic_is_turned_by_its_boxes_and_not_by_exif():
    for turns, orientation in ((0, 1), (1, 8), (2, 3), (3, 6)):
        found = look(IMAGE, files.heic((400, 300), exif=files.exif(orientation=6), quarter_turns=turns))
        assert found["orientation"] == orientation
        assert (found["width"], found["height"]) == ((300, 400) if turns % 2 else (400, 300))


@pytest.mark.parametrize(
    ("kind", "camera"),
    [
        ("cr2", "Canon EOS 5D"), ("nef", "NIKON D850"), ("arw", "SONY ILCE-7M3"), ("dng", "LEICA Q2"),
        ("orf", "OLYMPUS E-M1"), ("rw2", "Panasonic DC-G9"), ("raf", "FUJIFILM X-T4"), ("cr3", "Canon EOS R5"),
    ],
)  # fmt: skip
def test_raw_files_tell_the_size_of_the_photo_and_not_of_a_preview(kind: str, camera: str):
    found = look(IMAGE, files.raw(kind, (6000, 4000)))
    assert found["format"] == kind.upper()
    assert (found["width"], found["height"], found["camera"]) == (6000, 4000, camera)
    assert found["taken_at"] == "2024-05-01T12:34:56"


def test_a_cr3_has_its_tags_in_several_blocks():
    found = look(EXIF, files.cr3(gps=files.tiff_block({1: (ASCII, "S"), 2: (RATIONAL, files.degrees(33.5))})))
    assert (found["Model"], found["DateTimeOriginal"]) == ("Canon EOS R5", "2024:05:01 12:34:56")
    assert found["GPSLatitude"] == -33.5


def test_tiff_gif_bmp_svg_and_photoshop_tell_their_sizes():
    tags = {271: "Canon", 272: "Canon EOS R5", 274: 6}
    found = look(IMAGE, files.tiff((40, 30), tags=tags, xmp=files.xmp()))
    assert (found["width"], found["height"], found["frames"]) == (30, 40, 1)
    assert (found["camera"], found["title"], found["mode"]) == ("Canon EOS R5", "A title", "RGB")
    assert look(IMAGE, files.gif((40, 30), frames=3))["width"] == 40
    assert look(IMAGE, files.bmp((40, 30)))["height"] == 30
    svg = b'<svg xmlns="x" viewBox="0 0 64.4 32" height="100%"/>'
    assert look(IMAGE, svg) == {"format": "SVG", "width": 64, "height": 32, "orientation": 1}
    resources = files.iptc([(2, 5, b"Poster")])
    psd = b"8BPS\0\1" + b"\0" * 6 + b"\0\3\0\0\0\x1e\0\0\0\x28\0\x08\0\3" + b"\0\0\0\0"
    found = look(IMAGE, psd + len(resources).to_bytes(4, "big") + resources)
    assert (found["width"], found["height"], found["title"]) == (40, 30, "Poster")


def test_pages_of_a_tiff_are_counted():
    import io

    file = io.BytesIO()
    first, *rest = [files.picture((20, 20), n) for n in range(5)]
    first.save(file, "TIFF", save_all=True, append_images=rest)
    assert look(IMAGE, file.getvalue())["frames"] == 5


@pytest.mark.parametrize(
    ("maker", "model", "camera"),
    [
        ("Canon", "Canon EOS R5", "Canon EOS R5"),
        ("NIKON CORPORATION", "NIKON D850", "NIKON D850"),
        ("OLYMPUS IMAGING CORP.", "E-M1", "OLYMPUS E-M1"),
        ("SONY", "ILCE-7M3", "SONY ILCE-7M3"),
        ("Apple", "iPhone 14", "Apple iPhone 14"),
        ("EASTMAN KODAK COMPANY", "KODAK DX7590", "KODAK DX7590"),
        (None, "X100", "X100"),
        ("Canon", None, "Canon"),
        ("Canon\0garbage", "  EOS R5  ", "Canon EOS R5"),
        ("Canon", "\u00a0\x1c", "Canon"),
    ],
)
def test_the_maker_is_said_once(maker: str | None, model: str | None, camera: str):
    assert look(IMAGE, files.jpeg(exif=files.exif(maker=maker, model=model)))["camera"] == camera


@pytest.mark.parametrize(
    ("tags", "taken", "offset"),
    [
        ({0x9003: (ASCII, "2024:05:01 12:34:56"), 0x9291: (ASCII, "07")}, "2024-05-01T12:34:56.070000", None),
        ({0x9003: (ASCII, "2024-05-01T12:34:56+05:30")}, "2024-05-01T12:34:56", "+05:30"),
        ({0x9003: (ASCII, "0000:00:00 00:00:00")}, None, None),
        ({0x9003: (ASCII, "    :  :     :  :  ")}, None, None),
        ({0x9003: (ASCII, "2024:13:45 99:99:99")}, None, None),
        ({0x9003: (SHORT, [1, 2, 3])}, None, None),
        ({0x9003: (ASCII, "0000:00:00 00:00:00"), 0x9004: (ASCII, "2023:01:02 03:04:05")}, "2023-01-02T03:04:05", None),
        ({0x9003: (ASCII, "2024:05:01 12:34:56"), 0x9011: (ASCII, "nonsense")}, "2024-05-01T12:34:56", None),
        ({0x9003: (ASCII, "2024:05:01 12:34:56"), 0x9011: (ASCII, "Z")}, "2024-05-01T12:34:56", "+00:00"),
        ({0x9003: (ASCII, "2024:05:01 12:34:56"), 0x9291: (ASCII, "x1")}, "2024-05-01T12:34:56", None),
    ],
)
def test_times_are_those_of_the_cameras_clock(tags: files.Tags, taken: str | None, offset: str | None):
    found = look(IMAGE, files.jpeg(exif=files.exif(taken=None, exif=tags)))
    assert (found.get("taken_at"), found.get("taken_offset")) == (taken, offset)


def test_a_file_without_a_shutter_time_has_the_time_a_camera_wrote_it():
    plain = files.tiff_block({0x0110: (ASCII, "X100"), 0x0132: (ASCII, "2024:05:01 12:34:56")})
    assert look(IMAGE, files.jpeg(exif=plain))["taken_at"] == "2024-05-01T12:34:56"
    edited = files.tiff_block({0x0131: (ASCII, "an editor"), 0x0132: (ASCII, "2024:05:01 12:34:56")})
    assert "taken_at" not in look(IMAGE, files.jpeg(exif=edited))
    told = files.xmp(body="<photoshop:DateCreated>2021-02-03T04:05:06Z</photoshop:DateCreated>")
    found = look(IMAGE, files.jpeg(exif=edited, xmp=told))
    assert (found["taken_at"], found["taken_offset"]) == ("2021-02-03T04:05:06", "+00:00")


@pytest.mark.parametrize(
    "tags",
    [
        {2: (RATIONAL, [(400, 1), (0, 1), (0, 1)])},
        {4: (RATIONAL, [(181, 1), (0, 1), (0, 1)])},
        {2: (RATIONAL, [(1, 0), (0, 0), (0, 0)])},
        {2: (ASCII, "north of here")},
        {2: (RATIONAL, [(1, 1)] * 7)},
        {2: (RATIONAL, [(0, 1)] * 3), 4: (RATIONAL, [(0, 1)] * 3)},
    ],
    ids=["beyond the pole", "beyond the line", "divided by zero", "text", "seven parts", "nowhere"],
)
def test_a_place_that_is_nonsense_is_none(tags: files.Tags):
    data = files.jpeg(exif=files.exif(gps=(10.0, 20.0), gps_tags=tags))
    found = look(IMAGE, data)
    assert "latitude" not in found
    assert "longitude" not in found
    assert found["camera"] == "Canon EOS R5"


def test_minutes_may_carry_the_fraction_and_degrees_may_stand_alone():
    exif = files.exif(
        gps=(1, 1), gps_tags={2: (RATIONAL, [(60, 1), (10194, 1000), (0, 0)]), 4: (RATIONAL, [(245, 10)])}
    )
    found = look(IMAGE, files.jpeg(exif=exif))
    assert (found["latitude"], found["longitude"]) == (60.1699, 24.5)


def test_titles_and_authors_come_from_whoever_knows():
    iptc = files.iptc([(2, 5, b"by IPTC"), (2, 80, b"Ann"), (2, 80, b"Bob")])
    exif = files.exif(description="by EXIF", artist="Cid")
    bare = files.xmp(title=None, creators=[])
    found = look(IMAGE, files.jpeg(exif=exif, iptc=iptc, xmp=files.xmp(title="by XMP", creators=["Dan"])))
    assert (found["title"], found["author"]) == ("by XMP", "Dan")
    found = look(IMAGE, files.jpeg(exif=exif, iptc=iptc, xmp=bare))
    assert (found["title"], found["author"]) == ("by IPTC", "Ann, Bob")
    found = look(IMAGE, files.jpeg(exif=exif))
    assert (found["title"], found["author"]) == ("by EXIF", "Cid")
    found = look(IMAGE, files.jpeg(exif=files.exif(description="OLYMPUS DIGITAL CAMERA")))
    assert "title" not in found
    windows = {0x9C9B: (BYTE, list("Größe\0".encode("utf-16-le"))), 0x9C9D: (BYTE, list("Eve\0".encode("utf-16-le")))}
    found = look(IMAGE, files.jpeg(exif=files.exif(ifd0=windows)))
    assert (found["title"], found["author"]) == ("Größe", "Eve")


def test_a_broken_part_leaves_a_warning_and_everything_else():
    data = files.jpeg(exif=b"no TIFF header here", xmp=b"<x:xmpmeta", iptc=files.iptc([(2, 5, b"Name")]))
    found = look(IMAGE, data)
    assert (found["width"], found["height"], found["title"]) == (320, 240, "Name")
    assert [w.partition(":")[0] for w in found["warnings"]] == ["EXIF", "XMP is not XML"]


def test_exif_that_lies_is_read_as_far_as_it_goes():
    good = files.exif()
    loop = files.tiff_block({0x0110: (ASCII, "X100"), 0x8769: (LONG, 8)})
    many = files.tiff_block({0x0110: (ASCII, "X100")})
    many = many[:8] + (65_000).to_bytes(2, "little") + many[10:]
    beyond = files.tiff_block({0x0110: (ASCII, "X100"), 0x8769: (LONG, 1 << 30)})
    for block in (good[:-60], good[: len(good) // 2], loop, many, beyond):
        found = look(IMAGE, files.jpeg(exif=block))
        assert found["width"] == 320
        assert found["warnings"], found
        assert found["camera"] in ("Canon EOS R5", "X100")


def test_every_type_may_stand_where_another_is_meant():
    values: list[tuple[int, Any]] = [
        (BYTE, [1, 2]), (ASCII, b"\xff\xfe\x80"), (SHORT, []), (SHORT, 7), (LONG, [1 << 31] * 3), (RATIONAL, [(1, 0)]),
        (UNDEFINED, b""), (11, [float("nan")]), (12, [float("inf")]), (9, -5), (10, [(-1, -1)]), (13, 1),
    ]  # fmt: skip
    for value in values:
        main = dict.fromkeys((0x010E, 0x010F, 0x0110, 0x0112, 0x013B, 0x8769, 0x8825, 0x9C9B), value)
        gps = dict.fromkeys(range(32), value)
        exif = dict.fromkeys((0x9003, 0x9011, 0x9286, 0x9291, 0xA434, 0x927C, 0x9000), value)
        for block in (files.tiff_block(main), files.tiff_block({}, exif, gps)):
            item = MemoryItem(files.jpeg((16, 16), exif=block))
            assert IMAGE.look(item)["width"] == 16
            assert isinstance(EXIF.look(item), dict)


def test_a_picture_without_a_size_fails_with_the_reason():
    with pytest.raises(Damaged, match="ends at byte"):
        look(IMAGE, b"\xff\xd8\xff\xe0\0\x10JFIF\0")
    with pytest.raises(Damaged, match=r"at byte 8308, but the data ends at byte 1200$"):
        look(IMAGE, b"\xff\xd8\xff\xe0\x20\x70" + bytes(1194))
    with pytest.raises(Damaged, match="no JPEG marker"):
        look(IMAGE, b"\xff\xd8\xff\xe0\0\x04ab" + b"\0" * 100)
    with pytest.raises(Unsupported, match="image/jxl"):
        look(IMAGE, b"\xff\x0a" + b"\x80" * 50)
    for extractor in (EXIF, XMP, IPTC):
        assert look(extractor, b"\xff\xd8\xff\xe0\0\x10JFIF\0") == {}
        assert look(extractor, b"\xff\x0a" + b"\x80" * 50) == {}


def camera_jpeg(size: int = 1 << 20) -> bytes:
    """As cameras write them: a maker's note, a thumbnail, a colour profile, XMP and IPTC."""
    exif = shot(thumbnail=files.jpeg((320, 240), quality=95), maker_note=b"\7" * 9000)
    return files.jpeg(
        exif=exif, xmp=files.xmp() + b" " * 4000, iptc=files.iptc([(2, 5, b"Name")]), icc=b"\1" * 3144, pad_to=size
    )


def test_no_more_than_some_kilobytes_of_a_jpeg_are_read():
    for data, most in ((camera_jpeg(), 0.02), (files.jpeg(exif=shot(), pad_to=1 << 20), 0.008)):
        item = MemoryItem(data)
        for extractor in HEADERS:
            extractor.look(item)
        assert item.bytes_read <= most * len(data)
        assert len(item.reads) <= 5


def test_a_colour_profile_of_500_kb_is_stepped_over():
    item = MemoryItem(files.jpeg(exif=shot(), icc=b"\1" * 500_000, pad_to=1 << 20))
    assert IMAGE.look(item)["width"] == 320
    assert item.bytes_read < 50_000


def test_headers_cost_less_than_a_millisecond():
    """1,000 objects in a second and core, with room for reading them."""
    data = camera_jpeg()
    rounds: list[float] = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(40):
            item = MemoryItem(data, detected_type="image/jpeg")
            for extractor in (TYPE, *HEADERS):
                extractor.look(item)
        rounds.append((time.process_time() - start) / 40)
    assert min(rounds) < 0.0015


def test_fractions_of_a_second_are_kept():
    taken = datetime(2024, 5, 1, 12, 34, 56, 120_000)
    assert look(IMAGE, files.jpeg(exif=files.exif(taken=taken)))["taken_at"] == "2024-05-01T12:34:56.120000"
