"""Publishes to a log until it is killed, and says on stdout what was acknowledged: `python -m tests.log_writer …`.

A line per acknowledgement, after it: `ack offset count level text`. A line per retention, before it: `plan start`,
and one after it: `start start`. The pipe is the witness: it outlives the process.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from pathlib import Path

from frazil.log import Ack, Batch, Level, Log, OffsetGoneError
from tests.log_kit import settings

#: The log lets go of nothing that this sink has not reported.
SINK = "table"
KEPT_BYTES = 60_000

_lock = threading.Lock()


def say(*words: object) -> None:
    with _lock:
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()


def told(ack: Ack, text: str) -> None:
    say("ack", ack.offset, ack.count, ack.level, text)


def thread(log: Log, name: str, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    while True:
        number += 1
        text = f"{name}-{number}-{'x' * chance.choice([0, 10, 500])}"
        level = chance.choice([Level.os, Level.disk])
        if chance.random() < 0.3:
            told(log.append("orders", Batch.of_messages([text.encode()] * 3), level), text)
        else:
            told(log.publish("orders", text.encode(), level=level), text)


def producer(log: Log, name: str, seed: int) -> None:
    """Sends every batch, and some twice. A new process begins with what the one before sent last, again."""
    chance = random.Random(seed)
    who = log.register("orders", name)
    sequence = 0
    while True:
        text = f"{name}-{who.producer_epoch}-{sequence}"
        batch = Batch.of_messages(
            [text.encode()] * 2, producer_id=who.producer_id, producer_epoch=who.producer_epoch, sequence=sequence
        )
        first = log.append("orders", batch, Level.disk)
        told(first, text)
        if chance.random() < 0.5:
            again = log.append("orders", batch, Level.disk)
            assert again == first._replace(duplicate=True)
        sequence += 1


async def coroutines(log: Log, name: str) -> None:
    async def one(which: int) -> None:
        number = 0
        while True:
            number += 1
            text = f"{name}-{which}-{number}"
            told(await log.publish_async("orders", text.encode()), text)

    await asyncio.gather(*(one(n) for n in range(8)))


def main() -> None:
    folder, run = Path(sys.argv[1]), int(sys.argv[2])
    log = Log.open(folder, settings(max_file_size=16_384, sync_interval_ms=20))
    log.create_topic("orders", exist_ok=True)
    log.configure("orders", {"sinks": [SINK]})
    say("open", log.info("orders").end)
    work = [(thread, (log, f"t{n}.{run}", run * 10 + n)) for n in range(2)]
    work.append((producer, (log, "billing", run)))
    work.append((lambda: asyncio.run(coroutines(log, f"c.{run}")), ()))
    for target, arguments in work:
        threading.Thread(target=target, args=arguments, daemon=True).start()
    follow(log)


def follow(log: Log) -> None:
    """Reads along, and says how far it has seen; now and then, old segments go."""
    end = 0
    while True:
        end = log.wait("orders", end, 1)
        say("seen", end)
        try:
            for chunk in log.chunks("orders", max(0, end - 5)):
                assert chunk.data.size
        except OffsetGoneError:
            pass
        if end % 7 == 0:
            retain(log, end)


def retain(log: Log, end: int) -> None:
    """Removes what was planned and told, and not what the others fill up meanwhile: the sink has only that."""
    log.report("orders", SINK, end)
    planned = log.retain("orders", size=KEPT_BYTES, dry_run=True).start
    log.report("orders", SINK, planned)
    say("plan", planned)
    say("start", log.retain("orders", size=KEPT_BYTES).start)


if __name__ == "__main__":
    main()
