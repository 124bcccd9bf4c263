"""Entries of one commit, and the frames made of them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from frazil.log.batch import Batch, pack
from frazil.log.frame import Bytes, Header, Kind, pack_header, padding
from frazil.log.protocol import Ack, Level
from frazil.log.waiters import LoopWaiter, ThreadWaiter, Waiter, reject_futures, resolve_futures

#: Size limit of a packed frame of single messages; bounds what one damaged frame loses.
MAX_RUN_BYTES = 1024 * 1024


#: A message, its request id, and the future of the coroutine that published it, if any.
Single = tuple[bytes, int | None, "asyncio.Future[Ack] | None"]


class Entry:
    """One append to the log: single messages, a batch, a change of state, or only a sync."""

    singles: list[Single] | None = None
    batch: Batch | None = None
    change: Callable[[Group], bytes] | None = None
    """Makes the body of a state frame while the commit is drafted."""
    waiter: Waiter | None = None
    acknowledged: bool = False
    """Whether it was acknowledged before the write, at level `memory`."""
    offset: int = -1
    """Of its first message."""
    time_us: int = 0
    duplicate: bool = False
    error: BaseException | None = None

    def __init__(self, level: Level, size: int = 0) -> None:
        self.level = level
        self.size = size

    @classmethod
    def of_message(cls, single: Single, level: Level) -> Entry:
        entry = cls(level, len(single[0]))
        entry.singles = [single]
        return entry

    @classmethod
    def of_batch(cls, batch: Batch, level: Level) -> Entry:
        entry = cls(level, len(batch.body))
        entry.batch = batch
        return entry

    @classmethod
    def of_change(cls, change: Callable[[Group], bytes]) -> Entry:
        entry = cls(Level.disk)
        entry.change = change
        return entry

    @property
    def messages(self) -> int:
        if self.singles is not None:
            return len(self.singles)
        return self.batch.count if self.batch is not None else 0

    @property
    def calls(self) -> int:
        """The number of publishers' calls that it stands for."""
        return len(self.singles) if self.singles is not None else 1

    @property
    def can_be_refused(self) -> bool:
        """Whether the commit itself may refuse it, because of its sequence or its columns."""
        return self.batch is not None and (self.batch.is_idempotent or len(self.batch.extra) > 0)

    def outcome(self, topic: str) -> Ack | BaseException:
        """Returns the acknowledgement or error of the whole entry."""
        if self.error is not None:
            return self.error
        return Ack(topic, self.offset, self.messages, self.level, self.time_us, self.duplicate)


class Run(Entry):
    """Messages that the coroutines of one loop published in one iteration.

    One entry per message would cost more than the rest of the append.
    """

    singles: list[Single]
    is_enqueued: bool = False

    def __init__(self, first: Single, level: Level, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(level, len(first[0]))
        self.singles, self.loop = [first], loop
        self.waiter = LoopWaiter(loop)


def deliver_outcomes(
    entries: list[Entry], topic: str, own: ThreadWaiter | None, loop: asyncio.AbstractEventLoop | None
) -> None:
    """Delivers acknowledgements and errors to the waiters of entries.

    Args:
        entries: committed or failed ones.
        topic: its name.
        own: the waiter of the leader, which needs no wake-up.
        loop: the loop in whose thread this runs, if any.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
    for entry in entries:
        waiter = entry.waiter
        if isinstance(waiter, ThreadWaiter):
            waiter.outcome = entry.outcome(topic)
            if waiter is not own:
                waiter.wake()
        elif waiter is not None:
            by_loop.setdefault(waiter.loop, []).append(entry)
    for owner, delivered in by_loop.items():
        if owner is loop:
            _resolve_futures(delivered, topic)
            continue
        with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
            owner.call_soon_threadsafe(_resolve_futures, delivered, topic)


def _resolve_futures(entries: list[Entry], topic: str) -> None:
    """Resolves the futures of coroutines; runs in their loop."""
    for entry in entries:
        assert isinstance(entry.waiter, LoopWaiter)
        own = entry.waiter.future
        futures = [own] if own is not None else [future for _, _, future in entry.singles or ()]
        outcome = entry.outcome(topic)
        if isinstance(outcome, BaseException):
            reject_futures(futures, outcome)
        elif own is None:
            resolve_futures(futures, outcome)
        elif not own.done():
            own.set_result(outcome)


def group_entries(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yields adjacent single messages together, up to a size, and every other entry alone."""
    run: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.singles is None:
            if run:
                yield run
                run, size = [], 0
            yield [entry]
            continue
        if run and size + entry.size > MAX_RUN_BYTES:
            yield run
            run, size = [], 0
        run.append(entry)
        size += entry.size
    if run:
        yield run


@dataclass(slots=True)
class Group:
    """Frames that are written at once. Assigns the offsets."""

    log_id: int
    epoch: int
    synced: int
    time_us: int
    next_offset: int
    buffers: list[Bytes] = field(default_factory=list)
    size: int = 0
    headers: list[Header] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Called in reverse order if these frames do not reach the file."""

    messages: int = 0

    def renew(self, synced: int, time_us: int) -> None:
        """Updates the synced offset and the time for a commit that begins now; nothing is drafted yet."""
        self.synced, self.time_us = synced, time_us

    def add_messages(self, run: list[Entry]) -> None:
        """Drafts one packed frame of single messages."""
        singles: list[Single] = []
        for entry in run:
            entry.offset, entry.time_us = self.next_offset + len(singles), self.time_us
            singles += entry.singles or []
        payloads, request_ids, _ = zip(*singles, strict=True)
        flags, body = pack(payloads, request_ids)
        self.entries += run
        self._frame(Kind.packed, flags, len(payloads), body, zlib.crc32(body), 0, 0, -1)

    def add_batch(self, entry: Entry, batch: Batch) -> None:
        entry.offset, entry.time_us = self.next_offset, self.time_us
        self.entries.append(entry)
        self._frame(
            batch.kind, batch.flags, batch.count, batch.body, batch.crc, batch.producer_id, batch.producer_epoch,
            batch.sequence,
        )  # fmt: skip

    def add_state(self, body: bytes) -> None:
        self._frame(Kind.state, 0, 0, body, zlib.crc32(body), 0, 0, -1)

    def _frame(
        self, kind: int, flags: int, count: int, body: Bytes, crc: int, producer: int, producer_epoch: int,
        sequence: int,
    ) -> None:  # fmt: skip
        header = Header(
            kind, flags, self.log_id, self.epoch, count, self.next_offset, self.synced, self.time_us, producer,
            sequence, producer_epoch, len(body), crc,
        )  # fmt: skip
        self.buffers += [pack_header(header), body, padding(len(body))]
        self.headers.append(header)
        self.size += header.frame_size
        self.next_offset += count
        self.messages += count
