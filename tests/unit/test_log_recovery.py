"""What a crash or a bad disk leaves behind: torn is cut and kept, damage is told, and nothing is ever guessed."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.errors import FrazilError, IntegrityError, UnsupportedError
from frazil.log import Batch, Level, decode_chunk, reading
from frazil.log.disk import Disk
from frazil.log.frame import HEADER_SIZE, Header, Kind, pack_header, padding, unpack_header
from frazil.log.protocol import TopicView
from frazil.log.recovery import DamagedError
from frazil.log.segment import Segment, segment_ids
from frazil.log.synced_mark import SyncedMark, SyncedMarkFile, read_synced_mark
from frazil.log.topic import TopicLog
from frazil.log.topic_file import TopicFile
from tests.log_kit import crash, messages_of, new_log, open_log, segments_of, settings

LOG_ID = "00112233445566778899aabbccddeeff"
NUMBER = int(LOG_ID[:16], 16)
SHM = Path("/dev/shm")
SEGMENTS = [f"{first:020d}.seg" for first in (0, 3, 6, 13)]
INDEXES = [name.replace("seg", "idx") for name in SEGMENTS[:-1]]
#: Bytes of the mark's two slots; between them there is nothing.
SLOTS = [*range(48), *range(4096, 4144)]


class NoSync(Disk):
    """These tests open a log thousands of times; what a sync does is tested elsewhere."""

    def sync(self, fd: int) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...


@dataclass
class Sample:
    files: dict[str, bytes]
    messages: dict[int, bytes]
    producer: int

    @property
    def last(self) -> str:
        return max(name for name in self.files if name.endswith(".seg"))

    def put(self, folder: Path) -> Path:
        return self.with_file(folder)

    def with_file(self, folder: Path, name: str = "", content: bytes | None = None) -> Path:
        """The sample, but for one file."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for each, its in self.files.items():
            made = content if each == name else its
            if made is not None:
                (folder / each).write_bytes(made)
        return folder

    def frames(self, name: str) -> list[tuple[int, Header]]:
        data, at, found = self.files[name], 0, []
        while at < len(data):
            header = unpack_header(data, at)
            found.append((at, header))
            at += header.frame_size
        return found

    def padding_of(self, name: str) -> set[int]:
        """Positions of the bytes behind the bodies, which say nothing."""
        frames = self.frames(name)
        return {at for begin, h in frames for at in range(begin + HEADER_SIZE + h.body_size, begin + h.frame_size)}


def open_topic(folder: Path) -> TopicLog:
    return TopicLog("orders", folder, LOG_ID, settings(), disk=NoSync())


def read_all(topic: TopicLog) -> dict[int, bytes]:
    view = TopicView("orders", "here", topic.state.extra)
    columns = ["offset", "payload"]
    tables = [decode_chunk(c, view, columns=columns) for c in reading.chunks(topic, topic.start)]
    rows = [(o, p) for t in tables for o, p in zip(t["offset"].to_pylist(), t["payload"].to_pylist(), strict=True)]
    assert [o for o, _ in rows] == sorted({o for o, _ in rows})
    return dict(rows)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Four segments of a few hundred bytes, with every kind of frame; the process was killed."""
    folder = tmp_path_factory.mktemp("sample") / "orders"
    folder.mkdir()
    topic = open_topic(folder)
    messages: dict[int, bytes] = {}

    def keep(offset: int, *payloads: bytes) -> None:
        messages.update(enumerate(payloads, offset))

    who = topic.register("billing")
    producer = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    for sequence in range(5):
        topic.files._max_file_size = 0 if sequence in (1, 2, 4) else 6000
        keep(topic.publish(b"single %d" % sequence, sequence).offset, b"single %d" % sequence)
        topic.files._max_file_size = 6000
        two = [b"two %d" % sequence, b""]
        keep(topic.append(Batch.of_messages(two, [7, None], sequence=sequence, **producer)).offset, *two)
        if sequence == 3:
            own = pa.record_batch({"payload": pa.array([b"own"]), "price": pa.array([5])})
            keep(topic.append(Batch.of_arrow(own)).offset, b"own")
    topic.commit("reader", 3)
    keep(topic.publish(b"the last").offset, b"the last")
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    files[topic.files.active.path.name] = files[topic.files.active.path.name][: topic.files.active.size]
    topic.close()
    assert sorted(files) == sorted([*SEGMENTS, *INDEXES, "synced"])
    assert not files["synced"][48:4096].strip(b"\0")
    return Sample(files, messages, who.producer_id)


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: some of these tests write thousands of small folders."""
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as made:
        yield Path(made) / "orders"


