"""Reads a topic as one stream: its table first, then the log, with no gap and no duplicate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import NotFoundError, UsageError
from frazil.log.columns import MESSAGE, TIME, merge_columns
from frazil.log.messages import message_schema
from frazil.log.protocol import LogAccess, OffsetGoneError, TopicInfo, TopicView
from frazil.settings import NetworkSettings, Settings
from frazil.tables.reading.ordered_scan import BUDGET, scan_in_order
from frazil.tables.reading.retrying import MissingFileCheck
from frazil.tables.store import LazyStore, find_table
from frazil.topics.layout import ARCHIVE, dead_letters_name, table_name
from frazil.topics.positions import check_log
from frazil.topics.reading.dead_letter_files import OffsetCache, add_dead_letters, get_snapshot_ids
from frazil.topics.reading.follow import Reading
from frazil.topics.reading.topic_plan import TopicPlan, plan_topic

if TYPE_CHECKING:
    from pyiceberg.table import Table

Loader = Callable[[], "Table"]
_TIMES = pa.schema([MESSAGE.field("offset"), MESSAGE.field("publish_time")])


@dataclass(frozen=True)
class Bounds:
    """The readable offsets of a topic: [start, end)."""

    start: int
    end: int


class TopicReader:
    """Reads a topic wherever its messages are, while sinks, compaction, expiry and retention run.

    The only state of a read is its cursor, the next offset. A file that has gone makes it plan again on a fresh
    snapshot; a segment that has gone sends it back to the table. It fails only if neither has the offset.

    Args:
        access: the log.
        topic: the topic's name.
        load: loads the topic's table as it is now, or raises NotFoundError; None reads the log alone.
        letters: loads the dead letters, which hold what the table could not take; None if there are none.
        first: which one a read prefers for what both have.
        network: retries of the table's storage.
    """

    def __init__(
        self,
        access: LogAccess,
        topic: str,
        load: Loader | None = None,
        *,
        letters: Callable[[], Table | None] | None = None,
        first: Literal["table", "log"] = "table",
        network: NetworkSettings | None = None,
    ) -> None:
        self.access = access
        self.topic = topic
        self.first = first
        self.network = network or NetworkSettings()
        self._load, self._letters = load, letters
        self._offset_cache = OffsetCache()
        #: The last plan and the metadata that it was made of, in one: threads share a reader.
        self._known: tuple[str, TopicPlan] | None = None

    def read(
        self,
        start: int | None = None,
        *,
        since: datetime | None = None,
        end: int | None = None,
        columns: Collection[str] | None = None,
        follow: bool = False,
        stop: threading.Event | None = None,
        budget: int = BUDGET,
    ) -> Iterator[pa.Table]:
        """The messages from an offset or a time on, as tables that are never empty, ordered by offset.

        Offsets may have gaps: a log skips some after a crash. A message that the table could not take comes from the
        dead letters. Where somebody has given a column another type in the table, it is null in what comes from there.
        A column that comes up while reading is in the tables from then on; with `columns` their schema never changes.

        Args:
            start: the first offset; by default the oldest that can be read.
            since: instead, the time of publishing from which on; without a time zone it is taken for UTC.
            end: the offset to stop before. By default the end of the topic as it is now, or none when following.
            columns: names of the columns wanted, all by default.
            follow: wait for further messages instead of stopping.
            stop: ends the read soon after it is set.
            budget: bytes of the table that may be read ahead.

        Raises:
            OffsetGoneError: retention has removed the range; its `start` says from where on it can be read.
            UsageError: the range or a column makes no sense.
        """
        if start is not None and since is not None:
            raise UsageError("a read begins at an offset or at a time, not at both", hint="start or since")
        if start is not None and start < 0:
            raise UsageError(f"there is no offset {start}", hint="0 or more")
        if columns is not None:
            self._check(columns)
        first = self.offset_at(since) if since is not None else start
        return Reading(self, first, end, columns, follow, stop or threading.Event(), budget).tables()

    def bounds(self) -> Bounds:
        """Returns the oldest readable offset and the visible end."""
        info = self.info()
        plan = self.plan(info)
        if plan is None:
            return Bounds(info.start, info.end)
        oldest = min(plan.floor, info.start) if plan.files else info.start
        return Bounds(max(0, oldest), max(info.end, plan.position))

    def schema(self, columns: Collection[str] | None = None) -> pa.Schema:
        """Returns the columns of a read: those of every message, then those that producers have added."""
        info = self.info()
        self.plan(info)
        return self.schema_of(info, columns)

    def offset_at(self, time: datetime | int) -> int:
        """Returns the first offset published at or after a time, or the visible end if there is none.

        Args:
            time: without a time zone it is taken for UTC; as a number, microseconds since 1970.
        """
        time_us = time if isinstance(time, int) else microseconds(time)
        files = MissingFileCheck(f"topic '{self.topic}'")
        while True:
            info = self.info()
            plan = self.plan(info)
            if plan is None:
                return self.access.offset_at(self.topic, time_us)
            try:
                in_table = _first_at(plan, time_us, self.network)
            except OSError as error:
                files.check(error, plan.snapshots)
                self.forget(plan)
                continue
            if in_table is None:
                return max(plan.position, self.access.offset_at(self.topic, time_us))
            # Where retention is shorter for the table than for the log, the log reaches further back.
            older = info.start < plan.floor
            return min(in_table, self.access.offset_at(self.topic, time_us)) if older else in_table

    def info(self) -> TopicInfo:
        return self.access.info(self.topic)

    def plan(self, info: TopicInfo) -> TopicPlan | None:
        """Plans the files of the table as it is now; returns None if the topic has no table.

        Raises:
            ForeignLogError: the table was written from another log.
        """
        files = MissingFileCheck(f"topic '{self.topic}'")
        while self._load is not None and info.storage != "log":
            try:
                table = self._load()
            except NotFoundError:
                return None
            known = self._known
            if known is None or known[0] != table.metadata_location:
                letters = self._letters() if self._letters is not None else None
                try:
                    made = plan_topic(table, self.topic, self.network)
                    if letters is not None:
                        made = add_dead_letters(made, letters, info, self.network, self._offset_cache)
                except OSError as error:
                    files.check(error, get_snapshot_ids(table, letters))
                    continue
                known = self._known = table.metadata_location, made
            check_log(self.topic, info.log_id, known[1].reached, ARCHIVE)
            return known[1]
        return None

    def forget(self, plan: TopicPlan) -> None:
        """Discards a plan of which a file has gone, even if only the dead letters have changed."""
        known = self._known
        if known is not None and known[1] is plan:
            self._known = "", plan  # its columns stay known

    def schema_of(self, info: TopicInfo, columns: Collection[str] | None) -> pa.Schema:
        """The schema of a read, as far as log and table were looked at."""
        known, extra = self._known, info.extra
        for column in known[1].extra() if known is not None else ():
            with suppress(UsageError):  # somebody has given it another type in the table: the log's counts
                extra = merge_columns(extra, pa.schema([column]), self.topic)
        whole = message_schema(TopicView(info.name, info.broker_addr, extra))
        return whole if columns is None else pa.schema([whole.field(name) for name in columns])

    def make_gone_error(self, cursor: int, info: TopicInfo, plan: TopicPlan | None) -> OffsetGoneError:
        held = [info.start, *([plan.floor] if plan is not None and plan.files else [])]
        first = min((offset for offset in held if offset > cursor), default=info.start)
        return OffsetGoneError(
            f"offset {cursor} of topic '{self.topic}' can no longer be read",
            start=first,
            cause=f"retention has removed it from the log{', and from the table' if plan is not None else ''}",
            hint=f"read from offset {first} on",
        )

    def _check(self, columns: Collection[str]) -> None:
        info = self.info()
        known = self.schema_of(info, None).names
        if not set(columns) <= set(known):  # perhaps the table has more, but it need not be asked before
            self.plan(info)
            known = self.schema_of(info, None).names
        if unknown := [c for c in columns if c not in known]:
            raise UsageError(f"topic '{self.topic}' has no column '{unknown[0]}'", hint=f"one of: {', '.join(known)}")
        if not columns:
            raise UsageError("a read needs at least one column", hint=f"one or more of: {', '.join(known)}")


@contextmanager
def open_reader(
    access: LogAccess,
    settings: Settings,
    topic: str,
    *,
    catalog: str | None = None,
    first: Literal["table", "log"] = "table",
) -> Iterator[TopicReader]:
    """Opens the reader of a topic with its table. The catalog is opened when the table is needed.

    Args:
        access: the log.
        settings: the settings.
        topic: the topic's name.
        catalog: name of the catalog with the topics' tables; by default the default one.
        first: which one a read prefers for what both have.
    """
    with LazyStore(settings, catalog) as store:
        yield reader_of(access, settings, topic, store, first=first)


def reader_of(
    access: LogAccess,
    settings: Settings,
    topic: str,
    tables: LazyStore,
    *,
    first: Literal["table", "log"] = "table",
) -> TopicReader:
    """Makes a reader on a catalog that the caller opens and closes."""
    name, letters = table_name(settings, topic), dead_letters_name(settings)
    return TopicReader(
        access,
        topic,
        lambda: tables.store().load(name),
        letters=lambda: find_table(tables.store(), letters),
        first=first,
        network=settings.model.network,
    )


def microseconds(time: datetime) -> int:
    """Returns microseconds since 1970; a time without a zone is taken for UTC."""
    return int(pa.scalar(time if time.tzinfo else time.replace(tzinfo=UTC), TIME).value)


def _first_at(plan: TopicPlan, time_us: int, network: NetworkSettings) -> int | None:
    """Returns the lowest offset in the table published at or after a time. Statistics leave one file to read."""
    later = plan.only([f for f in plan.files if f.latest_us >= time_us])
    time = pa.scalar(time_us, TIME)
    for scanned in scan_in_order(later, _TIMES, 0, plan.position, network=network):
        match = scanned.table.filter(pc.field("publish_time") >= time)
        if match.num_rows:
            return int(match.column("offset")[0].as_py())
    return None
