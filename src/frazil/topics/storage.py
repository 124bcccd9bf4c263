"""The storage of a topic's messages: the log alone, or the log and then a table, behind one interface."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa

from frazil.errors import ConflictError, NotFoundError
from frazil.log.batch import Batch
from frazil.log.protocol import Ack, Level, LogAccess, Storage
from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table
from frazil.topics.positions import check_messages, recorded_position
from frazil.topics.reading.reader import Bounds, TopicReader, reader_of
from frazil.topics.sinks.retention import Removed, retain_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import TableStore


class PersistentStorage(Protocol):
    """The common interface. Methods raise `NotFoundError` if the topic is gone."""

    kind: ClassVar[Storage]
    topic: str

    def append(self, batch: Batch, level: Level | None = None) -> Ack:
        """Appends a batch; returns when it is as safe as the level requires."""
        ...

    def read(
        self,
        start: int | None = None,
        *,
        since: datetime | None = None,
        end: int | None = None,
        columns: Collection[str] | None = None,
        follow: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[pa.Table]:
        """Yields the messages of a range in order; see `TopicReader.read`."""
        ...

    def bounds(self) -> Bounds:
        """Returns the oldest readable offset and the visible end."""
        ...

    def offset_at(self, time: datetime) -> int: ...

    def retain(self, *, age_s: float | None = None, size: int | None = None, dry_run: bool = False) -> list[Removed]:
        """Removes what is older than an age or beyond a size; by default according to topic and settings."""
        ...

    def delete(self) -> None:
        """Deletes the topic and all its data."""
        ...


class LogStorage:
    """The log alone: segments stay until retention removes them."""

    kind: ClassVar[Storage] = "log"

    def __init__(self, access: LogAccess, topic: str) -> None:
        self.access, self.topic = access, topic
        self.reader = TopicReader(access, topic)

    def append(self, batch: Batch, level: Level | None = None) -> Ack:
        return self.access.append(self.topic, batch, level)

    def read(
        self,
        start: int | None = None,
        *,
        since: datetime | None = None,
        end: int | None = None,
        columns: Collection[str] | None = None,
        follow: bool = False,
        stop: threading.Event | None = None,
    ) -> Iterator[pa.Table]:
        return self.reader.read(start, since=since, end=end, columns=columns, follow=follow, stop=stop)

    def bounds(self) -> Bounds:
        return self.reader.bounds()

    def offset_at(self, time: datetime) -> int:
        return self.reader.offset_at(time)

    def retain(self, *, age_s: float | None = None, size: int | None = None, dry_run: bool = False) -> list[Removed]:
        return [retain_log(self.access, self.topic, age_s=age_s, size=size, dry_run=dry_run)]

    def delete(self) -> None:
        self.access.delete_topic(self.topic)


class IcebergStorage(LogStorage):
    """The log, and the table that a pipeline fills from it. What both have is read from the table."""

    kind: ClassVar[Storage] = "iceberg"

    def __init__(self, access: LogAccess, topic: str, settings: Settings, store: LazyStore) -> None:
        super().__init__(access, topic)
        from frazil.topics.layout import table_name

        self._settings, self._store = settings, store
        self._name = table_name(settings, topic)
        self.reader = reader_of(access, settings, topic, store)

    @property
    def store(self) -> TableStore:
        return self._store.store()

    def table(self) -> Table:
        """Loads the table as it is now.

        Raises:
            NotFoundError: the pipeline has not created it yet.
        """
        table = self.find_table()
        if table is None:
            raise NotFoundError(
                f"topic '{self.topic}' has no table yet: {self._name}", hint="frazil pipeline fills it from the log"
            )
        return table

    def find_table(self) -> Table | None:
        return find_table(self.store, self._name)

    def retain(self, *, age_s: float | None = None, size: int | None = None, dry_run: bool = False) -> list[Removed]:
        """Applies retention to the table first: what it no longer has need not stay in the log."""
        in_table = self.retain_table(age_s=age_s, size=size, dry_run=dry_run)
        in_log = self.retain_log(age_s=age_s, size=size, dry_run=dry_run)
        return [in_log, *([in_table] if in_table else [])]

    def retain_log(self, *, age_s: float | None, size: int | None, dry_run: bool) -> Removed:
        self._report()
        return retain_log(self.access, self.topic, age_s=age_s, size=size, dry_run=dry_run)

    def retain_table(self, *, age_s: float | None, size: int | None, dry_run: bool) -> Removed | None:
        table = self.find_table()
        if table is None:
            return None
        topics = self._settings.model.topics
        if age_s is None and size is None:
            age_s, size = topics.retention_age_s, topics.retention_bytes
        return retain_table(self.store, table, self.topic, age_s=age_s, size=size, dry_run=dry_run)

    def _report(self) -> None:
        """Reports the table's position to a log that was just opened and does not know it."""
        from frazil.tables import find_position
        from frazil.tables.durability import sync_metadata
        from frazil.topics.layout import ARCHIVE

        table = self.find_table()
        info = self.access.info(self.topic)
        position = recorded_position(table, self.topic) if table is not None else None
        if table is None or position is None or position.log_id != info.log_id:
            return
        position = find_position(table, ARCHIVE, self.topic)
        if position is not None:
            check_messages(self.access, info, position, ARCHIVE)
            sync_metadata(table)
            self.access.report(self.topic, ARCHIVE, min(position.offsets.get(0, 0), info.written))

    def delete(self, *, purge: bool = True) -> None:
        """Deletes the log first, so that no pipeline creates the table again.

        Without `purge` the table's files are kept.
        """
        from frazil.catalogs import parse_name

        table = self.find_table()
        super().delete()
        if table is not None:
            identifier = parse_name(self._name, self.store.settings.name)
            drop = self.store.catalog.purge_table if purge else self.store.catalog.drop_table
            self.store.call_once(lambda: drop(identifier))


def open_storage(access: LogAccess, settings: Settings, topic: str, store: LazyStore) -> LogStorage | IcebergStorage:
    """Returns the storage of a topic according to its log. The store is opened on demand; its owner closes it."""
    if access.info(topic).storage == "log":
        return LogStorage(access, topic)
    return IcebergStorage(access, topic, settings, store)


def retain_log(access: LogAccess, topic: str, *, age_s: float | None, size: int | None, dry_run: bool) -> Removed:
    done = access.retain(topic, age_s=age_s, size=size, dry_run=dry_run)
    return Removed("log", done.segments, done.size, None, done.start)


def require_all_in_table(storage: LogStorage) -> None:
    """Raises ConflictError if the log has messages that its table does not have yet."""
    if not isinstance(storage, IcebergStorage):
        return
    info = storage.access.info(storage.topic)
    plan = storage.reader.plan(info)
    reached = plan.position if plan is not None else 0
    if reached < info.written and info.written > info.start:
        raise ConflictError(
            f"topic '{storage.topic}' has messages that are not in its table yet: offsets {max(reached, info.start)}"
            f" to {info.written}",
            hint="frazil pipeline --drain, then again; or --force to lose them",
        )
