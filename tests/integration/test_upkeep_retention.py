"""Retention by time on Frazil's own tables: old rows leave, positions stay, and sinks and readers go on."""

from __future__ import annotations

import tempfile
import threading
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession

from frazil.content.names import CONTENT, journal_name
from frazil.log.protocol import OffsetGoneError
from frazil.settings import Settings, load_settings
from frazil.tables import TableStore, find_position
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.runs.run import Report, run_upkeep
from tests.content_sink_kit import body, content_kit
from tests.content_truth import BEGIN, Told
from tests.topic_kit import MemoryLog, TopicTable

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]
_DOCS = Path(__file__).parents[2] / "docs" / "upkeep.md"


def policies() -> dict[str, dict[str, object]]:
    """The example of the docs: what tables are called there, and how long their rows stay."""
    found = [part for part in _DOCS.read_text().split("```yaml\n")[1:] if "content.journal" in part.partition("```")[0]]
    (example,) = found
    made: dict[str, dict[str, object]] = yaml.safe_load(example.partition("```")[0])["upkeep"]["tables"]
    return made


def settings_of(file: dict[str, object]) -> Settings:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frazil.yaml"
        path.write_text(yaml.safe_dump(file))
        return load_settings(config=path, environ={})


def cared(settings: Settings, catalog: str, store: TableStore, spark: SparkSession, table: str, example: str) -> Report:
    """One run by the docs' policy for a table, under the name that the table has here; nothing but it is kept."""
    policy = {**policies()[example], "max_snapshots": 1, "file_grace_s": 0}
    chosen = settings_of({"home": str(settings.model.home), "upkeep": {"tables": {table: policy}}})
    report = run_upkeep(
        UpkeepContext(chosen, settings.catalog(catalog), store, lambda: spark, threading.Event()), table
    )
    assert not report.errors
    return report


def removed(report: Report) -> list[str]:
    return [o.result for o in report.outcomes if o.kind == "retention"]


def told(age: timedelta, *keys: str) -> bytes:
    """An event of that age for each key."""
    second = (datetime.now(UTC) - age - BEGIN).total_seconds()
    return body(
        *(Told(key=key, sequence=f"{i + 1:02X}", second=second, etag="e", size=1) for i, key in enumerate(keys))
    )


def test_old_events_leave_the_journal_and_the_sink_goes_on(
    lane_settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with content_kit(lane_settings, spark, tmp_path) as kit:
        kit.drain(told(timedelta(days=100), "a", "b"), told(timedelta(days=1), "c"))
        journal = journal_name(kit.settings)
        before = find_position(kit.kit.store.load(journal), CONTENT, kit.topic)
        report = cared(kit.settings, kit.catalog, kit.kit.store, spark, journal, "content.journal")
        assert removed(report) == ["done"]
        assert [row["key"] for row in kit.journal()] == ["c"]
        table = kit.kit.store.load(journal)
        assert len(table.snapshots()) == 1, "those that have set the position are expired"
        assert find_position(table, CONTENT, kit.topic) == before is not None
        kit.drain(told(timedelta(0), "d"))
        assert [row["key"] for row in kit.journal()] == ["c", "d"], "no event is journaled a second time"
        assert [row["key"] for row in kit.objects()] == ["a", "b", "c", "d"], "what the events have told stays"
        assert removed(cared(kit.settings, kit.catalog, kit.kit.store, spark, journal, "content.journal")) == []


def test_old_messages_leave_the_table_of_a_topic_and_readers_and_sink_go_on(
    lane_settings: Settings, spark: SparkSession
) -> None:
    log = MemoryLog(f"kept_{uuid.uuid4().hex[:8]}")
    table = TopicTable(log, log.topic, lane_settings)
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    for days in (100, 99, 1):
        log.publish(b"x", b"y", time_us=now_us - days * 86_400_000_000)
        table.sink()
    log.retain(log.end)
    assert table.position == 6
    catalog = lane_settings.catalog().name
    report = cared(lane_settings, catalog, table.store, spark, table.name, "topics.*")
    assert removed(report) == ["done"]
    assert len(table.load().snapshots()) == 1
    assert table.position == 6
    with pytest.raises(OffsetGoneError) as gone:
        list(table.reader().read(0))
    assert gone.value.start == 4
    log.publish(b"z", time_us=now_us)
    table.sink()
    found = pa.concat_tables(table.reader().read())
    assert (found["offset"].to_pylist(), found["payload"].to_pylist()) == ([4, 5, 6], [b"x", b"y", b"z"])
    care = UpkeepContext(lane_settings, lane_settings.catalog(), table.store, lambda: spark, threading.Event())
    assert verify(care, table.load()).sound


def test_the_example_is_one_that_settings_take(tmp_path: Path) -> None:
    tables = settings_of({"home": str(tmp_path), "upkeep": {"tables": policies()}}).model.upkeep.tables
    assert tables["content.journal"].retention_column == "record_timestamp"
    assert tables["topics.*"].retention_column == "publish_time"
