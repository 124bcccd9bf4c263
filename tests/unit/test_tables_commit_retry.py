"""Commits that other writers overtake: repeated on the newest state, and never where a repetition could do harm."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.errors import ConflictError, FrazilError, UnavailableError
from frazil.tables import PositionMovedError
from frazil.tables import commit_retry as commit_retry_module
from frazil.tables.commit_retry import commit_with_retry, is_conflict


class Table:
    """A table that is its own store: a set of names, and a number that each commit raises."""

    def __init__(self) -> None:
        self.version = 0
        self.names: set[str] = set()
        self.commits = 0

    def name(self) -> tuple[str, ...]:
        return "demo", "table"

    def load(self, _name: tuple[str, ...]) -> Table:
        return self

    def lacks(self, name: str) -> str | None:
        return None if name in self.names else name


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(commit_retry_module, "back_off", lambda _attempt: None)
    return Table()


def failing(errors: list[FrazilError], *, landed: bool = False) -> Any:
    """A commit that fails with these errors in turn, and adds its name before them (`landed`) or after them."""

    def commit(table: Table, name: str) -> None:
        table.commits += 1
        if landed or not errors:
            table.names.add(name)
        if errors:
            raise errors.pop(0)

    return commit


def test_a_conflict_repeats_the_commit(table: Any):
    commit_with_retry(table, table, lambda now: now.lacks("a"), failing([ConflictError("faster")] * 3))
    assert (table.names, table.commits) == ({"a"}, 4)


def test_a_commit_whose_reply_was_lost_is_found_and_not_repeated(table: Any):
    commit = failing([UnavailableError("no answer")], landed=True)
    commit_with_retry(table, table, lambda now: now.lacks("a"), commit)
    assert table.commits == 1


def test_nothing_to_change_commits_nothing(table: Any):
    assert commit_with_retry(table, table, lambda _: None, failing([])) is table
    assert table.commits == 0


def test_the_last_error_ends_it(table: Any):
    errors = [ConflictError(f"faster {i}") for i in range(9)]
    with pytest.raises(ConflictError, match="faster 4"):
        commit_with_retry(table, table, lambda now: now.lacks("a"), failing(errors), tries=5)
    assert table.commits == 5


def test_an_unknown_outcome_is_repeated_twice_at_most(table: Any):
    with pytest.raises(FrazilError, match="unknown"):
        commit_with_retry(table, table, lambda now: now.lacks("a"), failing([FrazilError("unknown")] * 9))
    assert table.commits == 3


def test_rows_are_not_added_again_where_no_reply_came(table: Any):
    append = failing([UnavailableError("no answer")], landed=True)
    with pytest.raises(UnavailableError):
        commit_with_retry(table, table, lambda _: "row", append, may_repeat=is_conflict)
    assert table.commits == 1


def test_a_table_that_moved_from_its_snapshot_is_not_prepared_again(table: Any):
    def prepare(_: Any) -> str:
        raise PositionMovedError("another writer has changed it")

    with pytest.raises(PositionMovedError):
        commit_with_retry(table, table, prepare, failing([]))
    assert table.commits == 0


def test_a_change_that_another_writer_always_undoes_ends(table: Any):
    def commit(now: Table, _name: str) -> None:
        now.commits += 1

    with pytest.raises(ConflictError, match="undone"):
        commit_with_retry(table, table, lambda now: now.lacks("a"), commit, tries=3)
    assert table.commits == 6
