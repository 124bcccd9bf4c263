"""The content sink on real Spark and real tables: right under disorder, faults, foreign commits, and looks."""

from __future__ import annotations

import datetime
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from frazil.content.columns import CREATE, DELETE
from frazil.content.events.observation import observation
from frazil.content.names import objects_name
from frazil.content.sink.head_requests import HeadRequests
from frazil.errors import FrazilError, UnavailableError
from frazil.log.batch import Batch
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.settings.model import S3Settings
from frazil.topics.dead_letters.replay import replay_dead_letters
from tests.content_bucket import BURIED, Bucket, Clocks, played
from tests.content_sink_kit import ContentKit, body, content_kit, record
from tests.content_truth import Told, changes, expected, seen
from tests.lane import Lane

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

#: What both the events and the oracle speak of.
COLUMNS = ("bucket", "key", "version_id", "sequence", "etag", "size", "is_latest", "is_deleted", "is_delete_marker")


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    with content_kit(lane_settings, spark, tmp_path) as made:
        yield made


def some_events(chance: random.Random, count: int) -> list[Told]:
    """Puts, deletes and versions of a few keys, no two with one sequence; a version is an object or a marker."""
    made = []
    for number in range(count):
        version = chance.choice(["", "v1", "v2", "m1"])
        is_marker = version == "m1"
        kind = chance.choice([CREATE, CREATE, DELETE])
        made.append(
            Told(
                kind,
                key=f"folder/{chance.randrange(40)}",
                version=version,
                sequence=f"{1 + number % 97:02X}{number // 97:02X}",
                second=float(number % 97),
                etag=None if is_marker or kind == DELETE else f"e{chance.randrange(5)}",
                size=None if is_marker or kind == DELETE else chance.randrange(100),
                marker=is_marker and kind == CREATE,
            )
        )
    return made


def shown(rows: list[dict]) -> list[tuple]:
    return [tuple(row[column] for column in COLUMNS) for row in rows]


def truth(events: list[Told]) -> list[tuple]:
    """The oracle's, with sequences as they are compared."""
    canonical = [replace(e, sequence=(e.sequence or "").rstrip("0")) for e in events]
    return shown(expected(canonical))


@pytest.mark.deep
def test_disordered_doubled_and_cut_events_give_the_right_table_on_both_engines(kit):
    chance = random.Random(7)
    events = some_events(chance, 400)
    delivered = events + chance.choices(events, k=150)
    chance.shuffle(delivered)
    with kit.pipeline() as pipeline:
        while delivered:
            batch = [delivered.pop() for _ in range(min(len(delivered), chance.randrange(60, 220)))]
            messages = [batch[i : i + 7] for i in range(0, len(batch), 7)]
            kit.publish(*(body(*m) for m in messages))
            pipeline.drain(120)
    assert shown(kit.objects()) == truth(events)
    assert kit.spark_objects(", ".join(COLUMNS)) == sorted(shown(kit.objects()), key=str) or sorted(
        kit.spark_objects(", ".join(COLUMNS)), key=str
    ) == sorted(shown(kit.objects()), key=str)
    places = [(row["offset"], row["index"]) for row in kit.journal()]
    assert len(places) == len(set(places)) == 550


STEPS = (
    "content.merge.plan",
    "sink.dead_letters.before",
    "sink.dead_letters.after",
    "content.journal.before",
    "content.journal.after",
    "sink.commit.before",
    "tables.commit.before",
    "tables.commit.after",
    "sink.commit.after",
    "sink.report.before",
)


