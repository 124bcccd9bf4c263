"""Compressed Arrow streams are known before they are read: a small one could fill all memory."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from frazil.api.publishing import ARROW, Publication, batch_of
from frazil.errors import IntegrityError, UsageError
from frazil.log.batch import Batch
from frazil.log.frame import Kind
from frazil.log.ipc import is_compressed


def stream_of(*columns: pa.Array, compression: str | None = None) -> bytes:
    rows = pa.record_batch(list(columns), names=[f"c{n}" if n else "payload" for n in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


PLAIN = pa.array([b"a", None, b"c"], pa.binary())
DICTIONARY = pa.array(["x", "y", "x"]).dictionary_encode()


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("columns", [(PLAIN,), (PLAIN, DICTIONARY), (PLAIN, pa.array([[1], [], None]))])
def test_compression_is_seen(compression, columns):
    assert is_compressed(stream_of(*columns, compression=compression))
    assert not is_compressed(stream_of(*columns))


def test_an_empty_stream_has_none():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("payload", pa.binary())])):
        pass
    assert not is_compressed(bytes(sink.getvalue()))


def test_what_would_fill_the_memory_is_refused_without_being_read():
    bomb = stream_of(pa.array([bytes(256 * 1024 * 1024)], pa.binary()), compression="zstd")
    assert len(bomb) < 100_000
    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated() if hasattr(pool, "total_bytes_allocated") else None
    held = pa.total_allocated_bytes()
    with pytest.raises(UsageError, match="compressed"):
        Batch(Kind.arrow, 1, bomb, zlib.crc32(bomb)).check(2**30)
    with pytest.raises(UsageError, match="compressed"):
        batch_of(ARROW, Publication(bomb))
    assert pa.total_allocated_bytes() - held < 1024 * 1024
    if before is not None:
        assert pool.total_bytes_allocated() - before < 1024 * 1024


def test_what_is_no_stream_is_told_as_before():
    good = stream_of(PLAIN)
    for bad in (b"", b"nothing of the kind", good[: len(good) // 2], good[:8] + b"\xff" * 40 + good[48:]):
        with pytest.raises(IntegrityError):
            Batch(Kind.arrow, 3, bad, zlib.crc32(bad)).check(1000)
        with pytest.raises((IntegrityError, UsageError)):
            batch_of(ARROW, Publication(bad))
