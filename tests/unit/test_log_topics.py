"""Topics of a log: who has it, what they are called, and where offsets go on when a folder is not what it was."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from frazil.errors import ConflictError, LockedError, NotFoundError, UnavailableError, UsageError
from frazil.log import Log, OffsetGoneError
from frazil.log.frame import unpack_header
from frazil.log.owner import read_owner
from frazil.observe.faultpoints import handled
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash, messages_of, new_log, open_log, segments_of

pytestmark = pytest.mark.timeout(60)


# -- the owner -----------------------------------------------------------------------------------------------------


def test_a_log_that_is_open_elsewhere_says_in_which_process(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        with pytest.raises(LockedError, match=f"is open in process {os.getpid()}") as locked:
            open_log(tmp_path / "log")
        assert f"stop process {os.getpid()}" in (locked.value.hint or "")
        log.announce(flight="grpc://127.0.0.1:8815")
        with pytest.raises(LockedError) as locked:
            open_log(tmp_path / "log")
        assert "log.broker=grpc://127.0.0.1:8815" in (locked.value.hint or "")
        assert log.publish("orders", b"x").offset == 0
    open_log(tmp_path / "log").close()


def test_a_log_of_another_process_is_locked_while_that_lives_and_free_when_it_is_killed(tmp_path: Path):
    program = (
        "import sys, time, pathlib; from frazil.log import Log\n"
        "log = Log.open(pathlib.Path(sys.argv[1])); print('open', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "open\n"
        with pytest.raises(LockedError, match=f"process {other.pid} "):
            open_log(tmp_path / "log")
        owner = read_owner(tmp_path / "log")
        assert owner is not None and owner.pid == other.pid
    finally:
        other.kill()
        other.wait()
    assert read_owner(tmp_path / "log") is None
    assert json.loads((tmp_path / "log" / "LOCK").read_bytes())["pid"] == other.pid
    open_log(tmp_path / "log").close()


def test_looking_who_has_a_log_does_not_keep_anybody_from_opening_it(tmp_path: Path):
    folder = tmp_path / "log"
    new_log(folder).close()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            read_owner(folder)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            open_log(folder).close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_one_who_stands_still_while_he_looks_is_waited_for(tmp_path: Path):
    folder = tmp_path / "log"
    new_log(folder).close()
    looking = os.open(folder / "LOCK", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    goes_on = threading.Timer(1.0, os.close, [looking])
    goes_on.start()
    try:
        open_log(folder).close()
    finally:
        goes_on.join()


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Orders", "1st", "a b", "a/b", "..", "a" * 101, "dead_letters", "a-b", "a\n"])
def test_what_is_no_topics_name_is_refused_before_it_becomes_a_folder(tmp_path: Path, name: str):
    with open_log(tmp_path / "log") as log:
        with pytest.raises(UsageError):
            log.create_topic(name)
        assert list((tmp_path / "log" / "topics").iterdir()) == []


def test_an_unknown_topic_gets_the_nearest_name(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        for call in (
            lambda: log.publish("ordres", b"x"), lambda: log.info("ordres"), lambda: log.sync("ordres"),
            lambda: log.delete_topic("ordres"), lambda: log.retain("ordres"), lambda: list(log.chunks("ordres", 0)),
        ):  # fmt: skip
            with pytest.raises(NotFoundError, match="topic 'ordres' does not exist") as unknown:
                call()
            assert unknown.value.hint == "'orders'"


def test_a_topic_is_created_once_and_deleted_for_good(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        with pytest.raises(ConflictError):
            log.create_topic("orders")
        first = log.create_topic("orders", exist_ok=True).log_id
        log.publish("orders", b"x")
        log.delete_topic("orders")
        assert log.topics() == []
        assert log.create_topic("orders").log_id != first
        assert log.publish("orders", b"y").offset == 0
        assert messages_of(log) == {0: b"y"}
    assert [p.name for p in (tmp_path / "log" / "topics").iterdir()] == ["orders"]


def test_a_closed_log_says_so(tmp_path: Path):
    log = new_log(tmp_path / "log")
    log.close()
    log.close()
    with pytest.raises(UsageError, match="is closed"):
        log.publish("orders", b"x")


# -- where offsets go on -------------------------------------------------------------------------------------------


def with_table(folder: Path, floor: int | None, **more: object) -> Log:
    log = open_log(folder, floor=floor, **more)
    log.create_topic("orders", storage="iceberg", exist_ok=True)
    return log


def test_a_log_whose_segments_were_deleted_goes_on_where_the_table_is(tmp_path: Path):
    with with_table(tmp_path / "log", None) as log:
        for _ in range(5):
            log.publish("orders", b"x")
    for path in (tmp_path / "log" / "topics" / "orders").iterdir():
        if path.name != "topic.json":
            path.unlink()
    with with_table(tmp_path / "log", 4) as log:
        assert log.publish("orders", b"new").offset == 4
        info = log.info("orders")
        assert (info.start, info.end) == (4, 5)
        assert messages_of(log) == {4: b"new"}
        with pytest.raises(OffsetGoneError) as gone:
            list(log.chunks("orders", 0))
        assert gone.value.start == 4
    with with_table(tmp_path / "log", 5) as log:
        assert log.publish("orders", b"newer").offset == 5


def test_a_log_folder_that_was_deleted_as_a_whole_goes_on_where_the_table_is(tmp_path: Path):
    with with_table(tmp_path / "log", 1000) as log:
        assert log.info("orders").end == 0, "nobody has asked the table yet"
        log.prepare("orders")
        assert (log.info("orders").start, log.info("orders").end) == (1000, 1000)
        assert log.publish("orders", b"x").offset == 1000


def test_a_floor_outlives_the_process_that_was_told_it_and_never_falls(tmp_path: Path):
    """A table that has adopted this log knows the offsets of its former one."""
    with new_log(tmp_path) as log:
        log.publish("orders", b"a")
        assert log.configure("orders", {"floor": 7}).end == 7
        log.configure("orders", {"floor": 3})
    with open_log(tmp_path) as log:
        assert log.publish("orders", b"b").offset == 7
        for wrong in (-1, True, "9", 2**63):
            with pytest.raises(UsageError, match="floor"):
                log.configure("orders", {"floor": wrong})
        assert log.publish("orders", b"c").offset == 8
    with open_log(tmp_path) as log:
        assert messages_of(log) == {0: b"a", 7: b"b", 8: b"c"}


def test_an_older_copy_that_was_put_back_gives_out_no_offset_twice(tmp_path: Path):
    folder, aside = tmp_path / "log", tmp_path / "aside"
    with with_table(folder, None) as log:
        old = {log.publish("orders", b"old %d" % i).offset: b"old %d" % i for i in range(5)}
        epoch = log.info("orders").epoch
    shutil.copytree(folder, aside)
    with with_table(folder, 5) as log:
        for i in range(7):
            log.publish("orders", b"lost with the disk %d" % i)
    shutil.rmtree(folder)
    shutil.copytree(aside, folder)
    with with_table(folder, 9) as log:
        assert messages_of(log) == old
        new = {log.publish("orders", b"new %d" % i).offset: b"new %d" % i for i in range(3)}
        assert sorted(new) == [9, 10, 11]
        assert log.info("orders").epoch > epoch
        assert messages_of(log) == old | new
        assert log.info("orders").end == 12
    for floor in (9, 12, None):  # the gap is legal from now on, whatever the table says
        with with_table(folder, floor) as log:
            assert messages_of(log) == old | new
            assert messages_of(log, start=5) == new
            assert log.spans("orders", 5, 10**6, 1)[0].end == 12


def test_without_an_answer_from_the_table_no_offset_is_given_out(tmp_path: Path):
    def down(*_: object) -> int:
        raise UnavailableError("the catalog does not answer")

    with_table(tmp_path / "log", None).close()
    with Log.open(tmp_path / "log", floor=down) as log:
        with pytest.raises(UnavailableError, match="catalog"):
            log.publish("orders", b"x")
        assert log.info("orders").written == 0
    with Log.open(tmp_path / "log") as log, pytest.raises(UsageError, match="without a way to ask"):
        log.publish("orders", b"x")
    with with_table(tmp_path / "log", None) as log:
        assert log.publish("orders", b"x").offset == 0


def test_each_open_that_writes_has_a_new_epoch(tmp_path: Path):
    new_log(tmp_path / "log").close()
    epochs = []
    began = int(time.time())
    for _ in range(3):
        with open_log(tmp_path / "log") as log:
            log.publish("orders", b"x")
            epochs.append(log.info("orders").epoch)
    assert began <= epochs[0] < epochs[1] < epochs[2], "an older copy of the log would begin with another one"
    data, at, written = segments_of(tmp_path / "log")[0].read_bytes(), 0, []
    while at < len(data):
        header = unpack_header(data, at)
        written += [header.epoch] if header.count else []
        at += header.frame_size
    assert written == epochs, "the first frame of an open carries its epoch already"


# -- a crash while a segment is begun ------------------------------------------------------------------------------


@pytest.mark.parametrize("power", ["stays", "is cut"])
@pytest.mark.parametrize("call", ["open", "write", "sync", "sync_folder", "log.rotate.before", "log.rotate.after"])
def test_a_crash_at_any_step_of_a_rotation_is_mended_by_the_next_open(tmp_path: Path, call: str, power: str):
    class CrashError(BaseException):
        pass

    class Crashing(FaultyDisk):
        armed = False

        def _may_fail(self, name: str, path: Path) -> None:
            if self.armed and name == call and ("1.seg" in path.name or (name == "sync_folder")):
                raise CrashError
            super()._may_fail(name, path)

    disk = Crashing(tmp_path)
    log = new_log(tmp_path / "log", disk=disk)
    log.publish("orders", bytes(3000))

    def reached(step: str) -> None:
        if disk.armed and step == call:
            raise CrashError

    disk.armed = True
    with handled(reached), pytest.raises(CrashError):
        log.publish("orders", bytes(3000))
    disk.armed = False
    crash(log)
    if power == "is cut":
        disk.power_loss()
    with open_log(tmp_path / "log", disk=disk) as again:
        assert messages_of(again) == {0: bytes(3000)}
        assert again.publish("orders", bytes(3000)).offset == 1
        assert [int(p.stem) for p in segments_of(tmp_path / "log")] == [0, 1]
    with open_log(tmp_path / "log", disk=disk) as again:
        assert len(messages_of(again)) == 2


def test_a_log_that_cannot_note_its_owner_is_not_held_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As on a full disk: the next one who opens it, of this process or another, finds it free."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(UnavailableError, match="cannot be opened") as told:
        patch.setattr("frazil.log.owner.os.pwrite", full)
        open_log(tmp_path / "log")
    assert "No space left" in str(told.value.cause)
    open_log(tmp_path / "log").close()


def test_state_alone_does_not_begin_a_segment_for_every_change_of_it(tmp_path: Path):
    """Each would pass over an offset, and look to sinks like a log that was opened anew."""
    with new_log(tmp_path / "log") as log:
        for number in range(150):
            log.commit("orders", f"subscription-number-{number:05d}", 0)
        log.publish("orders", b"x")
        before = log.info("orders")
        for number in range(60):
            log.commit("orders", "subscription-number-00001", number)
        after = log.info("orders")
        assert after.segments - before.segments <= 3 and len(after.gaps) - len(before.gaps) <= 3
