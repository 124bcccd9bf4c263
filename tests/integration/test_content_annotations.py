"""Results of extraction, edits and custom columns through the real sink: on Spark, in tables, under faults."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from frazil.content.annotations.custom_columns import columns_to_fill
from frazil.content.annotations.messages import edit, extraction, fields
from frazil.content.columns import DELETE
from frazil.content.fields import active_fields
from frazil.content.names import objects_name
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from tests.content_sink_kit import ContentKit, body, content_kit
from tests.content_truth import Told

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    with content_kit(lane_settings, spark, tmp_path) as made:
        yield made


def put(key: str = "a", etag: str = "e1", sequence: str = "1", **given: Any) -> Told:
    return Told(key=key, etag=etag, size=5, sequence=sequence, second=float(int(sequence, 16)), **given)


def found(key: str = "a", etag: str = "e1", iso: Any = 100, **given: Any) -> dict[str, Any]:
    data = {"exif": {"ISOSpeedRatings": iso, "Model": "K1"}, "image": {"width": 4, "height": 3, "camera": "K1"}}
    states = {name: {"version": "1", "status": "ok", "reason": None, "data": d} for name, d in data.items()}
    return {"key": key, "version_id": "", "etag": etag, "created": None, "extractors": states, **given}


def results(*made: dict[str, Any]) -> bytes:
    return extraction("b", made, NOW)


def said(key: str = "a", **given: Any) -> bytes:
    return edit("b", [{"key": key, "version_id": "", **given}], NOW)


def order(*names_types_paths: tuple[str, str, str], **given: Any) -> bytes:
    made = [dict(zip(("name", "type", "jpath"), entry, strict=True)) for entry in names_types_paths]
    return fields(made, **{"cast": "lenient", "include_raw_metadata": True, **given})


ISO = ("iso", "INTEGER", "$.exif.ISOSpeedRatings")


def test_a_row_is_pending_then_looked_into_and_pending_again_with_new_content(kit):
    kit.drain(body(put()))
    assert (kit.row("a")["extraction_status"], kit.row("a")["metadata"]) == ("pending", None)
    kit.drain(results(found()), said(add=["sea"], note="pier", rating=5))
    row = kit.row("a")
    assert (row["extraction_status"], row["image_width"], row["camera"]) == ("ok", 4, "K1")
    assert json.loads(row["metadata"])["exif"]["Model"] == "K1"
    # News of the row, not of its content.
    kit.drain(body(Told("UPDATE_METADATA", key="a", sequence="2", second=2.0)))
    row = kit.row("a")
    assert (row["sequence"], row["image_width"], row["user_tags"]) == ("2", 4, ["sea"])
    kit.drain(body(put(etag="e2", sequence="3")), results(found()))
    row = kit.row("a")
    assert (row["etag"], row["extraction_status"], row["metadata"], row["camera"]) == ("e2", "pending", None, None)
    assert (row["user_tags"], row["note"], row["rating"]) == (["sea"], "pier", 5)
    kit.drain(body(Told(DELETE, key="a", sequence="4", second=4.0)), results(found(etag="e2")))
    row = kit.row("a")
    assert (row["is_deleted"], row["extraction_status"], row["metadata"]) == (True, None, None)


@pytest.mark.slow
def test_however_the_messages_are_cut_into_batches_the_rows_are_the_same(kit, lane_settings, spark, tmp_path):
    messages = [
        body(put("a"), put("b"), put("c")),
        results(found("a"), found("b"), found("nobody")),
        said("a", add=["x"]),
        body(put("b", "e2", "5")),
        said("c", note="kept"),
        body(Told(DELETE, key="c", sequence="6", second=6.0)),
        said("a", erase=True, etag="e1"),
        results(found("a"), found("b", "e2")),
        body(put("a", "e3", "7")),
        said("nobody", note="nothing"),
    ]
    kit.drain(*messages)
    with content_kit(lane_settings, spark, tmp_path / "other") as other, other.pipeline() as pipeline:
        for message in messages:
            other.publish(message)
            pipeline.drain(120)
        told = other.objects()
    names = ("key", "etag", "extraction_status", "metadata", "user_tags", "note", "image_width", "is_deleted")
    assert [[row[n] for n in names] for row in kit.objects()] == [[row[n] for n in names] for row in told]
    assert [row["extraction_status"] for row in told] == ["pending", "ok", None]


def test_a_field_is_added_to_a_live_table_and_filled_without_reading_an_object(kit):
    kit.drain(
        body(*(put(f"k{i}") for i in range(20)), put("empty")), results(*(found(f"k{i}", iso=i) for i in range(20)))
    )
    before = kit.kit.store.load(objects_name(kit.settings))
    with kit.pipeline() as pipeline:
        kit.publish(order(ISO, ("model", "STRING", "$.exif.Model"), backfill=["iso"]))
        pipeline.drain(120)
        after = kit.kit.store.load(objects_name(kit.settings))
        assert before.scan().to_arrow().num_rows == after.scan().to_arrow().num_rows == 21
        assert not columns_to_fill(after)
        assert active_fields(after.metadata.properties).names == ["iso", "model"]
        assert sorted(r["iso"] for r in kit.objects() if r["iso"] is not None) == list(range(20))
        assert [r["model"] for r in kit.objects() if r["model"]] == [], "not asked for"
        # New results have both.
        kit.publish(body(put("late")), results(found("late", iso="7"), found("k3", iso="many")))
        pipeline.drain(120)
    assert (kit.row("late")["iso"], kit.row("late")["model"]) == (7, "K1")
    assert kit.row("k3")["iso"] is None
    assert "many" in dict(kit.row("k3")["field_errors"])["iso"]
    kit.drain(order(backfill=["model"]))
    assert {r["model"] for r in kit.objects() if r["key"] != "empty"} == {"K1"}
    assert kit.spark_objects("key, iso")[1] == ("k0", 0)


def test_readers_see_the_old_or_the_new_schema_while_a_field_is_added_and_filled(kit):
    keys = [f"k{i:02}" for i in range(20)]
    kit.drain(body(*map(put, keys)), results(*(found(key, iso=7) for key in keys)))
    ended, seen, failed = threading.Event(), [], []

    def read() -> None:
        try:
            while not ended.is_set():
                rows = kit.objects()
                assert [row["key"] for row in rows] == keys
                assert [key for (key,) in kit.spark_objects("key")] == keys
                seen.append({row.get("iso", "no column") for row in rows})
        except Exception as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    reader = threading.Thread(target=read)
    with kit.pipeline() as pipeline:
        reader.start()
        try:
            for name in ("iso", "iso2", "iso3"):
                kit.publish(order((name, "INTEGER", ISO[2]), backfill=[name]))
                pipeline.drain(120)
        finally:
            ended.set()
            reader.join()
    assert failed == []
    assert seen
    assert all(values <= {"no column", None, 7} and len(values) <= 2 for values in seen)
    assert {row["iso3"] for row in kit.objects()} == {7}


@pytest.mark.deep
def test_a_field_is_widened_redefined_dropped_and_added_again(kit):
    kit.drain(body(put()), results(found(iso=2**20)), order(ISO, backfill=["iso"]))
    assert kit.row("a")["iso"] == 2**20
    kit.drain(order(("iso", "LONG", ISO[2]), backfill=["iso"]))
    table = kit.kit.store.load(objects_name(kit.settings))
    assert str(table.schema().find_field("iso").field_type) == "long"
    kit.drain(order(("iso", "LONG", "$.image.width"), backfill=["iso"]))
    assert kit.row("a")["iso"] == 4
    # Iceberg has no way from long to string, nor back to int.
    for kind in ("STRING", "INTEGER"):
        kit.drain(order(("iso", kind, ISO[2]), backfill=["iso"]))
        assert kit.row("a")["iso"] == 4
    kit.drain(order(drop=["iso", "camera"]))
    assert "iso" not in kit.row("a")
    assert kit.row("a")["camera"] == "K1", "a standard column stays"
    kit.drain(order(("iso", "LONG", "$.image.width"), backfill=["iso"]))
    assert kit.row("a")["iso"] == 4


def test_fields_of_the_settings_are_there_from_the_start(lane_settings, spark, tmp_path):
    from frazil.settings.model import SchemaSettings

    field = {"iso": {"type": "INTEGER", "jpath": "$.exif.ISOSpeedRatings"}}
    given = {"custom_metadata_fields": "iso", "field": field}
    schema = SchemaSettings.model_validate(given)
    with content_kit(lane_settings, spark, tmp_path, schema=schema) as kit:
        kit.drain(body(put()), results(found()))
        assert kit.row("a")["iso"] == 100


def test_columns_of_others_stay_when_a_row_is_rewritten(kit):
    kit.drain(body(put(), put("b")))
    name = f"`{kit.catalog}`.{objects_name(kit.settings)}"
    kit.spark.sql(f"ALTER TABLE {name} ADD COLUMN theirs string")
    kit.spark.sql(f"UPDATE {name} SET theirs = 'mine' WHERE key = 'a'")
    kit.drain(body(put(etag="e2", sequence="2"), put("b", "e2", "2")))
    assert [(r["key"], r["etag"], r["theirs"]) for r in kit.objects()] == [("a", "e2", "mine"), ("b", "e2", None)]


def test_columns_that_others_drop_lose_no_row_and_stop_nothing(kit):
    kit.drain(body(put(), put("b")), results(found(), found("b")), order(ISO, backfill=["iso"]))
    name = f"`{kit.catalog}`.{objects_name(kit.settings)}"
    with kit.pipeline() as pipeline:
        pipeline.drain(60)  # it knows the table as it is now
        kit.spark.sql(f"ALTER TABLE {name} DROP COLUMN iso")
        kit.spark.sql(f"ALTER TABLE {name} DROP COLUMN camera")
        kit.publish(said(add=["x"]), results(found("b", iso=7)))
        pipeline.drain(120)
    assert [(r["key"], r["user_tags"], r["image_width"]) for r in kit.objects()] == [("a", ["x"], 4), ("b", None, 4)]
    kit.drain(order(ISO, backfill=["iso"]))
    assert [r["iso"] for r in kit.objects()] == [100, 7]


@pytest.mark.deep
@pytest.mark.parametrize("step", ["tables.properties.before", "tables.properties.after"])
def test_a_fault_in_the_middle_of_a_drop_is_made_good(kit, step):
    kit.drain(body(put()), results(found()), order(ISO, backfill=["iso"]))
    left = [3]

    def fail(at: str) -> None:
        if at == step and left[0]:
            left[0] -= 1
            raise OSError("fault")

    with handled(fail), kit.pipeline() as pipeline:
        kit.publish(order(drop=["iso"]))
        pipeline.drain(120)
    assert left == [0]
    assert "iso" not in kit.row("a")
    kit.drain(order(("iso", "STRING", "$.exif.Model"), backfill=["iso"]))
    assert kit.row("a")["iso"] == "K1"


#: Step → how often it is reached until the field is filled, at least.
STEPS = {
    "content.fill.plan": 2, "tables.evolve.after": 1, "tables.properties.before": 2, "tables.properties.after": 2,
    "sink.commit.before": 2, "sink.commit.after": 2,
}  # fmt: skip


@pytest.mark.slow
def test_a_fault_at_any_step_of_a_new_field_loses_nothing(kit):
    kit.drain(body(*(put(f"k{i}") for i in range(5))), results(*(found(f"k{i}", iso=i) for i in range(5))))
    names = []
    for number, (step, times) in enumerate(STEPS.items()):
        names.append(f"f{number}")
        left = [times]

        def fail(at: str, step: str = step, left: list[int] = left) -> None:
            if at == step and left[0]:
                left[0] -= 1
                raise OSError("fault")

        with handled(fail), kit.pipeline() as pipeline:
            kit.publish(order((names[-1], "LONG", ISO[2]), backfill=[names[-1]]), said("k1", add=[names[-1]]))
            pipeline.drain(120)
        assert left == [0], step
        assert sorted(row[names[-1]] for row in kit.objects()) == [0, 1, 2, 3, 4], step
    assert kit.row("k1")["user_tags"] == names
    assert not columns_to_fill(kit.kit.store.load(objects_name(kit.settings)))


def test_two_pipelines_at_once_fill_once(kit):
    kit.drain(body(*(put(f"k{i}") for i in range(30))), results(*(found(f"k{i}", iso=i) for i in range(30))))
    kit.publish(order(ISO, backfill=["iso"]))
    with kit.pipeline() as one, kit.pipeline() as other:
        threads = [threading.Thread(target=p.drain, args=(120,)) for p in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(row["iso"] for row in kit.objects()) == list(range(30))
