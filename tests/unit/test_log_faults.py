"""Power cuts, full disks and failing syncs, at every step of everything that the log does to its files."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import FrazilError, UnavailableError
from frazil.log import Ack, Batch, Level, Log
from frazil.log.disk import Disk
from frazil.log.files import LogShutError
from frazil.log.topic_file import TopicFile
from frazil.observe.faultpoints import handled
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash, messages_of, new_log, open_log, segments_of
from tests.small_disk import small_disk

pytestmark = pytest.mark.timeout(120)

STEPS = [
    "log.commit.before", "log.commit.after", "log.write.before", "log.write.after", "log.sync.before",
    "log.sync.after", "log.rotate.before", "log.rotate.after", "log.remove.before", "log.remove.after",
]  # fmt: skip


class PowerCutError(Exception):
    """Raised at a fault point: from here on nothing happens any more."""


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture
def log(tmp_path: Path, disk: FaultyDisk) -> Iterator[Log]:
    opened = new_log(tmp_path / "log", disk=disk)
    yield opened
    with suppress(FrazilError):
        opened.close()


class Witness:
    """Stands outside, and notes what was acknowledged, how far readers could see, and what retention was to remove."""

    def __init__(self) -> None:
        self.acked: dict[Level, dict[int, bytes]] = {Level.os: {}, Level.disk: {}}
        self.seen = 0
        self.start = self.planned = 0
        """Where the log began after the last retention that came to its end, and where the last one wanted it to."""

    def work(self, log: Log, chance: random.Random, rounds: int = 30) -> None:
        """Publishes at all levels, with rotations, registrations and retention, until a fault ends it."""
        who = log.register("orders", "billing")
        for number in range(rounds):
            level = chance.choice([Level.os, Level.disk])
            payload = b"%d-" % number + bytes([65 + number % 26]) * chance.choice([0, 10, 900])
            if chance.random() < 0.3:
                batch = Batch.of_messages([payload] * 3, producer_id=who.producer_id, sequence=0)
                who_ack = log.append("orders", _unsequenced(batch), level)
                self._note(who_ack, payload)
            else:
                self._note(log.publish("orders", payload, level=level), payload)
            if chance.random() < 0.1:
                log.commit("orders", "reader", number)
            self.seen = max(self.seen, log.info("orders").end)
            if chance.random() < 0.1:
                self.planned = log.retain("orders", size=9000, dry_run=True).start
                self.start = log.retain("orders", size=9000).start

    def _note(self, ack: Ack, payload: bytes) -> None:
        for offset in range(ack.offset, ack.offset + ack.count):
            self.acked[ack.level][offset] = payload

    def check_after(self, log: Log, *, survives: tuple[Level, ...]) -> dict[int, bytes]:
        info = log.info("orders")
        read = messages_of(log)
        assert info.end >= self.seen, "a reader had seen more"
        assert self.start <= info.start <= self.planned, "retention removes what it has planned, and nothing else does"
        assert sorted(read) == list(range(info.start, info.end))
        for level in survives:
            for offset, payload in self.acked[level].items():
                assert offset < info.start or read[offset] == payload
        known = self.acked[Level.os] | self.acked[Level.disk]
        assert all(known[o] == p for o, p in read.items() if o in known)
        return read


def _unsequenced(batch: Batch) -> Batch:
    return Batch(batch.kind, batch.count, batch.body, batch.crc, batch.flags, batch.producer_id, 0, -1)


def cut_at(step: str, count: int) -> Callable[[str], None]:
    left = [count]

    def handler(reached: str) -> None:
        if reached == step or left[0] <= 0:
            left[0] -= 1
            if left[0] <= 0:
                raise PowerCutError(step)

    return handler


def run_until_cut(folder: Path, disk: FaultyDisk, witness: Witness, step: str, chance: random.Random) -> Log:
    log = new_log(folder, disk=disk)
    with handled(cut_at(step, chance.randint(1, 12))), suppress(PowerCutError, LogShutError):
        witness.work(log, chance)
    return log


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_step_takes_nothing_that_was_acknowledged_on_disk_or_visible(
    tmp_path: Path, disk: FaultyDisk, step: str, seed: int
):
    chance = random.Random(f"{step} {seed}")
    witness = Witness()
    crash(run_until_cut(tmp_path / "log", disk, witness, step, chance))
    disk.power_loss(None if seed == 0 else chance)
    for _ in range(2):
        with open_log(tmp_path / "log", disk=disk) as again:
            read = witness.check_after(again, survives=(Level.disk,))
            after = again.publish("orders", b"after", level="disk")
            assert after.offset not in read
            witness.acked[Level.disk][after.offset] = b"after"
            witness.seen = again.info("orders").end


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_of_the_process_at_any_step_takes_nothing_that_was_acknowledged(
    tmp_path: Path, disk: FaultyDisk, step: str
):
    witness = Witness()
    crash(run_until_cut(tmp_path / "log", disk, witness, step, random.Random(step)))
    with open_log(tmp_path / "log", disk=disk) as again:
        read = witness.check_after(again, survives=(Level.os, Level.disk))
        assert again.publish("orders", b"after").offset not in read


def test_a_power_cut_may_take_what_was_only_acknowledged_as_os_and_the_test_disk_can_show_it(
    tmp_path: Path, disk: FaultyDisk
):
    log = new_log(tmp_path / "log", disk=disk)
    log.publish("orders", b"kept", level="disk")
    log.publish("orders", b"lost", level="os")
    crash(log)
    disk.power_loss()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again) == {0: b"kept"}
        assert again.publish("orders", b"new").offset == 1


def test_a_power_cut_right_after_the_first_topic_leaves_the_topic_and_its_messages(tmp_path: Path, disk: FaultyDisk):
    log = new_log(tmp_path / "home" / "deep" / "log", disk=disk)
    crash(log)
    disk.power_loss()
    log = open_log(tmp_path / "home" / "deep" / "log", disk=disk)
    assert [t.name for t in log.topics()] == ["orders"]
    log.publish("orders", b"x")
    crash(log)
    disk.power_loss()
    with open_log(tmp_path / "home" / "deep" / "log", disk=disk) as again:
        assert messages_of(again) == {0: b"x"}


@pytest.mark.parametrize("seed", range(6))
def test_a_power_cut_in_the_middle_of_retention_leaves_no_hole(tmp_path: Path, disk: FaultyDisk, seed: int):
    log = new_log(tmp_path / "log", disk=disk)
    for _ in range(6):
        log.publish("orders", bytes(3500))
    with handled(cut_at("log.remove.after", 1 + seed % 3)), suppress(PowerCutError):
        log.retain("orders", size=0)
    crash(log)
    disk.power_loss(random.Random(seed))
    with open_log(tmp_path / "log", disk=disk) as again:
        assert again.info("orders").start == 1 + seed % 3, "one segment per message, and each is gone before the next"
        assert sorted(messages_of(again)) == list(range(1 + seed % 3, 6))


# -- a sync that fails ---------------------------------------------------------------------------------------------


def test_a_sync_that_fails_once_is_final_and_what_was_synced_can_still_be_read(
    tmp_path: Path, disk: FaultyDisk, log: Log
):
    log.publish("orders", b"safe")
    disk.fail("sync", match=".seg")
    with pytest.raises(LogShutError, match="failed at fdatasync"):
        log.publish("orders", b"lost")
    for level in Level:
        with pytest.raises(LogShutError):
            log.publish("orders", b"refused", level=level)
    with pytest.raises(LogShutError):
        log.sync("orders")
    with pytest.raises(LogShutError):
        log.register("orders", "billing")
    assert messages_of(log) == {0: b"safe"}
    log.close()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again)[0] == b"safe"
        end = again.info("orders").end
        assert again.publish("orders", b"after").offset == end


def test_what_a_failed_sync_left_in_the_cache_is_written_anew_before_anybody_sees_it(tmp_path: Path, disk: FaultyDisk):
    """Linux drops the dirty mark of pages whose sync has failed: the next sync succeeds and has done nothing."""
    log = new_log(tmp_path / "log", disk=disk)
    log.publish("orders", b"safe")
    disk.fail("sync", match=".seg")
    with pytest.raises(LogShutError):
        log.publish("orders", b"in the cache only")
    crash(log)
    log = open_log(tmp_path / "log", disk=disk)
    seen = messages_of(log)
    after = log.publish("orders", b"after")
    crash(log)
    disk.power_loss()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again) == seen | {after.offset: b"after"}


def test_nothing_is_written_behind_a_sync_that_failed_in_the_same_commit(disk: FaultyDisk, log: Log):
    """The rotation's sync fails; a small message that would still fit must not be acknowledged behind it."""
    log.publish("orders", b"first", level="os")
    opened = log._topic("orders")
    written = opened.files.written
    disk.fail("sync", match=".seg")
    from frazil.log.group import Entry

    large = Entry.of_batch(Batch.of_messages([bytes(4000)]), Level.os)
    small = Entry.of_message((b"small", None, None), Level.os)
    with opened.queue._lock:
        opened.queue._leading = True
        opened.queue._pending += [large, small]
    opened.queue.lead()
    assert isinstance(large.error, LogShutError) and isinstance(small.error, LogShutError)
    assert opened.files.written == written


