"""Decides and publishes changes of documents, in the process that has the log open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents.arrow import REVISION_SCHEMA, revisions_to_table, table_to_revisions
from frazil.documents.decide import Decision, StoredRevision, WriteBatch, next_moment
from frazil.documents.fields import CLOCK_TOLERANCE, check_column, is_document_id
from frazil.documents.iceberg.group_commit import GroupCommit, Request
from frazil.documents.iceberg.keeper import ProjectionKeeper
from frazil.documents.loading import plan_load
from frazil.documents.messages import BulkFile, encode_bulk, encode_column, encode_revision
from frazil.documents.model import Column, Revision, from_micros
from frazil.documents.sql.arrow_rows import find_new_histories, insert_new_histories
from frazil.documents.sql.records import (
    apply_decided,
    apply_revisions,
    find_repeats,
    insert_column,
    load_current,
    load_histories,
)
from frazil.documents.store import Write
from frazil.errors import ConflictError, FrazilError, UnavailableError, UsageError
from frazil.log.batch import Batch
from frazil.log.protocol import NOT_TAKEN, Ack, Level
from frazil.log.trust import add_mark
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from frazil.documents.iceberg.projection import Projection
    from frazil.log.log import Log
    from frazil.settings import Settings

#: Writes of one commit, where many wait.
_MAX_GROUP: Final = 5_000
_HEADERS: Final = tuple(add_mark({"source": "documents"}).items())
#: Bytes of a message's headers in the log, generously.
_HEADER_BYTES: Final = 64

logger = get_logger(__name__)

WriteRequest = Request[WriteBatch, list[Revision]]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class _Publication:
    """Messages, and how the projection takes them in."""

    messages: list[bytes]
    apply: Callable[[Connection], None]
    rows: int
    moment: datetime | None = None


@dataclass
class _Group:
    """The decisions of a group of requests, as if each were applied before the next is decided."""

    current: dict[str, Revision]
    repeats: dict[str, StoredRevision]
    columns: dict[str, Column]
    accepted: list[tuple[WriteRequest, list[Decision]]] = field(default_factory=list)
    fresh: list[StoredRevision] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    size: int = 0


class DocumentOwner:
    """Decides revisions. Any number of threads may use one; of all processes only the owner of the log has one.

    Each change is one transaction of the projection, with the append to the log in its middle: read the latest
    revisions, decide, append durably, apply, commit.

    Args:
        settings: the settings.
        opened: the log, open in this process.
        keeper: keeps the projection in line with it.
        now: the clock.
    """

    def __init__(
        self, settings: Settings, opened: Log, keeper: ProjectionKeeper, *, now: Callable[[], datetime] = _now
    ) -> None:
        self.keeper, self.log = keeper, opened
        self._now = now
        self._topic = settings.model.documents.topic
        self._max_bytes = settings.model.log.batch_limit
        self._lock = keeper.lock
        self._group: GroupCommit[WriteBatch, list[Revision]] = GroupCommit(self._commit, _MAX_GROUP)

    def write(self, writes: Sequence[Write]) -> list[Revision]:
        """Applies a batch of writes, all or nothing, and returns when it is durable and every reader sees it."""
        if not writes:
            return []
        return self._group.submit(WriteBatch.of(writes), len(writes))

    def add_column(self, name: str, kind: str) -> Column:
        column = check_column(name, kind)

        def plan(connection: Connection) -> _Publication | None:
            present = self.keeper.load_state(connection).columns.get(name)
            if present == column:
                return None
            if present is not None:
                raise ConflictError(
                    f"column '{name}' exists with type {present.type}", hint="choose another name, or the same type"
                )
            return _Publication([encode_column(column)], lambda c: insert_column(c, column), 0)

        self._publish(plan)
        return column

    def load(self, revisions: Sequence[Revision]) -> int:
        """Stages and publishes the revisions that the store does not have yet, and returns how many there were."""
        return self._load(revisions, [])

    def publish_bulk(self, files: Sequence[BulkFile], staged: pa.Table | None = None) -> int:
        """Publishes staged files, and returns how many of their revisions were new.

        Files with revisions that the store has already are replaced by others without them.

        Args:
            files: the files.
            staged: their content; None: it is read.
        """
        staging = self.keeper.staging()
        parts = [staged] if staged is not None else [staging.read(file) for file in files]
        rows = pa.concat_tables([REVISION_SCHEMA.empty_table(), *parts])
        count = int(rows.num_rows)

        def plan(connection: Connection) -> _Publication | None:
            new = find_new_histories(connection, rows)
            newest = from_micros(pc.max(rows.column("valid_from").cast(pa.int64())).as_py()) if count else None
            clock = self.keeper.load_state(connection).clock
            if new is None or newest is None or newest > next_moment(clock, self._now()) + CLOCK_TOLERANCE:
                return None
            moment = newest if clock is None else max(newest, clock)
            return _Publication([encode_bulk(files)], lambda c: insert_new_histories(c, new), count, moment)

        if self._publish(plan):
            return count
        made = self._load([stored.revision for stored in table_to_revisions(rows)], files)
        if made < count:  # another file was published, or none
            for file in files:
                staging.remove(file)
        return made

    def remove_staged_files(self) -> int:
        """Removes staged files that the log has passed, and returns how many there were."""
        return self.keeper.remove_staged_files()

    def _load(self, revisions: Sequence[Revision], files: Sequence[BulkFile]) -> int:
        ids = {revision.document_id for revision in revisions if is_document_id(revision.document_id)}
        loaded: list[StoredRevision] = []

        def plan(connection: Connection) -> _Publication | None:
            state = self.keeper.load_state(connection)
            clock, now = state.clock, next_moment(state.clock, self._now())
            stored = load_histories(connection, ids) if self.keeper.position.rows else {}
            made = plan_load(revisions, stored, state.columns, now)
            if not made:
                return None
            named = files
            if not files or len(made) < len(revisions):
                named = [self.keeper.staging().write(revisions_to_table(made))]
            loaded.extend(made)
            newest = max(stored.revision.valid_from for stored in made)
            moment = newest if clock is None else max(newest, clock)
            return _Publication([encode_bulk(named)], lambda c: apply_revisions(c, made), len(made), moment)

        self._publish(plan)
        return len(loaded)

    # -- group commit ------------------------------------------------------------------------------------------------

    def _commit(self, requests: list[WriteRequest]) -> None:
        left = deque(requests)
        while left:
            done: list[tuple[WriteRequest, list[Decision]]] = []

            def plan(connection: Connection, done: list[tuple[WriteRequest, list[Decision]]] = done) -> _Publication:
                group = self._decide(connection, left)
                done += group.accepted
                moment = max((s.revision.valid_from for s in group.fresh), default=None)
                fresh = group.fresh
                return _Publication(group.messages, lambda c: apply_decided(c, fresh), len(fresh), moment)

            self._publish(plan)
            for request, decisions in done:
                request.result = [decision.revision for decision in decisions]

    def _decide(self, connection: Connection, left: deque[WriteRequest]) -> _Group:
        """Decides requests from the left, as many as fit into one batch of the log, and takes them out."""
        ids = set().union(*(request.item.ids for request in left))
        keys = set().union(*(request.item.keys for request in left))
        state = self.keeper.load_state(connection)
        clock = state.clock
        repeats = find_repeats(connection, keys, next_moment(clock, self._now()))
        group = _Group(load_current(connection, ids), repeats, state.columns)
        while left:
            clock = next_moment(clock, self._now())
            if not self._decide_one(left[0], group, clock):
                break
            left.popleft()
        return group

    def _decide_one(self, request: WriteRequest, group: _Group, now: datetime) -> bool:
        """Decides one request. False: the group has no room for it, and it is left for the next one."""
        try:
            decisions = request.item.decide(group.current, group.repeats, group.columns, now)
            fresh = [decision for decision in decisions if not decision.is_repeat]
            messages = [encode_revision(decision) for decision in fresh]
            size = sum(map(len, messages)) + _HEADER_BYTES * len(messages)
            if size > self._max_bytes:
                raise _too_large(size, self._max_bytes)  # noqa: TRY301 - it is the outcome of the request
        except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits for it
            request.error = error
            return True
        if group.size + size > self._max_bytes:
            return False
        group.size += size
        group.messages += messages
        group.fresh += fresh
        group.accepted.append((request, decisions))
        for decision in fresh:
            group.current[decision.revision.document_id] = decision.revision
            if decision.idempotency_key is not None:
                group.repeats[decision.idempotency_key] = decision
        return True

    # -- publish -----------------------------------------------------------------------------------------------------

    def _publish(self, plan: Callable[[Connection], _Publication | None]) -> bool:
        """Publishes what a function decides from the projection, and applies it there. False: that was nothing.

        Raises:
            UnavailableError: it is durable in the log, and the projection could not take it in.
        """
        with self._lock:
            projection = self._prepare()
            ack = None
            try:
                with projection.write() as connection:
                    planned = plan(connection)
                    if planned is None or not planned.messages:
                        return False
                    ack = self._append(planned.messages)
                    reach("documents.append.after")
                    if ack.offset == self.keeper.position.offset:
                        planned.apply(connection)
                        reached = self.keeper.advance(connection, ack.offset + ack.count, planned.rows, planned.moment)
                if ack.offset == self.keeper.position.offset:
                    self.keeper.commit(reached)
                    reach("documents.publish.after")
                    return True
            except BaseException as error:
                if ack is None or not isinstance(error, Exception):
                    if ack is not None:
                        self.keeper.invalidate()
                    raise
                logger.warning("the projection did not take a change in", error=str(error))
            self._catch_up()
            return True

    def _prepare(self) -> Projection:
        """Returns the projection with all that is in the log, also what others have published: replayed messages."""
        projection = self.keeper.prepare_writes()
        if self.log.wait(self._topic, 0, 0) != self.keeper.position.offset:
            self.keeper.invalidate()
            projection = self.keeper.current()
        return projection

    def _append(self, messages: list[bytes]) -> Ack:
        batch = Batch.of_arrow(pa.record_batch({"payload": pa.array(messages), "headers": _headers(len(messages))}))
        reach("documents.append.before")
        try:
            ack = self.log.append(self._topic, batch, Level.disk, internal=True)
        except NOT_TAKEN:
            raise
        except BaseException:
            self.keeper.invalidate()  # the messages may be in the log
            raise
        return ack

    def _catch_up(self) -> None:
        """Applies what is in the log already, where the direct way failed or others have published."""
        self.keeper.invalidate()
        try:
            self.keeper.follow()
        except FrazilError as error:
            raise UnavailableError(
                "the change is durable in the log, and the projection cannot be brought up to date",
                cause=error.in_one_line,
                hint="free some space on the disk of the projection; the next read or write tries again",
            ) from error


def _headers(count: int) -> pa.Array:
    """The headers of so many messages, all the same."""
    width = len(_HEADERS)
    names, values = (
        pa.array(list(part)).take(np.arange(count * width) % width) for part in zip(*_HEADERS, strict=True)
    )
    return pa.MapArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * width), names, values)


def _too_large(size: int, limit: int) -> UsageError:
    return UsageError(
        f"the batch has {size:,} bytes, and the log takes at most {limit:,} at once",
        hint="smaller batches, or: frazil docs import",
    )
