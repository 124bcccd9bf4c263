"""A document store in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from frazil.documents.convenience import Convenience
from frazil.documents.decide import Decision, StoredRevision, decide_writes, ids_of, keys_of, next_moment
from frazil.documents.fields import check_column, is_document_id
from frazil.documents.loading import plan_load
from frazil.documents.model import Column, Revision
from frazil.documents.sql.engine import connect, kind_of, open_engine
from frazil.documents.sql.migrate import CURSOR_SECRET, migrate
from frazil.documents.sql.reads import SqlReads
from frazil.documents.sql.records import (
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
from frazil.errors import ConflictError


def _now() -> datetime:
    return datetime.now(UTC)


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
        ids, keys = ids_of(writes), keys_of(writes)

        def work(connection: Connection) -> list[Decision]:
            now = next_moment(read_clock(connection, lock=True), self._now())
            decisions = decide_writes(
                writes,
                load_current(connection, ids),
                find_repeats(connection, keys),
                load_columns(connection),
                now,
            )
            _apply(connection, [decision for decision in decisions if not decision.is_repeat], now)
            return decisions

        return [decision.revision for decision in run_write(self._engine, work, _is_stored)]

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
            _apply(connection, made, clock)
            return made

        return len(run_write(self._engine, work, _is_stored))

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


def _apply(connection: Connection, revisions: Sequence[StoredRevision], moment: datetime | None) -> None:
    if revisions:
        apply_revisions(connection, revisions)
        newest = max(stored.revision.valid_from for stored in revisions)
        write_clock(connection, newest if moment is None else max(newest, moment))


def _is_stored(connection: Connection, made: Sequence[StoredRevision]) -> bool:
    """Whether a transaction with these results was committed: all of it is there, or none."""
    read_clock(connection, lock=True)
    for stored in made:
        if not (isinstance(stored, Decision) and stored.is_repeat):
            found = load_revision(connection, stored.revision.document_id, stored.revision.revision)
            return found == stored.revision
    return True