@pytest.mark.parametrize("call", ["sync", "sync_folder"])
def test_a_sync_that_fails_while_a_segment_is_begun_is_final_too(tmp_path: Path, disk: FaultyDisk, log: Log, call: str):
    log.publish("orders", bytes(3000))
    log.sync("orders")
    disk.fail(call, match="00000001.seg" if call == "sync" else "orders")
    with pytest.raises(LogShutError, match="new segment"):
        log.publish("orders", bytes(3000))
    with pytest.raises(LogShutError):
        log.publish("orders", b"x")
    log.close()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again) == {0: bytes(3000)}
        assert again.publish("orders", b"x").offset == 1


def test_a_sync_that_fails_at_open_is_told_and_the_next_open_works(tmp_path: Path, disk: FaultyDisk, log: Log):
    log.publish("orders", b"x", level="os")
    crash(log)
    disk.fail("sync", match=".seg")
    with open_log(tmp_path / "log", disk=disk) as again:
        with pytest.raises(UnavailableError, match="cannot be opened"):
            again.info("orders")
        assert messages_of(again) == {0: b"x"}


# -- a full disk ---------------------------------------------------------------------------------------------------


def test_a_part_that_did_not_fit_does_not_count_as_damage_once_its_segment_is_sealed():
    """The part was cut off again; a power cut may keep the part and lose the cut."""
    for seed in range(100):
        with tempfile.TemporaryDirectory() as folder:
            disk = FaultyDisk(Path(folder))
            log = new_log(Path(folder) / "log", disk=disk)
            log.publish("orders", b"first", level="disk")
            disk.space = 1
            with pytest.raises(UnavailableError):
                log.publish("orders", bytes(300))
            disk.repair()
            log.publish("orders", bytes(3900), level="os")  # begins the next segment
            crash(log)
            disk.power_loss(random.Random(seed))
            with open_log(Path(folder) / "log", disk=disk) as again:
                assert messages_of(again)[0] == b"first"


