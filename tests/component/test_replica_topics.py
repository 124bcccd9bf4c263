"""Topics, documents and content after a failover: with an empty log at the other site, offsets go on behind tables."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog

from frazil.cli.run import run_command
from frazil.content.names import CONTENT
from frazil.content.tables import ensure_journal, ensure_objects
from frazil.content.topic import ensure_events_topic
from frazil.documents.iceberg.store import open_iceberg_store
from frazil.log.batch import Batch
from frazil.replica.plan import ReplicaTable
from frazil.replica.sync import run_sync
from frazil.replica.topics import OldLog, OldTopic, find_losses, list_only_in_log, read_old_log
from frazil.settings import Settings
from frazil.tables import Position, TableStore, commit_append
from frazil.tables.relocation.engine import LocalEngine
from frazil.topics.positions import ForeignLogError
from frazil.topics.storage import open_storage
from tests.documents_iceberg_kit import Home, put
from tests.replica_kit import Replication
from tests.sink_kit import SinkKit, put_dead_letters, sink_kit
from tests.upkeep_files import care_of

TABLES = (
    "topics.orders", "topics.dead_letters", "content.journal", "content.objects",
    "document_archive.document_history", "document_archive.document_metadata",
)  # fmt: skip


class Site:
    """The second site: storage lands in `dr`, and `site` is a home of its own, whose log is empty."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.home, self._capfd = folder, folder / "site", capfd
        self.primary = folder / "primary"
        self._stores = ExitStack()

    def replicate(self, *tables: str) -> None:
        """Copies these tables, metadata first, and syncs them."""
        care = care_of(self.home)
        with care.store, LocalEngine() as engine:
            for name in tables:
                identifier = tuple(name.split("."))
                Replication(
                    self.primary.joinpath("warehouse", *identifier), self.folder.joinpath("dr", *identifier)
                ).run()
                order = ReplicaTable(str(self.folder / "dr"), identifier, str(self.folder / "second"))
                assert not run_sync(care, order, engine).missing

    def lose_primary(self) -> Path:
        """Deletes the primary. Its log is kept elsewhere, to ask it what was lost: a disk that was rescued."""
        rescued = self.folder / "rescued" / "log"
        rescued.parent.mkdir()
        shutil.move(self.primary / "log", rescued)
        shutil.rmtree(self.primary)
        return rescued.parent

    def run(self, *words: str) -> tuple[str, str]:
        """What a command prints, and what it notes beside that."""
        self._capfd.readouterr()
        group, *rest = words
        flags = ["--set", f"home={self.home}", "--set", "log.min_free=0"]
        code = run_command(group, group, [*rest, *flags])
        out, errors = self._capfd.readouterr()
        assert code == 0, errors
        return out, errors

    def opened(self) -> tuple[TableStore, Settings]:
        """The catalog of the replicas, and the settings."""
        care = care_of(self.home)
        self._stores.callback(care.store.close)
        return care.store, care.settings

    def close(self) -> None:
        self._stores.close()

    def failover(self, *options: str) -> dict[str, dict[str, Any]]:
        """The topics of a failover of all tables, by name."""
        tables = json.loads(self.run("replica", "failover", "--all", *options, "--output", "json")[0])
        return {one["topic"]: one for table in tables for one in table["topics"]}


def open_home(home: Path) -> AbstractContextManager[SinkKit]:
    return sink_kit(home, None, **{"database.url": "iceberg"})


@pytest.fixture
def site(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Site]:
    made = Site(tmp_path, capfd)
    yield made
    made.close()
    structlog.reset_defaults()


def fill_orders(kit: SinkKit) -> None:
    """Offsets 0 to 2 in the table, 3 a dead letter, 4 and 5 in the table, 6 and 7 in the log alone."""
    kit.create("orders")
    kit.publish("orders", b"a", b"b", b"c", n=[1, 2, 3])
    kit.engine("orders").catch_up()
    kit.change_type("orders", "n")
    kit.publish("orders", b"d", b"e", b"f", n=[4, None, None])
    kit.engine("orders").catch_up()
    kit.publish("orders", b"lost", b"lost too")


