"""Compares a topic's log with its table, offset by offset, and reports each mismatch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from frazil.errors import IntegrityError, NotFoundError
from frazil.log.maintenance.verify import Finding, LogReport, verify_log
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings
from frazil.tables.metadata.bounds import HIGHEST
from frazil.tables.reading.retrying import MissingFileCheck
from frazil.tables.store import LazyStore, find_table
from frazil.topics.admin.compare import Chunks, can_compare, find_differences, read_chunks
from frazil.topics.connection import log_folder
from frazil.topics.layout import ARCHIVE, dead_letters_name, table_name
from frazil.topics.positions import recorded_position
from frazil.topics.previous_logs import filter_dead_letters_of, read_previous_logs

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import Position

#: Ranges that are listed one by one; the rest is counted.
_MOST_LISTED = 20


@dataclass
class TopicReport:
    """Findings in log and table."""

    topic: str
    log: LogReport | None = None
    table: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not any(f.severity == "error" for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "sound": self.sound,
            "log": self.log.to_dict() if self.log is not None else None,
            "table": self.table,
            "findings": [f.to_dict() for f in self.findings],
        }


def verify_topic(access: LogAccess | None, settings: Settings, topic: str, store: LazyStore) -> TopicReport:
    """Verifies a topic's log if it is on this machine, then its table.

    Args:
        access: the log; None if it cannot be opened, and only its folder is checked.
        settings: the settings.
        topic: its name.
        store: the catalog with its table.
    """
    report = TopicReport(topic)
    try:
        report.log = verify_log(log_folder(settings), topic)
    except NotFoundError:
        if access is None:
            raise
        note = f"the log is not on this machine ({access.where}): only what the table has too was looked at"
        report.findings.append(Finding("note", "log", "-", note))
    else:
        report.findings += report.log.findings
    files = MissingFileCheck(f"topic '{topic}'")
    of_log = list(report.findings)
    while True:
        before = access.info(topic) if access is not None else None
        table = find_table(store.store(), table_name(settings, topic))
        if table is None:
            break
        # Retention lets go of what the table has by then, and the table takes what the log has by then.
        info = replace(access.info(topic), start=before.start) if access is not None and before is not None else None
        comparing = _Comparing(report, table, info)
        try:
            comparing.run(_dead_offsets(settings, topic, store, table))
            comparing.check_messages(access, settings)
            break
        except OSError as error:  # compaction and expiry may run concurrently
            files.check(error, table.metadata.current_snapshot_id)
            report.findings, report.table = list(of_log), None
    return report


def _dead_offsets(settings: Settings, topic: str, store: LazyStore, table: Table) -> frozenset[int]:
    """Returns the offsets that the archive sink could not take."""
    letters = find_table(store.store(), dead_letters_name(settings))
    position = recorded_position(table, topic)
    if letters is None or position is None:
        return frozenset()
    chosen = filter_dead_letters_of(topic, position.log_id, read_previous_logs(table.metadata), 0, HIGHEST)
    scan = letters.scan(row_filter=chosen, selected_fields=("offset",))
    return frozenset(store.store().call(scan.to_arrow, "scan", "storage").column("offset").to_pylist())


class _Comparing:
    def __init__(self, report: TopicReport, table: Table, info: TopicInfo | None) -> None:
        self._report, self._table, self._info = report, table, info
        self._name = ".".join(table.name())

    def _add(self, severity: Any, what: str, message: str, **more: Any) -> None:
        self._report.findings.append(Finding(severity, what, self._name, message, **more))

    def run(self, dead: frozenset[int]) -> None:
        position = self._position()
        if position is None:
            return
        reached = position.offsets.get(0, 0)
        seen = _OffsetCounts(self._table)
        self._report.table = {
            "name": self._name,
            "position": reached,
            "log_id": position.log_id,
            "rows": seen.rows,
            "first": seen.first,
            "dead_letters": len(dead),
        }
        self._check_position(position, reached)
        self._list("doubled", "offsets that are in the table more than once", seen.doubled())
        if seen.last is not None and seen.last >= reached:
            message = f"rows up to offset {seen.last}, but the table's position is {reached}: another writer added some"
            self._add("error", "position", message, offsets=(reached, seen.last + 1))
        self._check_missing(seen, reached, dead)

    def _position(self) -> Position | None:
        from frazil.tables import RolledBackError, find_position

        try:
            return find_position(self._table, ARCHIVE, self._report.topic)
        except RolledBackError as error:
            self._add("error", "rolled_back", f"{error.message}. Try: {error.hint}")
            return error.table_position

    def _check_position(self, position: Position, reached: int) -> None:
        log = self._report.log
        known = self._info.log_id if self._info is not None else (log.log_id if log else None)
        if known is not None and position.log_id != known:
            self._add("error", "log_id", f"the table was written from log {position.log_id}, and this is log {known}")
            return
        end = self._info.written if self._info is not None else (log.end if log else reached)
        start = self._info.start if self._info is not None else (log.start if log else 0)
        if reached > end:
            message = f"the table is at offset {reached}, and the log ends at {end}: an older log was brought back"
            self._add("warning", "position", message, offsets=(end, reached))
        if reached < start:
            message = f"offsets {reached} to {start} are neither in the log nor in the table"
            self._add("error", "gap", message, offsets=(reached, start))

    def _check_missing(self, seen: _OffsetCounts, reached: int, dead: frozenset[int]) -> None:
        """What the log has below the position must be in the table; what it no longer has, nobody can tell."""
        log = self._report.log
        table = self._report.table or {}
        if log is None or table.get("log_id") != log.log_id:
            return
        first = seen.first if seen.first is not None else reached
        held = [(max(a, first), min(b, reached)) for a, b in log.ranges if b > first and a < reached]
        missing = [r for a, b in held for r in seen.missing(a, b, dead)]
        self._list("missing", "offsets below the table's position that are in the log and not in the table", missing)
        lost = [f.offsets for f in log.findings if f.severity == "error" and f.offsets is not None]
        for start, end in lost:
            until = reached if end is None else min(end, reached)
            if start < until and not seen.missing(start, until, dead):
                message = f"the table has offsets {start} to {until}, which are damaged in the log"
                self._add("note", "damaged", message, offsets=(start, until))
        older = seen.missing(first, min(log.start, reached), dead) if log.ranges else []
        self._list("gaps", "offsets that are not in the table, and that the log no longer has", older, severity="note")

    def check_messages(self, access: LogAccess | None, settings: Settings) -> None:
        """What the log and the table have under the same offset must be the same message."""
        log, table, info = self._report.log, self._report.table, self._info
        chunks: Chunks
        if log is not None:
            log_id, held, chunks = log.log_id, log.ranges, partial(read_chunks, log.walked)
        elif access is not None and info is not None:
            log_id, held, chunks = info.log_id, [(info.start, info.end)], partial(access.chunks, info.name)
        else:
            return
        if table is None or table["log_id"] != log_id or table["first"] is None:
            return
        if not can_compare(self._table):
            self._add("note", "columns", "columns were dropped or renamed: its rows were not compared with the log")
            return
        start = max(table["first"], min((a for a, _ in held), default=0))
        end = min(table["position"], max((b for _, b in held), default=0))
        try:
            found = find_differences(chunks, self._report.topic, self._table, start, end, settings.model.network)
        except IntegrityError as error:  # of a log on another machine; of one on this the frames were looked at
            self._add("error", "damaged", error.in_one_line)
            return
        self._list("different", "another message in the table than in the log", _ranges(found))

    def _list(self, what: str, text: str, ranges: list[tuple[int, int]], severity: str = "error") -> None:
        count = sum(b - a for a, b in ranges)
        for start, end in ranges[:_MOST_LISTED]:
            shown = f"offset {start}" if end == start + 1 else f"offsets {start} to {end}"
            self._add(severity, what, f"{shown}: {text}", offsets=(start, end))
        if len(ranges) > _MOST_LISTED:
            self._add(
                severity, what, f"{len(ranges) - _MOST_LISTED:,} further ranges, {count:,} offsets in all: {text}"
            )


class _OffsetCounts:
    """Counts each offset's rows in a table, in one byte per offset."""

    def __init__(self, table: Table) -> None:
        self.rows = 0
        self._base = 0
        self._counts = np.zeros(0, np.uint8)
        for batch in table.scan(selected_fields=("offset",)).to_arrow_batch_reader():
            if batch.num_rows:
                self._take(batch.column("offset").to_numpy(zero_copy_only=False))

    def _take(self, offsets: Any) -> None:
        values, times = np.unique(offsets, return_counts=True)
        self.rows += len(offsets)
        self._make_room(int(values[0]), int(values[-1]) + 1)
        at = values - self._base
        self._counts[at] = np.minimum(self._counts[at] + np.minimum(times, 3), 3).astype(np.uint8)

    def _make_room(self, first: int, end: int) -> None:
        if not len(self._counts):
            self._base, self._counts = first, np.zeros(end - first, np.uint8)
        before = max(0, self._base - first)
        after = max(0, end - self._base - len(self._counts))
        if before or after:
            grown = len(self._counts) // 2  # so that many small files do not copy it each time
            self._counts = np.concatenate(
                [np.zeros(before, np.uint8), self._counts, np.zeros(after and after + grown, np.uint8)]
            )
            self._base -= before

    @property
    def first(self) -> int | None:
        return self._base + int(np.flatnonzero(self._counts)[0]) if self.rows else None

    @property
    def last(self) -> int | None:
        return self._base + int(np.flatnonzero(self._counts)[-1]) if self.rows else None

    def doubled(self) -> list[tuple[int, int]]:
        return _ranges(np.flatnonzero(self._counts > 1) + self._base)

    def missing(self, start: int, end: int, without: frozenset[int]) -> list[tuple[int, int]]:
        """Returns the offsets of [start, end) that do not occur."""
        if end <= start:
            return []
        there: Any = np.zeros(end - start, bool)
        low, high = max(start, self._base), min(end, self._base + len(self._counts))
        if low < high:
            there[low - start : high - start] = self._counts[low - self._base : high - self._base] > 0
        known = [o - start for o in without if start <= o < end]
        there[known] = True
        return _ranges(np.flatnonzero(~there) + start)


def _ranges(offsets: Any) -> list[tuple[int, int]]:
    if not len(offsets):
        return []
    cuts = np.flatnonzero(np.diff(offsets) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(offsets, cuts)]
