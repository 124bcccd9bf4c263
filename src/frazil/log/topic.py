"""One topic's log: append with group commit.

Whoever waits first leads: it takes all that waits, writes it in one go, syncs once, tells the others, and hands the
lead to one that came meanwhile. So no thread stands between a publisher and the disk.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from frazil.errors import FrazilError, UnavailableError, UsageError
from frazil.log import metrics
from frazil.log.access import LEVEL_OF_MODE, Ack, Level, Registration
from frazil.log.batch import IMPORTED, NO_REQUEST_ID, Batch
from frazil.log.columns import merged
from frazil.log.disk import Disk
from frazil.log.files import Files
from frazil.log.frame import Kind
from frazil.log.group import Entry, Group, pieces
from frazil.log.mark import Mark
from frazil.log.names import check_name
from frazil.log.producers import Producer, Taken
from frazil.log.segment import Segment
from frazil.log.state import State, extra_change, is_idempotent, producer_change, subscription_change
from frazil.log.waiting import Outcome, ThreadWaiter, tell
from frazil.observe.faultpoints import reach
from frazil.settings.model import LogSettings

#: Asks the topic's tables how far they have come; raises where they do not know this log.
Floor = Callable[[], int | None]
#: An event loop does its commits itself, unless the disk is slower than this.
_SLOW_SYNC_S = 0.003
_SPACE_CHECK_S = 0.5
#: Catalogs are not asked more often than this while they say no.
_PREPARE_PAUSE_S = 1.0
_PATIENCE_S = 10.0


class TopicLog:
    """The log of one topic, open in one process. Threads and event loops may use it at once."""

    def __init__(
        self, name: str, folder: Path, log_id: str, settings: LogSettings, *, disk: Disk, floor: Floor | None = None
    ) -> None:
        self.name, self.log_id = name, log_id
        self.level = LEVEL_OF_MODE[settings.sync_mode]
        self._settings, self._floor = settings, floor
        self._number = int(log_id[:16], 16)
        self.files = Files(folder, name, self._number, settings.max_file_size, disk)
        self.state: State = self.files.state
        self.epoch, self.next_offset = self.files.epoch, self.files.written
        self._skipped_to = 0
        self._last_time_us = self.files.last_time_us
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._visible = threading.Condition()
        self._preparing = threading.Lock()
        self._ready = False
        self._not_prepared: FrazilError | None = None
        self._prepare_again = 0.0
        self._leading = False
        self._leads_on: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._pending: list[Entry] = []
        self._buffered = 0
        self._next_space_check = 0.0
        self._waiting_readers = 0
        self._tally = Tally(name)
        self._group = self._new_group()

    @property
    def start(self) -> int:
        """The first offset that the log still has."""
        return self.files.start if self.files.segments else self._skipped_to

    @property
    def end(self) -> int:
        """The visible end: all below is on disk."""
        return max(self.files.synced.offset, self._skipped_to)

    def visible(self) -> tuple[list[Segment], Mark]:
        return self.files.visible()

    # -- what one can ask for --------------------------------------------------------------------------------------

    def publish(self, payload: bytes, request_id: int | None = None, level: Level | None = None) -> Ack:
        """Publishes one message, and returns when it is as safe as the level says."""
        self._check_message(payload, request_id)
        return self._submit(Entry(level or self.level, len(payload), payload, request_id))

    def publish_async(
        self, payload: bytes, request_id: int | None = None, level: Level | None = None
    ) -> Awaitable[Ack]:
        self._check_message(payload, request_id)
        return self._submit_async(Entry(level or self.level, len(payload), payload, request_id))

    def append(self, batch: Batch, level: Level | None = None) -> Ack:
        """Appends a batch; it is checked first, and taken whole or not at all."""
        self._check_batch(batch)
        return self._submit(Entry(level or self.level, len(batch.body), batch=batch))

    def append_async(self, batch: Batch, level: Level | None = None) -> Awaitable[Ack]:
        self._check_batch(batch)
        return self._submit_async(Entry(level or self.level, len(batch.body), batch=batch))

    def append_many(self, batches: list[tuple[Batch, Level | None]]) -> list[Ack | FrazilError]:
        """Appends batches in one commit; each is taken or refused by itself."""
        entries: list[Entry] = []
        for batch, level in batches:
            entry = Entry(level or self.level, len(batch.body), batch=batch)
            try:
                self._check_batch(batch)
            except FrazilError as error:
                entry.error = error
            entries.append(entry)
        asked = [e for e in entries if e.error is None]
        if asked:
            self._submit_together(asked)
        outcomes = [e.outcome(self.name) for e in entries]
        for outcome in outcomes:
            if not isinstance(outcome, Ack | FrazilError):
                raise outcome
        return [o for o in outcomes if isinstance(o, Ack | FrazilError)]

    def _submit_together(self, entries: list[Entry]) -> None:
        """Entries of one commit, with one waiter behind them all."""
        if not self._ready:
            self.prepare()
        waits = Level.disk if any(e.level is Level.disk for e in entries) else Level.os
        last = Entry(waits, waiter=ThreadWaiter())
        with self._lock:
            self._wait_for_room()
            leads = [self._enqueue(entry) for entry in (*entries, last)]
        self._wait_for(last, leads=any(leads))

    def sync(self) -> int:
        """Makes all that is written durable, and returns the visible end."""
        self._submit(Entry(Level.disk))
        return self.end

    def register(self, name: str | None) -> Registration:
        """Makes a producer known, durably."""
        if name is not None:
            check_name(name, "producer")
        made: list[Producer] = []

        def change() -> bytes:
            producer = self.state.producers.next_for(name, self._now())
            before = self.state.producers.get(producer.id)
            self._group.undo.append(lambda: self._unregister(producer, before))
            self.state.put_producer(producer)
            made.append(producer)
            return producer_change(producer)

        self._submit(Entry(Level.disk, change=change))
        return Registration(made[0].id, made[0].epoch)

    def _unregister(self, producer: Producer, before: Producer | None) -> None:
        self.state.producers.drop(producer.id)
        if before is not None:
            self.state.put_producer(before)

    def commit(self, subscription: str, offset: int) -> None:
        """Stores the position of a subscription, durably."""
        check_name(subscription, "subscription")
        if offset < 0:
            raise UsageError(f"a position is 0 or more, not {offset}")

        def change() -> bytes:
            before = self.state.subscriptions
            self._group.undo.append(lambda: setattr(self.state, "subscriptions", before))
            self.state.subscriptions = before | {subscription: offset}
            return subscription_change(subscription, offset)

        self._submit(Entry(Level.disk, change=change))

    def wait(self, offset: int, timeout: float) -> int:
        """The visible end, as soon as it lies beyond an offset, or when the timeout is over."""
        if self.end > offset or timeout <= 0:
            return self.end
        with self._visible:
            self._waiting_readers += 1
            try:
                self._visible.wait_for(lambda: self.end > offset or self._closed, timeout)
            finally:
                self._waiting_readers -= 1
        return self.end

    # -- before it is taken ----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Asks the tables, once, how far they are: offsets that they know are never given out again.

        Raises:
            UnavailableError: the catalog does not answer; without it no offset is safe to give out.
        """
        with self._preparing:
            if self._ready:
                return
            if self._not_prepared is not None and time.monotonic() < self._prepare_again:
                raise self._not_prepared
            try:
                floor = self._floor() if self._floor is not None else None
            except FrazilError as error:
                self._not_prepared, self._prepare_again = error, time.monotonic() + _PREPARE_PAUSE_S
                raise
            self.epoch += 1
            if floor is not None and floor > self.next_offset:
                self.next_offset = self._skipped_to = floor
            self._group = self._new_group()
            self._ready = True

    def _check_message(self, payload: bytes, request_id: int | None) -> None:
        """A message that cannot be packed is refused here: in a commit it would stop those beside it."""
        if not isinstance(payload, bytes) or not (request_id is None or _is_request_id(request_id)):
            raise UsageError(
                f"a message is bytes, not {type(payload).__name__}, and its request id a number of 64 bits",
                cause=f"the request id is {request_id!r}",
            )
        if len(payload) > self._settings.max_message_size:
            metrics.REFUSED.labels(self.name, "UsageError").inc()
            raise UsageError(
                f"a message of {len(payload):,} bytes is over the limit of {self._settings.max_message_size:,}",
                hint="a smaller message, or a higher log.max_message_size",
            )

    def _check_batch(self, batch: Batch) -> None:
        try:
            if batch.flags & IMPORTED and batch.kind == Kind.arrow:
                raise UsageError("a batch with times of its own comes only by a migration", hint="leave out the flag")
            batch.check(self._settings.max_message_size)
        except FrazilError as error:
            metrics.REFUSED.labels(self.name, type(error).__name__).inc()
            raise

    def _check_usable(self) -> None:
        if self.files.failed is not None:
            raise self.files.failed
        if self._closed:
            raise UnavailableError(f"the log of topic '{self.name}' is closed", hint="open it again")

    # -- wait, and lead --------------------------------------------------------------------------------------------

    def _submit(self, entry: Entry) -> Ack:
        if not self._ready:
            self.prepare()
        if entry.level is not Level.memory:
            entry.waiter = ThreadWaiter()
        with self._lock:
            self._wait_for_room()
            leads = self._enqueue(entry)
        if entry.waiter is not None:
            return self._wait_for(entry, leads=leads)
        if leads:
            self._lead()
        return Ack(self.name, -1, entry.messages, Level.memory, self._now())

    def _wait_for_room(self) -> None:
        self._check_usable()
        while self._buffered > self._settings.max_buffer:
            metrics.WAITED.labels(self.name).inc()
            self._room.wait(1.0)
            self._check_usable()

    def _wait_for(self, entry: Entry, *, leads: bool) -> Ack:
        waiter = entry.waiter
        assert isinstance(waiter, ThreadWaiter)
        if not leads:
            try:
                waiter.wait()
            except BaseException:  # Ctrl-C: the lead must not come to one who has left
                self._leave(entry, waiter)
                raise
            leads = waiter.leads
        if leads:
            self._lead(waiter)
        return waiter.result()

    def _submit_async(self, entry: Entry) -> Awaitable[Ack]:
        """A plain future where nothing has to be waited for first: a coroutine more per message is felt."""
        loop = asyncio.get_running_loop()
        if not self._ready or self._buffered > self._settings.max_buffer:
            return self._submit_later(entry, loop)
        future: asyncio.Future[Ack] = loop.create_future()
        if entry.level is Level.memory:
            future.set_result(Ack(self.name, -1, entry.messages, Level.memory, self._now()))
        else:
            entry.waiter = future
        with self._lock:
            self._check_usable()
            leads = self._enqueue(entry)
            if leads:
                self._leads_on = loop
        if leads:
            loop.call_soon(self._lead_on_loop, loop)
        return future

    async def _submit_later(self, entry: Entry, loop: asyncio.AbstractEventLoop) -> Ack:
        if not self._ready:
            await loop.run_in_executor(None, self.prepare)
        while self._buffered > self._settings.max_buffer:
            self._check_usable()
            metrics.WAITED.labels(self.name).inc()
            await asyncio.sleep(0.001)
        return await self._submit_async(entry)

    def _leave(self, entry: Entry, waiter: ThreadWaiter) -> None:
        with self._lock:
            entry.waiter = None
            leads = waiter.leads
        if leads:
            self._pass_on(0)

    def _enqueue(self, entry: Entry) -> bool:
        """Whether the caller has to lead. A thread takes over what a loop has not begun: that may be its own loop."""
        self._pending.append(entry)
        self._buffered += entry.size
        offered = self._leads_on is not None and isinstance(entry.waiter, ThreadWaiter)
        idle = entry.waiter is None and self._buffered <= self._settings.max_buffer // 2
        if idle or (self._leading and not offered):
            return False
        self._leading, self._leads_on = True, None
        return True

    def _lead_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._leads_on is not loop:  # a thread was faster
                return
            self._leads_on = None
        if self.files.sync_seconds > _SLOW_SYNC_S:
            with suppress(RuntimeError):  # the loop's threads are gone, because it is about to end
                loop.run_in_executor(None, self._lead)
                return
        self._lead(loop=loop)

    def _lead(self, own: ThreadWaiter | None = None, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        with self._lock:
            entries, self._pending = self._pending, []
        waiting = entries

        def answer(done: list[Entry], left: list[Entry]) -> None:
            nonlocal waiting
            waiting = left
            tell(_outcomes(done, self.name), own, loop)

        try:
            self._commit(entries, answer)
        except BaseException as error:  # a fault point, or Ctrl-C: nobody may wait for ever
            shut = self.files.shut(error)
            for entry in waiting:
                entry.error = error if entry.waiter is own else shut
            tell(_outcomes(waiting, self.name), own, loop)
            told = own is not None and own.error is error
            if not told and not isinstance(error, Exception):
                raise
        finally:
            self._pass_on(sum(e.size for e in entries))

    def _pass_on(self, done: int) -> None:
        """Gives the lead to one that waits, if there is one."""
        with self._lock:
            self._buffered -= done
            self._room.notify_all()
            for entry in self._pending:
                if isinstance(entry.waiter, ThreadWaiter):
                    entry.waiter.leads = True
                    entry.waiter.wake()
                    return
                if entry.waiter is not None and (loop := entry.waiter.get_loop()) is not None:
                    with suppress(RuntimeError):  # it is closed
                        loop.call_soon_threadsafe(self._lead_on_loop, loop)
                        self._leads_on = loop
                        return
            self._leading = False

    def flush(self) -> None:
        """Writes what waits at level `memory`, and what a loop should have written that has ended or stands still."""
        with self._lock:
            if not self._pending or self._closed or (self._leading and self._leads_on is None):
                return
            self._leading, self._leads_on = True, None
        self._lead()

    # -- commit ----------------------------------------------------------------------------------------------------

    def _commit(self, entries: list[Entry], answer: Callable[[list[Entry], list[Entry]], None]) -> None:
        """Writes entries, syncs if one wants that, and answers each as soon as its level is reached."""
        reach("log.commit.before")
        self._group.renew(self.end, self._now())
        for piece in pieces(entries):
            try:
                self._add(piece)
            except FrazilError as error:
                _refuse(piece, error)
                metrics.REFUSED.labels(self.name, type(error).__name__).inc(len(piece))
        self._write()
        on_disk = [e for e in entries if e.level is Level.disk and e.error is None]
        if len(on_disk) < len(entries):
            answer([e for e in entries if e.level is not Level.disk or e.error is not None], on_disk)
        if on_disk:
            try:
                self._sync()
            except FrazilError as error:
                _refuse(on_disk, error)
            answer(on_disk, [])
        reach("log.commit.after")

    def _add(self, piece: list[Entry]) -> None:
        """Drafts the frame of a piece; what it needs before it is drafted too, or a new segment begun."""
        entry = piece[0]
        size = sum(e.size for e in piece)
        if entry.payload is not None:
            self._make_room(size + 16 * len(piece))
            self._group.add_messages(piece)
        elif entry.batch is not None:
            if is_idempotent(entry.batch) and self._is_duplicate(entry, entry.batch):
                return
            drafted = self._group
            self._make_room(size)
            # If that wrote, and failed, then batches that counted as taken a moment ago are not.
            if self._group is not drafted and is_idempotent(entry.batch) and self._is_duplicate(entry, entry.batch):
                return
            self._learn_columns(entry.batch)
            self._group.add_batch(entry, entry.batch)
            if is_idempotent(entry.batch):
                self._remember(entry.batch, entry.offset)
        elif entry.change is not None:
            self._make_room(size)
            self._group.add_state(entry.change())
            self._group.entries.append(entry)

    def _is_duplicate(self, entry: Entry, batch: Batch) -> bool:
        taken = self.state.producers.judge(batch, self.name)
        if taken is None:
            return False
        entry.offset, entry.time_us, entry.duplicate = taken.offset, taken.time_us, True
        if taken.offset >= self.next_offset:  # drafted in this very group: what happens to that happens to this
            self._group.entries.append(entry)
        metrics.DUPLICATES.labels(self.name).inc()
        return True

    def _remember(self, batch: Batch, offset: int) -> None:
        producers = self.state.producers
        before = producers.get(batch.producer_id)
        assert before is not None
        kept = before.copy()
        self._group.undo.append(lambda: producers.put(kept))
        producers.take(batch.producer_id, Taken(batch.sequence, offset, batch.count, self._group.time_us))

    def _learn_columns(self, batch: Batch) -> None:
        if not len(batch.extra):
            return
        before = self.state.extra
        after = merged(before, batch.extra, self.name)
        if after != before:
            self._group.undo.append(lambda: setattr(self.state, "extra", before))
            self.state.extra = after
            self._group.add_state(extra_change(after))

    def _make_room(self, size: int) -> None:
        """Begins a segment where there is none, where this one is full, and where offsets have to be skipped."""
        self._check_space()
        if self.files.segments and self.next_offset == self.files.written and self.files.fits(self._group.size + size):
            return
        self._write()
        first = self.next_offset
        if self.files.segments and first == self.files.active.id:
            first += 1  # a segment of nothing but state: its name is taken, and an offset is cheap
            self.epoch += 1
        self.files.begin_segment(first, self.state, self.epoch, self._group.time_us)
        self.next_offset = first
        self._group = self._new_group()
        self._tell_readers()

    def _check_space(self) -> None:
        limit = self._settings.size_limit
        if self.files.size + self._group.size > limit:
            raise UnavailableError(
                f"the log of topic '{self.name}' has reached its limit of {limit:,} bytes",
                cause="its sinks have not committed enough for retention to make room",
                hint="start or repair the pipeline (frazil pipeline), or raise log.size_limit",
            )
        now = time.monotonic()
        if now >= self._next_space_check:
            free = self.files.free()
            if free < self._settings.min_free:
                raise UnavailableError(
                    f"the disk under topic '{self.name}' has only {free:,} bytes free: {self.files.folder}",
                    cause=f"log.min_free keeps {self._settings.min_free:,} bytes free",
                    hint="free some space, or lower log.min_free",
                )
            self._next_space_check = now + _SPACE_CHECK_S

    def _write(self) -> None:
        """Writes the frames drafted so far. If that fails, it is as if they had never been drafted."""
        group = self._group
        if not group.buffers:
            return
        try:
            self.files.write(group.buffers, group.headers)
        except BaseException as error:
            for undo in reversed(group.undo):
                undo()
            _refuse(group.entries, error)
            metrics.REFUSED.labels(self.name, type(error).__name__).inc(len(group.entries))
            self._group = self._new_group()
            if not isinstance(error, FrazilError):
                raise
            return
        self.next_offset = group.next_offset
        self._last_time_us = group.time_us
        self._tally.written(group)
        self._group = self._new_group()

    def _new_group(self) -> Group:
        return Group(self._number, self.epoch, self.end, self._now(), self.next_offset)

    def _now(self) -> int:
        return max(self._last_time_us, time.time_ns() // 1000)

    def _sync(self) -> None:
        self.files.sync()
        self._tally.synced(self.files.sync_seconds)
        self._tell_readers()

    def _tell_readers(self) -> None:
        if self._waiting_readers:
            with self._visible:
                self._visible.notify_all()

    def show_metrics(self) -> None:
        """Brings the metrics up to date. Not done at each commit: it would cost more than the commit."""
        self._tally.show()
        metrics.END.labels(self.name).set(self.end)
        metrics.START.labels(self.name).set(self.start)
        metrics.SIZE.labels(self.name).set(self.files.size)

    def close(self) -> None:
        """Writes and syncs what waits, then shuts. Those who come later are refused."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._room.wait_for(lambda: not self._leading or self._leads_on is not None, _PATIENCE_S)
            self._leading, self._leads_on = True, None
            self._pending.append(Entry(Level.disk))
        self._lead()
        with self._visible:
            self._visible.notify_all()
        self.show_metrics()
        self.files.close()


class Tally:
    """What a topic has counted since the metrics were last brought up to date."""

    def __init__(self, topic: str) -> None:
        self._metrics = (
            metrics.MESSAGES.labels(topic), metrics.BYTES.labels(topic), metrics.BATCHES.labels(topic),
            metrics.SYNCS.labels(topic), metrics.SYNC_SECONDS.labels(topic),
        )  # fmt: skip
        self._counts: list[float] = [0, 0, 0, 0, 0]

    def written(self, group: Group) -> None:
        counts = self._counts
        counts[0] += group.messages
        counts[1] += group.size
        counts[2] += len(group.headers)

    def synced(self, seconds: float) -> None:
        self._counts[3] += 1
        self._counts[4] += seconds

    def show(self) -> None:
        counts, self._counts = self._counts, [0, 0, 0, 0, 0]
        for metric, count in zip(self._metrics, counts, strict=True):
            metric.inc(count)


def _is_request_id(number: int) -> bool:
    return isinstance(number, int) and NO_REQUEST_ID < number < 2**63


def _refuse(entries: list[Entry], error: BaseException) -> None:
    for entry in entries:
        entry.error = error


def _outcomes(entries: list[Entry], topic: str) -> list[Outcome]:
    return [(e.waiter, e.outcome(topic)) for e in entries if e.waiter is not None]
