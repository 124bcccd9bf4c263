"""Servers and disks that fail under a sink: it leaves them alone for a while, says so, and loses or doubles nothing."""

from __future__ import annotations

import os
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.errors import FrazilError, UnavailableError
from frazil.observe.metrics import REGISTRY
from frazil.settings import load_settings
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.pipeline import Pipeline
from frazil.upkeep.expiry import orphans
from tests.faulty_storage import Gateway, Meeting, gateway_to
from tests.machine import machine_flags
from tests.services.kit import Services
from tests.sink_kit import SinkKit, in_thread, sink_kit, sink_kit_of, until
from tests.small_disk import small_disk
from tests.upkeep_files import care_of_settings

TOPIC = "orders"


class Door(Gateway):
    """In front of a server. `fault` says of each request (method, path) what it meets; None: it is handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Callable[[str, str], Meeting | None] = lambda *_: None
        self.met: Counter[Meeting] = Counter()

    def meets(self, method: str, path: str) -> Meeting | None:
        with self._lock:
            found = self.fault(method, path)
            if found is not None:
                self.met[found] += 1
            return found


@contextmanager
def door_to(server: str) -> Iterator[Door]:
    door = Door()
    with gateway_to(server, door):
        yield door


@contextmanager
def running(kit: SinkKit, catalog: str | None = None) -> Iterator[Pipeline]:
    """A pipeline that runs in a thread inside the block, and whose tasks run in its own threads."""
    pipeline = Pipeline(kit.settings, kit.client, None, kit.client.address, catalog=catalog, run=in_process)
    with pipeline, in_thread(pipeline):
        yield pipeline


def new_topic(kit: SinkKit) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    kit.create(name)
    return name


def taken(pipeline: Pipeline, kit: SinkKit) -> bool:
    """Whether the pipeline has taken all that was acknowledged."""
    offsets = {s.topic: s.offset or 0 for s in pipeline.status()}
    return all(offsets.get(topic, 0) >= len(given) for topic, given in kit.acknowledged.items())


# -- the catalog -------------------------------------------------------------------------------------------------------

CATALOG = "behind_a_door"
FAILURES, RESET_S = 3, 1.0


@contextmanager
def kit_on_rest(door: Door, folder: Path, name: str) -> Iterator[SinkKit]:
    """Tables on a REST catalog behind a door. The name is that of its breaker, which all of a process share."""
    flags = {
        **machine_flags(), "home": str(folder), "log.min_free": "0", "pipeline.max_lag_ms": "20",
        f"catalogs.{name}.kind": "rest", f"catalogs.{name}.uri": door.url,
        "network.retry_attempts": "2", "network.breaker_failures": str(FAILURES), "network.breaker_reset": str(RESET_S),
    }  # fmt: skip
    with sink_kit_of(load_settings(flags=flags, environ={}), name) as kit:
        yield kit


def breaker(name: str, metric: str, server: str = "catalog") -> float:
    return REGISTRY.get_sample_value(f"frazil_breaker_{metric}", {"name": f"the {server} of '{name}'"}) or 0.0


@pytest.mark.parametrize("fault", ["503", "cut"])
def test_a_catalog_that_is_away_is_left_alone_and_when_it_is_back_everything_arrives_once(
    services: Services, tmp_path: Path, fault: Meeting
) -> None:
    name = f"{CATALOG}_{fault}"
    with door_to(services.rest.url) as door, kit_on_rest(door, tmp_path, name) as kit:
        topics = [new_topic(kit) for _ in range(4)]
        for topic in topics:
            kit.publish(topic, b"before")
        with running(kit, name) as pipeline:
            until(lambda: taken(pipeline, kit))
            failed = {topic: kit.told(topic, "failures_total") for topic in topics}
            commits = {topic: kit.told(topic, "commits_total") for topic in topics}
            door.fault = lambda *_: fault
            began = time.monotonic()
            for topic in topics:
                kit.publish(topic, b"meanwhile")
                kit.publish(topic, b"and more")
            until(lambda: all(kit.told(t, "failures_total") - failed[t] >= 4 for t in topics))
            asked, away_s = door.met[fault], time.monotonic() - began
            failures = sum(kit.told(t, "failures_total") - failed[t] for t in topics)
            # Until it opens, each of the four may be in a call; then it lets one pass from time to time.
            assert asked <= FAILURES + len(topics) + away_s / RESET_S + 1
            assert asked < failures, "most tries do not reach the server"
            assert breaker(name, "opened_total") >= 1
            assert breaker(name, "state") > 0
            # Where the second message came late, it is seen at the next look, and counted by the next failure.
            until(lambda: all(s.end == 3 and kit.told(s.topic, "lag_offsets") == 2 for s in pipeline.status()))
            for status in pipeline.status():
                assert (status.state, status.offset, status.end) == ("waiting", 1, 3)
                assert status.reason is not None
                assert "suspended" in status.reason or "does not respond" in status.reason or "503" in status.reason
                assert kit.told(status.topic, "lag_offsets") == 2
                assert kit.told(status.topic, "lag_seconds") > 0
            door.fault = lambda *_: None
            until(lambda: taken(pipeline, kit))
            until(lambda: all(s.state == "running" for s in pipeline.status()))
        assert breaker(name, "state") == 0
        for topic in topics:
            kit.check(topic)
            assert kit.told(topic, "commits_total") > commits[topic]
            assert kit.told(topic, "stopped") == 0


def test_commits_whose_replies_are_lost_on_the_way_are_found_and_not_made_twice(
    services: Services, tmp_path: Path
) -> None:
    name = f"{CATALOG}_lost"
    with door_to(services.rest.url) as door, kit_on_rest(door, tmp_path, name) as kit:
        topic = new_topic(kit)
        kit.publish(topic, b"first")
        engine = kit.engine(topic)
        engine.catch_up()
        numbers = iter(range(1000))

        def every_second_commit(method: str, path: str) -> Meeting | None:
            return "lost" if method == "POST" and path.endswith(topic) and next(numbers) % 2 == 0 else None

        before = kit.told(topic, "commits_total")
        door.fault = every_second_commit
        for number in range(10):
            kit.publish(topic, b"%d" % number)
            engine.run_batch(at_once=True)
        assert door.met["lost"] >= 5
        assert kit.told(topic, "commits_total") - before == 10
        kit.check(topic)


# -- the storage -------------------------------------------------------------------------------------------------------


@contextmanager
def kit_on_s3(services: Services, door: Door, folder: Path, **flags: str) -> Iterator[SinkKit]:
    """The embedded catalog, with its tables in a bucket behind a door."""
    bucket = services.seaweedfs.make_bucket("sinks")
    access = services.seaweedfs.access.settings() | {"endpoint": door.url}
    given = {"catalog.name": f"s3_{folder.name}", "catalog.warehouse": f"{bucket}/{uuid.uuid4().hex}"}
    given |= {f"s3.{key}": value for key, value in access.items()}
    with sink_kit(folder, **{**given, **flags}) as kit:
        kit.create(TOPIC)
        yield kit


def every(nth: int, fault: Meeting = "503", part: str = "") -> Callable[[str, str], Meeting | None]:
    """Every n-th PUT of a path with `part` in it."""
    numbers = iter(range(1, 1_000_000))
    return lambda method, path: fault if method == "PUT" and part in path and next(numbers) % nth == 0 else None


def strays_of(kit: SinkKit) -> orphans.Search:
    """What upkeep finds below the table that nothing refers to."""
    care = care_of_settings(kit.settings)
    with care.store:
        return orphans.find(care, care.load(f"topics.{TOPIC}"), age_s=-3600.0)


def require_no_stray_data(kit: SinkKit) -> None:
    """What nobody refers to is metadata of attempts at most, and upkeep finds it."""
    search = strays_of(kit)
    assert search.unknown == ()
    assert [o.uri for o in search.orphans if o.uri.endswith(".parquet")] == []


def persistently(engine: Engine) -> int:
    """Takes all that is in the log; returns how many tries failed, each of which may be begun again."""
    end, failed = engine.visible_end(), 0
    while not engine.has_reached(end):
        try:
            engine.run_batch(at_once=True)
        except UnavailableError:
            failed += 1
            assert failed < 10
    return failed


@pytest.mark.deep
@pytest.mark.parametrize("nth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_puts_that_are_refused_now_and_then_cost_time_and_no_row(services: Services, tmp_path: Path, nth: int) -> None:
    with door_to(services.seaweedfs.url) as door, kit_on_s3(services, door, tmp_path) as kit:
        source, engine = random.Random(nth), kit.engine(TOPIC)
        kit.publish(TOPIC, b"first")
        engine.catch_up()
        door.fault = every(nth)
        for number in range(3):
            kit.publish(TOPIC, b"%d" % number)
            assert persistently(engine) == 0, "PyArrow tries three times, and one after the other"
        # So much that it goes up in parts, at once: it may well be the same one that is refused three times.
        kit.publish(TOPIC, *(source.randbytes(1_000_000) for _ in range(22)))
        persistently(engine)
        assert door.met["503"] >= 4
        door.fault = lambda *_: None
        kit.check(TOPIC)
        require_no_stray_data(kit)


@pytest.mark.deep
@pytest.mark.parametrize("part", ["/data/", pytest.param("/metadata/", marks=pytest.mark.slow)])
def test_a_batch_that_storage_refuses_is_told_and_begun_again(services: Services, tmp_path: Path, part: str) -> None:
    """`data` is written by tasks, `metadata` by whoever commits."""
    flags = {"network.retry_attempts": "2", "network.breaker_failures": "2", "network.breaker_reset": "2"}
    with (
        door_to(services.seaweedfs.url) as door,
        kit_on_s3(services, door, tmp_path, **flags, **{"pipeline.max_lag_ms": "20"}) as kit,
    ):
        kit.publish(TOPIC, b"before")
        with running(kit) as pipeline:
            until(lambda: taken(pipeline, kit))
            failed = kit.told(TOPIC, "failures_total")
            door.fault = every(1, part=part)
            kit.publish(TOPIC, b"meanwhile", b"and more")
            until(lambda: kit.told(TOPIC, "failures_total") - failed >= 2)
            [status] = pipeline.status()
            assert (status.state, status.offset, status.end) == ("waiting", 1, 3)
            assert status.reason is not None
            expected = "could not be written" if part == "/data/" else "is overloaded or failing"
            assert re.search(f"{expected}|suspended", status.reason), status.reason
            assert kit.told(TOPIC, "lag_offsets") == 2
            catalog = kit.settings.catalog().name
            until(lambda: breaker(catalog, "opened_total", "storage") >= 1)
            until(lambda: "suspended" in (pipeline.status()[0].reason or ""))
            assert breaker(catalog, "state", "storage") > 0
            door.fault = lambda *_: None
            until(lambda: taken(pipeline, kit))
        kit.check(TOPIC)
        if part == "/data/":
            require_no_stray_data(kit)


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.timeout(280)
def test_executors_whose_puts_are_refused_lose_and_double_nothing(
    services: Services, tmp_path: Path, spark: SparkSession
) -> None:
    with door_to(services.seaweedfs.url) as door, kit_on_s3(services, door, tmp_path) as kit:
        source = random.Random(5)
        door.fault = every(3)
        with Pipeline(kit.settings, kit.client, spark, kit.client.address) as pipeline:
            for _ in range(4):
                kit.publish(TOPIC, *(source.randbytes(1000) for _ in range(3000)))
                pipeline.drain(120)
        assert door.met["503"] > 0
        door.fault = lambda *_: None
        kit.check(TOPIC)
        require_no_stray_data(kit)


# -- the disk ----------------------------------------------------------------------------------------------------------

_PAGE = 4096


class SmallDisk:
    """A file system of its own, on which a test says how much room is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def leave(self, pages: int) -> None:
        self.make_room()
        free = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - pages * _PAGE)

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk("16m") as folder:
        yield SmallDisk(folder)


