"""Those who wait for a commit of one topic, and who of them leads it.

Whoever waits first leads: it takes all that waits, commits it in one go, tells the others, and hands the lead to one
that came meanwhile. So no thread stands between a publisher and the disk.
"""

from __future__ import annotations

import asyncio
import math
import threading
from asyncio import _get_running_loop, get_running_loop
from collections.abc import Callable
from contextlib import suppress

from frazil.errors import FrazilError, UnavailableError
from frazil.log import metrics
from frazil.log.backpressure import BlockedCalls
from frazil.log.group import MAX_RUN_BYTES, Entry, Run, tell
from frazil.log.protocol import Ack, Level
from frazil.log.waiters import LoopWaiter, ThreadWaiter, refuse
from frazil.log.writer import Writer
from frazil.observe.logs import get_logger

#: An event loop does its commits itself, unless the disk is slower than this.
_SLOW_SYNC_S = 0.003
_LOOK_FOR_ROOM_S = 0.001
_MEMORY = Level.memory
#: Bytes of one commit, about, where more waits: those who come first need not wait for all, and make their next
#: batches while the others' are written. Larger ones bring a disk no more, and some kernels stumble over them.
_MAX_COMMIT = 1024 * 1024

log = get_logger(__name__)


class CommitQueue:
    """Threads and event loops may stand in it at once.

    Args:
        writer: commits what the leader has taken.
        max_buffer: bytes that may wait; who would go beyond, waits outside.
    """

    def __init__(self, writer: Writer, max_buffer: int) -> None:
        self._writer, self._max_buffer = writer, max_buffer
        self.topic = writer.topic
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._outside = 0
        self._leading = False
        self._leads_on: asyncio.AbstractEventLoop | None = None
        self.closed = False
        self._pending: list[Entry] = []
        #: Messages of each loop's coroutines in this turn. Only the loop's thread touches them until they stand in the
        #: line, at the end of the turn: a lock for each message would cost as much as its place in the log.
        self._gathering: dict[asyncio.AbstractEventLoop, Run] = {}
        self._buffered = 0
        #: Coroutines that wait because the buffer is full.
        self._coroutines = BlockedCalls()
        #: Something acknowledged at level `memory` was refused afterwards: those who follow wait for the write.
        self._wary = False

    @property
    def is_full(self) -> bool:
        return self._buffered > self._max_buffer

    def check_usable(self) -> None:
        if self._writer.files.failed is not None:
            raise self._writer.files.failed
        if self.closed:
            raise UnavailableError(f"the log of topic '{self.topic}' is closed", hint="open it again")

    # -- wait --------------------------------------------------------------------------------------------------------

    def submit(self, entry: Entry) -> Ack:
        """Waits in this thread until the entry is as safe as its level says."""
        if not self._goes_ahead(entry):
            return self._commit([entry], entry).result()
        self._hand_over(_get_running_loop())
        entry.acknowledged = True
        with self._lock:
            self._wait_for_room()
            leads = self._enqueue(entry)
        if leads:
            self.lead()
        return self._ack_ahead(entry)

    def commit_all(self, entries: list[Entry]) -> None:
        """Waits in this thread until entries are written, in one commit. Each has its own outcome."""
        last = entries[0]
        if len(entries) > 1:  # one waits behind them all
            last = Entry(Level.disk if any(e.level is Level.disk for e in entries) else Level.os)
            entries = [*entries, last]
        self._commit(entries, last)

    def _commit(self, entries: list[Entry], last: Entry) -> ThreadWaiter:
        """Waits in this thread until the last of these entries has its outcome."""
        self._hand_over(_get_running_loop())
        waiter = last.waiter = ThreadWaiter()
        try:
            with self._lock:
                self._wait_for_room()
                for entry in entries:
                    waiter.leads = self._enqueue(entry) or waiter.leads
            if not waiter.leads:
                waiter.wait()
        except BaseException:  # Ctrl-C: the lead must not stay with one who has left
            self._leave(last, waiter)
            raise
        if waiter.leads:
            self.lead(waiter, most=_MAX_COMMIT)
        return waiter

    def publish_async(self, payload: bytes, request_id: int | None, level: Level) -> asyncio.Future[Ack]:
        """One message of a coroutine. Most join those of the same turn of their loop: no call here more than needed."""
        loop = get_running_loop()
        run, size = self._gathering.get(loop), len(payload)
        if run is None or run.level is not level or run.size + size > MAX_RUN_BYTES:
            self._hand_over(loop)
            if self._has_to_wait(loop):
                return self._wait_outside(loop, lambda: self._join_or_gather(payload, request_id, level, loop))
            return self._gather(payload, request_id, level, loop)
        future: asyncio.Future[Ack] = loop.create_future()
        run.singles.append((payload, request_id, future))  # in one step: Ctrl-C cannot come between the two
        run.size += size
        return future

    def _join_or_gather(
        self, payload: bytes, request_id: int | None, level: Level, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[Ack]:
        """A message that waited outside: those that are let in together go together."""
        run, size = self._gathering.get(loop), len(payload)
        if run is None or run.level is not level or run.size + size > MAX_RUN_BYTES:
            return self._gather(payload, request_id, level, loop)
        future: asyncio.Future[Ack] = loop.create_future()
        run.singles.append((payload, request_id, future))
        run.size += size
        return future

    def _gather(
        self, payload: bytes, request_id: int | None, level: Level, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[Ack]:
        """A message that is the first of its loop in this turn, or one that the others cannot take with them."""
        self.check_usable()
        if level is _MEMORY and not self._wary:
            return self._submit_from(loop, Entry.of_message((payload, request_id, None), level))
        self._hand_over(loop)
        future: asyncio.Future[Ack] = loop.create_future()
        run = Run((payload, request_id, future), level, loop)
        loop.call_soon(self._end_turn, run)  # before others can join it
        self._gathering[loop] = run
        return future

    def _end_turn(self, run: Run) -> None:
        """Puts what has gathered into the line, and commits it if nobody else does."""
        if self._gathering.get(run.loop) is run:
            del self._gathering[run.loop]
        if not run.in_line and self._enqueue_run(run):
            self._lead_from(run.loop)

    def _hand_over(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Puts what this thread's loop has gathered into the line before its turn ends: what follows comes after it."""
        run = self._gathering.pop(loop, None) if loop is not None else None
        if run is not None:
            self._enqueue_run(run, later=True)

    def _enqueue_run(self, run: Run, *, later: bool = False) -> bool:
        """Whether its loop has to lead: now, or `later`, when the loop comes to it, if no thread is faster.

        Its messages are refused where the log is closed or shut: nobody may come in line behind the last commit.
        """
        run.in_line = True
        try:
            with self._lock:
                self.check_usable()
                leads = self._enqueue(run)
                if leads and later:
                    self._offer_lead(run.loop)
        except FrazilError as error:
            refuse([future for _, _, future in run.singles], error)
            return False
        return leads

    def _offer_lead(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leads_on = loop
        loop.call_soon(self._lead_on_loop, loop)

    def submit_async(self, entry: Entry) -> asyncio.Future[Ack]:
        """What a coroutine wants in the log, other than to wait for a single message."""
        loop = get_running_loop()
        self._hand_over(loop)
        if self._has_to_wait(loop):
            return self._wait_outside(loop, lambda: self._submit_from(loop, entry))
        return self._submit_from(loop, entry)

    def _submit_from(self, loop: asyncio.AbstractEventLoop, entry: Entry) -> asyncio.Future[Ack]:
        self._hand_over(loop)
        future: asyncio.Future[Ack] = loop.create_future()
        if self._goes_ahead(entry):
            entry.acknowledged = True
            future.set_result(self._ack_ahead(entry))
        else:
            entry.waiter = LoopWaiter(loop, future)
        with self._lock:
            self.check_usable()
            if self._enqueue(entry):
                self._offer_lead(loop)
        return future

    def _has_to_wait(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self.is_full or loop in self._coroutines

    def _wait_outside(
        self, loop: asyncio.AbstractEventLoop, go: Callable[[], asyncio.Future[Ack]]
    ) -> asyncio.Future[Ack]:
        self.check_usable()
        metrics.WAITED.labels(self.topic).inc()
        if loop not in self._coroutines:
            loop.call_later(_LOOK_FOR_ROOM_S, self._let_in, loop)
        return self._coroutines.wait(loop, go)

    def _let_in(self, loop: asyncio.AbstractEventLoop) -> None:
        def may_go() -> bool:
            self.check_usable()
            run = self._gathering.get(loop)
            return self._buffered + (run.size if run is not None else 0) <= self._max_buffer

        try:
            self._coroutines.let_in(loop, may_go)
        finally:
            if loop in self._coroutines:
                self._hand_over(loop)  # nobody may join those that were let in, while others wait
                loop.call_later(_LOOK_FOR_ROOM_S, self._let_in, loop)

    def _goes_ahead(self, entry: Entry) -> bool:
        """Whether the acknowledgement may come before the write: only for what nothing can refuse any more."""
        return entry.level is _MEMORY and not self._wary and not entry.may_be_refused

    def _ack_ahead(self, entry: Entry) -> Ack:
        return Ack(self.topic, -1, entry.messages, Level.memory, self._writer.now())

    def _wait_for_room(self) -> None:
        self.check_usable()
        while self.is_full:
            metrics.WAITED.labels(self.topic).inc()
            self._outside += 1
            try:
                self._room.wait(1.0)
            finally:
                self._outside -= 1
            self.check_usable()

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
        if self._leading and self._leads_on is None:
            return False
        offered = self._leads_on is not None and isinstance(entry.waiter, ThreadWaiter)
        idle = entry.waiter is None and self._buffered <= self._max_buffer // 2
        if idle or (self._leading and not offered):
            return False
        self._leading, self._leads_on = True, None
        return True

    # -- lead --------------------------------------------------------------------------------------------------------

    def _takes_offer(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self._lock:
            if self._leads_on is not loop:  # a thread was faster
                return False
            self._leads_on = None
            return True

    def _lead_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._takes_offer(loop):
            self._lead_from(loop)

    def _lead_from(self, loop: asyncio.AbstractEventLoop) -> None:
        # Where more waits than one commit takes, a thread writes while the loop makes the next batches.
        if self._writer.files.sync_seconds > _SLOW_SYNC_S or self._buffered > _MAX_COMMIT:
            with self._lock:
                self._leads_on = loop  # until that thread begins: all of the loop's threads may be waiting here
            try:
                loop.run_in_executor(None, self._lead_in_thread, loop)
            except RuntimeError:  # the loop's threads are gone, because it is about to end
                if not self._takes_offer(loop):
                    return
            else:
                return
        self.lead(None, loop, _MAX_COMMIT)

    def _lead_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._takes_offer(loop):
            self.lead(most=_MAX_COMMIT)

    def lead(
        self,
        own: ThreadWaiter | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        most: float = math.inf,
    ) -> None:
        """Commits what waits.

        Args:
            own: the leader itself, if it is a thread that waits.
            loop: the loop in whose thread this runs, if it is one.
            most: bytes after which the rest waits for the next commit.
        """
        entries: list[Entry] = []
        waiting = entries

        def answer(done: list[Entry], left: list[Entry]) -> None:
            nonlocal waiting
            waiting = left
            tell(done, self.topic, own, loop)

        try:
            with self._lock:
                self._take(entries, most, own)
            self._writer.commit(entries, answer)
        except BaseException as error:  # a fault point, or Ctrl-C: nobody may wait for ever
            shut = self._writer.files.shut(error)
            for entry in waiting:
                entry.error = error if own is not None and entry.waiter is own else shut
            tell(waiting, self.topic, own, loop)
            told = own is not None and own.outcome is error
            if not told and not isinstance(error, Exception):
                raise
        finally:
            self._look_back(entries)
            self._pass_on(sum([e.size for e in entries]))

    def _take(self, taken: list[Entry], most: float, own: ThreadWaiter | None) -> None:
        """The first of those that wait, up to a size, and the leader itself. At no moment one is in neither list."""
        count = len(self._pending)
        if self._buffered > most:
            size = count = 0
            missing = own is not None
            while count < len(self._pending) and (size < most or missing):
                entry = self._pending[count]
                size += entry.size
                missing = missing and entry.waiter is not own
                count += 1
        taken += self._pending[:count]
        del self._pending[:count]

    def _look_back(self, entries: list[Entry]) -> None:
        """What was acknowledged ahead and then refused is lost, as that level allows; but not in silence."""
        lost = [e for e in entries if e.acknowledged and e.error is not None]
        if lost:
            why = getattr(lost[0].error, "message", str(lost[0].error))
            log.error("messages acknowledged at level memory are lost", topic=self.topic, count=len(lost), cause=why)
            self._wary = True
        elif self._wary:
            self._wary = any(e.error is not None for e in entries)

    def _pass_on(self, done: int) -> None:
        """Gives the lead to one that waits, if there is one."""
        with self._lock:
            self._buffered -= done
            if self._outside or self.closed:
                self._room.notify_all()
            waiters = [entry.waiter for entry in self._pending if entry.waiter is not None]
            # Threads first: one that waits is there for sure. A loop may stand still, perhaps in that very thread.
            for waiter in waiters:
                if isinstance(waiter, ThreadWaiter):
                    waiter.leads = True
                    waiter.wake()
                    return
            for waiter in waiters:
                if isinstance(waiter, LoopWaiter):
                    with suppress(RuntimeError):  # it is closed
                        waiter.loop.call_soon_threadsafe(self._lead_on_loop, waiter.loop)
                        self._leads_on = waiter.loop
                        return
            self._leading = False

    @property
    def is_busy(self) -> bool:
        """Whether somebody commits, or is about to."""
        return self._leading and self._leads_on is None

    def wait_until_free(self) -> None:
        """Waits for a commit that was left behind when this was closed."""
        with self._lock:
            self._room.wait_for(lambda: not self.is_busy)

    def flush(self) -> None:
        """Writes what waits at level `memory`, and what a loop was to write that has ended or stands still.

        Not what such a loop has gathered in a turn that it has not ended: nobody can tell whether it goes on.
        """
        self._hand_over(_get_running_loop())
        with self._lock:
            if not self._pending or self.closed or self.is_busy:
                return
            self._leading, self._leads_on = True, None
        self.lead()

    def close(self, patience_s: float) -> BaseException | None:
        """Takes nothing more, and commits what waits. Returns what went wrong at that.

        Raises:
            UnavailableError: a commit hangs in the disk. It keeps its files, and the log is shut behind it.
        """
        self._hand_over(_get_running_loop())
        with self._lock:
            self.closed = True
            free = self._room.wait_for(lambda: not self.is_busy, patience_s)
            if free:
                self._leading, self._leads_on = True, None
                last = Entry(Level.disk)
                self._pending.append(last)
        if not free:
            hangs = UnavailableError(f"a commit to topic '{self.topic}' hangs in the disk", hint="check that disk")
            self._writer.files.shut(hangs)
            raise hangs
        self.lead()
        return last.error
