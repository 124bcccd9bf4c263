"""The archive sink: every message of a topic, as it is, into `topics.<topic>`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from frazil.errors import FrazilError
from frazil.log.access import LogAccess, Span, TopicInfo, TopicView
from frazil.log.messages import decode_chunk
from frazil.observe.faultpoints import reach
from frazil.settings import Settings
from frazil.tables import TableStore, commit_append
from frazil.topics.layout import ARCHIVE, dead_letters_name, ensure_topic_table, table_name
from frazil.topics.letters.dead_letters import DeadLetters, Origin, dead_rows
from frazil.topics.sinks import metrics
from frazil.topics.sinks.expiry import expire
from frazil.topics.sinks.fit import fit
from frazil.topics.sinks.parquet import TableWriter, Target, discard
from frazil.topics.sinks.sink import Plan, Work, Written, files_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table


class ArchiveSink:
    name = ARCHIVE

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

    def work(self, table: Table, plan: Plan) -> Work:
        origin = Origin(self.name, plan.info.name, plan.info.log_id)
        return ArchiveWork(
            self._address,
            plan.info.view,
            Target.of(table),
            self._dead_letters.target(),
            origin,
            self._dead_letters.known(origin, plan),
        )

    def commit(self, table: Table, plan: Plan, written: Sequence[Written]) -> Table:
        dead = files_of(written, "dead")
        if dead:
            reach("sink.dead_letters.before")
            try:
                self._dead_letters.commit(self.name, plan, dead)
            except FrazilError:
                # The batch is begun again, with files of its own. What is dead may have landed, and stays.
                discard(table.io, [file.file_path for file in files_of(written, "main")])
                raise
            reach("sink.dead_letters.after")
        reach("sink.commit.before")
        commit = commit_append(
            self._store,
            table,
            files_of(written, "main"),
            expected=plan.expected,
            reached=plan.reached(self.name),
            keep_snapshots=self._settings.model.topics.keep_snapshots,
        )
        reach("sink.commit.after")
        return commit.table

    def expire(self, table: Table) -> Table:
        topics = self._settings.model.topics
        removal = expire(self._store, table, age_s=topics.retention_age_s, size=topics.retention_bytes)
        if removal.rows:
            metrics.EXPIRED.labels(table.name()[-1], self.name).inc(removal.rows)
        return removal.table


@dataclass(frozen=True)
class ArchiveWork:
    """Reads a span from the broker and writes it as files, chunk by chunk."""

    address: str
    view: TopicView
    main: Target
    dead: Target
    origin: Origin
    known_dead: frozenset[int]
    """Offsets that a former try of this batch has put into the dead letters already."""

    def __call__(self, span: Span) -> Written:
        reach("sink.task.before")
        name = f"{span.start:020d}"
        main, dead = TableWriter(self.main, name), TableWriter(self.dead, f"{self.view.topic}-{name}")
        rows = lost = 0
        try:
            for messages in read_span(self.address, self.view, span):
                fitted = fit(messages, main.schema)
                main.add(fitted.rows)
                rows += fitted.rows.num_rows
                if fitted.misfits:
                    letters = dead_rows(messages, fitted.misfits, self.origin, self.known_dead)
                    dead.add(fit(letters, dead.schema).rows)
                    lost += letters.num_rows
            files = {"main": main.finish(), "dead": dead.finish()}
        except BaseException:
            main.abandon()
            dead.abandon()
            raise
        reach("sink.task.after")
        return Written(files, rows, lost)


def read_span(address: str, view: TopicView, span: Span) -> Iterator[pa.Table]:
    """The messages of a span, as they lie in the log."""
    for chunk in _client(address).chunks(view.topic, span.start, span.end):
        yield decode_chunk(chunk, view, span.start, span.end)


@lru_cache(maxsize=4)
def _client(address: str) -> LogAccess:
    """Kept by the worker for the batches to come."""
    from frazil.log.remote.client import Client

    return Client(address)
