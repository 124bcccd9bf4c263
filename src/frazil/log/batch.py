"""A producer's batch: the body of one frame, before the log gives it an offset.

Two kinds. *Packed* holds plain messages: lengths, request ids, then the payloads end to end. *Arrow* holds a record
batch as the producer sent it, which may have headers and columns of its own. Neither is touched again before the disk.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import IntegrityError, UsageError
from frazil.log.columns import HEADERS, extra_columns, normalize_batch
from frazil.log.frame import ALIGNMENT, Bytes, Kind
from frazil.log.ipc import is_compressed

#: Flag of a packed body: request ids follow the lengths.
HAS_REQUEST_IDS = 1
#: Flag of an Arrow body that carries its own publish_time and producer columns (migrated from a table).
IMPORTED = 2
#: Stands for "no request id" where others of the batch have one.
NO_REQUEST_ID = -(2**63)
MAX_COUNT = 10_000_000
_NO_COLUMNS = pa.schema([])
# Looking up an enum member by its class costs more than a module global, and these are used for each batch.
_PACKED, _ARROW = Kind.packed, Kind.arrow
#: The lengths of a batch of one message, padded.
_ONE_LENGTH = struct.Struct("<I4x")
#: Payloads of one frame are read as one Arrow array, whose offsets are 32 bits wide.
MAX_BODY = 2**31 - 1


@dataclass
class Batch:
    """One batch, ready for a frame. Immutable by convention; it is not `frozen`, because that costs too much.

    A producer that wants its retries recognised sets its id, its epoch, and a sequence that grows by one per batch.
    """

    kind: Kind
    count: int
    body: Bytes
    crc: int
    flags: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    sequence: int = -1
    made_here: bool = field(default=False, init=False, compare=False, repr=False)
    """Whether its CRC was just computed in this process, so that it need not be verified."""

    @classmethod
    def of_messages(
        cls, payloads: Sequence[bytes], request_ids: Sequence[int | None] | None = None, **producer: int
    ) -> Batch:
        """Makes a batch of plain messages, without headers."""
        flags, body = pack(payloads, request_ids)
        made = cls(_PACKED, len(payloads), body, zlib.crc32(body), flags, **producer)
        made.made_here = True
        return made

    @classmethod
    def of_arrow(cls, batch: pa.RecordBatch, *, flags: int = 0, **producer: int) -> Batch:
        """Makes a batch of a record batch with a column `payload`, and optionally `request_id`, `headers` and others.

        Raises:
            UsageError: a column is missing, has a reserved name, or a type that tables cannot hold.
        """
        batch = normalize_batch(batch, imported=bool(flags & IMPORTED), stored=bool(flags & IMPORTED))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = memoryview(sink.getvalue())
        made = cls(_ARROW, batch.num_rows, body, zlib.crc32(body), flags, **producer)
        made.made_here = True
        return made

    def with_sequence(self, producer_id: int, producer_epoch: int, sequence: int) -> Batch:
        """Returns the same batch with the identity of a producer."""
        made = Batch(self.kind, self.count, self.body, self.crc, self.flags, producer_id, producer_epoch, sequence)
        made.made_here = self.made_here
        return made

    @cached_property
    def arrow(self) -> pa.RecordBatch:
        """The record batch of an Arrow body."""
        return read_arrow(self.body)

    @property
    def extra(self) -> pa.Schema:
        """The columns that are the producer's own."""
        return self._extra if self.kind == _ARROW else _NO_COLUMNS

    @cached_property
    def _extra(self) -> pa.Schema:
        return extra_columns(self.arrow.schema)

    @property
    def is_idempotent(self) -> bool:
        """Whether its producer wants retries to be recognised."""
        return self.producer_id != 0 and self.sequence >= 0

    def check(self, max_message_size: int, *, stored: bool = False) -> None:
        """Validates the batch completely, before it is acknowledged.

        Args:
            max_message_size: the limit of a payload.
            stored: it was acknowledged before, perhaps under older rules: only its form is checked.

        Raises:
            IntegrityError: the bytes are not those that the producer sent, or are not a batch.
            UsageError: a message is over the limit, or the batch is empty.
        """
        if not self.made_here and zlib.crc32(self.body) != self.crc:
            raise IntegrityError(
                f"a batch of {self.count} messages was damaged on its way: its CRC does not fit", hint="send it again"
            )
        if not 0 < self.count <= MAX_COUNT:
            raise UsageError(f"a batch has 1 to {MAX_COUNT:,} messages, not {self.count:,}")
        self._check_header()
        longest = self._longest_packed() if self.kind == _PACKED else self._longest_arrow(stored=stored)
        if longest > max_message_size:
            raise UsageError(
                f"a message of {longest:,} bytes is over the limit of {max_message_size:,}",
                hint="a smaller message, or a higher log.max_message_size",
            )

    def _check_header(self) -> None:
        """Rejects what does not fit into a frame's header before it reaches the leader of a commit."""
        if self.kind not in (_PACKED, _ARROW):
            raise UsageError(f"a batch is packed or Arrow, not of kind {int(self.kind)}")
        if len(self.body) > MAX_BODY:
            raise UsageError(f"a batch has at most {MAX_BODY:,} bytes, not {len(self.body):,}", hint="smaller batches")
        known = HAS_REQUEST_IDS if self.kind == _PACKED else IMPORTED
        fits = 0 <= self.producer_id < 2**63 and 0 <= self.producer_epoch < 2**32 and -1 <= self.sequence < 2**63
        if self.flags & ~known or not fits:
            raise UsageError("a batch has flags, or the numbers of a producer, that there cannot be")

    def _longest_packed(self) -> int:
        lengths_end, start = _packed_layout(self.count, self.flags)
        if self.count == 1 and len(self.body) >= start:
            (length,) = _ONE_LENGTH.unpack_from(self.body)
            if start + length == len(self.body):
                return int(length)
        lengths = np.frombuffer(self.body, "<u4", self.count) if len(self.body) >= lengths_end else None
        if lengths is None or start + int(lengths.sum(dtype=np.int64)) != len(self.body):
            raise IntegrityError("a packed batch does not have the length that it says", hint="send it again")
        return int(lengths.max())

    def _longest_arrow(self, *, stored: bool) -> int:
        try:
            if is_compressed(self.body):
                raise UsageError("a batch is compressed inside", hint="Arrow IPC without compression")
            batch = self.arrow
            batch.validate(full=stored)
        except (pa.ArrowException, OSError, StopIteration, UnicodeDecodeError) as error:
            raise IntegrityError("a batch is no Arrow stream of one record batch", hint="send it again") from error
        if batch.get_total_buffer_size() > len(self.body):  # dictionaries and the like, which grow when they are read
            raise UsageError("a batch is compressed inside", hint="Arrow IPC without compression")
        if batch.num_rows != self.count:
            raise IntegrityError(f"a batch says {self.count} messages and has {batch.num_rows}", hint="send it again")
        if not stored and normalize_batch(batch, imported=bool(self.flags & IMPORTED)).schema != batch.schema:
            raise UsageError("the columns of a batch are not in Frazil's types", hint="Batch.of_arrow converts them")
        return int(pc.max(pc.binary_length(batch.column("payload"))).as_py() or 0)


