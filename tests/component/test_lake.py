"""The Python API on real logs, tables and stores, without Spark."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.log.remote.broker import Broker
from frazil.settings import Settings, load_settings
from frazil.topics import open_log
from frazil.topics.connection import connect_patiently
from tests.content_kit import Content, an_object

SMALL = {"log.min_free": 0}


def settings_at(home: Path) -> Settings:
    return load_settings(flags={"home": str(home), "log.min_free": "0"}, environ={})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def lake(home: Path) -> Iterator[frazil.Lake]:
    with frazil.connect(home=home, settings=SMALL) as opened:
        yield opened


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.spark.spark_session", lambda *_: pytest.fail("Spark was started"))


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_settings_are_those_of_the_command_line_and_arguments_are_stronger(home, monkeypatch):
    Path("frazil.yaml").write_text("log:\n  sync_mode: none\n  max_message_size: 100\n")
    monkeypatch.setenv("FRAZIL_HOME", str(home))
    with frazil.connect(settings={"log": {"max_message_size": 5}, "log.min_free": 0}) as lake:
        assert lake.home == home
        orders = lake.create_topic("orders", storage="log")
        assert orders.publish(b"12345").level is frazil.Level.memory
        with pytest.raises(frazil.UsageError, match="over the limit"):
            orders.publish(b"123456")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"settings": {"log": {"min_fre": 0}}}, frazil.ConfigError),
        ({"settings": {"home": "a"}, "home": "b"}, frazil.UsageError),
        ({"catalog": "other"}, frazil.NotFoundError),
        ({"config": "nowhere.yaml"}, frazil.UsageError),
    ],
)
def test_wrong_arguments_are_refused_at_once(home, arguments, kind):
    with pytest.raises(kind):
        frazil.connect(**arguments)


def test_connecting_and_closing_touch_no_file(home):
    frazil.connect(home=home).close()
    with frazil.connect(home=home, settings=SMALL) as lake:
        assert lake.topics() == []
        with pytest.raises(frazil.NotFoundError):
            lake.content.list()
    assert not (home / "log").exists()


# -- topics ------------------------------------------------------------------------------------------------------------


def test_what_is_published_is_read_in_order(lake):
    orders = lake.create_topic("orders", keep=timedelta(days=1), keep_bytes=1000)
    assert (orders.info().retention_age_s, orders.info().retention_bytes) == (86400.0, 1000)
    assert orders.publish(b"0", headers={"source": "shop"}, request_id=7).offset == 0
    assert orders.publish("ä").offset == 1
    assert (ack := orders.publish_batch([b"2", "3"])).offset == 2 and ack.count == 2
    assert orders.publish_batch(pa.table({"payload": [b"4"], "price": [7.5]})).offset == 4
    assert orders.publish_batch(pa.record_batch({"payload": [b"5"], "price": [8.5]})).offset == 5
    waits = [orders.send(str(number)) for number in range(6, 9)]
    orders.flush()
    assert [future.result().offset for future in waits] == [6, 7, 8]
    found = orders.read()
    assert found["payload"].to_pylist() == [b"0", "ä".encode(), *(str(n).encode() for n in range(2, 9))]
    assert found["price"].to_pylist() == [None] * 4 + [7.5, 8.5] + [None] * 3
    assert found["headers"].to_pylist()[0] == [("source", "shop")] and found["request_id"].to_pylist()[0] == 7
    assert [topic.name for topic in lake.topics()] == ["orders"]


def test_a_range_is_named_by_offsets_times_and_ends(lake):
    orders = lake.create_topic("orders")
    orders.publish_batch([b"0", b"1"])
    time.sleep(0.01)
    between = datetime.now(UTC)
    orders.publish_batch([b"2", b"3"])

    def offsets(*place: Any) -> list[int]:
        return orders.read(*place, columns=["offset"])["offset"].to_pylist()

    assert offsets() == offsets("start", "end") == [0, 1, 2, 3]
    assert offsets(1, 3) == [1, 2]
    assert offsets(between) == [2, 3] and offsets(None, between) == [0, 1]
    assert offsets(between.replace(tzinfo=None)) == [2, 3], "without a zone it is UTC"
    assert offsets("end") == [] and orders.read("end").column_names == orders.read().column_names
    assert [table.num_rows for table in orders.iterate(3)] == [1]
    for wrong in ("soon", 1.5):
        with pytest.raises(frazil.UsageError, match="not a position"):
            orders.read(wrong)
    with pytest.raises(frazil.UsageError, match="no column"):
        orders.iterate(columns=["nothing"])


def test_a_wrong_message_is_refused_and_nothing_is_stored(lake):
    orders = lake.create_topic("orders")
    for wrong in (7, None):
        with pytest.raises(frazil.UsageError):
            orders.publish(wrong)
    for wrong in ("abc", b"abc", [b"a", 7], []):
        with pytest.raises(frazil.UsageError):
            orders.publish_batch(wrong)
    with pytest.raises(frazil.UsageError):
        orders.publish_batch(pa.table({"payload": pa.array([], pa.binary())}))
    with pytest.raises(frazil.UsageError, match="level"):
        lake.topic("orders", level="disc")
    assert orders.info().end == 0


def test_following_goes_on_with_what_comes_and_ends_with_the_lake(home):
    lake = frazil.connect(home=home, settings=SMALL)
    orders = lake.create_topic("orders")
    orders.publish_batch([b"0", b"1"])
    found: list[int] = []
    more = threading.Event()

    def follow() -> None:
        for table in orders.follow(columns=["offset"]):
            found.extend(table["offset"].to_pylist())
            more.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert more.wait(10)
    more.clear()
    orders.publish(b"2")
    assert more.wait(10)
    lake.close()
    thread.join(10)
    assert not thread.is_alive() and found == [0, 1, 2]


def test_a_subscription_goes_on_behind_its_last_commit(home):
    with frazil.connect(home=home, settings=SMALL) as lake:
        orders = lake.create_topic("orders")
        orders.publish_batch([b"0", b"1"])
        billing = orders.subscribe("billing")
        assert billing.position is None
        assert [table.num_rows for table in billing.read(columns=["payload"])] == [2]
        assert [table.num_rows for table in billing.read()] == [2], "nothing was committed"
        assert billing.commit() == billing.position == 2
    with frazil.connect(home=home, settings=SMALL) as lake:
        lake.topic("orders").publish(b"2")
        stop = threading.Event()
        for table in lake.topic("orders").subscribe("billing").follow(stop=stop):
            assert table["payload"].to_pylist() == [b"2"]
            stop.set()


def test_coroutines_publish_and_follow(home):
    asyncio.run(_publish_and_follow(home))
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("frazil-follow") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a loop that was left or cancelled has left its thread behind"
        time.sleep(0.05)


async def _publish_and_follow(home: Path) -> None:
    async with frazil.connect(home=home, settings=SMALL) as lake:
        orders = lake.create_topic("orders")
        acks = await asyncio.gather(*(orders.apublish(str(number)) for number in range(50)))
        assert sorted(ack.offset for ack in acks) == list(range(50))
        await orders.apublish_batch([b"a", b"b"])
        assert (await orders.aread(50, columns=["payload"]))["payload"].to_pylist() == [b"a", b"b"]
        billing = orders.subscribe("billing")
        seen = 0
        async for table in billing.afollow():
            seen += table.num_rows
            if seen == 52:
                break
        assert await billing.acommit() == 52

        async def follow() -> None:
            async for _ in orders.afollow("end"):
                pass

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_deleted_topic_is_gone_and_can_be_made_anew(lake):
    lake.create_topic("orders", storage="log").publish(b"0")
    with pytest.raises(frazil.ConflictError):
        lake.create_topic("orders")
    plan = lake.delete_topic("orders", dry_run=True)
    assert plan["topic"] == "orders" and lake.topic("orders").info().end == 1
    lake.delete_topic("orders")
    with pytest.raises(frazil.NotFoundError, match="orders"):
        lake.topic("orders")
    assert lake.create_topic("orders", storage="log", exist_ok=True).read().num_rows == 0


# -- who has the log ---------------------------------------------------------------------------------------------------


def test_only_what_publishes_keeps_the_log(home):
    with frazil.connect(home=home, settings=SMALL) as lake:
        lake.create_topic("orders")
        with pytest.raises(frazil.LockedError):
            open_log(settings_at(home))
    open_log(settings_at(home)).close()
    with frazil.connect(home=home, settings=SMALL) as lake:
        assert len(lake.topics()) == 1
        open_log(settings_at(home)).close()


def test_a_lake_is_a_client_of_a_server(home):
    with open_log(settings_at(home)) as log, Broker(log) as broker:
        log.announce(flight=broker.address)
        log.create_topic("orders")
        lakes = [frazil.connect(home=home, settings=SMALL) for _ in range(2)]
        lakes.append(frazil.connect(home=home.parent / "other", settings={"log.broker": broker.address}))
        for lake in lakes:
            with lake:
                lake.topic("orders", producer="shop").publish(b"m")
                assert lake.topic("orders").publish_batch([b"a", b"b"], request_ids=[1, None]).count == 2
        assert log.info("orders").end == 9


def test_threads_share_the_log_of_a_lake(home, no_spark):
    Content.at(home).add_objects([an_object("a.jpg")])
    with frazil.connect(home=home, settings=SMALL) as lake:
        failed: list[Exception] = []

        def work(number: int) -> None:
            try:
                for _ in range(3):
                    lake.content.tag("photos", "a.jpg", add=f"t{number}")
                    lake.create_topic(f"topic{number}", exist_ok=True).publish(b"m")
                    lake.content.search("photos", tag=f"t{number}")
            except Exception as error:  # noqa: BLE001 - it is shown by the thread of the test
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        assert set(lake.content.get("photos", "a.jpg")["user_tags"]) == {"t0", "t1", "t2", "t3"}


def _use_in_child(lake: frazil.Lake, answers: Any) -> None:
    try:
        lake.topic("orders").publish(b"m")
    except frazil.UsageError as error:
        lake.close()
        answers.put(error.message)


def test_a_forked_process_is_told_to_connect_itself(lake):
    orders = lake.create_topic("orders")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_use_in_child, args=(lake, answers))
    child.start()
    assert f"opened by process {os.getpid()}" in answers.get(timeout=20)
    child.join(20)
    assert orders.publish(b"m").offset == 0, "the child has closed nothing of its parent"


def test_a_closed_lake_says_so(home):
    lake = frazil.connect(home=home, settings=SMALL)
    orders = lake.create_topic("orders")
    content = lake.content
    lake.close()
    lake.close()
    for call in (
        lake.topics, lambda: lake.topic("orders"), lambda: orders.publish(b"m"), orders.read, lake.spark, lake.tables,
        lambda: lake.sql("SELECT 1"), content.list, lambda: content.tag("photos", "a", add="x"), lambda: lake.documents,
    ):  # fmt: skip
        with pytest.raises(frazil.UsageError, match="closed"):
            call()


def test_a_lake_that_nobody_can_reach_any_more_is_closed(home):
    lake = frazil.connect(home=home, settings=SMALL)
    lake.create_topic("orders").publish(b"0")
    with pytest.warns(ResourceWarning, match="not closed"):
        lake = frazil.connect(home=home, settings=SMALL)
        gc.collect()
    with lake:
        assert lake.topic("orders").publish(b"1").offset == 1


_EXITS = """
import sys, frazil
orders = frazil.connect(home=sys.argv[1], settings={"log.min_free": 0}).create_topic("orders")
for number in range(1000):
    orders.send(str(number))