@pytest.mark.deep
def test_suspended_buckets_are_in_the_table_as_they_are(kit, monkeypatch):
    """Listings between events, in times of whole seconds, and in any order; where nothing can tell, the bucket does."""
    chance = random.Random(17)
    buckets: dict[str, Bucket] = {}
    known: list[list[Told]] = []
    for number in range(24):
        clocks = Clocks(*(chance.random() < 0.5 for _ in range(3)), ahead=chance.choice([0.0, 1.5, -1.5]))
        bucket = buckets[f"k{number}"] = Bucket(clocks, now=100.0)
        steps = ["put", "put", "delete", "remove", "enable", "suspend", "list", "list"]
        done = [
            (chance.choice(steps), chance.choice([0.1, 0.4, 2, 20]), chance.randrange(4), chance.choice("xy"))
            for _ in range(chance.randrange(1, 6))
        ]
        parts = played(bucket, [*BURIED, *done], chance.choice([0, 0, 2, 4]))
        known += [[replace(told, key=f"k{number}") for told in part] for part in parts]
    known += chance.sample(known, 20)
    chance.shuffle(known)

    def ask(_requests, keys):
        asked = [(buckets[key], key, version) for _, key, version in keys]
        return changes(replace(t, key=k) for b, k, v in asked for t in b.answer({v}, b.now + 3600)), {}

    monkeypatch.setattr(HeadRequests, "look_up", ask)
    for cut in range(0, len(known), 90):
        kit.drain(*(body(*part) if part[0].dialect == "aws" else listing(part) for part in known[cut : cut + 90]))
    found = {(row["key"], row["version_id"]): row for row in kit.objects() if not row["is_deleted"]}
    assert not any(row["check_after"] for row in found.values())
    assert {place: (row["etag"], row["is_delete_marker"], row["is_latest"]) for place, row in found.items()} == {
        (key, version): state for key, bucket in buckets.items() for version, state in bucket.truth().items()
    }


def listing(shown: list[Told]) -> bytes:
    """What a scan tells of some versions."""
    objects = [
        {
            "key": t.key, "version_id": t.version, "etag": t.etag, "is_latest": t.latest, "is_delete_marker": t.marker,
            "last_modified": t.row()["last_modified"],
        }
        for t in shown
    ]  # fmt: skip
    return observation(shown[0].bucket, objects, shown[0].time, "scan")


@pytest.mark.deep
def test_a_fault_at_any_step_loses_nothing_and_journals_nothing_twice(kit):
    """Each step fails once; then the pipeline is a new one, as after a crash."""
    events = [Told(sequence="01", etag="x", size=1)]
    kit.drain(body(*events))
    for number, step in enumerate(STEPS, 2):
        told = Told(
            sequence=f"{number:02X}", second=float(number), etag=f"e{number}", size=number, key=f"k{number % 3}"
        )
        events.append(told)
        kit.publish(body(told), b"no event")
        hit = []

        def fail(at: str, step: str = step, hit: list[str] = hit) -> None:
            if at == step and not hit:
                hit.append(at)
                raise OSError("fault")

        with handled(fail), kit.pipeline() as pipeline:
            pipeline.drain(120)
        assert hit == [step]
    assert shown(kit.objects()) == truth(events)
    places = [(row["offset"], row["index"]) for row in kit.journal()]
    assert len(places) == len(set(places)) == len(events)
    assert len(kit.kit.dead(kit.topic)) == len(STEPS), "each bad message is there once"


def test_a_compaction_of_others_between_reading_and_commit_is_met_by_a_new_plan(kit):
    kit.drain(body(Told(key="a", sequence="1", etag="x"), Told(key="b", sequence="1", etag="x")))
    kit.drain(body(Told(key="a", sequence="2", etag="y")))
    name = objects_name(kit.settings)
    kit.publish(body(Told(key="b", sequence="3", etag="z")))
    compacted = []

    def compact(step: str) -> None:
        if step == "sink.commit.before" and not compacted:
            compacted.append(step)
            kit.spark.sql(
                f"CALL sql.system.rewrite_data_files(table => '{name}', options => map('rewrite-all','true'))"
            )

    with handled(compact), kit.pipeline() as pipeline:
        pipeline.drain(120)
    assert compacted
    assert [(r["key"], r["etag"]) for r in kit.objects()] == [("a", "y"), ("b", "z")]


