"""The engine of extraction without processes and servers: registry, items, folders, thumbnails, messages."""

from __future__ import annotations

import errno
import io
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from frazil.content.extraction.sources import BucketSource, FileSource, open_source
from frazil.content.extraction.task import ExtractionReport, ResultPublisher
from frazil.content.scan.folder import etag as folder_etag
from frazil.content.thumbnails import ThumbnailStore, ThumbnailWriter, thumbnail_key, thumbnails_uri
from frazil.errors import UsageError
from frazil.extract import Extractor, Limits, TooMuch, Unsupported, extractor
from frazil.extract.engine.isolation import ObjectResult, WorkerLane
from frazil.extract.engine.item import BLOCK, ObjectItem
from frazil.extract.engine.run_extractors import SUSPECT, _describe, run_extractors
from frazil.extract.engine.source import ObjectChanged, ObjectGone, ObjectRef, RangeBeyondEnd, StorageError
from frazil.extract.engine.wire import (
    READING,
    RUNNING,
    FrameDecoder,
    Job,
    StatusBoard,
    StatusMarker,
    ThreadStatus,
    WorkerConfig,
    encode_frame,
)
from frazil.extract.registry import BUILT_IN, GROUP, TYPE, extractors, load, registry
from frazil.settings import load_settings
from frazil.settings.model import NetworkSettings, S3Settings

# -- registry ----------------------------------------------------------------------------------------------------------


def test_every_built_in_extractor_can_be_loaded_and_the_type_comes_first():
    found = load(BUILT_IN, ())
    assert found.broken == {}
    assert len(found.found) == len(BUILT_IN) and next(iter(found.found)) == TYPE


PLUGIN = """
from frazil.extract import Extractor, extractor

@extractor("fine", version="2", types=["text/*"])
def fine(item):
    "Says fine."
    return {}

@extractor("exif")
def taken(item):
    return {}

@extractor("no good")
def misnamed(item):
    return {}

def plain(item):
    return {}

untyped = Extractor("untyped", "1", "text/*", plain)
unversioned = Extractor("unversioned", 1, ("text/*",), plain)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[EntryPoint]]:
    (tmp_path / "a_plugin.py").write_text(PLUGIN)
    (tmp_path / "a_broken_plugin.py").write_text("import no_such_module_at_all")
    (tmp_path / "a_leaving_plugin.py").write_text("raise SystemExit(3)")
    (tmp_path / "a_lacking_plugin.py").write_text(
        PLUGIN + '\ndef available():\n    return "frazil[labels] is missing"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("a_plugin", "a_broken_plugin", "a_leaving_plugin", "a_lacking_plugin")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda *values: [EntryPoint(value.replace(":", "_"), value, GROUP) for value in values]


def test_a_plugin_is_found_by_its_entry_point(plugin: Callable[..., list[EntryPoint]]):
    found = load(BUILT_IN[:1], plugin("a_plugin:fine"))
    assert list(found.found) == [TYPE, "fine"]
    assert found.found["fine"].extractor.doc == "Says fine."


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a_broken_plugin:thing", "No module named 'no_such_module_at_all'"),
        ("a_leaving_plugin:thing", "SystemExit: 3"),
        ("a_plugin:absent", "has no attribute 'absent'"),
        ("a_plugin:plain", "plain is function, not an Extractor"),
        ("a_plugin:taken", "the name 'exif' is taken by frazil.extract.images"),
        ("a_plugin:misnamed", "'no good' is not a valid name"),
        ("a_plugin:untyped", "are not media types"),
        ("a_plugin:unversioned", "its version 1 is not a string"),
    ],
)
def test_a_broken_plugin_loses_only_itself(
    plugin: Callable[..., list[EntryPoint]], value: str, why: str, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        found = load(BUILT_IN, plugin(value, "a_plugin:fine"))
    assert len(found.found) == len(BUILT_IN) + 1 and "fine" in found.found
    ((source, reason),) = found.broken.items()
    assert value in source and why in reason
    assert value in caplog.text and why in caplog.text


def test_what_is_not_installed_does_not_run_by_default_and_says_why_when_it_is_named(
    plugin: Callable[..., list[EntryPoint]],
):
    found = load(BUILT_IN[:1], plugin("a_lacking_plugin:fine"))
    assert [e.name for e in found.choose()] == [TYPE]
    with pytest.raises(UsageError) as raised:
        found.choose(["fine"])
    assert raised.value.cause == "frazil[labels] is missing" and raised.value.hint == "pip install 'frazil[labels]'"


def test_an_unknown_name_is_told_with_the_nearest_ones():
    with pytest.raises(UsageError) as raised:
        registry().choose(["exf"])
    assert "there is no extractor 'exf'" in raised.value.message and "exif" in (raised.value.hint or "")


def test_the_settings_choose_extractors_and_names_win_over_them(tmp_path: Path):
    settings = load_settings(flags={"home": str(tmp_path), "content.extract.extractors": "exif, type"}, environ={})
    assert [e.name for e in extractors(settings)] == ["type", "exif"]
    assert [e.name for e in extractors(settings, ["image"])] == ["image"]
    every = load_settings(flags={"home": str(tmp_path)}, environ={})
    assert {"type", "image", "exif"} <= {e.name for e in extractors(every)}
    assert all(e.default for e in extractors(every))


# -- items -------------------------------------------------------------------------------------------------------------


class Bytes:
    """A source that notes what is asked of it."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data, self.error = data, error
        self.asked: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> bytes:
        self.asked.append((start, end))
        if self.error is not None:
            raise self.error
        return self.data[start:end]

    def total(self) -> int:
        return len(self.data)

    def check(self) -> None: ...

    def close(self) -> None: ...


