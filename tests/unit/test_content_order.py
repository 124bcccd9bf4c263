"""A canonical sequence, compared as text, orders as its source does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.content.events.order import (
    aws_sequence,
    ceph_sequence,
    ceph_time,
    minio_sequence,
    minio_time,
    normalize_sequencer,
)

_HEX = st.text("0123456789abcdefABCDEF", min_size=1, max_size=24)
_WORD = st.integers(0, 2**32 - 1)


def compare(left, right) -> int:
    return (left > right) - (left < right)


@settings(deadline=None)
@given(_HEX, _HEX)
def test_aws_pads_the_shorter_sequencer_on_the_right(left, right):
    width = max(len(left), len(right))
    told = compare(left.upper().ljust(width, "0"), right.upper().ljust(width, "0"))
    assert compare(aws_sequence(left), aws_sequence(right)) == told


@settings(deadline=None)
@given(_HEX, _HEX, st.text("0123456789abcdef", min_size=16, max_size=16))
def test_a_digest_behind_the_sequence_does_not_change_the_order(left, right, tie):
    ours, theirs = aws_sequence(left), aws_sequence(right)
    if ours != theirs:
        assert compare(f"{ours}/{tie}", f"{theirs}/f") == compare(ours, theirs)


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_minio_orders_by_the_number(left, right):
    assert compare(minio_sequence(f"{left:X}"), minio_sequence(f"{right:X}")) == compare(left, right)


@settings(deadline=None)
@given(st.tuples(_WORD, _WORD), st.tuples(_WORD, _WORD))
def test_ceph_orders_by_seconds_then_nanoseconds(left, right):
    def sequencer(time):
        return b"".join(part.to_bytes(4, "little") for part in time).hex().upper()

    assert compare(ceph_sequence(sequencer(left)), ceph_sequence(sequencer(right))) == compare(left, right)


def test_the_sequencer_of_cephs_manual_is_the_time_of_its_event():
    sequence = ceph_sequence("F7E6D75DC742D108")
    assert sequence == "5DD7E6F708D142C7"
    assert ceph_time(sequence) == datetime(2019, 11, 22, 13, 47, 35, 147931, tzinfo=UTC)


def test_a_minio_sequencer_is_the_time_of_the_object():
    assert minio_time(minio_sequence("159FB6B233B08AF0")) == datetime(2019, 5, 18, 7, 34, 32, 581122, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dialect", "sequencer"),
    [
        ("aws", "not hex"),
        ("aws", "ab\n"),
        ("aws", "-1"),
        ("aws", "٣"),
        ("aws", ""),
        ("aws", None),
        ("minio", "1" * 17),
        ("minio", "-159FB6B233B08AF0"),
        ("minio", "0x12"),
        ("ceph", "F7E6D75DC742D1"),
        ("ceph", "F7E6D75DC742D10Z"),
        ("versitygw", "1"),
        ("other", "0055AED6DCD90281E5"),
    ],
)
def test_what_has_no_order_gets_none(dialect, sequencer):
    assert normalize_sequencer(dialect, sequencer) is None
