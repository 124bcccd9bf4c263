"""Reads from whatever generation of the projection is present, built anew if a read finds it damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from frazil.documents.iceberg.projection import Projection, ProjectionFolder
from frazil.documents.sql.engine import connect
from frazil.documents.sql.reads import SqlReads
from frazil.errors import IntegrityError, NotAllowedError, UnavailableError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

P = ParamSpec("P")
T = TypeVar("T")


class _ReplacedError(UnavailableError):
    """The projection was built anew during a read."""


def _repairing(
    read: Callable[Concatenate[ProjectionReads, P], T],
) -> Callable[Concatenate[ProjectionReads, P], T]:
    """Repeats a read once if it found the projection damaged, and it was built anew."""

    def repeated(self: ProjectionReads, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(self, *args, **kwargs)
        except _ReplacedError:
            return read(self, *args, **kwargs)

    repeated.__doc__ = read.__doc__
    return repeated


class ProjectionReads(SqlReads):
    """The reads of a store, each on the generation that is present when it begins.

    A subclass says how the projection is opened, and how it is built anew.
    """

    _folder: ProjectionFolder

    def _projection(self) -> Projection:
        """Returns the present generation, in line with the log."""
        raise NotImplementedError

    def _repair(self, damaged: Projection, reason: str) -> None:
        """Builds a damaged generation anew, unless another thread has done so."""
        raise NotImplementedError

    get_metadata = _repairing(SqlReads.get_metadata)
    get_statistics = _repairing(SqlReads.get_statistics)
    get_time_travel_snapshot = _repairing(SqlReads.get_time_travel_snapshot)
    history = _repairing(SqlReads.history)
    latest_revisions = _repairing(SqlReads.latest_revisions)
    last_change = _repairing(SqlReads.last_change)
    columns = _repairing(SqlReads.columns)
    _fetch = _repairing(SqlReads._fetch)  # what pages and streams are made of

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection to the present generation of the projection."""
        projection = self._projection()
        try:
            with connect(projection.engine) as connection:
                yield connection
        except IntegrityError as error:
            self._repair(projection, error.in_one_line)
            raise _ReplacedError("the projection was damaged, and is built anew", hint="repeat it") from error
        except NotAllowedError as error:
            if self._folder.identity() == projection.identity:
                raise
            raise _ReplacedError("the projection was replaced by another process", hint="repeat it") from error

    @property
    def _engine(self) -> Engine:  # type: ignore[override]  # each read takes the engine of its time
        return self._projection().engine

    @property
    def _cursor_key(self) -> bytes:  # type: ignore[override]
        return self._projection().cursor_key
