"""Idempotent producers: id, epoch, and a sequence that grows by one per batch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from frazil.errors import ConflictError
from frazil.log.batch import Batch

#: Batches remembered per producer, so that a retry gets the acknowledgement of the first attempt.
REMEMBERED = 64
#: Producers remembered per topic; beyond it, the least recently active one is forgotten.
MAX_PRODUCERS = 4096
#: Batches remembered per topic; beyond it, the least recently active producers keep only their last one. Each head of
#: a segment contains them all, and so does memory.
MAX_REMEMBERED = 32_768


class FencedError(ConflictError):
    """A newer producer of the same name has registered."""

    retryable = False


class UnknownProducerError(ConflictError):
    """The log does not know this producer, or has evicted it."""

    retryable = False


class OutOfSequenceError(ConflictError):
    """A batch before this one is missing. `expected` is the sequence that the log would accept."""

    retryable = False

    def __init__(self, message: str, *, expected: int = 0, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, cause=cause, hint=hint)
        self.expected = expected

    def __reduce__(self) -> tuple[Any, ...]:
        return _out_of_sequence, (self.message, self.expected, self.cause, self.hint)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"expected": self.expected}


def _out_of_sequence(message: str, expected: int, cause: str | None, hint: str | None) -> OutOfSequenceError:
    return OutOfSequenceError(message, expected=expected, cause=cause, hint=hint)


class TakenBatch(NamedTuple):
    """A batch that the log contains."""

    sequence: int
    offset: int
    messages: int
    time_us: int


class PreviousEpoch(NamedTuple):
    """What a registration reports about the previous epoch, until the new one takes its first batch."""

    epoch: int = -1
    last: int = -1
    recent: tuple[TakenBatch, ...] = ()


@dataclass(slots=True)
class Producer:
    id: int
    name: str | None
    epoch: int
    time_us: int
    last: int = -1
    recent: list[TakenBatch] = field(default_factory=list)
    before: PreviousEpoch = field(default_factory=PreviousEpoch)

    @property
    def remembered(self) -> int:
        return len(self.recent) + len(self.before.recent)

    def to_json(self) -> list[Any]:
        row = [self.id, self.name, self.epoch, self.time_us, self.last, self.recent]
        return row if self.before.epoch < 0 else [*row, self.before]

    @classmethod
    def from_json(cls, row: list[Any]) -> Producer:
        producer_id, name, epoch, time_us, last, recent, *rest = row
        before = (
            PreviousEpoch(rest[0][0], rest[0][1], tuple(TakenBatch(*t) for t in rest[0][2]))
            if rest
            else PreviousEpoch()
        )
        return cls(producer_id, name, epoch, time_us, last, [TakenBatch(*t) for t in recent], before)

    def copy(self) -> Producer:
        return Producer(self.id, self.name, self.epoch, self.time_us, self.last, list(self.recent), self.before)


class Producers:
    """The producers of one topic."""

    def __init__(self) -> None:
        #: The least recently active ones come first.
        self._by_id: dict[int, Producer] = {}
        self._by_name: dict[str, int] = {}
        self._remembered = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def put(self, producer: Producer) -> None:
        """Adds or replaces a producer, and evicts the least recently active one if there are too many."""
        replaced = self._by_id.pop(producer.id, None)
        self._remembered += producer.remembered - (replaced.remembered if replaced is not None else 0)
        self._by_id[producer.id] = producer
        if producer.name is not None:
            self._by_name[producer.name] = producer.id
        while len(self._by_id) > MAX_PRODUCERS:
            self.drop(next(iter(self._by_id)))

    def drop(self, producer_id: int) -> None:
        gone = self._by_id.pop(producer_id, None)
        if gone is None:
            return
        self._remembered -= gone.remembered
        if gone.name is not None and self._by_name.get(gone.name) == producer_id:
            del self._by_name[gone.name]

    def make_registered(self, name: str | None, time_us: int, producer_id: int | None = None) -> Producer:
        """Returns the producer that a registration creates; it takes effect with `put`.

        A known name, or the id of a producer without a name, gets the next epoch, which fences older batches.
        """
        known = self._by_id.get(producer_id or 0 if name is None else self._by_name.get(name, 0))
        if known is not None and known.name == name:
            # An epoch without batches was requested twice, because the first reply was lost.
            before = PreviousEpoch(known.epoch, known.last, tuple(known.recent)) if known.last >= 0 else known.before
            return Producer(known.id, name, known.epoch + 1, time_us, before=before)
        return Producer(secrets.randbits(62) + 1, name, 0, time_us)

    def find_duplicate(self, batch: Batch, topic: str) -> TakenBatch | None:
        """Returns what was taken before under this sequence, or None if the batch is new.

        Raises:
            FencedError, UnknownProducerError, OutOfSequenceError: the batch must not be accepted.
        """
        producer = self._by_id.get(batch.producer_id)
        if producer is None:
            raise UnknownProducerError(
                f"topic '{topic}' does not know producer {batch.producer_id}", hint="register it, then publish"
            )
        if batch.producer_epoch != producer.epoch:
            raise FencedError(
                f"producer '{producer.name or producer.id}' of topic '{topic}' has epoch {producer.epoch},"
                f" and a batch came with epoch {batch.producer_epoch}",
                cause="a newer producer has registered under the same name",
                hint="one running producer per name",
            )
        if batch.sequence <= producer.last:
            first = producer.recent[0].sequence if producer.recent else producer.last + 1
            if batch.sequence >= first:
                return producer.recent[batch.sequence - first]
            return TakenBatch(batch.sequence, -1, batch.count, producer.time_us)
        if batch.sequence != producer.last + 1:
            raise OutOfSequenceError(
                f"producer '{producer.name or producer.id}' of topic '{topic}' sent batch {batch.sequence}"
                f" where {producer.last + 1} is next",
                expected=producer.last + 1,
                hint="send the missing batches first",
            )
        return None

    def take(self, producer_id: int, taken: TakenBatch) -> None:
        """Records a batch that is in the log."""
        producer = self._by_id[producer_id] = self._by_id.pop(producer_id)
        producer.last, producer.time_us = taken.sequence, taken.time_us
        if producer.before.epoch >= 0:  # the producer has got the reply, since it uses the new epoch
            self._remembered -= len(producer.before.recent)
            producer.before = PreviousEpoch()
        producer.recent.append(taken)
        if len(producer.recent) > REMEMBERED:
            del producer.recent[0]
            return
        self._remembered += 1
        if self._remembered > MAX_REMEMBERED:
            self._evict()

    def _evict(self) -> None:
        """Forgets a quarter at once, because it scans all of them."""
        for producer in self._by_id.values():
            if self._remembered <= MAX_REMEMBERED * 3 // 4:
                return
            remembered = producer.remembered
            del producer.recent[:-1]
            producer.before = producer.before._replace(recent=producer.before.recent[-1:])
            self._remembered -= remembered - producer.remembered

    def apply_frame(self, producer_id: int, epoch: int, taken: TakenBatch) -> None:
        """Records a batch found in a frame at recovery."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = Producer(producer_id, None, epoch, taken.time_us, taken.sequence - 1)
            self.put(producer)
        if taken.sequence == producer.last + 1:
            self.take(producer_id, taken)

    def names(self, ids: Iterable[int]) -> dict[int, str]:
        found = {i: p.name for i in ids if (p := self._by_id.get(i)) is not None}
        return {i: name for i, name in found.items() if name is not None}

    def to_json(self) -> list[list[Any]]:
        return [p.to_json() for p in self._by_id.values()]
