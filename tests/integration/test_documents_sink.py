"""The documents sink on real Spark and real tables: present documents and their history, whatever comes when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.catalogs import local_path
from frazil.documents.iceberg.store import IcebergDocumentStore
from frazil.documents.messages import encode_bulk, encode_column, encode_revision
from frazil.documents.model import Column
from frazil.documents.names import history_name, metadata_name
from frazil.documents.store import Write
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.topics.dead_letters.replay import replay_dead_letters
from tests.documents_sink_kit import START, DocumentsKit, documents_sink_kit, past

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

STEPS = (
    "documents.merge.plan",
    "sink.dead_letters.after",
    "documents.history.before",
    "documents.history.after",
    "sink.commit.before",
    "tables.commit.after",
    "sink.commit.after",
)


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[DocumentsKit]:
    with documents_sink_kit(lane_settings, spark, tmp_path) as made:
        yield made


class DiesError(BaseException):
    """The process 'dies' here: nothing below catches it."""


def dies_at(step: str):
    def die(reached: str) -> None:
        if reached == step:
            raise DiesError

    return handled(die)


def some_writes(kit: DocumentsKit, chance: random.Random, count: int) -> None:
    """Puts, updates, deletes and undeletes of a few documents of twenty years."""
    for _ in range(count):
        document_id = f"doc-{chance.randrange(30)}"
        latest = kit.latest.get(document_id)
        if latest is None:
            created = START - timedelta(days=chance.randrange(7300))
            tags = {"project": chance.choice(["apollo", "Ünïcode ✓"])}
            kit.put(document_id, created_at=created, tags=tags, attributes={"pages": chance.randrange(9)})
        elif latest.is_deleted:
            kit.write(Write(chance.choice(["undelete", "put"]), document_id, {"filename": "again.pdf"}))
        else:
            operation = chance.choice(["update", "update", "delete"])
            values = {"size_bytes": chance.randrange(100)} if operation == "update" else {}
            kit.write(Write(operation, document_id, values))


@pytest.mark.deep
def test_the_tables_hold_what_was_written_although_every_step_fails_once(kit):
    chance = random.Random(3)
    for step in STEPS:
        some_writes(kit, chance, 40)
        kit.publish_as_anybody(b"anything")
        with dies_at(step), pytest.raises(DiesError):
            kit.merge()
    kit.merge()
    assert kit.merge() == 0
    kit.check()
    assert [reason for _, reason in kit.dead()] == ["untrusted"] * len(STEPS)
    assert kit.on_spark("document_id, revision") == sorted(
        (i, r.revision) for i, r in kit.latest.items() if not r.is_deleted
    )


def test_a_deleted_document_has_no_row_and_undelete_brings_it_back(kit):
    kit.put("a", size_bytes=7)
    kit.put("b")
    kit.merge()
    kit.write(Write("delete", "a"))
    kit.merge()
    assert list(kit.documents()) == ["b"]
    kit.write(Write("undelete", "a"))
    kit.merge()
    assert kit.documents()["a"]["size_bytes"] == 7
    kit.check()


def test_messages_that_come_again_change_nothing_not_even_after_a_delete(kit):
    kit.put("a", size_bytes=1)
    kit.write(Write("update", "a", {"size_bytes": 2}))
    kit.put("gone")
    kit.merge()
    kit.write(Write("delete", "gone"))
    kit.merge()
    late = [encode_revision(stored) for stored in kit.stored]
    kit.publish(*late, *reversed(late))
    kit.merge()
    assert {i: d["size_bytes"] for i, d in kit.documents().items()} == {"a": 2}
    kit.publish(late[2])  # alone: only the history can tell that the document was deleted
    kit.merge()
    assert list(kit.documents()) == ["a"]


def test_an_added_column_is_in_both_tables_before_the_values_of_the_same_batch(kit):
    kit.put("before")
    kit.merge()
    messages = [kit.add_column("department", "string"), kit.add_column("due", "timestamp")]
    due = datetime(2030, 1, 1, tzinfo=UTC)
    given = {"filename": "x", "department": "R&D", "due": due}
    decided = kit.decide(Write("put", "after", given), Write("update", "before", {"department": "Sales"}))
    kit.publish(*messages, *map(encode_revision, decided))
    with dies_at("sink.commit.before"), pytest.raises(DiesError):
        kit.merge()
    assert kit.merge() == 1
    kit.check()
    assert not kit.dead()
    assert kit.on_spark("document_id, department, year(due)") == [("after", "R&D", 2030), ("before", "Sales", None)]


def test_values_of_unknown_columns_are_dead_letters_and_stop_nothing(kit):
    (stored,) = kit.decide(Write("put", "odd", {"filename": "odd.pdf"}))
    kit.stored.clear()
    del kit.latest["odd"]
    document = stored.revision.document
    odd = replace(stored, revision=replace(stored.revision, document=replace(document, columns={"unknown": 1})))
    kit.publish(encode_column(Column("size", "long")), encode_revision(odd), b"{}", b"no json")
    wrong = replace(stored, revision=replace(stored.revision, document=replace(document, columns={"size": "big"})))
    kit.publish(encode_revision(wrong))
    kit.put("fine")
    kit.merge()
    kit.check()
    assert kit.dead() == [(1, "column"), (2, "invalid"), (3, "not_json"), (4, "type")]


def test_staged_files_are_merged_with_their_history(kit):
    kit.put("own")
    first = past("old-1", "put", "update", "delete", begin=START - timedelta(days=5000))
    second = past("old-2", "put", "update", "update", begin=START - timedelta(days=4000))
    third = past("old-3", "put", "delete", "undelete", begin=START - timedelta(days=40))
    kit.load(first, [*second, *third])
    kit.write(Write("update", "own", {"size_bytes": 3}))
    kit.stored += [*first, *second, *third]
    kit.latest |= {s.revision.document_id: s.revision for s in [*first, *second, *third]}
    with dies_at("documents.history.after"), pytest.raises(DiesError):
        kit.merge()
    assert kit.merge() == 1
    kit.check()
    kit.write(Write("undelete", "old-1"), Write("update", "old-2", {"size_bytes": 99}))
    kit.merge()
    kit.check()


@pytest.mark.parametrize(
    "damage",
    ["damaged", pytest.param("missing", marks=pytest.mark.deep), pytest.param("elsewhere", marks=pytest.mark.deep)],
)
def test_a_staged_file_that_cannot_be_used_is_a_dead_letter_and_stops_nothing(kit, damage):
    lost = past("lost", "put", "update", begin=START - timedelta(days=400))
    files = [kit.stage(past("fine", "put")), kit.stage(lost)]
    path = Path(str(local_path(files[1].uri)))
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        files[1] = replace(files[1], uri=kit.kit.store.load(history_name(kit.settings)).location() + "/x.parquet")
    kit.put("before")
    offset = kit.publish(encode_bulk(files))
    kit.put("after")
    kit.merge()
    kit.check()
    assert kit.dead() == [(offset, "missing_file" if damage == "missing" else "damaged_file")]
    if damage != "elsewhere":
        path.write_bytes(content)
        replay_dead_letters(kit.kit.store, kit.settings, kit.kit.log, kit.topic)
        kit.merge()
        kit.stored += [*lost, *past("fine", "put")]
        kit.latest |= {s.revision.document_id: s.revision for s in kit.stored}
        kit.check()


def test_the_metadata_is_partitioned_by_creation_and_the_history_by_acknowledgement(kit):
    for month in (1, 2, 3):
        kit.put(f"m{month}", created_at=datetime(2020, month, 5, tzinfo=UTC))
    kit.merge()
    kit.write(Write("update", "m2", {"size_bytes": 5}))
    kit.merge()
    tables = {name: kit.kit.store.load(name) for name in (metadata_name(kit.settings), history_name(kit.settings))}
    live = {task.file.partition[0] for task in tables[metadata_name(kit.settings)].scan().plan_files()}
    assert live == {600, 601, 602}
    assert {task.file.partition[0] for task in tables[history_name(kit.settings)].scan().plan_files()} == {674}
    kit.check()


@pytest.mark.deep
def test_a_table_without_partitions_is_merged_as_well(lane_settings, spark, tmp_path):
    with documents_sink_kit(lane_settings, spark, tmp_path, partition=[]) as kit:
        chance = random.Random(5)
        for _ in range(3):
            some_writes(kit, chance, 60)
            kit.merge()
        kit.check()


@pytest.mark.deep
def test_columns_that_others_have_added_to_the_table_stay_with_their_document(kit):
    kit.put("a")
    kit.merge()
    name = f"`{kit.catalog}`.{metadata_name(kit.settings)}"
    kit.spark.sql(f"ALTER TABLE {name} ADD COLUMN reviewed DATE")
    kit.spark.sql(f"UPDATE {name} SET reviewed = DATE '2026-01-02' WHERE document_id = 'a'")
    kit.write(Write("update", "a", {"size_bytes": 3}))
    kit.put("b")
    kit.merge()
    assert kit.on_spark("document_id, year(reviewed)") == [("a", 2026), ("b", None)]


def test_a_store_agrees_with_its_tables_and_is_rebuilt_from_them(lane_settings, spark, tmp_path):
    model = lane_settings.model
    log = model.log.model_copy(update={"max_file_size": 8192})
    own = Settings(model.model_copy(update={"home": tmp_path, "log": log, "catalog": model.catalogs["sql"]}))
    with documents_sink_kit(own, spark, tmp_path) as kit, IcebergDocumentStore(kit.settings, kit.kit.log) as store:
        store.add_column("department", "string")
        store.write([Write("put", f"d{n}", {"filename": f"{n}.pdf", "department": f"dep {n}"}) for n in range(50)])
        store.update_metadata("d1", {"size_bytes": 5, "department": None}, idempotency_key="once")
        store.delete_metadata("d2")
        histories = [s.revision for n in range(20) for s in past(f"old-{n}", "put", "update", "delete", "undelete")]
        store.load_revisions([histories[:40], histories[40:]])
        assert kit.merge() == 1
        store.undelete_metadata("d2")
        store.put_metadata({"document_id": "new", "filename": "new.pdf", "tags": {"a": "b"}})
        assert store.verify().findings == []  # the last two are only in the log
        kit.merge()
        assert store.verify().findings == []
        before = [revision for batch in store.revisions() for revision in batch]
        assert kit.kit.log.retain(kit.topic, age_s=0.0).start > 0
        store.rebuild()
        assert [revision for batch in store.revisions() for revision in batch] == before
        assert store.update_metadata("d1", {"size_bytes": 5, "department": None}, idempotency_key="once").revision == 2
        assert store.verify().findings == []
        assert kit.documents().keys() == {document["document_id"] for document in store.list_metadata()}
