"""What former versions have written is read, continued and migrated by this one. `tests/golden.py` says how."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.content.columns import JOURNAL, OBJECTS
from frazil.content.names import journal_name, objects_name
from frazil.content.scan import state
from frazil.content.scan.state import state_file
from frazil.log import frame, segment, topic_file
from frazil.log.batch import Batch
from frazil.log.columns import MESSAGE
from frazil.log.protocol import TopicInfo
from frazil.settings import Settings
from frazil.tables import Position
from frazil.tables.position import position_key
from frazil.topics.admin.migrate import Migrating
from frazil.topics.admin.verify import verify_topic
from frazil.topics.layout import ARCHIVE, DEAD_LETTER
from frazil.topics.reading.reader import reader_of
from frazil.upkeep.expiry import expired_file_lists, reclaim
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.runs import history
from tests import golden
from tests.golden_make import BUCKET, EVENTS, NOTES, ORDERS, SCAN, settings_of
from tests.sink_kit import SinkKit, sink_kit_of
from tests.upkeep_files import care_of_settings, step


class Home:
    """The home of a former version, at a new place."""

    def __init__(self, version: str, folder: Path) -> None:
        self.path, self.expected = golden.unpack(version, folder)
        self.settings: Settings = settings_of(self.path)

    def messages(self, topic: str) -> dict[int, bytes]:
        return {offset: payload.encode() for offset, payload in self.expected["messages"][topic]}

    def rows(self, topic: str) -> dict[int, bytes]:
        """Those that the topic's table had."""
        found = self.messages(topic).items()
        return {o: p for o, p in found if o < self.expected["position"] and o not in self.expected["dead"]}

    @contextmanager
    def open(self) -> Iterator[SinkKit]:
        with sink_kit_of(self.settings) as kit:
            for topic in (ORDERS, NOTES):
                kit.acknowledged[topic] = self.messages(topic)
            yield kit


@pytest.fixture(params=golden.VERSIONS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(request.param, tmp_path)


def read(kit: SinkKit, topic: str) -> dict[int, bytes]:
    found = {}
    for rows in reader_of(kit.client, kit.settings, topic, kit.tables).read(0, end=kit.client.info(topic).end):
        found.update(zip(rows["offset"].to_pylist(), rows["payload"].to_pylist(), strict=True))
    return found


def objects(kit: SinkKit) -> list[dict[str, Any]]:
    rows = kit.store.load(objects_name(kit.settings)).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda r: (r["key"], r["version_id"]))


def test_the_newest_fixture_has_the_formats_of_today(tmp_path: Path) -> None:
    """Whoever changes a format adds a fixture: `python -m tests.golden_make NUMBER`."""
    newest = Home(max(golden.VERSIONS, key=int), tmp_path)
    topic = newest.path / "log" / "topics" / NOTES
    (scan,) = (newest.path / "content" / "scans").glob("*.json")
    (expired,) = (newest.path / "warehouse" / "topics" / ORDERS).rglob(f"{expired_file_lists.PREFIX}*.json")
    versions = {
        "frame": min(topic.glob("*.seg")).read_bytes()[4],
        "index": int.from_bytes(min(topic.glob("*.idx")).read_bytes()[4:8], "little"),
        "topic.json": json.loads((topic / "topic.json").read_text())["format"],
        "scan": json.loads(scan.read_text())["version"],
        "expired files": json.loads(expired.read_text())["format"],
    }
    assert versions == {
        "frame": frame.VERSION,
        "index": segment._INDEX_VERSION,
        "topic.json": topic_file.FORMAT,
        "scan": state._VERSION,
        "expired files": expired_file_lists._FORMAT,
    }
    care = care_of_settings(newest.settings)
    with care.store:
        columns = {name: names_and_types(care.load(name).schema().as_arrow()) for name in TABLES}
        names = {k for k in care.load(f"topics.{ORDERS}").properties if k.startswith("frazil.")}
        carried = json.loads(care.load(f"topics.{ORDERS}").properties[position_key(ARCHIVE, ORDERS)])
    topic_columns = columns.pop(f"topics.{ORDERS}")
    assert columns == {name: names_and_types(schema) for name, schema in TABLES.items() if schema is not None}
    assert names_and_types(MESSAGE).items() <= topic_columns.items()
    assert names == {position_key(ARCHIVE, ORDERS)}
    now = Position(ARCHIVE, ORDERS, {0: 1}, "log", 1, "batch")
    assert carried.keys() == json.loads(now.to_json()).keys()


#: The tables of a fixture, with their columns as they would be created today.
TABLES: dict[str, pa.Schema | None] = {
    "content.objects": OBJECTS,
    "content.journal": JOURNAL,
    "topics.dead_letters": DEAD_LETTER,
    "frazil.upkeep_history": history.schema(),
    f"topics.{ORDERS}": None,
}


def names_and_types(schema: pa.Schema) -> dict[str, str]:
    """What PyIceberg calls otherwise is left out: offsets of 64 bits, and the elements of a list."""
    return {field.name: re.sub(r"large_|\b(element|item): ", "", str(field.type)) for field in schema}


def test_every_message_of_a_former_version_is_read_from_log_and_table(home: Home) -> None:
    with home.open() as kit:
        assert read(kit, ORDERS) == home.messages(ORDERS)
        assert read(kit, NOTES) == home.messages(NOTES)
        assert {r["offset"]: r["payload"] for r in kit.rows(ORDERS)} == home.rows(ORDERS)
        (letter,) = kit.dead(ORDERS)
        assert (letter["offset"], letter["payload"], letter["reason"]) == (11, b"does not fit", "type")
        info = kit.client.info(ORDERS)
        assert (info.start, info.end) == (home.expected["log_start"], len(home.messages(ORDERS)))
        assert info.subscriptions == {"dashboard": 5}
    quarantine = home.path / "log" / "topics" / NOTES / "quarantine"
    (torn,) = quarantine.iterdir()
    assert torn.read_bytes()[:4] == b"FRZL", "the crash left half a frame"


