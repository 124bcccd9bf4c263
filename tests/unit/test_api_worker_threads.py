"""Threads for calls that may block for good."""

from __future__ import annotations

import asyncio
import threading

import pytest

from frazil.api.worker_threads import WorkerThreads


def test_calls_run_at_the_same_time_up_to_the_limit_and_threads_are_used_again():
    pool = WorkerThreads(3, "t")
    together = threading.Barrier(3)

    async def run() -> list[str]:
        await asyncio.gather(*(pool.run(lambda: together.wait(30)) for _ in range(3)))
        return await asyncio.gather(*(pool.run(lambda: threading.current_thread().name) for _ in range(50)))

    assert set(asyncio.run(run())) <= {"t-0", "t-1", "t-2"}
    assert pool.close(30)


def test_an_error_is_raised_where_the_result_is_awaited_and_the_thread_goes_on():
    pool = WorkerThreads(1, "t")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(pool.run(lambda: 1 / 0))
    assert pool.submit(lambda: 7).result(30) == 7
    assert pool.close(30)


def test_a_call_that_never_returns_does_not_hold_up_the_end():
    pool, forever, begun = WorkerThreads(2, "t"), threading.Event(), threading.Event()
    pool.submit(lambda: (begun.set(), forever.wait()))
    begun.wait(30)
    assert not pool.close(0.01)
    assert all(thread.daemon for thread in pool._threads)
    assert pool.submit(lambda: 1).cancelled(), "it takes no more"
    forever.set()


def test_a_call_whose_caller_has_gone_is_left_out():
    pool, first, done = WorkerThreads(1, "t"), threading.Event(), []
    pool.submit(lambda: first.wait(30))

    async def run() -> None:
        waiting = asyncio.create_task(pool.run(lambda: done.append(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(run())
    first.set()
    assert pool.close(30)
    assert done == []
