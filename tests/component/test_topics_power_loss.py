"""The power goes, or the log, after the sink has committed: what the table has stays, and nothing is doubled."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil.log.log import Log
from frazil.log.protocol import Level
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.settings import load_settings
from frazil.tables import adopt, find_position
from frazil.tables.store import LazyStore
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.layout import ARCHIVE
from frazil.topics.positions import ForeignLogError
from tests.faulty_disk import FaultyDisk
from tests.machine import machine_flags
from tests.sink_kit import SinkKit

TOPIC = "orders"


@contextmanager
def kit_on(folder: Path, disk: FaultyDisk, mode: str) -> Iterator[SinkKit]:
    """A kit whose log lies on a disk that can lose what was not synced; the catalog does not."""
    flags = {**machine_flags(), "home": str(folder / "home"), "log.min_free": "0", "log.sync_mode": mode}
    settings = load_settings(flags=flags, environ={})
    log = Log.open(folder / "log", settings.model.log, floor=committed_offsets(settings), disk=disk)
    with Broker(log) as broker, Client(broker.address) as client, LazyStore(settings) as tables:
        yield SinkKit(settings, log, client, tables)
    if not getattr(disk, "lost", False):
        log.close()


def lose_power(kit: SinkKit, disk: FaultyDisk, seed: int) -> None:
    kit.log._stop.set()
    kit.log._housekeeping.join()
    kit.log._owner.release()
    disk.power_loss(random.Random(seed))
    disk.lost = True  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_the_table_never_has_what_a_power_cut_takes_from_the_log(tmp_path: Path, mode: str, seed: int):
    (tmp_path / "log").mkdir()
    disk = FaultyDisk(tmp_path / "log")
    level = {"always": Level.disk, "periodic": Level.os, "none": Level.memory}[mode]
    with kit_on(tmp_path, disk, mode) as kit:
        kit.create(TOPIC)
        for number in range(20):
            kit.log.publish(TOPIC, b"%d" % number)
        kit.engine(TOPIC).catch_up()
        frozen = {r["offset"]: r["payload"] for r in kit.rows(TOPIC)}
        for number in range(20, 40):
            kit.log.publish(TOPIC, b"%d" % number, level=level)
        lose_power(kit, disk, seed)
    again = FaultyDisk(tmp_path / "log")
    with kit_on(tmp_path, again, mode) as kit:
        assert kit.log.info(TOPIC).end >= len(frozen) == 20, "the table is not ahead of the log"
        for number in range(40, 50):
            kit.log.publish(TOPIC, b"%d" % number, level=Level.disk)
        kit.engine(TOPIC).catch_up()
        rows = kit.rows(TOPIC)
        offsets = [r["offset"] for r in rows]
        payloads = [int(r["payload"]) for r in rows]
        assert offsets == list(range(len(rows))), "no gap, no double"
        assert payloads == sorted(set(payloads)), "in order, once"
        assert set(range(20)) | set(range(40, 50)) <= set(payloads)
        if mode == "always":
            assert payloads == list(range(50))


def test_an_older_copy_of_the_log_goes_on_after_the_table_and_reuses_no_offset(tmp_path: Path):
    (tmp_path / "log").mkdir()
    with kit_on(tmp_path, FaultyDisk(tmp_path / "log"), "always") as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a", b"b")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with kit_on(tmp_path, FaultyDisk(tmp_path / "log"), "always") as kit:
        kit.publish(TOPIC, b"c", b"d")
        kit.engine(TOPIC).catch_up()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")
    with kit_on(tmp_path, FaultyDisk(tmp_path / "log"), "always") as kit:
        assert kit.publish(TOPIC, b"e").offset == 4
        kit.engine(TOPIC).catch_up()
        assert [(r["offset"], r["payload"]) for r in kit.rows(TOPIC)] == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))


def test_a_deleted_log_is_refused_until_its_table_adopts_the_new_one(tmp_path: Path):
    (tmp_path / "log").mkdir()
    with kit_on(tmp_path, FaultyDisk(tmp_path / "log"), "always") as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a", b"b")
        kit.engine(TOPIC).catch_up()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "log").mkdir()
    with kit_on(tmp_path, FaultyDisk(tmp_path / "log"), "always") as kit:
        kit.create(TOPIC)
        with pytest.raises(ForeignLogError) as refused:
            kit.log.publish(TOPIC, b"c")
        assert "frazil topic adopt orders" in (refused.value.hint or "")
        table = kit.table(TOPIC)
        known = find_position(table, ARCHIVE, TOPIC)
        assert known is not None
        info = kit.log.info(TOPIC)
        adopted = type(known)(known.sink, TOPIC, known.offsets, info.log_id, info.epoch, "adopted-by-a-test")
        adopt(kit.store, table, adopted)
    with kit_on(tmp_path, FaultyDisk(tmp_path / "log"), "always") as kit:
        assert kit.publish(TOPIC, b"c").offset == 2
        kit.engine(TOPIC).catch_up()
        assert [r["payload"] for r in kit.rows(TOPIC)] == [b"a", b"b", b"c"]
