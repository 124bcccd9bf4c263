"""Group commit: of the threads that wait, one works for all of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from frazil.errors import FrazilError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False)
class Request(Generic[T, R]):
    """What one thread wants, and its outcome: either `result` or `error` is set before the work returns."""

    item: T
    size: int
    result: R | None = None
    error: BaseException | None = None
    _wake: threading.Event = field(default_factory=threading.Event)
    _leads: bool = False


class GroupCommit(Generic[T, R]):
    """Lets the first of the waiting threads lead: it works for all that wait, then hands the lead on.

    Args:
        work: gives each request its outcome. An error that it raises is the outcome of those that have none.
        max_size: of the requests of one call of `work`, together; a larger request is worked on alone.
    """

    def __init__(self, work: Callable[[list[Request[T, R]]], None], max_size: int) -> None:
        self._work, self._max_size = work, max_size
        self._lock = threading.Lock()
        self._pending: deque[Request[T, R]] = deque()
        self._is_led = False

    def submit(self, item: T, size: int = 1) -> R:
        """Returns the outcome of one request, which a thread has worked on together with others."""
        request: Request[T, R] = Request(item, size)
        with self._lock:
            self._pending.append(request)
            request._leads, self._is_led = not self._is_led, True
        if not request._leads:
            self._wait(request)
        if request._leads:
            self._lead()
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]  # set where there is no error

    def _wait(self, request: Request[T, R]) -> None:
        try:
            request._wake.wait()
        except BaseException:  # Ctrl-C: the lead must not stay with a thread that has left
            with self._lock:
                if request in self._pending:
                    self._pending.remove(request)
                leads = request._leads
            if leads:
                self._hand_over()
            raise

    def _lead(self) -> None:
        group = self._next_group()
        try:
            self._work(group)
        except Exception as error:  # noqa: BLE001 - it is raised in the threads that wait
            _fail(group, error)
        except BaseException as error:  # Ctrl-C in this thread is no interruption of the others
            _fail(group, FrazilError("the write was interrupted, and may be applied or not", cause=repr(error)))
            raise
        finally:
            self._hand_over()
            for request in group:
                request._wake.set()

    def _next_group(self) -> list[Request[T, R]]:
        with self._lock:
            group = [self._pending.popleft()]
            size = group[0].size
            while self._pending and size + self._pending[0].size <= self._max_size:
                group.append(self._pending.popleft())
                size += group[-1].size
            return group

    def _hand_over(self) -> None:
        with self._lock:
            self._is_led = bool(self._pending)
            if self._pending:
                self._pending[0]._leads = True
                self._pending[0]._wake.set()


def _fail(group: Sequence[Request[Any, Any]], error: Exception) -> None:
    for request in group:
        if request.result is None and request.error is None:
            request.error = error


def outcome_of(request: Request[Any, R], make: Callable[[], R]) -> None:
    """Sets the outcome of a request to what a function returns or raises."""
    try:
        request.result = make()
    except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits for it
        request.error = error
