"""The layout of the tables of documents over 20 years of dates, and the merge of updates against a bare MERGE.

python -m benchmarks.documents_layout, with BENCH_DOCUMENTS=100000 for a quick look. Decision 0048 has the figures.
"""

from __future__ import annotations

import datetime
import os
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan
from pyspark.sql import SparkSession

from benchmarks.measure import Result, seconds, shown
from benchmarks.targets import verdict
from frazil.catalogs import open_catalog
from frazil.documents.arrow import DOCUMENT_SCHEMA, HISTORY_SCHEMA
from frazil.documents.iceberg.topic import ensure_documents_topic
from frazil.documents.messages import encode_revision
from frazil.documents.model import Document, Revision, from_micros
from frazil.documents.names import metadata_name
from frazil.documents.sink import DocumentsSink
from frazil.documents.tables import ensure_history, ensure_metadata
from frazil.log.batch import batch_with_headers
from frazil.log.log import Log
from frazil.log.remote.broker import Broker
from frazil.log.trust import add_mark
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from frazil.tables import TableStore, ensure_table
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.topics import open_log
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import for_pipeline, on_spark

if TYPE_CHECKING:
    from pyiceberg.table import Table

DOCUMENTS = int(os.environ.get("BENCH_DOCUMENTS", "1000000"))
BATCH = 20_000
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
LAYOUTS = os.environ.get("BENCH_LAYOUTS", "day(created_at) month(created_at) year(created_at)").split()
HISTORIES = os.environ.get("BENCH_HISTORIES", "day(valid_from) month(valid_from) bucket(16,document_id)").split()
_BEGIN = 1_136_073_600_000_000  # 2006
_DAY_US = 86_400_000_000
_DAYS = 7_300
_MERGE = (
    "MERGE INTO frazil.bench.bare t USING changes s ON t.document_id = s.document_id AND t.created_at = s.created_at "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


@dataclass
class Archive:
    """One log, one catalog, and the documents of twenty years, ordered by creation."""

    settings: Settings
    log: Log
    broker: Broker
    spark: SparkSession
    store: TableStore

    def engine(self, settings: Settings | None = None) -> Engine:
        chosen = settings or self.settings
        sink = DocumentsSink(self.store, chosen, self.broker.address, self.spark)
        return Engine(self.topic, sink, self.log, on_spark(self.spark), chosen.model.pipeline)

    @property
    def topic(self) -> str:
        return self.settings.model.documents.topic

    def publish(self, numbers: Sequence[int], revision: int) -> None:
        headers = [add_mark({})]
        for start in range(0, len(numbers), 2_000):
            some = numbers[start : start + 2_000]
            messages = [encode_revision(stored_of(number, revision)) for number in some]
            batch = batch_with_headers(messages, [None] * len(some), headers * len(some))
            self.log.append(self.topic, batch, internal=True)


@contextmanager
def archive(home: Path, partition: str) -> Iterator[Archive]:
    with ExitStack() as running:
        flags = {"home": str(home), "spark.driver_memory": "3g", "documents.partition": partition}
        settings = for_pipeline(load_settings(flags=flags, environ={}))
        chosen, network = settings.catalog(), settings.model.network
        store = TableStore(open_catalog(chosen, network), chosen, network)
        running.callback(store.close)
        log = running.enter_context(open_log(settings))
        broker = running.enter_context(Broker(log))
        ensure_documents_topic(log, settings)
        yield Archive(settings, log, broker, running.enter_context(spark_session(settings)), store)


def created_of(number: int) -> int:
    """Creation of one document, in microseconds: spread evenly over twenty years."""
    return _BEGIN + number * (_DAYS * _DAY_US // DOCUMENTS)


def id_of(number: int) -> str:
    """As UUIDv7: ids of later documents sort later."""
    mixed = number * 0x9E3779B97F4A7C15 % 2**62
    return f"{created_of(number) // 1000:012x}{mixed:020x}"


def stored_of(number: int, revision: int) -> Any:
    from frazil.documents.decide import StoredRevision

    created = from_micros(created_of(number))
    now = datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=revision)
    document = Document(
        id_of(number), f"report-{number}.pdf", "application/pdf", number, f"sha256:{number:064x}", "aws", "archive",
        f"objects/{number:012d}", None, "archive", "none", None, None, created, now,
        {"project": f"p{number % 100}", "department": "research"}, {"pages": number % 300}, revision,
    )  # fmt: skip
    return StoredRevision(Revision(document, "update" if revision > 1 else "put", now))


def rows_of(numbers: np.ndarray[Any, Any], revision: int = 1) -> pa.Table:
    """Documents as columns, quickly."""
    count = len(numbers)
    listed = numbers.tolist()
    times = pa.array([created_of(n) for n in listed], pa.int64()).cast(DOCUMENT_SCHEMA.field("created_at").type)
    tags = [[("project", f"p{n % 100}"), ("department", "research")] for n in listed]
    made: dict[str, Any] = {
        "document_id": pa.array(map(id_of, listed), pa.string()),
        "filename": pa.array([f"report-{n}.pdf" for n in listed]), "content_type": pa.repeat("application/pdf", count),
        "size_bytes": pa.array(numbers), "checksum": pa.array([f"sha256:{n:064x}" for n in listed]),
        "provider": pa.repeat("aws", count), "bucket": pa.repeat("archive", count),
        "object_key": pa.array([f"objects/{n:012d}" for n in listed]), "storage_tier": pa.repeat("archive", count),
        "restore_status": pa.repeat("none", count), "created_at": times, "updated_at": times,
        "tags": pa.array(tags, DOCUMENT_SCHEMA.field("tags").type),
        "attributes": pa.array([f'{{"pages":{n % 300}}}' for n in listed]),
        "revision": pa.repeat(pa.scalar(revision, pa.int64()), count), "operation": pa.repeat("put", count),
        "valid_from": times, "offset": pa.array(numbers),
    }  # fmt: skip
    return pa.table([made.get(f.name, pa.nulls(count, f.type)) for f in HISTORY_SCHEMA], schema=HISTORY_SCHEMA)


def fill(table: Table, rows: Iterator[pa.Table]) -> int:
    """Writes rows as a compaction would leave them, in one commit; returns the number of files."""
    writer = TableWriter(WriteTarget.of(table), "fill")
    for part in rows:
        writer.add(
            convert_rows(part.select([n for n in writer.schema.names if n in part.column_names]), writer.schema).rows
        )
    files = writer.finish()
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for file in files:
            update.append_data_file(file)
    return len(files)


def in_order(chunk: int = 100_000) -> Iterator[pa.Table]:
    for start in range(0, DOCUMENTS, chunk):
        yield rows_of(np.arange(start, min(start + chunk, DOCUMENTS)))


def run() -> list[Result]:
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        for number, partition in enumerate(LAYOUTS):
            with archive(Path(folder) / str(number), partition) as at:
                found += _metadata(at, partition)
                if number == 0:
                    found += [result for history in HISTORIES for result in _history(at, history)]
    return found


def _metadata(at: Archive, partition: str) -> list[Result]:
    table = ensure_metadata(at.store, at.settings)
    made: list[int] = []
    writing = seconds(lambda: made.append(fill(table, in_order())))
    table = at.store.load(metadata_name(at.settings))
    planning = _median(lambda: list(table.scan().plan_files()))
    one = stored_of(DOCUMENTS // 2, 1).revision.document
    where = And(EqualTo("created_at", created_of(DOCUMENTS // 2)), EqualTo("document_id", one.document_id))  # type: ignore[call-arg]
    point = _median(lambda: table.scan(row_filter=where).to_arrow())
    month = And(
        GreaterThanOrEqual("created_at", created_of(DOCUMENTS // 2)),  # type: ignore[call-arg]
        LessThan("created_at", created_of(DOCUMENTS // 2) + 30 * _DAY_US),  # type: ignore[call-arg]
    )
    pruned = len(list(table.scan(row_filter=month).plan_files()))
    found = [
        Result(f"{partition}: {DOCUMENTS:,} documents written", f"{shown(writing)}, {made[0]:,} files"),
        Result(
            f"{partition}: planning of all; point read; files of 30 days",
            f"{shown(planning)}; {shown(point)}; {pruned}",
        ),
    ]
    return found + _merges(at, partition)


def _merges(at: Archive, partition: str) -> list[Result]:
    """Updates at random by the sink, and by Spark's MERGE of rows that are ready."""
    table = at.store.load(metadata_name(at.settings))
    at.store.catalog.create_namespace_if_not_exists("bench")
    if at.store.catalog.table_exists("bench.bare"):
        at.store.catalog.drop_table("bench.bare")
    bare = at.store.catalog.create_table(
        "bench.bare", table.schema(), partition_spec=table.spec(), sort_order=table.sort_order(),
        properties=dict(table.properties),
    )  # fmt: skip
    fill(bare, in_order())
    chance, engine = random.Random(7), at.engine()
    ours, theirs, points, recent = [], [], [], []
    for number in range(ROUNDS + 1):
        picked = sorted(chance.sample(range(DOCUMENTS), BATCH))
        changed = rows_of(np.array(picked), number + 2).select(DOCUMENT_SCHEMA.names)
        path = str(at.settings.model.home / "changes")
        at.spark.createDataFrame(changed).write.mode("overwrite").parquet(path)
        at.spark.read.parquet(path).createOrReplaceTempView("changes")
        at.publish(picked, number + 2)
        ours.append(seconds(engine.catch_up))
        theirs.append(seconds(lambda: at.spark.sql(_MERGE)))
        at.publish([chance.randrange(DOCUMENTS)], number + 1_000)
        points.append(seconds(engine.catch_up))
        at.publish(range(DOCUMENTS - BATCH // 10, DOCUMENTS), number + 2_000)
        recent.append(seconds(engine.catch_up))
    # The first of each warms up.
    mine, other, point, new = (statistics.median(taken[1:]) for taken in (ours, theirs, points, recent))
    return [
        Result(
            f"{partition}: {BATCH:,} updates at random, with history", f"{BATCH / mine:,.0f}/s ({shown(mine)})",
            f"bare MERGE {BATCH / other:,.0f}/s", f"{other / mine:.2f}×", verdict(other / mine >= 0.8, "≥ 0.8×"),
        ),
        Result(f"{partition}: one update; {BATCH // 10:,} of recent documents", f"{shown(point)}; {shown(new)}"),
    ]  # fmt: skip


def _history(at: Archive, partition: str) -> list[Result]:
    """The history over twenty years of revisions, and the batches of one day on top of it."""
    name = f"bench.{''.join(c for c in partition if c.isalpha())}"
    at.store.catalog.create_namespace_if_not_exists("bench")
    real = ensure_history(at.store, at.settings)
    sort = ["document_id", "revision"]
    terms = [partition.replace(",", ", ")]
    table = ensure_table(at.store, name, HISTORY_SCHEMA, partition=terms, sort=sort, properties=dict(real.properties))
    made: list[int] = []
    writing = seconds(lambda: made.append(fill(table, in_order())))
    batches = []
    for number in range(5):
        rows = rows_of(np.sort(np.random.default_rng(number).integers(0, DOCUMENTS, BATCH)), 2)
        now = pa.repeat(pa.scalar(_BEGIN + _DAYS * _DAY_US + number, pa.int64()), BATCH).cast(rows["valid_from"].type)
        rows = rows.set_column(rows.column_names.index("valid_from"), HISTORY_SCHEMA.field("valid_from"), now)
        table = at.store.load(name)
        batches.append(seconds(lambda t=table, r=rows: fill(t, iter([r]))))  # type: ignore[misc]
    table = at.store.load(name)
    planning = _median(lambda: list(table.scan().plan_files()))
    past = LessThan("valid_from", _BEGIN + 365 * _DAY_US)  # type: ignore[call-arg]
    as_of = len(list(table.scan(row_filter=past).plan_files()))
    one = EqualTo("document_id", id_of(DOCUMENTS // 2))  # type: ignore[call-arg]
    files = len(list(table.scan(row_filter=one).plan_files()))
    reading = _median(lambda: table.scan(row_filter=one).to_arrow())
    since = GreaterThanOrEqual("valid_from", _BEGIN + _DAYS * _DAY_US)  # type: ignore[call-arg]
    deletes = _median(lambda: list(table.scan(row_filter=And(since, EqualTo("operation", "delete"))).plan_files()))  # type: ignore[call-arg]
    return [
        Result(f"history by {partition}: {DOCUMENTS:,} revisions written", f"{shown(writing)}, {made[0]:,} files"),
        Result(f"history by {partition}: a batch of {BATCH:,}", shown(statistics.median(batches))),
        Result(
            f"history by {partition}: planning of all; files of the first year; of one document; its revisions",
            f"{shown(planning)}; {as_of}; {files}; {shown(reading)}",
        ),
        Result(f"history by {partition}: deletes since the last batch, planned", shown(deletes)),
    ]


def _median(action: Any) -> float:
    return statistics.median(seconds(action) for _ in range(3))


if __name__ == "__main__":
    run()
