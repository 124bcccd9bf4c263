"""What is put to the soak: a pipeline with its caretaker, and a table under constant MERGE, in one process with Spark.

`python -m tests.soak_process '{"flags": {…}, "merge_every_s": 2.0, "expire_every_s": 5.0, "delete_delay_s": 15.0}'`
prints a line of JSON for each merge and, once a second, what the metrics say. It ends well on SIGTERM. What is no
setting, because nobody needs another value, is made shorter here with the rest.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from frazil.log.remote.client import Client
from frazil.observe.logs import configure_logs
from frazil.settings import load_settings
from frazil.spark import spark_session
from frazil.tables import TableStore, measures
from frazil.topics.sinks import engine, metrics
from frazil.topics.sinks.caretaker import Caretaker
from frazil.topics.sinks.jobs import for_pipeline
from frazil.topics.sinks.pipeline import Pipeline
from frazil.upkeep import metrics as upkeep
from frazil.upkeep.model import KINDS
from frazil.upkeep.runs.caretaker import caretaking

TOPIC = "soak"
ACCOUNTS = "soak.accounts"
ROWS = 2000
#: The row that says how many merges a snapshot has.
MARK = 0


class Oracle:
    """What the table holds after a number of merges. Everybody who counts the merges comes to the same rows."""

    def __init__(self) -> None:
        self.merges = 0
        self.rows = dict.fromkeys(range(1, ROWS + 1), 0) | {MARK: 0}
        self._next = ROWS + 1

    def advance(self) -> list[tuple[int, int, bool]]:
        """The next merge: (id, new value, whether the row goes)."""
        self.merges += 1
        chance = random.Random(self.merges)
        there = sorted(self.rows.keys() - {MARK})
        chosen = chance.sample(there, 80)
        changes = [(i, self.merges, False) for i in chosen[:60]] + [(i, 0, True) for i in chosen[60:]]
        changes += [(self._next + i, self.merges, False) for i in range(20)]
        self._next += 20
        changes.append((MARK, self.merges, False))
        for i, value, goes in changes:
            if goes:
                del self.rows[i]
            else:
                self.rows[i] = value
        return changes


_saying = threading.Lock()


def say(**what: Any) -> None:
    with _saying:
        print(json.dumps(what), flush=True)


def make_accounts(spark: SparkSession, catalog: str) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.soak")
    modes = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE {catalog}.{ACCOUNTS} (id BIGINT, value BIGINT, note STRING) USING iceberg "
        f"TBLPROPERTIES ('format-version'='2', {modes})"
    )
    spark.sql(f"INSERT INTO {catalog}.{ACCOUNTS} SELECT id, 0, CAST(uuid() AS STRING) FROM range(0, {ROWS + 1})")


def merging(
    spark: SparkSession, catalog: str, caretaker: Caretaker | None, every: float, stop: threading.Event
) -> None:
    """Merges, then gives upkeep its turn, as a sink does."""
    oracle = Oracle()
    due = time.monotonic()
    while not stop.is_set():
        changes = ", ".join(f"({i}, {value}, {str(goes).lower()})" for i, value, goes in oracle.advance())
        began = time.monotonic()
        spark.sql(
            f"MERGE INTO {catalog}.{ACCOUNTS} t USING (SELECT * FROM VALUES {changes} AS s(id, value, goes)) s "
            "ON t.id = s.id WHEN MATCHED AND s.goes THEN DELETE WHEN MATCHED THEN UPDATE SET t.value = s.value "
            "WHEN NOT MATCHED THEN INSERT (id, value, note) VALUES (s.id, s.value, 'new')"
        )
        took = time.monotonic() - began
        say(merge=oracle.merges, seconds=took)
        due = max(due + every, time.monotonic())
        while not stop.is_set():
            if caretaker is not None:
                caretaker.turn([ACCOUNTS], 0.0)
            if (left := due - time.monotonic()) <= 0:
                break
            stop.wait(min(0.2, left))


def yardstick(folder: Path) -> float:
    """Seconds of a piece of work that is always the same, and much like a commit: it tells how busy the machine is."""
    document = {str(i): ["value"] * 20 for i in range(400)}
    began = time.monotonic()
    with (folder / "yardstick").open("w") as file:
        file.write(json.dumps(json.loads(json.dumps(document))))
        file.flush()
        os.fsync(file.fileno())
    return time.monotonic() - began


def telling(folder: Path, stop: threading.Event) -> None:
    """Tells once a second what the pipeline and upkeep have done so far."""
    topic = f"topics.{TOPIC}"
    while not stop.wait(1.0):
        say(
            yardstick=yardstick(folder),
            commits=measures.COMMITS.labels("landed")._value.get(),
            commit_seconds=measures.SECONDS._value.get(),
            batch_seconds=metrics.SECONDS.labels(TOPIC, "archive")._value.get(),
            lag_seconds=metrics.LAG_SECONDS.labels(TOPIC, "archive")._value.get(),
            upkeep_seconds={t: upkeep.SECONDS.labels(t)._value.get() for t in (topic, ACCOUNTS)},
            done=[[t, kind] for t in (topic, ACCOUNTS) for kind in KINDS if _done(t, kind)],
            conflicts={t: upkeep.CONFLICTS.labels(t)._value.get() for t in (topic, ACCOUNTS)},
        )


def _done(table: str, kind: str) -> float:
    found: float = upkeep.STEPS.labels(table, kind, "done")._value.get()
    return found


def main(given: str) -> None:
    asked = json.loads(given)
    engine._EXPIRE_EVERY = asked["expire_every_s"]
    assert TableStore.__init__.__kwdefaults__ is not None
    TableStore.__init__.__kwdefaults__["delete_delay_s"] = asked["delete_delay_s"]
    settings = for_pipeline(load_settings(flags=asked["flags"], environ={}))
    configure_logs("warning", "text")
    catalog = settings.catalog().name
    stop = threading.Event()
    address = settings.model.log.broker
    assert address is not None
    with (
        Client(address) as client,
        spark_session(settings) as spark,
        caretaking(settings, spark) as caretaker,
        Pipeline(settings, client, spark, address, caretaker=caretaker) as pipeline,
    ):
        make_accounts(spark, catalog)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        others = [
            threading.Thread(target=merging, args=(spark, catalog, caretaker, asked["merge_every_s"], stop)),
            threading.Thread(target=telling, args=(settings.model.home, stop)),
        ]
        for thread in others:
            thread.start()
        say(ready=True)
        left = pipeline.run(stop)
        for thread in others:
            thread.join()
        say(over=True, left=None if left is None else left.message)


if __name__ == "__main__":
    main(sys.argv[1])
