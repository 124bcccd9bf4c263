"""Carries parcels to the log, in order, each once: numbers them, waits for replies, and sends again what got lost."""

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

#: Batches on their way at once. The log remembers more per producer, so that each retry gets its offsets.
MOST_ON_THE_WAY = REMEMBERED // 2
#: Bytes that gRPC takes without waiting for the broker, where nothing else is on its way.
_AT_ONCE = 64 * 1024
#: After the second failure in a row: the first try to connect again is made at once.
_BACKOFF = Backoff(first=0.04, longest=1.0)
_MOST_REFUSALS = 1000

log = get_logger(__name__)


class Link(Protocol):
    """A way to the log. Replies come in the order of batches."""

    def put(self, batch: Batch, level: Level | None) -> None: ...
    def reply(self) -> Ack: ...
    def close(self) -> None: ...


class LocalLink:
    """The way to a log of this process. A batch is appended when its reply is asked for."""

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
    """One thread at a time may use it.

    Args:
        access: the log, or a client of its broker; registers the producer.
        link: makes a way to the log.
        topic: where the parcels go.
        name: the producer's name, or None.
        level: how safe a message is to be when it is acknowledged.
        outbox: where the parcels come from.
        patience_s: how long it looks for a log that is away before it gives up what it has.
    """

    def __init__(
        self,
        access: LogAccess,
        link: Callable[[], Link],
        topic: str,
        outbox: SendBuffer,
        *,
        name: str | None = None,
        level: Level | None = None,
        patience_s: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._access, self._new_link, self._topic, self._name, self._level = access, link, topic, name, level
        self._outbox, self._patience_s, self._sleep = outbox, patience_s, sleep
        self._link: Link | None = None
        self._sent: deque[PendingBatch] = deque()
        self._again: deque[PendingBatch] = deque()
        self._next = 0
        #: Below it, copies of batches may lie in a connection that broke, and reach the log late.
        self._stray_below = 0
        self._failures = 0
        self._away_since = 0.0
        self._refusals = 0
        self._identity = access.register(topic, name)
        #: None where another one is needed before anything is sent.
        self._registration: Registration | None = self._identity

    @property
    def registration(self) -> Registration | None:
        return self._registration

    def has_work(self) -> bool:
        return bool(self._sent or self._again) or self._outbox.has_due()

    def run(self, done: Callable[[], bool]) -> None:
        """Carries until there is nothing to do, or `done` says so."""
        try:
            while not done() and self._step():
                pass
        except BaseException:  # Ctrl-C: whatever is under way is sent again by the next who carries
            self._drop_link()
            raise

    def send_at_once(self) -> None:
        """Sends what is due, where that cannot block: for a small parcel, while nothing else is on its way."""
        if self._link is None or self._registration is None or self._failures or self._sent or self._again:
            return
        parcel = self._outbox.take(idle=True, most=_AT_ONCE)
        if parcel is None:
            return
        try:
            self._send(parcel)
        except LostError as error:
            self._lost(error)
        except BaseException:
            self._drop_link()
            raise

    def _step(self) -> bool:
        """Sends one parcel, or takes one reply. Whether there was anything to do."""
        try:
            parcel = self._due()
            if parcel is not None:
                self._send(parcel)
            elif self._sent:
                self._receive()
            else:
                return False
        except LostError as error:
            self._lost(error)
        return True

    def _due(self) -> PendingBatch | None:
        if len(self._sent) >= MOST_ON_THE_WAY:
            return None
        return self._again.popleft() if self._again else self._outbox.take(idle=not self._sent)

    def close(self) -> None:
        self._drop_link()

    def abandon(self, error: FrazilError) -> None:
        """Takes nothing more, and tells all who wait."""
        self._outbox.refuse(error)
        self._drop_link()
        while self._sent:
            self._fail(self._sent.popleft(), error)
        self._fail_unsent(error)

    # -- send --------------------------------------------------------------------------------------------------------

    def _send(self, parcel: PendingBatch) -> None:
        self._again.appendleft(parcel)  # it is kept, whatever happens here
        link = self._linked()
        if self._registration is None:
            self._register_anew()
            return
        registration = self._registration
        try:
            batch = parcel.encoded()
        except Exception as error:  # noqa: BLE001 - told to its publishers
            self._again.popleft()
            self._again.extendleft(reversed(self._refused(parcel, _as_frazil(error))))
            return
        parcel.batch = batch.numbered(registration.producer_id, registration.producer_epoch, self._next)
        self._sent.append(self._again.popleft())
        self._next += 1
        self._put(link, parcel)

    def _put(self, link: Link, parcel: PendingBatch) -> None:
        parcel.attempts += 1
        assert parcel.batch is not None
        link.put(parcel.batch, self._level)

    def _register_anew(self) -> None:
        """Shuts out copies of batches that lie in broken connections; those that the log has after all are done."""
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
        waiting, self._again = self._again, deque()
        for parcel in waiting:
            batch = parcel.batch
            was_sent = batch is not None and batch.is_idempotent and batch.producer_epoch == old.producer_epoch
            if batch is None or not was_sent or batch.sequence > new.before_last:
                self._again.append(parcel)
                continue
            offset, time_us = taken.get(batch.sequence, (-1, 0))
            self._settle(parcel, Ack(self._topic, offset, batch.count, Level.disk, time_us, duplicate=True))

    # -- the way -----------------------------------------------------------------------------------------------------

    def _linked(self) -> Link:
        """The way to the log. A new one first brings again what has no reply."""
        if self._link is None:
            try:
                self._link = self._new_link()
            except FrazilError as error:
                raise LostError(error.message, cause=error.cause, hint=error.hint) from error
            for parcel in self._sent:
                self._put(self._link, parcel)
        return self._link

    def _lost(self, error: LostError) -> None:
        self._drop_link()
        now = time.monotonic()
        if not self._failures:
            self._away_since = now
            log.info("connection lost", topic=self._topic, cause=error.cause, unanswered=len(self._sent))
        elif now - self._away_since > self._patience_s:
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
        """Tells all who wait. What was sent may be in the log, so that its sequences must not be used again."""
        away = f"no way to the {self._access.where} for {self._patience_s:g} s"
        self._failures = 0
        for parcel in self._sent:
            self._fail(
                parcel,
                UnavailableError(
                    f"{away}: whether messages on their way to topic '{self._topic}' are in the log is not known",
                    cause=error.cause,
                    hint=error.hint,
                ),
            )
        self._sent.clear()
        self._fail_unsent(UnavailableError(f"{away}: nothing was sent", cause=error.cause, hint=error.hint))
        self._new_registration()

    # -- replies -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        outcome = self._reply()
        parcel = self._sent.popleft()
        if isinstance(outcome, FrazilError):
            self._sort_out(parcel, outcome)
        else:
            self._refusals = 0
            self._settle(parcel, outcome)

    def _reply(self) -> Ack | FrazilError:
        try:
            answer: Ack | FrazilError = self._linked().reply()
        except LostError:
            raise
        except FrazilError as error:
            answer = error
        self._failures = 0
        return answer

    def _sort_out(self, parcel: PendingBatch, refusal: FrazilError) -> None:
        """After a refusal the log refuses all that is on its way behind it, as out of sequence. It is taken back."""
        assert parcel.batch is not None
        sequence = refusal.expected if isinstance(refusal, OutOfSequenceError) else parcel.batch.sequence
        outcome: Ack | FrazilError = refusal
        back: list[PendingBatch] = []
        sure = certain = True
        try:
            while True:
                if isinstance(outcome, FrazilError):
                    certain = certain and isinstance(outcome, NOT_TAKEN)
                    back += self._refused(parcel, outcome)
                else:
                    sure = False
                    self._settle(parcel, outcome)
                if not self._sent:
                    break
                outcome = self._reply()
                parcel = self._sent.popleft()
        except LostError:
            sure = False
            back += self._unanswered(certain)
        self._again.extendleft(reversed(back))
        # An old copy, in the log or in a broken connection, could pass for a renumbered batch: a new epoch bars it.
        if not sure or not certain or sequence < self._stray_below:
            self._drop_link()
            self._registration = None
        elif self._registration is not None:
            self._next = sequence
            for parcel in back:  # under the numbers that they had, others go now
                parcel.batch = None if parcel.batch is None else parcel.batch.numbered(0, 0, -1)

    def _unanswered(self, certain: bool) -> list[PendingBatch]:
        """What is on its way behind a refused batch was not taken, unless an earlier connection has brought it."""
        left, self._sent = list(self._sent), deque()
        back = [parcel for parcel in left if parcel.attempts == 1 and certain]
        for parcel in left:
            if parcel not in back:
                self._fail(
                    parcel,
                    UnavailableError(
                        f"the connection to the {self._access.where} broke again: whether a batch for topic"
                        f" '{self._topic}' is in the log is not known"
                    ),
                )
        return back

    def _refused(self, parcel: PendingBatch, error: FrazilError) -> list[PendingBatch]:
        """What of a refused parcel is sent again: nothing if its publishers have been told."""
        if isinstance(error, OutOfSequenceError):
            self._refusals += 1
            if self._refusals <= _MOST_REFUSALS:
                return [_fresh(parcel)]
        if isinstance(error, UnknownProducerError) and self._name is None and parcel.attempts == 1:
            self._registration = None
            return [_fresh(parcel)]
        if isinstance(error, UnavailableError) and parcel.attempts > 1:
            # For now only; and a copy in a broken connection may be taken later. It goes again when that is shut out.
            return [_fresh(parcel)]
        if isinstance(error, UsageError) and not parcel.whole and len(parcel) > 1:
            return parcel.halves()  # a bad message does not take its neighbours with it
        self._fail(parcel, error)
        if isinstance(error, (FencedError, UnknownProducerError)):
            self._new_registration(error)
        return []

    def _new_registration(self, error: FrazilError | None = None) -> None:
        """A producer without a name begins anew. A named one ends: its name may be somebody else's by now."""
        self._registration = None
        if self._name is not None:
            ended = error or ConflictError(
                f"producer '{self._name}' of topic '{self._topic}' has lost messages on their way and stops",
                cause="what it sends next could be taken for what was lost",
                hint="a new producer of the same name",
            )
            self._outbox.refuse(ended)
            self._fail_unsent(ended)

    # -- the publishers ----------------------------------------------------------------------------------------------

    def _settle(self, parcel: PendingBatch, ack: Ack) -> None:
        parcel.settle(ack)
        self._outbox.settled(parcel)

    def _fail(self, parcel: PendingBatch, error: FrazilError) -> None:
        parcel.fail(error)
        self._outbox.settled(parcel)

    def _fail_unsent(self, error: FrazilError) -> None:
        unsent = [*self._again, *self._outbox.take_all()]
        self._again.clear()
        for parcel in unsent:
            self._fail(parcel, error)


def _fresh(parcel: PendingBatch) -> PendingBatch:
    parcel.attempts = 0
    return parcel


def _as_frazil(error: Exception) -> FrazilError:
    if isinstance(error, FrazilError):
        return error
    return UsageError("a message cannot be encoded", cause=first_line(error))