def fill_content(kit: SinkKit) -> None:
    """Two messages in the tables, and one in the log alone."""
    info = ensure_events_topic(kit.log, kit.settings)
    kit.log.append(info.name, Batch.of_messages([b"{}"] * 3))
    for ensure in (ensure_journal, ensure_objects):
        reached = Position(CONTENT, info.name, {0: 2}, info.log_id, info.epoch, uuid.uuid4().hex)
        commit_append(kit.store, ensure(kit.store, kit.settings), [], expected=None, reached=reached)


def fill_documents(kit: SinkKit) -> None:
    """Three revisions in the tables, and two more in the log alone."""
    with open_iceberg_store(kit.settings, kit.log) as store:
        put(store, "a")
        put(store, "b")
        store.update_metadata("a", {"tags": {"year": "2026"}})
        Home(Path(kit.settings.model.home)).advance(kit.log)
        store.update_metadata("a", {"tags": {"year": "2027"}})
        put(store, "lost")


def test_topics_content_and_documents_go_on_at_the_replica(site: Site) -> None:
    with open_home(site.primary) as kit:
        for fill in (fill_orders, fill_content, fill_documents):
            fill(kit)
        kit.create("notes", storage="log")
        kit.publish("notes", b"only here")
        last = max(row["publish_time"] for row in kit.rows("orders", ["offset", "publish_time"]))
    site.replicate(*TABLES)
    rescued = site.lose_primary()

    # Without the old log it is said how far the tables reach; with it, what is lost is counted.
    plan = site.failover("--dry-run")
    assert {name: (one["position"], one["log"], one["lost"]) for name, one in plan.items()} == {
        "orders": (6, "not-given", None),
        "content_events": (2, "not-given", None),
        "documents": (3, "not-given", None),
    }
    shown, notes = site.run("replica", "failover", "--all", "--dry-run", "--primary-log", str(rescued))
    assert "topic orders: topics.orders reaches offset 6, its last message of " in shown
    assert "the old log ends at 8: 2 messages are only there; it goes on at offset 6" in shown
    assert "topic 'notes' is only in the old log: 1 message" in notes
    done = site.failover("--yes", "--primary-log", str(rescued))
    assert {name: (one["log_end"], one["lost"]) for name, one in done.items()} == {
        "orders": (8, 2),
        "content_events": (3, 1),
        "documents": (5, 2),
    }
    assert done["orders"]["last_message_at"] == last.isoformat(timespec="milliseconds")
    assert done["documents"]["last_message_at"] is not None

    with open_home(site.home) as kit:
        kit.create("orders")
        with pytest.raises(ForeignLogError, match="was written from log"):
            kit.publish("orders", b"too early")
    for one in done.values():
        for command in one["next"]:
            site.run(*command.split()[1:])

    with open_home(site.home) as kit:
        assert kit.publish("orders", b"g", b"h").offset == 6
        kit.engine("orders").catch_up()
        kept = [(0, b"a"), (1, b"b"), (2, b"c"), (4, b"e"), (5, b"f"), (6, b"g"), (7, b"h")]
        assert [(row["offset"], row["payload"]) for row in kit.rows("orders")] == kept
        assert [row["offset"] for row in kit.dead("orders")] == [3]
        assert kit.log.append("content_events", Batch.of_messages([b"{}"])).offset == 2
        with open_iceberg_store(kit.settings, kit.log) as store:
            assert [found.revision for found in store.history("a")] == [1, 2]
            assert store.get_metadata("a").tags == {"year": "2026"}
            assert store.update_metadata("a", {"tags": {"year": "2028"}}).revision == 3
            assert put(store, "new").revision == 1
            Home(site.home).advance(kit.log)
            assert not store.verify().findings
    with open_home(site.home) as kit:
        read = pa.concat_tables(open_storage(kit.log, kit.settings, "orders", kit.tables).read(0))
    assert read["payload"].to_pylist() == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"], "with the dead letter"


