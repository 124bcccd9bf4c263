"""The logs that a topic's table belonged to before it adopted another one, and how their dead letters are found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from frazil.topics.dead_letters.filters import DeadLetterFilter
from frazil.topics.layout import ARCHIVE

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table.metadata import TableMetadata

#: A property of the topic's table.
_KEY = "frazil.former-logs"


class PreviousLog(NamedTuple):
    """A log, and the offset from which on its offsets are no longer valid."""

    log_id: str
    end: int


def read_previous_logs(metadata: TableMetadata) -> tuple[PreviousLog, ...]:
    return tuple(PreviousLog(str(log_id), int(end)) for log_id, end in json.loads(metadata.properties.get(_KEY, "[]")))


def add_previous_log(metadata: TableMetadata, former: PreviousLog) -> dict[str, str]:
    """Returns table properties that record one more previous log."""
    return {_KEY: json.dumps([*read_previous_logs(metadata), former])}


def filter_dead_letters_of(
    topic: str, log_id: str, former: tuple[PreviousLog, ...], start: int, end: int
) -> BooleanExpression:
    """Returns the filter of a topic's dead letters with offsets in [start, end).

    A topic that was created again starts its offsets again: dead letters of logs that its table does not know are
    excluded.
    """
    from pyiceberg.expressions import And, EqualTo, LessThan, Or

    own: BooleanExpression = EqualTo(term="log_id", value=log_id)
    for other in former:
        theirs = And(EqualTo(term="log_id", value=other.log_id), LessThan(term="offset", value=other.end))
        own = Or(own, theirs)
    return And(DeadLetterFilter(topic, ARCHIVE, first=start, before=end).messages(), own)
