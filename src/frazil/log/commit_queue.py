"""The commit queue of one topic: pending appends, and leader election for group commit.

The first caller in the queue leads: it takes all pending entries, commits them at once, delivers their outcomes, and
passes the lead to a caller that arrived in the meantime. No dedicated thread stands between a publisher and the disk.
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
from frazil.log.group import MAX_RUN_BYTES, Entry, Run, deliver_outcomes
from frazil.log.protocol import Ack, Level
from frazil.log.waiters import LoopWaiter, ThreadWaiter, reject_futures
from frazil.log.writer import Writer
from frazil.observe.logs import get_logger

#: An event loop commits in its own thread, unless a sync takes longer than this.
_SLOW_SYNC_S = 0.003
_ROOM_POLL_S = 0.001
_MEMORY = Level.memory
#: Approximate bytes of one commit when more is pending: the first callers are answered early and prepare their next
#: batches while the rest is written. Larger commits gain no throughput, and some kernels slow down on them.
_MAX_COMMIT = 1024 * 1024

log = get_logger(__name__)


class CommitQueue:
    """Serialises the commits of one topic. Safe for concurrent use by threads and event loops.

    Args:
        writer: commits what the leader has taken.
        max_buffer: bytes that may be pending; callers beyond it are blocked.
    """

    def __init__(self, writer: Writer, max_buffer: int) -> None:
        self._writer, self._max_buffer = writer, max_buffer
        self.topic = writer.topic
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._blocked_threads = 0
        self._leading = False
        self._leads_on: asyncio.AbstractEventLoop | None = None
        self.closed = False
        self._pending: list[Entry] = []
        #: Messages that the coroutines of each loop published in its current iteration. Only the loop's thread touches
        #: a run until it is enqueued at the end of the iteration: a lock per message would cost as much as its append.
        self._open_runs: dict[asyncio.AbstractEventLoop, Run] = {}
        self._buffered = 0
        #: Calls of coroutines that are blocked by a full buffer.
        self._blocked_calls = BlockedCalls()
        #: A message acknowledged at level `memory` was refused afterwards: later ones are acknowledged after the write.
        self._is_cautious = False

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
        """Appends an entry; blocks this thread until the entry is as safe as its level requires."""
        if not self._can_acknowledge_early(entry):
            return self._commit_and_wait([entry], entry).result()
        self._enqueue_open_run(_get_running_loop())
        entry.acknowledged = True
        with self._lock:
            self._wait_for_room()
            leads = self._enqueue(entry)
        if leads:
            self.lead()
        return self._acknowledge_early(entry)

    def commit_all(self, entries: list[Entry]) -> None:
        """Writes entries in one commit; blocks this thread until they are written. Each entry has its own outcome."""
        last = entries[0]
        if len(entries) > 1:  # a trailing entry stands for all of them
            last = Entry(Level.disk if any(e.level is Level.disk for e in entries) else Level.os)
            entries = [*entries, last]
        self._commit_and_wait(entries, last)

    def _commit_and_wait(self, entries: list[Entry], last: Entry) -> ThreadWaiter:
        """Enqueues entries and blocks this thread until the last of them has its outcome."""
        self._enqueue_open_run(_get_running_loop())
        waiter = last.waiter = ThreadWaiter()
        try:
            with self._lock:
                self._wait_for_room()
                for entry in entries:
                    waiter.leads = self._enqueue(entry) or waiter.leads
            if not waiter.leads:
                waiter.wait()
        except BaseException:  # Ctrl-C: the lead must not stay with a caller that has left
            self._withdraw(last, waiter)
            raise
        if waiter.leads:
            self.lead(waiter, most=_MAX_COMMIT)
        return waiter

    def publish_async(self, payload: bytes, request_id: int | None, level: Level) -> asyncio.Future[Ack]:
        """Appends one message of a coroutine.

        Most messages join the open run of their loop's iteration; this path is kept free of calls.
        """
        loop = get_running_loop()
        run, size = self._open_runs.get(loop), len(payload)
        if run is None or run.level is not level or run.size + size > MAX_RUN_BYTES:
            self._enqueue_open_run(loop)
            if self._is_blocked(loop):
                return self._block_call(loop, lambda: self._join_or_open_run(payload, request_id, level, loop))
            return self._open_run(payload, request_id, level, loop)
        future: asyncio.Future[Ack] = loop.create_future()
        run.singles.append((payload, request_id, future))  # in one step: Ctrl-C cannot come between the two
        run.size += size
        return future

    def _join_or_open_run(
        self, payload: bytes, request_id: int | None, level: Level, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[Ack]:
        """Appends a message that was blocked; messages admitted together share a run."""
        run, size = self._open_runs.get(loop), len(payload)
        if run is None or run.level is not level or run.size + size > MAX_RUN_BYTES:
            return self._open_run(payload, request_id, level, loop)
        future: asyncio.Future[Ack] = loop.create_future()
        run.singles.append((payload, request_id, future))
        run.size += size
        return future

    def _open_run(
        self, payload: bytes, request_id: int | None, level: Level, loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[Ack]:
        """Appends a message that opens the run of its loop's iteration, or that no run can hold."""
        self.check_usable()
        if level is _MEMORY and not self._is_cautious:
            return self._submit_from(loop, Entry.of_message((payload, request_id, None), level))
        self._enqueue_open_run(loop)
        future: asyncio.Future[Ack] = loop.create_future()
        run = Run((payload, request_id, future), level, loop)
        loop.call_soon(self._enqueue_at_turn_end, run)  # before others can join it
        self._open_runs[loop] = run
        return future

    def _enqueue_at_turn_end(self, run: Run) -> None:
        """Enqueues a run at the end of its loop's iteration, and commits it unless another caller leads."""
        if self._open_runs.get(run.loop) is run:
            del self._open_runs[run.loop]
        if not run.is_enqueued and self._enqueue_run(run):
            self._lead_from(run.loop)

    def _enqueue_open_run(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Enqueues the open run of this thread's loop, so that later entries are ordered after it."""
        run = self._open_runs.pop(loop, None) if loop is not None else None
        if run is not None:
            self._enqueue_run(run, later=True)

    def _enqueue_run(self, run: Run, *, later: bool = False) -> bool:
        """Enqueues a run; returns whether its loop has to lead.

        With `later`, the lead is only offered to the loop, and a thread may claim it first. The messages are refused if
        the log is closed or shut: nothing may be enqueued behind the last commit.
        """
        run.is_enqueued = True
        try:
            with self._lock:
                self.check_usable()
                leads = self._enqueue(run)
                if leads and later:
                    self._offer_lead(run.loop)
        except FrazilError as error:
            reject_futures([future for _, _, future in run.singles], error)
            return False
        return leads

    def _offer_lead(self, loop: asyncio.AbstractEventLoop) -> None:
        self._leads_on = loop
        loop.call_soon(self._lead_on_loop, loop)

    def submit_async(self, entry: Entry) -> asyncio.Future[Ack]:
        """Appends an entry of a coroutine that is not a single message."""
        loop = get_running_loop()
        self._enqueue_open_run(loop)
        if self._is_blocked(loop):
            return self._block_call(loop, lambda: self._submit_from(loop, entry))
        return self._submit_from(loop, entry)

    def _submit_from(self, loop: asyncio.AbstractEventLoop, entry: Entry) -> asyncio.Future[Ack]:
        self._enqueue_open_run(loop)
        future: asyncio.Future[Ack] = loop.create_future()
        if self._can_acknowledge_early(entry):
            entry.acknowledged = True
            future.set_result(self._acknowledge_early(entry))
        else:
            entry.waiter = LoopWaiter(loop, future)
        with self._lock:
            self.check_usable()
            if self._enqueue(entry):
                self._offer_lead(loop)
        return future

    def _is_blocked(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self.is_full or loop in self._blocked_calls

    def _block_call(
        self, loop: asyncio.AbstractEventLoop, go: Callable[[], asyncio.Future[Ack]]
    ) -> asyncio.Future[Ack]:
        self.check_usable()
        metrics.WAITED.labels(self.topic).inc()
        if loop not in self._blocked_calls:
            loop.call_later(_ROOM_POLL_S, self._admit_calls, loop)
        return self._blocked_calls.block(loop, go)

    def _admit_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        def has_room() -> bool:
            self.check_usable()
            run = self._open_runs.get(loop)
            return self._buffered + (run.size if run is not None else 0) <= self._max_buffer

        try:
            self._blocked_calls.admit(loop, has_room)
        finally:
            if loop in self._blocked_calls:
                self._enqueue_open_run(loop)  # admitted messages must not be joined while others are blocked
                loop.call_later(_ROOM_POLL_S, self._admit_calls, loop)

    def _can_acknowledge_early(self, entry: Entry) -> bool:
        """Returns whether the acknowledgement may precede the write, because nothing can refuse the entry any more."""
        return entry.level is _MEMORY and not self._is_cautious and not entry.can_be_refused

    def _acknowledge_early(self, entry: Entry) -> Ack:
        return Ack(self.topic, -1, entry.messages, Level.memory, self._writer.now())

    def _wait_for_room(self) -> None:
        self.check_usable()
        while self.is_full:
            metrics.WAITED.labels(self.topic).inc()
            self._blocked_threads += 1
            try:
                self._room.wait(1.0)
            finally:
                self._blocked_threads -= 1
            self.check_usable()

    def _withdraw(self, entry: Entry, waiter: ThreadWaiter) -> None:
        with self._lock:
            entry.waiter = None
            leads = waiter.leads
        if leads:
            self._pass_lead(0)

    def _enqueue(self, entry: Entry) -> bool:
        """Enqueues an entry; returns whether the caller has to lead.

        A thread claims a lead that was offered to a loop and not taken: it may be that loop's own thread.
        """
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

    def _claim_offered_lead(self, loop: asyncio.AbstractEventLoop) -> bool:
        with self._lock:
            if self._leads_on is not loop:  # a thread was faster
                return False
            self._leads_on = None
            return True

    def _lead_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._claim_offered_lead(loop):
            self._lead_from(loop)

    def _lead_from(self, loop: asyncio.AbstractEventLoop) -> None:
        # If more is pending than one commit takes, a thread writes while the loop prepares the next batches.
        if self._writer.files.sync_seconds > _SLOW_SYNC_S or self._buffered > _MAX_COMMIT:
            with self._lock:
                # Until that thread starts: all threads of the loop's executor may be blocked in this queue.
                self._leads_on = loop
            try:
                loop.run_in_executor(None, self._lead_in_thread, loop)
            except RuntimeError:  # the loop is shutting down and has no executor
                if not self._claim_offered_lead(loop):
                    return
            else:
                return
        self.lead(None, loop, _MAX_COMMIT)

    def _lead_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._claim_offered_lead(loop):
            self.lead(most=_MAX_COMMIT)

    def lead(
        self,
        own: ThreadWaiter | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        most: float = math.inf,
    ) -> None:
        """Commits pending entries.

        Args:
            own: the waiter of the leader, if it is a blocked thread.
            loop: the loop in whose thread this runs, if any.
            most: bytes after which the rest is left to the next commit.
        """
        entries: list[Entry] = []
        waiting = entries

        def answer(done: list[Entry], left: list[Entry]) -> None:
            nonlocal waiting
            waiting = left
            deliver_outcomes(done, self.topic, own, loop)

        try:
            with self._lock:
                self._take_entries(entries, most, own)
            self._writer.commit(entries, answer)
        except BaseException as error:  # a fault point, or Ctrl-C: no waiter may be left without an outcome
            shut = self._writer.files.shut(error)
            for entry in waiting:
                entry.error = error if own is not None and entry.waiter is own else shut
            deliver_outcomes(waiting, self.topic, own, loop)
            was_delivered = own is not None and own.outcome is error
            if not was_delivered and not isinstance(error, Exception):
                raise
        finally:
            self._report_lost(entries)
            self._pass_lead(sum([e.size for e in entries]))

    def _take_entries(self, taken: list[Entry], most: float, own: ThreadWaiter | None) -> None:
        """Moves pending entries up to a size, and the leader's own, into `taken`. No entry is ever in neither list."""
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

    def _report_lost(self, entries: list[Entry]) -> None:
        """Logs entries that were acknowledged early and then refused.

        Level `memory` permits their loss, but not in silence.
        """
        lost = [e for e in entries if e.acknowledged and e.error is not None]
        if lost:
            why = getattr(lost[0].error, "message", str(lost[0].error))
            log.error("messages acknowledged at level memory are lost", topic=self.topic, count=len(lost), cause=why)
            self._is_cautious = True
        elif self._is_cautious:
            self._is_cautious = any(e.error is not None for e in entries)

    def _pass_lead(self, done: int) -> None:
        """Passes the lead to a pending waiter, if there is one."""
        with self._lock:
            self._buffered -= done
            if self._blocked_threads or self.closed:
                self._room.notify_all()
            waiters = [entry.waiter for entry in self._pending if entry.waiter is not None]
            # Threads first: a blocked thread will run for sure. A loop may be stuck, perhaps in that very thread.
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
        """Whether a commit runs or is about to."""
        return self._leading and self._leads_on is None

    def wait_until_idle(self) -> None:
        """Blocks until a commit that was still running at `close` has ended."""
        with self._lock:
            self._room.wait_for(lambda: not self.is_busy)

    def flush(self) -> None:
        """Writes entries of level `memory`, and those left to a loop that has ended or is stuck.

        The open run of an unfinished iteration is not included: it is unknown whether that loop continues.
        """
        self._enqueue_open_run(_get_running_loop())
        with self._lock:
            if not self._pending or self.closed or self.is_busy:
                return
            self._leading, self._leads_on = True, None
        self.lead()

    def close(self, patience_s: float) -> BaseException | None:
        """Rejects new entries and commits the pending ones. Returns the error of that commit, if any.

        Raises:
            UnavailableError: a commit hangs in the disk. It keeps its files, and the log is shut after it.
        """
        self._enqueue_open_run(_get_running_loop())
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