def test_two_pipelines_at_once_double_nothing(kit):
    events = some_events(random.Random(11), 120)
    kit.publish(*(body(e) for e in events))
    with kit.pipeline() as one, kit.pipeline() as other:
        threads = [threading.Thread(target=pipeline.drain, args=(120,)) for pipeline in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert shown(kit.objects()) == truth(events)
    places = [(row["offset"], row["index"]) for row in kit.journal()]
    assert len(places) == len(set(places)) == len(events)


def test_a_tombstone_keeps_its_content_and_a_column_more_does_not_matter(kit):
    kit.drain(body(Told(key="a", sequence="1", etag="x", size=7)))
    kit.drain(body(Told(DELETE, key="a", sequence="2")))
    row = kit.row("a")
    assert (row["is_deleted"], row["etag"], row["size"]) == (True, "x", 7), "a tombstone keeps what was known"
    kit.spark.sql(f"ALTER TABLE sql.{objects_name(kit.settings)} ADD COLUMN theirs STRING")
    kit.drain(body(Told(key="a", sequence="3", etag="y", size=8)))
    assert (kit.row("a")["etag"], kit.row("a")["theirs"]) == ("y", None)


@pytest.mark.slow
def test_in_partitions_too(lane_settings, spark, tmp_path):
    events = some_events(random.Random(3), 120)
    with content_kit(lane_settings, spark, tmp_path, partition=["bucket(4, key)"]) as kit:
        for start in range(0, 120, 40):
            kit.drain(*(body(e) for e in events[start : start + 40]))
        assert shown(kit.objects()) == truth(events)
        assert sorted(kit.spark_objects("bucket, key, version_id, is_deleted")) == sorted(
            (r["bucket"], r["key"], r["version_id"], r["is_deleted"]) for r in kit.objects()
        )


def test_in_s3_tables_with_sigv4(lane_settings, spark, tmp_path):
    """The target that AWS has for this: a table bucket behind its REST endpoint, here SeaweedFS's."""
    events = some_events(random.Random(5), 60)
    with content_kit(lane_settings, spark, tmp_path, catalog="s3tables") as kit:
        kit.drain(*(body(e) for e in events[:40]))
        kit.drain(*(body(e) for e in events[40:]))
        assert shown(kit.objects()) == truth(events)
    assert Lane("s3tables", lane_settings, spark).abilities is not None


def test_the_work_shows_in_sparks_plan(kit):
    """Parsing, joining and deciding are stages of one plan, and the table is not shuffled for a small batch."""
    kit.drain(body(Told(key="a", sequence="1")))
    plans: list[str] = []
    kit.publish(body(Told(key="a", sequence="2")))

    def look(step: str) -> None:
        if step == "sink.commit.before":
            plans.append("")

    seen = _executed(kit.spark, lambda: _drained(kit, look))
    assert plans
    merge = next(plan for plan in seen if "MergeTask" in plan)
    assert "ReadTask" in merge
    assert "BroadcastHashJoin" in merge
    assert "LeftSemi" in merge


def _drained(kit: ContentKit, look) -> None:
    with handled(look), kit.pipeline() as pipeline:
        pipeline.drain(120)


def _executed(spark: SparkSession, act) -> list[str]:
    """The plans of the statements that Spark has run inside. Its store hears of them later, and forgets the oldest."""
    store = spark._jsparkSession.sharedState().statusStore()
    bus = spark.sparkContext._jsc.sc().listenerBus()

    def executions() -> dict[int, Any]:
        bus.waitUntilEmpty(60_000)
        found = store.executionsList(max(0, int(store.executionsCount()) - 100), 100)
        listed = [found.apply(i) for i in range(found.size())]
        return {int(execution.executionId()): execution for execution in listed}

    last = max(executions(), default=-1)
    act()
    return [execution.physicalPlanDescription() for number, execution in executions().items() if number > last]


def test_a_bad_message_is_a_dead_letter_and_can_be_replayed(kit):
    good, bad = Told(key="good", sequence="1"), Told(key="bad", sequence="1")
    half = {"Records": [record(good), {**record(bad), "eventTime": "yesterday"}]}
    kit.drain(json.dumps(half).encode(), b"{", body(Told(key="other", sequence="1")))
    assert [r["key"] for r in kit.objects()] == ["good", "other"]
    assert [(d["offset"], d["reason"]) for d in kit.kit.dead(kit.topic)] == [(0, "bad_time"), (1, "not_json")]
    replay_dead_letters(kit.kit.store, kit.settings, kit.kit.client, kit.topic)
    kit.drain()
    assert [r["key"] for r in kit.objects()] == ["good", "other"]
    assert [r["key"] for r in kit.journal()].count("good") == 2, "it was told twice, and that is journalled"


@pytest.fixture
def bucket(services) -> str:
    name = f"content-{time.time_ns()}"
    services.seaweedfs.access.client().create_bucket(Bucket=name)
    return name


def s3_of(services) -> S3Settings:
    return S3Settings.model_validate(services.seaweedfs.access.settings())


def test_where_events_have_no_order_the_bucket_is_asked(lane_settings, spark, tmp_path, services, bucket):
    """moto's events have no sequencer: HEAD decides, whatever they say."""
    client = services.seaweedfs.access.client()
    client.put_object(Bucket=bucket, Key="there", Body=b"12345", ContentType="text/plain")
    told = [Told(DELETE, key="there", bucket=bucket, sequence=None), Told(key="gone", bucket=bucket, sequence=None)]
    with content_kit(lane_settings, spark, tmp_path, s3=s3_of(services)) as kit:
        kit.drain(*(body(t) for t in told))
        there, gone = kit.row("there"), kit.row("gone")
        assert (there["is_deleted"], there["size"], there["content_type"]) == (False, 5, "text/plain")
        assert gone["is_deleted"]
        assert len(kit.journal()) == 2


def test_a_bucket_that_may_not_be_asked_is_told_by_a_dead_letter(lane_settings, spark, tmp_path, services, bucket):
    wrong = s3_of(services).model_copy(update={"access_key": "nobody"})
    with content_kit(lane_settings, spark, tmp_path, s3=wrong) as kit:
        kit.drain(body(Told(key="a", bucket=bucket, sequence=None)), body(Told(key="b", bucket="other", sequence="1")))
        assert [d["reason"] for d in kit.kit.dead(kit.topic)] == ["not_answered"]
        assert [r["key"] for r in kit.objects()] == ["b"], "the flow goes on"


def test_within_the_skew_the_bucket_is_asked_again_and_drain_waits_for_it(
    lane_settings, spark, tmp_path, services, bucket
):
    """An event says deleted, a look at about the same time says it is there: whoever asks later knows."""
    client = services.seaweedfs.access.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"1")
    now = datetime.datetime.now(datetime.UTC)
    second = (now - datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)).total_seconds()
    seen = {
        "frazil": "observation", "version": 1, "bucket": bucket, "source": "scan", "observed_at": now.isoformat(),
        "objects": [{"key": "k", "size": 1, "etag": "x"}],
    }  # fmt: skip
    deleted = body(Told(DELETE, key="k", bucket=bucket, sequence="9", second=second + 0.5))
    with content_kit(lane_settings, spark, tmp_path, s3=s3_of(services), skew_s=3.0) as kit:
        kit.drain(json.dumps(seen).encode(), deleted)
        row = kit.row("k")
        assert (row["is_deleted"], row["check_after"], row["size"]) == (False, None, 1)
        assert row["frazil_order"]["observed_time"] > row["frazil_order"]["deleted_time"]


