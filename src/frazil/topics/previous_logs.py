"""The logs that a topic's table has had before: what it says of their dead letters after it has adopted another one."""

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
    """A log, and the offset from which on its offsets do not count any more."""

    log_id: str
    end: int


def read_previous_logs(metadata: TableMetadata) -> tuple[PreviousLog, ...]:
    return tuple(PreviousLog(str(log_id), int(end)) for log_id, end in json.loads(metadata.properties.get(_KEY, "[]")))


def add_previous_log(metadata: TableMetadata, former: PreviousLog) -> dict[str, str]:
    """The table's properties that say it had this log too."""
    return {_KEY: json.dumps([*read_previous_logs(metadata), former])}


def filter_dead_letters_of(
    topic: str, log_id: str, former: tuple[PreviousLog, ...], start: int, end: int
) -> BooleanExpression:
    """The dead letters that are messages of a topic with offsets in [start, end) which its table could not take.

    A topic that was made anew counts its offsets anew: letters of logs that its table does not know are not its own.
    """
    from pyiceberg.expressions import And, EqualTo, LessThan, Or

    own: BooleanExpression = EqualTo(term="log_id", value=log_id)
    for other in former:
        theirs = And(EqualTo(term="log_id", value=other.log_id), LessThan(term="offset", value=other.end))
        own = Or(own, theirs)
    return And(DeadLetterFilter(topic, ARCHIVE, first=start, before=end).messages(), own)
