"""`type`: the content tells, the name only where the content does not."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import time
import zipfile

import pytest

from frazil.extract.types.detect import TYPE
from tests import extract_files as files
from tests.extract_kit import MemoryItem, look

ODF = "application/vnd.oasis.opendocument."
OOXML = "application/vnd.openxmlformats-officedocument."


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data, zipfile.ZIP_STORED if name == "mimetype" else method)
    return out.getvalue()


def office(part: str, *, first: str = "[Content_Types].xml", filler: int = 0) -> bytes:
    noise = bytes(n * 7919 % 251 for n in range(filler))
    names = {first: b"<x/>", "docProps/app.xml": b"<y/>", "docProps/noise.bin": noise, part: b"<main/>"}
    return zipped(names | {"[Content_Types].xml": b"<Types/>"}, zipfile.ZIP_STORED)


def ole(*names: str, directory_at: int = 1) -> bytes:
    """An OLE file: header, a FAT sector, and a directory of four entries per sector."""
    sectors = [names[i : i + 4] for i in range(0, len(names), 4)]
    head = bytearray(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".ljust(512, b"\0"))
    struct.pack_into("<H", head, 30, 9)
    struct.pack_into("<I", head, 48, directory_at)
    struct.pack_into("<I", head, 76, 0)
    fat = [0xFFFFFFFD] + [0xFFFFFFFF] * 127
    for n in range(len(sectors)):
        fat[directory_at + n] = directory_at + n + 1 if n + 1 < len(sectors) else 0xFFFFFFFE
    body = struct.pack("<128I", *fat) + b"\0" * 512 * (directory_at - 1)
    for sector in sectors:
        block = b""
        for name in sector:
            text = name.encode("utf-16-le")
            block += text.ljust(64, b"\0") + struct.pack("<H", len(text) + 2) + b"\0" * 62
        body += block.ljust(512, b"\0")
    return bytes(head) + body


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    return out.getvalue()


def wav() -> bytes:
    return b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + b"\0" * 20


MP3_FRAME = b"\xff\xfb\x90\x00".ljust(417, b"\0")
ADTS_FRAME = bytes([0xFF, 0xF1, 0x50, 0x80, 0x04, 0x1F, 0xFC]).ljust(32, b"\0")
ASF = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c" + b"\0" * 14
AUDIO_STREAM = b"\x40\x9e\x69\xf8\x4d\x5b\xcf\x11\xa8\xfd\x00\x80\x5f\x5c\x44\x2b"
VIDEO_STREAM = b"\xc0\xef\x19\xbc\x4d\x5b\xcf\x11\xa8\xfd\x00\x80\x5f\x5c\x44\x2b"

KNOWN: list[tuple[str, bytes]] = [
    ("image/jpeg", files.jpeg((32, 32))),
    ("image/png", files.png((32, 32))),
    ("image/webp", files.webp((32, 32))),
    ("image/tiff", files.tiff((32, 32))),
    ("image/tiff", b"MM\0*\0\0\0\x08" + b"\0" * 20),
    ("image/gif", files.gif((32, 32))),
    ("image/bmp", files.bmp((32, 32))),
    ("image/heic", files.heic()),
    ("image/heic", files.box(b"ftyp", b"mif1", b"\0\0\0\0", b"mif1", b"heic")),
    ("image/heif", files.box(b"ftyp", b"mif1", b"\0\0\0\0", b"mif1")),
    ("image/avif", files.avif((32, 32))),
    ("image/jxl", b"\xff\x0a\xfa\x7f\x01" + b"\x80" * 20),
    ("image/jxl", b"\0\0\0\x0cJXL \r\n\x87\n" + b"\0" * 20),
    ("image/x-canon-cr2", files.raw("cr2")),
    ("image/x-canon-cr3", files.raw("cr3")),
    ("image/x-nikon-nef", files.raw("nef")),
    ("image/x-sony-arw", files.raw("arw")),
    ("image/x-adobe-dng", files.raw("dng")),
    ("image/x-fuji-raf", files.raw("raf")),
    ("image/x-olympus-orf", files.raw("orf")),
    ("image/x-panasonic-rw2", files.raw("rw2")),
    ("image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg"/>'),
    ("image/svg+xml", b"<?xml version='1.0'?>\n<!-- by hand -->\n<!DOCTYPE svg PUBLIC 'x' 'y'>\n<svg:svg width='1'/>"),
    ("application/pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
    ("application/pdf", b"\0\0junk\n%PDF-1.4\n"),
    (OOXML + "wordprocessingml.document", office("word/document.xml")),
    (OOXML + "spreadsheetml.sheet", office("xl/workbook.xml", first="_rels/.rels")),
    (OOXML + "presentationml.presentation", office("ppt/presentation.xml", first="docProps/app.xml", filler=9_000)),
    (OOXML + "spreadsheetml.sheet", office("xl/workbook.xml", first="xl/worksheets/sheet1.xml", filler=50_000)),
    (ODF + "text", zipped({"mimetype": (ODF + "text").encode(), "content.xml": b""})),
    ("application/zip", zipped({"mimetype": b"no type at all", "content.xml": b""})),
    ("application/epub+zip", zipped({"mimetype": b"application/epub+zip", "META-INF/container.xml": b""})),
    ("application/java-archive", zipped({"META-INF/MANIFEST.MF": b"x"})),
    ("application/zip", zipped({"word/notes.txt": b"a folder that is called word"})),
    ("application/zip", zipped({"photo.jpg": b"x"})),
    ("application/zip", b"PK\x05\x06" + b"\0" * 18),
    ("application/msword", ole("Root Entry", "WordDocument")),
    ("application/vnd.ms-excel", ole("Root Entry", "a", "b", "c", "d", "Workbook", directory_at=5)),
    ("application/vnd.ms-powerpoint", ole("Root Entry", "PowerPoint Document")),
    ("application/vnd.ms-outlook", ole("Root Entry", "__properties_version1.0")),
    ("application/x-ole-storage", ole("Root Entry", "Something")),
    ("application/rtf", b"{\\rtf1\\ansi hello}"),
    ("application/gzip", gzip.compress(b"abc")),
    ("application/x-bzip2", bz2.compress(b"abc")),
    ("application/x-xz", lzma.compress(b"abc")),
    ("application/zstd", b"\x28\xb5\x2f\xfd\x04\x00\x19\x00\x00abc"),
    ("application/x-7z-compressed", b"7z\xbc\xaf\x27\x1c\0\4" + b"\0" * 24),
    ("application/vnd.rar", b"Rar!\x1a\x07\x01\x00"),
    ("application/x-tar", tar()),
    ("audio/mpeg", b"ID3\x04\0\0\0\0\0\x0a" + b"\0" * 20),
    ("audio/mpeg", MP3_FRAME * 3),
    ("audio/aac", ADTS_FRAME * 3),
    ("audio/flac", b"fLaC\0\0\0\x22"),
    ("audio/ogg", b"OggS\0\2".ljust(28, b"\0") + b"\x01vorbis"),
    ("audio/ogg", b"OggS\0\2".ljust(28, b"\0") + b"OpusHead"),
    ("video/ogg", b"OggS\0\2".ljust(28, b"\0") + b"\x80theora"),
    ("audio/wav", wav()),
    ("audio/mp4", files.box(b"ftyp", b"M4A ", b"\0\0\0\0")),
    ("audio/aiff", b"FORM\0\0\0\x20AIFFCOMM"),
    ("audio/x-ms-wma", ASF + AUDIO_STREAM),
    ("video/x-ms-wmv", ASF + AUDIO_STREAM + VIDEO_STREAM),
    ("video/mp4", files.box(b"ftyp", b"isom", b"\0\0\2\0", b"isomiso2avc1mp41")),
    ("video/quicktime", files.box(b"ftyp", b"qt  ", b"\0\0\0\0")),
    ("video/quicktime", files.box(b"moov", b"\0" * 20)),
    ("video/x-matroska", b"\x1a\x45\xdf\xa3\x93\x42\x82\x88matroska"),
    ("video/webm", b"\x1a\x45\xdf\xa3\x8f\x42\x82\x84webm"),
    ("video/x-msvideo", b"RIFF\0\0\1\0AVI LIST"),
    ("video/mpeg", b"\0\0\1\xba\x44\0\4\0"),
    ("video/mp2t", (b"G\x40\0\x10".ljust(188, b"\xff")) * 3),
    ("text/html", b"<!-- a page -->\n<!DOCTYPE HTML><html>"),
    ("text/html", b"\n  <html><head>"),
    ("text/xml", b'<?xml version="1.0"?><note/>'),
    ("application/json", b'{"a": [1, 2]}'),
    ("application/json", b'[\n{"a": 1},\n' + b'{"b": 2},\n' * 1000),
    ("application/x-ndjson", b'{"a": 1}\n{"a": 2}\n{"a": 3}\n'),
    ("text/csv", b"name,age\nann,31\nbob,27\n"),
    ("text/csv", b'name;town\n"a; b";x\nbob;y\n'),
    ("text/tab-separated-values", b"name\tage\nann\t31\nbob\t27\n"),
    ("text/plain", "Grüße, wie geht es dir?\nGut, danke.\n".encode()),
    ("text/plain", "Grüße an alle".encode("latin-1")),
    ("text/plain", "wide".encode("utf-16")),
    ("text/plain", "wide without a mark".encode("utf-16-le")),
    ("text/plain", ("ü" * 4096).encode()),
    ("text/plain", b"hello world, this is text\n" * 5),
    ("text/plain", b"2024-05-01 12:34:56,123 INFO started\n" * 5),
    ("text/plain", b"ORC is a file format, and so is PAR1."),
    ("text/plain", b"{not json"),
    ("message/rfc822", b"Received: from x\nFrom: a@b.c\nSubject: hi\n\nhello\n"),
    ("text/x-python", b"#!/usr/bin/env python3\nprint()\n"),
    ("application/vnd.apache.parquet", b"PAR1\x15\x04\x15"),
    ("application/x-orc", b"ORC\x08\x03\x10"),
    ("application/vnd.apache.avro", b"Obj\x01\x04\x16avro.schema"),
    ("application/x-elf", b"\x7fELF\2\1\1"),
    ("application/java-vm", b"\xca\xfe\xba\xbe\0\0\0\x41"),
    ("application/x-mach-binary", b"\xca\xfe\xba\xbe\0\0\0\x02"),
    ("application/vnd.sqlite3", b"SQLite format 3\0\x10\0"),
    ("font/ttf", b"\0\1\0\0\0\x0c\0\x80\0\3\0\x40GSUB" + b"\0" * 40),
    ("font/otf", b"OTTO\0\x0a\0\x80"),
    ("font/woff2", b"wOF2\0\1\0\0"),
    ("application/x-empty", b""),
    ("application/octet-stream", b"\x9c\x00\x01\x02\xf3" * 50),
]  # fmt: skip


@pytest.mark.parametrize(("media", "data"), KNOWN, ids=[f"{n}-{media}" for n, (media, _) in enumerate(KNOWN)])
def test_the_content_tells_whatever_the_name_says(media: str, data: bytes):
    for key in ("folder/object", "a.weird.jpg", "a.mp4", "a.docx", "folder.pdf/noextension"):
        assert look(TYPE, data, key)["media_type"] == media, key


@pytest.mark.parametrize(
    ("key", "data", "media"),
    [
        ("README.md", b"# Title\n\ntext, and more\n", "text/markdown"),
        ("a.CSV", b"one line without anything\n", "text/csv"),
        ("a.json", b'"just a text"', "application/json"),
        ("a.yml", b"a: 1\n", "application/yaml"),
        ("a.py", b"import os\n", "text/x-python"),
        ("a.log", b"x,y\nx,y\nx,y\n", "text/plain"),
        ("a.ndjson", b'{"a": 1}\n', "application/x-ndjson"),
        ("a.tga", b"\0\0\2\0\0\0\0\0\0\0\0\0\x90\x01", "image/x-tga"),
    ],
)
def test_the_name_decides_where_the_content_does_not(key: str, data: bytes, media: str):
    assert look(TYPE, data, key) == {
        "media_type": media,
        "extension": {"a.CSV": "csv", "README.md": "md", "a.yml": "yaml", "a.log": "txt"}.get(
            key, key.rpartition(".")[2]
        ),
        "by": "name",
    }


@pytest.mark.parametrize(
    ("key", "data", "media"),
    [
        ("a.json", b"no json at all", "text/plain"),
        ("a.html", b"no markup at all", "text/plain"),
        ("a.jpg", b"\x9c\x00\x01\x02\xf3" * 50, "application/octet-stream"),
        ("a.csv", files.jpeg((16, 16)), "image/jpeg"),
    ],
)
def test_a_name_that_cannot_be_true_is_not_believed(key: str, data: bytes, media: str):
    assert look(TYPE, data, key)["media_type"] == media
    assert look(TYPE, data, key)["by"] == "content"


def test_an_encrypted_office_file_is_what_its_name_says():
    data = ole("Root Entry", "EncryptionInfo", "EncryptedPackage")
    assert look(TYPE, data, "a.xlsx")["media_type"] == OOXML + "spreadsheetml.sheet"
    assert look(TYPE, data, "a.bin")["media_type"] == "application/x-ole-storage"


def test_the_extension_is_the_usual_one_of_the_type():
    assert look(TYPE, files.jpeg((16, 16)), "photo.JPEG")["extension"] == "jpg"
    assert look(TYPE, b"\x9c\x00\x01" * 50, "photo.jpg")["extension"] is None


def test_little_is_read():
    picture = MemoryItem(files.jpeg(pad_to=1 << 20))
    assert picture.reads == [(0, 4096)]
    document = MemoryItem(office("xl/workbook.xml", first="docProps/app.xml", filler=200_000))
    assert document.bytes_read <= 4096 + 8192
    letter = MemoryItem(ole("Root Entry", *"abcdefg", "WordDocument") + b"\0" * 100_000)
    assert letter.bytes_read <= 4096 + 8 * 516


def test_every_prefix_of_every_file_has_a_type():
    for _, data in KNOWN:
        for cut in {1, 2, 3, 4, 7, 8, 9, 11, 12, 15, 16, 27, 29, 30, 31, 47, 63, 75, 79, 80, 127, 511, 512, 700, 1500}:
            assert "/" in look(TYPE, data[:cut])["media_type"]


def test_it_takes_microseconds():
    texts = [json.dumps({"a": list(range(2000))}).encode(), ("word, " * 2000).encode(), b"<!--" * 2000, b"a,b\n" * 2000]
    for data in [data for _, data in KNOWN if data] + texts:
        item = MemoryItem(data)
        # Once more where it took long: a collection of garbage is not its fault.
        assert any(seconds_for(item) < 0.002 for _ in range(3)), item.detected_type


def seconds_for(item: MemoryItem) -> float:
    start = time.process_time()
    for _ in range(20):
        TYPE.look(item)
    return (time.process_time() - start) / 20
