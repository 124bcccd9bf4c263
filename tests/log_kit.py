"""What tests of the log share: small logs, a crash without a goodbye, and reading all of it back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.log import Log, decode_chunk, message_schema
from frazil.settings.model import LogSettings
from tests.faulty_disk import FaultyDisk

SMALL = 4096


def settings(**changes: Any) -> LogSettings:
    """Settings under which segments are small and the background thread keeps out of the way."""
    return LogSettings(**{"max_file_size": SMALL, "sync_interval_ms": 3_600_000, "min_free": 0, **changes})


def open_log(folder: Path, *, disk: FaultyDisk | None = None, floor: int | None = None, **changes: Any) -> Log:
    return Log.open(folder, settings(**changes), floor=lambda *_: floor, disk=disk)


def new_log(folder: Path, *, topic: str = "orders", disk: FaultyDisk | None = None, **changes: Any) -> Log:
    log = open_log(folder, disk=disk, **changes)
    log.create_topic(topic)
    return log


def crash(log: Log) -> None:
    """Ends a log as kill -9 would: nothing is written, synced or told any more."""
    log._stop.set()
    log._housekeeping.join()
    os.close(log._owner._file)
    log._owner._file = -1
    topics, log._open = log._open, {}
    disk = log._disk
    if isinstance(disk, FaultyDisk):
        disk.drop_handles()
        return
    for topic in topics.values():
        for fd in (topic.files._fd, topic.files._mark._fd):
            if fd >= 0:
                os.close(fd)


def table_of(log: Log, topic: str = "orders", start: int | None = None, end: int | None = None) -> pa.Table:
    info = log.info(topic)
    first = info.start if start is None else start
    parts = [decode_chunk(chunk, info.view, first, end) for chunk in log.chunks(topic, first, end)]
    return pa.concat_tables(parts) if parts else message_schema(info.view).empty_table()


def messages_of(log: Log, topic: str = "orders", start: int | None = None, end: int | None = None) -> dict[int, bytes]:
    """Offset → payload of all that is visible. Fails where the log says a thing twice, or out of order."""
    table = table_of(log, topic, start, end)
    offsets = table["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    return dict(zip(offsets, table["payload"].to_pylist(), strict=True))


def segments_of(folder: Path, topic: str = "orders") -> list[Path]:
    return sorted((folder / "topics" / topic).glob("*.seg"))