def test_columns_of_producers_have_their_types_and_values(home: Home) -> None:
    with home.open() as kit:
        columns = ("offset", "request_id", "amount", "tags", "at", "price", "place", "headers", "producer_name")
        rows = {r["offset"]: r for r in kit.rows(ORDERS, columns)}
    assert [rows[n]["request_id"] for n in (3, 4, 5)] == [7, None, -7]
    assert rows[6] == {
        "offset": 6, "request_id": None, "amount": 1.5, "tags": ["x", "y"], "at": datetime(2026, 1, 1, tzinfo=UTC),
        "price": None, "place": {"city": "Oulu", "zip": 90100}, "headers": [("source", "shop")], "producer_name": None,
    }  # fmt: skip
    assert (rows[7]["amount"], rows[7]["price"], rows[7]["place"]) == (None, Decimal("12.00"), None)
    assert [rows[n]["producer_name"] for n in (8, 9, 10)] == ["billing"] * 3


def test_a_retry_from_before_the_upgrade_is_recognised(home: Home) -> None:
    with home.open() as kit:
        registered = kit.log.register(ORDERS, "billing")
        assert (registered.before_last, registered.before) == (
            2,
            [[n, 8 + n, 1, registered.before[n][3]] for n in range(3)],
        )
        batch = Batch.of_messages([b"billed 3"])
        ack = kit.append(ORDERS, batch.with_sequence(registered.producer_id, registered.producer_epoch, 0))
        again = kit.append(ORDERS, batch.with_sequence(registered.producer_id, registered.producer_epoch, 0))
        assert (again.offset, again.duplicate) == (ack.offset, True)


def test_a_topic_goes_on_where_a_former_version_left_it(home: Home) -> None:
    with home.open() as kit:
        known = home.messages(ORDERS)
        assert kit.publish(ORDERS, b"by a later version").offset == max(known) + 1
        turn = kit.engine(ORDERS).catch_up()
        assert (turn.rows, turn.dead) == (len(known) + 1 - home.expected["position"], 0)
        kit.check(ORDERS, dead=home.expected["dead"])
        kit.publish(NOTES, b"by a later version")
        for topic in (ORDERS, NOTES):
            assert read(kit, topic) == kit.acknowledged[topic]
            report = verify_topic(kit.client, kit.settings, topic, kit.tables)
            assert report.sound, report.to_dict()


def test_the_messages_of_a_former_version_migrate_to_a_log_and_to_a_table(home: Home) -> None:
    with home.open() as kit:
        Migrating(kit.client, kit.settings, ORDERS, kit.tables, patience_s=0).to_log()
        info: TopicInfo = kit.client.info(ORDERS)
        assert (info.storage, info.start) == ("log", 0)
        lacking = set(home.expected["dead"])
        found = {r: p for chunk in [read(kit, ORDERS)] for r, p in chunk.items()}
        assert {o: p for o, p in found.items() if o not in lacking} == {
            o: p for o, p in home.messages(ORDERS).items() if o not in lacking
        }
        Migrating(kit.client, kit.settings, NOTES, kit.tables, patience_s=0).to_iceberg()
        kit.check(NOTES)


def test_files_that_a_former_version_expired_are_deleted_and_no_others(home: Home) -> None:
    care = care_of_settings(home.settings)
    with care.store:
        table = care.load(f"topics.{ORDERS}")
        (listed,) = expired_file_lists.waiting(care.storage_of(table), table)
        assert listed.committed
        kinds = {file.kind for file in listed.files}
        assert {"data", "manifest", "manifest list"} <= kinds, kinds
        outcome = reclaim.run(care, table, step("reclaim", grace_s=0.0))
        assert outcome.files_removed == len(listed.files)
        assert expired_file_lists.waiting(care.storage_of(table), table) == []
        for name in (f"topics.{ORDERS}", "topics.dead_letters", "content.objects", "content.journal"):
            assert verify(care, care.load(name)).findings == []
        assert care.load("frazil.upkeep_history").scan().to_arrow().num_rows > 0


def test_a_scan_that_a_former_version_began_goes_on_where_it_was(home: Home) -> None:
    with state_file(home.settings, SCAN.what[0], "") as file:
        assert file.read(SCAN.what) == SCAN


def test_the_tables_of_content_are_read_with_their_deletes(home: Home) -> None:
    with home.open() as kit:
        found = [
            (r["key"], r["version_id"], r["etag"], r["size"], r["is_latest"], r["is_deleted"]) for r in objects(kit)
        ]
        assert found == [
            ("a.jpg", "", "a2", 11, True, False),
            ("b.jpg", "v1", "b1", 20, False, False),
            ("b.jpg", "v2", "b2", 21, True, False),
            ("gone.jpg", "", "g1", 30, False, True),
        ]
        journal = kit.store.load(journal_name(kit.settings)).scan().to_arrow()
        assert sorted(journal["offset"].to_pylist()) == [0, 1, 2, 4, 4, 4]
        assert set(journal["bucket"].to_pylist()) == {BUCKET}
        assert [json.loads(r["payload"]) for r in kit.dead(EVENTS) if r["payload"] != b"this is no event"] == []
