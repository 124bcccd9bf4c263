"""The peers, with their own Python clients, at equal durability: each answer comes after the sync to the disk."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nats
import redis.asyncio
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig

from benchmarks.load import Contender, Load, Scene, SendAsync, drive_async
from benchmarks.payloads import messages
from tests.services.nats import start_nats
from tests.services.redis import start_redis


@contextmanager
def peers(folder: Path) -> Iterator[tuple[dict[str, Contender], dict[str, Contender]]]:
    """Both servers, as contenders for single messages and for batches."""
    with ExitStack() as running:
        for name in ("nats", "redis"):
            (folder / name).mkdir()
        nats_server = start_nats(folder / "nats")
        running.callback(nats_server.stop)
        redis_server = start_redis(folder / "redis")
        running.callback(redis_server.stop)
        single = {"NATS": jetstream(nats_server.url), "Redis": streams(redis_server.url)}
        batched = {
            "NATS, sent ahead": jetstream(nats_server.url),
            "NATS, atomic batch": atomic_batches(nats_server.url),
            "Redis, pipeline": streams(redis_server.url),
        }
        yield single, batched


def streams(url: str) -> Contender:
    """Redis: XADD, and a pipeline of them for a batch; each publisher has a connection."""

    async def run(scene: Scene, seconds: float) -> Load:
        # Patient: a batch that the client sends again for impatience would be measured as two.
        client = redis.asyncio.Redis.from_url(url, max_connections=scene.publishers + 1, socket_timeout=120)
        pool = messages(scene.size)
        following = itertools.cycle(range(0, len(pool) - scene.batch, scene.batch)).__next__

        async def single(_: int) -> None:
            await client.xadd("bench", {b"payload": pool[following()]})

        async def batch(_: int) -> None:
            start = following()
            async with client.pipeline(transaction=False) as pipeline:
                for payload in pool[start : start + scene.batch]:
                    pipeline.xadd("bench", {b"payload": payload})
                await pipeline.execute()

        try:
            return await drive_async(batch if scene.batch > 1 else single, scene, seconds)
        finally:
            await client.delete("bench")
            await client.aclose()

    return lambda scene, seconds: asyncio.run(run(scene, seconds))


def jetstream(url: str) -> Contender:
    """NATS: a publish that waits, and for a batch all sent ahead, then all acknowledgements awaited."""

    def sender(stream: JetStreamContext, scene: Scene) -> SendAsync:
        pool = messages(scene.size)
        following = itertools.cycle(range(0, len(pool) - scene.batch, scene.batch)).__next__

        async def single(_: int) -> None:
            await stream.publish("bench", pool[following()], timeout=30)

        async def batch(_: int) -> None:
            start = following()
            payloads = pool[start : start + scene.batch]
            acknowledged = [await stream.publish_async("bench", p, wait_stall=120) for p in payloads]
            await asyncio.gather(*acknowledged)

        return batch if scene.batch > 1 else single

    return lambda scene, seconds: asyncio.run(_on_stream(url, sender, scene, seconds))


def atomic_batches(url: str) -> Contender:
    """NATS since 2.12: a batch is sent unanswered, and its last message commits the whole of it."""

    def sender(stream: JetStreamContext, scene: Scene) -> SendAsync:
        pool = messages(scene.size)
        following = itertools.cycle(range(0, len(pool) - scene.batch, scene.batch)).__next__
        numbers = [str(n) for n in range(1, scene.batch + 1)]

        async def batch(_: int) -> None:
            start, name = following(), uuid.uuid4().hex
            *firsts, last = pool[start : start + scene.batch]
            for number, payload in zip(numbers, firsts, strict=False):
                headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": number}
                await stream._nc.publish("bench", payload, headers=headers)
            ending = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": numbers[-1], "Nats-Batch-Commit": "1"}
            answer = await stream.publish("bench", last, headers=ending, timeout=120)
            assert answer.batch_size == scene.batch, answer

        return batch

    return lambda scene, seconds: asyncio.run(_on_stream(url, sender, scene, seconds))


async def _on_stream(
    url: str, sender: Callable[[JetStreamContext, Scene], SendAsync], scene: Scene, seconds: float
) -> Load:
    """A new, empty stream, removed at the end: no contender writes behind a pile of old data."""
    client = await nats.connect(url)
    try:
        context = client.jetstream(timeout=30, publish_async_max_pending=200_000)
        await context.add_stream(
            StreamConfig(name="bench", subjects=["bench"], storage=StorageType.FILE, allow_atomic=True)
        )
        try:
            return await drive_async(sender(context, scene), scene, seconds)
        finally:
            await context.delete_stream("bench")
    finally:
        await client.close()
