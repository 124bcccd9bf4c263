"""Publishes events from an SQS queue: receives them, makes them durable in the log, and only then deletes them.

Whatever fails in between, the message is in the queue, in the log, or in both; the tables are right about duplicates.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from frazil.content.intake import metrics
from frazil.content.intake.messages import Taken, headers_of, store
from frazil.content.intake.queue import LONGEST_WAIT_S, Queue, Received
from frazil.errors import FrazilError, UsageError
from frazil.log.protocol import LogAccess
from frazil.observe.logs import get_logger
from frazil.observe.resilience import retry, worth_retrying
from frazil.settings.model import NetworkSettings

T = TypeVar("T")

SOURCE = "sqs"
#: Seconds of outage of SQS or the broker before the intake gives up.
PATIENCE_S = 60.0
#: The same at the start, when a wrong URL is more likely than an outage.
_TO_START_S = 6.0
#: Seconds without a message after which the queue counts as empty.
_EMPTY_AFTER_S = 2
#: Seconds that receivers have to finish their messages. Those that only wait are abandoned.
_TO_FINISH_S = 10.0

log = get_logger(__name__)


@dataclass(frozen=True)
class Polling:
    """How to receive messages.

    Attributes:
        receivers: threads that receive at the same time.
        for_s: end after this many seconds.
        until_empty: end when a receiver finds nothing.
        wait_s: how long SQS waits for messages.
        patience_s: how long SQS, or the log, may be away.
    """

    receivers: int = 1
    for_s: float | None = None
    until_empty: bool = False
    wait_s: int = LONGEST_WAIT_S
    patience_s: float = PATIENCE_S


class _StopAskedError(FrazilError):
    """Ends the retries."""


class SqsIntake:
    """Publishes the messages of one queue to one topic.

    Args:
        queue: to take from.
        access: the log.
        topic: there already.
        polling: how.
        dialect: fixes the dialect of all messages; by default each is recognised.
    """

    def __init__(
        self, queue: Queue, access: LogAccess, topic: str, polling: Polling, dialect: str | None = None
    ) -> None:
        self._queue, self._access, self._topic, self._polling = queue, access, topic, polling
        self._headers = headers_of(SOURCE, dialect)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._receiving: set[threading.Thread] = set()
        self._error: FrazilError | None = None
        self._visibility_s = 30.0
        self._until = float("inf")
        #: Since when the log accepts nothing, and why.
        self._away: tuple[float, FrazilError] | None = None
        self.taken = Taken(topic)
        self.deleted = 0
        self.undeleted = 0
        self.refused = 0

    def to_dict(self) -> dict[str, Any]:
        more = {"deleted": self.deleted, "undeleted": self.undeleted, "refused": self.refused}
        return self.taken.to_dict() | more

    def run(self, stop: threading.Event) -> None:
        """Receives messages until `stop` is set, or as `polling` says.

        Raises:
            NotFoundError: the queue is not there, or vanished.
            NotAllowedError: the keys are wrong, or may not do this.
            UnavailableError: SQS or the log was away for longer than patience.
        """
        self._stop = stop
        try:
            self._visibility_s = self._patiently(self._queue.visibility_s, "sqs attributes", _TO_START_S)
        except _StopAskedError:
            return
        if self._polling.for_s is not None:
            self._until = time.monotonic() + self._polling.for_s
        threads = [
            threading.Thread(target=self._receiver, name=f"frazil-sqs-{n}", daemon=True)
            for n in range(self._polling.receivers)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not stop.is_set() and self._error is None:
            for thread in threads:
                thread.join(0.1)
        self._wait_for_work(threads)
        if self._error is None and self._away is not None and not stop.is_set():
            self._error = self._away[1]
        if self._error is not None:
            raise self._error

    def _wait_for_work(self, threads: Sequence[threading.Thread]) -> None:
        """Waits for receivers with messages. One that only waits may take 20 s, and gives back what it gets."""
        end = time.monotonic() + _TO_FINISH_S
        while time.monotonic() < end:
            with self._lock:
                busy = [t for t in threads if t.is_alive() and t not in self._receiving]
            if not busy:
                return
            busy[0].join(0.05)

    @property
    def _ending(self) -> bool:
        return self._stop.is_set() or self._error is not None

    def _receiver(self) -> None:
        try:
            while not self._ending and (left := self._until - time.monotonic()) > 0:
                if not self._turn(left) and self._polling.until_empty:
                    return
        except _StopAskedError:
            return
        except FrazilError as error:
            with self._lock:
                self._error = self._error or error
        except Exception as error:  # noqa: BLE001 - whatever it is, the other receivers must not go on in silence
            with self._lock:
                self._error = self._error or FrazilError(f"unexpected {type(error).__name__}", cause=str(error))

    def _turn(self, left: float) -> bool:
        """Receives and publishes once. Returns whether there were messages."""
        longest = min(self._polling.wait_s, _EMPTY_AFTER_S) if self._polling.until_empty else self._polling.wait_s
        wait_s = max(0, int(min(longest, left)))
        began = time.monotonic()
        messages = self._receive(wait_s)
        if not messages:
            if wait_s == 0:
                self._stop.wait(min(left, 0.2))  # the last part of a second: SQS counts whole ones
            return False
        if self._ending:
            with suppress(FrazilError):  # they show up by themselves, a little later
                self._queue.give_back(messages)
            return True
        self._take(messages, began)
        return True

    def _receive(self, wait_s: int) -> list[Received]:
        me = threading.current_thread()
        with self._lock:
            self._receiving.add(me)
        try:
            return self._patiently(partial(self._queue.receive, wait_s), "sqs receive")
        finally:
            with self._lock:
                self._receiving.discard(me)

    def _take(self, messages: list[Received], began: float) -> None:
        """Makes messages durable, then deletes them.

        When they are no longer hidden, others may have got them: then it is not tried any longer, and they come again.
        """
        hidden_s = max(0.0, began + self._visibility_s - time.monotonic())
        try:
            self._patiently(partial(self._store, messages), "log append", hidden_s)
            stored = messages
        except UsageError:  # one of them is what the log cannot take
            stored = self._store_singly(messages)
        except FrazilError as error:
            if not worth_retrying(error) or hidden_s >= self._polling.patience_s:
                raise
            self._let_go(error, began)
            return
        self._away = None
        if stored:
            self._delete(stored)

    def _let_go(self, error: FrazilError, began: float) -> None:
        with self._lock:
            since = self._away[0] if self._away else began
            self._away = since, error
        if time.monotonic() - since >= self._polling.patience_s:
            raise error
        log.warning("messages stay in the queue: the log did not accept them in time", error=error.message)

    def _store(self, messages: Sequence[Received]) -> None:
        ack = store(self._access, self._topic, [m.body for m in messages], self._headers)
        with self._lock:
            self.taken.add(ack, sum(len(m.body) for m in messages))

    def _store_singly(self, messages: Sequence[Received]) -> list[Received]:
        stored = []
        for message in messages:
            try:
                self._patiently(partial(self._store, [message]), "log append")
                stored.append(message)
            except UsageError as error:
                with self._lock:
                    self.refused += 1
                metrics.REFUSED.labels(SOURCE, type(error).__name__).inc()
                log.warning("a message stays in the queue: the log does not accept it", error=error.message)
        return stored

    def _delete(self, messages: list[Received]) -> None:
        """Deletes messages. One that cannot be deleted comes again: twice in the log, once in the tables."""
        left = messages
        try:
            left = self._patiently(partial(self._queue.delete, messages), "sqs delete")
            if left:
                left = self._patiently(partial(self._queue.delete, left), "sqs delete")
        finally:
            with self._lock:
                self.deleted += len(messages) - len(left)
                self.undeleted += len(left)
            metrics.SQS_DELETED.inc(len(messages) - len(left))
            metrics.SQS_UNDELETED.inc(len(left))
        if left:
            log.warning("durable messages could not be deleted from the queue and will come again", count=len(left))

    def _patiently(self, call: Callable[[], T], operation: str, at_most_s: float = float("inf")) -> T:
        """Retries during outages, but not after `stop`."""
        patience_s = max(0.001, min(self._polling.patience_s, at_most_s))
        network = NetworkSettings(retry_attempts=10_000, retry_timeout=patience_s)
        return retry(call, network, operation=operation, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds) or self._error is not None:
            raise _StopAskedError("asked to end")
