"""Promises of sinks and pipeline that only show when the power goes, a log is exchanged, or somebody watches."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text

from frazil.catalogs import local_path
from frazil.cli.pipeline import answering_prometheus
from frazil.errors import ConflictError, FrazilError, IntegrityError, PartialError, UnavailableError
from frazil.log.protocol import Span
from frazil.observe.faultpoints import handled
from frazil.observe.metrics import REGISTRY
from frazil.settings import SettingsModel, load_settings
from frazil.tables.durability import sync_files
from frazil.topics import flight_address
from frazil.topics.layout import ARCHIVE
from frazil.topics.sinks.jobs import BatchFailedError, TasksFailedError, all_written, in_process
from frazil.topics.sinks.pipeline import Pipeline
from frazil.topics.sinks.sink import Work, Written
from frazil.topics.sinks.sink_runner import SinkRunner
from tests.machine import machine_flags
from tests.sink_kit import SinkKit, sink_kit

TOPIC = "orders"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path) as made:
        made.create(TOPIC)
        yield made


class Disk:
    """What a power cut would leave: files as long as they were at their last sync, and folders that were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, int] = {}
        fsync = os.fsync

        def recorded(descriptor: int) -> None:
            fsync(descriptor)
            about = os.fstat(descriptor)
            self.synced[about.st_ino] = about.st_size

        monkeypatch.setattr(os, "fsync", recorded)

    def has(self, path: Path) -> bool:
        about = path.stat()
        return about.st_ino in self.synced and (path.is_dir() or self.synced[about.st_ino] == about.st_size)


def test_everything_that_a_commit_needs_is_on_disk_before_the_log_is_told(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    kit.publish(TOPIC, b"1", amount=pa.array([1.0]))
    kit.engine(TOPIC).catch_up()
    unsynced: dict[str, list[str]] = {}

    def look(step: str) -> None:
        if step not in ("tables.commit.before", "tables.commit.after", "sink.report.before"):
            return
        table = kit.table(TOPIC)
        folder = Path(local_path(table.location()) or "")
        kinds = ("*.parquet", "*.avro") if step == "tables.commit.before" else ("*.parquet", "*.avro", "*.json")
        files = [file for kind in kinds for file in folder.rglob(kind)]
        assert len(files) > len(kinds)
        below = {p for file in files for p in file.parents if p.is_relative_to(folder.parent)}
        unsynced[step] = [str(path) for path in (*files, *below) if not disk.has(path)]

    kit.publish(TOPIC, b"2", amount=pa.array([2.0]))
    with handled(look):
        kit.engine(TOPIC).catch_up()
    assert unsynced == {"tables.commit.before": [], "tables.commit.after": [], "sink.report.before": []}
    kit.check(TOPIC)


def test_the_embedded_catalog_syncs_each_commit(kit: SinkKit) -> None:
    assert isinstance(kit.store.catalog, SqlCatalog)
    with kit.store.catalog.engine.connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL


def test_a_file_that_cannot_be_synced_is_written_anew(kit: SinkKit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.publish(TOPIC, b"1")
    kit.engine(TOPIC).catch_up()
    kit.publish(TOPIC, b"2")
    fsync = os.fsync
    failed: list[int] = []

    def failing(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix in (".parquet", ".avro") and len(failed) < 2:
            failed.append(descriptor)
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    for _ in range(2):
        with pytest.raises(FrazilError) as told:
            kit.engine(TOPIC).catch_up()
        assert told.value.retryable
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


def test_a_file_in_an_object_store_needs_no_sync() -> None:
    sync_files(["s3://bucket/data/1.parquet"])


def test_a_log_that_is_exchanged_while_a_batch_is_read_is_not_mixed_with_it(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"old 1", b"old 2")

    def exchanged(work: Work, spans: Sequence[Span]) -> list[Written]:
        kit.log.delete_topic(TOPIC)
        kit.create(TOPIC)
        kit.acknowledged.clear()
        kit.publish(TOPIC, b"new 1")
        return in_process(work, spans)

    with pytest.raises(UnavailableError, match="was reopened"):
        kit.engine(TOPIC, exchanged).run_batch(at_once=True)
    assert kit.files(TOPIC) == []
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


def test_a_batch_without_all_its_results_is_not_committed() -> None:
    with pytest.raises(TasksFailedError) as told:
        all_written([Written()], [Span(0, 1, 1), Span(1, 2, 1)])
    assert isinstance(told.value.error, BatchFailedError)


def _gauge(name: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"topic": TOPIC, "sink": ARCHIVE})


def test_the_lag_grows_while_the_catalog_is_away(kit: SinkKit) -> None:
    now = [1000.0]
    lane = SinkRunner(kit.engine(TOPIC))
    lane.engine._clock = lambda: now[0]

    def away(step: str) -> None:
        if step == "sink.look.before":
            raise UnavailableError("the catalog is away")

    kit.publish(TOPIC, b"1", b"2")
    with handled(away):
        for _ in range(2):
            lane.is_due(kit.client.info(TOPIC), 0.0)
            lane.run_batch()
            now[0] += 30
    assert _gauge("frazil_sink_lag_offsets") == 2
    assert _gauge("frazil_sink_lag_seconds") == 30


def _pipeline(kit: SinkKit, address: str) -> Pipeline:
    return Pipeline(kit.settings, kit.client, None, address, run=in_process)


def test_the_gauges_of_a_deleted_topic_go_with_it(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"1")
    with flight_address(kit.client) as address, _pipeline(kit, address) as pipeline:
        pipeline.drain()
        assert _gauge("frazil_sink_lag_offsets") is not None
        kit.log.delete_topic(TOPIC)
        pipeline._start_batches(pipeline._list_topics())
    assert _gauge("frazil_sink_lag_offsets") is None
    assert _gauge("frazil_sink_offset") is None


def test_a_drain_does_not_pass_over_a_topic_that_cannot_be_opened(tmp_path: Path) -> None:
    with sink_kit(tmp_path) as kit:
        kit.create(TOPIC)
        kit.create("other")
        kit.publish("other", b"1")
    description = tmp_path / "log" / "topics" / TOPIC / "topic.json"
    description.write_text("{")
    with sink_kit(tmp_path) as kit, flight_address(kit.client) as address:
        with _pipeline(kit, address) as pipeline, pytest.raises(PartialError, match=TOPIC):
            pipeline.drain()
        assert [row["payload"] for row in kit.rows("other")] == [b"1"]
        alone = Pipeline(kit.settings, kit.client, None, address, run=in_process, topics=[TOPIC])
        with alone, pytest.raises(IntegrityError, match=TOPIC):
            alone.drain()


def test_the_pipeline_answers_prometheus_where_it_is_told_to() -> None:
    said: list[str] = []
    with answering_prometheus(_at_port("0"), said.append):
        address = said[0].rpartition(" ")[2]
        with urllib.request.urlopen(address) as answer:
            assert b"frazil_sink_lag_seconds" in answer.read()
        taken = address.removesuffix("/metrics").rpartition(":")[2]
        with pytest.raises(ConflictError, match=taken), answering_prometheus(_at_port(taken), said.append):
            pass
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address)
    with answering_prometheus(load_settings(flags=machine_flags(), environ={}).model, said.append):
        assert len(said) == 1  # by default nobody is answered


def _at_port(port: str) -> SettingsModel:
    return load_settings(flags={**machine_flags(), "pipeline.metrics_port": port}, environ={}).model
