"""The Spark task of extraction: runs extractors on rows, and publishes the results."""

from __future__ import annotations

import heapq
import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from frazil.content.annotations.messages import extraction
from frazil.content.buckets import is_folder
from frazil.content.extraction.sources import open_source
from frazil.content.thumbnails import ThumbnailStore, ThumbnailWriter, thumbnail_key
from frazil.errors import FrazilError, first_line
from frazil.extract import Limits
from frazil.extract.engine.isolation import IsolatedExtraction, ObjectResult
from frazil.extract.engine.source import ObjectRef
from frazil.extract.engine.wire import Job, WorkerConfig
from frazil.extract.registry import TYPE, registry
from frazil.extract.status import CHANGED, FAILED, GONE, OK
from frazil.log.protocol import Ack
from frazil.log.remote.producer import Producer
from frazil.log.trust import add_mark
from frazil.observe.faultpoints import reach
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.topics.sinks.jobs import end_task

#: Maximum objects of a message.
_AT_ONCE = 200
#: Number of failures and slow objects that are named.
_NAMED = 10
#: Number of distinct reasons that are counted; plugins may put names or numbers into them.
_REASONS = 100
_OTHER = "other"
_THREADS, _THREADS_OF_A_FOLDER = 8, 2

REPORT = pa.schema([("report", pa.binary())])


@dataclass
class ExtractionReport:
    """The report of one task or of all.

    Attributes:
        objects: objects processed.
        by_status: of objects: ok, failed, gone, changed.
        by_extractor: of results: (extractor, status).
        by_reason: of results that are not ok: (extractor, status, reason); the rarer ones are `other`.
        seconds: that each extractor took.
        bytes_read: from the storage.
        restarts: of worker processes.
        thumbnails: thumbnails written.
        thumbnails_failed: thumbnails that could not be written.
        thumbnail_reason: why.
        slowest: (seconds, bucket, key, extractor).
        failed: (bucket, key, extractor, status, reason), the first ones.
        end: the offset after the last message.
        error: the error that ended it early.
    """

    objects: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    by_extractor: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_reason: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    restarts: int = 0
    thumbnails: int = 0
    thumbnails_failed: int = 0
    thumbnail_reason: str | None = None
    slowest: list[tuple[float, str, str, str]] = field(default_factory=list)
    failed: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    end: int = 0
    error: FrazilError | None = None

    def count(self, done: ObjectResult) -> None:
        wanted = done.job.wanted
        self.objects += 1
        self.bytes_read += done.bytes_read
        statuses = set()
        for name, result in done.extractors.items():
            status, seconds = result["status"], result.pop("seconds", 0.0)
            self.by_extractor[name, status] += 1
            self.seconds[name] += seconds
            self.slowest.append((seconds, wanted.bucket, wanted.key, name))
            if status != OK:
                self._count_reason(name, status, result["reason"] or "", 1)
            is_news = status == FAILED or (status in (GONE, CHANGED) and status not in statuses)
            if is_news and len(self.failed) < _NAMED:
                self.failed.append((wanted.bucket, wanted.key, name, status, result["reason"] or ""))
            statuses.add(status)
        self.slowest = heapq.nlargest(_NAMED, self.slowest)
        self.by_status[next((s for s in (GONE, CHANGED, FAILED) if s in statuses), OK)] += 1

    def _count_reason(self, name: str, status: str, reason: str, count: int) -> None:
        known = (name, status, reason) in self.by_reason
        self.by_reason[name, status, reason if known or len(self.by_reason) < _REASONS else _OTHER] += count

    def add(self, other: ExtractionReport) -> None:
        self.objects += other.objects
        self.by_status += other.by_status
        self.by_extractor += other.by_extractor
        for (name, status, reason), count in other.by_reason.most_common():
            self._count_reason(name, status, reason, count)
        self.seconds.update(other.seconds)
        self.bytes_read += other.bytes_read
        self.restarts += other.restarts
        self.thumbnails += other.thumbnails
        self.thumbnails_failed += other.thumbnails_failed
        self.thumbnail_reason = self.thumbnail_reason or other.thumbnail_reason
        self.slowest = heapq.nlargest(_NAMED, self.slowest + other.slowest)
        self.failed = (self.failed + other.failed)[:_NAMED]
        self.end = max(self.end, other.end)
        self.error = self.error or other.error


