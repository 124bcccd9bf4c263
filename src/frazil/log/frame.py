"""The frame, which the log writes, byte by byte. docs/log-format.md describes it, and a test compares the two.

A frame is a header of 80 bytes with its own CRC, then a body with its own CRC, padded with zeros to a multiple of 8.
All numbers are little-endian.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from frazil.errors import UnsupportedError

MAGIC = b"FRZL"
VERSION = 1
HEADER = struct.Struct("<4sBBHQIIqqqqqIIII")
HEADER_SIZE = HEADER.size  # the last 4 bytes are the header's own CRC
_CRC = struct.Struct("<I")
_CRC_AT = HEADER_SIZE - _CRC.size
ALIGNMENT = 8

Bytes = bytes | bytearray | memoryview | mmap.mmap


class Kind(IntEnum):
    """The kind of a body."""

    packed = 1
    arrow = 2
    state = 3


class Header(NamedTuple):
    kind: int
    flags: int
    log_id: int
    epoch: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a header
    base_offset: int
    synced: int
    time_us: int
    producer_id: int
    sequence: int
    producer_epoch: int
    body_size: int
    body_crc: int

    @property
    def frame_size(self) -> int:
        return frame_size(self.body_size)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


class BadFrameError(ValueError):
    """The bytes are not a frame; the message says why."""


class ForeignFrameError(BadFrameError):
    """A frame of another log."""


class NewerVersionError(UnsupportedError):
    """A frame that a later version of Frazil has written. Unlike an invalid frame it is intact and must be kept."""


def frame_size(body_size: int) -> int:
    return HEADER_SIZE + body_size + -body_size % ALIGNMENT


def pack_header(h: Header) -> bytes:
    packed = HEADER.pack(
        MAGIC, VERSION, h.kind, h.flags, h.log_id, h.epoch, h.count, h.base_offset, h.synced, h.time_us,
        h.producer_id, h.sequence, h.producer_epoch, h.body_size, h.body_crc, 0,
    )  # fmt: skip
    return packed[:_CRC_AT] + _CRC.pack(zlib.crc32(packed[:_CRC_AT]))


def unpack_header(data: Bytes, at: int = 0, log_id: int | None = None) -> Header:
    """Returns the header at a position.

    Args:
        data: the bytes.
        at: the position.
        log_id: the log that it must belong to, whatever its version; None: any.

    Raises:
        BadFrameError: it is cut off, has another magic, or its CRC does not match.
        NewerVersionError: it is whole, and of a later version.
    """
    if len(data) - at < HEADER_SIZE:
        raise BadFrameError("the header is cut off")
    magic, version, *fields, crc = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise BadFrameError("no frame begins here")
    if zlib.crc32(memoryview(data)[at : at + _CRC_AT]) != crc:
        raise BadFrameError("the header's CRC does not fit")
    if log_id is not None and fields[2] != log_id:
        raise ForeignFrameError("the frame belongs to another log")
    if version > VERSION:
        raise NewerVersionError(
            "a frame of the log was written by a newer Frazil",
            cause=f"it has version {version}, and this Frazil knows up to {VERSION}",
            hint="a newer Frazil on this machine",
        )
    return Header(*fields)


def unpack_trusted(data: Bytes, at: int) -> Header:
    """Returns the header at a position that recovery has checked before, without checking its CRC."""
    return Header(*HEADER.unpack_from(data, at)[2:-1])


def check_body(data: Bytes, at: int, header: Header) -> None:
    """Raises BadFrameError if the body of the frame at a position is cut off or its CRC does not match."""
    begin = at + HEADER_SIZE
    body = memoryview(data)[begin : begin + header.body_size]
    if len(body) < header.body_size:
        raise BadFrameError("the body is cut off")
    if zlib.crc32(body) != header.body_crc:
        raise BadFrameError("the body's CRC does not fit")


def padding(body_size: int) -> bytes:
    return bytes(-body_size % ALIGNMENT)
