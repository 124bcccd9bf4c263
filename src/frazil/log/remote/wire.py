"""What broker and client say to each other over Arrow Flight.

- DoAction: every method of `LogAccess` but `append` and `chunks`; arguments and result are JSON.
- DoExchange with the path `[topic]`: encoded batches one way, replies the other way, in order. A message is nothing but
  Flight's `app_metadata`: 40 bytes of header and the batch's body. So it costs one round trip and no Arrow at all.
- DoPut: record batches of any Flight client. DoGet: a range of messages, as frames or as Arrow columns.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.errors import FrazilError, IntegrityError
from frazil.log.batch import Batch
from frazil.log.frame import Bytes, Kind
from frazil.log.producers import OutOfSequenceError
from frazil.log.protocol import Ack, Chunk, Level, OffsetGoneError

PROTOCOL = 1
#: Version, kind, level, flags, count, the body's CRC, producer id, sequence, producer epoch, then the header's own CRC.
_BATCH = struct.Struct("<BBBxHxxIIqqII")
_CRC_AT = _BATCH.size - 4
_REPLY = struct.Struct("<BBBxIqq")
_TAKEN, _REFUSED = 0, 1
_LEVELS: tuple[Level | None, ...] = (None, Level.memory, Level.os, Level.disk)
_KINDS = {int(kind): kind for kind in (Kind.packed, Kind.arrow)}
_NUMBER = {level: number for number, level in enumerate(_LEVELS)}

#: One column of one row: the frames of a chunk, as they lie in the segment.
FRAMES = pa.schema([pa.field("frames", pa.large_binary(), nullable=False)])


# -- batches and replies -----------------------------------------------------------------------------------------------


def pack_batch(batch: Batch, level: Level | None) -> bytes:
    head = _BATCH.pack(
        PROTOCOL, batch.kind, _NUMBER[level], batch.flags, batch.count, batch.crc,
        batch.producer_id, batch.sequence, batch.producer_epoch, 0,
    )[:_CRC_AT]  # fmt: skip
    return b"".join((head, zlib.crc32(head).to_bytes(4, "little"), batch.body))


def unpack_batch(message: Bytes) -> tuple[Batch, Level | None]:
    """The batch of a message. Its body is not copied, and not checked yet: the log does that.

    Raises:
        IntegrityError: the header is not what the client has sent.
    """
    if len(message) < _BATCH.size:
        raise IntegrityError(f"a message of {len(message)} bytes is no batch", hint="send it again")
    version, kind, level, flags, count, crc, producer_id, sequence, epoch, head_crc = _BATCH.unpack_from(message)
    view = memoryview(message)
    if zlib.crc32(view[:_CRC_AT]) != head_crc:
        raise IntegrityError("the header of a batch was damaged on its way: its CRC does not fit", hint="send it again")
    if version != PROTOCOL or kind not in _KINDS or level >= len(_LEVELS):
        raise IntegrityError(
            f"a batch of version {version}, kind {kind} and level {level} is unknown here",
            hint="the same version of Frazil on both sides",
        )
    batch = Batch(_KINDS[kind], count, view[_BATCH.size :], crc, flags, producer_id, epoch, sequence)
    return batch, _LEVELS[level]


def pack_reply(reply: Ack | FrazilError) -> bytes:
    if isinstance(reply, FrazilError):
        return bytes([_REFUSED]) + pack_error(reply)
    return _REPLY.pack(_TAKEN, _NUMBER[reply.level], reply.duplicate, reply.count, reply.offset, reply.time_us)


def unpack_reply(message: Bytes, topic: str) -> Ack:
    """The acknowledgement of a batch.

    Raises:
        FrazilError: the log has refused the batch; this is its reason.
    """
    if message[0] == _REFUSED:
        raise unpack_error(bytes(message[1:]))
    _, level, duplicate, count, offset, time_us = _REPLY.unpack_from(message)
    return Ack(topic, offset, count, _LEVELS[level] or Level.disk, time_us, bool(duplicate))


# -- chunks ------------------------------------------------------------------------------------------------------------


def pack_chunk(chunk: Chunk) -> tuple[pa.RecordBatch, bytes]:
    """A chunk as a record batch and its metadata. The frames are not copied."""
    ends = pa.py_buffer(np.array([0, chunk.data.size], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, chunk.data])
    about = {"segment_id": chunk.segment_id, "producers": {str(i): name for i, name in chunk.producers.items()}}
    return pa.RecordBatch.from_arrays([column], schema=FRAMES), to_json(about)


def unpack_chunk(batch: pa.RecordBatch, metadata: Bytes) -> Chunk:
    about = json.loads(bytes(metadata))
    data = batch.column(0)[0].as_buffer()
    return Chunk(about["segment_id"], data, {int(i): name for i, name in about["producers"].items()})


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(v) for v in value] if isinstance(value, list) else value


# -- errors ------------------------------------------------------------------------------------------------------------

_WITH_MORE: dict[type[FrazilError], str] = {OffsetGoneError: "start", OutOfSequenceError: "expected"}


def pack_error(error: FrazilError) -> bytes:
    return to_json(error.to_dict())


def unpack_error(content: bytes) -> FrazilError:
    """The same error that was raised on the other side: its class, and what that class adds."""
    given: dict[str, Any] = json.loads(content)
    kind = _kinds().get(given["error"], FrazilError)
    added = {name: given[name] for name in (_WITH_MORE.get(kind),) if name in given}
    # An empty cause, not None: how the error travelled is no cause of it.
    return kind(given["message"], cause=given["cause"] or "", hint=given["hint"], **added)


def _kinds() -> dict[str, type[FrazilError]]:
    found: dict[str, type[FrazilError]] = {}
    left: list[type[FrazilError]] = [FrazilError]
    while left:
        kind = left.pop()
        found.setdefault(kind.__name__, kind)
        left.extend(kind.__subclasses__())
    return found
