"""Imports older messages into a log, before its start, with their original offsets and times.

They are staged first: whole segments in a separate folder, written by any process on the same machine. Staging can
break off and resume. Then the process that owns the log installs them, the newest first, by renaming, so that the log
never has a gap.
"""

from __future__ import annotations

import json
import shutil
import zlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import ConflictError, IntegrityError, NotFoundError
from frazil.log.batch import IMPORTED, Batch
from frazil.log.columns import MESSAGE
from frazil.log.disk import Disk
from frazil.log.frame import Header, Kind, pack_header, padding
from frazil.log.maintenance.walk import walk_segment
from frazil.log.protocol import Imported, decode_schema, encode_schema
from frazil.log.recovery import read_previous_end
from frazil.log.segment import Segment, segment_ids
from frazil.observe.faultpoints import reach

if TYPE_CHECKING:
    from frazil.log.topic import TopicLog

FOLDER = ".import"
_READY = "ready.json"
_FRAME_ROWS = 1024
_FRAME_BYTES = 1024 * 1024
_COLUMNS = ("payload", "publish_time", "request_id", "producer_id", "producer_name", "headers")


class Stage:
    """Segments that are being staged. Rows come in order of offset; whole segments are found again after a crash.

    Args:
        folder: of the topic.
        log_id: of the topic, as in `TopicInfo`.
        max_file_size: approximate bytes of a segment.
        disk: the disk; replaced in tests.
    """

    def __init__(self, folder: Path, log_id: str, max_file_size: int, disk: Disk | None = None) -> None:
        self._folder = folder / FOLDER
        self._log_id = int(log_id[:16], 16)
        self._max_file_size = max_file_size
        self._disk = disk or Disk()
        self._frames: list[tuple[Header, bytes]] = []
        self._size = 0
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.reached = self._resume()
        """All below is staged; None where nothing is."""

    def _resume(self) -> int | None:
        self._disk.remove(self._folder / _READY)
        reached: int | None = None
        for segment_id in segment_ids(self._folder):
            segment = Segment.from_index(self._folder, segment_id)
            if segment is None or (reached is not None and segment_id < reached):
                self._disk.remove(self._folder / f"{segment_id:020d}.seg")
            else:
                reached = segment.end_offset
        return reached

    def add(self, rows: pa.Table) -> None:
        """Adds messages, with the common columns and the producers' own."""
        own = [n for n in rows.column_names if n in _COLUMNS or n not in MESSAGE.names]
        for piece in _pieces(rows, min(_FRAME_BYTES, self._max_file_size // 4)):
            offsets = piece.column("offset")
            times = piece.column("publish_time").cast(pa.int64())
            kept = [n for n in own if n in ("payload", "publish_time") or piece.column(n).null_count < piece.num_rows]
            (batch,) = piece.select(kept).combine_chunks().to_batches()
            self._frame(Batch.of_arrow(batch, flags=IMPORTED), offsets[0].as_py(), pc.max(times).as_py())

    def _frame(self, batch: Batch, offset: int, time_us: int) -> None:
        if self._frames and self._size + len(batch.body) > self._max_file_size:
            self._seal(None)
        epoch = 0
        if self._frames:
            last = self._frames[-1][0]
            epoch = last.epoch + (offset != last.end_offset)  # only a new epoch may skip offsets
        header = Header(
            batch.kind, batch.flags, self._log_id, epoch, batch.count, offset, offset, time_us, 0, -1, 0,
            len(batch.body), batch.crc,
        )  # fmt: skip
        self._frames.append((header, bytes(batch.body)))
        self._size += header.frame_size

    def _seal(self, until: int | None) -> None:
        """Writes a segment: first the file, then its index, which marks the file as whole."""
        first = self._frames[0][0].base_offset if self._frames else self.reached
        assert first is not None
        segment = Segment(self._folder, first)
        state: dict[str, Any] = {"previous": self.reached}
        body = json.dumps(state | ({} if until is None else {"until": until})).encode()
        time_us = self._frames[0][0].time_us if self._frames else 0
        head = Header(
            Kind.state, 0, self._log_id, 0, 0, first, first, time_us, 0, -1, 0, len(body), zlib.crc32(body)
        )  # fmt: skip
        parts = []
        for header, content in [(head, body), *self._frames]:
            parts += [pack_header(header), content, padding(len(content))]
            segment.add_frame(header)
        if until is not None:
            segment.end_offset = until
        reach("log.import.segment.before")
        self._disk.replace(segment.path, b"".join(parts))
        segment.write_index(self._disk)
        reach("log.import.segment.after")
        self.reached, self._frames, self._size = segment.end_offset, [], 0

    def finish(self, until: int | None, extra: pa.Schema) -> None:
        """Marks the stage as complete.

        Args:
            until: where the log's first segment says that the one before it ended; None if it does not say.
            extra: the producers' own columns in the messages.
        """
        end = self._frames[-1][0].end_offset if self._frames else self.reached
        pads = until is not None and end is not None and end < until
        if self._frames or pads:
            self._seal(until if pads else None)
        content = {"extra": encode_schema(extra)}
        self._disk.replace(self._folder / _READY, json.dumps(content).encode())


def _pieces(rows: pa.Table, frame_bytes: int) -> list[pa.Table]:
    """Splits rows into frames: offsets without a gap, limited in count and size."""
    offsets = rows.column("offset").to_numpy()
    sizes = pc.binary_length(rows.column("payload")).to_numpy().astype(np.int64)
    by_size = (np.cumsum(sizes) // frame_bytes).astype(np.int64)
    breaks = (np.diff(offsets) != 1) | (np.diff(by_size) != 0)
    edges = sorted({0, *(np.flatnonzero(breaks) + 1).tolist(), len(offsets)})
    found = []
    for begin, end in pairwise(edges):
        found += [rows.slice(at, min(_FRAME_ROWS, end - at)) for at in range(begin, end, _FRAME_ROWS)]
    return found


def discard(folder: Path) -> None:
    """Removes a stage whose segments are installed or no longer wanted."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def first_segment_follows(folder: Path, start: int, log_id: str) -> int | None:
    """Returns where the segment before the log's first one ended, according to its head; None if that does not say."""
    return read_previous_end(folder, start, int(log_id[:16], 16))


def install(topic: TopicLog, disk: Disk) -> Imported:
    """Installs staged segments. Producers and readers are not affected.

    Raises:
        NotFoundError: nothing is staged, or the stage is incomplete.
        IntegrityError: a staged segment is damaged.
        ConflictError: the log's start has moved since; stage again.
    """
    folder = topic.files.folder
    stage = folder / FOLDER
    try:
        extra = decode_schema(json.loads((stage / _READY).read_bytes())["extra"])
    except FileNotFoundError:
        raise NotFoundError(f"nothing is staged for topic '{topic.name}'", hint="frazil topic migrate") from None
    topic.add_columns(extra)  # which also makes sure that there is a segment that stays the last
    ids = segment_ids(stage)
    for segment_id in ids:
        _check(topic, stage, segment_id)
    for segment_id in reversed(ids):
        _install_one(topic, stage, segment_id, disk)
    reach("log.import.done.before")
    shutil.rmtree(stage)
    disk.sync_folder(folder)
    return Imported(len(ids), topic.start)


def _check(topic: TopicLog, stage: Path, segment_id: int) -> None:
    walked = walk_segment(stage, segment_id, int(topic.log_id[:16], 16))
    if walked.breaks or Segment.from_index(stage, segment_id) is None:
        problem = walked.breaks[0].problem if walked.breaks else "its index does not fit"
        raise IntegrityError(
            f"the staged segment {walked.segment.path} is damaged", cause=problem, hint=f"remove {stage}, and repeat"
        )


def _install_one(topic: TopicLog, stage: Path, segment_id: int, disk: Disk) -> None:
    files = topic.files
    staged = Segment.from_index(stage, segment_id)
    assert staged is not None
    first = files.segments[0]
    follows = read_previous_end(files.folder, first.id, int(topic.log_id[:16], 16))
    if staged.end_offset > first.id or follows not in (None, staged.end_offset):
        raise ConflictError(
            f"the staged segments of topic '{topic.name}' end at offset {staged.end_offset},"
            f" and the log begins at {first.id}",
            cause="the log's start has moved since they were made",
            hint="repeat it: what is staged already is kept",
        )
    reach("log.import.install.before")
    for path in (staged.index_path, staged.path):  # an index without its segment is only removed at the next open
        disk.rename(path, files.folder / path.name)
    disk.sync_folder(files.folder)
    reach("log.import.install.after")
    placed = Segment.from_index(files.folder, segment_id)
    assert placed is not None
    with files._lock:
        files.segments = [placed, *files.segments]
        files._sealed += placed.size
