"""A log, a broker and a catalog for tests of sinks, and the oracle: rows = acknowledged messages, once, in order."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.types import DateType

from frazil.catalogs import local_path
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.protocol import Ack
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.observe.metrics import REGISTRY
from frazil.settings import Settings, load_settings
from frazil.tables import Position, TableStore, commit_append, find_position
from frazil.tables.store import LazyStore
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.topics import open_log
from frazil.topics.dead_letters.writer import letters
from frazil.topics.layout import ARCHIVE, dead_letters_name, ensure_dead_letters, table_name
from frazil.topics.sinks.archive import ArchiveSink
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.pipeline import Pipeline
from frazil.topics.sinks.sink import Runner
from tests.machine import machine_flags


class SinkKit:
    """One log with its broker, one catalog, and what was acknowledged, kept outside of both."""

    def __init__(self, settings: Settings, log: Log, client: Client, tables: LazyStore) -> None:
        self.settings, self.log, self.client, self.tables = settings, log, client, tables
        self.store = tables.store()
        self.acknowledged: dict[str, dict[int, bytes]] = {}

    def create(self, topic: str, storage: Any = "iceberg") -> None:
        self.log.create_topic(topic, storage=storage)

    def append(self, topic: str, batch: Batch) -> Ack:
        return self.client.append(topic, batch)

    def publish(self, topic: str, *payloads: bytes, **columns: list[Any]) -> Ack:
        if columns:
            batch = Batch.of_arrow(pa.record_batch({"payload": pa.array(payloads, pa.binary()), **columns}))
        else:
            batch = Batch.of_messages(payloads)
        ack = self.append(topic, batch)
        self.acknowledged.setdefault(topic, {}).update(enumerate(payloads, ack.offset))
        return ack

    def engine(
        self, topic: str, run: Runner = in_process, settings: Settings | None = None, store: TableStore | None = None
    ) -> Engine:
        """As in a process of its own: it knows nothing but what log and table say."""
        chosen = settings or self.settings
        sink = ArchiveSink(store or self.store, chosen, self.client.address)
        return Engine(topic, sink, self.client, run, chosen.model.pipeline)

    def told(self, topic: str, metric: str) -> float:
        """A metric of the topic's archive sink, as who scrapes them sees it: `commits_total`, `lag_seconds`."""
        return REGISTRY.get_sample_value(f"frazil_sink_{metric}", {"topic": topic, "sink": ARCHIVE}) or 0.0

    def change_type(self, topic: str, column: str) -> None:
        """Somebody makes a column of numbers one of dates: what is not null in it does not fit any more."""
        with self.table(topic).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(column)
        with self.table(topic).update_schema() as update:
            update.add_column(column, DateType())

    def table(self, topic: str) -> Table:
        return self.store.load(table_name(self.settings, topic))

    def rows(self, topic: str, columns: Sequence[str] = ("offset", "payload")) -> list[dict[str, Any]]:
        return sorted(
            self.table(topic).scan(selected_fields=tuple(columns)).to_arrow().to_pylist(), key=lambda r: r["offset"]
        )

    def dead(self, topic: str) -> list[dict[str, Any]]:
        scan = self.store.load(dead_letters_name(self.settings)).scan(row_filter=f"topic = '{topic}'")
        return sorted(scan.to_arrow().to_pylist(), key=lambda r: (r["offset"], r["written_at"]))

    def check(self, topic: str, dead: Sequence[int] = ()) -> None:
        """Rows = acknowledged messages, once, in order; those in `dead` are dead letters instead, once."""
        found = [(r["offset"], r["payload"]) for r in self.rows(topic)]
        expected = sorted((o, p) for o, p in self.acknowledged.get(topic, {}).items() if o not in dead)
        assert found == expected
        if dead:
            assert [r["offset"] for r in self.dead(topic)] == sorted(dead)

    def files(self, topic: str) -> list[Path]:
        """Every data file that lies in storage, whether a commit refers to it or not."""
        folder = Path(self.table(topic).location().removeprefix("file://")) / "data"
        return sorted(folder.rglob("*.parquet"))

    def committed_files(self, topic: str) -> list[Path]:
        paths = [t.file.file_path for t in self.table(topic).scan().plan_files()]
        return sorted(Path(str(local_path(p))) for p in paths)


@contextmanager
def sink_kit(folder: Path, topics: dict[str, Any] | None = None, **flags: str) -> Iterator[SinkKit]:
    """A kit in a folder; `topics` are settings of that section that are lists."""
    home = {"home": str(folder), "log.min_free": "0"}
    settings = load_settings(flags={**machine_flags(), **home, **flags}, environ={})
    section = settings.model.topics.model_copy(update=topics or {})
    with sink_kit_of(Settings(settings.model.model_copy(update={"topics": section}))) as kit:
        yield kit


@contextmanager
def sink_kit_of(settings: Settings, catalog: str | None = None) -> Iterator[SinkKit]:
    with open_log(settings, catalog=catalog) as log, Broker(log) as broker:
        log.announce(flight=broker.address)
        with Client(broker.address, key=log.key) as client, LazyStore(settings, catalog) as tables:
            yield SinkKit(settings, log, client, tables)


def put_dead_letters(kit: SinkKit, topic: str, first: int, count: int, **given: object) -> None:
    """Dead letters as a sink puts them there: one commit, one file. Their payloads are their offsets."""
    table = ensure_dead_letters(kit.store, kit.settings)
    expected = find_position(table, ARCHIVE, topic)
    offsets = range(first, first + count)
    row = {
        "sink": ARCHIVE, "topic": topic, "partition": 0, "status": "dead", "reason": "type", "error": "no number",
        "offset": pa.array(offsets, pa.int64()), "payload": pa.array([b"%d" % n for n in offsets], pa.binary()),
        "log_id": "aa", "written_at": datetime.now(UTC),
    }  # fmt: skip
    writer = TableWriter(WriteTarget.of(table), "test")
    writer.add(convert_rows(letters(row | given, count), writer.schema).rows)
    reached = Position(ARCHIVE, topic, {0: first + count}, "aa", 0, str(uuid.uuid4()))
    commit_append(kit.store, table, writer.finish(), expected=expected, reached=reached)


@contextmanager
def in_thread(pipeline: Pipeline) -> Iterator[None]:
    """A pipeline runs in a thread inside the block."""
    stop = threading.Event()
    thread = threading.Thread(target=pipeline.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)
