"""A topic of documents, its tables and its sink, and what the tables should hold, kept outside of both."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from frazil.documents.arrow import revisions_to_table, table_to_revisions
from frazil.documents.decide import StoredRevision, decide_writes
from frazil.documents.iceberg.staging import Staging, open_staging
from frazil.documents.iceberg.topic import ensure_documents_topic
from frazil.documents.messages import BulkFile, encode_bulk, encode_column, encode_revision
from frazil.documents.model import Column, Document, Revision
from frazil.documents.names import history_name, metadata_name
from frazil.documents.sink import DocumentsSink
from frazil.documents.store import Write
from frazil.log.batch import Batch, batch_with_headers
from frazil.log.trust import add_mark
from frazil.settings import Settings
from frazil.tables.store import find_table
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import on_spark
from tests.sink_kit import SinkKit, sink_kit_of

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class DocumentsKit:
    """Decides writes as a store does, publishes them as Frazil does, and remembers them."""

    def __init__(self, kit: SinkKit, spark: SparkSession, catalog: str) -> None:
        self.kit, self.spark, self.catalog, self.settings = kit, spark, catalog, kit.settings
        self.topic = ensure_documents_topic(kit.log, kit.settings).name
        self.now = START
        self.latest: dict[str, Revision] = {}
        self.columns: dict[str, Column] = {}
        self.stored: list[StoredRevision] = []

    # -- the log

    def write(self, *writes: Write) -> list[Revision]:
        """Publishes one message for each write."""
        decided = self.decide(*writes)
        self.publish(*map(encode_revision, decided))
        return [stored.revision for stored in decided]

    def decide(self, *writes: Write) -> list[StoredRevision]:
        """Decides writes that are in the tables as soon as their messages are."""
        self.now += timedelta(seconds=1)
        decided = decide_writes(writes, self.latest, {}, self.columns, self.now)
        self.latest |= {decision.revision.document_id: decision.revision for decision in decided}
        made = [StoredRevision(d.revision, d.idempotency_key, d.digest) for d in decided]
        self.stored += made
        return made

    def put(self, document_id: str, **values: Any) -> Revision:
        made = {"filename": f"{document_id}.pdf", **values}
        return self.write(Write("put", document_id, made))[0]

    def add_column(self, name: str, kind: Any) -> bytes:
        self.columns[name] = Column(name, kind)
        return encode_column(self.columns[name])

    def publish(self, *messages: bytes) -> int:
        """Publishes messages of Frazil's own, and returns the offset of the first."""
        batch = batch_with_headers(list(messages), [None] * len(messages), [add_mark({})] * len(messages))
        return self.kit.log.append(self.topic, batch, internal=True).offset

    def publish_as_anybody(self, *messages: bytes) -> int:
        return self.kit.client.append(self.topic, Batch.of_messages(messages)).offset

    @property
    def staging(self) -> Staging:
        return open_staging(self.kit.store, self.settings)

    def stage(self, stored: Sequence[StoredRevision]) -> BulkFile:
        return self.staging.write(revisions_to_table(stored))

    def load(self, *parts: Sequence[StoredRevision]) -> list[BulkFile]:
        """Publishes one message with a staged file for each part."""
        files = [self.stage(part) for part in parts]
        self.publish(encode_bulk(files))
        return files

    # -- the sink

    def engine(self, settings: Settings | None = None) -> Engine:
        """The sink as in a new process."""
        chosen = settings or self.settings
        sink = DocumentsSink(self.kit.store, chosen, self.kit.client.address, self.spark)
        return Engine(self.topic, sink, self.kit.client, on_spark(self.spark), chosen.model.pipeline)

    def merge(self) -> int:
        """Takes everything into the tables, and returns how many batches that took."""
        return self.engine().catch_up().commits

    # -- the tables

    def documents(self) -> dict[str, dict[str, Any]]:
        """Rows of `document_metadata`, by id."""
        rows = self.kit.store.load(metadata_name(self.settings)).scan().to_arrow().to_pylist()
        found = {row["document_id"]: _plain(row) for row in rows}
        assert len(found) == len(rows), "one row for each document"
        return found

    def history(self) -> list[StoredRevision]:
        """All revisions, in the order of the log."""
        table = find_table(self.kit.store, history_name(self.settings))
        if table is None:
            return []
        rows = table.scan().to_arrow()
        return table_to_revisions(rows.sort_by([("offset", "ascending"), ("valid_from", "ascending")]))

    def dead(self) -> list[tuple[int, str]]:
        return [(row["offset"], row["reason"]) for row in self.kit.dead(self.topic)]

    def check(self) -> None:
        """Tables = what was published, once."""
        expected = {i: r.document for i, r in self.latest.items() if not r.is_deleted}
        assert self.documents() == {i: _plain(document) for i, document in expected.items()}
        assert _by_key(self.history()) == _by_key(self.stored)

    def on_spark(self, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        name = f"`{self.catalog}`.{metadata_name(self.settings)}"
        return sorted(tuple(row) for row in self.spark.sql(f"SELECT {columns} FROM {name} WHERE {where}").collect())


def past(document_id: str, *operations: str, begin: datetime = START, **values: Any) -> list[StoredRevision]:
    """The complete history of a document of another store."""
    latest: dict[str, Revision] = {}
    made: list[StoredRevision] = []
    for number, operation in enumerate(operations):
        fields = {"filename": f"{document_id}.pdf", "created_at": begin, **values} if operation == "put" else {}
        if operation == "update":
            fields = {"size_bytes": number}
        moment = begin + timedelta(days=number)
        (decided,) = decide_writes([Write(operation, document_id, fields)], latest, {}, {}, moment)  # type: ignore[arg-type]
        latest[document_id] = decided.revision
        made.append(StoredRevision(decided.revision))
    return made


def _by_key(stored: Sequence[StoredRevision]) -> list[StoredRevision]:
    return sorted(stored, key=lambda s: (s.revision.document_id, s.revision.revision))


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record or a row of the table, so that both can be compared."""
    made = {name: value for name, value in row.items() if value is not None}
    if isinstance(row, Document):
        made |= {"tags": dict(row.tags), "attributes": dict(row.attributes)}
    else:
        made |= {"tags": dict(row["tags"] or ()), "attributes": json.loads(row["attributes"])}
    return made


@contextmanager
def documents_sink_kit(
    lane_settings: Settings, spark: SparkSession, folder: Path, catalog: str = "sql", **documents: Any
) -> Iterator[DocumentsKit]:
    """A kit with a log and a namespace of its own."""
    model = lane_settings.model
    log = model.log.model_copy(update={"directory": folder / "log", "min_free": 0})
    namespace = f"d{uuid.uuid4().hex[:10]}"
    section = model.documents.model_copy(
        update={"namespace": namespace, "topic": f"{namespace}_documents", **documents}
    )
    settings = Settings(model.model_copy(update={"log": log, "documents": section}))
    with sink_kit_of(settings, catalog) as made:
        yield DocumentsKit(made, spark, catalog)
