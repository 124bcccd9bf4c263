"""`frazil.log.maintenance`, verify and repair: what is wrong is told with its place, and whole frames survive."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import LockedError, NotFoundError
from frazil.log import Log, decode_chunk
from frazil.log.frame import NewerVersionError, unpack_header
from frazil.log.maintenance.repair import repair_log
from frazil.log.maintenance.verify import verify_log
from frazil.log.recovery import DamagedError
from frazil.observe.faultpoints import handled
from frazil.settings.model import LogSettings

SMALL = LogSettings(max_file_size=4096, sync_mode="periodic")


def publish(folder: Path, count: int, *, first: int = 0, settings: LogSettings = SMALL) -> None:
    with Log.open(folder, settings) as log:
        log.create_topic("orders", exist_ok=True)
        for number in range(first, first + count):
            log.publish("orders", f"message {number:06d} {'x' * 80}".encode())


def contents(folder: Path) -> dict[int, bytes]:
    """Offset → payload of all that can be read."""
    with Log.open(folder, SMALL) as log:
        info = log.info("orders")
        tables = [decode_chunk(c, info.view) for c in log.chunks("orders", info.start)]
    rows = [row for t in tables for row in t.select(["offset", "payload"]).to_pylist()]
    assert [r["offset"] for r in rows] == sorted({r["offset"] for r in rows})
    return {r["offset"]: r["payload"] for r in rows}


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "topics" / "orders").glob("*.seg"))


def frames(path: Path) -> list[tuple[int, object]]:
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        header = unpack_header(data, at)
        found.append((at, header))
        at += header.frame_size
    return found


def spoil(path: Path, at: int, length: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for i in range(at, at + length):
        data[i] ^= 0x5A
    path.write_bytes(bytes(data))


def errors(folder: Path) -> list[tuple[str, str]]:
    return [(f.what, f.where) for f in verify_log(folder, "orders").findings if f.severity == "error"]


def test_a_sound_log_has_no_findings(tmp_path):
    publish(tmp_path, 100)
    report = verify_log(tmp_path, "orders")
    assert report.findings == [] and report.sound
    assert (report.start, report.end, report.messages, report.ranges) == (0, 100, 100, [(0, 100)])
    assert report.segments == len(segments(tmp_path)) > 2


def test_a_log_that_is_being_written_can_be_verified(tmp_path):
    with Log.open(tmp_path, SMALL) as log:
        log.create_topic("orders")
        for number in range(50):
            log.publish("orders", f"{number}".encode() * 40, level="disk")
        report = verify_log(tmp_path, "orders")
        assert report.open and report.sound and report.end == 50


def test_an_unknown_topic_is_told(tmp_path):
    publish(tmp_path, 1)
    with pytest.raises(NotFoundError):
        verify_log(tmp_path, "nothing")


def test_damage_is_told_with_file_bytes_and_offsets(tmp_path):
    publish(tmp_path, 100)
    middle = segments(tmp_path)[1]
    at, header = frames(middle)[3]
    spoil(middle, at + 90)
    (found,) = [f for f in verify_log(tmp_path, "orders").findings if f.severity == "error"]
    assert (found.what, found.where) == ("damaged", middle.name)
    assert found.bytes == (at, at + header.frame_size)
    assert found.offsets == (header.base_offset, header.base_offset + 1)


def test_a_torn_tail_is_a_warning_and_no_error(tmp_path):
    publish(tmp_path, 10)
    with segments(tmp_path)[-1].open("ab") as file:
        file.write(b"FRZLtorn")
    report = verify_log(tmp_path, "orders")
    assert report.sound and [f.what for f in report.findings] == ["torn"]


def test_a_missing_segment_in_the_middle_is_told(tmp_path):
    publish(tmp_path, 100)
    gone, after = segments(tmp_path)[1:3]
    gone.unlink()
    assert ("missing", after.name) in errors(tmp_path)


def test_a_missing_last_segment_is_told_by_the_mark(tmp_path):
    publish(tmp_path, 100)
    last = segments(tmp_path)[-1]
    last.unlink()
    assert errors(tmp_path) == [("missing", last.name)]


def test_a_spoiled_index_is_told_and_harms_nobody(tmp_path):
    publish(tmp_path, 100)
    index = segments(tmp_path)[0].with_suffix(".idx")
    spoil(index, 20)
    report = verify_log(tmp_path, "orders")
    assert report.sound and [(f.what, f.where) for f in report.findings] == [("index", index.name)]
    assert len(contents(tmp_path)) == 100


def test_a_spoiled_topic_file_is_told(tmp_path):
    publish(tmp_path, 1)
    (tmp_path / "topics" / "orders" / "topic.json").write_text("{")
    assert errors(tmp_path) == [("topic", "topic.json")]


@pytest.mark.parametrize("frame", [0, 1, 3, -1])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_repair_keeps_every_whole_frame(tmp_path, which, frame):
    """Whatever frame of whatever segment is damaged, the head of it too: only its own messages are lost."""
    publish(tmp_path, 100)
    before = contents(tmp_path)
    path = segments(tmp_path)[which]
    at, header = frames(path)[frame]
    spoil(path, at + 84)
    with pytest.raises(DamagedError):
        contents(tmp_path) if which == -1 else open_without_indexes(tmp_path)
    plan = repair_log(tmp_path, "orders", dry_run=True)
    done = repair_log(tmp_path, "orders", dry_run=False)
    assert plan.lost == done.lost == ([(header.base_offset, header.end_offset)] if header.count else [])
    lost = range(header.base_offset, header.end_offset)
    assert verify_log(tmp_path, "orders").sound
    assert contents(tmp_path) == {o: p for o, p in before.items() if o not in lost}
    kept = b"".join(p.read_bytes() for p in (tmp_path / "topics/orders/quarantine").iterdir())
    assert len(kept) == header.frame_size


def open_without_indexes(folder: Path) -> None:
    for index in (folder / "topics" / "orders").glob("*.idx"):
        index.unlink()
    contents(folder)


def test_offsets_that_were_given_out_are_not_given_out_again_after_a_repair(tmp_path):
    publish(tmp_path, 100)
    last = segments(tmp_path)[-1]
    last.write_bytes(last.read_bytes()[:200])
    done = repair_log(tmp_path, "orders", dry_run=False)
    assert done.lost[-1][1] == 100
    publish(tmp_path, 1, first=1000)
    assert max(contents(tmp_path)) >= 100
    assert verify_log(tmp_path, "orders").sound


def test_producers_keep_their_state_over_a_repair(tmp_path):
    from frazil.log import Batch

    with Log.open(tmp_path, SMALL) as log:
        log.create_topic("orders")
        me = log.register("orders", "billing")
        for sequence in range(60):
            batch = Batch.of_messages(
                [b"x" * 100], producer_id=me.producer_id, producer_epoch=me.producer_epoch, sequence=sequence
            )
            log.append("orders", batch)
    last = segments(tmp_path)[-1]
    at, _ = frames(last)[0]
    spoil(last, at + 84)
    repair_log(tmp_path, "orders", dry_run=False)
    with Log.open(tmp_path, SMALL) as log:
        again = log.append("orders", batch)
        assert again.duplicate and again.offset == 59


def test_lost_segments_are_listed_and_the_rest_opens(tmp_path):
    publish(tmp_path, 100)
    before = contents(tmp_path)
    gone, after = segments(tmp_path)[1:3]
    lost = range(int(gone.stem), int(after.stem))
    gone.unlink()
    assert repair_log(tmp_path, "orders", dry_run=False).lost == [(lost.start, lost.stop)]
    assert contents(tmp_path) == {o: p for o, p in before.items() if o not in lost}
    assert verify_log(tmp_path, "orders").sound


def test_a_plan_changes_nothing(tmp_path):
    publish(tmp_path, 100)
    spoil(segments(tmp_path)[1], 300)
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file() and p.name != "LOCK"}
    assert repair_log(tmp_path, "orders", dry_run=True).files
    assert before == {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file() and p.name != "LOCK"}


def test_an_open_log_is_not_repaired(tmp_path):
    publish(tmp_path, 1)
    with Log.open(tmp_path, SMALL), pytest.raises(LockedError):
        repair_log(tmp_path, "orders", dry_run=True)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("step", range(6))
def test_a_repair_that_breaks_off_can_be_repeated(tmp_path, step):
    publish(tmp_path, 100)
    before = contents(tmp_path)
    path = segments(tmp_path)[1]
    at, header = frames(path)[3]
    spoil(path, at + 84)
    seen = []

    def crash(name: str) -> None:
        seen.append(name)
        if len(seen) == step + 1:
            raise Crash

    with handled(crash), pytest.raises(Crash):
        repair_log(tmp_path, "orders", dry_run=False)
        raise Crash
    repair_log(tmp_path, "orders", dry_run=False)
    assert verify_log(tmp_path, "orders").sound
    assert contents(tmp_path) == {o: p for o, p in before.items() if o != header.base_offset}


@pytest.mark.parametrize("seed", range(30))
def test_whatever_bytes_are_flipped_the_repaired_log_opens_and_tells_its_losses(tmp_path, seed):
    publish(tmp_path, 60)
    before = contents(tmp_path)
    random_ = random.Random(seed)
    for _ in range(random_.randint(1, 4)):
        path = random_.choice(segments(tmp_path))
        size = path.stat().st_size
        spoil(path, random_.randrange(size - 20), random_.randint(1, 20))
    lost = {o for a, b in repair_log(tmp_path, "orders", dry_run=False).lost for o in range(a, b)}
    after = contents(tmp_path)
    assert after.items() <= before.items()
    assert before.keys() - after.keys() == lost
    assert verify_log(tmp_path, "orders").sound


def make_newer(path: Path, at: int) -> None:
    """As if a later version of Frazil had written the frame at a position."""
    data = bytearray(path.read_bytes())
    data[at + 4] = 9
    data[at + 76 : at + 80] = struct.pack("<I", zlib.crc32(data[at : at + 76]))
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damaged_before", [False, True])
def test_what_a_newer_frazil_has_written_is_never_repaired_away(tmp_path: Path, damaged_before: bool):
    publish(tmp_path, 100)
    path = segments(tmp_path)[-1]
    places = [at for at, _ in frames(path)]
    make_newer(path, places[-2])
    if damaged_before:
        spoil(path, places[-3] + 100)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for look in (lambda: verify_log(tmp_path, "orders"), lambda: repair_log(tmp_path, "orders", dry_run=False)):
        with pytest.raises(NewerVersionError, match=f"written by a newer Frazil; .*{path.name}") as told:
            look()
        assert "version 9" in str(told.value.cause) and "newer Frazil" in str(told.value.hint)
    after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "LOCK"}
    assert after == {p: content for p, content in before.items() if p.name != "LOCK"}


def test_a_message_that_holds_a_frame_of_another_newer_log_does_not_stop_a_repair(tmp_path: Path):
    publish(tmp_path / "other", 1)
    other = segments(tmp_path / "other")[0]
    at, _ = frames(other)[-1]
    make_newer(other, at)
    with Log.open(tmp_path / "log", SMALL) as log:
        log.create_topic("orders")
        for payload in (b"a", (other.read_bytes()[at:] + b"x") * 8, b"c"):  # one of the eight is aligned
            log.publish("orders", payload)
    path = segments(tmp_path / "log")[0]
    places = [at for at, header in frames(path) if header.count]
    spoil(path, places[1])  # so that what stands inside of the message is searched for frames
    repair_log(tmp_path / "log", "orders", dry_run=False)
    assert set(contents(tmp_path / "log").values()) == {b"a", b"c"}


def test_a_chunk_of_a_newer_frazil_is_told_as_such(tmp_path: Path):
    publish(tmp_path, 3)
    path = segments(tmp_path)[0]
    with Log.open(tmp_path, SMALL) as log:
        info, chunk = log.info("orders"), next(log.chunks("orders", 0))
    make_newer(path, frames(path)[-1][0])
    newer = replace(chunk, data=pa.py_buffer(path.read_bytes()))
    with pytest.raises(NewerVersionError):
        decode_chunk(newer, info.view)


def test_a_newer_frame_behind_a_torn_one_stops_the_topic_and_not_the_others(tmp_path: Path):
    publish(tmp_path, 3)
    path = segments(tmp_path)[-1]
    places = [at for at, _ in frames(path)]
    make_newer(path, places[-1])
    spoil(path, places[-2] + 100)
    (path.parent / "synced").unlink()
    with Log.open(tmp_path, SMALL) as log:
        log.create_topic("payments")
        with pytest.raises(NewerVersionError):
            log.info("orders")
        assert ["newer Frazil" in str(info.problem) for info in log.topics()] == [True, False]