def test_a_disk_that_fills_up_at_any_byte_loses_and_doubles_nothing():
    with tempfile.TemporaryDirectory() as folder:
        disk = FaultyDisk(Path(folder))
        log = new_log(Path(folder) / "log", disk=disk)
        expected = {log.publish("orders", b"first").offset: b"first"}
        for space in range(0, 400, 3):
            disk.space = space
            payload = b"%d" % space * 20
            with suppress(UnavailableError):
                expected[log.publish("orders", payload).offset] = payload
            assert messages_of(log) == expected
            disk.repair()
        for number in range(10):
            expected[log.publish("orders", b"after %d" % number).offset] = b"after %d" % number
        assert sorted(expected) == list(range(len(expected)))
        crash(log)
        disk.power_loss()
        with open_log(Path(folder) / "log", disk=disk) as again:
            assert messages_of(again) == expected


def test_a_disk_that_fills_up_at_any_byte_of_a_rotation_leaves_the_log_as_it_was():
    with tempfile.TemporaryDirectory() as folder:
        disk = FaultyDisk(Path(folder))
        log = new_log(Path(folder) / "log", disk=disk)
        log.publish("orders", bytes(3000))
        refused = 0
        for space in range(0, 700, 7):
            disk.space = space
            try:
                log.publish("orders", bytes(2000))
                break
            except UnavailableError as error:
                refused += 1
                assert "No space left" in (error.cause or "")
            assert messages_of(log) == {0: bytes(3000)}
            disk.repair()
            if space == 350:
                assert log.publish("orders", b"small").offset == 1
                break
        assert refused > 20
        disk.repair()
        assert log.publish("orders", bytes(2000)).offset == 2
        log.close()
        with open_log(Path(folder) / "log", disk=disk) as again:
            assert messages_of(again) == {0: bytes(3000), 1: b"small", 2: bytes(2000)}


