"""Documents, sounds, films and archives made on the spot, good and bad, for the tests of `frazil.extract`."""

from __future__ import annotations

import io
import struct
import tarfile
import wave
import zipfile
from collections.abc import Mapping, Sequence
from uuid import UUID

from pypdf import PdfWriter
from pypdf.generic import ContentStream, DictionaryObject, NameObject

# ---------------------------------------------------------------- PDF


def pdf(
    *,
    pages: int = 1,
    info: Mapping[str, str] | None = None,
    texts: Sequence[str] = (),
    password: str | None = None,
    padding: int = 0,
) -> bytes:
    """A PDF with some pages; a page has one text in Helvetica; `padding` is an attachment of that many bytes."""
    writer = PdfWriter()
    for at in range(pages):
        page = writer.add_blank_page(612, 792)
        if at < len(texts):
            font = DictionaryObject(
                {
                    NameObject("/Type"): NameObject("/Font"),
                    NameObject("/Subtype"): NameObject("/Type1"),
                    NameObject("/BaseFont"): NameObject("/Helvetica"),
                }
            )
            page[NameObject("/Resources")] = DictionaryObject(
                {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
            )
            content = ContentStream(None, writer)
            lines = b" T* ".join(b"(" + line.encode("latin-1") + b") Tj" for line in texts[at].splitlines())
            content.set_data(b"BT /F1 12 Tf 14 TL 72 720 Td " + lines + b" ET")
            page[NameObject("/Contents")] = writer._add_object(content)
    if info:
        writer.add_metadata({f"/{name}": value for name, value in info.items()})
    if padding:
        writer.add_attachment("padding.bin", bytes(padding))
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


# ---------------------------------------------------------------- zip, OOXML, ODF, EPUB

CORE = """<?xml version="1.0" encoding="UTF-8"?>
<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties"
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:dcterms="http://purl.org/dc/terms/"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<dc:title>{title}</dc:title><dc:creator>Ada Lovelace</dc:creator><dc:subject>Engines</dc:subject>
<cp:keywords>loom, notes</cp:keywords><cp:lastModifiedBy>Charles</cp:lastModifiedBy>
<dcterms:created xsi:type="dcterms:W3CDTF">{created}</dcterms:created>
<dcterms:modified xsi:type="dcterms:W3CDTF">2024-05-02T08:00:00Z</dcterms:modified></cp:coreProperties>"""

APP = """<?xml version="1.0" encoding="UTF-8"?>
<Properties xmlns="http://schemas.openxmlformats.org/officeDocument/2006/extended-properties">
<Application>Microsoft Office Word</Application><Company>Analytical Engines</Company>
<Pages>3</Pages><Words>512</Words></Properties>"""

BODY = """<?xml version="1.0" encoding="UTF-8"?>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{paragraphs}</w:body></w:document>"""

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    + "]><b><title>&a11;</title></b>"
)

EXTERNAL = '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY e SYSTEM "file:///etc/passwd">]><b><title>&e;</title></b>'


def zipped(parts: Mapping[str, str | bytes], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file of some parts, in their order."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return made.getvalue()


def many_entries(count: int) -> bytes:
    """The directory of a zip with that many entries, and nothing else: zip64, as there may be more than 65,535."""
    entry = b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 8, 0, 0, 0, 10, 1000, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * count
    end = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(directory), 0)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, len(directory), 1)
    return directory + end + locator + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)


def tarred(members: Mapping[str, int], mode: str = "w") -> bytes:
    """A tar of members of so many zero bytes; `mode` as in `tarfile`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, size in members.items():
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(bytes(size)))
    return made.getvalue()


def docx(
    *,
    title: str = "Notes on the engine",
    created: str = "2024-05-01T12:34:56Z",
    paragraphs: Sequence[str] = ("The engine weaves.",),
    extra: Mapping[str, str | bytes] | None = None,
) -> bytes:
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    return zipped(
        {
            "[Content_Types].xml": "<Types/>",
            "word/document.xml": BODY.format(paragraphs=body),
            "docProps/core.xml": CORE.format(title=title, created=created),
            "docProps/app.xml": APP,
            **(extra or {}),
        }
    )


def odt(*, title: str = "Weaving", paragraphs: Sequence[str] = ("The loom weaves.",)) -> bytes:
    meta = f"""<?xml version="1.0"?><office:document-meta
 xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:meta="urn:oasis:names:tc:opendocument:xmlns:meta:1.0" xmlns:dc="http://purl.org/dc/elements/1.1/">
