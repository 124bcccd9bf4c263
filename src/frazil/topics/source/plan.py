"""Cuts a range of a topic into splits that Spark's tasks read on their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from frazil.log.protocol import OffsetGoneError, Span
from frazil.topics.reading.reader import TopicReader
from frazil.topics.reading.split_points import find_split_points
from frazil.topics.reading.topic_plan import TopicPlan
from frazil.topics.source.filters import Range

#: Bytes of files or log that one task reads, unless the job asks for a number of tasks.
SPLIT_BYTES = 64 * 1024 * 1024
_ALL = 1 << 62
_TRIES = 5


@dataclass(frozen=True)
class Split:
    """The messages of [start, end): from the files of a plan while these are there, else wherever they are."""

    start: int
    end: int
    plan: TopicPlan | None = None


def splits(
    reader: TopicReader, start: int, end: int, *, partitions: int | None = None, time_us: Range | None = None
) -> list[Split]:
    """Splits that have each message of a range exactly once; those outside a range of time may be left out.

    Raises:
        OffsetGoneError: neither log nor table has the range any more.
    """
    for attempt in range(_TRIES):
        try:
            return list(_splits(reader, start, end, partitions, time_us or Range())) if start < end else []
        except OffsetGoneError:
            # Retention may have moved a range from the log into the table since the table was loaded.
            if attempt == _TRIES - 1 or reader.bounds().start > start:
                raise
    raise AssertionError


def _splits(reader: TopicReader, start: int, end: int, partitions: int | None, time_us: Range) -> Iterator[Split]:
    info = reader.info()
    has_all = start >= info.start and not any(low < end and high > start for low, high in info.gaps)
    plan = None if reader.first == "log" and has_all else reader.plan(info)
    if plan is not None and plan.floor <= start < plan.position:
        seam = min(end, plan.position)
        yield from table_splits(plan, start, seam, partitions, time_us)
        start = seam
    if start < end:
        if start < info.start:
            raise reader.make_gone_error(start, info, plan)
        pieces = partitions or max(1, -(-info.size // SPLIT_BYTES))
        for span in reader.access.spans(reader.topic, start, _ALL, pieces):
            if span.start < end:
                start = min(span.end, end)
                yield Split(span.start, start)
        if start < end and info.gaps:  # the log ends with one: whoever reads looks into the table
            yield Split(start, end)


def table_splits(plan: TopicPlan, start: int, end: int, partitions: int | None, time_us: Range) -> Iterator[Split]:
    """The files of a plan in ranges of offsets with about as many bytes each; large files are cut."""
    near = plan.between(start, end)
    kept = near.only([f for f in near.files if f.earliest_us <= time_us.high and f.latest_us >= time_us.low])
    total = sum(f.size for f in kept.files)
    target = max(1, -(-total // partitions)) if partitions else SPLIT_BYTES
    edges = [start, *find_split_points(kept.files, start, end, target), end]
    portable = kept.portable()
    for low, high in pairwise(edges):
        part = portable.between(low, high)
        if part.files:
            yield Split(low, high, part)


def bounded_end(reader: TopicReader, start: int, max_bytes: int) -> int:
    """Where to stop so that about as many bytes are read from an offset on; at least one message, if there is one."""
    info = reader.info()
    if start >= info.start:
        taken: list[Span] = reader.access.spans(reader.topic, start, max_bytes, 1)
        return taken[-1].end if taken else max(start, info.end)
    plan = reader.plan(info)
    if plan is None or not plan.floor <= start < plan.position:
        raise reader.make_gone_error(start, info, plan)
    near = plan.between(start, plan.position)
    return next(find_split_points(near.files, start, plan.position, max_bytes), plan.position)