@contextmanager
def kit_on_disk(folder: Path, disk: SmallDisk) -> Iterator[SinkKit]:
    """The table's files are on the small disk; the log and the catalog's database are not."""
    flags = {
        "catalog.name": "small", "catalog.warehouse": str(disk.folder / "warehouse"), "pipeline.max_lag_ms": "20",
        "network.retry_attempts": "1", "network.breaker_failures": "1000",
    }  # fmt: skip
    with sink_kit(folder, **flags) as kit:
        kit.create(TOPIC)
        yield kit


def test_a_disk_that_is_full_while_a_task_writes_is_told_and_when_there_is_room_everything_arrives_once(
    tmp_path: Path, disk: SmallDisk
) -> None:
    with kit_on_disk(tmp_path, disk) as kit:
        source = random.Random(6)
        kit.publish(TOPIC, b"before")
        with running(kit) as pipeline:
            until(lambda: taken(pipeline, kit))
            before, files = kit.table(TOPIC).metadata_location, kit.files(TOPIC)
            failed = kit.told(TOPIC, "failures_total")
            disk.leave(20)
            kit.publish(TOPIC, *(source.randbytes(100_000) for _ in range(5)))
            until(lambda: kit.told(TOPIC, "failures_total") - failed >= 2)
            [status] = pipeline.status()
            assert (status.state, status.offset, status.end) == ("waiting", 1, 6)
            assert status.reason is not None
            assert "no space left" in status.reason
            assert status.hint is not None
            assert "free" in status.hint
            assert kit.table(TOPIC).metadata_location == before
            until(lambda: kit.files(TOPIC) == files)  # unless it is writing just now
            disk.make_room()
            until(lambda: taken(pipeline, kit))
        kit.check(TOPIC)
        assert kit.files(TOPIC) == kit.committed_files(TOPIC)