def outcome(folder: Path) -> dict[int, bytes] | FrazilError:
    """All messages, or the error of Frazil's own that opening or reading gives."""
    try:
        topic = open_topic(folder)
    except IntegrityError as error:
        return error
    try:
        assert topic.epoch >= 1
        return read_all(topic)
    except IntegrityError as error:
        return error
    finally:
        topic.files.close()


def named_bytes(error: FrazilError) -> range | None:
    found = re.search(r"bytes ([\d,]+) to ([\d,]+)", error.message)
    return range(*(int(n.replace(",", "")) for n in found.groups())) if found else None


# -- every byte ----------------------------------------------------------------------------------------------------


def test_the_sample_is_whole(sample: Sample, folder: Path):
    assert outcome(sample.put(folder)) == sample.messages


@pytest.mark.parametrize("name", SEGMENTS)
def test_every_flipped_byte_is_told_and_never_changes_or_hides_a_message(sample: Sample, folder: Path, name: str):
    chance = random.Random(4)
    content, padded = sample.files[name], sample.padding_of(name)
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        got = outcome(sample.with_file(folder, name, bytes(flipped)))
        if at in padded:
            assert got == sample.messages, at
            continue
        assert isinstance(got, FrazilError), at
        assert name.removesuffix(".seg") in got.message, (at, got.message)
        span = named_bytes(got)
        assert span is None or at in span, (at, got.message)


@pytest.mark.parametrize("name", [*INDEXES, "synced"])
def test_every_flipped_byte_of_an_index_or_of_the_mark_is_harmless(sample: Sample, folder: Path, name: str):
    chance = random.Random(4)
    for at in SLOTS if name == "synced" else range(len(sample.files[name])):
        flipped = bytearray(sample.files[name])
        flipped[at] ^= 1 << chance.randrange(8)
        assert outcome(sample.with_file(folder, name, bytes(flipped))) == sample.messages, at


@pytest.mark.parametrize("name", SEGMENTS)
def test_every_truncation_below_the_mark_is_told_with_what_is_missing(sample: Sample, folder: Path, name: str):
    content = sample.files[name]
    after = min((n for n in SEGMENTS if n > name), default="nothing")
    last, header = sample.frames(name)[-1]
    for size in range(len(content)):
        got = outcome(sample.with_file(folder, name, content[:size]))
        if size >= last + HEADER_SIZE + header.body_size:
            assert got == sample.messages, "only padding is gone"
            continue
        assert isinstance(got, DamagedError), size
        assert name in got.message or f"before {after} is missing" in got.message, size


@pytest.mark.parametrize("name", [*INDEXES, "synced"])
def test_every_truncated_or_missing_index_or_mark_is_made_again(sample: Sample, folder: Path, name: str):
    content = sample.files[name]
    assert outcome(sample.with_file(folder, name, None)) == sample.messages
    for size in [*SLOTS, *range(48, 4097, 512)] if name == "synced" else range(len(content)):
        assert outcome(sample.with_file(folder, name, content[:size])) == sample.messages, size


def test_every_length_of_a_torn_tail_is_cut_at_the_last_whole_frame_and_kept(sample: Sample, folder: Path):
    """A power cut: the mark is old, and of the last segment only some bytes came to the disk."""
    last, data = sample.last, sample.files[sample.last]
    frames = sample.frames(last)
    del frames[0]
    for size in range(frames[0][0], len(data)):
        sample.put(folder)
        (folder / last).write_bytes(data[:size])
        (folder / "synced").unlink()
        # A frame of which only padding is missing is whole: it is padded again.
        torn = next((at for at, h in frames if size < at + HEADER_SIZE + h.body_size), len(data))
        end = next((h.base_offset for at, h in frames if at == torn), max(sample.messages) + 1)
        for _ in range(2 if size % 8 == 5 else 1):
            topic = open_topic(folder)
            assert topic.end == topic.next_offset == end, size
            if size % 8 in (0, 5):
                assert read_all(topic) == {o: p for o, p in sample.messages.items() if o < end}
            assert (folder / last).stat().st_size == torn
            topic.files.close()
        kept = [p.read_bytes() for p in folder.glob("quarantine/*")]
        assert kept == ([data[torn:size]] if data[torn:size].strip(b"\0") else [])


