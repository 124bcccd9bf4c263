"""`exif`, `xmp` and `iptc`: all that is written down, as plain JSON."""

from __future__ import annotations

import json

import pytest

from frazil.extract import TooMuch
from frazil.extract.images.exif import EXIF
from frazil.extract.images.image import IMAGE
from frazil.extract.images.iptc import IPTC
from frazil.extract.images.xmp import XMP
from frazil.extract.window import Damaged
from tests import extract_files as files
from tests.extract_files import ASCII, BYTE, LONG, RATIONAL, SHORT, SRATIONAL, UNDEFINED
from tests.extract_kit import MemoryItem, look


def exif_of(**tags: files.Tags) -> dict[str, object]:
    found = look(EXIF, files.jpeg(exif=files.tiff_block(**tags)))
    json.dumps(found, allow_nan=False)
    return dict(found)


def test_tags_have_names_and_numbers_are_numbers():
    found = exif_of(
        ifd0={0x010F: (ASCII, "Canon"), 0x0112: (SHORT, 6), 0xFEDC: (SHORT, 5)},
        exif={
            0x829A: (RATIONAL, [(1, 200)]),
            0x8827: (SHORT, 400),
            0x9000: (UNDEFINED, b"0232"),
            0x9101: (UNDEFINED, b"\1\2\3\0"),
            0x9204: (SRATIONAL, [(-1, 3)]),
            0xA300: (UNDEFINED, b"\3"),
            0xA432: (RATIONAL, [(24, 1), (105, 1), (4, 1), (0, 0)]),
        },
    )
    assert found == {
        "Make": "Canon",
        "Orientation": 6,
        "0xFEDC": 5,
        "ExposureTime": 0.005,
        "ISOSpeedRatings": 400,
        "ExifVersion": "0232",
        "ComponentsConfiguration": [1, 2, 3, 0],
        "ExposureBiasValue": -1 / 3,
        "FileSource": 3,
        "LensSpecification": [24, 105, 4, None],
    }


def test_gps_is_decoded():
    gps = {
        0: (BYTE, [2, 3, 0, 0]), 1: (ASCII, "S"), 2: (RATIONAL, [(33, 1), (51, 1), (3540, 100)]), 3: (ASCII, "E"),
        4: (RATIONAL, [(151, 1), (12, 1), (40, 1)]), 5: (BYTE, 1), 6: (RATIONAL, [(25, 2)]),
        7: (RATIONAL, [(1, 1), (2, 1), (35, 10)]), 27: (UNDEFINED, b"ASCII\0\0\0GPS"), 29: (ASCII, "2024:05:01"),
    }  # fmt: skip
    assert exif_of(gps=gps) == {
        "GPSVersionID": "2.3.0.0",
        "GPSLatitudeRef": "S",
        "GPSLatitude": -33.8598333,
        "GPSLongitudeRef": "E",
        "GPSLongitude": 151.2111111,
        "GPSAltitudeRef": 1,
        "GPSAltitude": -12.5,
        "GPSTimeStamp": "01:02:03.500000",
        "GPSProcessingMethod": "GPS",
        "GPSDateStamp": "2024:05:01",
    }


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"ASCII\0\0\0hello\0\0", "hello"),
        (b"UNICODE\0" + "grüß".encode("utf-16-le"), "grüß"),
        (b"UNICODE\0" + b"\xfe\xff" + "grüß".encode("utf-16-be"), "grüß"),
        (b"JIS\0\0\0\0\0" + "写真".encode("iso2022_jp"), "写真"),
        (b"\0" * 8 + "grüß".encode(), "grüß"),
        (b"plain text without a prefix", "plain text without a prefix"),
        (b"ASCII\0\0\0" + b" " * 200, None),
        (b"UNICODE\0\x00\xd8\xff", "\ufffd"),
    ],
)
def test_comments_are_read_in_their_encoding(raw: bytes, text: str | None):
    assert exif_of(exif={0x9286: (UNDEFINED, raw)}).get("UserComment") == text


def test_large_values_are_not_copied():
    found = exif_of(
        ifd0={0x0111: (LONG, list(range(500))), 0xC612: (BYTE, [1, 4, 0, 0])},
        exif={0x927C: (UNDEFINED, b"\7" * 40_000), 0xA302: (UNDEFINED, b"\7" * 5000)},
    )
    assert found == {"DNGVersion": [1, 4, 0, 0], "MakerNoteLength": 40_000}


def test_texts_that_are_no_unicode_are_still_texts():
    found = exif_of(ifd0={0x010F: (ASCII, b"Gr\xfc\xdfe\0"), 0x0110: (ASCII, "Größe".encode() + b"\0junk")})
    assert found == {"Make": "Grüße", "Model": "Größe"}


def test_xmp_becomes_lists_texts_and_structures():
    body = (
        '<xmp:Label xml:lang="en">Red</xmp:Label>'
        '<xmp:Thumbnails rdf:parseType="Resource"><xmp:width>10</xmp:width></xmp:Thumbnails>'
        '<xmp:Owner rdf:resource="http://example.org/"/>'
        '<xmp:Place><rdf:Description xmp:city="Turku"><xmp:zip>20100</xmp:zip></rdf:Description></xmp:Place>'
        '<mine:deep xmlns:mine="http://example.org/mine/"><rdf:Seq>'
        '<rdf:li rdf:parseType="Resource"><mine:a>1</mine:a></rdf:li><rdf:li mine:a="2"/></rdf:Seq></mine:deep>'
        '<dc:rights><rdf:Alt><rdf:li xml:lang="de">deutsch</rdf:li><rdf:li xml:lang="x-default">default</rdf:li>'
        "</rdf:Alt></dc:rights><dc:empty/>"
    )
    assert look(XMP, files.jpeg(xmp=files.xmp(body=body))) == {
        "photoshop": {"City": "Turku"},
        "xmp": {
            "Rating": "4",
            "Label": "Red",
            "Thumbnails": {"width": "10"},
            "Owner": "http://example.org/",
            "Place": {"city": "Turku", "zip": "20100"},
        },
        "mine": {"deep": [{"a": "1"}, {"a": "2"}]},
        "dc": {"title": "A title", "creator": ["A. Person"], "subject": ["cat", "garden"], "rights": "default"},
    }


