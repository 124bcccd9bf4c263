"""Work done ahead of its consumer, in threads, delivered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetch(
    pool: ThreadPoolExecutor,
    work: Callable[[T], R],
    items: Iterable[T],
    *,
    most: int,
    weigh: Callable[[T], int] = lambda _: 0,
    budget: int = 1,
) -> Iterator[tuple[T, R]]:
    """Yields each item with the result of its work, in the order of the items.

    Args:
        pool: where the work is done.
        work: what is done to each item.
        items: taken one by one, only as far as there is room.
        most: results that are under way or wait for the consumer, at most.
        weigh: bytes that the result of an item will hold.
        budget: bytes that results may hold together; a single heavier one is let through alone.
    """
    waiting: deque[tuple[T, int, Future[R]]] = deque()
    source = iter(items)
    held, item = 0, next(source, None)
    try:
        while item is not None or waiting:
            while item is not None and len(waiting) < most and (not waiting or held + weigh(item) <= budget):
                weight = weigh(item)
                waiting.append((item, weight, pool.submit(work, item)))
                held, item = held + weight, next(source, None)
            done, weight, future = waiting.popleft()
            held -= weight
            yield done, future.result()
    finally:
        for _, _, future in waiting:
            future.cancel()
