"""The Spark data source `frazil`: a topic, its table and its log together, in batches and streams.

    from frazil.topics.source.source import register
    register(spark)
    spark.read.format("frazil").option("topic", "orders").load()
    spark.readStream.format("frazil").option("topic", "orders").option("startingOffset", "latest").load()

Options: topic, broker, source (union or log), startingOffset (earliest, latest or a number), endingOffset (latest or a
number), startingTime, endingTime (ISO 8601), partitions, maxBytesPerTrigger (streams), pushdown. Columns that a job
does not need are left out by a schema: `.schema("offset LONG, payload BINARY")`; Spark does not tell a Python source
which ones a query uses.

With pushdown, filters on offset, publish_time and partition decide which files and ranges are read at all. That is off
by default: Spark 4.1 keeps the plan that a filter has narrowed with the frame, and takes it for the next query of the
frame that has no filter, and for both sides of a union. Rows would be missing there.

A split is a range of offsets. It begins with the files that the driver has planned; when these have gone, or the log's
segments have, it reads the same range from where it is now. So a micro-batch that Spark runs again has the same rows.
With the trigger availableNow, leave maxBytesPerTrigger out: Spark asks for the end of the data only once then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from frazil.errors import UnavailableError, UsageError
from frazil.settings import NetworkSettings, Settings, load_settings
from frazil.tables.reading.ordered_scan import scan_in_order
from frazil.tables.reading.retrying import is_missing_file
from frazil.topics.reading.reader import TopicReader, open_reader
from frazil.topics.source.filters import Window, window_of
from frazil.topics.source.options import SourceOptions, parse_options
from frazil.topics.source.plan import Split, bounded_end, splits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

#: Rows of one Arrow batch on its way into the JVM.
_ROWS = 10_000


def register(spark: SparkSession, settings: Settings | None = None) -> None:
    """Makes the format `frazil` known to a session, with these settings; by default those in force here."""
    chosen = settings or load_settings()

    class Configured(FrazilSource):
        """Made here, so that Spark sends it with its settings: those of a worker may be others."""

        settings = chosen

    # Spark refuses a source that takes filters unless this is set.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Configured)


class FrazilSource(DataSource):  # type: ignore[misc]  # PySpark has no types
    settings: Settings | None = None

    @classmethod
    def name(cls) -> str:
        return "frazil"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        with self._topic().reader() as reader:
            return from_arrow_schema(reader.schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        topic = self._topic()
        kind = FilteringReader if topic.options.pushdown else FrazilReader
        return kind(topic, topic.wanted(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        topic = self._topic()
        return FrazilStreamReader(topic, topic.wanted(schema))

    def _topic(self) -> SourceTopic:
        settings = self.settings or load_settings()
        options = parse_options(dict(self.options))
        return SourceTopic(settings, options, options.broker or _broker_of(settings))


def _broker_of(settings: Settings) -> str:
    from frazil.log.owner import read_owner
    from frazil.topics.connection import log_folder

    if settings.model.log.broker:
        return settings.model.log.broker
    folder = log_folder(settings)
    owner = read_owner(folder)
    if owner is None or "flight" not in owner.addresses:
        raise UnavailableError(
            f"no broker serves the log at {folder}",
            cause="Spark's tasks read the log through one",
            hint='frazil serve, or .option("broker", "grpc://host:port")',
        )
    return owner.addresses["flight"]


@dataclass(frozen=True)
class SourceTopic:
    """A topic as a job reads it. It has no open handles, and goes to the executors as it is."""

    settings: Settings
    options: SourceOptions
    broker: str

    @contextmanager
    def reader(self, first: Literal["table", "log"] = "table") -> Iterator[TopicReader]:
        from frazil.log.remote.client import Client

        with Client(self.broker, self.settings.model.network) as access:
            if self.options.source == "log":
                yield TopicReader(access, self.options.topic, None, first="log")
            else:
                with open_reader(access, self.settings, self.options.topic, first=first) as reader:
                    yield reader

    def wanted(self, schema: StructType) -> pa.Schema:
        """The columns of Spark's schema, which may be some of the topic's, in Arrow's types."""
        from pyspark.sql.pandas.types import from_arrow_schema

        with self.reader() as reader:
            known = reader.schema()
        kinds = {f.name: f.dataType for f in from_arrow_schema(known)}
        for field in schema:
            if kinds.get(field.name) != field.dataType:
                kind = field.dataType.simpleString()
                raise UsageError(
                    f"topic '{self.options.topic}' has no column '{field.name}' of type {kind}",
                    hint=f"its columns: {', '.join(f'{n} {k.simpleString()}' for n, k in kinds.items())}",
                )
        import pyarrow as pa

        return pa.schema([known.field(name) for name in schema.fieldNames()])

    def range(self, reader: TopicReader, window: Window) -> tuple[int, int]:
        """The offsets to read, by options and filters."""
        bounds = reader.bounds()
        start = self.first_offset(reader)
        if window.time_us.low > 0:
            start = max(start, reader.offset_at(window.time_us.low))
        end = _resolved(self.options.end, reader, bounds.end)
        return max(start, window.offset.low), min(end, bounds.end, window.offset.high + 1)

    def first_offset(self, reader: TopicReader) -> int:
        if self.options.latest:
            return reader.info().end
        return _resolved(self.options.start, reader, reader.bounds().start)

    def batches(self, split: Split, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        for table in self._tables(split, wanted):
            yield from table.combine_chunks().to_batches(max_chunksize=_ROWS)

    def _tables(self, split: Split, wanted: pa.Schema) -> Iterator[pa.Table]:
        cursor = split.start
        try:
            for scanned in _scanned(split, wanted, self.settings.model.network):
                cursor = scanned.reached
                yield scanned.table.select(wanted.names)
            if split.plan is not None:
                return
        except OSError as error:
            if not is_missing_file(error):
                raise UnavailableError(f"the files of topic '{self.options.topic}' cannot be read") from error
        with self.reader(first="log") as reader:
            yield from reader.read(cursor, end=split.end, columns=wanted.names)


def _scanned(split: Split, wanted: pa.Schema, network: NetworkSettings) -> Iterator[Any]:
    from frazil.topics.reading.follow import with_offset

    if split.plan is None:
        return iter(())
    return scan_in_order(split.plan, with_offset(wanted), split.start, split.end, network=network)


def _resolved(edge: int | datetime | None, reader: TopicReader, default: int) -> int:
    if edge is None:
        return default
    return reader.offset_at(edge) if isinstance(edge, datetime) else edge


class Part(InputPartition):  # type: ignore[misc]
    def __init__(self, split: Split) -> None:
        self.split = split


class FrazilReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, topic: SourceTopic, wanted: pa.Schema) -> None:
        self._topic, self._wanted = topic, wanted
        self._window = Window()

    def partitions(self) -> Sequence[Part]:
        if self._window.is_empty:
            return []
        with self._topic.reader() as reader:
            start, end = self._topic.range(reader, self._window)
            found = splits(reader, start, end, partitions=self._topic.options.partitions, time_us=self._window.time_us)
        return [Part(split) for split in found]

    def read(self, partition: Part | None) -> Iterator[pa.RecordBatch]:
        return iter(()) if partition is None else self._topic.batches(partition.split, self._wanted)


