"""A document store in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from frazil.documents.arrow import table_to_revisions
from frazil.documents.convenience import Convenience
from frazil.documents.decide import Decision, StoredRevision, WriteBatch, next_moment
from frazil.documents.fields import CLOCK_TOLERANCE, check_column, is_document_id
from frazil.documents.iceberg.group_commit import GroupCommit, Request, outcome_of
from frazil.documents.loading import plan_load, require_columns
from frazil.documents.model import Column, Revision, from_micros
from frazil.documents.sql.arrow_rows import find_new_histories, insert_new_histories
from frazil.documents.sql.engine import connect, kind_of, open_engine
from frazil.documents.sql.migrate import CURSOR_SECRET, migrate
from frazil.documents.sql.reads import SqlReads
from frazil.documents.sql.records import (
    apply_decided,
    apply_revisions,
    find_repeats,
    insert_column,
    load_columns,
    load_current,
    load_histories,
    load_revision,
    read_clock,
    read_state,
    write_clock,
)
from frazil.documents.sql.transactions import run_write
from frazil.documents.store import StoreKind, Write
from frazil.errors import ConflictError, FrazilError, LockedError, UnavailableError


def _now() -> datetime:
    return datetime.now(UTC)


#: Writes of one transaction, where many threads wait.
_MAX_GROUP = 2_000
_Outcome = list[Decision] | Exception


class SqlDocumentStore(SqlReads, Convenience):
    """Documents in SQLite, MySQL or PostgreSQL. Creates and updates its tables when it is opened.

    Args:
        url: sqlite:///FILE, mysql://… or postgresql://…
        now: the clock.
    """

    def __init__(self, url: str, *, now: Callable[[], datetime] = _now) -> None:
        engine = open_engine(url)
        try:
            migrate(engine)
            with connect(engine) as connection:
                secret = read_state(connection, CURSOR_SECRET)
        except BaseException:
            engine.dispose()
            raise
        super().__init__(engine, bytes.fromhex(secret or ""))
        self._now = now
        self._group: GroupCommit[WriteBatch, list[Revision]] = GroupCommit(self._commit, _MAX_GROUP)

    @property
    def kind(self) -> StoreKind:
        return kind_of(self._engine)

    def write(self, writes: Sequence[Write]) -> list[Revision]:
        """Applies a batch of writes in order, all or nothing.

        Raises:
            UsageError: a field is wrong.
            NotFoundError: a document does not exist.
            ConflictError: another revision than expected, a forbidden transition, or a key of another request.
        """
        return self._group.submit(WriteBatch.of(writes), len(writes))

    def _commit(self, pending: list[Request[WriteBatch, list[Revision]]]) -> None:
        """Gives each request its outcome. Requests of many threads share a transaction, and none fails with another."""
        try:
            outcomes = self._decide_and_apply([request.item for request in pending])
        except (UnavailableError, LockedError):
            raise
        except FrazilError:
            if len(pending) == 1:
                raise
            for request in pending:  # what the database refuses in one of them concerns no other
                outcome_of(request, lambda item=request.item: _result(self._decide_and_apply([item])[0]))  # type: ignore[misc]
            return
        for request, outcome in zip(pending, outcomes, strict=True):
            outcome_of(request, lambda outcome=outcome: _result(outcome))  # type: ignore[misc]

    def _decide_and_apply(self, requests: Sequence[WriteBatch]) -> list[_Outcome]:
        def work(connection: Connection) -> list[_Outcome]:
            clock = read_clock(connection, lock=True)
            latest = load_current(connection, set().union(*(request.ids for request in requests)))
            keys = set().union(*(request.keys for request in requests))
            repeats = find_repeats(connection, keys, next_moment(clock, self._now()))
            columns = load_columns(connection)
            outcomes: list[_Outcome] = []
            fresh: list[StoredRevision] = []
            for request in requests:
                clock = next_moment(clock, self._now())
                outcomes.append(_decide(request, latest, repeats, columns, clock))
                for decision in _fresh(outcomes[-1]):
                    fresh.append(decision)
                    latest[decision.revision.document_id] = decision.revision
                    if decision.idempotency_key is not None:
                        repeats[decision.idempotency_key] = decision
            _apply(connection, fresh, clock, apply_decided)
            return outcomes

        def is_stored(connection: Connection, outcomes: Sequence[_Outcome]) -> bool:
            return _is_stored(connection, [decision for outcome in outcomes for decision in _fresh(outcome)])

        return run_write(self._engine, work, is_stored)

    def load_revisions(self, revisions: Iterable[Sequence[Revision]]) -> int:
        """Adds complete histories of documents, and returns how many revisions were new.

        Each given sequence is applied as a whole. What the store already has, equal in all fields, is skipped.

        Raises:
            UsageError: a revision is wrong, or one is missing.
            ConflictError: the store has another past under one of the ids.
        """
        return sum(self._load(batch) for batch in revisions)

    def _load(self, revisions: Sequence[Revision]) -> int:
        ids = {revision.document_id for revision in revisions if is_document_id(revision.document_id)}

        def work(connection: Connection) -> list[StoredRevision]:
            clock = read_clock(connection, lock=True)
            now = next_moment(clock, self._now())
            made = plan_load(revisions, load_histories(connection, ids), load_columns(connection), now)
            _apply(connection, made, clock, apply_revisions)
            return made

        return len(run_write(self._engine, work, _is_stored))

    def load_table(self, revisions: pa.Table) -> int:
        """Does what `load_revisions` does, from one Arrow table in `REVISION_SCHEMA`, several times as fast.

        Args:
            revisions: sorted by document id and revision. Their fields were checked, or come from another store.
        """
        if not revisions.num_rows:
            return 0
        if self.kind == "sqlite" and self._load_new(revisions):
            return int(revisions.num_rows)
        return self._load([stored.revision for stored in table_to_revisions(revisions)])

    def _load_new(self, revisions: pa.Table) -> bool:
        """Loads histories of which the store has nothing yet; False: each revision has to be looked at."""
        newest = from_micros(pc.max(revisions.column("valid_from").cast(pa.int64())).as_py())

        def work(connection: Connection) -> bool:
            clock = read_clock(connection, lock=True)
            new = find_new_histories(connection, revisions)
            if new is None or newest > next_moment(clock, self._now()) + CLOCK_TOLERANCE:
                return False
            require_columns(revisions, load_columns(connection))
            insert_new_histories(connection, new)
            write_clock(connection, newest if clock is None else max(newest, clock))
            return True

        return run_write(self._engine, work, lambda *_: False)

    def add_column(self, name: str, type: str) -> Column:  # noqa: A002 - the field's word
        """Adds a metadata column without rewriting data. Adding an equal one again changes nothing."""
        column = check_column(name, type)

        def work(connection: Connection) -> Column:
            read_clock(connection, lock=True)
            present = load_columns(connection).get(name)
            if present is None:
                insert_column(connection, column)
            elif present != column:
                raise ConflictError(
                    f"column '{name}' exists with type {present.type}", hint="choose another name, or the same type"
                )
            return column

        return run_write(self._engine, work, lambda connection, made: load_columns(connection).get(name) == made)

    def close(self) -> None:
        self._engine.dispose()


def _apply(
    connection: Connection,
    revisions: Sequence[StoredRevision],
    moment: datetime | None,
    apply: Callable[[Connection, Sequence[StoredRevision]], None],
) -> None:
    if revisions:
        apply(connection, revisions)
        newest = max(stored.revision.valid_from for stored in revisions)
        write_clock(connection, newest if moment is None else max(newest, moment))


def _is_stored(connection: Connection, made: Sequence[StoredRevision]) -> bool:
    """Whether a transaction with these results was committed: all of it is there, or none."""
    read_clock(connection, lock=True)
    if not made:
        return True
    first = made[0].revision
    return load_revision(connection, first.document_id, first.revision) == first


def _decide(
    request: WriteBatch,
    latest: Mapping[str, Revision],
    repeats: Mapping[str, StoredRevision],
    columns: Mapping[str, Column],
    moment: datetime,
) -> _Outcome:
    """Returns the decisions of a request, or the error that is its outcome."""
    try:
        return request.decide(latest, repeats, columns, moment)
    except Exception as error:  # noqa: BLE001 - it is raised in the thread that waits for it
        return error


def _fresh(outcome: _Outcome) -> list[Decision]:
    return [] if isinstance(outcome, Exception) else [decision for decision in outcome if not decision.is_repeat]


def _result(outcome: _Outcome) -> list[Revision]:
    if isinstance(outcome, Exception):
        raise outcome
    return [decision.revision for decision in outcome]
