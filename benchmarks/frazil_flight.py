"""`frazil serve` as a contender: a process of its own, and one producer whose publishers share its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.frazil_log import TOPIC, Form, arrow_batches, lists, singles
from benchmarks.lake import served
from benchmarks.load import Contender, Load, Scene, drive, drive_async
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer


@contextmanager
def flight_log(folder: Path) -> Iterator[tuple[dict[str, Contender], dict[str, Contender]]]:
    """Contenders for single messages and for batches, through the broker."""
    (folder / "broker").mkdir()
    with served(folder / "broker" / "home") as (_, address):
        yield (
            {"Flight, threads": partial(_threads, address), "Flight, asyncio": partial(_asyncio, address)},
            {
                "Flight, threads, messages": partial(_batch_threads, address, lists),
                "Flight, asyncio, messages": partial(_batch_asyncio, address, lists),
                "Flight, asyncio, Arrow": partial(_batch_asyncio, address, arrow_batches),
            },
        )


@contextmanager
def _producer(address: str, level: str) -> Iterator[Producer]:
    """On a new topic, removed at the end: no contender writes behind a pile of old data."""
    with Client(address) as client:
        client.create_topic(TOPIC)
        try:
            with Producer(client, TOPIC, level=level) as producer:
                yield producer
        finally:
            client.delete_topic(TOPIC)


def _threads(address: str, scene: Scene, seconds: float) -> Load:
    following = singles(scene)
    with _producer(address, scene.level) as producer:
        return drive(lambda _: producer.publish(following()), scene, seconds)


def _asyncio(address: str, scene: Scene, seconds: float) -> Load:
    following = singles(scene)
    with _producer(address, scene.level) as producer:
        return asyncio.run(drive_async(lambda _: producer.publish_async(following()), scene, seconds))


def _batch_threads(address: str, form: Form, scene: Scene, seconds: float) -> Load:
    following: Callable[[], object] = form(scene)
    with _producer(address, scene.level) as producer:
        return drive(lambda _: producer.publish_batch(following()), scene, seconds)


def _batch_asyncio(address: str, form: Form, scene: Scene, seconds: float) -> Load:
    following = form(scene)
    with _producer(address, scene.level) as producer:
        return asyncio.run(drive_async(lambda _: producer.publish_batch_async(following()), scene, seconds))