@dataclass(frozen=True)
class ExtractionTask:
    """Runs extractors on the objects of some rows, for `mapInArrow`. Yields its pickled report.

    Attributes:
        address: of the log.
        topic: that results go to.
        max_bytes: of one message.
        names: of the extractors.
        limits: for each object.
        concurrency: objects at once; None: as suits bucket or folder.
        s3: how to reach buckets.
        network: timeouts and retries.
        thumbnails: where they go; None: nowhere.
        counted: called with the number of further objects done.
        key: the key of the log, which proves to its broker that results come from Frazil.
    """

    address: str
    topic: str
    max_bytes: int
    names: tuple[str, ...]
    limits: Limits
    concurrency: int | None
    s3: S3Settings
    network: NetworkSettings
    thumbnails: ThumbnailStore | None = None
    counted: Callable[[int], None] = lambda _: None
    key: str | None = field(default=None, repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = self.run(row for batch in batches for row in batch.to_pylist())
        yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], schema=REPORT)
        end_task()

    def run(self, rows: Iterable[dict[str, Any]]) -> ExtractionReport:
        report = ExtractionReport()
        pictures = ThumbnailWriter(self.thumbnails)
        try:
            with Producer(self.address, self.topic, network=self.network, internal=True, key=self.key) as producer:
                publisher = ResultPublisher(producer, self.max_bytes)
                for folder, group in itertools.groupby(rows, lambda row: is_folder(row["bucket"])):
                    self._extract(group, folder, publisher, pictures, report)
                report.end = publisher.finish()
        except FrazilError as error:
            report.error = error
        except Exception as error:  # noqa: BLE001 - reported to the driver with the progress
            cause = f"{type(error).__name__}: {first_line(error)}"
            report.error = FrazilError("some objects were not read", cause=cause)
        pictures.finish()
        report.thumbnails, report.thumbnails_failed = pictures.written, pictures.failed
        report.thumbnail_reason = pictures.reason
        return report

    def _extract(
        self,
        rows: Iterable[dict[str, Any]],
        folder: bool,
        publisher: ResultPublisher,
        pictures: ThumbnailWriter,
        report: ExtractionReport,
    ) -> None:
        threads = self.concurrency or (_THREADS_OF_A_FOLDER if folder else _THREADS)
        chosen = registry().choose(self.names)
        sources = {e.name: registry().found[e.name].source for e in chosen}
        inside = IsolatedExtraction(
            chosen, WorkerConfig(sources, self.limits, threads, open_source, self.s3, self.network)
        )
        known: dict[int, dict[str, Any]] = {}
        try:
            for done in inside.run(_jobs(rows, known)):
                reach("content.extract.object")
                row = known.pop(done.job.number)
                report.count(done)
                if done.thumbnail:
                    pictures.put(_thumbnail_of(row), done.thumbnail)
                publisher.add(row["bucket"], _result(row, done))
                self.counted(1)
        finally:
            report.restarts += inside.restarts
            inside.close()


def _jobs(rows: Iterable[dict[str, Any]], known: dict[int, dict[str, Any]]) -> Iterator[Job]:
    for number, row in enumerate(rows):
        known[number] = row
        wanted = ObjectRef(*(row[n] for n in ("bucket", "key", "version_id", "is_latest", "etag", "size")))
        names = [TYPE, *row["wanted"]] if row["detected_type"] is None else row["wanted"]
        yield Job(number, wanted, row["content_type"], row["detected_type"], tuple(dict.fromkeys(names)))


def _thumbnail_of(row: dict[str, Any]) -> str:
    return thumbnail_key(row["bucket"], row["key"], row["version_id"], row["etag"])


def _result(row: dict[str, Any], done: ObjectResult) -> dict[str, Any]:
    said = {name: row[name] for name in ("key", "version_id", "etag", "created", "last_modified")}
    return {**said, "detected_type": done.detected_type, "extractors": done.extractors}


class ResultPublisher:
    """Publishes results in batches.

    Args:
        producer: to the topic of events.
        max_bytes: of one message.
    """

    def __init__(self, producer: Producer, max_bytes: int) -> None:
        self._producer, self._max_bytes = producer, max_bytes
        self._gathered: dict[str, list[dict[str, Any]]] = {}
        self._sent: list[Future[Ack]] = []

    def add(self, bucket: str, result: dict[str, Any]) -> None:
        gathered = self._gathered.setdefault(bucket, [])
        gathered.append(result)
        if len(gathered) >= _AT_ONCE:
            self._publish(bucket, self._gathered.pop(bucket))

    def finish(self) -> int:
        """Publishes what is left. Returns the offset after the last message, once all are durable."""
        for bucket, results in self._gathered.items():
            self._publish(bucket, results)
        self._gathered.clear()
        self._producer.flush()
        return max((one.result().offset + one.result().count for one in self._sent), default=0)

    def _publish(self, bucket: str, results: list[dict[str, Any]]) -> None:
        for payload in self._messages(bucket, results, datetime.now(UTC)):
            self._sent.append(self._producer.send(payload, headers=add_mark({"source": "extract"})))

    def _messages(self, bucket: str, results: list[dict[str, Any]], at: datetime) -> Iterator[bytes]:
        payload = extraction(bucket, results, at)
        if len(payload) <= self._max_bytes:
            yield payload
        elif len(results) > 1:
            half = len(results) // 2
            yield from self._messages(bucket, results[:half], at)
            yield from self._messages(bucket, results[half:], at)
        else:
            yield from self._messages(bucket, [_without_largest(results[0], self._max_bytes)], at)


def _without_largest(result: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """Returns the result without its largest part, whose extractor is marked as failed."""
    extractors: dict[str, dict[str, Any]] = result["extractors"]
    held = {name: len(str(result["data"])) for name, result in extractors.items() if "data" in result}
    heavy = max(held, key=held.__getitem__)
    reason = f"the result exceeds the maximum message size ({max_bytes:,} bytes)"
    light = {"version": extractors[heavy]["version"], "status": FAILED, "reason": reason}
    return {**result, "extractors": {**extractors, heavy: light}}
