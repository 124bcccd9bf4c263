"""The order of events by dialect: sequencers as strings that compare in the order of their source.

Only within one bucket and key, and only within one dialect. None: there is no order that could be trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from frazil.content.events.model import AWS, CEPH, MINIO

_HEX: Final = re.compile(r"[0-9A-Fa-f]{1,256}").fullmatch
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WORD: Final = 16


def aws_sequence(sequencer: str) -> str | None:
    """Converts a sequencer of AWS, which compares after right-padding with zeros: strips them."""
    return sequencer.upper().rstrip("0") if _HEX(sequencer) else None


def minio_sequence(sequencer: str) -> str | None:
    """Converts a sequencer of MinIO: nanoseconds as a hexadecimal number without leading zeros."""
    return sequencer.upper().zfill(_WORD) if len(sequencer) <= _WORD and _HEX(sequencer) else None


def ceph_sequence(sequencer: str) -> str | None:
    """Converts a sequencer of Ceph: seconds and nanoseconds as little-endian 32-bit numbers."""
    if len(sequencer) != _WORD or not _HEX(sequencer):
        return None
    raw = bytes.fromhex(sequencer)
    return (raw[3::-1] + raw[:3:-1]).hex().upper()


def minio_time(sequence: str) -> datetime:
    """Returns the modification time in a sequence of `minio_sequence`."""
    return _EPOCH + timedelta(microseconds=int(sequence, 16) // 1000)


def ceph_time(sequence: str) -> datetime:
    """Returns the event time in a sequence of `ceph_sequence`."""
    return _EPOCH + timedelta(seconds=int(sequence[:8], 16), microseconds=int(sequence[8:], 16) // 1000)


_SEQUENCES: Final[dict[str, Callable[[str], str | None]]] = {
    AWS: aws_sequence,
    MINIO: minio_sequence,
    CEPH: ceph_sequence,
}


def normalize_sequencer(dialect: str, sequencer: str | None) -> str | None:
    """Converts a sequencer to a string that compares in the order of its source; None if it has no usable order."""
    if not sequencer:
        return None
    rule = _SEQUENCES.get(dialect)
    return rule(sequencer) if rule else None
