"""Daemon threads for calls that may block for good: they do not keep the process alive when it ends."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThreads:
    """A pool of daemon threads, which start when they are needed.

    Args:
        limit: threads at most; further calls wait.
        name: of the threads.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False

    async def run(self, call: Callable[[], T]) -> T:
        """Waits for a call in a thread of the pool. If the caller goes away before it has begun, it is left out."""
        return await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                future.cancel()
                return future
            self._calls.put((future, call))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._limit:
                thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self, seconds: float) -> bool:
        """Takes no more calls, and waits for those that there are. False: some of them did not end in time."""
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._calls.put(None)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while True:
            try:
                item = self._calls.get_nowait()
            except queue.Empty:
                self._idle.release()
                item = self._calls.get()
            if item is None:
                return
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del item, future, call  # an idle thread holds nothing
