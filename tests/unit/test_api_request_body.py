"""No more bodies in memory than the allowance; who waits comes in turn, and nothing taken is lost."""

from __future__ import annotations

import asyncio

import pytest

from frazil.api import request_body
from frazil.api.origin_check import is_loopback
from frazil.api.request_body import BodyMemory
from frazil.errors import UnavailableError


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_those_who_find_no_room_wait_in_turn():
    async def scene():
        allowance, order, gates = BodyMemory(10), [], {}

        async def request(name: str, size: int) -> None:
            gates[name] = asyncio.Event()
            async with allowance.reserve(size):
                order.append(name)
                await gates[name].wait()

        tasks = [asyncio.create_task(request(name, size)) for name, size in (("a", 8), ("b", 6), ("c", 1))]
        await settle()
        assert order == ["a"]  # c would fit, but b came first
        gates["a"].set()
        await settle()
        assert order == ["a", "b", "c"]
        gates["b"].set(), gates["c"].set()
        await asyncio.gather(*tasks)
        async with allowance.reserve(10):
            pass

    asyncio.run(scene())


def test_one_that_gives_up_waiting_takes_nothing_with_it():
    async def scene():
        allowance = BodyMemory(10)
        async with allowance.reserve(10):
            waiting = [asyncio.create_task(allowance._acquire(size)) for size in (5, 5)]
            await settle()
            waiting[0].cancel()
            await settle()
        await waiting[1]
        async with asyncio.timeout(5), allowance.reserve(5):
            pass

    asyncio.run(scene())


def test_one_that_waits_too_long_is_asked_to_come_again(monkeypatch):
    monkeypatch.setattr(request_body, "_MEMORY_WAIT_S", 0.01)

    async def scene():
        allowance = BodyMemory(10)
        async with allowance.reserve(10):
            with pytest.raises(UnavailableError):
                await allowance._acquire(1)
        async with asyncio.timeout(5), allowance.reserve(10):
            pass

    asyncio.run(scene())


def test_a_body_larger_than_everything_takes_everything():
    async def scene():
        async with asyncio.timeout(5), BodyMemory(10).reserve(1000):
            pass

    asyncio.run(scene())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_this_is_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.168.0.1", "example.com", "127.0.0.1.example.com"])
def test_this_is_not(host):
    assert not is_loopback(host)
