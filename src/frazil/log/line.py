"""Those who wait for a commit of one topic, and who of them leads it.

Whoever waits first leads: it takes all that waits, commits it in one go, tells the others, and hands the lead to one
that came meanwhile. So no thread stands between a publisher and the disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from contextlib import suppress

import structlog

from frazil.errors import FrazilError, UnavailableError
from frazil.log import metrics
from frazil.log.access import Ack, Level
from frazil.log.group import Entry, tell
from frazil.log.waiting import ThreadWaiter
from frazil.log.writer import Writer

#: An event loop does its commits itself, unless the disk is slower than this.
_SLOW_SYNC_S = 0.003

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
        self._leading = False
        self._leads_on: asyncio.AbstractEventLoop | None = None
        self.closed = False
        self._pending: list[Entry] = []
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
        entry.acknowledged = self._goes_ahead(entry)
        if not entry.acknowledged:
            entry.waiter = ThreadWaiter()
        with self._lock:
            self._wait_for_room()
            leads = self._enqueue(entry)
        if entry.waiter is not None:
            return self._wait_for(entry, leads=leads)
        if leads:
            self.lead()
        return self._ack_ahead(entry)

    def submit_together(self, entries: list[Entry]) -> None:
        """Entries of one commit, with one waiter behind them all."""
        waits = Level.disk if any(e.level is Level.disk for e in entries) else Level.os
        last = Entry(waits)
        last.waiter = ThreadWaiter()
        with self._lock:
            self._wait_for_room()
            leads = [self._enqueue(entry) for entry in (*entries, last)]
        with suppress(FrazilError):  # each entry has its own outcome
            self._wait_for(last, leads=any(leads))

    def submit_async(self, entry: Entry) -> Awaitable[Ack]:
        """A plain future where nothing has to be waited for first: a coroutine more per message is felt."""
        loop = asyncio.get_running_loop()
        if self._buffered > self._max_buffer:
            return self._submit_later(entry)
        future: asyncio.Future[Ack] = loop.create_future()
        if entry.level is Level.memory and self._goes_ahead(entry):
            entry.acknowledged = True
            future.set_result(self._ack_ahead(entry))
        else:
            entry.waiter = future
        with self._lock:
            if self.closed or self._writer.files.failed is not None:
                self.check_usable()
            if self._leading:  # most come here: no call more than needed
                self._pending.append(entry)
                self._buffered += entry.size
                return future
            leads = self._enqueue(entry)
            if leads:
                self._leads_on = loop
        if leads:
            loop.call_soon(self._lead_on_loop, loop)
        return future

    async def _submit_later(self, entry: Entry) -> Ack:
        while self.is_full:
            self.check_usable()
            metrics.WAITED.labels(self.topic).inc()
            await asyncio.sleep(0.001)
        return await self.submit_async(entry)

    def _goes_ahead(self, entry: Entry) -> bool:
        """Whether the acknowledgement may come before the write: only for what nothing can refuse any more."""
        return entry.level is Level.memory and not self._wary and not entry.may_be_refused

    def _ack_ahead(self, entry: Entry) -> Ack:
        return Ack(self.topic, -1, entry.messages, Level.memory, self._writer.now())

    def _wait_for_room(self) -> None:
        self.check_usable()
        while self.is_full:
            metrics.WAITED.labels(self.topic).inc()
            self._room.wait(1.0)
            self.check_usable()

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
            self.lead(waiter)
        return waiter.result()

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

    def _lead_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._leads_on is not loop:  # a thread was faster
                return
            self._leads_on = None
        if self._writer.files.sync_seconds > _SLOW_SYNC_S:
            with suppress(RuntimeError):  # the loop's threads are gone, because it is about to end
                loop.run_in_executor(None, self.lead)
                return
        self.lead(loop=loop)

    def lead(self, own: ThreadWaiter | None = None, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Commits all that waits."""
        with self._lock:
            entries, self._pending = self._pending, []
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
            told = own is not None and own.error is error
            if not told and not isinstance(error, Exception):
                raise
        finally:
            self._look_back(entries)
            self._pass_on(sum(e.size for e in entries))

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
