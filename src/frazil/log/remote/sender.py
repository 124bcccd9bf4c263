"""Sends pending batches to the log in order, each once: numbers them, takes replies, and resends what was lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from frazil.errors import (
    ConflictError,
    FrazilError,
    UnavailableError,
    UsageError,
    first_line,
)
from frazil.log.batch import Batch
from frazil.log.producers import REMEMBERED, FencedError, OutOfSequenceError, UnknownProducerError
from frazil.log.protocol import NOT_TAKEN, Ack, Level, LogAccess, Registration
from frazil.log.remote.pending_batch import PendingBatch
from frazil.log.remote.send_buffer import SendBuffer
from frazil.log.remote.stream import LostError
from frazil.observe.backoff import Backoff
from frazil.observe.logs import get_logger

#: Batches in flight. The log remembers more per producer, so that each retry gets its offsets.
MAX_IN_FLIGHT = REMEMBERED // 2
#: Bytes that gRPC accepts without waiting for the broker while nothing else is in flight.
_NON_BLOCKING_BYTES = 64 * 1024
#: From the second failure in a row on: the first reconnect is immediate.
_BACKOFF = Backoff(first=0.04, longest=1.0)
_MAX_REFUSALS = 1000

log = get_logger(__name__)


class Link(Protocol):
    """A connection to the log. Replies come in the order of batches."""

    def put(self, batch: Batch, level: Level | None) -> None: ...
    def reply(self) -> Ack: ...
    def close(self) -> None: ...


class LocalLink:
    """A connection to a log of this process. A batch is appended when its reply is requested."""

    def __init__(self, access: LogAccess, topic: str, *, internal: bool = False) -> None:
        self._access, self._topic, self._internal = access, topic, internal
        self._waiting: deque[tuple[Batch, Level | None]] = deque()

    def put(self, batch: Batch, level: Level | None) -> None:
        self._waiting.append((batch, level))

    def reply(self) -> Ack:
        return self._access.append(self._topic, *self._waiting.popleft(), internal=self._internal)

    def close(self) -> None:
        self._waiting.clear()


class Sender:
    """Sends the batches of one producer. Not thread safe.

    Args:
        access: the log, or a client of its broker; registers the producer.
        link: makes a connection to the log.
        topic: the destination.
        name: the producer's name, or None.
        level: how safe a message must be to be acknowledged.
        buffer: the source of batches.
        patience_s: how long a log may be unreachable before pending messages fail.
    """

    def __init__(
        self,
        access: LogAccess,
        link: Callable[[], Link],
        topic: str,
        buffer: SendBuffer,
        *,
        name: str | None = None,
        level: Level | None = None,
        patience_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access, self._new_link, self._topic, self._name, self._level = access, link, topic, name, level
        self._buffer, self._patience_s, self._sleep = buffer, patience_s, sleep
        self._link: Link | None = None
        self._sent: deque[PendingBatch] = deque()
        self._resend: deque[PendingBatch] = deque()
        self._next = 0
        #: Sequences below it may have copies in a broken connection, which reach the log late.
        self._stray_below = 0
        self._failures = 0
        self._lost_since = 0.0
        self._refusals = 0
        self._identity = access.register(topic, name)
        #: None if a new one is needed before anything is sent.
        self._registration: Registration | None = self._identity

    @property
    def registration(self) -> Registration | None:
        return self._registration

    def has_work(self) -> bool:
        return bool(self._sent or self._resend) or self._buffer.has_due()

    def run(self, done: Callable[[], bool]) -> None:
        """Sends until there is nothing to do, or `done` returns True."""
        try:
            while not done() and self._step():
                pass
        except BaseException:  # Ctrl-C: the next caller resends what is in flight
            self._drop_link()
            raise

    def send_at_once(self) -> None:
        """Sends what is due if that cannot block: a small batch, while nothing else is in flight."""
        if self._link is None or self._registration is None or self._failures or self._sent or self._resend:
            return
        pending = self._buffer.take(idle=True, max_size=_NON_BLOCKING_BYTES)
        if pending is None:
            return
        try:
            self._send(pending)
        except LostError as error:
            self._handle_loss(error)
        except BaseException:
            self._drop_link()
            raise

    def _step(self) -> bool:
        """Sends one batch or takes one reply. Returns whether there was anything to do."""
        try:
            pending = self._take_due()
            if pending is not None:
                self._send(pending)
            elif self._sent:
                self._receive()
            else:
                return False
        except LostError as error:
            self._handle_loss(error)
        return True

    def _take_due(self) -> PendingBatch | None:
        if len(self._sent) >= MAX_IN_FLIGHT:
            return None
        return self._resend.popleft() if self._resend else self._buffer.take(idle=not self._sent)

    def close(self) -> None:
        self._drop_link()

    def abandon(self, error: FrazilError) -> None:
        """Rejects further messages, and fails all pending ones."""
        self._buffer.reject(error)
        self._drop_link()
        while self._sent:
            self._fail(self._sent.popleft(), error)
        self._fail_unsent(error)

    # -- send --------------------------------------------------------------------------------------------------------

    def _send(self, pending: PendingBatch) -> None:
        self._resend.appendleft(pending)  # it is kept if anything below fails
        link = self._connect()
        if self._registration is None:
            self._register_anew()
            return
        registration = self._registration
        try:
            batch = pending.encode()
        except Exception as error:  # noqa: BLE001 - delivered to its publishers
            self._resend.popleft()
            self._resend.extendleft(reversed(self._requeue_refused(pending, _wrap_error(error))))
            return
        pending.batch = batch.with_sequence(registration.producer_id, registration.producer_epoch, self._next)
        self._sent.append(self._resend.popleft())
        self._next += 1
        self._put(link, pending)

    def _put(self, link: Link, pending: PendingBatch) -> None:
        pending.attempts += 1
        assert pending.batch is not None
        link.put(pending.batch, self._level)

    def _register_anew(self) -> None:
        """Fences copies of batches in broken connections, and settles those that the log has taken after all."""
        old = self._identity
        try:
            new = self._access.register(self._topic, self._name, old.producer_id)
        except UnavailableError as error:
            raise LostError(error.message, cause=error.cause, hint=error.hint) from error
        except FrazilError as error:
            self._fail_unsent(error)
            return
        self._identity = self._registration = new
        self._next = self._stray_below = 0
        if (new.producer_id, new.before_epoch) != (old.producer_id, old.producer_epoch):
            return
        taken = {sequence: (offset, time_us) for sequence, offset, _, time_us in new.before}
        waiting, self._resend = self._resend, deque()
        for pending in waiting:
            batch = pending.batch
            was_sent = batch is not None and batch.is_idempotent and batch.producer_epoch == old.producer_epoch
            if batch is None or not was_sent or batch.sequence > new.before_last:
                self._resend.append(pending)
                continue
            offset, time_us = taken.get(batch.sequence, (-1, 0))
            self._settle(pending, Ack(self._topic, offset, batch.count, Level.disk, time_us, duplicate=True))

    # -- the way -----------------------------------------------------------------------------------------------------

    def _connect(self) -> Link:
        """Returns the connection to the log. A new one first resends the unanswered batches."""
        if self._link is None:
            try:
                self._link = self._new_link()
            except FrazilError as error:
                raise LostError(error.message, cause=error.cause, hint=error.hint) from error
            for pending in self._sent:
                self._put(self._link, pending)
        return self._link

    def _handle_loss(self, error: LostError) -> None:
        self._drop_link()
        now = time.monotonic()
        if not self._failures:
            self._lost_since = now
            log.info("connection lost", topic=self._topic, cause=error.cause, unanswered=len(self._sent))
        elif now - self._lost_since > self._patience_s:
            self._give_up(error)
            return
        if self._failures:
            self._sleep(_BACKOFF.pause(self._failures))
        self._failures += 1

    def _drop_link(self) -> None:
        if self._link is not None:
            if self._sent:
                self._stray_below = self._next
            self._link.close()
            self._link = None

    def _give_up(self, error: LostError) -> None:
        """Fails all pending messages. Sent batches may be in the log, so that their sequences are not used again."""
        lost = f"no way to the {self._access.where} for {self._patience_s:g} s"
        self._failures = 0
        for pending in self._sent:
            self._fail(
                pending,
                UnavailableError(
                    f"{lost}: whether messages on their way to topic '{self._topic}' are in the log is not known",
                    cause=error.cause,
                    hint=error.hint,
                ),
            )
        self._sent.clear()
        self._fail_unsent(UnavailableError(f"{lost}: nothing was sent", cause=error.cause, hint=error.hint))
        self._new_registration()

    # -- replies -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        outcome = self._reply()
        pending = self._sent.popleft()
        if isinstance(outcome, FrazilError):
            self._handle_refusal(pending, outcome)
        else:
            self._refusals = 0
            self._settle(pending, outcome)

    def _reply(self) -> Ack | FrazilError:
        try:
            answer: Ack | FrazilError = self._connect().reply()
        except LostError:
            raise
        except FrazilError as error:
            answer = error
        self._failures = 0
        return answer

    def _handle_refusal(self, pending: PendingBatch, refusal: FrazilError) -> None:
        """Takes back what is in flight behind a refused batch, because the log refuses it as out of sequence."""
        assert pending.batch is not None
        sequence = refusal.expected if isinstance(refusal, OutOfSequenceError) else pending.batch.sequence
        outcome: Ack | FrazilError = refusal
        back: list[PendingBatch] = []
        sure = certain = True
        try:
            while True:
                if isinstance(outcome, FrazilError):
                    certain = certain and isinstance(outcome, NOT_TAKEN)
                    back += self._requeue_refused(pending, outcome)
                else:
                    sure = False
                    self._settle(pending, outcome)
                if not self._sent:
                    break
                outcome = self._reply()
                pending = self._sent.popleft()
        except LostError:
            sure = False
            back += self._take_unanswered(certain)
        self._resend.extendleft(reversed(back))
        # A stale copy, in the log or in a broken connection, could pass for a renumbered batch: a new epoch fences it.
        if not sure or not certain or sequence < self._stray_below:
            self._drop_link()
            self._registration = None
        elif self._registration is not None:
            self._next = sequence
            for pending in back:  # their sequences are assigned to other batches now
                pending.batch = None if pending.batch is None else pending.batch.with_sequence(0, 0, -1)

    def _take_unanswered(self, certain: bool) -> list[PendingBatch]:
        """Takes back what is in flight behind a refused batch.

        It was not taken, unless an earlier connection brought it.
        """
        unanswered, self._sent = list(self._sent), deque()
        back = [pending for pending in unanswered if pending.attempts == 1 and certain]
        for pending in unanswered:
            if pending not in back:
                self._fail(
                    pending,
                    UnavailableError(
                        f"the connection to the {self._access.where} broke again: whether a batch for topic"
                        f" '{self._topic}' is in the log is not known"
                    ),
                )
        return back

    def _requeue_refused(self, pending: PendingBatch, error: FrazilError) -> list[PendingBatch]:
        """Returns what to resend of a refused batch; nothing if its publishers have got the error."""
        if isinstance(error, OutOfSequenceError):
            self._refusals += 1
            if self._refusals <= _MAX_REFUSALS:
                return [_reset_attempts(pending)]
        if isinstance(error, UnknownProducerError) and self._name is None and pending.attempts == 1:
            self._registration = None
            return [_reset_attempts(pending)]
        if isinstance(error, UnavailableError) and pending.attempts > 1:
            # It is temporary, and a copy in a broken connection may be taken later: resent once that copy is fenced.
            return [_reset_attempts(pending)]
        if isinstance(error, UsageError) and not pending.is_batch and len(pending) > 1:
            return pending.split()  # one bad message must not fail its neighbours
        self._fail(pending, error)
        if isinstance(error, (FencedError, UnknownProducerError)):
            self._new_registration(error)
        return []

    def _new_registration(self, error: FrazilError | None = None) -> None:
        """Drops the registration. A producer with a name ends, since the name may belong to another one by now."""
        self._registration = None
        if self._name is not None:
            ended = error or ConflictError(
                f"producer '{self._name}' of topic '{self._topic}' has lost messages on their way and stops",
                cause="what it sends next could be taken for what was lost",
                hint="a new producer of the same name",
            )
            self._buffer.reject(ended)
            self._fail_unsent(ended)

    # -- the publishers ----------------------------------------------------------------------------------------------

    def _settle(self, pending: PendingBatch, ack: Ack) -> None:
        pending.settle(ack)
        self._buffer.release(pending)

    def _fail(self, pending: PendingBatch, error: FrazilError) -> None:
        pending.fail(error)
        self._buffer.release(pending)

    def _fail_unsent(self, error: FrazilError) -> None:
        unsent = [*self._resend, *self._buffer.take_all()]
        self._resend.clear()
        for pending in unsent:
            self._fail(pending, error)


def _reset_attempts(pending: PendingBatch) -> PendingBatch:
    pending.attempts = 0
    return pending


def _wrap_error(error: Exception) -> FrazilError:
    if isinstance(error, FrazilError):
        return error
    return UsageError("a message cannot be encoded", cause=first_line(error))
