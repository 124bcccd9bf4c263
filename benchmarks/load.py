"""Publishers that send and wait for the acknowledgement, again and again, until the time is over."""

from __future__ import annotations

import asyncio
import statistics
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Scene:
    """What is sent: `publishers` at once, each sending `batch` messages of `size` bytes and waiting."""

    size: int
    publishers: int
    batch: int = 1
    level: str = "disk"

    def __str__(self) -> str:
        size = f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KB"
        what = f"batches of {self.batch:,}" if self.batch > 1 else "single"
        who = "1 publisher" if self.publishers == 1 else f"{self.publishers} publishers"
        return f"{size}, {what}, {who}, `{self.level}`"


@dataclass(frozen=True)
class Load:
    """What came of it: median and 99th percentile of one acknowledgement in µs, and messages per second."""

    p50: float
    p99: float
    rate: float

    def __str__(self) -> str:
        return f"{micros(self.p50)} / {micros(self.p99)} µs, {count(self.rate)}/s"


Contender = Callable[[Scene, float], Load]
Send = Callable[[int], object]
SendAsync = Callable[[int], Awaitable[object]]


def micros(value: float) -> str:
    return f"{value:,.0f}"


def count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:,.0f}k" if value >= 1e5 else f"{value / 1e3:,.1f}k" if value >= 1e3 else f"{value:,.0f}"


def load_of(times: Sequence[float], batch: int, taken: float) -> Load:
    ordered = sorted(times)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.99))
    return Load(p50 * 1e6, p99 * 1e6, len(times) * batch / taken)


def drive(send: Send, scene: Scene, seconds: float) -> Load:
    """One publisher in this thread, or each in a thread of its own. `send` gets the publisher's number."""
    times: list[float] = []
    failed: list[BaseException] = []

    def publish(number: int, until: float) -> None:
        try:
            began = perf_counter()
            while began < until:
                send(number)
                now = perf_counter()
                times.append(now - began)
                began = now
        except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
            failed.append(error)

    for number in range(min(scene.publishers, 4)):
        send(number)
    began = perf_counter()
    if scene.publishers == 1:
        publish(0, began + seconds)
    else:
        threads = [threading.Thread(target=publish, args=(n, began + seconds)) for n in range(scene.publishers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return load_of(times, scene.batch, perf_counter() - began)


async def drive_async(send: SendAsync, scene: Scene, seconds: float) -> Load:
    """Each publisher a task of this loop. `send` gets the publisher's number."""
    times: list[float] = []

    async def publish(number: int, until: float) -> None:
        began = perf_counter()
        while began < until:
            await send(number)
            now = perf_counter()
            times.append(now - began)
            began = now

    await asyncio.gather(*(send(number) for number in range(scene.publishers)))  # opens connections, warms paths
    began = perf_counter()
    await asyncio.gather(*(publish(number, began + seconds) for number in range(scene.publishers)))
    return load_of(times, scene.batch, perf_counter() - began)


def rounds(
    contenders: Mapping[str, Contender], scene: Scene, *, times: int = 3, seconds: float = 0.5
) -> dict[str, Load]:
    """Each contender in turn, and again; the median of each number."""
    seen: dict[str, list[Load]] = {name: [] for name in contenders}
    for _ in range(times):
        for name, contender in contenders.items():
            seen[name].append(contender(scene, seconds))
    return {name: _median(loads) for name, loads in seen.items()}


def _median(loads: Sequence[Load]) -> Load:
    return Load(*(statistics.median(getattr(load, name) for load in loads) for name in ("p50", "p99", "rate")))
