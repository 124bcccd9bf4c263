"""A document store in a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from frazil.documents.convenience import Convenience
from frazil.documents.decide import Decision, decide_writes, ids_of, keys_of, next_moment
from frazil.documents.fields import check_column, is_document_id
from frazil.documents.loading import plan_load
from frazil.documents.model import Column, Revision
from frazil.documents.sql.engine import begin_write, connect, kind_of, open_engine
from frazil.documents.sql.migrate import CURSOR_SECRET, migrate
from frazil.documents.sql.reads import SqlReads
from frazil.documents.sql.records import (
    apply_revisions,
    find_repeats,
    insert_column,
    load_columns,
    load_current,
    load_histories,
    read_clock,
    read_state,
    write_clock,
)
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
        with begin_write(self._engine) as connection:
            now = next_moment(read_clock(connection, lock=True), self._now())
            decisions = decide_writes(
                writes,
                load_current(connection, ids),
                find_repeats(connection, keys),
                load_columns(connection),
                now,
            )
            _apply(connection, decisions, now)
        return [decision.revision for decision in decisions]

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
        with begin_write(self._engine) as connection:
            clock = read_clock(connection, lock=True)
            now = next_moment(clock, self._now())
            made = plan_load(revisions, load_histories(connection, ids), load_columns(connection), now)
            apply_revisions(connection, made)
            newest = max((stored.revision.valid_from for stored in made), default=None)
            if newest is not None and (clock is None or newest > clock):
                write_clock(connection, newest)
        return len(made)

    def add_column(self, name: str, type: str) -> Column:  # noqa: A002 - the field's word
        """Adds a metadata column without rewriting data. Adding an equal one again changes nothing."""
        column = check_column(name, type)
        with begin_write(self._engine) as connection:
            read_clock(connection, lock=True)
            present = load_columns(connection).get(name)
            if present is None:
                insert_column(connection, column)
            elif present != column:
                raise ConflictError(
                    f"column '{name}' exists with type {present.type}", hint="choose another name, or the same type"
                )
        return column

    def close(self) -> None:
        self._engine.dispose()


def _apply(connection: Connection, decisions: Sequence[Decision], now: datetime) -> None:
    made = [decision for decision in decisions if not decision.is_repeat]
    if made:
        apply_revisions(connection, made)
        write_clock(connection, max(now, *(decision.revision.valid_from for decision in made)))
