"""Those who wait for a commit of one topic, and who of them leads it.

Whoever waits first leads: it takes all that waits, commits it in one go, tells the others, and hands the lead to one
that came meanwhile. So no thread stands between a publisher and the disk.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable
from contextlib import suppress

import structlog

from frazil.errors import FrazilError, UnavailableError
from frazil.log import metrics
from frazil.log.access import Ack, Level
from frazil.log.group import MAX_RUN_BYTES, Entry, Run, tell
from frazil.log.waiting import LoopWaiter, ThreadWaiter
from frazil.log.writer import Writer

#: An event loop does its commits itself, unless the disk is slower than this.
_SLOW_SYNC_S = 0.003
_MEMORY = Level.memory
#: Bytes of one commit, about, where more waits: those who come first need not wait for all, and make their next
#: batches while the others' are written. Larger ones bring a disk no more, and some kernels stumble over them.
_MAX_COMMIT = 1024 * 1024

log = structlog.get_logger(__name__)


class Line:
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
        #: The last of those that wait, where further messages of its loop may join it.
        self._run: Run | None = None
        self._buffered = 0
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
        waiter = self._commit(entries, last)
        with suppress(FrazilError):
            waiter.result()

    def _commit(self, entries: list[Entry], last: Entry) -> ThreadWaiter:
        """Waits in this thread until the last of these entries has its outcome."""
        waiter = last.waiter = ThreadWaiter()
        leads = False
        with self._lock:
            self._wait_for_room()
            for entry in entries:
                leads = self._enqueue(entry) or leads
        if not leads:
            try:
                waiter.wait()
            except BaseException:  # Ctrl-C: the lead must not come to one who has left
                self._leave(last, waiter)
                raise
            leads = waiter.leads
        if leads:
            self.lead(waiter, most=_MAX_COMMIT)
        return waiter

    # Both give a plain future where nothing has to be waited for first: a coroutine more per message is felt.

    def publish_async(self, payload: bytes, request_id: int | None, level: Level) -> Awaitable[Ack]:
        """One message of a coroutine. Most join a run that waits already: no call here more than needed."""
        loop = asyncio.get_running_loop()
        if self._buffered > self._max_buffer:
            return self._publish_later(payload, request_id, level)
        if level is _MEMORY and not self._wary:
            return self.submit_async(Entry.of_message((payload, request_id, None), level))
        future: asyncio.Future[Ack] = loop.create_future()
        single, size = (payload, request_id, future), len(payload)
        with self._lock:
            run = self._run
            if run is not None and run.level is level and run.loop is loop and run.size + size <= MAX_RUN_BYTES:
                run.singles.append(single)  # in one step: Ctrl-C cannot come between a message and who waits for it
                run.size += size
                self._buffered += size
                return future
            run = Run(single, level, loop)
            self._enqueue_async(run, loop)
            self._run = run
        return future

    def submit_async(self, entry: Entry) -> Awaitable[Ack]:
        """What a coroutine wants in the log, other than to wait for a single message."""
        loop = asyncio.get_running_loop()
        if self._buffered > self._max_buffer:
            return self._submit_later(entry)
        future: asyncio.Future[Ack] = loop.create_future()
        if self._goes_ahead(entry):
            entry.acknowledged = True
            future.set_result(self._ack_ahead(entry))
        else:
            entry.waiter = LoopWaiter(loop, future)
        with self._lock:
            self._enqueue_async(entry, loop)
        return future

    def _enqueue_async(self, entry: Entry, loop: asyncio.AbstractEventLoop) -> None:
        self.check_usable()
        if self._enqueue(entry):
            self._leads_on = loop
            loop.call_soon(self._lead_on_loop, loop)

    async def _publish_later(self, payload: bytes, request_id: int | None, level: Level) -> Ack:
        await self._room_for_coroutines()
        return await self.publish_async(payload, request_id, level)

    async def _submit_later(self, entry: Entry) -> Ack:
        await self._room_for_coroutines()
        return await self.submit_async(entry)

    async def _room_for_coroutines(self) -> None:
        while self.is_full:
            self.check_usable()
            metrics.WAITED.labels(self.topic).inc()
            await asyncio.sleep(0.001)

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
        self._run = None
        if self._leading and self._leads_on is None:
            return False
        offered = self._leads_on is not None and isinstance(entry.waiter, ThreadWaiter)
        idle = entry.waiter is None and self._buffered <= self._max_buffer // 2
        if idle or (self._leading and not offered):
            return False
        self._leading, self._leads_on = True, None
        return True

    # -- lead --------------------------------------------------------------------------------------------------------

    def _lead_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._leads_on is not loop:  # a thread was faster
                return
            self._leads_on = None
        # Where more waits than one commit takes, a thread writes while the loop makes the next batches.
        if self._writer.files.sync_seconds > _SLOW_SYNC_S or self._buffered > _MAX_COMMIT:
            with suppress(RuntimeError):  # the loop's threads are gone, because it is about to end
                loop.run_in_executor(None, self.lead, None, None, _MAX_COMMIT)
                return
        self.lead(None, loop, _MAX_COMMIT)

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
        with self._lock:
            entries = self._take(most, own)
        waiting = entries

        def answer(done: list[Entry], left: list[Entry]) -> None:
            nonlocal waiting
            waiting = left
            tell(done, self.topic, own, loop)

        try:
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

    def _take(self, most: float, own: ThreadWaiter | None) -> list[Entry]:
        """The first of those that wait, up to a size, and the leader itself."""
        count = len(self._pending)
        if self._buffered > most:
            size = count = 0
            missing = own is not None
            while count < len(self._pending) and (size < most or missing):
                entry = self._pending[count]
                size += entry.size
                missing = missing and entry.waiter is not own
                count += 1
        taken, self._pending = self._pending[:count], self._pending[count:]
        if not self._pending:
            self._run = None
        return taken

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

    def flush(self) -> None:
        """Writes what waits at level `memory`, and what a loop should have written that has ended or stands still."""
        with self._lock:
            if not self._pending or self.closed or (self._leading and self._leads_on is None):
                return
            self._leading, self._leads_on = True, None
        self.lead()

    def close(self, patience_s: float) -> BaseException | None:
        """Takes nothing more, and commits what waits. Returns what went wrong at that.

        Raises:
            UnavailableError: a commit hangs in the disk. It keeps its files, and the log is shut behind it.
        """
        with self._lock:
            self.closed = True
            self._run = None
            free = self._room.wait_for(lambda: not self._leading or self._leads_on is not None, patience_s)
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