def test_prefixes_are_the_usual_ones_whatever_the_file_calls_them():
    packet = files.xmp().replace(b"dc:", b"q:").replace(b"xmlns:dc", b"xmlns:q")
    assert look(XMP, files.jpeg(xmp=packet))["dc"]["title"] == "A title"


BOMB = b"""<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]><x>&d;</x>"""
OUTSIDE = b"""<!DOCTYPE x [<!ENTITY file SYSTEM "file:///etc/hostname">]><x>&file;</x>"""


@pytest.mark.parametrize("packet", [BOMB, OUTSIDE, BOMB.decode().encode("utf-16")], ids=["bomb", "outside", "utf-16"])
def test_xml_with_entities_is_refused(packet: bytes):
    item = MemoryItem(files.jpeg(xmp=packet))
    with pytest.raises(Damaged, match="entities is refused"):
        XMP.look(item)
    found = IMAGE.look(item)
    assert found["width"] == 320
    assert "refused" in found["warnings"][0]


def test_xmp_beyond_reason_is_too_much_and_the_picture_still_has_its_size():
    data = files.png(xmp=b"<x>" + b" " * (5 << 20) + b"</x>")
    with pytest.raises(TooMuch, match="at most"):
        look(XMP, data)
    assert look(IMAGE, data)["width"] == 320


def test_xmp_nested_without_end_is_cut_and_not_recursed_into():
    body = "<dc:a>" * 20_000 + "</dc:a>" * 20_000
    assert look(XMP, files.png(xmp=files.xmp(body=body)))["dc"]["title"] == "A title"


def test_xmp_with_a_broken_letter_is_read():
    packet = files.xmp(title="TITLE").replace(b"TITLE", b"Gr\xfc\xdfe")
    assert look(XMP, files.jpeg(xmp=packet))["dc"]["title"] == "Gr\ufffd\ufffde"


def test_a_compressed_packet_of_a_png_is_unpacked_and_a_bomb_is_not():
    import zlib

    def packed(packet: bytes) -> bytes:
        plain = files.png((16, 16))
        text = b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(packet)
        return plain[:33] + files.chunk(b"iTXt", text) + plain[33:]

    assert look(XMP, packed(files.xmp()))["dc"]["title"] == "A title"
    with pytest.raises(Damaged, match="not XML"):
        look(XMP, packed(b"<x>" + b" " * (100 << 20)))


def test_iptc_records_have_names():
    records = [(2, 0, b"\0\4"), (2, 5, b"Name"), (2, 25, b"cat"), (2, 25, b"garden"), (2, 55, b"20240501")]
    records += [(2, 60, b"123456+0200"), (2, 80, b"Ann"), (2, 120, b"two\nlines"), (3, 9, b"x"), (2, 62, b"00000000")]
    assert look(IPTC, files.jpeg(iptc=files.iptc(records))) == {
        "ObjectName": "Name",
        "Keywords": ["cat", "garden"],
        "DateCreated": "2024-05-01",
        "TimeCreated": "12:34:56+02:00",
        "By-line": ["Ann"],
        "Caption-Abstract": "two\nlines",
        "3:9": "x",
    }


def test_iptc_texts_have_several_encodings():
    assert look(IPTC, files.jpeg(iptc=files.iptc([(2, 90, "Åbo".encode())], utf8=True))) == {"City": "Åbo"}
    assert look(IPTC, files.jpeg(iptc=files.iptc([(2, 90, "Åbo".encode())]))) == {"City": "Åbo"}
    assert look(IPTC, files.jpeg(iptc=files.iptc([(2, 90, "Åbo €".encode("cp1252"))]))) == {"City": "Åbo €"}
    assert look(IPTC, files.jpeg(iptc=files.iptc([(2, 90, b"\xc5bo")], utf8=True))) == {"City": "\ufffdbo"}


def test_iptc_is_found_behind_other_resources_and_read_up_to_the_damage():
    other = b"8BIM\x04\x0c\0\0\0\0\0\x05thumb\0"
    assert look(IPTC, files.jpeg(iptc=other + files.iptc([(2, 90, b"Turku")]))) == {"City": "Turku"}
    cut = files.iptc([(2, 90, b"Turku"), (2, 5, b"Name")])[:-4]
    assert look(IPTC, files.jpeg(iptc=cut)) == {"City": "Turku"}
    extended = b"8BIM\x04\x04\0\0\0\0\0\x0b\x1c\x02\x5a\x80\x04\0\0\0\x02Rx\0"
    assert look(IPTC, files.jpeg(iptc=extended)) == {"City": "Rx"}
    endless = b"8BIM\x04\x04\0\0\0\0\0\x08\x1c\x02\x5a\xff\xff\0\0\0"
    assert look(IPTC, files.jpeg(iptc=endless)) == {}


def test_what_a_picture_does_not_have_is_empty():
    for extractor in (EXIF, XMP, IPTC):
        for make in (files.jpeg, files.png, files.webp, files.gif, files.bmp, files.heic):
            assert look(extractor, make()) == {}
