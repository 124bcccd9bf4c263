"""The sinks of Frazil. A new sink is a class in its room, and an entry in this list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from frazil.content.names import CONTENT, journal_name, objects_name
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.settings import Settings
from frazil.topics.layout import ARCHIVE, table_name
from frazil.topics.sinks.registry import SinkDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.tables import TableStore
    from frazil.topics.sinks.sink import Sink


def _make_archive(store: TableStore, settings: Settings, address: str, spark: SparkSession | None) -> Sink:
    from frazil.topics.sinks.archive import ArchiveSink

    del spark  # its tasks need no session of their own
    return ArchiveSink(store, settings, address)


def _make_content(store: TableStore, settings: Settings, address: str, spark: SparkSession | None) -> Sink:
    from frazil.content.sink.content_sink import ContentSink

    return ContentSink(store, settings, address, spark)


def _make_documents(store: TableStore, settings: Settings, address: str, spark: SparkSession | None) -> Sink:
    from frazil.documents.sink import DocumentsSink

    return DocumentsSink(store, settings, address, spark)


def _archive_tables(settings: Settings, topic: str) -> Sequence[str]:
    return [table_name(settings, topic)]


def _content_tables(settings: Settings, topic: str) -> Sequence[str]:
    return [journal_name(settings), objects_name(settings)] if topic == settings.model.content.topic else []


def _documents_tables(settings: Settings, topic: str) -> Sequence[str]:
    return [history_name(settings), metadata_name(settings)] if topic == settings.model.documents.topic else []


SINKS: Sequence[SinkDefinition] = (
    SinkDefinition(ARCHIVE, "topics", _archive_tables, _make_archive),
    SinkDefinition(CONTENT, "content", _content_tables, _make_content),
    SinkDefinition(DOCUMENTS, "documents", _documents_tables, _make_documents),
)
