"""Translates filters of dead letters into Iceberg expressions, so that scans can skip files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table


@dataclass(frozen=True)
class DeadLetterFilter:
    """Selects the dead letters that meet all of these conditions; None is no condition.

    Attributes:
        topic: the topic.
        sink: the sink that could not take the message.
        partition: partition of the topic.
        first: the lowest offset.
        before: the offset to stop before.
        reason: the class of the failure, in a word.
        since: written to the dead letters at this time or later.
        until: written before this time.
    """

    topic: str | None = None
    sink: str | None = None
    partition: int | None = None
    first: int | None = None
    before: int | None = None
    reason: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def messages(self) -> BooleanExpression:
        """Returns the condition of the rows that hold messages."""
        from pyiceberg.expressions import And, EqualTo

        return And(self._of_all_rows(), And(EqualTo(term="status", value="dead"), self._of_messages()))

    def marks(self) -> BooleanExpression:
        """Returns the condition of the rows that record replays, which do not repeat reason and time."""
        from pyiceberg.expressions import And, NotEqualTo

        return And(self._of_all_rows(), NotEqualTo(term="status", value="dead"))

    def messages_and_marks(self) -> BooleanExpression:
        """Returns the condition of both kinds of rows."""
        from pyiceberg.expressions import And, NotEqualTo, Or

        return And(self._of_all_rows(), Or(NotEqualTo(term="status", value="dead"), self._of_messages()))

    def _of_all_rows(self) -> BooleanExpression:
        from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan

        same = {"topic": self.topic, "sink": self.sink, "partition": self.partition}
        terms: list[BooleanExpression] = [EqualTo(term=k, value=v) for k, v in same.items() if v is not None]
        if self.first is not None:
            terms.append(GreaterThanOrEqual(term="offset", value=self.first))
        if self.before is not None:
            terms.append(LessThan(term="offset", value=self.before))
        return _all(terms)

    def _of_messages(self) -> BooleanExpression:
        from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, LessThan

        terms: list[BooleanExpression] = []
        if self.reason is not None:
            terms.append(EqualTo(term="reason", value=self.reason))
        if self.since is not None:
            terms.append(GreaterThanOrEqual(term="written_at", value=self.since.isoformat()))
        if self.until is not None:
            terms.append(LessThan(term="written_at", value=self.until.isoformat()))
        return _all(terms)


def _all(terms: list[BooleanExpression]) -> BooleanExpression:
    from pyiceberg.expressions import AlwaysTrue, And

    everything: BooleanExpression = AlwaysTrue()
    return reduce(And, terms, everything)


def in_arrow(table: Table, expression: BooleanExpression) -> pc.Expression:
    """Translates an expression into one of Arrow, for rows that have been read."""
    from pyiceberg.expressions.visitors import bind
    from pyiceberg.io.pyarrow import expression_to_pyarrow

    return expression_to_pyarrow(bind(table.schema(), expression, case_sensitive=True))