"""


def test_a_program_that_ends_without_closing_loses_nothing(home):
    subprocess.run([sys.executable, "-c", _EXITS, str(home)], check=True, timeout=60)
    with frazil.connect(home=home, settings=SMALL) as lake:
        assert lake.topic("orders").info().end == 1000


# -- content -----------------------------------------------------------------------------------------------------------


def test_an_edit_is_read_back_without_spark_and_the_log_is_free_again(home, no_spark):
    Content.at(home).add_objects([an_object("a.jpg", user_tags=["old"]), an_object("b.jpg", size=20)])
    with frazil.connect(home=home, settings=SMALL) as lake:
        content = lake.content
        done = content.tag("photos", ["a.jpg", "b.jpg"], add="sea", remove=["old"])
        assert (done.bucket, done.objects, done.versions, done.offset, done.lag) == ("photos", 2, 2, 0, None)
        content.note("photos", "a.jpg", "pier", rating=5)
        content.note("photos", "a.jpg", rating=4)
        found = content.get("s3://photos", "a.jpg")
        assert (found["user_tags"], found["note"], found["rating"]) == (["sea"], "pier", 4)
        assert [row["key"] for row in content.search("photos", tag="sea", rating="4..", min_size=1)] == ["a.jpg"]
        content.tag("photos", "b.jpg", replace=[])
        assert len(content.search(tag=["sea"])) == 1
        first = content.list("photos", sort="size", limit=1)
        rest = content.list("photos", sort="size", limit=1, after=first.after)
        assert [row["key"] for page in (first, rest) for row in page] == ["b.jpg", "a.jpg"] and rest.after is None
        open_log(settings_at(home)).close()


def test_a_refused_edit_changes_nothing(home, no_spark):
    Content.at(home).add_objects([an_object("a.jpg")])
    with frazil.connect(home=home, settings=SMALL) as lake:
        with pytest.raises(frazil.NotFoundError, match=r"b\.jpg"):
            lake.content.tag("photos", ["a.jpg", "b.jpg"], add="x")
        for wrong in ({"add": " "}, {"add": "x", "remove": "x"}, {}):
            with pytest.raises(frazil.UsageError):
                lake.content.tag("photos", "a.jpg", **wrong)
        with pytest.raises(frazil.UsageError):
            lake.content.note("photos", "a.jpg")
        assert lake.content.get("photos", "a.jpg")["user_tags"] is None
        assert lake.topics() == []


def test_a_scan_that_does_not_wait_is_searched_at_once(home, no_spark):
    folder = home.parent / "inbox"
    folder.mkdir()
    (folder / "hello.txt").write_text("hello")
    with frazil.connect(home=home, settings=SMALL) as lake:
        report = lake.content.scan("./inbox", wait=False)
        assert (report.objects, report.new, report.unchanged, report.extraction) == (1, 1, 0, None)
        (row,) = lake.content.search("./inbox", path="*.txt")
        assert (row["key"], row["size"]) == ("hello.txt", 5)
        with pytest.raises(frazil.UsageError):
            lake.content.scan("./inbox", wait=False, extract=True)
        with pytest.raises(frazil.NotFoundError):
            lake.content.scan("./inbocks")


def test_a_page_says_what_it_lacks(home, no_spark, monkeypatch):
    waits: list[float] = []

    def connect(*args: Any, patience_s: float, **options: Any) -> Any:
        waits.append(patience_s)
        return connect_patiently(*args, patience_s=patience_s, **options)

    Content.at(home).add_objects([an_object("a.jpg")])
    with frazil.connect(home=home, settings=SMALL) as lake:
        lake.content.tag("photos", "a.jpg", add="x")
        assert lake.content.list("photos").lag is None
    # Another process has the log, and is no server.
    monkeypatch.setattr("frazil.lake.connection.connect_patiently", connect)
    with open_log(settings_at(home)), frazil.connect(home=home, settings=SMALL) as lake:
        page = lake.content.search("photos")
        assert page.lag is not None and page.lag.messages is None and page.rows[0]["user_tags"] is None
        assert lake.content.get("photos", "a.jpg")["lag"]["messages"] is None
        assert waits[0] > 0 and set(waits[1:]) == {0}, "it waits for the other process once"


# -- tables and documents ----------------------------------------------------------------------------------------------


def test_tables_are_queried_inspected_and_listed_without_spark(home, no_spark):
    Content.at(home).add_objects([an_object("a.jpg"), an_object("b.jpg")])
    with frazil.connect(home=home) as lake:
        assert lake.tables() == lake.tables("content") == ["content.objects"]
        found = lake.sql("SELECT key FROM content.objects ORDER BY key", limit=1)
        assert isinstance(found, pa.Table) and found.to_pylist() == [{"key": "a.jpg"}]
        objects = lake.table("content.objects")
        assert objects.iceberg.scan().to_arrow().num_rows == 2
        assert (objects.health().rows, objects.health().files["count"], objects.pins()) == (2, 1, [])
        report = objects.expire(keep=1, dry_run=True)
        assert (report.snapshots, report.done) == ((), False)
        with pytest.raises(frazil.UsageError):
            objects.expire(keep=1, snapshots=[1])
        with pytest.raises(frazil.NotFoundError) as failed:
            lake.table("content.object")
        assert "content.objects" in (failed.value.hint or "")


@pytest.mark.parametrize("url", [None, "iceberg"])
def test_documents_are_stored_where_the_settings_say_beside_topics(home, url):
    with frazil.connect(home=home, settings={"database.url": url, **SMALL}) as lake:
        made = lake.documents.put_metadata({"filename": "a.pdf"})
        lake.create_topic("orders").publish(b"m")
        lake.documents.update_metadata(made.document_id, {"tags": {"state": "signed"}}, if_match=1)
        with pytest.raises(frazil.ConflictError):
            lake.documents.update_metadata(made.document_id, {"tags": {}}, if_match=1)
    with frazil.connect(home=home, settings={"database.url": url, **SMALL}) as lake:
        assert lake.documents.get_metadata(made.document_id).tags == {"state": "signed"}


def test_nothing_is_printed(home, capfd):
    with frazil.connect(home=home, settings=SMALL) as lake:
        lake.create_topic("orders").publish(b"m")
        lake.sql("SELECT 1")
    assert capfd.readouterr() == ("", "")
