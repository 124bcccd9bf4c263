"""Puffin files refer to relocated data files; everything else in them stays."""

from __future__ import annotations

import json
import struct

import pyarrow as pa
import pytest

from frazil.errors import IntegrityError, UnsupportedError
from frazil.tables.relocation.prefixes import PrefixMap, UnmappedPathError
from frazil.tables.relocation.puffin import relocate_puffin

MOVE = PrefixMap([("file:/lake/t", "s3://bucket/copy of t")])
#: A footer as Iceberg's Java library writes it, with one field that no specification knows.
FOOTER = {
    "blobs": [
        {
            "type": "deletion-vector-v1",
            "fields": [2147483645],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": 4,
            "length": 44,
            "properties": {"referenced-data-file": f"file:/lake/t/data/ä {number}.parquet", "cardinality": "3"},
            "unknown": [number],
        }
        for number in range(2)
    ],
    "properties": {"created-by": "Apache Iceberg 1.12.0"},
}


def puffin(footer: dict, blobs: bytes = b"x" * 44 + b"y" * 44, flags: int = 0) -> bytes:
    payload = json.dumps(footer).encode()
    if flags & 1:
        payload = pa.Codec("lz4").compress(payload, asbytes=True)
    return b"PFA1" + blobs + b"PFA1" + payload + struct.pack("<iI", len(payload), flags) + b"PFA1"


def footer_of(data: bytes) -> dict:
    size, flags = struct.unpack("<iI", data[-12:-4])
    assert (flags, data[-4:], data[-size - 16 : -size - 12]) == (0, b"PFA1", b"PFA1")
    return json.loads(data[-size - 12 : -12])


@pytest.mark.parametrize("flags", [0, 1], ids=["plain", "compressed"])
def test_deletion_vectors_refer_to_the_relocated_files(flags: int) -> None:
    data = puffin(FOOTER, flags=flags)
    moved = relocate_puffin(data, MOVE)
    footer = footer_of(moved)
    paths = [blob["properties"].pop("referenced-data-file") for blob in footer["blobs"]]
    assert paths == [f"s3://bucket/copy of t/data/ä {number}.parquet" for number in range(2)]
    expected = json.loads(json.dumps(FOOTER))
    for blob in expected["blobs"]:
        del blob["properties"]["referenced-data-file"]
    assert footer == expected
    assert moved[:92] == data[:92]
    assert relocate_puffin(moved, PrefixMap([("s3://bucket/copy of t", "file:/lake/t")])) == relocate_puffin(
        data, PrefixMap([("/lake", "file:/lake")])
    )


@pytest.mark.parametrize("flags", [0, 1], ids=["plain", "compressed"])
def test_a_file_without_paths_stays_as_it_is(flags: int) -> None:
    """The table's metadata has the size of such a footer."""
    statistics = {"blobs": [{"type": "apache-datasketches-theta-v1", "properties": {"ndv": "3"}}, {"type": "other"}]}
    data = puffin(statistics, flags=flags)
    assert relocate_puffin(data, MOVE) == data


def test_a_path_elsewhere_is_refused() -> None:
    with pytest.raises(UnmappedPathError, match="file:/lake/t/data"):
        relocate_puffin(puffin(FOOTER), PrefixMap([("/lake/t2", "/x")]))


def test_every_truncation_and_unknown_flags_are_refused() -> None:
    data = puffin(FOOTER)
    for end in range(len(data)):
        with pytest.raises(IntegrityError):
            relocate_puffin(data[:end], MOVE)
    for damaged in (b"PAR1" + data[4:], data[:-20] + b"}}}}}}}}" + data[-12:], puffin([]), puffin({"blobs": [3]})):  # type: ignore[arg-type]
        with pytest.raises(IntegrityError):
            relocate_puffin(damaged, MOVE)
    with pytest.raises(UnsupportedError) as refused:
        relocate_puffin(puffin(FOOTER, flags=2), MOVE)
    assert refused.value.cause == "its footer has unknown flags: 0x2"
