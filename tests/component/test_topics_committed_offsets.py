"""What tables tell a log before it gives out an offset."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import structlog

from frazil.content.names import CONTENT
from frazil.content.tables import ensure_objects
from frazil.errors import UnavailableError, UsageError
from frazil.settings import load_settings
from frazil.tables import Position, commit_append
from frazil.topics import connect
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.positions import ForeignLogError
from tests.sink_kit import put_dead_letters, sink_kit


def test_a_topic_without_a_table_has_no_floor(tmp_path):
    settings = load_settings(flags={"home": str(tmp_path)}, environ={})
    assert committed_offsets(settings)("orders", "aa") is None


def test_the_floor_is_what_the_table_has_reached(tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        kit.publish("orders", b"a", b"b", b"c")
        kit.engine("orders").catch_up()
        log_id = kit.log.info("orders").log_id
        assert committed_offsets(kit.settings)("orders", log_id) == 3
        with pytest.raises(ForeignLogError) as refused:
            committed_offsets(kit.settings)("orders", "another")
        assert (refused.value.hint or "").startswith("frazil topic adopt orders") and refused.value.exit_code == 13


def test_a_rollback_does_not_lower_it(tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        for payload in (b"a", b"b"):
            kit.publish("orders", payload)
            kit.engine("orders").catch_up()
        table = kit.table("orders")
        table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
        assert committed_offsets(kit.settings)("orders", kit.log.info("orders").log_id) == 2


def test_a_catalog_that_is_away_is_told(tmp_path):
    flags = {"home": str(tmp_path), "catalog.uri": "http://127.0.0.1:9", "network.retry_timeout": "0.1"}
    with pytest.raises(UnavailableError):
        committed_offsets(load_settings(flags=flags, environ={}))("orders", "aa")


def test_a_topic_that_gets_a_table_which_is_ahead_goes_on_behind_it(tmp_path):
    """As after the restore of an old copy of the log, whose topic was then the log's alone for a while."""
    log = tmp_path / "home" / "log"
    with sink_kit(tmp_path / "home") as kit:
        kit.create("orders")
        kit.publish("orders", b"a")
    shutil.copytree(log, tmp_path / "copy")
    with sink_kit(tmp_path / "home") as kit:
        kit.publish("orders", b"b", b"c")
        kit.engine("orders").catch_up()
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "copy", log)
    with sink_kit(tmp_path / "home") as kit:
        kit.client.configure("orders", {"storage": "log"})
        kit.log.prepare("orders")
        assert kit.client.configure("orders", {"storage": "iceberg"}).end == 3
        assert kit.publish("orders", b"d").offset == 3
        kit.engine("orders").catch_up()
        assert [(r["offset"], r["payload"]) for r in kit.rows("orders")] == list(enumerate([b"a", b"b", b"c", b"d"]))


def test_a_topic_does_not_get_a_table_of_another_log_nor_one_that_cannot_be_asked(tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        kit.publish("orders", b"a")
        kit.engine("orders").catch_up()
        kit.log.delete_topic("orders")
        kit.create("orders", storage="log")
        kit.publish("orders", b"x")
        with pytest.raises(ForeignLogError):
            kit.client.configure("orders", {"storage": "iceberg"})
        kit.log._floor = lambda *_: (_ for _ in ()).throw(UnavailableError("the catalog is away"))
        with pytest.raises(UnavailableError):
            kit.client.configure("orders", {"storage": "iceberg"})
        assert kit.client.info("orders").storage == "log"
        assert kit.publish("orders", b"y").offset == 1


def test_pyiceberg_is_not_loaded_before_somebody_asks():
    code = (
        "import sys; from frazil.settings import load_settings; "
        "from frazil.topics.committed_offsets import committed_offsets; "
        "committed_offsets(load_settings(flags={'home': '/nowhere'}, environ={})); print('pyiceberg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_program_that_opens_the_log_itself_says_so(tmp_path):
    settings = load_settings(flags={"home": str(tmp_path), "log.min_free": "0"}, environ={})
    with structlog.testing.capture_logs() as told, connect(settings) as access:
        assert access.topics() == []
    said = f"no broker runs: the log at {tmp_path / 'log'} is opened by this process"
    assert [entry["event"] for entry in told] == [said]


def test_a_log_behind_a_broker_goes_with_the_catalog_of_the_settings(tmp_path):
    with sink_kit(tmp_path) as kit:
        with pytest.raises(UsageError, match="which asks the catalog of its settings") as told:
            connect(kit.settings, catalog="another")
        assert "without --catalog" in str(told.value.hint)
        connect(kit.settings, catalog=kit.settings.model.catalog.name).close()


def test_dead_letters_that_were_committed_before_their_table_count_too(tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        kit.publish("orders", b"a")
        kit.engine("orders").catch_up()
        log_id = kit.log.info("orders").log_id
        put_dead_letters(kit, "orders", 1, 4, log_id=log_id)  # a crash came before the commit of the table
        assert committed_offsets(kit.settings)("orders", log_id) == 5


def test_offsets_that_only_the_table_of_another_sink_knows_count(tmp_path):
    with sink_kit(tmp_path) as kit:
        topic = kit.settings.model.content.topic
        table = ensure_objects(kit.store, kit.settings)
        reached = Position(CONTENT, topic, {0: 7}, "aa", 1, "first")
        commit_append(kit.store, table, [], expected=None, reached=reached)
        assert committed_offsets(kit.settings)(topic, "aa") == 7
        with pytest.raises(ForeignLogError):
            committed_offsets(kit.settings)(topic, "another")
