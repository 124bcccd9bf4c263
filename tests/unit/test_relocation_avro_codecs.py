"""Blocks of Avro files are compressed as other writers do it."""

from __future__ import annotations

import lzma
import zlib

import pyarrow as pa
import pytest
import zstandard
from pyiceberg.avro.codecs import KNOWN_CODECS

from frazil.errors import UnsupportedError
from frazil.tables.relocation.avro_codecs import compress, decompress

DATA = b"a block of entries, " * 1000


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
@pytest.mark.parametrize("data", [DATA, b""], ids=["full", "empty"])
def test_a_block_comes_back(codec: str, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2"])
def test_pyiceberg_and_frazil_read_each_other(codec: str) -> None:
    other = KNOWN_CODECS[codec]  # type: ignore[index]
    assert other.decompress(compress(codec, DATA)) == DATA
    assert decompress(codec, other.compress(DATA)[0]) == DATA


def test_a_frame_need_not_say_how_much_it_holds() -> None:
    made = zstandard.ZstdCompressor(write_content_size=False)
    assert decompress("zstandard", made.compress(DATA)) == DATA


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_damage_is_noticed(codec: str) -> None:
    block = compress(codec, DATA)
    errors = (ValueError, OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
    for damaged in (b"", block[: len(block) // 2], b"\xff" * len(block)):
        try:
            assert decompress(codec, damaged) != DATA
        except errors:
            continue
    checked = bytearray(compress("snappy", DATA))
    checked[-1] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        decompress("snappy", bytes(checked))


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(UnsupportedError, match="'lzo'"):
        decompress("lzo", b"")
