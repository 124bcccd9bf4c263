"""Inspects Arrow IPC messages without decoding them."""

from __future__ import annotations

import struct

import pyarrow as pa

from frazil.log.frame import Bytes

_U16, _I32, _U32 = (struct.Struct(form) for form in ("<H", "<i", "<I"))
#: Indexes of fields in Arrow's flatbuffers: Message.header, DictionaryBatch.data, RecordBatch.compression.
_HEADER, _DATA, _COMPRESSION = 2, 1, 3


def is_compressed(body: Bytes) -> bool:
    """Returns whether a stream has buffers that grow when they are read: a small one could fill all memory.

    Raises:
        pa.ArrowInvalid: the bytes are not a stream.
    """
    reader = pa.ipc.MessageReader.open_stream(body)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return False
        if message.type in ("record batch", "dictionary") and _has_compression(message):
            return True


def _has_compression(message: pa.Message) -> bool:
    metadata = memoryview(message.metadata)
    (root,) = _U32.unpack_from(metadata, 0)
    header = _table(metadata, root, _HEADER)
    if message.type == "dictionary":
        header = _table(metadata, header, _DATA)
    return _field(metadata, header, _COMPRESSION) != 0


def _table(metadata: memoryview, table: int, number: int) -> int:
    at = _field(metadata, table, number)
    return at + int(_U32.unpack_from(metadata, at)[0])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Returns the position of a field of a table; 0 if it is absent."""
    vtable = table - int(_I32.unpack_from(metadata, table)[0])
    place = 4 + 2 * number
    if place >= int(_U16.unpack_from(metadata, vtable)[0]):
        return 0
    offset = int(_U16.unpack_from(metadata, vtable + place)[0])
    return table + offset if offset else 0
