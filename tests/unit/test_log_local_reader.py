"""Reading a log's own files: the same frames as the log gives, or none at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.log import Batch, Level, Log, OffsetGoneError, decode_chunk, reading
from frazil.log import segment as segment_module
from frazil.log.local_reader import LocalFrames, read_local_frames
from frazil.log.owner import LOCK
from frazil.log.remote.wire import to_json
from frazil.settings.model import LogSettings
from tests.log_kit import new_log, segments_of

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index entries and chunks so small that every border occurs."""
    monkeypatch.setattr(segment_module, "INDEX_STEP", 200)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 500)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Three segments of ten messages or so."""
    with new_log(tmp_path / "log") as opened:
        for number in range(30):
            opened.append("orders", Batch.of_messages([b"%d" % number + bytes(600)]))
        yield opened


def everything(log: Log) -> LocalFrames:
    return log.places("orders", 0, log.info("orders").end)


def offsets_of(log: Log, found: LocalFrames) -> list[int]:
    view = log.info("orders").view
    return [o for chunk, _ in read_local_frames(found) for o in decode_chunk(chunk, view)["offset"].to_pylist()]


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0, 20, 300, 1500]), st.booleans()), max_size=25), st.data()
)
def test_any_range_has_the_same_frames_and_can_be_taken_up_behind_each_chunk(
    small: None, shape: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder, new_log(Path(folder) / "log") as log:
        for number, (count, size, commits) in enumerate(shape):
            log.append("orders", Batch.of_messages([b"%d" % number + bytes(size)] * count))
            if commits:
                log.commit("orders", "reader", number)
        total = log.info("orders").end
        start = data.draw(st.integers(0, total))
        end = data.draw(st.integers(start, total + 2))
        found = LocalFrames.from_dict(_as_json(log.places("orders", start, end)))
        chunks = list(read_local_frames(found))
        assert [c.data for c, _ in chunks] == [c.data for c in log.chunks("orders", start, end)]
        view = log.info("orders").view
        reached = start
        for chunk, following in chunks:
            rows = decode_chunk(chunk, view, reached, end)["offset"].to_pylist()
            assert rows == list(range(reached, min(following, end)))
            reached = max(reached, following)
        assert reached == max(start, min(end, total))


def _as_json(found: LocalFrames) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(to_json(found))
    return made


def test_what_is_not_on_disk_is_in_no_place(tmp_path: Path) -> None:
    quiet = LogSettings(sync_mode="none", sync_interval_ms=3_600_000, min_free=0)
    with Log.open(tmp_path / "log", quiet) as log:
        log.create_topic("orders")
        log.publish("orders", b"synced", level=Level.disk)
        log.publish("orders", b"not yet", level=Level.os)
        assert offsets_of(log, log.places("orders", 0, 2)) == [0]
        log.sync("orders")
        assert offsets_of(log, log.places("orders", 0, 2)) == [0, 1]


def test_a_range_that_retention_has_removed_is_told(log: Log) -> None:
    log.retain("orders", size=1)
    with pytest.raises(OffsetGoneError):
        log.places("orders", 0, 5)


def test_the_files_are_read_while_the_log_is_open_and_not_afterwards(log: Log) -> None:
    found = everything(log)
    assert offsets_of(log, found) == list(range(30))
    view = log.info("orders").view
    log.close()
    assert [decode_chunk(c, view) for c, _ in read_local_frames(found)] == []


def test_a_copy_of_the_folder_is_not_taken_for_the_log(log: Log, tmp_path: Path) -> None:
    found = everything(log)
    shutil.copytree(log.directory, tmp_path / "copy")
    moved = replace(found, directory=str(tmp_path / "copy"), folder=str(tmp_path / "copy" / "topics" / "orders"))
    assert (tmp_path / "copy" / LOCK).read_bytes() == (log.directory / LOCK).read_bytes()
    assert list(read_local_frames(moved)) == []
    (tmp_path / "copy" / LOCK).unlink()
    assert list(read_local_frames(moved)) == []


def test_a_log_that_another_process_has_opened_since_is_not_taken_for_the_same(log: Log) -> None:
    found = everything(log)
    log.close()
    with Log.open(log.directory, LogSettings(min_free=0)) as again:
        assert list(read_local_frames(found)) == []
        assert offsets_of(again, everything(again)) == list(range(30))


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one(log: Log) -> None:
    found = everything(log)
    log.delete_topic("orders")
    log.create_topic("orders")
    for number in range(30):
        log.append("orders", Batch.of_messages([b"%d" % number + bytes(600)]))
    assert list(read_local_frames(found)) == []


def test_a_segment_that_goes_meanwhile_ends_the_reading_at_its_border(log: Log) -> None:
    found, borders = everything(log), [int(p.stem) for p in segments_of(log.directory)]
    assert len(borders) >= 3
    reader = read_local_frames(found)
    first, following = next(reader)
    log.retain("orders", size=1)
    rest = list(reader)
    seen = decode_chunk(first, log.info("orders").view)["offset"].to_pylist()
    assert seen[0] == 0
    assert rest == []
    assert following == borders[1]


def test_a_file_that_is_cut_short_or_overwritten_ends_the_reading(log: Log) -> None:
    found, path = everything(log), segments_of(log.directory)[1]
    whole = path.read_bytes()
    for content in (whole[:-1], b"", bytes(len(whole))):
        path.write_bytes(content)
        assert offsets_of(log, found) == list(range(int(path.stem)))
    path.write_bytes(whole)
    assert offsets_of(log, found) == list(range(30))


@pytest.mark.parametrize("unreadable", [LOCK, ".seg"])
def test_a_folder_that_cannot_be_read_is_left_to_the_broker(
    log: Log, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    found = everything(log)
    real_open, real_path_open = os.open, Path.open

    def refuse(path: Any) -> None:
        if str(path).endswith(unreadable):
            raise PermissionError(13, "Permission denied", str(path))

    def open_(path: Any, *args: Any, **kwargs: Any) -> int:
        refuse(path)
        return real_open(path, *args, **kwargs)

    def path_open(path: Path, *args: Any, **kwargs: Any) -> Any:
        refuse(path)
        return real_path_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(Path, "open", path_open)
    assert list(read_local_frames(found)) == []


def test_names_of_producers_come_with_the_places(log: Log) -> None:
    registered = log.register("orders", "shop-1")
    known = {"producer_id": registered.producer_id, "producer_epoch": registered.producer_epoch, "sequence": 0}
    ack = log.append("orders", Batch.of_messages([b"named"], **known))
    found = LocalFrames.from_dict(_as_json(log.places("orders", ack.offset, ack.offset + 1)))
    tables = [decode_chunk(c, log.info("orders").view, ack.offset) for c, _ in read_local_frames(found)]
    assert pa.concat_tables(tables)["producer_name"].to_pylist() == ["shop-1"]