def item_of(data: bytes, limits: Limits | None = None, error: Exception | None = None) -> tuple[ObjectItem, Bytes]:
    source = Bytes(data, error)
    return ObjectItem(ObjectRef("b", "k", size=len(data)), None, lambda: source, limits or Limits()), source


DATA = os.urandom(300_000)


def test_a_header_costs_one_request_of_one_block_however_often_it_is_read():
    item, source = item_of(DATA)
    assert item.head() == DATA[:4096] and item.read(100, 50) == DATA[100:150] and item.head(BLOCK) == DATA[:BLOCK]
    assert source.asked == [(0, BLOCK)] and item.bytes_read == BLOCK


def test_blocks_grow_while_reading_goes_on_so_that_requests_are_few():
    item, source = item_of(DATA)
    with item.open() as file:
        while file.read(1000):
            pass
        assert file.tell() == len(DATA)
    sizes = [end - start for start, end in source.asked]
    assert sizes[:4] == [BLOCK, 2 * BLOCK, 4 * BLOCK, 8 * BLOCK] and sum(sizes) == len(DATA) == item.bytes_read


def test_a_jump_reads_a_block_there_and_not_what_lies_between():
    item, source = item_of(DATA)
    item.head()
    with item.open() as file:
        file.seek(-22, os.SEEK_END)
        assert file.read() == DATA[-22:]
        file.seek(150_001)
        assert file.read(7) == DATA[150_001:150_008]
    assert len(source.asked) == 3 and item.bytes_read < 4 * BLOCK


def test_any_sequence_of_reads_gives_the_same_bytes_as_the_object_has():
    import random

    for seed in range(50):
        rng = random.Random(seed)
        data = DATA[: rng.choice([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 100_000, len(DATA)])]
        item, source = item_of(data)
        for _ in range(30):
            start, length = rng.randrange(len(data) + 10), rng.randrange(0, 50_000)
            assert item.read(start, length) == data[start : start + length]
        assert item.whole() == data
        covered = sorted(source.asked)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(covered)), "nothing is read twice"


def test_what_is_expected_as_a_whole_comes_with_one_request():
    item, source = item_of(DATA)
    item.expect_whole()
    assert item.head() == DATA[:4096] and item.whole() == DATA
    assert source.asked == [(0, len(DATA))]


def test_an_object_beyond_the_limits_is_not_read():
    item, source = item_of(DATA, Limits(max_bytes=1000, max_range_bytes=2 * BLOCK))
    with pytest.raises(TooMuch, match="300,000 bytes; at most 1,000"):
        item.whole()
    item.allow("ranges")
    item.head()
    with pytest.raises(TooMuch, match="more than 32,768 bytes"):
        item.read(100_000, 2 * BLOCK)
    item.allow("ranges")
    assert item.read(100_000, 10) == DATA[100_000:100_010], "another extractor has its own allowance"
    assert item.bytes_read <= 2 * BLOCK and len(source.asked) == 2


