"""A whole Frazil on one machine: `frazil serve` as a process, the pipeline on Spark, upkeep, an embedded catalog."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.payloads import messages
from frazil.catalogs import local_path, open_catalog
from frazil.log.remote.client import Client
from frazil.log.remote.producer import Producer
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from frazil.tables import TableStore, find_position
from frazil.topics.layout import ARCHIVE, table_name
from frazil.topics.reading.reader import TopicReader
from frazil.topics.sinks.jobs import for_pipeline
from frazil.topics.sinks.pipeline import Pipeline
from frazil.upkeep.runs.pipeline_upkeep import make_pipeline_upkeep

FRAZIL = Path(sys.executable).with_name("frazil")
BATCH = 1000


@dataclass(frozen=True)
class Lake:
    settings: Settings
    broker: subprocess.Popen[str]
    client: Client
    pipeline: Pipeline
    store: TableStore
    spark: SparkSession
    address: str

    @contextmanager
    def only(self, topic: str, **flags: str) -> Iterator[Pipeline]:
        """A pipeline of one topic, which no other may have taken: both would write the same."""
        given = {"home": str(self.settings.model.home), **{f"pipeline.{name}": value for name, value in flags.items()}}
        settings = for_pipeline(load_settings(flags=given, environ={}))
        with Pipeline(settings, self.client, self.spark, self.address, topics=[topic]) as pipeline:
            yield pipeline

    def fill(self, topic: str, rows: int, size: int = 1024) -> None:
        """Publishes messages in batches; returns when all are on disk."""
        pool = messages(size)
        slices = itertools.cycle([pool[i : i + BATCH] for i in range(0, len(pool), BATCH)])
        with Producer(self.client, topic) as producer:
            for batch in itertools.islice(slices, rows // BATCH):
                producer.send_batch(batch)

    def files(self, topic: str) -> list[str]:
        tasks = self.store.load(table_name(self.settings, topic)).scan().plan_files()
        return [str(local_path(task.file.file_path)) for task in tasks]

    def reader(self, topic: str) -> TopicReader:
        return TopicReader(self.client, topic, lambda: self.store.load(table_name(self.settings, topic)))

    def reached(self, topic: str) -> int:
        """The first offset that the table does not have, as anybody sees it who loads the table."""
        position = find_position(self.store.load(table_name(self.settings, topic)), ARCHIVE, topic)
        return position.offsets[0] if position is not None else 0


@contextmanager
def lake(home: Path) -> Iterator[Lake]:
    with ExitStack() as running:
        broker, address = running.enter_context(served(home))
        settings = for_pipeline(load_settings(flags={"home": str(home)}, environ={}))
        chosen, network = settings.catalog(), settings.model.network
        store = TableStore(open_catalog(chosen, network), chosen, network)
        running.callback(store.close)
        client = running.enter_context(Client(address))
        spark = running.enter_context(spark_session(settings))
        caretaker = running.enter_context(make_pipeline_upkeep(settings, spark))
        pipeline = running.enter_context(Pipeline(settings, client, spark, address, upkeep=caretaker))
        yield Lake(settings, broker, client, pipeline, store, spark, address)


@contextmanager
def served(home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`frazil serve` on free ports, and where its Flight is; ended by its process id."""
    ports = [part for port in ("http_port", "flight_port") for part in ("--set", f"serve.{port}=0")]
    command = [FRAZIL, "serve", "--set", f"home={home}", *ports, "--output", "json"]
    with (home.parent / "serve.log").open("w") as log:
        broker = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=log)
    try:
        assert broker.stdout is not None
        yield broker, json.loads(broker.stdout.readline())["flight"]
    finally:
        broker.terminate()
        try:
            broker.wait(30)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()


def memory(pid: int) -> tuple[float, float]:
    """Resident MiB of a process: now, and at its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    now, highest = (float(found[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, highest
