"""The positions that the tables of a topic record, compared with its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import IntegrityError, NotFoundError, UsageError
from frazil.log.columns import PARTITION
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.topics.layout import ARCHIVE

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import Position


class ForeignLogError(IntegrityError):
    """The table was written from another log: its offsets stand for other messages."""

    http_status = 409


class TableAheadError(IntegrityError):
    """The table has messages that the log does not have."""


class LogGapError(NotFoundError):
    """The log has lost messages that the table does not have yet."""


def recorded_position(table: Table, topic: str, sink: str = ARCHIVE) -> Position | None:
    """Returns the position that a sink has written, rolled back or not; None if it has written nothing."""
    from frazil.tables import RolledBackError, find_position

    try:
        return find_position(table, sink, topic)
    except RolledBackError as error:
        return error.recorded or error.table_position


def require_same_log(table: Table, topic: str, log_id: str, sink: str = ARCHIVE) -> None:
    """Raises ForeignLogError if the table's position belongs to another log."""
    check_log(topic, log_id, recorded_position(table, topic, sink), sink)


def check_log(topic: str, log_id: str, position: Position | None, sink: str) -> None:
    """Raises ForeignLogError if the table was written from another log."""
    if position is not None and position.log_id != log_id:
        raise ForeignLogError(
            f"the table of topic '{topic}' (sink {sink}) was written from log {position.log_id}, "
            f"and this is log {log_id}",
            cause="the log's folder was created again or replaced, or this is another topic of the same name",
            hint=f"frazil topic adopt {topic} if the table shall go on with this log, or bring the right log back",
        )


def check_position(info: TopicInfo, position: Position | None, sink: str) -> None:
    """Checks that a sink's table and the log belong together.

    Raises:
        ForeignLogError, TableAheadError: they do not.
    """
    if position is None:
        return
    check_log(info.name, info.log_id, position, sink)
    offset = position.offsets.get(PARTITION, 0)
    if offset > info.written:
        raise TableAheadError(
            f"the table of topic '{info.name}' (sink {sink}) is at offset {offset}, but the log ends at {info.written}",
            cause="an older copy of the log was brought back while a pipeline was at work",
            hint="bring the newer log back, or restart frazil serve: it asks the table, and goes on behind it",
        )


def has_other_messages(access: LogAccess, info: TopicInfo, position: Position | None) -> bool:
    """Returns whether the log has messages below a sink's position that are younger than the batch that reached it.

    An older copy of the log was restored while that batch was running: those offsets were assigned twice.
    """
    if position is None or position.log_id != info.log_id or position.epoch >= info.epoch:
        return False
    try:
        return access.epoch_below(info.name, position.offsets.get(PARTITION, 0)) > position.epoch
    except UsageError:  # a broker of an older version
        return False


def check_messages(access: LogAccess, info: TopicInfo, position: Position | None, sink: str) -> None:
    """Raises TableAheadError if a sink's table has other messages than the log below its position."""
    if has_other_messages(access, info, position):
        assert position is not None
        raise TableAheadError(
            f"the table of topic '{info.name}' (sink {sink}) is at offset {position.offsets.get(PARTITION, 0)}, and "
            "the last messages before that are not those of the log",
            cause="an older copy of the log was brought back while a pipeline was at work",
            hint=f"frazil topic verify {info.name} shows which; then frazil topic adopt {info.name}",
        )


def check_start(info: TopicInfo, offset: int, sink: str) -> None:
    """Raises LogGapError if the log no longer has what a sink needs next."""
    if offset < info.start:
        raise LogGapError(
            f"the log of topic '{info.name}' begins at offset {info.start}, but sink {sink} needs it from {offset} on",
            cause="the sink was not enabled when retention ran, or segments were removed by hand",
            hint=f"frazil topic adopt {info.name} to go on at {info.start} without them",
        )
