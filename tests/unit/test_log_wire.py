"""What broker and client say to each other: nothing is lost or changed on the way, and damage is noticed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.errors import ConflictError, FrazilError, IntegrityError, NotFoundError, UnavailableError, UsageError
from frazil.log.batch import Batch
from frazil.log.producers import FencedError, OutOfSequenceError
from frazil.log.protocol import Ack, Chunk, Level, OffsetGoneError, Span
from frazil.log.remote.wire import (
    pack_batch,
    pack_chunk,
    pack_error,
    pack_reply,
    to_json,
    unpack_batch,
    unpack_chunk,
    unpack_error,
    unpack_reply,
)

LEVELS = st.sampled_from([None, *Level])


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=50), min_size=1, max_size=20),
    LEVELS,
    st.integers(0, 2**62),
    st.integers(0, 2**31),
    st.integers(-1, 2**62),
)
def test_a_batch_arrives_as_it_was_sent(payloads, level, producer_id, epoch, sequence):
    sent = Batch.of_messages(payloads, producer_id=producer_id, producer_epoch=epoch, sequence=sequence)
    came, asked = unpack_batch(pack_batch(sent, level))
    assert (came, asked) == (sent, level)
    came.check(max_message_size=50)


def test_a_flipped_bit_anywhere_in_a_batch_is_noticed():
    message = bytearray(pack_batch(Batch.of_messages([b"one", b"two"], [7, None], producer_id=5, sequence=9), Level.os))
    for at in range(len(message)):
        for bit in range(8):
            message[at] ^= 1 << bit
            with pytest.raises(IntegrityError):
                unpack_batch(message)[0].check(1000)
            message[at] ^= 1 << bit


def test_a_batch_that_is_cut_off_anywhere_is_noticed():
    message = pack_batch(Batch.of_messages([b"one", b"two"]), None)
    for length in range(len(message)):
        with pytest.raises(IntegrityError):
            unpack_batch(message[:length])[0].check(1000)


@settings(deadline=None)
@given(
    st.integers(-1, 2**62),
    st.integers(1, 2**31),
    st.sampled_from(list(Level)),
    st.integers(0, 2**62),
    st.booleans(),
)
def test_an_acknowledgement_arrives_as_it_was_given(offset, count, level, time_us, duplicate):
    ack = Ack("orders", offset, count, level, time_us, duplicate)
    assert unpack_reply(pack_reply(ack), "orders") == ack


@pytest.mark.parametrize(
    "error",
    [
        UsageError("too large", hint="smaller"),
        NotFoundError("no topic", cause="none such"),
        OffsetGoneError("gone", start=42, cause="retention", hint="read from 42"),
        OutOfSequenceError("early", expected=7, hint="send the missing first"),
        FencedError("a newer one"),
        UnavailableError("full"),
    ],
)
def test_an_error_is_the_same_on_the_other_side(error):
    for rebuilt in (unpack_error(pack_error(error)), _refusal(pack_reply(error))):
        assert type(rebuilt) is type(error)
        assert rebuilt.to_dict() == error.to_dict()
        assert rebuilt.retryable == error.retryable


def _refusal(reply):
    with pytest.raises(FrazilError) as caught:
        unpack_reply(reply, "orders")
    return caught.value


def test_an_error_that_only_a_newer_broker_knows_is_still_an_error():
    class NewlyMadeError(ConflictError):
        pass

    content = pack_error(NewlyMadeError("it", hint="that")).replace(b"NewlyMadeError", b"NotKnownHere")
    rebuilt = unpack_error(content)
    assert type(rebuilt) is FrazilError
    assert (rebuilt.message, rebuilt.hint) == ("it", "that")


def test_a_chunk_travels_without_a_copy_of_its_frames():
    data = pa.py_buffer(b"frames" * 1000)
    batch, metadata = pack_chunk(Chunk(4096, data, {17: "billing-1"}))
    assert batch.column(0).buffers()[2].address == data.address
    came = unpack_chunk(batch, metadata)
    assert (came.segment_id, came.producers) == (4096, {17: "billing-1"})
    assert came.data.equals(data)


def test_results_are_plain_json():
    assert to_json([Span(0, 10, 500)]) == b'[{"start":0,"end":10,"size":500,"time_us":0}]'
    assert to_json(None) == b"null"