def publish_until_refused(log: Log, name: str, chance: random.Random) -> list[tuple[int, bytes]]:
    """What one thread gets acknowledged before the disk is full, in the order of sending."""
    acked: list[tuple[int, bytes]] = []
    while True:
        payload = b"%s-%d-" % (name.encode(), len(acked)) + chance.randbytes(chance.choice([5, 900, 9000]))
        level = chance.choice([Level.os, Level.disk])
        kind = chance.random()
        try:
            if kind < 0.1:  # more parts than the operating system takes at once
                answers = log.append_many("orders", [(Batch.of_messages([payload[:50]]), level)] * 400)
            elif kind < 0.3:
                answers = [log.append("orders", Batch.of_messages([payload] * 3), level)]
            else:
                answers = [log.publish("orders", payload, level=level)]
        except UnavailableError as error:
            answers = [error]
        for answer in answers:
            if isinstance(answer, Ack):
                sent = payload[:50] if kind < 0.1 else payload
                acked += [(offset, sent) for offset in range(answer.offset, answer.offset + answer.count)]
        for answer in answers:
            if not isinstance(answer, Ack):
                assert "No space left" in (answer.cause or ""), answer
                return acked


def test_a_disk_that_is_really_full_loses_and_doubles_nothing_and_goes_on_when_there_is_room(monkeypatch):
    taken: list[tuple[int, int]] = []
    pwritev = os.pwritev

    def noting_parts(fd: int, buffers: list[bytes], at: int) -> int:
        written = pwritev(fd, buffers, at)
        taken.append((written, sum(map(len, buffers))))
        return written

    monkeypatch.setattr("frazil.log.disk.os.pwritev", noting_parts)
    acked: dict[int, bytes] = {}

    def fill(log: Log, name: str) -> None:
        """Several threads, so that what is written at once has many parts; all are refused in the end."""
        before = len(acked)
        with ThreadPoolExecutor(3) as threads:
            names = [f"{name}{n}" for n in range(3)]
            told = list(threads.map(lambda each: publish_until_refused(log, each, random.Random(each)), names))
        for its in told:
            offsets = [offset for offset, _ in its]
            assert offsets == sorted(offsets), "messages of one thread stay in order"
            acked.update(its)
        assert len(acked) == before + sum(map(len, told)) > before, "no offset was given out twice"
        check(log)

    def check(log: Log) -> None:
        log.sync("orders")
        start = log.info("orders").start
        assert messages_of(log) == {o: p for o, p in acked.items() if o >= start}

    with small_disk("640k") as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(320 * 1024))
        log = new_log(folder / "log", max_file_size=64 * 1024)
        fill(log, "full")
        ballast.unlink()
        fill(log, "full again")
        assert log.info("orders").start == 0
        removed = log.retain("orders", size=150_000)
        assert removed.segments > 2
        fill(log, "and again")
        assert log.info("orders").start == removed.start
        crash(log)
        with open_log(folder / "log", max_file_size=64 * 1024) as again:
            check(again)
            again.retain("orders", size=0)
            assert again.publish("orders", b"after").offset > max(acked)
        assert not (folder / "log" / "topics" / "orders" / "quarantine").exists()
    assert any(written < size for written, size in taken), "the disk took parts"


def write(disk: Disk, fd: int, pieces: list[bytes], at: int) -> None:
    disk.write(fd, b"".join(pieces), at)


def write_all(disk: Disk, fd: int, pieces: list[bytes], at: int) -> None:
    disk.write_all(fd, pieces, at)


