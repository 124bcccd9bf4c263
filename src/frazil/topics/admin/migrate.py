"""Moves a topic from one storage to the other, while producers write and readers read.

To a table: the topic's archive sink is enabled, and takes the log from its start. To the log: what the log no longer
has is copied back from the table, staged as segments, and installed by the process that owns the log. Either can break
off at any moment; the same call resumes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.errors import UnsupportedError
from frazil.log.columns import extra_columns
from frazil.log.maintenance.importing import Stage, discard, first_segment_follows
from frazil.log.owner import read_owner
from frazil.log.protocol import LogAccess, OffsetGoneError, Storage, TopicInfo
from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table
from frazil.topics.connection import flight_address, log_folder
from frazil.topics.layout import ARCHIVE, table_name
from frazil.topics.positions import require_same_log
from frazil.topics.reading.reader import TopicReader, reader_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

Note = Callable[[str], None]

#: Seconds of a retention that removes nothing: what is being copied must stay.
_HOLD_S = 1e12
#: Seconds that a running pipeline has to take over the topic, before this process does the work itself.
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Migration:
    """A migration that is planned or done."""

    topic: str
    storage: Storage
    """Where it goes."""
    changes: bool
    start: int
    """Messages of [start, end) are copied."""
    end: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Migrating:
    """One topic's migration.

    Args:
        access: the log.
        settings: the settings.
        topic: its name.
        store: the catalog with the topic's table.
        note: called with progress messages.
        patience_s: seconds that a running pipeline has to take over the topic.
    """

    def __init__(
        self,
        access: LogAccess,
        settings: Settings,
        topic: str,
        store: LazyStore,
        *,
        note: Note = lambda _text: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._access, self._settings, self._topic = access, settings, topic
        self._store, self._note, self._patience_s = store, note, patience_s

    def _table(self) -> Table | None:
        return find_table(self._store.store(), table_name(self._settings, self._topic))

    def _position(self, table: Table | None) -> int | None:
        from frazil.tables import find_position

        position = find_position(table, ARCHIVE, self._topic) if table is not None else None
        return None if position is None else position.offsets.get(0, 0)

    # -- to a table ------------------------------------------------------------------------------------------------

    def plan_to_iceberg(self, *, from_start_of_log: bool = False) -> Migration:
        """Determines what has to be copied into the table.

        Raises:
            OffsetGoneError: the log has lost its beginning, and the table does not have it.
            ForeignLogError: there is a table of that name, written from another log.
        """
        info = self._access.info(self._topic)
        table = self._table()
        if table is not None:
            require_same_log(table, self._topic, info.log_id)
        position = self._position(table)
        start = info.start if position is None else position
        if start < info.start or (position is None and info.start > 0 and not from_start_of_log):
            raise OffsetGoneError(
                f"the log of topic '{self._topic}' begins at offset {info.start}, and the table needs it from"
                f" {position or 0} on",
                start=info.start,
                cause="retention has removed what was before",
                hint="--from-start-of-log leaves it out" if position is None else f"frazil topic adopt {self._topic}",
            )
        return Migration(self._topic, "iceberg", info.storage != "iceberg", start, max(start, info.written))

    def to_iceberg(self, *, from_start_of_log: bool = False) -> Migration:
        """Gives the topic a table; returns when it has all that was in the log at the beginning."""
        plan = self.plan_to_iceberg(from_start_of_log=from_start_of_log)
        reach("migrate.configure.before")
        self._access.configure(self._topic, {"storage": "iceberg", **self._release()})
        reach("migrate.configure.after")
        end = self._access.sync(self._topic)
        if plan.start < end and not self._wait_for_pipeline(end):
            self._do_it_here(end)
        return Migration(self._topic, "iceberg", plan.changes, plan.start, end)

    def _release(self) -> dict[str, Any]:
        """Releases what an abandoned migration to the log holds."""
        if self._access.info(self._topic).retention_age_s != _HOLD_S:
            return {}
        discard(log_folder(self._settings) / "topics" / self._topic)
        return {"retention_age_s": None}

    def _wait_for_pipeline(self, end: int) -> bool:
        """Waits for the table as long as its position advances.

        A log that is open in this process has no other pipeline.
        """
        if not self._at_broker:
            return False
        self._note(f"waiting for the pipeline to take offsets up to {end}")
        last, since = self._position(self._table()), time.monotonic()
        while time.monotonic() - since < self._patience_s:
            position = self._position(self._table())
            if position is not None and position >= end:
                return True
            if position != last:
                last, since = position, time.monotonic()
                self._note(f"the table is at offset {position} of {end}")
            time.sleep(0.2)
        return False

    def _do_it_here(self, end: int) -> None:
        from frazil.topics.sinks.archive import ArchiveSink
        from frazil.topics.sinks.engine import Engine
        from frazil.topics.sinks.jobs import in_process

        self._note("no pipeline takes the topic; this process does it, without Spark")
        with flight_address(self._access) as address:
            sink = ArchiveSink(self._store.store(), self._settings, address)
            engine = Engine(self._topic, sink, self._access, in_process, self._settings.model.pipeline)
            engine.catch_up(end)

    # -- to the log ------------------------------------------------------------------------------------------------

    def plan_to_log(self) -> Migration:
        """Determines what has to be copied back into the log."""
        info = self._access.info(self._topic)
        if info.storage == "log":
            return Migration(self._topic, "log", False, info.start, info.start)
        return Migration(self._topic, "log", True, min(self._oldest(info), info.start), info.start)

    def _oldest(self, info: TopicInfo) -> int:
        """The oldest offset in the table; the log's start where there is none."""
        table = self._table()
        if table is None:
            return info.start
        require_same_log(table, self._topic, info.log_id)
        plan = self._reader().plan(info)
        return plan.floor if plan is not None and plan.files else info.start

    def _reader(self) -> TopicReader:
        return reader_of(self._access, self._settings, self._topic, self._store)

    def to_log(self) -> Migration:
        """Copies everything back into the log, then leaves the table as it is.

        Raises:
            UnsupportedError: the log is on another machine.
        """
        info = self._access.info(self._topic)
        if info.storage == "log":
            return self.plan_to_log()
        folder = self._folder() if self._oldest(info) < info.start else None
        if info.retention_age_s not in (None, _HOLD_S) or info.retention_bytes is not None:
            self._note("the topic's own retention is lifted: a log alone keeps all, until you say otherwise")
        # What is copied must stay. If this breaks off, the log merely keeps more than it has to.
        self._access.configure(self._topic, {"retention_age_s": _HOLD_S, "retention_bytes": None})
        plan = self.plan_to_log()
        if plan.start < plan.end:
            self._stage(folder or self._folder(), plan)
            self._put_in_place()
        discard(log_folder(self._settings) / "topics" / self._topic)
        reach("migrate.configure.before")
        self._access.configure(self._topic, {"storage": "log", "retention_age_s": None, "retention_bytes": None})
        reach("migrate.configure.after")
        return plan

    def _folder(self) -> Path:
        directory = log_folder(self._settings)
        owner = read_owner(directory)
        here = owner is None or owner.addresses.get("flight") == getattr(self._access, "address", None)
        folder = directory / "topics" / self._topic
        if not (here or hasattr(self._access, "directory")) or not folder.exists():
            raise UnsupportedError(
                f"the log of topic '{self._topic}' does not lie on this machine: {self._access.where}",
                cause="messages are copied back into its folder",
                hint="run this where the broker runs, with the same settings",
            )
        return folder

    def _stage(self, folder: Path, plan: Migration) -> None:
        info = self._access.info(self._topic)
        until = first_segment_follows(folder, plan.end, info.log_id) if info.segments else None
        stage = Stage(folder, info.log_id, self._settings.model.log.max_file_size)
        start = plan.start if stage.reached is None else max(plan.start, stage.reached)
        self._note(f"copying offsets {start} to {plan.end} from the table")
        reader = self._reader()
        if start < plan.end:
            for rows in reader.read(start, end=plan.end):
                stage.add(rows)
        reader.plan(info)
        stage.finish(until, extra_columns(reader.schema_of(info, None)))

    @property
    def _at_broker(self) -> bool:
        from frazil.log.remote.client import Client

        return isinstance(self._access, Client)

    def _put_in_place(self) -> None:
        reach("migrate.install.before")
        self._access.import_segments(self._topic)
        reach("migrate.install.after")
