"""A span of a topic in its archive table, which executors read as if it came from the log.

What the archive could not take comes from its dead letters, in the right order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from frazil.errors import UnavailableError
from frazil.log.messages import message_schema
from frazil.log.protocol import Span, TopicView
from frazil.settings import NetworkSettings
from frazil.tables.reading.ordered_scan import scan_in_order
from frazil.tables.reading.retrying import is_missing_file
from frazil.topics.reading.topic_plan import TopicPlan

#: Rows that are handed on at once: a row group of the table may have many more than a chunk of the log.
_ROWS = 20_000


class FilesGoneError(UnavailableError):
    """Compaction and expiry have replaced files since the batch was planned: it is planned again."""


@dataclass(frozen=True, kw_only=True)
class ArchivedSpan(Span):
    """Offsets, and the files of one snapshot that hold them. Picklable."""

    archive: TopicPlan
    network: NetworkSettings


def read_archived(span: ArchivedSpan, view: TopicView) -> Iterator[pa.Table]:
    """Yields the messages of a span by offset, with the columns that the log gave them.

    Raises:
        FilesGoneError: a file no longer exists.
        UnavailableError: storage does not answer.
    """
    with _translating_errors(view.topic):
        for scanned in scan_in_order(span.archive, message_schema(view), span.start, span.end, network=span.network):
            for at in range(0, scanned.table.num_rows, _ROWS):
                yield scanned.table.slice(at, _ROWS)


@contextmanager
def _translating_errors(topic: str) -> Iterator[None]:
    """Translates errors of storage inside the block to errors of the topic's archive."""
    try:
        yield
    except OSError as error:
        if is_missing_file(error):
            raise FilesGoneError(f"a file of the archive of topic '{topic}' has gone", cause=str(error)) from error
        raise UnavailableError(
            f"the archive of topic '{topic}' cannot be read", cause=str(error), hint="frazil doctor"
        ) from error
