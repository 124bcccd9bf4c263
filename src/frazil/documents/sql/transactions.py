"""Writing transactions that survive a lost connection: repeated if they were not committed, and never twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from frazil.documents.sql.engine import begin_write, name_of
from frazil.documents.sql.failures import classify
from frazil.errors import FrazilError, UnavailableError
from frazil.observe.backoff import Backoff

T = TypeVar("T")
#: How long a write waits for a database that restarts.
PATIENCE_SECONDS = 15.0
_BACKOFF = Backoff(first=0.05, longest=1.0)


def run_write(engine: Engine, work: Callable[[Connection], T], is_done: Callable[[Connection, T], bool]) -> T:
    """Runs work in a writing transaction, and returns its result when it is committed.

    When the connection breaks before the commit, or the database ends the transaction to resolve a deadlock, the work
    is repeated. When it breaks during the commit, the database is asked what became of it.

    Args:
        engine: of the database.
        work: takes a connection; its first statement waits until no other writer is at work.
        is_done: whether the work with this result is stored.

    Raises:
        UnavailableError: the database stays away. If it was lost during the commit, the message says so.
    """
    deadline, failures = time.monotonic() + PATIENCE_SECONDS, 0
    in_doubt: list[T] = []  # the result of the work whose commit was not answered
    while True:
        committing: list[T] = []
        try:
            with begin_write(engine) as connection:
                if in_doubt and is_done(connection, in_doubt[0]):
                    return in_doubt[0]
                in_doubt.clear()
                committing.append(work(connection))
            return committing[0]
        except FrazilError as error:
            failures += 1
            if not _is_repeatable(engine, error):
                raise
            in_doubt = in_doubt or committing
            if time.monotonic() >= deadline:
                if in_doubt:
                    raise _in_doubt(engine) from error
                raise
        time.sleep(_BACKOFF.pause(failures))


def _is_repeatable(engine: Engine, error: FrazilError) -> bool:
    """Whether a server may have restarted. A file that cannot be read or locked does not become better."""
    cause = error.__cause__
    return (
        engine.dialect.name != "sqlite"
        and isinstance(cause, SQLAlchemyError | OSError)
        and (classify(cause) in ("lost", "deadlock"))
    )


def _in_doubt(engine: Engine) -> UnavailableError:
    return UnavailableError(
        f"the connection to {name_of(engine)} broke during the commit: whether the change is stored is not known",
        hint="read the document, or repeat the request with the same idempotency key",
    )
