"""The content sink, enabled late: on Spark, from an archive that is rewritten under it, then from the log."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from frazil.content.names import CONTENT
from frazil.content.sink.content_sink import ContentSink
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.topics.admin.adopt import Adopting
from frazil.topics.layout import ARCHIVE, table_name
from frazil.topics.positions import LogGapError
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import on_spark
from tests.content_sink_kit import ContentKit, body, content_kit
from tests.content_truth import Told
from tests.integration.test_content_sink import shown, some_events, truth

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

CATALOG = "sql"
BAD = b"no event"


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    """Small segments, so that the log can let go of the beginning; and one file of the archive makes a batch."""
    model = lane_settings.model
    log = model.log.model_copy(update={"max_file_size": 8192})
    pipeline = model.pipeline.model_copy(update={"target_bytes": 256 * 1024})
    small = Settings(model.model_copy(update={"log": log, "pipeline": pipeline}))
    with content_kit(small, spark, tmp_path, CATALOG) as made:
        yield made


class DiesError(BaseException):
    """The process 'dies' here: nothing below catches it."""


def sinks(kit: ContentKit, *names: str) -> None:
    kit.kit.client.configure(kit.topic, {"storage": "iceberg", "sinks": [ARCHIVE, *names]})


def archive(kit: ContentKit, *parts: list[bytes]) -> int:
    """Each part is a commit of the archive; then the log lets go of what every sink has. Returns where it begins."""
    for messages in parts:
        kit.publish(*messages)
        kit.kit.engine(kit.topic).catch_up()
    return kit.kit.client.retain(kit.topic, age_s=0.0).start


def engine(kit: ContentKit) -> Engine:
    """The content sink as in a new process."""
    sink = ContentSink(kit.kit.store, kit.settings, kit.kit.client.address, kit.spark)
    return Engine(kit.topic, sink, kit.kit.client, on_spark(kit.spark), kit.settings.model.pipeline)


def messages(events: list[Told], parts: int) -> list[list[bytes]]:
    """Events in some messages of seven each; the last message of each part is none."""
    made = [body(*events[i : i + 7]) for i in range(0, len(events), 7)]
    return [[*made[n::parts], BAD] for n in range(parts)]


def compact(kit: ContentKit) -> None:
    """Spark rewrites the archive, and what was there before is deleted."""
    name = table_name(kit.settings, kit.topic)
    kit.spark.sql(f"CALL {CATALOG}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    now = kit.spark.sql("SELECT current_timestamp()").collect()[0][0]
    kit.spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '{now}', retain_last => 1)"
    )


def dead(kit: ContentKit) -> list[int]:
    return [row["offset"] for row in kit.kit.dead(kit.topic)]


#: When a batch was made is no part of what it says.
_TIMES = ("written_at", "journaled_at", "updated_at")


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in _TIMES and not isinstance(v, datetime.datetime)} for row in rows]


def test_a_sink_that_comes_late_has_the_same_table_as_one_that_was_there(kit, lane_settings, spark, tmp_path):
    events = some_events(random.Random(3), 210)
    parts = messages(events, 4)
    sinks(kit)
    start = archive(kit, *parts[:3])
    assert start > len(parts[0]), "the log has lost more than a batch of the archive"
    sinks(kit, CONTENT)
    kit.publish(*parts[3])
    with kit.pipeline() as pipeline:
        (done,) = [s for s in pipeline.drain(120) if s.sink == CONTENT]
    assert done.commits > 2, "batch by batch"
    assert shown(kit.objects()) == truth(events)
    with content_kit(lane_settings, spark, tmp_path / "twin", CATALOG) as twin:
        twin.drain(*(m for part in parts for m in part))
        assert [shown(twin.objects()), comparable(twin.journal()), dead(twin)] == [
            shown(kit.objects()),
            [row | {"topic": twin.topic} if "topic" in row else row for row in comparable(kit.journal())],
            dead(kit),
        ]


STEPS = (
    "sink.plan.after",
    "content.merge.plan",
    "sink.write.after",
    "sink.dead_letters.after",
    "content.journal.after",
    "sink.commit.before",
    "tables.commit.after",
    "sink.report.before",
)


@pytest.mark.deep
def test_a_crash_at_any_step_of_the_backfill_loses_and_doubles_nothing(kit):
    """Between the crashes the archive goes on, and is rewritten; the log is trimmed again."""
    chance = random.Random(5)
    events = some_events(chance, 420)
    parts = messages(events, len(STEPS) + 2)
    sinks(kit)
    archive(kit, *parts[:-1])
    sinks(kit, CONTENT)
    hit = []
    for step in STEPS:

        def die(at: str, step: str = step) -> None:
            if at == step:
                hit.append(at)
                raise DiesError

        with handled(die), pytest.raises(DiesError):
            engine(kit).catch_up()
        if step == "sink.write.after":
            compact(kit)
            archive(kit, parts[-1])
    assert hit == list(STEPS)
    engine(kit).catch_up()
    assert shown(kit.objects()) == truth(events)
    places = [(row["offset"], row["index"]) for row in kit.journal()]
    assert len(places) == len(set(places)) == len(events)
    assert len(dead(kit)) == len(parts), "each bad message is there once"


@pytest.mark.deep
def test_files_that_compaction_takes_away_after_the_plan_are_read_where_they_are_now(kit):
    events = some_events(random.Random(9), 140)
    parts = messages(events, 3)
    sinks(kit)
    assert archive(kit, *parts) > 0
    sinks(kit, CONTENT)
    struck = []

    def strike(at: str) -> None:
        if at == "sink.plan.after" and not struck:
            struck.append(at)
            compact(kit)

    with handled(strike):
        engine(kit).catch_up()
    assert struck
    assert shown(kit.objects()) == truth(events)


def test_a_gap_stops_the_sink_until_a_person_leaves_it_out(kit):
    """No archive, and a log that has been trimmed before anybody wanted it."""
    client = kit.kit.client
    client.configure(kit.topic, {"sinks": []})
    events = [Told(key=f"k{n}", sequence="1", etag="x", size=n) for n in range(80)]
    for event in events:
        kit.publish(body(event))
    start = client.retain(kit.topic, age_s=0.0).start
    assert start > 0
    client.configure(kit.topic, {"sinks": [CONTENT]})
    with kit.pipeline() as pipeline:
        with pytest.raises(LogGapError, match=f"offsets 0 to {start} are gone"):
            pipeline.drain(60)
        (status,) = pipeline.status()
    assert (status.state, status.hint) == (
        "stopped",
        f"frazil topic adopt {kit.topic} to go on at {start} without them",
    )
    assert kit.objects() == [], "nothing is taken before somebody has decided"
    adopting = Adopting(client, kit.settings, kit.topic, kit.kit.tables)
    plan = adopting.plan()
    assert (plan.problem, plan.before, plan.after) == ("gap", 0, start)
    adopting.do(plan)
    kit.drain()
    assert shown(kit.objects()) == truth([replace(e) for e in events[start:]])