class FilteringReader(FrazilReader):
    """For a frame that is used once: Spark would take the filters of one query for those of all."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Takes what narrows the range, and gives all back: Spark applies them to the rows that are left."""
        self._window = window_of(filters)
        return filters


class FrazilStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """A stream's offset is the next one that it wants; Spark keeps it in the checkpoint."""

    def __init__(self, topic: SourceTopic, wanted: pa.Schema) -> None:
        if topic.options.end is not None:
            raise UsageError("a stream has no end", hint="leave endingOffset and endingTime out")
        self._topic, self._wanted = topic, wanted
        self._initial: int | None = None
        self._position: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._initial is None:
            with self._topic.reader() as reader:
                self._initial = self._topic.first_offset(reader)
        return {"offset": self._initial}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        # Spark tells a restarted stream where it was by asking for the partitions of an empty range.
        start = self.initialOffset()["offset"] if self._position is None else self._position
        limit = self._topic.options.max_bytes
        with self._topic.reader(first="log") as reader:
            end = reader.info().end if limit is None else bounded_end(reader, start, limit)
        return {"offset": max(start, end)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Part]:
        self._position = end["offset"]
        if start["offset"] >= end["offset"]:
            return []
        with self._topic.reader(first="log") as reader:
            found = splits(reader, start["offset"], end["offset"], partitions=self._topic.options.partitions)
        return [Part(split) for split in found]

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        return self._topic.batches(partition.split, self._wanted)
