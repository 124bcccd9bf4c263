"""What a scan takes for news: the table's rows against a listing, without Spark."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from frazil.content.buckets import bucket_of
from frazil.content.scan.engine import LazyEngine
from frazil.content.scan.executors import is_io_bound, run_in_threads
from frazil.content.scan.folder import Folder, open_folder
from frazil.content.scan.known_objects import KnownObjects, count_rows, load_known_objects, unseen_keys
from frazil.content.scan.listing import Object, Page, Shard
from frazil.content.scan.publish import LazyObservationPublisher
from frazil.content.scan.scanner import ScanResult, ScanTask, run_scan
from frazil.content.scan.session import ScanSession
from frazil.content.scan.state import ShardProgress
from frazil.content.topic import ensure_events_topic
from frazil.errors import InterruptedByUser
from frazil.log.messages import decode_chunk
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.topics import open_log
from tests.content_kit import Content, an_object, at


@pytest.fixture
def content(tmp_path: Path) -> Content:
    return Content.at(tmp_path / "home")


def listed(key: str, **more: Any) -> Object:
    """What a listing shows of the object that `an_object` is the row of."""
    seen = {"key": key, "version_id": "", "exists": True, "size": 10, "etag": f"etag-{key}", "is_latest": True}
    return seen | {"storage_class": "STANDARD", "last_modified": at(0).isoformat(), "is_delete_marker": False} | more


def keys(objects: list[Object]) -> list[str]:
    return [seen["key"] for seen in objects]


def test_only_what_is_new_or_differs_is_news(content: Content):
    content.add_objects([an_object(key) for key in "abcdefg"])
    content.add_objects([an_object("h", is_deleted=True), an_object("a", bucket="other"), an_object("z/1")])
    seen = load_known_objects(content.tables, "photos", "")
    assert len(seen) == 8 and len(load_known_objects(content.tables, "photos", "z/")) == 1 and seen.unseen == 8
    others = [
        listed("a", size=11), listed("b", etag="x"), listed("c", storage_class="GLACIER"),
        listed("d", last_modified=at(1).isoformat()), listed("e", is_latest=False),
        listed("f", size=None, etag=None, is_delete_marker=True), listed("h"), listed("g", version_id="v2"),
    ]  # fmt: skip
    found = seen.diff([*others, listed("g"), listed("z/1")])
    assert (found.objects, found.new, found.changed) == (others, 2, 6)
    assert seen.unseen == 0 and seen.diff([]).objects == []
    assert count_rows(content.tables, "photos", "") == 8


def test_a_time_in_whole_seconds_is_no_news_beside_one_that_is_more_exact(content: Content):
    content.add_objects([an_object("head"), an_object("event", last_modified=at(0.123456)), an_object("other")])
    content.add_objects([an_object("old", last_modified=at(0.5 - 3e9))])
    seen = load_known_objects(content.tables, "photos", "")
    listing = [listed(key, last_modified=at(0.123).isoformat()) for key in ("head", "event")]
    listing += [listed("other", last_modified=at(1).isoformat()), listed("old", last_modified=at(-3e9).isoformat())]
    assert keys(seen.diff(listing).objects) == ["other"]


def test_what_was_not_seen_is_named(content: Content):
    content.add_objects([an_object(key) for key in ("b", "a", "ü\n", "c/1")])
    content.add_objects([an_object("d", version_id=v, is_latest=v == "2") for v in "12"])
    seen = load_known_objects(content.tables, "photos", "")
    seen.diff([listed("a"), listed("d", version_id="2"), listed("c/1", etag="changed")])
    assert unseen_keys(content.tables, "photos", "", seen) == [("b", ""), ("d", "1"), ("ü\n", "")]
    assert unseen_keys(content.tables, "photos", "d", seen) == [("d", "1")]
    assert count_rows(content.tables, "photos", "", latest=True) == 5


def test_without_a_table_or_rows_everything_is_new(content: Content):
    assert len(load_known_objects(content.tables, "photos", "")) == 0 and count_rows(content.tables, "photos", "") == 0
    content.add_objects([])
    seen = load_known_objects(content.tables, "photos", "")
    assert seen.diff([listed("a")]).new == 1 and seen.unseen == 0


def test_a_marker_and_a_version_look_as_their_rows_do(content: Content):
    rows = [
        an_object("a", version_id="1", is_latest=False),
        an_object("a", version_id="2", is_delete_marker=True, size=None, etag=None, storage_class=None),
    ]
    content.add_objects(rows)
    marker = {"key": "a", "version_id": "2", "last_modified": at(0).isoformat(), "is_latest": True}
    same = [listed("a", version_id="1", is_latest=False), marker | {"is_delete_marker": True, "exists": True}]
    assert load_known_objects(content.tables, "photos", "").diff(same).objects == []


def test_what_is_known_can_be_a_file(content: Content, tmp_path: Path):
    content.add_objects([an_object(str(number)) for number in range(1000)])
    load_known_objects(content.tables, "photos", "").save(tmp_path / "k.npy")
    loaded = KnownObjects.load(tmp_path / "k.npy")
    found = loaded.diff([listed(str(number)) for number in range(990, 1010)])
    assert keys(found.objects) == [str(n) for n in range(1000, 1010)] and len(loaded) == 1000
    assert (tmp_path / "k.npy").stat().st_size < 1000 * 16 + 200


# -- a scan of a folder, and the log -----------------------------------------------------------------------------------


@pytest.fixture
def log(content: Content) -> Iterator[Any]:
    with open_log(content.settings) as opened:
        yield opened


def put(folder: Path, *names: str, content: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def told(log: Any, settings: Settings, after: int = 0) -> dict[str, bool]:
    """Keys that the log was told of, and whether they are there."""
    info = log.info(settings.model.content.topic)
    payloads = [
        payload
        for chunk in log.chunks(info.name, after, info.end)
        for payload in decode_chunk(chunk, info.view, after, info.end).column("payload").to_pylist()
    ]
    return {thing["key"]: thing["exists"] for payload in payloads for thing in json.loads(payload)["objects"]}


def take(content: Content, folder: Folder) -> None:
    """What a sink makes of a scan: rows as the folder is now."""
    objects = [seen for page in folder.pages(Shard("")) for seen in page.objects]
    names = ("key", "size", "etag", "content_type", "is_latest", "is_delete_marker")
    content.add_objects(
        an_object(bucket=folder.bucket, storage_class=None, last_modified=as_time(seen), **{n: seen[n] for n in names})
        for seen in objects
    )


def as_time(seen: Object) -> Any:
    from datetime import datetime

    return datetime.fromisoformat(seen["last_modified"])


class NoSpark:
    """An engine that must not start."""

    @property
    def spark(self) -> Any:
        raise AssertionError("Spark was started")

    address = property(spark.fget)


class Caught(ScanSession):
    """A table that has heard all that is in the log: here nobody takes it there."""

    def waiting(self) -> int:
        return 0


def work_of(content: Content, log: Any) -> ScanSession:
    return Caught(content.settings, log, NoSpark())


def test_a_second_scan_of_a_folder_tells_what_changed_and_what_is_gone(content: Content, log: Any, tmp_path: Path):
    photos = tmp_path / "photos"
    put(photos, "a", "b", "c/d", "c/e", "odd\nname")
    folder = open_folder(bucket_of(str(photos)), content.settings)
    work = work_of(content, log)
    first = work.scan(folder)
    assert (first.told, first.tally.new, first.tally.changed, first.gone) == (5, 5, 0, 0)
    take(content, folder)
    again = work.scan(folder)
    assert (again.told, again.tally.objects, again.tally.end, again.tally.new) == (0, 5, 0, 0)
    put(photos, "b", content="longer")
    os.utime(photos / "a", (1, 1))
    put(photos, "f")
    (photos / "c/d").unlink()
    (photos / "odd\nname").unlink()
    end = log.info(content.settings.model.content.topic).end
    third = work.scan(folder)
    assert (third.told, third.tally.new, third.tally.changed, third.gone) == (5, 1, 2, 2)
    there = {"a": True, "b": True, "f": True, "c/d": False, "odd\nname": False}
    assert told(log, content.settings, end) == there
    assert third.tally.end == log.info(content.settings.model.content.topic).end


def test_everything_is_told_again_on_demand_or_while_the_table_has_not_heard_all(
    content: Content, log: Any, tmp_path: Path
):
    put(tmp_path / "photos", "a", "b")
    folder = open_folder(bucket_of(str(tmp_path / "photos")), content.settings)
    take(content, folder)
    work = work_of(content, log)
    assert work.scan(folder).told == 0
    found = work.scan(folder, everything=True)
    assert (found.told, found.tally.new, found.tally.changed) == (2, 0, 0)
    honest = ScanSession(content.settings, log, NoSpark())
    assert honest.waiting() > 0, "what was just told is in no table"
    assert honest.scan(folder).told == 2


def test_of_what_is_gone_nothing_is_told_where_it_is_to_be_kept_or_lies_elsewhere(
    content: Content, log: Any, tmp_path: Path
):
    photos = tmp_path / "photos"
    put(photos, "a/1", "a/2", "b/1")
    folder = open_folder(bucket_of(str(photos)), content.settings)
    take(content, folder)
    work = work_of(content, log)
    (photos / "a/1").unlink()
    (photos / "b/1").unlink()
    assert work.scan(folder, gone=False).told == 0
    assert work.scan(folder, "b/").gone == 1, "that of the prefix alone"
    (photos / "a/2").unlink()
    (photos / "a").rmdir()
    (photos / "a").symlink_to("a")
    assert work.scan(folder, "a/").gone == 0, "nobody can look there"


def test_an_empty_folder_may_be_a_disk_that_is_not_there(content: Content, log: Any, tmp_path: Path):
    photos = tmp_path / "photos"
    put(photos, "a", "b")
    folder = open_folder(bucket_of(str(photos)), content.settings)
    take(content, folder)
    for name in "ab":
        (photos / name).unlink()
    work = work_of(content, log)
    assert work.scan(folder).gone == 0
    assert work.scan(folder, gone=True).gone == 2


def test_a_scan_that_broke_off_does_not_take_what_it_had_seen_for_gone(content: Content, log: Any, tmp_path: Path):
    photos = tmp_path / "photos"
    put(photos, *(f"{letter}/{n:04d}" for letter in "abc" for n in range(1500)))
    folder = open_folder(bucket_of(str(photos)), content.settings)
    take(content, folder)
    (photos / "a/0000").unlink()
    (photos / "c/0000").unlink()

    def fault(step: str) -> None:
        if step == "content.scan.round":
            raise InterruptedByUser("stop")

    work = work_of(content, log)
    with handled(fault), pytest.raises(InterruptedByUser, match="objects were seen"):
        work.scan(folder)
    done = work.scan(folder)
    assert done.resumed and done.listed < 4498 == done.tally.objects
    assert (done.told, done.gone) == (2, 2)


def test_an_interrupt_ends_a_scan_after_the_page_and_the_next_goes_on_there(content: Content, log: Any, tmp_path: Path):
    photos = tmp_path / "photos"
    put(photos, *(f"{n:05d}" for n in range(3500)))
    folder = open_folder(bucket_of(str(photos)), content.settings)
    reached = 0

    def interrupt(step: str) -> None:
        nonlocal reached
        reached += step == "content.scan.page.after"
        if reached == 2 and step == "content.scan.page.after":
            raise KeyboardInterrupt

    work = work_of(content, log)
    with handled(interrupt), pytest.raises(InterruptedByUser, match="interrupted; 2,000 objects were seen") as error:
        work.scan(folder)
    assert error.value.exit_code == 130
    done = work.scan(folder)
    assert done.resumed and (done.listed, done.told, done.tally.objects) == (1500, 1500, 3500)
    assert len(told(log, content.settings)) == 3500


class Three(Folder):
    """Three pages of one object each."""

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Page]:
        for number in range(int(position or 0), 3):
            yield Page([listed(str(number))], at(number), None if number == 2 else str(number + 1))


class Ctrl:
    """Raises KeyboardInterrupt before the nth step of the interpreter in a task of a scan."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code.co_qualname != "_TaskProgress.go":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def test_wherever_an_interrupt_comes_each_object_is_counted_once(content: Content, log: Any, tmp_path: Path):
    look = look_at(Three("file:///photos", str(tmp_path)), log, content)
    before = sys.gettrace()
    nth = 0
    while True:
        nth += 1
        stop = threading.Event()
        ctrl = Ctrl(nth)
        sys.settrace(ctrl)
        try:
            first = replace(look, stop=stop)([ShardProgress(Shard(""))])
        finally:
            sys.settrace(before)
        if ctrl.left > 0:
            break  # it ended before
        assert stop.is_set()
        rest = look(first.left)
        assert (first.tally.objects + rest.tally.objects, rest.left) == (3, ()), f"at step {nth}"
    assert nth > 100


