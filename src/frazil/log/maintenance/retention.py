"""Retention of a topic's log: removes whole segments, oldest first, that every enabled sink has committed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from frazil.errors import UnavailableError, UsageError, first_line
from frazil.log import metrics
from frazil.log.protocol import Retained
from frazil.log.segment import Segment
from frazil.log.topic import TopicLog
from frazil.log.topic_file import TopicFile
from frazil.settings.model import LogSettings


@dataclass(frozen=True)
class Policy:
    """A segment may be removed if it is older than `age_s`, or the log is larger than `size`. None: no limit."""

    age_s: float | None
    size: int | None


def policy_of(topic: TopicFile, settings: LogSettings) -> Policy:
    """Returns the topic's policy.

    Only one with a table falls back on the settings: a log alone keeps everything by default.
    """
    own = Policy(topic.retention_age_s, topic.retention_bytes)
    if own != Policy(None, None) or topic.storage == "log":
        return own
    return Policy(settings.retention_age_s, settings.retention_bytes)


def committed_by_all(topic: TopicFile, reported: dict[str, int]) -> int | None:
    """Returns the offset up to which every enabled sink has committed; None: no sink needs the log."""
    if not topic.sinks:
        return None
    return min(reported.get(sink, 0) for sink in topic.sinks)


def removable(segments: list[Segment], policy: Policy, committed: int | None, now_us: int, total: int) -> int:
    """Returns how many of the oldest segments may be removed. The last one is active and stays."""
    count = 0
    for segment in segments[:-1]:
        done = committed is None or segment.end_offset <= committed
        old = policy.age_s is not None and (segment.last_time_us or 0) < now_us - policy.age_s * 1e6
        large = policy.size is not None and total > policy.size
        if not done or not (old or large):
            break
        total -= segment.size
        count += 1
    return count


def retain(topic: TopicLog, policy: Policy, committed: int | None, *, dry_run: bool) -> Retained:
    for limit in (policy.age_s, policy.size):
        if limit is not None and not limit >= 0:
            raise UsageError(f"retention has an age or a size of 0 or more, not {limit}")
    segments, _ = topic.visible()
    count = removable(segments, policy, committed, time.time_ns() // 1000, topic.files.size)
    size = sum(s.size for s in segments[:count])
    start = segments[count].id if segments else topic.start
    if count and not dry_run:
        try:
            gone = topic.files.remove_before(start)
        except OSError as error:
            raise UnavailableError(
                f"old segments of topic '{topic.name}' cannot be removed: {topic.files.folder}",
                cause=first_line(error),
                hint="check that disk",
            ) from error
        count, size, start = len(gone), sum(s.size for s in gone), topic.files.start
        metrics.REMOVED.labels(topic.name).inc(size)
    return Retained(count, size, start)
