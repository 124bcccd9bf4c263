"""Iterators that block, for coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def iterate_in_thread(items: Generator[T], stop: threading.Event) -> AsyncIterator[T]:
    """Yields what a generator yields, which runs in a thread of its own.

    Args:
        items: the generator. It is closed in its thread.
        stop: makes it end soon; set when the caller stops, or is cancelled.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "frazil-follow")
    end = object()
    try:
        while (item := await loop.run_in_executor(thread, next, items, end)) is not end:
            yield item  # type: ignore[misc]  # not the sentinel
    finally:
        stop.set()
        thread.submit(items.close)
        thread.shutdown(wait=False)