def test_wherever_the_disk_gets_full_the_table_is_as_before_and_the_next_turn_takes_it(
    tmp_path: Path, disk: SmallDisk
) -> None:
    """With one page more each time: the data file, manifest, manifest list and metadata are cut off in turn."""
    with kit_on_disk(tmp_path, disk) as kit:
        source, engine = random.Random(7), kit.engine(TOPIC)
        kit.publish(TOPIC, b"before")
        engine.catch_up()
        told: list[str] = []
        for pages in range(100):
            kit.publish(TOPIC, source.randbytes(3 * _PAGE))
            before, files = kit.table(TOPIC).metadata_location, set(kit.files(TOPIC))
            disk.leave(pages)
            try:
                engine.run_batch(at_once=True)
            except FrazilError as error:
                assert isinstance(error, UnavailableError)
                assert "space" in f"{error.message} {error.cause}"
                told.append(error.message)
                assert kit.table(TOPIC).metadata_location == before
                if "parquet" in error.message:
                    assert set(kit.files(TOPIC)) == files
                disk.make_room()
                engine.catch_up()
                kit.check(TOPIC)
            else:
                break
        else:
            raise AssertionError("there was never room enough")
        disk.make_room()
        kit.check(TOPIC)
        assert sum("parquet" in message for message in told) >= 3
        assert sum("parquet" not in message for message in told) >= 3
        search = strays_of(kit)
        strays = set(kit.files(TOPIC)) - set(kit.committed_files(TOPIC))
        assert {Path(o.uri.removeprefix("file://")) for o in search.orphans} >= strays, "upkeep finds them"