<office:meta><dc:title>{title}</dc:title><meta:initial-creator>Ada</meta:initial-creator><dc:creator>Charles</dc:creator>
<meta:creation-date>2024-05-01T12:34:56.123456789</meta:creation-date><dc:date>2024-05-02T08:00:00</dc:date>
<dc:language>de-DE</dc:language><meta:generator>LibreOffice/24.2</meta:generator>
<meta:document-statistic meta:page-count="7" meta:word-count="812"/></office:meta></office:document-meta>"""
    body = "".join(f"<text:p>{text}</text:p>" for text in paragraphs)
    content = f"""<?xml version="1.0"?><office:document-content
 xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:text>{body}</office:text></office:body>
</office:document-content>"""
    return zipped({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content, "meta.xml": meta})


def epub(*, chapters: Sequence[str] = ("<p>It was a dark night.</p>",)) -> bytes:
    items = "".join(f'<item id="c{i}" href="c{i}.xhtml"/>' for i in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{i}"/>' for i in range(len(chapters)))
    opf = f"""<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"
 xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>Dark</dc:title><dc:creator>Mary</dc:creator>
<dc:creator>Percy</dc:creator><dc:language>en-GB</dc:language><dc:date>1818-01-01</dc:date>
<dc:publisher>Lackington</dc:publisher><meta property="dcterms:modified">2024-05-02T08:00:00Z</meta></metadata>
<manifest>{items}</manifest><spine>{spine}</spine></package>"""
    container = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
    parts: dict[str, str | bytes] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": container,
        "OEBPS/book.opf": opf,
    }
    for i, chapter in enumerate(chapters):
        parts[f"OEBPS/c{i}.xhtml"] = f"<html><head><title>x</title></head><body>{chapter}</body></html>"
    return zipped(parts)


# ---------------------------------------------------------------- OLE


def ole(streams: Mapping[str, bytes]) -> bytes:
    """A compound file (version 3) with streams in its root; each is padded to 4,096 bytes, so none is a mini stream."""
    sector = 512
    padded = {name: data + bytes(max(0, 4096 - len(data))) for name, data in streams.items()}
    counts = {name: -(-len(data) // sector) for name, data in padded.items()}
    directory_sectors = -(-(len(padded) + 1) // 4)
    fat: list[int] = [0xFFFFFFFD]
    fat += [*range(2, directory_sectors + 1), 0xFFFFFFFE]
    starts = {}
    for name, count in counts.items():
        starts[name] = len(fat)
        fat += [*range(len(fat) + 1, len(fat) + count), 0xFFFFFFFE]
    assert len(fat) <= 128, "one sector of FAT is enough for a test"
    names = sorted(padded, key=lambda n: (len(n), n.upper()))

    def entry(name: str, kind: int, child: int, right: int, start: int, size: int) -> bytes:
        encoded = name.encode("utf-16-le") + b"\0\0"
        return (
            encoded.ljust(64, b"\0")
            + struct.pack("<HBBIII", len(encoded), kind, 1, 0xFFFFFFFF, right, child)
            + bytes(16 + 4 + 8 + 8)
            + struct.pack("<IQ", start, size)
        )

    entries = [entry("Root Entry", 5, 1 if names else 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE, 0)]
    for at, name in enumerate(names, 1):
        right = at + 1 if at < len(names) else 0xFFFFFFFF
        entries.append(entry(name, 2, 0xFFFFFFFF, right, starts[name], len(padded[name])))
    directory = b"".join(entries).ljust(directory_sectors * sector, b"\0")
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    header += struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<IIIIIIIII", 0, 1, 1, 0, 4096, 0xFFFFFFFE, 0, 0xFFFFFFFE, 0)
    header += struct.pack("<109I", 0, *[0xFFFFFFFF] * 108)
    table = struct.pack("<128I", *fat, *[0xFFFFFFFF] * (128 - len(fat)))
    data = b"".join(padded[name].ljust(counts[name] * sector, b"\0") for name in counts)
    return header + table + directory + data


def ole_properties(values: Mapping[int, tuple[int, object]]) -> bytes:
    """A property set: property → (type, value); types 30 (bytes), 3 (number), 64 (time as 100 ns since 1601)."""
    table, body = b"", b""
    base = 8 + 8 * len(values)
    for number, (kind, value) in values.items():
        table += struct.pack("<II", number, base + len(body))
        body += struct.pack("<I", kind)
        if kind == 30:
            assert isinstance(value, bytes)
            body += struct.pack("<I", len(value) + 1) + value + b"\0"
            body += bytes(-len(body) % 4)
        elif kind == 3:
            body += struct.pack("<i", value)
        else:
            body += struct.pack("<Q", value)
    section = struct.pack("<II", base + len(body), len(values)) + table + body
    return (
        struct.pack("<HHI", 0xFFFE, 0, 2)
        + bytes(16)
        + struct.pack("<I", 1)
        + bytes(16)
        + struct.pack("<I", 48)
        + section
    )


#: 2024-05-01 12:34:56 UTC, as Windows counts.
FILETIME = (1714566896 + 11644473600) * 10_000_000


def doc(*, title: bytes = b"Old notes", created: int = FILETIME) -> bytes:
    summary = ole_properties(
        {
            2: (30, title),
            4: (30, b"Ada"),
            12: (64, created),
            13: (64, FILETIME + 600_000_000),
            14: (3, 5),
            15: (3, 99),
            18: (30, b"Word 97"),
        }
    )
    return ole(
        {
            "\x05SummaryInformation": summary,
            "\x05DocumentSummaryInformation": ole_properties({15: (30, b"Analytical Engines")}),
            "WordDocument": b"x",
        }
    )


# ---------------------------------------------------------------- sounds


def wav(*, seconds: float = 1.0, rate: int = 8000) -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(int(seconds * rate) * 4))
    return made.getvalue()


def id3(frames: Mapping[str, bytes]) -> bytes:
    """An ID3v2.4 tag of raw frames."""

    def synchsafe(n: int) -> bytes:
        return bytes((n >> shift) & 0x7F for shift in (21, 14, 7, 0))

    body = b"".join(name.encode() + synchsafe(len(data)) + b"\0\0" + data for name, data in frames.items())
    return b"ID3\x04\0\0" + synchsafe(len(body)) + body


def mp3(*, frames: int = 100, tags: Mapping[str, str] | None = None, cover: bytes | None = None) -> bytes:
    """Silence at 128 kbit/s and 44,100 Hz, of 417 bytes a frame."""
    tag: dict[str, bytes] = {
        name: b"\x03" + value.encode("utf-8", "surrogatepass") for name, value in (tags or {}).items()
    }
    if cover is not None:
        tag["APIC"] = b"\0image/png\0\x03\0" + cover
    frame = b"\xff\xfb\x90\xc4" + bytes(413)
    return (id3(tag) if tag else b"") + frame * frames


# ---------------------------------------------------------------- films


def box(name: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I", len(body) + 8) + name + body


#: seconds from 1904 to 1970
EPOCH_1904 = 2082844800
MATRIX = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
TURNED = struct.pack(">9i", 0, 0x10000, 0, -0x10000, 0, 0, 0, 0, 0x40000000)


def _track(
    created: int, ident: int, seconds: int, entry: bytes, header: bytes, handler: bytes, w: int, h: int
) -> bytes:
    tkhd = box(
        b"tkhd",
        struct.pack(">IIIIII", 7, created, created, ident, 0, seconds * 1000),
        bytes(16),
        MATRIX,
        struct.pack(">II", w << 16, h << 16),
    )
    mdhd = box(b"mdhd", struct.pack(">IIIIIHH", 0, created, created, 1000, seconds * 1000, 0x55C4, 0))
    hdlr = box(b"hdlr", bytes(4), b"\0\0\0\0", handler, bytes(12), b"\0")
    dinf = box(b"dinf", box(b"dref", struct.pack(">II", 0, 1), box(b"url ", struct.pack(">I", 1))))
    samples = seconds * 25
    stbl = box(
        b"stbl",
        box(b"stsd", struct.pack(">II", 0, 1), entry),
        box(b"stts", struct.pack(">IIII", 0, 1, samples, 40)),
        box(b"stsc", struct.pack(">IIIII", 0, 1, 1, samples, 1)),
        box(b"stsz", struct.pack(">III", 0, 16, samples)),
        box(b"stco", struct.pack(">III", 0, 1, 40)),
    )
    return box(b"trak", tkhd, box(b"mdia", mdhd, hdlr, box(b"minf", header, dinf, stbl)))


def mp4(
    *,
    seconds: int = 4,
    created: int = 1714566896 + EPOCH_1904,
    location: str | None = "+48.8500+002.3500/",
    quicktime: Mapping[str, str] | None = None,
    media: int = 4096,
    front: bool = False,
    brand: bytes = b"isom",
    title: str | None = None,
) -> bytes:
    """A film of 640 × 360 with sound; `media` bytes of samples, the index before (`front`) or behind them."""
    avc1 = box(
        b"avc1",
        bytes(6),
        struct.pack(">H", 1),
        bytes(16),
        struct.pack(">HHIIIH", 640, 360, 0x480000, 0x480000, 0, 1),
        bytes(32),
        struct.pack(">HH", 24, 0xFFFF),
        box(b"avcC", bytes.fromhex("0142e01effe1000b6742e01eda0280bfe5c04401000468ce3c80")),
    )
    mp4a = box(b"mp4a", bytes(6), struct.pack(">H", 1), bytes(8), struct.pack(">HHIH", 2, 16, 0, 48000), b"\0\0")
    video = _track(created, 1, seconds, avc1, box(b"vmhd", struct.pack(">IQ", 1, 0)), b"vide", 640, 360)
    audio = _track(created, 2, seconds, mp4a, box(b"smhd", bytes(8)), b"soun", 0, 0)
    mvhd = box(
        b"mvhd",
        struct.pack(">IIIIIIH", 0, created, created, 1000, seconds * 1000, 0x10000, 0x100),
        bytes(10),
        MATRIX,
        bytes(24),
        struct.pack(">I", 3),
    )
    parts = [mvhd, video, audio]
    user = []
    if location is not None:
        text = location.encode()
        user.append(box(b"\xa9xyz", struct.pack(">HH", len(text), 0x15C7), text))
    if title is not None:
        data = box(b"\xa9nam", box(b"data", struct.pack(">II", 1, 0), title.encode()))
        hdlr = box(b"hdlr", bytes(8), b"mdirappl", bytes(9))
        user.append(box(b"meta", bytes(4), hdlr, box(b"ilst", data)))
    if user:
        parts.append(box(b"udta", *user))
    if quicktime:
        keys = box(
            b"keys",
            struct.pack(">II", 0, len(quicktime)),
            *[struct.pack(">I", len(k) + 8) + b"mdta" + k.encode() for k in quicktime],
        )
        values = [
            box(struct.pack(">I", at), box(b"data", struct.pack(">II", 1, 0), v.encode()))
            for at, v in enumerate(quicktime.values(), 1)
        ]
        hdlr = box(b"hdlr", bytes(8), b"mdta", bytes(13))
        parts.append(box(b"meta", hdlr, keys, box(b"ilst", *values)))
    moov = box(b"moov", *parts)
    ftyp = box(b"ftyp", brand, struct.pack(">I", 0x200), brand, b"mp41")
    mdat = box(b"mdat", bytes(media))
    return ftyp + moov + mdat if front else ftyp + mdat + moov


def matroska(*, title: str = "A walk", seconds: float = 2.5) -> bytes:
    """A header without a single frame."""

    def element(ident: str, *content: bytes) -> bytes:
        body = b"".join(content)
        return bytes.fromhex(ident) + struct.pack(">Q", len(body) | 1 << 56) + body

    def number(ident: str, value: int) -> bytes:
        return element(ident, struct.pack(">I", value))

    head = element(
        "1A45DFA3",
        number("4286", 1),
        number("42F7", 1),
        element("4282", b"matroska"),
        number("4287", 4),
        number("4285", 2),
    )
    info = element(
        "1549A966",
        number("2AD7B1", 1_000_000),
        element("4489", struct.pack(">d", seconds * 1000)),
        element("7BA9", title.encode()),
        element("4D80", b"frazil"),
        element("5741", b"frazil"),
        element("4461", struct.pack(">q", (1714566896 - 978307200) * 10**9)),
    )
    video = element(
        "AE",
        number("D7", 1),
        number("73C5", 1),
        number("83", 1),
        element("86", b"V_VP9"),
        element("E0", number("B0", 320), number("BA", 180)),
    )
    return head + element("18538067", info, element("1654AE6B", video))


def vorbis_comments(tags: Mapping[str, str]) -> bytes:
    items = [f"{name}={value}".encode() for name, value in tags.items()]
    return (
        struct.pack("<I", 6)
        + b"frazil"
        + struct.pack("<I", len(items))
        + b"".join(struct.pack("<I", len(item)) + item for item in items)
    )


def flac(*, tags: Mapping[str, str] | None = None, seconds: int = 3, picture: bool = False) -> bytes:
    info = bytes(10) + struct.pack(">Q", 44100 << 44 | 1 << 41 | 15 << 36 | 44100 * seconds) + bytes(16)
    blocks = [(0, info), (4, vorbis_comments(tags or {}))]
    if picture:
        blocks.append((6, bytes(64)))
    last = len(blocks) - 1
    return b"fLaC" + b"".join(
        struct.pack(">I", (0x80 if at == last else 0) << 24 | kind << 24 | len(body)) + body
        for at, (kind, body) in enumerate(blocks)
    )


def ogg(packets: Sequence[bytes], *, granule: int) -> bytes:
    """Each packet on its own page; the last page ends at `granule`."""

    def page(number: int, flags: int, packet: bytes) -> bytes:
        lacing = bytes([255] * (len(packet) // 255) + [len(packet) % 255])
        head = struct.pack("<4sBBqIIIB", b"OggS", 0, flags, granule if flags & 4 else 0, 7, number, 0, len(lacing))
        return head + lacing + packet

    pages = [page(0, 2, packets[0]), *(page(i, 0, p) for i, p in enumerate(packets[1:], 1))]
    return b"".join([*pages, page(len(packets), 4, b"x")])


def opus(*, tags: Mapping[str, str] | None = None, seconds: float = 2.0) -> bytes:
    head = b"OpusHead" + struct.pack("<BBHIhB", 1, 2, 312, 48000, 0, 0)
    return ogg([head, b"OpusTags" + vorbis_comments(tags or {})], granule=int(seconds * 48000) + 312)


def _riff(form: bytes, kind: bytes, *chunks: bytes) -> bytes:
    body = kind + b"".join(chunks)
    return form + struct.pack("<I", len(body)) + body


def _chunk(name: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


def avi(*, taken: str = "Wed May 01 12:34:56 2024") -> bytes:
    avih = _chunk(b"avih", struct.pack("<14I", 40000, 0, 0, 0, 50, 0, 1, 0, 320, 240, 0, 0, 0, 0))
    strh = _chunk(b"strh", struct.pack("<4s4sIIIIIIII", b"vids", b"MJPG", 0, 0, 0, 1, 25, 0, 50, 0), bytes(16))
    strf = _chunk(b"strf", struct.pack("<IiiHH4sIiiII", 40, 320, 240, 1, 24, b"MJPG", 0, 0, 0, 0, 0))
    header = _chunk(
        b"LIST", b"hdrl", avih, _chunk(b"LIST", b"strl", strh, strf), _chunk(b"IDIT", taken.encode() + b"\n\0")
    )
    return _riff(b"RIFF", b"AVI ", header, _chunk(b"LIST", b"INFO", _chunk(b"INAM", b"Beach\0")))


def aiff() -> bytes:
    comm = struct.pack(">hIh", 1, 22050, 16) + struct.pack(">HQ", 16383 + 15, 44100 << 48)
    body = b"AIFF" + b"COMM" + struct.pack(">I", len(comm)) + comm + b"NAME" + struct.pack(">I", 4) + b"Bell"
    return b"FORM" + struct.pack(">I", len(body)) + body


def wma() -> bytes:
    def thing(guid: str, *content: bytes) -> bytes:
        body = b"".join(content)
        return UUID(guid).bytes_le + struct.pack("<Q", len(body) + 24) + body

    told = [text.encode("utf-16-le") + b"\0\0" for text in ("Song", "Ada", "", "")]
    parts = [
        thing(
            "8CABDCA1-A947-11CF-8EE4-00C00C205365",
            bytes(16),
            struct.pack("<QQQQQQ", 0, FILETIME, 1, 50_000_000, 50_000_000, 2000),
            bytes(16),
        ),
        thing(
            "B7DC0791-A9B7-11CF-8EE6-00C00C205365",
            UUID("F8699E40-5B4D-11CF-A8FD-00805F5C442B").bytes_le,
            bytes(38),
            struct.pack("<HHIIHH", 0x161, 2, 44100, 16000, 1, 16),
        ),
        thing("75B22633-668E-11CF-A6D9-00AA0062CE6C", struct.pack("<5H", *map(len, told), 0), *told),
    ]
    body = b"".join(parts)
    head = UUID("75B22630-668E-11CF-A6D9-00AA0062CE6C").bytes_le
    return head + struct.pack("<QIH", 30 + len(body), len(parts), 0x201) + body


def aac(*, frames: int = 50) -> bytes:
    """ADTS at 44,100 Hz, stereo, of 200 bytes a frame."""
    size = 200
    head = bytes([0xFF, 0xF1, 0x50, 0x80 | size >> 11, size >> 3 & 0xFF, (size & 7) << 5 | 0x1F, 0xFC])
    return (head + bytes(size - 7)) * frames