def look_at(folder: Folder, log: Any, content: Content) -> ScanTask:
    topic = ensure_events_topic(log, content.settings).name
    nothing = KnownObjects(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    return ScanTask(folder, log, topic, 1_000_000, lambda: nothing)


class Slow(Folder):
    """A folder on the other side of a network."""

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Any]:
        for page in super().pages(shard, position):
            time.sleep(0.05)
            busy.append(threading.current_thread().name)
            yield page


busy: list[str] = []


def test_where_listing_is_waiting_threads_do_it_side_by_side(content: Content, log: Any, tmp_path: Path):
    photos = tmp_path / "photos"
    put(photos, *(f"{n:02d}/a" for n in range(40)))
    busy.clear()
    folder = Slow(bucket_of(str(photos)), str(photos))
    nothing = KnownObjects(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    done: ScanResult = run_scan(content.settings, log, folder, nothing)
    assert done.told == 40 and len(told(log, content.settings)) == 40
    assert len(set(busy)) > 4 and busy[:4] == ["MainThread"] * 4


def test_threads_hear_of_an_interrupt(monkeypatch):
    stop = threading.Event()

    def interrupted(_turns: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("frazil.content.scan.executors.wait", interrupted)
    assert run_in_threads(stop)(lambda item: (item, stop.wait(60)), [1, 2]) == [(1, True), (2, True)]
    assert is_io_bound(900, 1000) and not is_io_bound(20, 1000)


def test_nothing_is_connected_where_nothing_is_told(log: Any):
    with LazyObservationPublisher("grpc://127.0.0.1:1", "nope", "b", "scan", 1000) as publisher:
        publisher.publish([], at(0))
    assert publisher.end == 0


def test_an_engine_that_nobody_used_was_never_started(content: Content, log: Any):
    with LazyEngine(content.settings, log) as engine:
        assert not engine.runs
    assert replace(ScanSession(content.settings, log, engine)).waiting() == 0