def test_tombstones_stay_and_go_only_by_an_explicit_lateness(lane_settings, spark, tmp_path):
    with content_kit(lane_settings, spark, tmp_path) as kit:
        kit.drain(body(Told(key="a", sequence="1"), Told(DELETE, key="a", sequence="2"), Told(key="b", sequence="1")))
        kit.drain(body(Told(key="c", sequence="1")))
        assert [r["key"] for r in kit.objects()] == ["a", "b", "c"]
        content = kit.settings.model.content.model_copy(update={"lateness_s": 1.0})
        short = Settings(kit.settings.model.model_copy(update={"content": content}))
        kit.publish(body(Told(key="d", sequence="1")))
        with kit.pipeline(short) as pipeline:
            pipeline.drain(120)
        assert [r["key"] for r in kit.objects()] == ["b", "c", "d"]


def test_unknown_columns_of_other_events_do_not_matter_and_the_batch_is_atomic(kit):
    """A batch whose commit fails for good leaves both tables readable, and the next one takes it."""
    kit.kit.client.append(kit.topic, Batch.of_messages([body(Told(key="a", sequence="1"))]))

    def fail(step: str) -> None:
        if step == "sink.commit.before":
            raise OSError("no")

    with handled(fail), kit.pipeline() as pipeline, pytest.raises(FrazilError):
        pipeline.drain(120)  # it ends after some failures; a batch that still ran would be committed after the fault
    assert kit.objects() == []
    kit.drain()
    assert [r["key"] for r in kit.objects()] == ["a"]
    assert len(kit.journal()) == 1


