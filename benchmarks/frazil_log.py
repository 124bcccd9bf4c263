"""Frazil's own log as a contender: embedded, with threads and with asyncio."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.load import Contender, Load, Scene, drive, drive_async
from benchmarks.payloads import messages
from frazil.log import Batch, Log

TOPIC = "bench"
#: Gives the next of a producer's batches, as the producer has them.
Form = Callable[[Scene], Callable[[], Any]]


@contextmanager
def embedded_log(folder: Path) -> Iterator[tuple[dict[str, Contender], dict[str, Contender]]]:
    """Contenders for single messages and for batches, in this process."""
    with Log.open(folder / "embedded") as log:
        yield (
            {"embedded, threads": partial(_threads, log), "embedded, asyncio": partial(_asyncio, log)},
            {
                "embedded, threads, messages": partial(_batch_threads, log, lists, Batch.of_messages),
                "embedded, asyncio, messages": partial(_batch_asyncio, log, lists, Batch.of_messages),
                "embedded, asyncio, Arrow": partial(_batch_asyncio, log, arrow_batches, Batch.of_arrow),
            },
        )


def singles(scene: Scene) -> Callable[[], bytes]:
    return itertools.cycle(messages(scene.size)).__next__


def lists(scene: Scene) -> Callable[[], tuple[bytes, ...]]:
    """A producer that has its messages one by one."""
    return itertools.cycle(_slices(scene)).__next__


def arrow_batches(scene: Scene) -> Callable[[], pa.RecordBatch]:
    """A producer that has its messages in Arrow."""
    ready = [pa.record_batch({"payload": pa.array(part, pa.binary())}) for part in _slices(scene)]
    return itertools.cycle(ready).__next__


def _slices(scene: Scene) -> list[tuple[bytes, ...]]:
    pool = messages(scene.size)
    return [pool[i : i + scene.batch] for i in range(0, len(pool), scene.batch)]


@contextmanager
def _new_topic(log: Log) -> Iterator[None]:
    """Removed at the end: no contender writes behind a pile of old data."""
    log.create_topic(TOPIC)
    try:
        yield
    finally:
        log.delete_topic(TOPIC)


def _threads(log: Log, scene: Scene, seconds: float) -> Load:
    following = singles(scene)
    with _new_topic(log):
        return drive(lambda _: log.publish(TOPIC, following(), level=scene.level), scene, seconds)


def _asyncio(log: Log, scene: Scene, seconds: float) -> Load:
    following = singles(scene)
    with _new_topic(log):
        return asyncio.run(
            drive_async(lambda _: log.publish_async(TOPIC, following(), level=scene.level), scene, seconds)
        )


# Making the batch counts: packing or encoding, and the CRC.
def _batch_threads(log: Log, form: Form, make: Callable[[Any], Batch], scene: Scene, seconds: float) -> Load:
    following = form(scene)
    with _new_topic(log):
        return drive(lambda _: log.append(TOPIC, make(following()), scene.level), scene, seconds)


def _batch_asyncio(log: Log, form: Form, make: Callable[[Any], Batch], scene: Scene, seconds: float) -> Load:
    following = form(scene)
    with _new_topic(log):
        return asyncio.run(
            drive_async(lambda _: log.append_async(TOPIC, make(following()), scene.level), scene, seconds)
        )
