"""The log of one topic. `queue` elects the leader of a commit, `writer` commits, `files` holds the files."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from frazil.errors import FrazilError, UnavailableError, UsageError, first_line
from frazil.log import metrics
from frazil.log.backpressure import BlockedCalls
from frazil.log.batch import IMPORTED, NO_REQUEST_ID, Batch
from frazil.log.columns import merge_columns
from frazil.log.commit_queue import CommitQueue
from frazil.log.disk import Disk
from frazil.log.files import Files
from frazil.log.frame import Kind
from frazil.log.group import Entry, Group
from frazil.log.names import check_name
from frazil.log.producers import Producer
from frazil.log.protocol import LEVEL_OF_MODE, Ack, Level, Registration
from frazil.log.segment import Segment
from frazil.log.state import MAX_SUBSCRIPTIONS, State, extra_change, producer_change, subscription_change
from frazil.log.synced_mark import SyncedMark
from frazil.log.trust import refuse_mark
from frazil.log.writer import Writer
from frazil.settings.model import LogSettings

#: Returns the first offset that the topic's tables do not contain; raises if they belong to another log.
Floor = Callable[[], int | None]
#: Minimum pause between two requests to a catalog that fails.
_PREPARE_PAUSE_S = 1.0
PATIENCE_S = 10.0


class TopicLog:
    """The log of one topic, open in one process. Safe for concurrent use by threads and event loops."""

    def __init__(
        self, name: str, folder: Path, log_id: str, settings: LogSettings, *, disk: Disk, floor: Floor | None = None
    ) -> None:
        self.name, self.log_id = name, log_id
        self.level = LEVEL_OF_MODE[settings.sync_mode]
        self._max_message_size, self._floor = settings.max_message_size, floor
        self._batch_limit = settings.batch_limit
        number = int(log_id[:16], 16)
        self.files = Files(folder, name, number, settings.max_file_size, disk)
        self.writer = Writer(name, number, self.files, settings, self._wake_readers)
        self.queue = CommitQueue(self.writer, settings.max_buffer)
        self.segments_lock = threading.Lock()
        """Held while whole segments are added or removed at the old end: retention, import, deletion."""
        self._visible = threading.Condition()
        self._waiting_readers = 0
        self._preparing = threading.Lock()
        self._ready = False
        #: Calls of coroutines that arrived before the topic was prepared.
        self._blocked_calls = BlockedCalls()
        self._not_prepared: FrazilError | None = None
        self._prepare_again = 0.0

    @property
    def state(self) -> State:
        return self.files.state

    @property
    def epoch(self) -> int:
        return self.writer.epoch

    @property
    def refuses(self) -> str | None:
        """Why it rejects messages: its disk has failed or is full, or its tables could not be queried."""
        error = self.files.failed or self._not_prepared or self._find_space_problem()
        return None if error is None else error.in_one_line

    def _find_space_problem(self) -> FrazilError | None:
        try:
            return self.writer.find_space_problem()
        except OSError as error:  # the folder is gone, or its disk does not answer
            return UnavailableError(
                f"topic '{self.name}' cannot be written: {self.files.folder}", cause=first_line(error)
            )

    @property
    def next_offset(self) -> int:
        return self.writer.next_offset

    @property
    def start(self) -> int:
        """The first offset that the log still has."""
        return self.files.start if self.files.segments else self.writer.skipped_to

    @property
    def end(self) -> int:
        """The visible end: all below is on disk."""
        return self.writer.end

    def visible(self) -> tuple[list[Segment], SyncedMark]:
        return self.files.visible()

    def gaps(self) -> list[tuple[int, int]]:
        """Returns the ranges between start and end that have no messages. A segment begins behind each gap."""
        # Read first: a segment that begins there in the meantime is then in the list.
        skipped_to = self.writer.skipped_to
        segments, _ = self.visible()
        found = [(before.end_offset, after.id) for before, after in pairwise(segments) if before.end_offset < after.id]
        if segments and segments[-1].end_offset < skipped_to:
            found.append((segments[-1].end_offset, skipped_to))
        return found

    # -- publish -----------------------------------------------------------------------------------------------------

    def publish(self, payload: bytes, request_id: int | None = None, level: Level | None = None) -> Ack:
        """Publishes one message; returns when it is as safe as the level requires."""
        self._check_message(payload, request_id)
        return self._submit(Entry.of_message((payload, request_id, None), level or self.level))

    def publish_async(
        self, payload: bytes, request_id: int | None = None, level: Level | None = None
    ) -> Awaitable[Ack]:
        if request_id is not None or type(payload) is not bytes or len(payload) > self._max_message_size:
            self._check_message(payload, request_id)
        asked = level or self.level
        if not self._ready or self._blocked_calls:
            return self._when_ready(lambda: self.queue.publish_async(payload, request_id, asked))
        return self.queue.publish_async(payload, request_id, asked)

    def append(self, batch: Batch, level: Level | None = None, *, internal: bool = False) -> Ack:
        """Appends a batch as a whole, after checking it."""
        self._check_batch(batch, internal=internal)
        return self._submit(Entry.of_batch(batch, level or self.level))

    def append_async(self, batch: Batch, level: Level | None = None) -> Awaitable[Ack]:
        self._check_batch(batch)
        return self._submit_async(Entry.of_batch(batch, level or self.level))

    def append_many(
        self, batches: list[tuple[Batch, Level | None]], *, internal: bool = False
    ) -> list[Ack | FrazilError]:
        """Appends batches in one commit; each is accepted or refused on its own.

        All are written, even at level `memory`.
        """
        entries: list[Entry] = []
        for batch, level in batches:
            entry = Entry.of_batch(batch, level or self.level)
            try:
                self._check_batch(batch, internal=internal)
            except FrazilError as error:
                entry.error = error
            entries.append(entry)
        asked = [e for e in entries if e.error is None]
        if asked:
            if not self._ready:
                self.prepare()
            self.queue.commit_all(asked)
        outcomes = [e.outcome(self.name) for e in entries]
        for outcome in outcomes:
            if not isinstance(outcome, (Ack, FrazilError)):
                raise outcome
        return outcomes  # type: ignore[return-value]  # as the loop has found

    def _submit(self, entry: Entry) -> Ack:
        if not self._ready:
            self.prepare()
        return self.queue.submit(entry)

    def _submit_async(self, entry: Entry) -> Awaitable[Ack]:
        if not self._ready or self._blocked_calls:
            return self._when_ready(lambda: self.queue.submit_async(entry))
        return self.queue.submit_async(entry)

    def _when_ready(self, go: Callable[[], asyncio.Future[Ack]]) -> asyncio.Future[Ack]:
        """Prepares the topic in a worker thread; later calls from the same loop are ordered after this one."""
        loop = asyncio.get_running_loop()
        if self._ready and loop not in self._blocked_calls:
            return go()
        if loop not in self._blocked_calls:
            preparing = loop.run_in_executor(None, self.prepare)
            preparing.add_done_callback(lambda done: self._admit_calls(loop, done))
        return self._blocked_calls.block(loop, go)

    def _admit_calls(self, loop: asyncio.AbstractEventLoop, prepared: asyncio.Future[None]) -> None:
        def is_ready() -> bool:
            prepared.result()
            return True

        try:
            self._blocked_calls.admit(loop, is_ready)
        finally:  # Ctrl-C may come in the middle
            for answer, _ in self._blocked_calls.pop(loop, ()):
                answer.cancel()

    @property
    def is_prepared(self) -> bool:
        """Whether the tables have been queried, so that messages can be accepted."""
        return self._ready

    def prepare(self) -> None:
        """Queries the tables once for their offsets, which are never assigned again.

        Raises:
            UnavailableError: the catalog does not answer; without it no offset is safe to assign.
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
            self.writer.begin(floor)
            self._not_prepared, self._ready = None, True

    def raise_floor(self, floor: int) -> None:
        """Assigns no offset below the floor from now on: a table contains them already."""
        self.writer.floor = max(self.writer.floor, floor)
        self.sync()

    def _check_message(self, payload: bytes, request_id: int | None) -> None:
        """Refuses a message that cannot be packed: within a commit it would fail the messages beside it."""
        if not isinstance(payload, bytes) or not (request_id is None or _is_request_id(request_id)):
            raise UsageError(
                f"a message is bytes, not {type(payload).__name__}, and its request id a number of 64 bits",
                cause=f"the request id is {request_id!r}",
            )
        if len(payload) > self._max_message_size:
            metrics.REFUSED.labels(self.name, "UsageError").inc()
            raise UsageError(
                f"a message of {len(payload):,} bytes is over the limit of {self._max_message_size:,}",
                hint="a smaller message, or a higher log.max_message_size",
            )

    def _check_batch(self, batch: Batch, *, internal: bool = False) -> None:
        try:
            if len(batch.body) > self._batch_limit:
                raise UsageError(
                    f"a batch of {len(batch.body):,} bytes is over the limit of {self._batch_limit:,}",
                    hint="smaller batches, or a higher log.max_batch_size",
                )
            if batch.flags & IMPORTED and batch.kind == Kind.arrow:
                raise UsageError("only a migration may send a batch with its own times", hint="leave out the flag")
            batch.check(self._max_message_size)
            if batch.kind == Kind.arrow and not internal:
                refuse_mark(batch.arrow)
        except FrazilError as error:
            metrics.REFUSED.labels(self.name, type(error).__name__).inc()
            raise

    # -- state -------------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Makes everything written durable; returns the visible end."""
        self._submit(Entry(Level.disk))
        return self.end

    def register(self, name: str | None, producer_id: int | None = None) -> Registration:
        """Registers a producer durably; one without a name is registered again by its id."""
        if name is not None:
            check_name(name, "producer")
        made: list[Producer] = []

        def change(group: Group) -> bytes:
            producer = self.state.producers.make_registered(name, self.writer.now(), producer_id)
            before = self.state.producers.get(producer.id)
            group.undo.append(lambda: self._unregister(producer, before))
            self.state.put_producer(producer)
            made.append(producer)
            return producer_change(producer)

        self._submit(Entry.of_change(change))
        epoch, last, taken = made[0].before
        return Registration(made[0].id, made[0].epoch, epoch, last, [list(t) for t in taken])

    def _unregister(self, producer: Producer, before: Producer | None) -> None:
        self.state.producers.drop(producer.id)
        if before is not None:
            self.state.put_producer(before)

    def commit(self, subscription: str, offset: int) -> None:
        """Stores the position of a subscription durably."""
        check_name(subscription, "subscription")
        if not 0 <= offset < 2**63:
            raise UsageError(f"a position is 0 or more, and has 64 bits; not {offset}")

        def change(group: Group) -> bytes:
            before = self.state.subscriptions
            if subscription not in before and len(before) >= MAX_SUBSCRIPTIONS:
                raise UsageError(
                    f"topic '{self.name}' has {len(before):,} subscriptions, and there is no place for more",
                    hint="one name per consumer, not one per run",
                )
            group.undo.append(lambda: setattr(self.state, "subscriptions", before))
            self.state.subscriptions = before | {subscription: offset}
            return subscription_change(subscription, offset)

        self._submit(Entry.of_change(change))

    def add_columns(self, extra: pa.Schema) -> None:
        """Records columns durably before any message has brought them."""

        def change(group: Group) -> bytes:
            known = self.state.extra
            group.undo.append(lambda: setattr(self.state, "extra", known))
            self.state.extra = merge_columns(known, extra, self.name)
            return extra_change(self.state.extra)

        self._submit(Entry.of_change(change))

    # -- readers -----------------------------------------------------------------------------------------------------

    def wait(self, offset: int, timeout: float) -> int:
        """Returns the visible end as soon as it lies beyond an offset, or at the timeout."""
        if self.end > offset or timeout <= 0:
            return self.end
        with self._visible:
            self._waiting_readers += 1
            try:
                self._visible.wait_for(lambda: self.end > offset or self.queue.closed, timeout)
            finally:
                self._waiting_readers -= 1
        return self.end

    def _wake_readers(self) -> None:
        if self._waiting_readers:
            with self._visible:
                self._visible.notify_all()

    # -- life --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes entries of level `memory`, and those left to a loop that has ended or is stuck."""
        self.queue.flush()

    def show_metrics(self) -> None:
        """Updates the metrics. Not done at each commit: it would cost more than the commit."""
        self.writer.counters.show()
        metrics.END.labels(self.name).set(self.end)
        metrics.START.labels(self.name).set(self.start)
        metrics.SIZE.labels(self.name).set(self.files.size)

    def close(self) -> None:
        """Commits what is pending, syncs and closes. Later calls are refused.

        Raises:
            FrazilError: that sync has failed, and the error was not reported before; or a commit hangs in the disk.
        """
        if self.queue.closed:
            return
        known = self.files.failed
        try:
            error = self.queue.close(PATIENCE_S)  # if it raises, the files are still in use
        finally:
            with self._visible:
                self._visible.notify_all()
        self.show_metrics()
        self.files.close()
        if error is not None and error is not known:
            raise error


def _is_request_id(number: int) -> bool:
    return isinstance(number, int) and NO_REQUEST_ID < number < 2**63
