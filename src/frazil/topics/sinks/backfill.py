"""What the log no longer has, for a sink that is behind: it takes it from the topic's archive table.

A snapshot of the table is planned once and read to its end, whatever commits come after it. Where compaction and expiry
have taken its files away meanwhile, the rest is planned anew. The position is that of the sink's own table, as always:
below the log's start the next batch comes from the archive, from there on from the log.
"""

from __future__ import annotations

from itertools import pairwise

from frazil.errors import IntegrityError
from frazil.log.protocol import Span, TopicInfo
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.reading.ordered_plan import PlannedFile
from frazil.tables.reading.retrying import MissingFileCheck
from frazil.tables.store import find_table
from frazil.topics.layout import ARCHIVE, dead_letters_name, table_name
from frazil.topics.positions import LogGapError, check_log
from frazil.topics.reading.dead_letter_files import add_dead_letters, get_snapshot_ids
from frazil.topics.reading.split_points import find_split_points
from frazil.topics.reading.topic_plan import TopicPlan, plan_topic
from frazil.topics.sinks.archived import ArchivedSpan, FilesGoneError

#: What a file counts at least: a batch of thousands of tiny ones would take long, and so would its plan.
_OPENING = 256 * 1024


class Backfill:
    """Batches of one topic out of its archive, for one sink.

    Args:
        store: the catalog with the archive.
        settings: the settings.
        topic: which.
        sink: the name of the sink that is behind the log's start.
    """

    def __init__(self, store: TableStore, settings: Settings, topic: str, sink: str) -> None:
        self._store, self._settings = store, settings
        self._topic, self._sink = topic, sink
        #: One snapshot of the archive, and of its dead letters.
        self._kept: TopicPlan | None = None
        self._missed: set[tuple[int | None, ...]] = set()

    def spans(self, info: TopicInfo, start: int, max_bytes: int, tasks: int) -> list[Span]:
        """What to take next: from `start` on, which lies below the log's start, about as many bytes.

        Raises:
            LogGapError: the archive does not have it either.
            ForeignLogError: the archive was written from another log.
        """
        kept = self._holding(info, start)
        last = min(kept.position, info.start)
        end = next(find_split_points(kept.between(start, last).files, start, last, max_bytes, least=_OPENING), last)
        files = kept.between(start, end).files
        target = max(_OPENING, -(-sum(_weight(f, start, end) for f in files) // tasks))
        edges = [start, *find_split_points(files, start, end, target, least=_OPENING), end]
        return [self._span(kept, low, high) for low, high in pairwise(edges)]

    def has(self, info: TopicInfo, start: int) -> bool:
        """Whether the archive knows what has become of an offset."""
        if self._kept is None or start >= self._kept.position:
            self._kept = self._plan(info)
        return self._kept is not None and _has(self._kept, start)

    def first_kept(self, info: TopicInfo, offset: int) -> int:
        """The first offset from this one on that can still be taken: from the archive, or from the log."""
        kept = self._kept = self._kept or self._plan(info)
        if offset >= info.start or (kept is not None and _has(kept, offset)):
            return offset
        return min(info.start, kept.floor) if kept is not None and kept.files and kept.floor > offset else info.start

    def missed(self, error: FilesGoneError) -> None:
        """Lets the next batch be planned anew, because a file of this plan has gone.

        Raises:
            IntegrityError: that was so before, and the table has not changed since.
        """
        kept, self._kept = self._kept, None
        if kept is None:
            return
        if kept.snapshots in self._missed:
            raise IntegrityError(
                f"a file of topic '{self._topic}' is missing although its table needs it",
                cause=error.cause,
                hint="restore the table from a backup, or roll it back",
            ) from error
        self._missed.add(kept.snapshots)

    def _holding(self, info: TopicInfo, start: int) -> TopicPlan:
        if not self.has(info, start):
            raise self._gap(info, start)
        assert self._kept is not None
        return self._kept

    def _plan(self, info: TopicInfo) -> TopicPlan | None:
        files = MissingFileCheck(f"topic '{self._topic}'")
        while True:
            table = find_table(self._store, table_name(self._settings, self._topic))
            if table is None:
                return None
            letters = find_table(self._store, dead_letters_name(self._settings))
            try:
                kept = plan_topic(table, self._topic, self._store.network)
                if letters is not None:
                    kept = add_dead_letters(kept, letters, info, self._store.network)
            except OSError as error:
                files.check(error, get_snapshot_ids(table, letters))
                continue
            if ARCHIVE in info.sinks:
                check_log(self._topic, info.log_id, kept.reached, ARCHIVE)
            elif kept.reached is None or kept.reached.log_id != info.log_id:
                return None  # left over from another topic of this name
            return kept.portable()

    def _span(self, kept: TopicPlan, start: int, end: int) -> ArchivedSpan:
        archive = kept.between(start, end)
        size = sum(_share(file, start, end) for file in archive.files)
        times = [file.earliest_us for file in archive.files if file.earliest_us > 0]
        network = self._store.network
        return ArchivedSpan(start, end, size, min(times, default=0), archive=archive, network=network)

    def _gap(self, info: TopicInfo, start: int) -> LogGapError:
        first = self.first_kept(info, start)
        name = table_name(self._settings, self._topic)
        missing = f"its table {name} does not have them" if self._kept else f"there is no table {name} of this log"
        self._kept = None  # somebody may bring them back
        return LogGapError(
            f"sink {self._sink} needs topic '{self._topic}' from offset {start} on, and offsets {start} to {first} are"
            f" gone: the log begins at {info.start}, and {missing}",
            cause="retention has removed them before the sink was enabled, or the sink's own table was created again",
            hint=f"frazil topic adopt {self._topic} to go on at {first} without them",
        )


def _has(kept: TopicPlan, start: int) -> bool:
    """Whether nothing that follows is missing, as far as the archive can know."""
    return kept.floor <= start < kept.position


def _weight(file: PlannedFile, start: int, end: int) -> int:
    return max(_OPENING, _share(file, start, end))


def _share(file: PlannedFile, start: int, end: int) -> int:
    """Bytes of a file that lie in a range, as if its rows lay evenly in it."""
    inside = min(end, file.upper + 1) - max(start, file.lower)
    return file.size * inside // max(1, file.upper + 1 - file.lower)
