"""Sends dead letters again, in portions, each of them once.

A replay publishes each message anew, with its payload, request id, headers and columns, and a header that says where
it was. It survives a crash at any point without sending twice. For each portion, first the dead-letter table notes
which messages a producer of its own is going to send (`replaying`), then they are sent, then it notes that they are
(`replayed`). Whoever finds a portion that was cut off sends it again as the same producer, and the log takes only
what it does not have.

A message that today's log refuses, as one that an older Frazil took, is left out before anything is noted, and stays
dead. Where a replay that was cut off has noted it already, it is given back (`released`) when that one is taken up.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import NotFoundError, UsageError
from frazil.log.batch import Batch
from frazil.log.protocol import Level, LogAccess, TopicInfo
from frazil.log.trust import has_mark
from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.tables import PositionMovedError, TableStore
from frazil.topics.dead_letters.batches import MessageKey, batches, message_keys, refused_rows, without_rows
from frazil.topics.dead_letters.filters import DeadLetterFilter
from frazil.topics.dead_letters.query import at_offsets, waiting
from frazil.topics.dead_letters.replay_ledger import ENDED, Intent, keys_of, note, unfinished
from frazil.topics.dead_letters.rows import KEY, columns, letters_by_offset, on_current, plan_letters

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")

#: Letters that are noted together; what a crash leaves to be sent again is at most so many.
_PORTION = 20_000


@dataclass(frozen=True)
class Replayed:
    """How many messages were sent again, and how many of those had been sent by a replay that was cut off.

    `refused` has the offsets of messages that the log does not take, with the reason; they stay dead letters.
    """

    sent: int
    resumed: int
    refused: dict[int, str] = field(default_factory=dict)


def replay_dead_letters(
    store: TableStore,
    settings: Settings,
    access: LogAccess,
    topic: str,
    filters: DeadLetterFilter | None = None,
    *,
    offsets: Collection[int] | None = None,
    as_internal: bool = False,
    progress: Callable[[int], None] = lambda _sent: None,
) -> Replayed:
    """Sends the dead letters of a topic again; first what an earlier replay left undone, whatever it had chosen.

    Letters that come up meanwhile are left for the next replay: those may be the same messages, refused again.

    Args:
        store: the catalog with the dead letters.
        settings: the settings.
        access: the log.
        topic: the topic.
        filters: which of its letters; all by default.
        offsets: of these, only those at some offsets.
        as_internal: mark them as messages of Frazil's own, which an operator answers for; what another replay has left
            undone is not marked. By default only messages that had the mark keep it.
        progress: is told after each portion how many have been sent so far.

    Raises:
        NotFoundError: an offset is no dead letter, or was sent again already. Nothing is sent.
        IntegrityError: letters of a replay that was cut off are no longer in the table.
    """
    chosen = replace(filters or DeadLetterFilter(), topic=topic)
    if offsets is not None:
        _require(store, settings, chosen, offsets)
    replaying = _Replaying(store, settings, access, access.info(topic), progress)
    resumed = replaying.resume()
    replaying.send(chosen, offsets, as_internal=as_internal)
    return Replayed(replaying.sent, resumed, replaying.refused)


def _require(store: TableStore, settings: Settings, filters: DeadLetterFilter, offsets: Collection[int]) -> None:
    def read_rows(table: Table) -> set[int]:
        found = letters_by_offset(store, table, filters)
        return {o for letters in found for o in at_offsets(waiting(letters), offsets)["offset"].to_pylist()}

    none: set[int] = set()
    if missing := sorted(set(offsets) - on_current(store, settings, read_rows, none)):
        raise NotFoundError(
            f"offset {missing[0]} of topic '{filters.topic}' is no dead letter that waits to be sent again",
            hint=f"frazil topic dead-letters list {filters.topic}",
        )


@dataclass(frozen=True)
class _Portion:
    """Letters that are sent and noted together, by offset, and the table that says so of them."""

    table: Table
    keys: pa.Table


class _Replaying:
    """One call of `replay_dead_letters`."""

    def __init__(
        self,
        store: TableStore,
        settings: Settings,
        access: LogAccess,
        info: TopicInfo,
        progress: Callable[[int], None],
    ) -> None:
        self._store, self._settings, self._access, self._info = store, settings, access, info
        self._progress = progress
        self._max_message_size = settings.model.log.max_message_size
        self.sent = 0
        self.refused: dict[int, str] = {}

    def resume(self) -> int:
        """Ends what others have begun."""
        begun: list[Intent] = []
        for intent in self._read_current(lambda table: unfinished(self._store, table, self._info.name), begun):
            found = self._read_current(partial(self._portion_of, intent), None)
            if found is not None:
                self._send(intent, found)
        return self.sent

    def send(self, filters: DeadLetterFilter, offsets: Collection[int] | None, *, as_internal: bool) -> None:
        chosen, start, intent = self._as_of_now(filters), 0, None
        while True:
            portion = self._read_current(partial(self._next, chosen, offsets, start), None)
            if portion is None:
                return
            last = int(portion.keys["offset"][-1].as_py())
            portion = self._without_refused(portion)
            if not portion.keys.num_rows:
                start = last + 1
                continue
            if intent is None:
                registered = self._access.register(self._info.name, f"dead-letters-{uuid.uuid4()}")
                intent = Intent(registered.producer_id, registered.producer_epoch)
            try:
                noted = self._note(portion, "replaying", intent)
            except PositionMovedError:
                continue  # another replay was faster: look what is left
            following = self._send(intent, noted, as_internal=as_internal)
            intent = Intent(intent.producer_id, intent.producer_epoch, following)
            start = last + 1

    def _read_current(self, read_rows: Callable[[Table], T], otherwise: T) -> T:
        return on_current(self._store, self._settings, read_rows, otherwise)

    def _without_refused(self, portion: _Portion) -> _Portion:
        refused: set[MessageKey] = set()
        for keys, batch in batches(self._store, self._settings, self._info, portion.keys):
            refused |= self._note_refused(keys, refused_rows(batch, self._max_message_size))
        if not refused:
            return portion
        return replace(portion, keys=portion.keys.filter(pc.invert(_among(portion.keys, refused))))

    def _note_refused(self, keys: list[MessageKey], rows: dict[int, str]) -> set[MessageKey]:
        self.refused |= {keys[row][0]: reason for row, reason in rows.items()}
        return {keys[row] for row in rows}

    def _note(self, portion: _Portion, status: str, intent: Intent, refused: Collection[MessageKey] = ()) -> _Portion:
        topic = self._info.name
        released = _among(portion.keys, refused) if refused else None
        table = note(self._store, self._settings, portion.table, topic, portion.keys, status, intent, released)
        return replace(portion, table=table)

    def _as_of_now(self, filters: DeadLetterFilter) -> DeadLetterFilter:
        """Without what comes up from now on."""

        def read_rows(table: Table) -> int:
            return max((f.upper for f in plan_letters(self._store, table, filters.messages()).files), default=-1) + 1

        end = self._read_current(read_rows, 0)
        return replace(filters, before=end if filters.before is None else min(end, filters.before))

    def _next(
        self, filters: DeadLetterFilter, offsets: Collection[int] | None, start: int, table: Table
    ) -> _Portion | None:
        """The next letters that nobody has sent, all of an offset or none."""
        found, count = [_NO_KEYS], 0
        first = max(start, filters.first or 0)
        for letters in letters_by_offset(self._store, table, replace(filters, first=first), start=first):
            dead = letters.filter(pc.equal(letters["status"], "dead")).select(KEY)
            found.append(at_offsets(dead, offsets))
            count += found[-1].num_rows
            if count >= _PORTION:
                break
        keys = pa.concat_tables(found).combine_chunks()
        if count > _PORTION:
            keys = keys.filter(pc.less_equal(keys["offset"], keys["offset"][_PORTION - 1]))
        return _Portion(table, keys) if keys.num_rows else None

    def _portion_of(self, intent: Intent, table: Table) -> _Portion | None:
        keys = keys_of(self._store, table, self._info.name, intent, "replaying")
        return _Portion(table, keys) if keys.num_rows else None

    def _is_done(self, intent: Intent, table: Table) -> tuple[bool, Table]:
        return any(keys_of(self._store, table, self._info.name, intent, status).num_rows for status in ENDED), table

    def _send(self, intent: Intent, portion: _Portion, *, as_internal: bool = False) -> int:
        """Sends what an intent names and notes it; the number of the batch that would follow."""
        sequence, sent = intent.sequence, 0
        refused: set[MessageKey] = set()
        for keys, batch in batches(self._store, self._settings, self._info, portion.keys, as_internal=as_internal):
            producer = {"producer_id": intent.producer_id, "producer_epoch": intent.producer_epoch}
            reach("dead_letters.send.before")
            try:
                made = Batch.of_arrow(batch, **producer, sequence=sequence)
                made.check(self._max_message_size)
            except UsageError:  # noted by a Frazil that did not look before
                rows = refused_rows(batch, self._max_message_size)
                refused |= self._note_refused(keys, rows)
                if len(rows) == batch.num_rows:
                    continue
                made = Batch.of_arrow(without_rows(batch, rows), **producer, sequence=sequence)
            # Only a message that was Frazil's own has the mark: nobody else could publish it with one.
            self._access.append(self._info.name, made, Level.disk, internal=has_mark(made.arrow))
            reach("dead_letters.send.after")
            sequence, sent = sequence + 1, sent + made.count
        self._finish(intent, portion, refused)
        self.sent += sent
        self._progress(self.sent)
        return sequence

    def _finish(self, intent: Intent, portion: _Portion, refused: Collection[MessageKey]) -> None:
        while True:
            try:
                self._note(portion, "replayed", intent, refused)
            except PositionMovedError:
                done, table = self._read_current(partial(self._is_done, intent), (False, portion.table))
                if done:
                    return  # another replay found this one, and took it to its end
                portion = replace(portion, table=table)
            else:
                return


_NO_KEYS = columns(()).empty_table().select(KEY)


def _among(keys: pa.Table, messages: Collection[MessageKey]) -> pa.Array:
    return pa.array([key in messages for key in message_keys(keys)], pa.bool_())