def test_a_store_that_does_not_answer_stops_nothing_and_is_asked_when_it_does(
    lane_settings, spark, tmp_path, services, bucket
):
    """Until then the table has what the event says."""
    client = services.seaweedfs.access.client()
    client.put_object(Bucket=bucket, Key="k", Body=b"1")
    nobody = s3_of(services).model_copy(update={"endpoint": "http://127.0.0.1:9"})
    with content_kit(lane_settings, spark, tmp_path, s3=nobody) as kit:
        kit.drain(body(Told(DELETE, key="k", bucket=bucket, sequence=None)), body(Told(key="other", sequence="1")))
        row = kit.row("k")
        assert (row["is_deleted"], row["check_after"]) == (True, row["changed_at"])
        assert kit.row("other")["is_deleted"] is False
        back = Settings(kit.settings.model.model_copy(update={"s3": s3_of(services)}))
        with kit.pipeline(back) as pipeline:
            pipeline.drain(120)
        row = kit.row("k")
        assert (row["is_deleted"], row["check_after"], row["size"]) == (False, None, 1)


def test_a_bucket_whose_clock_lies_behind_is_not_asked_again_and_again(
    lane_settings, spark, tmp_path, services, monkeypatch
):
    nobody = s3_of(services).model_copy(update={"endpoint": "http://127.0.0.1:9"})
    with content_kit(lane_settings, spark, tmp_path, s3=nobody) as kit:
        kit.drain(body(Told(DELETE, key="k", sequence=None, second=100)))
        assert kit.row("k")["check_after"] is not None
        asked = []

        def behind(_requests, keys):
            asked.append(list(keys))
            return changes([seen(50, key="k", etag="old")]), {}

        monkeypatch.setattr(HeadRequests, "look_up", behind)
        kit.drain()
        assert len(asked) == 1
        assert kit.row("k")["is_deleted"], "what is stored is newer"


@pytest.mark.deep
def test_rows_that_no_store_can_answer_do_not_keep_others_from_being_asked(lane_settings, spark, tmp_path, monkeypatch):
    refused = s3_of_nobody(lane_settings)
    monkeypatch.setattr("frazil.content.sink.pending_checks._AT_ONCE", 2)
    with content_kit(lane_settings, spark, tmp_path, s3=refused) as kit:
        stuck = [Told(DELETE, key=f"k{n}", bucket="stuck", sequence=None, second=n) for n in range(5)]
        kit.drain(*(body(t) for t in [*stuck, Told(DELETE, key="k", sequence=None, second=100)]))
        asked = []

        def only_one(_requests, keys):
            asked.append(list(keys))
            known = [seen(200, key=key, etag="x") for bucket, key, _ in asked[-1] if bucket == "b"]
            return changes(known), {k[:2]: UnavailableError("down") for k in asked[-1] if k[0] == "stuck"}

        monkeypatch.setattr(HeadRequests, "look_up", only_one)
        kit.drain()
        assert [len(keys) for keys in asked] == [2, 2, 2]
        assert (kit.row("k")["is_deleted"], kit.row("k")["check_after"]) == (False, None)


def s3_of_nobody(settings: Settings) -> S3Settings:
    return settings.model.s3.model_copy(update={"endpoint": "http://127.0.0.1:9"})
