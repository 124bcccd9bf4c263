"""The frame, byte by byte."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.log.frame import (
    ALIGNMENT,
    HEADER_SIZE,
    BadFrameError,
    Header,
    Kind,
    NewerVersionError,
    check_body,
    frame_size,
    pack_header,
    padding,
    unpack_header,
    unpack_trusted,
)

HEADER = Header(
    kind=Kind.packed, flags=1, log_id=0x1122334455667788, epoch=7, count=3, base_offset=1000, synced=990,
    time_us=1_750_000_000_000_000, producer_id=42, sequence=5, producer_epoch=2, body_size=29, body_crc=0xDEADBEEF,
)  # fmt: skip


def test_a_header_is_these_80_bytes():
    written = bytes.fromhex(
        "46525a4c"  # magic: FRZL
        "01"  # version
        "01"  # kind: packed
        "0100"  # flags: request ids follow the lengths
        "8877665544332211"  # log id
        "07000000"  # epoch
        "03000000"  # count
        "e803000000000000"  # base offset 1000
        "de03000000000000"  # synced 990
        "00605ba09d370600"  # append time in microseconds
        "2a00000000000000"  # producer id 42
        "0500000000000000"  # sequence 5
        "02000000"  # producer epoch
        "1d000000"  # body size 29
        "efbeadde"  # the body's CRC32
    )
    assert pack_header(HEADER) == written + struct.pack("<I", zlib.crc32(written))
    assert HEADER_SIZE == 80


def test_the_places_of_the_fields_are_those_that_the_docs_name():
    packed = pack_header(HEADER)
    at = {
        "<4s": (0, b"FRZL"), "<B": (4, 1), "<B ": (5, 1), "<H": (6, 1), "<Q": (8, HEADER.log_id), "<I": (16, 7),
        "<I ": (20, 3), "<q": (24, 1000), "<q ": (32, 990), "<q  ": (40, HEADER.time_us), "<q   ": (48, 42),
        "<q    ": (56, 5), "<I  ": (64, 2), "<I   ": (68, 29), "<I    ": (72, 0xDEADBEEF),
    }  # fmt: skip
    for form, (position, value) in at.items():
        assert struct.unpack_from(form.strip(), packed, position)[0] == value
    assert struct.unpack_from("<I", packed, 76)[0] == zlib.crc32(packed[:76])


def test_every_single_flipped_bit_of_a_header_is_noticed():
    packed = pack_header(HEADER)
    for bit in range(8 * HEADER_SIZE):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrameError):
            unpack_header(flipped)


def test_every_shorter_header_is_cut_off():
    packed = pack_header(HEADER)
    for size in range(HEADER_SIZE):
        with pytest.raises(BadFrameError, match="cut off"):
            unpack_header(packed[:size])


def test_a_frame_of_a_newer_version_is_told_apart_from_a_bad_one():
    packed = bytearray(pack_header(HEADER))
    packed[4] = 2
    packed[76:] = struct.pack("<I", zlib.crc32(packed[:76]))
    with pytest.raises(NewerVersionError, match="newer Frazil") as told:
        unpack_header(packed)
    assert "version 2" in str(told.value.cause)


@settings(deadline=None)
@given(
    st.builds(
        Header, kind=st.integers(0, 255), flags=st.integers(0, 2**16 - 1), log_id=st.integers(0, 2**64 - 1),
        epoch=st.integers(0, 2**32 - 1), count=st.integers(0, 2**32 - 1), base_offset=st.integers(0, 2**63 - 1),
        synced=st.integers(0, 2**63 - 1), time_us=st.integers(0, 2**63 - 1), producer_id=st.integers(0, 2**63 - 1),
        sequence=st.integers(-1, 2**63 - 1), producer_epoch=st.integers(0, 2**32 - 1),
        body_size=st.integers(0, 2**32 - 1), body_crc=st.integers(0, 2**32 - 1),
    ),
    st.integers(0, 20),
)  # fmt: skip
def test_a_header_is_read_as_it_was_written_wherever_it_stands(header: Header, at: int):
    data = b"x" * at + pack_header(header)
    assert unpack_header(data, at) == header
    assert unpack_trusted(data, at) == header


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_a_body_is_padded_to_eight_bytes_and_guarded_by_its_crc(body: bytes):
    header = HEADER._replace(body_size=len(body), body_crc=zlib.crc32(body))
    frame = pack_header(header) + body + padding(len(body))
    assert len(frame) == header.frame_size == frame_size(len(body))
    assert len(frame) % ALIGNMENT == 0
    check_body(frame, 0, unpack_header(frame))
    for bit in range(8 * len(body)):
        flipped = bytearray(frame)
        flipped[HEADER_SIZE + bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrameError, match="CRC"):
            check_body(flipped, 0, header)
    for size in range(HEADER_SIZE, HEADER_SIZE + len(body)):
        with pytest.raises(BadFrameError, match="cut off"):
            check_body(frame[:size], 0, header)


def test_the_end_of_a_frame_is_its_base_and_its_count():
    assert HEADER.end_offset == 1003
