"""The archive sink: every message of a topic, unchanged, into `topics.<topic>`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, IntegrityError, UsageError
from frazil.log.local_reader import read_local_frames
from frazil.log.messages import decode_chunk
from frazil.log.protocol import Chunk, Span, TopicInfo, TopicView
from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.settings.policies import snapshots_kept
from frazil.tables import Position, TableStore, commit_append
from frazil.tables.writing.data_files import TableWriter, WriteTarget, discard_files
from frazil.tables.writing.type_conversion import convert_all_rows, convert_rows
from frazil.topics.dead_letters.writer import DeadLetters, Origin, dead_rows
from frazil.topics.layout import ARCHIVE, dead_letters_name, ensure_topic_table, table_name
from frazil.topics.sinks import metrics
from frazil.topics.sinks.archived import ArchivedSpan, read_archived
from frazil.topics.sinks.isolation import isolate
from frazil.topics.sinks.retention import expire
from frazil.topics.sinks.sink import Plan, Runner, Work, Written, files_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from frazil.log.remote.client import Client
    from frazil.topics.sinks.backfill import Backfill


class ArchiveSink:
    name = ARCHIVE
    idle_work_every_s = 60.0

    def __init__(self, store: TableStore, settings: Settings, address: str) -> None:
        self._store = store
        self._settings = settings
        self._address = address
        self._dead_letters = DeadLetters(store, settings)

    def tables(self, topic: str) -> list[str]:
        return [dead_letters_name(self._settings), table_name(self._settings, topic)]

    def table(self, info: TopicInfo) -> Table:
        self._dead_letters.forget(info.name)
        return ensure_topic_table(self._store, self._settings, info)

    def backfill(self, topic: str) -> Backfill | None:
        del topic
        return None  # its own table is the source of the others' backfill

    def write(self, table: Table, plan: Plan, run: Runner) -> list[Written]:
        return run(self._work(table, plan), plan.spans)

    def _work(self, table: Table, plan: Plan) -> Work:
        origin = Origin(self.name, plan.info.name, plan.info.log_id)
        return ArchiveWork(
            self._address,
            plan.info.view,
            WriteTarget.of(table),
            self._dead_letters.target(),
            origin,
            self._dead_letters.known(origin, plan.expected, plan.end),
            nearby=self._settings.model.pipeline.read_segments == "auto",
            isolate=plan.isolate,
        )

    def commit(self, table: Table, plan: Plan, written: Sequence[Written]) -> Table:
        dead = files_of(written, "dead")
        if dead:
            reach("sink.dead_letters.before")
            try:
                self._dead_letters.commit(plan.reached(self.name), dead)
            except FrazilError:
                # The batch is retried with new files. Its dead letters may have landed, and stay.
                discard_files(table.io, [file.file_path for file in files_of(written, "main")])
                raise
            reach("sink.dead_letters.after")
        keep = snapshots_kept(self._settings, table.name(), self._settings.model.topics.keep_snapshots)
        reach("sink.commit.before")
        commit = commit_append(
            self._store,
            table,
            files_of(written, "main"),
            expected=plan.expected,
            reached=plan.reached(self.name),
            keep_snapshots=keep,
        )
        reach("sink.commit.after")
        return commit.table

    def run_idle_work(self, table: Table, position: Position) -> Table:
        """Applies retention to the table."""
        del position
        topics = self._settings.model.topics
        removal = expire(self._store, table, age_s=topics.retention_age_s, size=topics.retention_bytes)
        if removal.rows:
            metrics.EXPIRED.labels(table.name()[-1], self.name).inc(removal.rows)
        return removal.table

    def idle_work_due_s(self) -> float | None:
        return None


@dataclass(frozen=True)
class ArchiveWork:
    """Reads a span from the log and writes it to files, chunk by chunk."""

    address: str
    view: TopicView
    main: WriteTarget
    dead: WriteTarget
    origin: Origin
    known_dead: frozenset[int]
    """Offsets that a former try of this batch has put into the dead letters already."""
    nearby: bool = True
    """Whether the log's files may be read where they are on the same machine."""
    isolate: bool = False
    """Whether messages that cannot be written become dead letters: former tries of the batch have failed."""

    def __call__(self, span: Span) -> Written:
        reach("sink.task.before")
        name = f"{span.start:020d}"
        main, dead = TableWriter(self.main, name), TableWriter(self.dead, f"{self.view.topic}-{name}")
        rows = lost = 0
        try:
            for messages in read_span(self.address, self.view, span, nearby=self.nearby):
                fitted = isolate(messages, self.main) if self.isolate else convert_rows(messages, main.schema)
                main.add(fitted.rows)
                rows += fitted.rows.num_rows
                if fitted.rejected:
                    letters = dead_rows(messages, fitted.rejected, self.origin, self.known_dead)
                    dead.add(convert_all_rows(letters, dead.schema, "a dead letter"))
                    lost += letters.num_rows
            files = {"main": main.finish(), "dead": dead.finish()}
        except BaseException:
            main.abandon()
            dead.abandon()
            raise
        reach("sink.task.after")
        return Written(files, rows, lost)


def read_span(address: str, view: TopicView, span: Span, *, nearby: bool) -> Iterator[pa.Table]:
    """Yields the messages of a span: from the log's files on this machine if possible, otherwise from the broker.

    What the log no longer has comes from the archive.
    """
    if isinstance(span, ArchivedSpan):
        yield from read_archived(span, view)
        return
    client, start = _client(address), span.start
    for chunk, following in _read_local(client, view.topic, span) if nearby else ():
        try:
            messages = decode_chunk(chunk, view, start, span.end)
        except IntegrityError:
            break  # the broker sees it too, or it is no longer its file
        yield messages
        start = following
    if start < span.end:
        for chunk in client.chunks(view.topic, start, span.end):
            yield decode_chunk(chunk, view, start, span.end)


def _read_local(client: Client, topic: str, span: Span) -> Iterator[tuple[Chunk, int]]:
    try:
        found = client.places(topic, span.start, span.end)
    except UsageError:  # a broker of an older version
        return
    yield from read_local_frames(found)


@lru_cache(maxsize=4)
def _client(address: str) -> Client:
    """Returns a client that the worker keeps for later batches."""
    from frazil.log.remote.client import Client

    return Client(address)
