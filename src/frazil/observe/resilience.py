"""Patience with servers: trying again, and not asking a server that was away too often.

`retry` belongs outside, the breaker inside: each try passes the breaker, and an open breaker ends the tries.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

from frazil.errors import CircuitOpenError, FrazilError, UnavailableError
from frazil.observe import metrics
from frazil.observe.backoff import Backoff
from frazil.observe.logs import get_logger
from frazil.settings.model import NetworkSettings

T = TypeVar("T")
Clock = Callable[[], float]

_BACKOFF = Backoff(first=0.1, longest=2.0)
_STATES = {"closed": 0, "half-open": 1, "open": 2}

log = get_logger(__name__)


def worth_retrying(error: FrazilError) -> bool:
    """Whether the same call may succeed a moment later. A conflict may not: its caller has to look again first."""
    return isinstance(error, UnavailableError) and not isinstance(error, CircuitOpenError)


def retry(
    fn: Callable[[], T],
    network: NetworkSettings,
    *,
    operation: str,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Calls `fn` until it succeeds, fails permanently, or the retry timeout ends; then raises the last error.

    No try begins later than `network.retry_timeout` seconds after the first: it all takes that plus one try at most.
    """
    start = clock()
    for attempt in range(1, network.retry_attempts + 1):
        try:
            return fn()
        except FrazilError as error:
            pause = _BACKOFF.pause(attempt)
            out_of_time = clock() - start + pause >= network.retry_timeout
            if not worth_retrying(error) or attempt == network.retry_attempts or out_of_time:
                raise
            log.info("retrying", operation=operation, attempt=attempt, pause=round(pause, 3), error=error.message)
            metrics.RETRIES.labels(operation).inc()
            sleep(pause)
    raise AssertionError("the last attempt returns or raises")


class CircuitBreaker:
    """Stops asking a server after `failures` failures in a row; after `reset` seconds lets one call through as a probe.

    Only `UnavailableError` is a failure. "Not found" or "not allowed" is an answer, so the server is there.
    """

    def __init__(self, name: str, *, failures: int, reset: float, clock: Clock = time.monotonic) -> None:
        self.name = name
        self._limit = failures
        self._reset = reset
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False
        self._show()

    @property
    def state(self) -> Literal["closed", "half-open", "open"]:
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._probing else "open"

    def call(self, fn: Callable[[], T]) -> T:
        self._enter()
        try:
            result = fn()
        except UnavailableError:
            self.failed()
            raise
        except Exception:
            self.answered()
            raise
        except BaseException:  # interrupted: nothing learned about the server
            self._give_up_probe()
            raise
        self.answered()
        return result

    def check(self) -> None:
        """Raises if the circuit is open, for work that reports its own results through `failed` or `answered`.

        Raises:
            CircuitOpenError: the server was away, and it is too early to ask it again.
        """
        with self._lock:
            if self._opened_at is not None and self._wait() > 0:
                raise self._open_error()

    def _enter(self) -> None:
        with self._lock:
            if self._opened_at is None:
                return
            if self._probing or self._wait() > 0:
                raise self._open_error()
            self._probing = True
            self._show()

    def _wait(self) -> float:
        """Seconds until an open one lets a call through."""
        return (self._opened_at or 0.0) + self._reset - self._clock()

    def _open_error(self) -> CircuitOpenError:
        return CircuitOpenError(
            f"{self.name} failed {self._failures} times in a row; requests are suspended",
            hint=f"wait {max(self._wait(), 1):.0f} s, and check that the server is up and reachable from this machine",
        )

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            newly_open = self._opened_at is None and self._failures >= self._limit
            if newly_open or self._probing or (self._opened_at is not None and self._wait() <= 0):
                self._opened_at = self._clock()
                metrics.BREAKER_OPENED.labels(self.name).inc()
                log.warning("circuit breaker opened", name=self.name, failures=self._failures)
            self._probing = False
            self._show()

    def answered(self) -> None:
        with self._lock:
            self._failures = 0
            self._opened_at = None
            self._probing = False
            self._show()

    def _give_up_probe(self) -> None:
        with self._lock:
            self._probing = False
            self._show()

    def _show(self) -> None:
        metrics.BREAKER_STATE.labels(self.name).set(_STATES[self.state])


_breakers: dict[tuple[str, int, float], CircuitBreaker] = {}
_breakers_lock = threading.Lock()


def breaker_for(name: str, network: NetworkSettings) -> CircuitBreaker:
    """Returns the breaker of a server, shared by all its clients in this process."""
    key = (name, network.breaker_failures, network.breaker_reset)
    with _breakers_lock:
        if key not in _breakers:
            _breakers[key] = CircuitBreaker(name, failures=network.breaker_failures, reset=network.breaker_reset)
        return _breakers[key]
