"""What is put to the soak: a pipeline with its caretaker, and a table under constant MERGE, in one process with Spark.

`python -m tests.soak_process '{"flags": {…}, "merge_every_s": 2.0, "expire_every_s": 5.0, "delete_delay_s": 15.0}'`
prints a line of JSON for each merge and, once a second, what the metrics say. It ends well on SIGTERM. What is no
setting, because nobody needs another value, is made shorter here with the rest; not where it says null.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frazil.log.remote.client import Client
from frazil.observe.logs import configure_logs
from frazil.settings import load_settings
from frazil.spark import spark_session
from frazil.tables import TableStore
from frazil.tables import metrics as table_metrics
from frazil.topics.sinks import metrics
from frazil.topics.sinks.archive import ArchiveSink
from frazil.topics.sinks.jobs import for_pipeline
from frazil.topics.sinks.pipeline import Pipeline
from frazil.topics.sinks.sink_upkeep import SinkUpkeep
from frazil.upkeep import metrics as upkeep
from frazil.upkeep.model import KINDS
from frazil.upkeep.runs.pipeline_upkeep import make_pipeline_upkeep
from tests.soak_merge import ACCOUNTS, make_accounts, merging, timed

TOPIC = "soak"

_saying = threading.Lock()


def say(**what: Any) -> None:
    with _saying:
        print(json.dumps(what), flush=True)


def caring(caretaker: SinkUpkeep, stop: threading.Event) -> None:
    """Upkeep of the table that is merged into, beside the merges: it knows of them by their commits alone."""
    while not stop.wait(0.2):
        caretaker.run_turn([ACCOUNTS], lambda: 0.0)


def yardstick(folder: Path) -> float:
    """Seconds of what is always the same and much like a commit: JSON, and some small files that are synced."""
    document = {str(i): ["value"] * 20 for i in range(400)}

    def work() -> None:
        text = json.dumps(json.loads(json.dumps(document)))
        for number in range(4):
            with (folder / f"yardstick-{number}").open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())

    return timed(work)


def telling(folder: Path, stop: threading.Event) -> None:
    """Tells once a second what the pipeline and upkeep have done so far."""
    topic = f"topics.{TOPIC}"
    while not stop.wait(1.0):
        say(
            yardstick=yardstick(folder),
            commits=table_metrics.COMMITS.labels("landed")._value.get(),
            commit_seconds=table_metrics.SECONDS._value.get(),
            batch_seconds=metrics.SECONDS.labels(TOPIC, "archive")._value.get(),
            lag_seconds=metrics.LAG_SECONDS.labels(TOPIC, "archive")._value.get(),
            upkeep_seconds={t: upkeep.SECONDS.labels(t)._value.get() for t in (topic, ACCOUNTS)},
            done={t: {kind: n for kind in KINDS if (n := _done(t, kind))} for t in (topic, ACCOUNTS)},
            conflicts={t: upkeep.CONFLICTS.labels(t)._value.get() for t in (topic, ACCOUNTS)},
        )


def _done(table: str, kind: str) -> int:
    return int(upkeep.STEPS.labels(table, kind, "done")._value.get())


def _guarded(loop: Callable[..., None], *given: Any) -> None:
    """What goes wrong in a thread is told, so that the soak ends."""
    try:
        loop(*given)
    except Exception:  # noqa: BLE001 - the soak tells it
        say(wrong=f"{loop.__name__}: {traceback.format_exc()}")


def main(given: str) -> None:
    asked = json.loads(given)
    if asked["expire_every_s"] is not None:
        ArchiveSink.idle_work_every_s = asked["expire_every_s"]
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
        make_pipeline_upkeep(settings, spark) as caretaker,
        Pipeline(settings, client, spark, address, upkeep=caretaker) as pipeline,
    ):
        make_accounts(spark, catalog)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        loops: list[tuple[Any, ...]] = [
            (merging, spark, catalog, asked["merge_every_s"], say, stop),
            (telling, settings.model.home, stop),
        ]
        if caretaker is not None:
            loops.append((caring, caretaker, stop))
        others = [threading.Thread(target=_guarded, args=loop) for loop in loops]
        for thread in others:
            thread.start()
        say(ready=True)
        left = pipeline.run(stop)
        for thread in others:
            thread.join()
        say(over=True, left=None if left is None else left.message)


if __name__ == "__main__":
    main(sys.argv[1])
