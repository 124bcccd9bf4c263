"""What can go wrong with a table, beyond what every catalog can do wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from frazil.errors import ConflictError, UnavailableError, UsageError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables.position import Position

E = TypeVar("E", bound=Exception)


class RolledBackError(ConflictError):
    """The table was rolled back to an older state; an operator has to decide what that means for its position.

    Attributes:
        table_position: what the rows of the table now reach; None where they reach nothing of this sink.
        recorded: what the table had reached before.
    """

    retryable = False
    table_position: Position | None = None
    recorded: Position | None = None


class PositionMovedError(ConflictError):
    """Another writer moved the position. The batch was not committed, and its files are deleted.

    Attributes:
        table: as it is now.
        position: the one to plan from.
    """

    table: Table | None = None
    position: Position | None = None


class CommitUnknownError(UnavailableError):
    """There was no response, and the table does not show the commit yet. Files are kept; the call can be repeated."""


class SchemaMismatchError(UsageError):
    """A column's type does not fit the table's."""

    http_status = 409


def with_attributes(error: E, **attributes: Any) -> E:
    """Errors travel between processes by message alone; what only helps on the spot is hung on here."""
    for name, value in attributes.items():
        setattr(error, name, value)
    return error