@pytest.mark.parametrize("put", [write, write_all])
@pytest.mark.parametrize("pieces", [4, 1500])
def test_what_a_real_disk_takes_only_a_part_of_is_refused(put: Callable, pieces: int):
    with small_disk("64k") as folder:
        disk = Disk()
        fd = disk.open(folder / "file", create=True)
        with pytest.raises(OSError, match="No space left"):
            put(disk, fd, [bytes(100_000 // pieces)] * pieces, 10)
        assert 0 < (folder / "file").stat().st_size < 100_000
        disk.close(fd)


@pytest.mark.parametrize("put", [write, write_all])
@pytest.mark.parametrize("pieces", [4, 1500])
def test_what_is_written_in_parts_is_whole_in_the_end(tmp_path: Path, monkeypatch, put: Callable, pieces: int):
    pwrite = os.pwrite
    monkeypatch.setattr("frazil.log.disk.os.pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:997], at))
    monkeypatch.setattr("frazil.log.disk.os.pwritev", lambda fd, buffers, at: pwrite(fd, b"".join(buffers)[:997], at))
    disk = Disk()
    parts = [random.Random(n).randbytes(6000 // pieces) for n in range(pieces)]
    fd = disk.open(tmp_path / "file", create=True)
    put(disk, fd, parts, 10)
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(10) + b"".join(parts)


def test_messages_that_fit_are_taken_although_the_zeros_that_would_stand_ready_behind_them_do_not():
    with small_disk("256k") as folder:
        with new_log(folder / "log", max_file_size=64 * 1024) as log:
            log.publish("orders", b"first")
        with open_log(folder / "log", max_file_size=64 * 1024) as log:
            assert log.info("orders").end == 1
            with (folder / "ballast").open("wb", buffering=0) as ballast:
                with pytest.raises(OSError, match="No space left"):
                    while True:
                        ballast.write(bytes(4096))
                ballast.truncate(ballast.tell() - 4 * 4096)
            for offset in range(1, 5):
                assert log.publish("orders", bytes(3000)).offset == offset
            with pytest.raises(UnavailableError, match="cannot be written"):
                log.publish("orders", bytes(9000))
            assert sorted(messages_of(log)) == list(range(5))


@pytest.mark.parametrize("match", ["synced", ".idx"])
def test_a_mark_or_index_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, disk: FaultyDisk, log: Log, match: str
):
    disk.fail("write", errno.ENOSPC, times=1000, match=match)
    disk.fail("rename", errno.EIO, times=1000, match=match)
    for number in range(8):
        assert log.publish("orders", b"%d" % number * 1000).offset == number
    crash(log)
    with open_log(tmp_path / "log", disk=disk) as again:
        assert len(messages_of(again)) == 8


def test_a_truncate_that_fails_after_a_full_disk_shuts_the_log_and_recovery_cuts(
    tmp_path: Path, disk: FaultyDisk, log: Log
):
    log.publish("orders", b"safe")
    disk.space = 40
    disk.fail("truncate", times=9)
    with pytest.raises(LogShutError, match="truncate after a failed write"):
        log.publish("orders", b"lost")
    disk.repair()
    with pytest.raises(LogShutError):
        log.publish("orders", b"refused")
    log.close()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again) == {0: b"safe"}
        assert again.publish("orders", b"next").offset == 1
        assert len(list((tmp_path / "log" / "topics" / "orders" / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("call", ["write", "sync", "rename", "sync_folder", "open"])
def test_a_topic_that_cannot_be_created_or_changed_is_told_and_works_when_there_is_space_again(
    tmp_path: Path, disk: FaultyDisk, log: Log, call: str
):
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(UnavailableError, match=r"topic\.json cannot be written"):
        log.create_topic("other")
    log.create_topic("other", exist_ok=True)
    before = TopicFile.read(tmp_path / "log" / "topics" / "orders")
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(UnavailableError, match=r"topic\.json cannot be written"):
        log.configure("orders", {"retention_bytes": 5})
    if call != "sync_folder":  # there the new file is in place, and only its name is not yet safe
        assert TopicFile.read(tmp_path / "log" / "topics" / "orders") == before
    assert log.configure("orders", {"retention_bytes": 6}).retention_bytes == 6


def test_a_full_disk_at_recovery_is_told_and_takes_nothing(tmp_path: Path, disk: FaultyDisk, log: Log):
    log.publish("orders", b"safe")
    crash(log)
    segment = segments_of(tmp_path / "log")[0]
    content = segment.read_bytes() + b"torn bytes"
    segment.write_bytes(content)
    disk.space = 5
    with open_log(tmp_path / "log", disk=disk) as again:
        with pytest.raises(UnavailableError, match="cannot be opened"):
            again.info("orders")
        assert segment.read_bytes() == content
        disk.repair()
        assert messages_of(again) == {0: b"safe"}


def test_segments_that_cannot_be_removed_are_told(disk: FaultyDisk, log: Log):
    for _ in range(4):
        log.publish("orders", bytes(3500))
    disk.fail("remove", errno.EROFS, match=".seg")
    with pytest.raises(UnavailableError, match="cannot be removed"):
        log.retain("orders", size=0)
    assert log.publish("orders", b"x").offset == 4


def test_one_topic_that_fails_does_not_keep_the_others_from_closing_well(tmp_path: Path, disk: FaultyDisk):
    log = new_log(tmp_path / "log", disk=disk, sync_mode="none")
    log.create_topic("other")
    log.create_topic("third")
    for topic in ("orders", "other", "third"):
        log.publish(topic, b"waits in memory")
    disk.fail("sync", match="other")
    with suppress(FrazilError):
        log.close()
    with open_log(tmp_path / "log", disk=disk) as again:
        for topic in ("orders", "third"):
            assert messages_of(again, topic) == {0: b"waits in memory"}


def test_schema_and_subscriptions_survive_a_power_cut_like_messages_do(tmp_path: Path, disk: FaultyDisk, log: Log):
    log.append("orders", Batch.of_arrow(pa.record_batch({"payload": pa.array([b"x"]), "price": pa.array([1])})))
    log.commit("orders", "reader", 1)
    crash(log)
    disk.power_loss()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert again.info("orders").subscriptions == {"reader": 1}
        assert again.info("orders").extra.names == ["price"]


def test_retention_never_removes_the_segment_that_the_mark_on_disk_names(tmp_path: Path, disk: FaultyDisk, log: Log):
    """Else the next open would take it for lost, and the topic would stand still for nothing."""
    log.publish("orders", bytes(3500))
    disk.fail("write", errno.ENOSPC, times=1000, match="synced")
    for _ in range(4):
        log.publish("orders", bytes(3500))
    assert log.retain("orders", size=0).segments == 0
    disk.repair()
    log.publish("orders", bytes(3500))
    assert log.retain("orders", size=0).start == 5
    crash(log)
    disk.power_loss()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again) == {5: bytes(3500)}


def test_a_segment_whose_name_was_not_yet_synced_at_the_crash_is_safe_after_the_next_open(
    tmp_path: Path, disk: FaultyDisk, log: Log
):
    """Killed between the file and the sync of its folder; opened again, written to; then the power is cut."""
    log.publish("orders", bytes(3000))
    disk.fail("sync", match="00000001.seg")
    with pytest.raises(LogShutError):
        log.publish("orders", bytes(3000))
    crash(log)
    again = open_log(tmp_path / "log", disk=disk)
    assert again.publish("orders", b"on disk").offset == 1
    again._topic("orders").files.sync_mark()
    crash(again)
    disk.power_loss()
    with open_log(tmp_path / "log", disk=disk) as once_more:
        assert messages_of(once_more) == {0: bytes(3000), 1: b"on disk"}


def test_offsets_are_skipped_only_after_what_was_written_is_on_disk(log: Log, disk: FaultyDisk) -> None:
    """The visible end moves to where the log goes on, and all below it must be there after a power cut."""
    log.publish("orders", b"written only", level=Level.os)
    topic = log._open["orders"]
    assert topic.end == 0
    disk.fail("sync", match=".seg")
    with pytest.raises(LogShutError):
        topic.raise_floor(10)
    assert topic.end == 0, "a reader would get what a power cut can take"