def test_a_torn_middle_of_the_last_group_is_torn_although_valid_frames_follow(folder: Path):
    """One group is one write: pages of it come to the disk in any order."""
    folder.mkdir()
    topic = open_topic(folder)
    topic.publish(b"safe")
    size = topic.files.active.size
    end = topic.end
    topic.writer.group.renew(topic.end, topic.writer.now())
    for payload in (b"one", b"two", b"three"):
        topic.writer.group.add_batch(_entry(), Batch.of_messages([payload]))
    topic.writer.write()
    data = bytearray(topic.files.active.path.read_bytes()[: topic.files.active.size])
    topic.files.close()
    data[size + 10] ^= 1
    (folder / "00000000000000000000.seg").write_bytes(data)
    again = open_topic(folder)
    assert (again.end, read_all(again)) == (end, {0: b"safe"})
    assert [p.read_bytes() for p in folder.glob("quarantine/*")] == [bytes(data[size:])]
    assert again.publish(b"next").offset == 1
    again.close()


def _entry():
    from frazil.log.group import Entry

    return Entry(Level.os)


def test_a_bad_frame_is_damage_if_a_later_one_says_it_was_on_disk_even_without_a_mark(sample: Sample, folder: Path):
    last = sample.last
    frames = sample.frames(last)
    for number, (at, header) in enumerate(frames[:-1]):
        later = [h for _, h in frames[number + 1 :] if h.synced > header.base_offset]
        data = bytearray(sample.files[last])
        data[at + HEADER_SIZE] ^= 1
        sample.with_file(folder, last, bytes(data))
        (folder / "synced").unlink()
        if not later:
            continue
        with pytest.raises(DamagedError, match=f"offsets from {header.base_offset} on") as told:
            open_topic(folder)
        assert at in named_bytes(told.value)