def pack(payloads: Sequence[bytes], request_ids: Sequence[int | None] | None = None) -> tuple[int, bytes]:
    """Returns flags and body of a packed batch.

    Raises:
        UsageError: a payload is not bytes, or the request ids are not numbers of 64 bits, one per payload.
    """
    if request_ids is not None and len(request_ids) != len(payloads):
        raise UsageError(f"there are {len(payloads)} messages and {len(request_ids)} request ids")
    try:
        return _pack(payloads, request_ids)
    except (TypeError, OverflowError, struct.error) as error:
        raise UsageError("a payload is bytes, and a request id a number of 64 bits or nothing") from error


def _pack(payloads: Sequence[bytes], request_ids: Sequence[int | None] | None) -> tuple[int, bytes]:
    if len(payloads) == 1 and (request_ids is None or request_ids[0] is None):
        return 0, b"".join((_ONE_LENGTH.pack(len(payloads[0])), payloads[0]))
    lengths = array("I", map(len, payloads)).tobytes()
    parts = [lengths, bytes(-len(lengths) % ALIGNMENT)]
    flags = 0
    if request_ids is not None and tuple(request_ids).count(None) < len(request_ids):
        flags = HAS_REQUEST_IDS
        parts.append(array("q", [NO_REQUEST_ID if r is None else r for r in request_ids]).tobytes())
    parts.extend(payloads)
    return flags, b"".join(parts)


def _packed_layout(count: int, flags: int) -> tuple[int, int]:
    """Returns where the lengths end and the payloads begin."""
    lengths_end = 4 * count
    ids = lengths_end + -lengths_end % ALIGNMENT
    return lengths_end, ids + (8 * count if flags & HAS_REQUEST_IDS else 0)


def unpack(data: Bytes, at: int, count: int, flags: int) -> tuple[Any, Any | None, int]:
    """Returns lengths, request ids and the payloads' position of the packed body at a position."""
    _, start = _packed_layout(count, flags)
    lengths = np.frombuffer(data, "<u4", count, at)
    ids = np.frombuffer(data, "<i8", count, at + start - 8 * count) if flags & HAS_REQUEST_IDS else None
    return lengths, ids, at + start


def read_arrow(body: Bytes | pa.Buffer) -> pa.RecordBatch:
    """Returns the one record batch of an Arrow body. Its buffers point into the body: nothing is copied."""
    with pa.ipc.open_stream(body) as reader:
        batch = reader.read_next_batch()
        for _ in reader:
            raise pa.ArrowInvalid("more than one record batch")
    return batch


def batch_with_headers(
    payloads: list[bytes], request_ids: list[int | None], headers: list[dict[str, str] | None], **producer: int
) -> Batch:
    """Returns an Arrow batch of messages with headers."""
    columns = {
        "payload": pa.array(payloads, pa.binary()),
        "request_id": pa.array(request_ids, pa.int64()),
        "headers": pa.array([None if h is None else list(h.items()) for h in headers], HEADERS),
    }
    return Batch.of_arrow(pa.record_batch(columns), **producer)
