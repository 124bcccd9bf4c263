"""Reconciles a topic's table and log if only an operator can decide which one counts."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from frazil.errors import ConflictError, NotFoundError, UsageError
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table
from frazil.topics.layout import ARCHIVE, REPLAY, dead_letters_name, get_replays_topic
from frazil.topics.positions import has_other_messages, recorded_position
from frazil.topics.previous_logs import PreviousLog, add_previous_log
from frazil.topics.sinks.registry import sink_tables

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import Position, TableStore

Choice = Literal["rewind", "keep"]
#: Ranges that are listed; further ones are only counted.
_MOST_LISTED = 20


@dataclass(frozen=True)
class Adoption:
    """The mismatch of table and log, and what adopting makes of it."""

    topic: str
    problem: Literal["none", "new_log", "rolled_back", "gap", "other_messages", "letters_rolled_back"]
    message: str
    before: int
    """The table's position as it is."""
    after: int
    """And as it will be: the sink goes on with this offset."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Adopting:
    """Plans an adoption, then executes it. The table must not change in between.

    For a topic with several sinks, it concerns the first one that cannot continue.
    """

    def __init__(
        self, access: LogAccess, settings: Settings, topic: str, store: LazyStore, choice: Choice | None = None
    ) -> None:
        info = access.info(topic)
        opened = store.store()
        found: dict[str, list[Table]] = {}
        for sink, name in sink_tables(settings, topic):
            if (table := find_table(opened, name)) is not None:
                found.setdefault(sink, []).append(table)
        if not found:
            raise NotFoundError(f"topic '{topic}' has no table to adopt", hint=f"frazil topic show {topic}")
        # Also a sink that is not enabled yet: the log is refused as long as a table of the topic knows another one.
        wanted = [s for s in found if s in info.sinks or _knows_another_log(found[s][-1], info, s)]
        chosen = wanted or [list(found)[-1]]
        letters = find_table(opened, dead_letters_name(settings))
        others = [letters] if letters is not None else []
        self._sinks = [
            _Sink(access, info, settings, opened, sink, found[sink][-1], [*found[sink][:-1], *others], choice)
            for sink in chosen
        ]
        self._chosen = self._sinks[-1]

    def plan(self) -> Adoption:
        """Determines the mismatch and the plan.

        Raises:
            UsageError: the table was rolled back, or has other messages than the log, and no choice was given.
            ConflictError: log and table have different messages under the same offsets.
        """
        for sink in self._sinks:
            self._chosen, plan = sink, sink.plan()
            if plan.problem != "none":
                break
        return plan

    def do(self, plan: Adoption) -> None:
        """Executes the plan.

        Raises:
            ConflictError: the table has changed since the plan, or the log has removed what it needs.
        """
        self._chosen.do(plan)


class _Sink:
    """One sink of the topic: the table with its position, and those beside it."""

    def __init__(
        self,
        access: LogAccess,
        info: TopicInfo,
        settings: Settings,
        store: TableStore,
        sink: str,
        table: Table,
        sides: list[Table],
        choice: Choice | None,
    ) -> None:
        from frazil.tables import RolledBackError, find_position

        self._access, self._info, self._settings, self._store = access, info, settings, store
        self._topic, self._choice = info.name, choice
        self._sink, self._table, self._sides = sink, table, sides
        self._rolled_back: RolledBackError | None = None
        self._position: Position | None = None
        try:
            self._position = find_position(table, sink, info.name)
        except RolledBackError as error:
            self._rolled_back = error
            self._position = error.recorded

    def _sides_rolled_back(self) -> list[tuple[Table, str, str]]:
        """Table, sink and topic of the positions that a rollback of a side table has taken back."""
        from frazil.tables import RolledBackError, find_position

        found = []
        for table in self._sides:
            for sink, name in ((self._sink, self._topic), (REPLAY, get_replays_topic(self._topic))):
                try:
                    find_position(table, sink, name)
                except RolledBackError:
                    found.append((table, sink, name))
        return found

    def plan(self) -> Adoption:
        held = self._position
        if held is None:
            return self._behind(0) or self._adoption("none", "the table has taken in nothing yet", 0, 0)
        offset = held.offsets.get(0, 0)
        if held.log_id != self._info.log_id:
            return self._new_log(held, offset)
        if self._rolled_back is not None:
            return self._roll_back(offset)
        if (ahead := self._ahead(held, offset)) is not None:
            return ahead
        if (gap := self._behind(offset)) is not None:
            return gap
        if gone := self._sides_rolled_back():
            return self._without_some(offset, ".".join(gone[0][0].name()))
        return self._adoption("none", "table and log belong together", offset, offset)

    def _behind(self, offset: int) -> Adoption | None:
        """What is neither in the log nor, for other sinks, in the archive; None: nothing that the sink still needs."""
        from frazil.topics.sinks.backfill import Backfill

        if self._sink != ARCHIVE:
            after = Backfill(self._store, self._settings, self._topic, self._sink).first_kept(self._info, offset)
        else:
            # Without a position the archive begins where the log does.
            after = max(offset, self._info.start) if self._position is not None else offset
        if after == offset:
            return None
        return self._adoption("gap", f"offsets {offset} to {after} are in neither; they are left out", offset, after)

    def _adoption(self, problem: Any, message: str, before: int, after: int) -> Adoption:
        return Adoption(self._topic, problem, message, before, after)

    @property
    def _has_messages(self) -> bool:
        return self._info.written > self._info.start and self._info.segments > 0

    def _new_log(self, held: Position, offset: int) -> Adoption:
        from frazil.tables import find_highest_offsets

        tables = [self._table, *self._side_tables()]
        highest = max([offset, *(o for table in tables for o in find_highest_offsets(table, self._topic).values())])
        if self._has_messages and self._info.start < highest:
            raise ConflictError(
                f"the log of topic '{self._topic}' has messages from offset {self._info.start} on, and its table has"
                f" others up to {highest}",
                cause=f"the table was written from log {held.log_id}, and this is log {self._info.log_id}",
                hint="another topic's name, or bring the table's own log back",
            )
        after = max(highest, self._info.start)
        message = f"the table was written from log {held.log_id}; it goes on with log {self._info.log_id}"
        return self._adoption("new_log", message, offset, after)

    def _ahead(self, held: Position, offset: int) -> Adoption | None:
        """Where an older copy of the log was brought back while a batch was under way; None: it was not."""
        if has_other_messages(self._access, self._info, held):
            told = f"the last rows before offset {offset} are not the log's messages with those offsets"
            if self._choice != "keep":
                raise UsageError(
                    told,
                    cause="an older copy of the log was brought back while a pipeline was at work",
                    hint="--keep to leave the log's messages out; or roll the table back to before those rows, and then"
                    " --rewind",
                )
            return self._adoption("other_messages", f"{told}; the log's messages stay out", offset, offset)
        if self._info.written < offset <= self._access.sync(self._topic):
            self._info = self._access.info(self._topic)
        if self._info.written < offset:
            raise ConflictError(
                f"the log of topic '{self._topic}' ends at {self._info.written}, and its table is at {offset}",
                cause="the table was written after the log had asked it how far it was",
                hint="restart frazil serve: it asks again, and goes on behind the table",
            )
        return None

    def _without_some(self, offset: int, side: str) -> Adoption:
        told = f"the table {side} was rolled back: some of this topic's rows are gone"
        if self._choice != "keep":
            raise UsageError(
                told,
                cause="they cannot be written again: the topic's own table has passed them",
                hint="--keep to leave them out, or roll that table forward again",
            )
        return self._adoption("letters_rolled_back", f"{told}; they stay out", offset, offset)

    def _roll_back(self, offset: int) -> Adoption:
        reached = self._reached(offset)
        to = "an unknown offset" if reached is None else reached
        told = f"the table was rolled back from offset {offset} to {to}"
        if self._choice is None:
            raise UsageError(
                told,
                cause="only you can say what that shall mean",
                hint="--rewind to write the rows again from the log, or --keep to leave them out",
            )
        if self._choice == "keep":
            return self._adoption("rolled_back", f"{told}; the rows stay out", offset, offset)
        if reached is None:
            raise ConflictError(
                f"{told}: rows that it has would be written again",
                cause="every snapshot that told how far its rows reach has been expired",
                hint="--keep to leave out what is missing, or roll the table forward again",
            )
        self._require_kept(told, reached)
        told += "; the rows are written again"
        if gaps := [(max(a, reached), min(b, offset)) for a, b in self._info.gaps if a < offset and b > reached]:
            shown = ", ".join(f"{a} to {b}" for a, b in gaps[:_MOST_LISTED])
            more = f" and {len(gaps) - _MOST_LISTED} further ranges" if len(gaps) > _MOST_LISTED else ""
            told += f", but not those at {shown}{more}, where the log has nothing"
        return self._adoption("rolled_back", told, offset, reached)

    def _reached(self, before: int) -> int | None:
        """How far the rows of a table reach that was rolled back; None: there are some, and nothing tells.

        Where others have rewritten them, and expired what was before, no snapshot tells. Of the archive its rows do.
        """
        assert self._rolled_back is not None
        held = self._rolled_back.table_position
        if held is not None:
            return held.offsets.get(0, 0)
        if self._table.current_snapshot() is None:
            return 0
        if self._sink != ARCHIVE:
            return None
        return self._store.call(lambda: _end_of_rows(self._table, before), "scan", "storage")

    def _require_kept(self, told: str, reached: int) -> None:
        if self._behind(reached) is not None:
            raise ConflictError(
                f"{told}, and the log begins at {self._info.start}: it cannot be written again",
                hint="--keep to leave it out, or roll the table forward again",
            )

    def do(self, plan: Adoption) -> None:
        from frazil.tables import accept_rollback

        if plan.problem == "rolled_back":
            assert self._rolled_back is not None
            # Before anything else: the log lets go of what it believes to be in the table.
            self._access.report(self._topic, self._sink, plan.after)
            self._info = self._access.info(self._topic)
            if self._choice == "rewind":
                self._require_kept(f"the table was rolled back to offset {plan.after}", plan.after)
            if self._choice == "rewind" and self._rolled_back.table_position is None and plan.after:
                self._go_on_at(plan.after)
            else:
                accept_rollback(self._store, self._table, self._sink, self._topic, keep=self._choice == "keep")
        elif plan.problem in ("new_log", "gap", "other_messages"):
            is_archive = self._sink == ARCHIVE  # the dead letters of others are not read as messages
            former = self._former() if plan.problem == "new_log" and is_archive else None
            if plan.problem == "new_log":  # first: after a crash in between the plan is the same
                self._raise_floor(max(plan.after, self._end_of_letters()))
                self._adopt_side_tables(plan.after)
            self._go_on_at(plan.after, former)
        if plan.problem != "none":
            while gone := self._sides_rolled_back():
                table, sink, name = gone[0]
                self._sides[self._sides.index(table)] = accept_rollback(self._store, table, sink, name, keep=True)

    def _go_on_at(self, offset: int, former: PreviousLog | None = None) -> None:
        from frazil.tables import Position, adopt

        info = self._info
        position = Position(self._sink, self._topic, {0: offset}, info.log_id, info.epoch, str(uuid.uuid4()))
        more = None if former is None else add_previous_log(self._table.metadata, former)
        adopt(self._store, self._table, position, properties=more)

    def _side_tables(self) -> list[Table]:
        """The side tables of the sink itself, without the dead letters, which belong to all sinks."""
        letters = dead_letters_name(self._settings)
        return [table for table in self._sides if ".".join(table.name()) != letters]

    def _end_of_letters(self) -> int:
        """Dead letters may be further than the tables: their offsets are not given out again either."""
        from frazil.tables import find_highest_offsets

        known = (find_highest_offsets(table, self._topic).values() for table in self._sides)
        return max((offset for offsets in known for offset in offsets), default=0)

    def _raise_floor(self, offset: int) -> None:
        """Lets the log go on behind the table. One with storage `iceberg` asks its tables, every time it is opened."""
        if self._info.storage == "log" and self._info.written < offset:
            self._access.configure(self._topic, {"floor": offset})
            self._info = self._access.info(self._topic)

    def _adopt_side_tables(self, offset: int) -> None:
        """Lets side tables go on with the new log: it is asked for its offsets, and refuses a table of another log."""
        from frazil.tables import RolledBackError, adopt, find_position

        for table in self._side_tables():
            try:
                held = find_position(table, self._sink, self._topic)
            except RolledBackError as error:
                held = error.recorded
            if held is None or held.log_id == self._info.log_id:
                continue
            offsets = {0: max(offset, held.offsets.get(0, 0))}
            moved = replace(
                held, log_id=self._info.log_id, epoch=self._info.epoch, offsets=offsets, batch_id=str(uuid.uuid4())
            )
            self._sides[self._sides.index(table)] = adopt(self._store, table, moved)

    def _former(self) -> PreviousLog:
        """The log that the table had, and where the offsets end that count for that one."""
        from frazil.tables import find_highest_offsets

        assert self._position is not None
        if self._has_messages:
            return PreviousLog(self._position.log_id, self._info.start)
        # Dead letters may be further than the table; the new log asks them too where it begins.
        known = [self._table, *self._sides]
        return PreviousLog(
            self._position.log_id, max(o for t in known for o in find_highest_offsets(t, self._topic).values())
        )


def _knows_another_log(table: Table, info: TopicInfo, sink: str) -> bool:
    held = recorded_position(table, info.name, sink)
    return held is not None and held.log_id != info.log_id


def _end_of_rows(table: Table, before: int) -> int:
    """The offset behind the last row of an archive that is below another; 0 where it has none."""
    import pyarrow.compute as pc

    rows = table.scan(row_filter=f"offset < {before}", selected_fields=("offset",)).to_arrow_batch_reader()
    return max((pc.max(batch["offset"]).as_py() + 1 for batch in rows if batch.num_rows), default=0)
