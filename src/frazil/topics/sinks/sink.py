"""A sink takes ranges of a topic into tables. This is what it must be able to do; the engine does the rest.

Order of a batch: plan → write files on Spark → commit the side tables → commit the table that carries the position.
A crash between two of these steps is met by the next plan, which starts again at the position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from frazil.log.columns import PARTITION
from frazil.log.protocol import Span, TopicInfo
from frazil.tables import Position

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from frazil.topics.sinks.backfill import Backfill


@dataclass(frozen=True)
class Plan:
    """One batch: the messages from the position up to the last span's end."""

    info: TopicInfo
    """Taken after the spans, so that it knows every column in them."""
    expected: Position | None
    spans: tuple[Span, ...]
    batch_id: str
    isolate: bool = False
    """Whether the batch has failed so often that its work looks for the messages that cannot be written."""

    @property
    def end(self) -> int:
        return self.spans[-1].end

    @property
    def size(self) -> int:
        return sum(s.size for s in self.spans)

    def reached(self, sink: str) -> Position:
        return Position(sink, self.info.name, {PARTITION: self.end}, self.info.log_id, self.info.epoch, self.batch_id)


@dataclass(frozen=True)
class Written:
    """What one task has written: files by table, none of them committed."""

    files: Mapping[str, Sequence[DataFile]] = field(default_factory=dict)
    rows: int = 0
    dead: int = 0

    def paths(self) -> list[str]:
        return [f.file_path for files in self.files.values() for f in files]


#: What a Spark task does with a span. It is pickled; it removes its files when it fails.
Work = Callable[[Span], Written]
#: Runs the work on all spans, on Spark or, in tests, in this process.
Runner = Callable[[Work, Sequence[Span]], list[Written]]


class Sink(Protocol):
    name: str
    idle_work_every_s: float

    def tables(self, topic: str) -> list[str]:
        """The tables that it writes; last the one that carries the position."""
        ...

    def table(self, info: TopicInfo) -> Table:
        """The table that carries the position, as it is now, with a column for all that the topic has."""
        ...

    def backfill(self, topic: str) -> Backfill | None:
        """Where messages come from that the log no longer has; None: the sink begins where the log does."""
        ...

    def write(self, table: Table, plan: Plan, run: Runner) -> list[Written]:
        """Writes the files of a batch, none of them committed.

        Raises:
            TasksFailedError: some of the work failed; it says what was written all the same.
        """
        ...

    def commit(self, table: Table, plan: Plan, written: Sequence[Written]) -> Table:
        """Commits side tables first, then the table and its position; returns that table.

        Raises:
            PositionMovedError: another pipeline committed first; nothing of this batch is in the table.
        """
        ...

    def run_idle_work(self, table: Table, position: Position) -> Table:
        """Does what is due between batches, such as retention. Called every `idle_work_every_s`; returns the table."""
        ...

    def idle_work_due_s(self) -> float | None:
        """Returns the seconds until `run_idle_work` must run to complete rows already in the table; None: nothing."""
        ...


def files_of(written: Iterable[Written], table: str) -> list[DataFile]:
    return [f for w in written for f in w.files.get(table, ())]
