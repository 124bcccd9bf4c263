"""Keeps the projection in line with the log: opens it, compares it, catches up, and builds it anew where it must."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from frazil.documents.iceberg.follow import find_mismatch, follow_log
from frazil.documents.iceberg.projection import (
    Projection,
    ProjectionFolder,
    ProjectionPosition,
    cursor_key_of,
    write_position,
)
from frazil.documents.iceberg.rebuild import fill_projection
from frazil.documents.iceberg.staging import Staging, open_staging
from frazil.documents.iceberg.topic import ensure_documents_topic
from frazil.documents.messages import BulkFile
from frazil.documents.model import Column
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.documents.sql.engine import connect
from frazil.documents.sql.records import load_columns, read_clock
from frazil.documents.sql.schema import document_history
from frazil.documents.tables import find_history_position
from frazil.errors import FrazilError, IntegrityError, NotFoundError
from frazil.log.columns import PARTITION
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables.store import LazyStore, find_table
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.positions import check_log, check_start

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from sqlalchemy import Connection

    from frazil.log.log import Log
    from frazil.log.protocol import TopicInfo
    from frazil.settings import Settings

_MISSING = "it does not exist"

log = get_logger(__name__)


@dataclass
class AskedTables:
    """A place in the log at which the tables were asked which offsets they know. It holds as long as the log has it."""

    log_id: str = ""
    offset: int = 0
    epoch: int = 0


@dataclass
class WriterState:
    """What every decision needs, as long as this process alone changes the projection.

    Attributes:
        columns: the added columns.
        clock: the moment of the last acknowledgement.
    """

    columns: dict[str, Column]
    clock: datetime | None


class ProjectionKeeper:
    """Belongs to the process that has the log open. Any number of threads may use one.

    Args:
        settings: the settings.
        opened: the log, open in this process.
        folder: of the projection.
        asked: what an earlier keeper of this process has learned from the tables.
    """

    def __init__(
        self, settings: Settings, opened: Log, folder: ProjectionFolder, asked: AskedTables | None = None
    ) -> None:
        self.lock = threading.RLock()
        """Held by whoever changes the projection."""
        self.position = ProjectionPosition("", 0, 0, 0)
        self._settings, self._log, self._folder = settings, opened, folder
        self._asked = asked if asked is not None else AskedTables()
        self._has_asked = False
        self._tables = LazyStore(settings)
        self._projection: Projection | None = None
        self._is_stale = True
        self._state: WriterState | None = None
        self._epoch: int | None = None
        self._staging: Staging | None = None

    # -- reads -------------------------------------------------------------------------------------------------------

    def current(self) -> Projection:
        """Returns the projection, with everything that is acknowledged."""
        found = self._projection
        if found is None or self._is_stale or self._folder.identity() != found.identity:
            with self.lock:
                return self.follow()
        return found

    def follow(self) -> Projection:
        """Brings the projection up to the end of the log, and builds it anew if it does not belong to the log.

        The catalog is asked only if it is built anew.
        """
        with self.lock:
            found = self._projection
            if found is not None and not self._is_stale and self._folder.identity() == found.identity:
                return found
            info = ensure_documents_topic(self._log, self._settings)
            try:
                found, reason = self._open(), _MISSING
            except FrazilError as error:
                found, reason = None, error.in_one_line
            if found is not None:
                followed = self._follow(found, info)
                if isinstance(followed, ProjectionPosition):
                    return self._use(found, followed)
                reason = followed
            return self.rebuild(reason)

    def _follow(self, found: Projection, info: TopicInfo) -> ProjectionPosition | str:
        """Returns the position at the end of the log, or why the projection cannot get there."""
        try:
            position = found.position()
            if reason := find_mismatch(self._log, info, position):
                self._ask_tables(info)
                info = self._log.info(info.name)
                reason = find_mismatch(self._log, info, position)
            return reason or follow_log(self._log, info, found, self.read_bulk)
        except (IntegrityError, NotFoundError) as error:  # damaged, or the log or a staged file is gone
            return error.in_one_line

    def _open(self) -> Projection | None:
        """Opens the present generation, unless it is open."""
        found = self._projection
        if found is not None and self._folder.identity() == found.identity:
            return found
        self._close_projection()
        unfinished = self._folder.has_unfinished_log()
        found = self._folder.open()
        if found is not None and unfinished:
            # A copy of another day may lie beside the write-ahead log of the file that it has replaced.
            with connect(found.engine) as connection:
                rows = connection.scalar(select(func.count()).select_from(document_history))
            position = found.position()
            if position is not None and rows != position.rows:
                found.close()
                raise IntegrityError(f"it has {rows:,} revisions where it should have {position.rows:,}")
        return found

    def _use(self, found: Projection, position: ProjectionPosition) -> Projection:
        self.position = position
        self._projection, self._is_stale, self._epoch, self._state = found, False, None, None
        return found

    def invalidate(self) -> None:
        """The projection may lack what the log has: the next use follows the log first."""
        self._is_stale = True

    def rebuild(self, reason: str) -> Projection:
        """Builds the projection from the history table and the log behind it, and puts it in place at once.

        Raises:
            UnavailableError: the catalog does not answer.
            IntegrityError, NotFoundError: table and log do not belong together.
        """
        with self.lock:
            if reason != _MISSING:
                log.warning("the projection of documents is built anew", reason=reason)
            info = ensure_documents_topic(self._log, self._settings)
            self._ask_tables(info)
            info = self._log.info(info.name)
            store = self._tables.store()
            metadata = find_table(store, metadata_name(self._settings))
            table = find_table(store, history_name(self._settings))
            built = self._folder.create(cursor_key_of(self._log.key))
            try:
                start = self._start_of(table, metadata, info)
                rows = fill_projection(built, store, table)
                built.index_keys()
                position = ProjectionPosition(
                    info.log_id,
                    start,
                    self._log.epoch_below(info.name, start),
                    rows,
                    None if table is None else str(table.metadata.table_uuid),
                )
                with built.write() as connection:
                    write_position(connection, position)
                position = follow_log(self._log, info, built, self.read_bulk)
                built.complete()
                reach("documents.rebuild.before_publish")
            except BaseException:
                built.close()
                self._folder.remove_former()
                raise
            former, self._projection = self._projection, None
            if former is not None:
                former.close()
            return self._use(self._folder.publish(built), position)

    def _start_of(self, table: Table | None, metadata: Table | None, info: TopicInfo) -> int:
        """The first offset that the history table does not have."""
        position = find_history_position(table, metadata, info.name)
        check_log(info.name, info.log_id, position, DOCUMENTS)
        start = 0 if position is None else position.offsets.get(PARTITION, 0)
        check_start(info, start, DOCUMENTS)
        return start

    # -- writes ------------------------------------------------------------------------------------------------------

    def prepare_writes(self) -> Projection:
        """Returns the projection, up to date, once the tables were asked which offsets they know.

        Raises:
            UnavailableError: the catalog does not answer, and no offset is safe to assign.
        """
        with self.lock:
            if not self._has_asked:
                info = ensure_documents_topic(self._log, self._settings)
                if not self._covers(info):
                    self._ask_tables(info)
                self._has_asked = True
            return self.current()

    def _covers(self, info: TopicInfo) -> bool:
        """Whether the tables were asked before, and the log has only grown since."""
        asked = self._asked
        return (
            asked.log_id == info.log_id
            and info.written >= asked.offset
            and self._log.epoch_below(info.name, asked.offset) == asked.epoch
        )

    def _ask_tables(self, info: TopicInfo) -> None:
        """Makes the log go on behind every offset that a table knows."""
        floor = committed_offsets(self._settings)(info.name, info.log_id)
        if floor is not None and floor > info.written:
            log.warning("the tables know messages that the log does not have", topic=info.name, tables=floor)
            self._log.raise_floor(info.name, floor)
            self.invalidate()
        self._has_asked = True

    def load_state(self, connection: Connection) -> WriterState:
        """Returns the columns and the clock of the projection, which are read once."""
        if self._state is None:
            self._state = WriterState(load_columns(connection), read_clock(connection))
        return self._state

    def advance(
        self, connection: Connection, offset: int, rows: int, moment: datetime | None
    ) -> tuple[ProjectionPosition, WriterState | None]:
        """Writes the position behind a batch that this process has just appended.

        Args:
            connection: in the transaction that has applied the batch.
            offset: the first one behind the batch.
            rows: revisions in it.
            moment: of its last acknowledgement; None: it has no revisions, but perhaps a column.

        Returns:
            what `commit` takes after the transaction.
        """
        if self._epoch is None:
            self._epoch = self._log.epoch_below(self._settings.model.documents.topic, offset)
        reached = self.position.advanced(offset, self._epoch, rows)
        write_position(connection, reached, moment)
        return reached, None if moment is None else WriterState(self.load_state(connection).columns, moment)

    def commit(self, reached: tuple[ProjectionPosition, WriterState | None]) -> None:
        """Takes note of what a committed transaction has written."""
        self.position, self._state = reached

    # -- tables ------------------------------------------------------------------------------------------------------

    def staging(self) -> Staging:
        """Returns the folder of staged files; the tables are created for it."""
        with self.lock:
            if self._staging is None:
                self._staging = open_staging(self._tables.store(), self._settings)
            return self._staging

    def read_bulk(self, file: BulkFile) -> pa.Table:
        return self.staging().read(file)

    def remove_staged_files(self) -> int:
        """Removes staged files that the tables have and the log has passed, and returns how many there were."""
        from frazil.documents.iceberg.staged_removal import remove_staged_files

        info = self._log.info(self._settings.model.documents.topic)
        if info.start == 0:  # so that most logs need not ask the catalog
            return 0
        history = find_table(self._tables.store(), history_name(self._settings))
        return 0 if history is None else remove_staged_files(self._tables.store(), self._settings, history, info)

    def close(self) -> None:
        with self.lock:
            if self._has_asked and not self._is_stale:
                self._asked.log_id = self.position.log_id
                self._asked.offset, self._asked.epoch = self.position.offset, self.position.epoch
            self._close_projection()
            self._tables.close()

    def _close_projection(self) -> None:
        found, self._projection, self._is_stale = self._projection, None, True
        if found is not None:
            found.close()