def test_damage_is_told_again_and_nothing_is_changed_by_looking(sample: Sample, folder: Path):
    data = bytearray(sample.files[sample.last])
    data[len(data) // 2] ^= 1
    sample.with_file(folder, sample.last, bytes(data))
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    for _ in range(2):
        with pytest.raises(DamagedError, match="offsets from"):
            open_topic(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_zeros_after_the_end_are_cut_without_a_word(sample: Sample, folder: Path):
    sample.put(folder)
    (folder / sample.last).write_bytes(sample.files[sample.last] + bytes(5000))
    assert outcome(folder) == sample.messages
    assert not (folder / "quarantine").exists()
    assert (folder / sample.last).stat().st_size == len(sample.files[sample.last])


def test_garbage_after_the_end_is_kept_and_the_next_message_takes_its_place(sample: Sample, folder: Path):
    sample.put(folder)
    garbage = b"\0\0\0garbage" * 9
    (folder / sample.last).write_bytes(sample.files[sample.last] + garbage)
    topic = open_topic(folder)
    assert [p.read_bytes() for p in folder.glob("quarantine/*")] == [garbage]
    assert topic.files.notes and "90 torn bytes" in topic.files.notes[0]
    assert topic.publish(b"next").offset == max(sample.messages) + 1
    topic.close()
    assert outcome(folder) == {**sample.messages, max(sample.messages) + 1: b"next"}


def test_what_was_known_is_known_again(sample: Sample, folder: Path):
    topic = open_topic(sample.put(folder))
    assert topic.state.subscriptions == {"reader": 3}
    assert topic.state.extra == pa.schema([("price", pa.int64())])
    assert topic.state.names == {sample.producer: "billing"}
    again = Batch.of_messages([b"two 4", b""], [7, None], producer_id=sample.producer, sequence=4)
    assert topic.append(again).duplicate
    topic.close()


# -- whole files ---------------------------------------------------------------------------------------------------


def test_a_lost_segment_is_told_wherever_it_was(sample: Sample, folder: Path):
    names = sorted(n for n in sample.files if n.endswith(".seg"))
    for name in names[1:]:
        got = outcome(sample.with_file(folder, name, None))
        assert isinstance(got, DamagedError), name
    middle = outcome(sample.with_file(folder, names[1], None))
    lost = (int(names[1][:20]), int(names[2][:20]))
    assert f"offsets {lost[0]} to {lost[1]}" in middle.message
    last = outcome(sample.with_file(folder, names[-1], None))
    assert names[-1] in last.message


def test_a_lost_first_segment_is_what_retention_does(sample: Sample, folder: Path):
    names = sorted(n for n in sample.files if n.endswith(".seg"))
    sample.put(folder)
    (folder / names[0]).unlink()
    first = int(names[1][:20])
    assert outcome(folder) == {o: p for o, p in sample.messages.items() if o >= first}
    assert not (folder / names[0].replace("seg", "idx")).exists(), "an index without its segment goes too"


def test_an_index_of_another_time_is_not_believed(sample: Sample, folder: Path):
    names = sorted(n for n in sample.files if n.endswith(".idx"))
    sample.put(folder)
    (folder / names[0]).write_bytes(sample.files[names[1]])
    assert outcome(folder) == sample.messages


def test_the_files_of_another_log_are_not_taken_for_torn_ones(sample: Sample, folder: Path):
    """As when topic.json was lost, and made anew: not one byte may be put aside for that."""
    sample.put(folder)
    with pytest.raises(DamagedError, match="damaged") as told:
        TopicLog("orders", folder, "ff" * 16, settings(), disk=NoSync())
    assert "another log" in (told.value.cause or "")
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == sample.files


def test_a_newer_frame_is_refused_and_not_cut(sample: Sample, folder: Path):
    name = sample.last
    at, header = sample.frames(name)[-1]
    newer = bytearray(pack_header(header))
    newer[4] = 9
    newer[76:80] = struct.pack("<I", zlib.crc32(newer[:76]))
    content = sample.files[name][:at] + bytes(newer) + sample.files[name][at + HEADER_SIZE :]
    sample.with_file(folder, name, content)
    (folder / "synced").unlink()
    with pytest.raises(UnsupportedError, match="newer Frazil"):
        open_topic(folder)
    assert (folder / name).read_bytes() == content


def test_a_segment_that_a_crash_left_half_begun_is_dropped_and_begun_again(sample: Sample, folder: Path):
    names = sorted(n for n in sample.files if n.endswith(".seg"))
    head = sample.frames(sample.last)[0][1].frame_size
    before = {o: p for o, p in sample.messages.items() if o < int(names[-1][:20])}
    for size in range(head):
        sample.put(folder)
        (folder / "synced").unlink()
        (folder / names[-1]).write_bytes(sample.files[names[-1]][:size])
        (folder / names[-2].replace("seg", "idx")).unlink()
        topic = open_topic(folder)
        assert read_all(topic) == before, size
        assert topic.publish(b"x" * 800).offset == int(names[-1][:20])
        topic.files.close()


# -- topic.json, the mark ------------------------------------------------------------------------------------------


def test_every_flipped_byte_of_topic_json_is_harmless_or_told(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        log.configure("orders", {"storage": "iceberg", "sinks": ["content"], "retention_age_s": 86400})
    path = tmp_path / "log" / "topics" / "orders" / "topic.json"
    content, right = path.read_bytes(), TopicFile.read(path.parent)
    chance = random.Random(4)
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        path.unlink()
        path.write_bytes(flipped)
        try:
            assert TopicFile.read(path.parent) == right
        except (IntegrityError, UnsupportedError):
            continue
    for size in range(len(content)):
        path.unlink()
        path.write_bytes(content[:size])
        with pytest.raises(IntegrityError, match=r"topic\.json is damaged"):
            TopicFile.read(path.parent)


def test_a_topic_of_a_newer_format_is_refused_and_the_others_go_on(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        log.create_topic("other")
    path = tmp_path / "log" / "topics" / "orders" / "topic.json"
    content = {k: v for k, v in json.loads(path.read_bytes()).items() if k != "crc"} | {"format": 2}
    crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps(content | {"crc": crc}))
    with open_log(tmp_path / "log") as log:
        with pytest.raises(UnsupportedError, match="has format 2"):
            log.publish("orders", b"x")
        assert log.publish("other", b"x").offset == 0
        assert [bool(t.problem) for t in log.topics()] == [True, False]


def test_a_damaged_topic_is_listed_with_its_problem_and_the_others_go_on(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        log.publish("orders", b"x")
        log.create_topic("other")
    segment = segments_of(tmp_path / "log")[0]
    data = bytearray(segment.read_bytes())
    data[-9] ^= 1
    segment.write_bytes(data)
    with open_log(tmp_path / "log") as log:
        broken, fine = log.topics()
        assert "damaged" in (broken.problem or "")
        assert fine.problem is None
        with pytest.raises(DamagedError):
            log.publish("orders", b"y")


def test_messages_without_their_topic_json_are_not_overwritten_by_a_new_topic(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        log.publish("orders", b"x")
    path = tmp_path / "log" / "topics" / "orders" / "topic.json"
    kept = path.read_bytes()
    path.unlink()
    with open_log(tmp_path / "log") as log:
        with pytest.raises(IntegrityError, match=r"topic.json is missing"):
            log.create_topic("orders")
        path.write_bytes(kept)
        assert messages_of(log) == {0: b"x"}


@pytest.fixture
def mark_file(tmp_path: Path) -> Iterator[SyncedMarkFile]:
    made = SyncedMarkFile(tmp_path / "synced", NUMBER, Disk())
    yield made
    made.close()


def test_the_newest_mark_is_read_and_a_torn_one_falls_back_to_the_one_before(tmp_path: Path, mark_file: SyncedMarkFile):
    path = tmp_path / "synced"
    assert read_synced_mark(path, NUMBER) is None
    for n in range(1, 6):
        mark_file.write(SyncedMark(0, n * 100, n))
        assert read_synced_mark(path, NUMBER) == SyncedMark(0, n * 100, n)
    assert read_synced_mark(path, NUMBER + 1) is None, "the mark of another log says nothing"
    content = bytearray(path.read_bytes())
    content[4096 + 20] ^= 1
    path.write_bytes(content)
    assert read_synced_mark(path, NUMBER) == SyncedMark(0, 400, 4)


def test_a_mark_that_could_not_be_written_leaves_the_last_good_one_alone(tmp_path: Path, monkeypatch):
    class Full(Disk):
        full = False

        def write(self, fd: int, data: bytes | memoryview, at: int) -> None:
            super().write(fd, bytes(data)[:20] if self.full else data, at)
            if self.full:
                raise OSError(28, "No space left on device")

    disk = Full()
    made = SyncedMarkFile(tmp_path / "synced", NUMBER, disk)
    made.write(SyncedMark(0, 100, 1))
    disk.full = True
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            made.write(SyncedMark(0, 200, 2))
        assert read_synced_mark(tmp_path / "synced", NUMBER) == SyncedMark(0, 100, 1)
    made.close()


def test_the_index_brings_back_all_that_is_known_of_a_segment(sample: Sample, folder: Path):
    sample.put(folder)
    for segment_id in segment_ids(folder)[:-1]:
        by_index = Segment.from_index(folder, segment_id)
        assert by_index is not None
        scanned = Segment(folder, segment_id)
        for _, header in sample.frames(by_index.path.name):
            scanned.add_frame(header)
        assert vars(by_index) == vars(scanned)


def test_a_frame_with_a_gap_before_it_is_no_part_of_the_log(sample: Sample, folder: Path):
    _, header = sample.frames(sample.last)[-1]
    body = Batch.of_messages([b"later"])
    wrong = header._replace(
        kind=Kind.packed, base_offset=header.end_offset + 5, body_size=len(body.body), body_crc=body.crc, count=1
    )
    content = sample.files[sample.last] + pack_header(wrong) + bytes(body.body) + padding(len(body.body))
    topic = open_topic(sample.with_file(folder, sample.last, content))
    assert read_all(topic) == sample.messages
    assert len(list(folder.glob("quarantine/*"))) == 1
    topic.close()


def test_a_crash_of_the_process_keeps_what_was_only_handed_to_the_operating_system(tmp_path: Path):
    log = new_log(tmp_path / "log", sync_mode="periodic")
    for i in range(10):
        log.publish("orders", b"%d" % i)
    crash(log)
    with open_log(tmp_path / "log") as again:
        assert messages_of(again) == {i: b"%d" % i for i in range(10)}
        assert again.info("orders").end == 10
