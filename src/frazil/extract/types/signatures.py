"""Signatures of media types, and the usual extensions of their files."""

from __future__ import annotations

import re

#: (offset, bytes there, media type, usual extension). If several match, the longest one counts.
_TABLE: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\xff\xd8\xff", "image/jpeg", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png", "png"),
    (0, b"GIF87a", "image/gif", "gif"),
    (0, b"GIF89a", "image/gif", "gif"),
    (0, b"\xff\x0a", "image/jxl", "jxl"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "image/jxl", "jxl"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2", "jp2"),
    (0, b"\xff\x4f\xff\x51", "image/x-jp2-codestream", "j2c"),
    (0, b"8BPS", "image/vnd.adobe.photoshop", "psd"),
    (0, b"v/1\x01", "image/x-exr", "exr"),
    (0, b"#?RADIANCE", "image/vnd.radiance", "hdr"),
    (0, b"qoif", "image/qoi", "qoi"),
    (0, b"DDS ", "image/vnd-ms.dds", "dds"),
    (0, b"gimp xcf ", "image/x-xcf", "xcf"),
    (0, b"icns", "image/icns", "icns"),
    (0, b"AT&TFORM", "image/vnd.djvu", "djvu"),
    (0, b"SIMPLE  =", "image/fits", "fits"),
    (0, b"\xd7\xcd\xc6\x9a", "image/wmf", "wmf"),
    (0, b"FUJIFILMCCD-RAW", "image/x-fuji-raf", "raf"),
    (0, b"IIRO", "image/x-olympus-orf", "orf"),
    (0, b"IIRS", "image/x-olympus-orf", "orf"),
    (0, b"MMOR", "image/x-olympus-orf", "orf"),
    (0, b"IIU\0", "image/x-panasonic-rw2", "rw2"),
    (0, b"FOVb", "image/x-sigma-x3f", "x3f"),
    (0, b"\0MRM", "image/x-minolta-mrw", "mrw"),
    (128, b"DICM", "application/dicom", "dcm"),
    (0, b"%PDF-", "application/pdf", "pdf"),
    (0, b"%!PS", "application/postscript", "ps"),
    (0, b"{\\rtf", "application/rtf", "rtf"),
    (0, b"\x1f\x8b\x08", "application/gzip", "gz"),
    (0, b"BZh", "application/x-bzip2", "bz2"),
    (0, b"\xfd7zXZ\0", "application/x-xz", "xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd", "zst"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed", "7z"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar", "rar"),
    (0, b"\x04\x22\x4d\x18", "application/x-lz4", "lz4"),
    (0, b"LZIP", "application/x-lzip", "lz"),
    (0, b"\x1f\x9d", "application/x-compress", "Z"),
    (0, b"MSCF\0\0\0\0", "application/vnd.ms-cab-compressed", "cab"),
    (0, b"!<arch>\n", "application/x-archive", "a"),
    (0, b"!<arch>\ndebian-binary", "application/vnd.debian.binary-package", "deb"),
    (0, b"\xed\xab\xee\xdb", "application/x-rpm", "rpm"),
    (0, b"070701", "application/x-cpio", "cpio"),
    (257, b"ustar", "application/x-tar", "tar"),
    (0, b"ID3", "audio/mpeg", "mp3"),
    (0, b"fLaC", "audio/flac", "flac"),
    (0, b"MThd\0\0\0\x06", "audio/midi", "mid"),
    (0, b"#!AMR", "audio/amr", "amr"),
    (0, b".snd\0\0\0", "audio/basic", "au"),
    (0, b"caff\0\1", "audio/x-caf", "caf"),
    (0, b"MAC ", "audio/x-ape", "ape"),
    (0, b"wvpk", "audio/x-wavpack", "wv"),
    (0, b"DSD ", "audio/x-dsf", "dsf"),
    (0, b"\0\0\1\xba", "video/mpeg", "mpg"),
    (0, b"\0\0\1\xb3", "video/mpeg", "mpg"),
    (0, b"FLV\x01", "video/x-flv", "flv"),
    (0, b"PAR1", "application/vnd.apache.parquet", "parquet"),
    (0, b"ORC", "application/x-orc", "orc"),
    (0, b"Obj\x01", "application/vnd.apache.avro", "avro"),
    (0, b"ARROW1\0\0", "application/vnd.apache.arrow.file", "arrow"),
    (0, b"PFA1", "application/x-puffin", "puffin"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3", "sqlite"),
    (8, b"DUCK", "application/x-duckdb", "duckdb"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5", "h5"),
    (0, b"CDF\x01", "application/x-netcdf", "nc"),
    (0, b"CDF\x02", "application/x-netcdf", "nc"),
    (0, b"\x93NUMPY", "application/x-npy", "npy"),
    (0, b"GGUF", "application/x-gguf", "gguf"),
    (0, b"\x7fELF", "application/x-elf", "elf"),
    (0, b"\xcf\xfa\xed\xfe", "application/x-mach-binary", "macho"),
    (0, b"\xce\xfa\xed\xfe", "application/x-mach-binary", "macho"),
    (0, b"\0asm", "application/wasm", "wasm"),
    (0, b"dex\n", "application/vnd.android.dex", "dex"),
    (0, b"OTTO\0", "font/otf", "otf"),
    (0, b"ttcf\0", "font/collection", "ttc"),
    (0, b"wOFF", "font/woff", "woff"),
    (0, b"wOF2", "font/woff2", "woff2"),
)

#: Extensions of container and text types; the table has the others.
EXTENSIONS: dict[str, str] = {media: extension for _, _, media, extension in _TABLE} | {
    "image/webp": "webp", "image/tiff": "tif", "image/bmp": "bmp", "image/heic": "heic", "image/heif": "heif",
    "image/avif": "avif", "image/svg+xml": "svg", "image/x-portable-anymap": "pnm", "image/x-canon-cr2": "cr2",
    "image/x-canon-cr3": "cr3", "image/x-nikon-nef": "nef", "image/x-sony-arw": "arw", "image/x-adobe-dng": "dng",
    "image/x-pentax-pef": "pef", "image/x-samsung-srw": "srw", "image/emf": "emf", "image/vnd.microsoft.icon": "ico",
    "application/java-vm": "class",
    "application/zip": "zip", "application/java-archive": "jar", "application/vnd.android.package-archive": "apk",
    "application/epub+zip": "epub", "application/vnd.google-earth.kmz": "kmz",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt", "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.presentation": "odp", "application/vnd.oasis.opendocument.graphics": "odg",
    "application/msword": "doc", "application/vnd.ms-excel": "xls", "application/vnd.ms-powerpoint": "ppt",
    "application/vnd.ms-outlook": "msg", "application/x-msi": "msi", "application/x-ole-storage": "ole",
    "audio/wav": "wav", "audio/aiff": "aiff", "audio/mp4": "m4a", "audio/ogg": "ogg", "audio/aac": "aac",
    "audio/x-ms-wma": "wma", "audio/x-matroska": "mka", "video/ogg": "ogv", "video/mp4": "mp4", "video/x-m4v": "m4v",
    "video/quicktime": "mov", "video/3gpp": "3gp", "video/x-matroska": "mkv", "video/webm": "webm",
    "video/x-msvideo": "avi", "video/x-ms-wmv": "wmv", "video/x-ms-asf": "asf", "video/mp2t": "ts",
    "application/vnd.microsoft.portable-executable": "exe", "font/ttf": "ttf",
    "text/plain": "txt", "text/html": "html", "text/xml": "xml", "application/xhtml+xml": "xhtml", "text/csv": "csv",
    "text/tab-separated-values": "tsv", "text/markdown": "md", "application/json": "json",
    "application/x-ndjson": "ndjson", "application/geo+json": "geojson", "application/yaml": "yaml",
    "application/toml": "toml", "text/javascript": "js", "text/calendar": "ics", "text/vcard": "vcf",
    "message/rfc822": "eml", "application/x-pem-file": "pem", "text/x-python": "py", "text/x-shellscript": "sh",
    "text/x-diff": "diff", "application/rss+xml": "rss", "application/atom+xml": "atom",
    "application/gpx+xml": "gpx", "application/vnd.google-earth.kml+xml": "kml",
}  # fmt: skip

#: Types of texts by extension: their content does not distinguish them.
TEXT_NAMES: dict[str, str] = {
    "txt": "text/plain", "log": "text/plain", "text": "text/plain", "md": "text/markdown", "markdown": "text/markdown",
    "csv": "text/csv", "tsv": "text/tab-separated-values", "tab": "text/tab-separated-values",
    "json": "application/json", "geojson": "application/geo+json", "ipynb": "application/x-ipynb+json",
    "ndjson": "application/x-ndjson", "jsonl": "application/x-ndjson", "yaml": "application/yaml",
    "yml": "application/yaml", "toml": "application/toml", "ini": "text/plain", "cfg": "text/plain",
    "html": "text/html", "htm": "text/html", "xhtml": "application/xhtml+xml", "xml": "text/xml", "xsd": "text/xml",
    "css": "text/css", "js": "text/javascript", "mjs": "text/javascript", "ts": "text/x-typescript",
    "py": "text/x-python", "sh": "text/x-shellscript", "sql": "application/sql", "c": "text/x-c", "h": "text/x-c",
    "cpp": "text/x-c++", "cc": "text/x-c++", "hpp": "text/x-c++", "java": "text/x-java", "go": "text/x-go",
    "rs": "text/x-rust", "rb": "text/x-ruby", "php": "text/x-php", "scala": "text/x-scala", "kt": "text/x-kotlin",
    "r": "text/x-r", "tex": "text/x-tex", "rst": "text/x-rst", "srt": "application/x-subrip", "vtt": "text/vtt",
    "ics": "text/calendar", "vcf": "text/vcard", "eml": "message/rfc822", "diff": "text/x-diff", "patch": "text/x-diff",
}  # fmt: skip

#: Types without a signature: only the name decides.
BINARY_NAMES: dict[str, str] = {
    "tga": "image/x-tga", "iso": "application/x-iso9660-image", "dmg": "application/x-apple-diskimage",
    "safetensors": "application/x-safetensors", "pyc": "application/x-python-code", "lzma": "application/x-lzma",
    "br": "application/x-brotli",
}  # fmt: skip

_BY_FIRST: dict[int, list[tuple[bytes, str]]] = {}
_DEEPER: list[tuple[int, bytes, str]] = []
for _offset, _magic, _media, _ in sorted(_TABLE, key=lambda row: -len(row[1])):
    if _offset:
        _DEEPER.append((_offset, _magic, _media))
    else:
        _BY_FIRST.setdefault(_magic[0], []).append((_magic, _media))

#: Signatures that a text may start with as well: such a file must soon have a byte that no text has.
_WORDS = frozenset(magic for _, magic, _, _ in _TABLE if len(magic) < 5 and magic.replace(b" ", b"a").isalnum())
_NEVER_IN_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x80-\xff]")


def signature(head: bytes) -> str | None:
    """Returns the media type by signature, if any."""
    for magic, media in _BY_FIRST.get(head[0], ()):
        if head.startswith(magic) and (magic not in _WORDS or _NEVER_IN_TEXT.search(head, 0, 512)):
            return media
    for offset, magic, media in _DEEPER:
        if head.startswith(magic, offset):
            return media
    return None
