"""The tail of a topic: the few messages that a table does not have yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from frazil.errors import FrazilError, NotFoundError
from frazil.log.columns import PARTITION
from frazil.log.messages import decode_chunk
from frazil.log.protocol import LogAccess, OffsetGoneError, TopicInfo
from frazil.tables import Position
from frazil.topics.positions import check_messages, check_position, check_start

T = TypeVar("T")

Opener = Callable[[], AbstractContextManager[LogAccess | None]]
"""Gives access to the log for one read; None: there is no log."""


@dataclass(frozen=True)
class Lag:
    """Messages that an answer lacks.

    Attributes:
        messages: how many; None: not known, as the log cannot be read.
        reason: why the answer lacks them.
    """

    messages: int | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"messages": self.messages, "reason": self.reason}

    def __str__(self) -> str:
        lacks = "may lack messages" if self.messages is None else f"lacks the last {self.messages:,} messages"
        return f"the answer {lacks} of the log: {self.reason}"


@dataclass(frozen=True)
class Bound:
    """How long a tail may be. What is longer is left to the sink."""

    messages: int
    bytes: int


@dataclass(frozen=True)
class Tail(Generic[T]):
    """Messages of a log in [start, end), in parts that were decoded one after the other."""

    log_id: str
    start: int
    end: int
    parts: tuple[Part[T], ...]


@dataclass(frozen=True)
class Part(Generic[T]):
    """What was decoded of the messages in [start, end), and their bytes in the log."""

    start: int
    end: int
    size: int
    decoded: T


class TailReader(Generic[T]):
    """Reads the tail of one topic for one sink's table. It keeps what it has decoded. Not for several threads at once.

    Args:
        open_log: opens the log for one read.
        topic: the topic.
        sink: the sink whose position the table carries.
        decode: what is kept of messages.
        bound: of longer tails nothing is read.
        live: whether the end of the log is looked up for each read; else once, for a command that reads several times.
    """

    def __init__(
        self, open_log: Opener, topic: str, sink: str, decode: Callable[[pa.Table], T], bound: Bound, *, live: bool
    ) -> None:
        self._open_log, self._topic, self._sink = open_log, topic, sink
        self._decode, self._bound, self._live = decode, bound, live
        self._info: TopicInfo | None = None
        #: Why the log cannot be read, which a command does not try again: each try may wait.
        self._unreadable: Lag | None = None
        self._parts: tuple[Part[T], ...] = ()
        self._log_id = ""
        #: Log and first offset of a tail that was too long: it stays so while its first offset is the same.
        self._too_long: tuple[str, int] | None = None
        #: Position and epoch that were compared with the log.
        self._checked: tuple[str, int] | None = None

    def read(self, position: Position | None) -> Tail[T] | Lag:
        """Returns what the table does not have; or why nothing of it was read.

        Only what is durable in the log counts.

        Args:
            position: of the table; None: it has nothing of the topic.

        Raises:
            OffsetGoneError: retention has removed messages from the log, so that the table must be newer by now.
        """
        if (found := self._find_cached(position) or self._unreadable) is not None:
            return found
        try:
            with self._open_log() as access:
                return Tail("", 0, 0, ()) if access is None else self._read(access, position)
        except OffsetGoneError:
            raise
        except (FrazilError, OSError) as error:
            lag = Lag(None, error.in_one_line if isinstance(error, FrazilError) else str(error))
            self._unreadable = None if self._live else lag
            return lag

    def _find_cached(self, position: Position | None) -> Tail[T] | None:
        """The tail, if the log need not be asked for it."""
        info = self._info
        if self._live or info is None or (position is not None and position.log_id != info.log_id):
            return None
        start = info.start if position is None else position.offsets.get(PARTITION, 0)
        parts = tuple(part for part in self._parts if part.end > start)
        covers = info.end <= start or (parts and parts[0].start == start and parts[-1].end >= info.end)
        return Tail(info.log_id, start, max(start, info.end), parts) if covers else None

    def _read(self, access: LogAccess, position: Position | None) -> Tail[T] | Lag:
        try:
            info = self._info = access.info(self._topic)
        except NotFoundError:  # nothing was ever published
            return Tail("", 0, 0, ())
        start = info.start if position is None else position.offsets.get(PARTITION, 0)
        waiting = max(0, info.end - start)
        try:
            self._check(access, info, position)
        except FrazilError as error:
            return Lag(None, error.in_one_line)
        if not waiting:
            self._parts = ()
            return Tail(info.log_id, start, start, ())
        try:
            check_start(info, start, self._sink)
        except NotFoundError as error:
            raise OffsetGoneError(error.message, start=info.start, cause=error.cause, hint=error.hint) from None
        if waiting > self._bound.messages or self._too_long == (info.log_id, start):
            return self._lag(waiting)
        is_continued = self._parts and self._log_id == info.log_id and info.end >= self._parts[-1].end
        self._parts = tuple(part for part in self._parts if part.start >= start) if is_continued else ()
        if self._parts and self._parts[0].start != start:  # the table ends within a part
            self._parts = ()
        self._log_id = info.log_id
        if (more := self._read_more(access, info, self._parts[-1].end if self._parts else start)) is None:
            self._too_long = info.log_id, start
            return self._lag(waiting)
        self._parts += more
        return Tail(info.log_id, start, info.end, self._parts)

    def _read_more(self, access: LogAccess, info: TopicInfo, start: int) -> tuple[Part[T], ...] | None:
        """The messages from an offset on; None if the tail gets too long by them."""
        if start >= info.end:
            return ()
        size = before = sum(part.size for part in self._parts)
        messages = []
        for chunk in access.chunks(self._topic, start, info.end):
            size += chunk.data.size
            if size > self._bound.bytes:
                return None
            messages.append(decode_chunk(chunk, info.view, start, info.end))
        decoded = self._decode(pa.concat_tables(messages))
        return (Part(start, info.end, size - before, decoded),)

    def _check(self, access: LogAccess, info: TopicInfo, position: Position | None) -> None:
        """Raises a FrazilError if the table was written from another log, or from other messages of it."""
        check_position(info, position, self._sink)
        key = ("" if position is None else position.batch_id, info.epoch)
        if self._checked != key:
            check_messages(access, info, position, self._sink)
            self._checked = key

    def _lag(self, waiting: int) -> Lag:
        bound = f"more than {self._bound.messages:,} messages or {self._bound.bytes >> 20} MiB"
        return Lag(waiting, f"the pipeline has {bound} to merge first (frazil pipeline)")