def test_an_unknown_size_is_asked_for_and_an_empty_object_is_never_asked():
    source = Bytes(b"abc")
    item = ObjectItem(ObjectRef("b", "k"), None, lambda: source, Limits())
    assert (item.size, item.whole()) == (3, b"abc")
    empty, asked = item_of(b"")
    assert (empty.head(), empty.whole(), empty.open().read(), asked.asked) == (b"", b"", b"", [])


def test_a_large_object_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("frazil.extract.engine.item._MAX_CACHED", 4 * BLOCK)
    item, _ = item_of(DATA, Limits(max_range_bytes=10**9))
    for start in range(0, len(DATA), BLOCK):
        item.read(start, BLOCK)
        assert sum(map(len, item._blocks)) <= 12 * BLOCK
    assert item.read(0, 10) == DATA[:10] and item.read(150_000, 10) == DATA[150_000:150_010]


# -- files of folders --------------------------------------------------------------------------------------------------


def wanted_of(root: Path, key: str, **more: Any) -> ObjectRef:
    path = root / key
    found = path.lstat() if path.is_symlink() or path.exists() else None
    etag = None if found is None else folder_etag(found.st_mtime_ns, found.st_size)
    return ObjectRef(f"file://{root}", key, **{"etag": etag, **more})


def test_a_file_is_read_by_ranges(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(DATA)
    source = FileSource(wanted_of(tmp_path, "a/b"))
    assert source.fetch(10, 20) == DATA[10:20] and source.fetch(len(DATA) - 5, len(DATA) + 5) == DATA[-5:]
    assert source.total() == len(DATA)
    source.check()
    source.close()


def test_what_is_no_file_inside_the_folder_is_never_opened(tmp_path: Path):
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real/file").write_text("x")
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    for key in ("link", "folder/secret", "../secret", "real/../../secret", "fifo", "real", "/etc/passwd", "a\0b", ""):
        with pytest.raises(ObjectGone):
            FileSource(ObjectRef(f"file://{root}", key))
    FileSource(ObjectRef(f"file://{root}", "real/file")).close()


def test_a_folder_that_is_not_there_is_a_failure_and_not_the_end_of_its_objects(tmp_path: Path):
    with pytest.raises(StorageError, match="No such file or directory"):
        FileSource(ObjectRef(f"file://{tmp_path}/unmounted", "a"))


def test_a_file_that_has_changed_since_it_was_listed_or_while_it_is_read_is_not_taken(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    listed = wanted_of(tmp_path, "a")
    path.write_bytes(b"newer")
    with pytest.raises(ObjectChanged):
        FileSource(listed)
    source = FileSource(wanted_of(tmp_path, "a"))
    source.fetch(0, 3)
    path.write_bytes(b"newest of all")
    with pytest.raises(ObjectChanged):
        source.check()
    source.close()
    path.unlink()
    with pytest.raises(ObjectGone):
        FileSource(listed)


def test_an_empty_object_of_a_bucket_has_no_first_byte_and_is_no_other_one(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> Any:
        raise RangeBeyondEnd("416")

    for ask in ("_get_by_obstore", "_get_by_boto"):
        monkeypatch.setattr(BucketSource, ask, refused)
    for key in ("plain", "odd//key"):
        source = BucketSource(ObjectRef("bucket", key), S3Settings(), NetworkSettings())
        assert source.total() == 0
        with pytest.raises(ObjectChanged):
            source.fetch(5, 9)


def test_reading_leaves_no_file_open(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for key in ("a", "none", "a/b"):
        with suppress(ObjectGone):
            FileSource(wanted_of(tmp_path, key)).close()
    with suppress(ObjectChanged):
        FileSource(wanted_of(tmp_path, "a", etag="other"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# -- running extractors ------------------------------------------------------------------------------------------------


def made(name: str, look: Callable[[Any], Any], types: tuple[str, ...] = ("*/*",), **more: Any) -> Extractor:
    return extractor(name, types=types, **more)(look)


KIND = made(TYPE, lambda item: {"media_type": "text/plain"})


def failing(error: BaseException) -> Callable[[Any], Any]:
    def look(item: Any) -> Any:
        raise error

    return look


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Unsupported("it is encrypted"), "unsupported", "it is encrypted"),
        (TooMuch("too many pixels"), "failed", "too many pixels"),
        (ValueError("first\nsecond"), "failed", "ValueError: first"),
        (SystemExit(5), "failed", "SystemExit: 5"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt: KeyboardInterrupt"),
        (MuteError(), "failed", "MuteError: MuteError"),
        (ValueError("bad \udc80 \0 text"), "failed", "ValueError: bad ?  text"),
        (StorageError("storage: busy"), "failed", "storage: busy"),
        (MemoryError(), SUSPECT, "took more than 2 GiB of memory"),
        (RecursionError("too deep"), "failed", "RecursionError: too deep"),
    ],
)
def test_an_extractor_that_fails_loses_only_itself(error: BaseException, status: str, reason: str):
    item, _ = item_of(b"abc")
    chosen = [made("fails", failing(error)), made("works", lambda item: {"first": item.head(1)}), KIND]
    found = run_extractors(item, chosen)
    assert found.detected_type == "text/plain"
    assert (found.extractors["fails"]["status"], found.extractors["fails"]["reason"]) == (status, reason)
    assert found.extractors["works"]["status"] == found.extractors[TYPE]["status"] == "ok"


def test_only_those_that_take_the_type_run_and_the_type_comes_first():
    seen: list[str] = []

    def look(item: Any) -> Any:
        seen.append(item.detected_type)
        return {}

    item, _ = item_of(b"abc")
    found = run_extractors(item, [made("pictures", look, ("image/*",)), made("texts", look, ("text/*",)), KIND])
    assert list(found.extractors) == [TYPE, "texts"] and seen == ["text/plain"]


def test_a_type_that_is_known_is_not_asked_again():
    item, source = item_of(b"abc")
    found = run_extractors(item, [made("texts", lambda item: {}, ("image/*",))], detected_type="image/png")
    assert found.detected_type == "image/png" and found.extractors["texts"]["status"] == "ok" and source.asked == []


@pytest.mark.parametrize(
    ("error", "status"), [(ObjectGone("not there"), "gone"), (ObjectChanged("another"), "changed")]
)
def test_an_object_that_is_not_the_same_any_more_ends_the_look_but_keeps_what_was_found(error: Exception, status: str):
    item, source = item_of(DATA)

    def first(item: Any) -> Any:
        return {"head": len(item.head())}

    def second(item: Any) -> Any:
        source.error = error
        return item.read(200_000, 10)

    found = run_extractors(item, [made("a", first), made("b", second), made("c", first)], detected_type="text/plain")
    assert [r["status"] for r in found.extractors.values()] == ["ok", status, status]


def test_storage_that_fails_is_asked_once_and_not_by_every_extractor():
    item, source = item_of(DATA, error=StorageError("storage: busy"))
    chosen = [made(name, lambda item: item.head()) for name in ("a", "b", "c")]
    found = run_extractors(item, chosen, detected_type="text/plain")
    assert {r["reason"] for r in found.extractors.values()} == {"storage: busy"} and len(source.asked) == 1


def test_a_file_that_changes_while_it_is_looked_into_gives_no_result_at_all(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    wanted = wanted_of(tmp_path, "a")

    def look(item: Any) -> Any:
        item.shared["thumbnail"] = b"small"
        path.write_bytes(b"other")
        return item.head().decode()

    item = ObjectItem(wanted, None, lambda: FileSource(wanted), Limits())
    item.head()
    found = run_extractors(item, [made("a", look)], detected_type="text/plain")
    assert found.extractors["a"]["status"] == "changed" and "data" not in found.extractors["a"]
    assert found.thumbnail == b""


def test_a_result_that_is_too_large_is_a_failure_with_its_size():
    item, _ = item_of(b"abc", Limits(max_json_bytes=2000))
    found = run_extractors(item, [made("talks", lambda item: "x" * 10_000)], detected_type="text/plain")
    assert found.extractors["talks"]["reason"] == "the result has 10,002 bytes of JSON; at most 2,000 are stored"


@pytest.mark.parametrize("thumbnail", ["text", b"x" * (2 << 20), None, 5])
def test_what_is_no_thumbnail_is_not_taken_for_one(thumbnail: object):
    item, _ = item_of(b"abc")

    def look(item: Any) -> Any:
        item.shared["thumbnail"] = thumbnail

    assert run_extractors(item, [made("a", look)], detected_type="text/plain").thumbnail == b""


# -- wire --------------------------------------------------------------------------------------------------------------


def test_frames_come_out_as_they_went_in_however_the_pipe_cuts_them():
    sent = [({"n": n, "text": "ü" * n}, b"x" * (n * 7)) for n in range(20)]
    data = b"".join(encode_frame(value, extra) for value, extra in sent)
    for size in (1, 7, 4096, len(data)):
        frames = FrameDecoder()
        got = [f for at in range(0, len(data), size) for f in frames.feed(data[at : at + size])]
        assert got == sent


def test_the_board_shows_what_threads_do_and_the_clock_stands_while_the_storage_is_asked(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = [100.0]
    monkeypatch.setattr("frazil.extract.engine.wire.time.monotonic", lambda: clock[0])
    file = StatusBoard.make(2)
    board = StatusBoard(file, 2)
    os.close(file)
    marker = StatusMarker(board, 1)
    assert board.busy() == []
    marker.begin(7, 3)
    clock[0] = 101.0
    marker.reading(True)
    (line,) = board.busy()
    assert (line.number, line.extractor, line.state, line.began) == (7, 3, READING, 101.0)
    clock[0] = 161.0
    marker.reading(False)
    (line,) = board.busy()
    assert line.began == 160.0, "one second of its own"
    marker.idle()
    assert board.busy() == []
    board.close()


def test_a_line_that_is_read_while_it_is_written_is_not_taken_for_a_late_one():
    """The two sides share memory without a lock: what looks late has to look so twice."""
    config = WorkerConfig({}, Limits(timeout_s=30), 1, open_source, S3Settings(), NetworkSettings())
    now = time.monotonic()
    torn, fresh, stuck = (
        ThreadStatus(0.0, 7, 0, RUNNING),
        ThreadStatus(now, 7, 0, RUNNING),
        ThreadStatus(now - 31, 7, 0, RUNNING),
    )

    class Process:
        ready = True

        def __init__(self, *seen: ThreadStatus) -> None:
            self.seen = list(seen)

        def busy(self) -> list[ThreadStatus]:
            return [self.seen.pop(0)]

    assert WorkerLane(config, [])._late(Process(fresh)) is None  # type: ignore[arg-type]
    assert WorkerLane(config, [])._late(Process(torn, fresh)) is None  # type: ignore[arg-type]
    assert WorkerLane(config, [])._late(Process(stuck, stuck)) == ([stuck], "took longer than 30 s")  # type: ignore[arg-type]


def test_who_delivers_at_the_last_moment_is_not_guilty_and_neither_is_the_next(monkeypatch: pytest.MonkeyPatch):
    config = WorkerConfig({TYPE: "x"}, Limits(timeout_s=30), 1, open_source, S3Settings(), NetworkSettings())

    @extractor(TYPE)
    def kind(_item: Any) -> Any:
        raise AssertionError("nobody looks")

    class Process:
        ready, taken, is_alive = True, 5, True
        killed = False

        def send(self, _jobs: Any) -> None: ...

        def busy(self) -> list[ThreadStatus]:
            return [ThreadStatus(time.monotonic() // 100 * 100 - 200, 0, 0, RUNNING)]

        def receive(self) -> tuple[list[tuple[Any, bytes]], bool]:
            found = {TYPE: {"version": "1", "status": "ok", "reason": None, "data": {}}}
            return ([({"n": 0, "type": "a/b", "read": 0, "found": found}, b"")] if self.killed else []), True

        def kill(self) -> None:
            self.killed = True

        def close(self) -> None: ...

    monkeypatch.setattr("frazil.extract.engine.isolation.WorkerProcess", lambda _: Process())
    lane = WorkerLane(config, [kind])
    lane._alone.extend(ObjectResult(Job(n, ObjectRef("b", f"k{n}"))) for n in range(2))
    (done,) = lane.poll()
    assert (done.job.number, done.extractors[TYPE]["status"]) == (0, "ok")
    assert [one.job.number for one in lane._alone] == [1] and lane._alone[0].extractors == {}


# -- thumbnails --------------------------------------------------------------------------------------------------------


def test_a_thumbnail_belongs_to_one_content(tmp_path: Path):
    settings = load_settings(flags={"home": str(tmp_path)}, environ={})
    assert thumbnails_uri(settings.model) == str(tmp_path / "thumbnails")
    store = ThumbnailStore.of(settings)
    names = {thumbnail_key("b", "k", v, e) for v in ("", "1") for e in ("x", "y", None)}
    assert len(names) == 6
    name = thumbnail_key("file:///ü", "a \udc80", "", "x")
    assert store.get(name) is None
    store.put(name, b"one")
    store.put(name, b"two")
    assert store.get(name) == b"two"
    assert [p.name for p in (tmp_path / "thumbnails").rglob("*") if p.is_file()] == [name.split("/")[1]]
    store.delete(name, "00/none.webp")
    assert store.get(name) is None


def test_a_full_disk_costs_the_thumbnail_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    store = ThumbnailStore.of(load_settings(flags={"home": str(tmp_path)}, environ={}))
    writer = ThumbnailWriter(store)
    writer.put("aa/1.webp", b"x")
    monkeypatch.setattr("frazil.content.thumbnails.write_file", full)
    writer.put("aa/2.webp", b"x")
    writer.put("bb/3.webp", b"x")
    writer.finish()
    assert (writer.written, writer.failed) == (1, 2) and "No space left" in (writer.reason or "")


# -- messages ----------------------------------------------------------------------------------------------------------


class Log:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    def send(self, payload: bytes, headers: dict[str, str]) -> Any:
        from concurrent.futures import Future

        from frazil.log.protocol import Ack, Level

        self.messages.append(json.loads(payload))
        self.sizes.append(len(payload))
        future: Future[Ack] = Future()
        future.set_result(Ack("topic", len(self.messages) - 1, 1, Level.disk, 0))
        return future

    def flush(self) -> None: ...


def result(key: str, size: int = 10) -> dict[str, Any]:
    data = {"version": "1", "status": "ok", "reason": None, "data": "x" * size}
    return {
        "key": key, "version_id": "", "etag": "e", "created": None, "last_modified": datetime(2026, 1, 1, tzinfo=UTC),
        "detected_type": "text/plain", "extractors": {"a": {**data, "data": "y"}, "b": data},
    }  # fmt: skip


def test_messages_hold_some_objects_of_one_bucket_and_never_more_than_the_log_takes():
    log = Log()
    publisher = ResultPublisher(log, 4000)  # type: ignore[arg-type]
    for number in range(250):
        publisher.add("one" if number % 2 else "two", result(f"k{number}"))
    assert publisher.finish() == len(log.messages)
    keys = [(m["bucket"], r["key"]) for m in log.messages for r in m["results"]]
    assert sorted(keys) == sorted(("one" if n % 2 else "two", f"k{n}") for n in range(250))
    assert max(log.sizes) <= 4000
    assert log.messages[0]["results"][0]["last_modified"] == "2026-01-01T00:00:00.000000Z"


def test_a_result_that_no_message_holds_loses_what_is_heaviest_and_says_so():
    log = Log()
    publisher = ResultPublisher(log, 4000)  # type: ignore[arg-type]
    publisher.add("one", result("small"))
    publisher.add("one", result("large", 10_000))
    publisher.finish()
    told = {r["key"]: r["extractors"] for m in log.messages for r in m["results"]}
    assert told["small"]["b"]["status"] == told["large"]["a"]["status"] == "ok"
    assert (
        told["large"]["b"]["status"] == "failed" and "exceeds the maximum message size" in told["large"]["b"]["reason"]
    )
    assert "data" not in told["large"]["b"]


def test_reports_of_tasks_add_up():
    one, other = ExtractionReport(objects=1, end=5, bytes_read=10), ExtractionReport(objects=2, end=3, restarts=1)
    one.by_status["ok"] += 1
    other.by_status["ok"] += 2
    other.failed = [("b", f"k{n}", "a", "failed", "why") for n in range(20)]
    one.add(other)
    assert (one.objects, one.end, one.bytes_read, one.restarts, one.by_status["ok"]) == (3, 5, 10, 1, 3)
    assert len(one.failed) == 10


def test_reasons_that_are_all_different_do_not_fill_the_memory():
    def report(first: int) -> ExtractionReport:
        made = ExtractionReport()
        for n in range(first, first + 300):
            failed = {"version": "1", "status": "failed", "reason": f"reason {n}"}
            made.count(ObjectResult(Job(n, ObjectRef("b", "k")), extractors={"a": failed}))
        return made

    one = report(0)
    assert len(one.by_reason) == 101 and one.by_reason["a", "failed", "other"] == 200
    one.add(report(1000))
    assert len(one.by_reason) == 101 and one.by_reason.total() == 600


def test_the_reason_of_a_failure_has_no_address_so_that_equal_ones_are_counted_together():
    error = ValueError(f"cannot identify {io.BytesIO()!r}")
    assert _describe(error) == "cannot identify <_io.BytesIO>"
