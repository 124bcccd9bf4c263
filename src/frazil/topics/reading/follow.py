"""One read of a topic: a cursor that only moves forward, over the table and the log."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.log.columns import MESSAGE
from frazil.log.messages import decode_chunk
from frazil.log.protocol import OffsetGoneError, TopicInfo
from frazil.tables.reading.ordered_scan import scan_in_order
from frazil.tables.reading.retrying import MissingFileCheck
from frazil.tables.reading.row_groups import conform
from frazil.topics.reading.topic_plan import TopicPlan

if TYPE_CHECKING:
    from frazil.topics.reading.reader import TopicReader

#: Seconds that a follower waits for messages before it checks whether to stop.
WAIT_S = 0.25


class Reading:
    def __init__(
        self,
        reader: TopicReader,
        start: int | None,
        end: int | None,
        columns: Collection[str] | None,
        follow: bool,
        stop: threading.Event,
        budget: int,
    ) -> None:
        self._budget = budget
        self._reader, self._columns, self._follow, self._stop = reader, columns, follow, stop
        self._cursor = reader.bounds().start if start is None else start
        self._from_oldest = start is None
        self._end = end
        info = reader.info()
        # At the end of the log there is nothing that the table could have: a tail needs no catalog.
        self._table_first = reader.first == "table" and self._cursor < info.end
        if not follow:
            last = reader.bounds().end if self._table_first or self._cursor < info.start else info.end
            self._end = last if end is None else min(end, last)
        self._files = MissingFileCheck(f"topic '{reader.topic}'")
        self._gone_at: int | None = None
        #: The table as it was where the log had a gap.
        self._known: TopicPlan | None = None
        self._dry = False

    def tables(self) -> Iterator[pa.Table]:
        while not self._done():
            try:
                plan = self._choose(self._reader.info())
            except OffsetGoneError as error:
                if not self._from_oldest:
                    raise
                self._cursor = error.start  # retention overtook a read of "the oldest" before its first message
                continue
            for table in self._from_log() if plan is None else self._from_table(plan):
                self._from_oldest = False
                yield table
                if self._stop.is_set():
                    return

    def _done(self) -> bool:
        return self._dry or self._stop.is_set() or (self._end is not None and self._cursor >= self._end)

    def _choose(self, info: TopicInfo) -> TopicPlan | None:
        """The table, planned, where it has the cursor's offset; None where the log has it.

        The log is asked before the table: retention removes from the log only what is in the table by then.
        """
        if not self._table_first and self._cursor >= info.start:
            return None
        plan = self._reader.plan(info)
        if plan is not None and plan.floor <= self._cursor < plan.position:
            return plan
        if self._cursor >= info.start:
            return None
        raise self._reader.make_gone_error(self._cursor, info, plan)

    def _from_table(self, plan: TopicPlan, end: int | None = None) -> Iterator[pa.Table]:
        upto = min(limit for limit in (plan.position, self._end, end) if limit is not None)
        wanted = self._reader.schema_of(self._reader.info(), self._columns)
        options: dict[str, Any] = {"budget": self._budget, "network": self._reader.network}
        try:
            for scanned in scan_in_order(plan, with_offset(wanted), self._cursor, upto, **options):
                self._cursor = max(self._cursor, scanned.reached)
                if scanned.table.num_rows:
                    yield scanned.table.select(wanted.names)
                if self._stop.is_set():
                    return
        except OSError as error:
            self._files.check(error, plan.snapshots)
            self._reader.forget(plan)
            self._known = None
            self._cursor = min(plan.following(self._cursor), upto)  # what this plan knows to be no gap stays known
            return
        self._cursor = max(self._cursor, upto)
        self._table_first = False

    def _from_log(self) -> Iterator[pa.Table]:
        self._table_first = False
        while not self._done():
            info = self._reader.info()
            upto = info.end if self._end is None else min(info.end, self._end)
            if self._cursor < upto:
                try:
                    yield from self._log_until(upto, info)
                except OffsetGoneError:
                    if self._gone_at == self._cursor:
                        raise
                    self._gone_at = self._cursor
                    return
            elif self._follow:
                self._reader.access.wait(self._reader.topic, self._cursor, WAIT_S)
            else:
                self._dry = True

    def _log_until(self, upto: int, info: TopicInfo) -> Iterator[pa.Table]:
        # Taken after the end was known, `info` has every column and every gap that came before that end.
        for start, end in (*info.gaps, (upto, upto)):
            if end >= self._cursor and start <= upto:
                if not (yield from self._frames_until(start, info)):
                    return
                yield from self._has_rows_in_gap(min(end, upto), info)
                if self._stop.is_set():
                    return

    def _frames_until(self, upto: int, info: TopicInfo) -> Generator[pa.Table, None, bool]:
        """What the log has; false where the read shall stop, or the log is another one than it was."""
        if upto <= self._cursor:
            return True
        wanted = self._reader.schema_of(info, self._columns)
        names = [*wanted.names, "offset"]
        for chunk in self._reader.access.chunks(self._reader.topic, self._cursor, upto):
            table = decode_chunk(chunk, info.view, self._cursor, upto, names)
            if table.num_rows:
                following = int(table.column("offset")[-1].as_py()) + 1
                if following - self._cursor > table.num_rows and self._is_reopened(info, following):
                    return False
                self._cursor = following
                yield conform(table, wanted)
            if self._stop.is_set():
                return False
        if self._cursor < upto and self._is_reopened(info, upto):
            return False
        self._cursor = max(self._cursor, upto)
        return True

    def _is_reopened(self, info: TopicInfo, end: int) -> bool:
        """Whether the log was opened anew since: perhaps it is an older copy, which has other gaps, or ends sooner."""
        now = self._reader.info()
        return (now.log_id, now.epoch) != (info.log_id, info.epoch) or now.end < end

    def _has_rows_in_gap(self, end: int, info: TopicInfo) -> Iterator[pa.Table]:
        """What the table has where the log has nothing: an older copy of it was brought back, or it was repaired."""
        while self._cursor < end and not self._stop.is_set():
            plan = self._known
            if plan is None or plan.position < end:
                plan = self._known = self._reader.plan(info)
            if plan is None or plan.position <= self._cursor:
                self._cursor = end
                return
            yield from self._from_table(plan, end)


def with_offset(wanted: pa.Schema) -> pa.Schema:
    return wanted if "offset" in wanted.names else wanted.append(MESSAGE.field("offset"))
