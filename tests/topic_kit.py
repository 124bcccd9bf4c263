"""A topic for tests of readers: a log in memory, and a real table that a small sink of its own fills."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import Table

from frazil.catalogs import open_catalog
from frazil.catalogs.locations import local_path
from frazil.errors import NotFoundError
from frazil.log.batch import Batch
from frazil.log.columns import merge_columns
from frazil.log.frame import Header, pack_header, padding
from frazil.log.messages import decode_chunk
from frazil.log.protocol import Chunk, LogAccess, OffsetGoneError, Span, Storage, TopicInfo
from frazil.settings import Settings, load_settings
from frazil.tables import Position, TableStore, commit_append, find_position
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.topics.layout import ARCHIVE, ensure_topic_table, table_name
from frazil.topics.reading.reader import TopicReader

LOG_ID = "00000000000000aa"
FIRST_TIME_US = 1_750_000_000_000_000


class MemoryLog:
    """One topic, frame by frame. What a reader asks of `LogAccess`, and nothing else."""

    where = "log in memory"

    def __init__(self, topic: str = "orders", storage: Storage = "iceberg") -> None:
        self.topic, self.storage = topic, storage
        self.frames: list[tuple[Header, bytes]] = []
        self.start = self.end = 0
        self.extra = pa.schema([])
        self.subscriptions: dict[str, int] = {}
        self.on_wait: Callable[[], None] = lambda: None
        self.waits = 0

    def publish(self, *payloads: bytes, time_us: int | None = None, **extra: list[Any]) -> range:
        """Appends one batch, and returns its offsets. Each second of the clock, one batch."""
        if extra:
            batch = Batch.of_arrow(pa.record_batch({"payload": pa.array(payloads, pa.binary()), **extra}))
        else:
            batch = Batch.of_messages(payloads)
        self.extra = merge_columns(self.extra, batch.extra, self.topic)
        at = FIRST_TIME_US + len(self.frames) * 1_000_000 if time_us is None else time_us
        header = Header(
            batch.kind, batch.flags, 1, 0, batch.count, self.end, self.end, at, 0, -1, 0, len(batch.body), batch.crc
        )
        frame = pack_header(header) + bytes(batch.body) + padding(len(batch.body))
        self.frames.append((header, frame))
        self.end += batch.count
        return range(header.base_offset, self.end)

    def skip(self, count: int) -> None:
        """As recovery does: offsets that were given out and lost are not given out again."""
        self.end += count

    def retain(self, below: int) -> None:
        """Removes the frames that lie below an offset."""
        self.frames = [(h, f) for h, f in self.frames if h.end_offset > below]
        self.start = max(self.start, min([below, *(h.base_offset for h, _ in self.frames)]))

    def info(self, topic: str) -> TopicInfo:
        if topic != self.topic:
            raise NotFoundError(f"topic '{topic}' does not exist")
        return TopicInfo(
            topic, LOG_ID, 0, self.storage, "", "here", "always", self.start, self.end, self.end,
            sum(len(f) for _, f in self.frames), 1, None, None, self.extra, {}, dict(self.subscriptions),
        )  # fmt: skip

    def wait(self, topic: str, offset: int, timeout: float) -> int:
        self.waits += 1
        if self.end <= offset:
            self.on_wait()
        return self.end

    def chunks(self, topic: str, start: int, end: int | None = None) -> Iterator[Chunk]:
        if start < self.start:
            raise OffsetGoneError(f"offset {start} is gone", start=self.start)
        for header, frame in list(self.frames):
            if header.end_offset > start and (end is None or header.base_offset < end):
                if header.end_offset <= self.start:
                    raise OffsetGoneError(f"offset {header.base_offset} is gone", start=self.start)
                yield Chunk(0, pa.py_buffer(frame), {})

    def spans(self, topic: str, start: int, max_bytes: int, pieces: int) -> list[Span]:
        frames = [(h, f) for h, f in self.frames if h.end_offset > start]
        return [Span(max(start, h.base_offset), h.end_offset, len(f)) for h, f in frames]

    def offset_at(self, topic: str, time_us: int) -> int:
        return next((h.base_offset for h, _ in self.frames if h.time_us >= time_us), self.end)

    def commit(self, topic: str, subscription: str, offset: int) -> None:
        self.subscriptions[subscription] = offset

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def settings_in(folder: Path) -> Settings:
    return load_settings(flags={"home": str(folder)}, environ={})


@contextmanager
def files_read() -> Iterator[Counter[str]]:
    """Counts the files of tables that are opened to be read: `metadata`, manifest `lists`, `manifests` and `data`."""
    opened: Counter[str] = Counter()
    open_file = PyArrowFile.open

    def counting(file: PyArrowFile, *args: Any, **options: Any) -> Any:
        opened[_kind(file.location.rpartition("/")[2])] += 1
        return open_file(file, *args, **options)

    with patch.object(PyArrowFile, "open", counting):
        yield opened


def _kind(name: str) -> str:
    if name.endswith(".metadata.json"):
        return "metadata"
    if name.endswith(".avro"):
        return "lists" if name.startswith("snap-") else "manifests"
    return "data"


class TopicTable:
    """The table of a topic in an embedded catalog, and what happens to it."""

    def __init__(self, log: LogAccess | MemoryLog, topic: str, settings: Settings) -> None:
        self.settings = settings
        self.log, self.topic = log, topic
        self.catalog: Catalog = open_catalog(self.settings.catalog())
        self.store = TableStore(self.catalog, self.settings.catalog())
        self.name = table_name(self.settings, topic)

    def load(self) -> Table:
        return self.store.load(self.name)

    def reader(self, **options: Any) -> TopicReader:
        return TopicReader(self.log, self.topic, self.load, **options)

    @property
    def position(self) -> int:
        try:
            found = find_position(self.load(), ARCHIVE, self.topic)
        except NotFoundError:
            return 0
        return found.offsets[0] if found else 0

    def sink(self, upto: int | None = None) -> None:
        """Commits what the log has, up to an offset, as one file per day."""
        info = self.log.info(self.topic)
        table = ensure_topic_table(self.store, self.settings, info)
        expected = find_position(table, ARCHIVE, info.name)
        start = expected.offsets[0] if expected else 0
        end = info.end if upto is None else min(upto, info.end)
        if end <= start:
            return
        writer = TableWriter(WriteTarget.of(table), f"{start:020d}")
        for chunk in self.log.chunks(info.name, max(start, info.start), end):
            writer.add(convert_rows(decode_chunk(chunk, info.view, start, end), writer.schema).rows)
        reached = Position(ARCHIVE, info.name, {0: end}, info.log_id, info.epoch, uuid.uuid4().hex)
        files = writer.finish()
        for file in files:
            file.spec_id = table.spec().spec_id
        commit_append(self.store, table, files, expected=expected, reached=reached)

    def rewrite(self, shuffle: random.Random | None = None, rows_per_group: int = 3) -> None:
        """All rows into new files, as a compaction does; shuffled, as one that sorts by another column."""
        table = self.load()
        if table.current_snapshot() is None:
            return
        with table.transaction() as change:
            change.set_properties({"write.parquet.row-group-limit": str(rows_per_group)})
        rows = table.scan().to_arrow().sort_by("offset")
        order = list(range(rows.num_rows))
        if shuffle is not None:
            shuffle.shuffle(order)
        table.overwrite(rows.take(pa.array(order, pa.int64())))

    def expire(self) -> None:
        """Only the current snapshot stays, and what only others need is deleted from the disk."""
        table = self.load()
        current = table.current_snapshot()
        if current is None:
            return
        old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != current.snapshot_id]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        needed = {current.manifest_list}
        for manifest in current.manifests(table.io):
            needed.add(manifest.manifest_path)
            needed.update(e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io))
        kept = {local_path(str(path)) for path in needed}
        for file in Path(local_path(table.location()) or "").rglob("*"):
            if file.suffix in (".parquet", ".avro") and str(file) not in kept:
                file.unlink()