def test_a_broker_that_still_answers_is_asked_and_one_that_does_not_is_told(site: Site) -> None:
    with open_home(site.primary) as kit:
        fill_orders(kit)
        site.replicate("topics.orders")
        shown, notes = site.run(
            "replica", "failover", "topics.orders", "--dry-run", "--primary-log", kit.client.address
        )
        assert "the old log ends at 8, the last of " in shown and ": 2 messages are only there" in shown
        assert "stop its broker" in notes
        (gone,) = find_losses(*site.opened(), "topics.orders", read_old_log(kit.settings, str(site.folder / "none")))
        assert (gone.log, gone.lost) == ("unreachable", None)
        with sink_kit(site.folder / "other") as another:
            another.create("orders")
            old = read_old_log(kit.settings, another.client.address)
        (foreign,) = find_losses(*site.opened(), "topics.orders", old)
        assert (foreign.log, foreign.lost) == ("another", None) and "has the id" in foreign.warnings[0]
    _, notes = site.run("replica", "failover", "topics.orders", "--dry-run", "--primary-log", "grpc://127.0.0.1:9")
    assert "the old log at grpc://127.0.0.1:9 cannot be read" in notes


def test_tables_of_one_topic_that_did_not_arrive_to_the_same_point_are_told(site: Site) -> None:
    tables = ("document_archive.document_history", "document_archive.document_metadata")
    with open_home(site.primary) as kit:
        fill_documents(kit)
        site.replicate(*tables)
        with open_iceberg_store(kit.settings, kit.log):
            Home(site.primary).advance(kit.log)
        site.replicate(tables[1])
        (behind,) = find_losses(*site.opened(), tables[1])
        assert (behind.position, behind.continues_at) == (5, 5)
        assert "document_history reaches offset 3 only, and lacks changes" in behind.warnings[0]
        site.replicate(tables[0])
        assert [one.warnings for one in find_losses(*site.opened(), tables[1])] == [()]


def test_gaps_are_not_counted_as_lost() -> None:
    old = OldLog("here", {"orders": OldTopic("id", ((0, 3), (7, 9))), "documents": OldTopic("id", ((0, 2),))})
    assert old.topics is not None
    assert [old.topics["orders"].count_from(offset) for offset in (0, 2, 5, 8, 9)] == [5, 3, 2, 1, 0]
    assert list_only_in_log(old, {"documents"}) == ["topic 'orders' is only in the old log: 5 messages"]


def test_nothing_is_lost_where_the_old_log_is_brought_over(site: Site) -> None:
    with open_home(site.primary) as kit:
        fill_orders(kit)
        fill_documents(kit)
    site.replicate("topics.orders", "topics.dead_letters", *TABLES[-2:])
    shutil.copytree(site.lose_primary() / "log", site.home / "log")
    site.failover("--yes")
    with open_home(site.home) as kit:
        assert kit.publish("orders", b"next").offset == 8
        kit.engine("orders").catch_up()
        assert [row["offset"] for row in kit.rows("orders")] == [0, 1, 2, 4, 5, 6, 7, 8]
        with open_iceberg_store(kit.settings, kit.log) as store:
            assert store.get_metadata("a").tags == {"year": "2027"}
            assert put(store, "lost").revision == 2
            Home(site.home).advance(kit.log)
            assert not store.verify().findings


@pytest.mark.parametrize("further", [0, 1], ids=["history", "metadata"])
def test_documents_of_which_one_table_is_behind_are_found_by_verify(site: Site, further: int) -> None:
    tables = ("document_archive.document_history", "document_archive.document_metadata")
    with open_home(site.primary) as kit:
        fill_documents(kit)
        site.replicate(*tables)
        with open_iceberg_store(kit.settings, kit.log):
            Home(site.primary).advance(kit.log)
        site.replicate(tables[further])
    site.lose_primary()
    topics = site.failover("--yes")
    assert tables[0] in topics["documents"]["warnings"][0]
    for command in topics["documents"]["next"]:
        site.run(*command.split()[1:])
    with open_home(site.home) as kit, open_iceberg_store(kit.settings, kit.log) as store:
        assert [found.revision for found in store.history("a")] == ([1, 2, 3] if further == 0 else [1, 2])
        assert store.verify().findings


def test_offsets_of_dead_letters_that_are_further_than_the_tables_are_not_given_out_again(site: Site) -> None:
    with open_home(site.primary) as kit:
        fill_content(kit)
        put_dead_letters(kit, "content_events", 2, 2)
    site.replicate(*TABLES[1:4])
    site.lose_primary()
    content = site.failover("--yes")["content_events"]
    assert (content["position"], content["continues_at"]) == (2, 4)
    for command in content["next"]:
        site.run(*command.split()[1:])
    with open_home(site.home) as kit:
        assert kit.log.append("content_events", Batch.of_messages([b"{}"])).offset == 4
