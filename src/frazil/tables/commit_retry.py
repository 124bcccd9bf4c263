"""Retries commits that lost a race, each time on the reloaded table.

`commit.commit_append` has a loop of its own: rows must land exactly once, so that it compares positions before each
attempt and deletes the files of attempts that cannot land any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from frazil.errors import ConflictError, FrazilError
from frazil.tables.store import TableStore, back_off

if TYPE_CHECKING:
    from pyiceberg.table import Table

C = TypeVar("C")

#: Attempts where the catalog itself says that it does not know the outcome of a commit.
_UNKNOWN_TRIES = 3


def is_repeatable(error: FrazilError, failures: int) -> bool:
    """Returns whether a commit that does no harm twice may be repeated after an error: also where no reply came."""
    return error.retryable or (type(error) is FrazilError and failures < _UNKNOWN_TRIES)


def is_conflict(error: FrazilError, _failures: int) -> bool:
    """Returns whether a commit certainly did not land, so that even one that adds rows may be repeated."""
    return isinstance(error, ConflictError)


def commit_with_retry(
    store: TableStore,
    table: Table,
    prepare: Callable[[Table], C | None],
    commit: Callable[[Table, C], Table | None],
    *,
    tries: int = 20,
    may_repeat: Callable[[FrazilError, int], bool] = is_repeatable,
) -> Table:
    """Prepares a change on a table and commits it, again and again, until nothing is left to change.

    Only the commit is repeated after an error. An error of `prepare`, such as PositionMovedError, ends it.

    Args:
        store: the catalog.
        table: the table; it may be out of date.
        prepare: returns what the table still lacks; None if it lacks nothing.
        commit: commits that. Returns the table if this was all; None to have the table loaded and `prepare` called
            again, because only the table itself says what a lost reply or another writer changed.
        tries: attempts that may fail.
        may_repeat: decides by an error and the number of failures whether another attempt is safe.

    Raises:
        FrazilError: the last error, or the first one after which nothing may be repeated.
        ConflictError: other writers undid the change with every attempt.
    """
    failures = 0
    for _ in range(2 * tries):
        change = prepare(table)
        if change is None:
            return table
        try:
            done = commit(table, change)
        except FrazilError as error:
            failures += 1
            if failures == tries or not may_repeat(error, failures):
                raise
            back_off(failures)
        else:
            if done is not None:
                return done
        table = store.load(table.name())
    raise ConflictError(
        f"the commits to {'.'.join(table.name())} were repeatedly undone by another writer",
        hint=f"find out who else writes: frazil table snapshots {'.'.join(table.name())}",
    )
