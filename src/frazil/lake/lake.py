"""The lake: everything that Frazil can do, for Python programs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from frazil.errors import UsageError
from frazil.observe.logs import get_logger
from frazil.settings import Settings, environment, load_settings
from frazil.settings.arguments import flatten_settings
from frazil.settings.permissions import make_private

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from frazil.documents.store import DocumentStore
    from frazil.lake.backup import Backups
    from frazil.lake.connection import Connection
    from frazil.lake.content import Content
    from frazil.lake.replica import Replicas
    from frazil.lake.table import Table
    from frazil.lake.topic import ProducerOptions, Topic
    from frazil.log.protocol import Level, TopicInfo

log = get_logger(__name__)

_CALL = "connect()"


def connect(
    config: str | os.PathLike[str] | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    catalog: str | None = None,
) -> Lake:
    """Connects to a lake. Nothing is opened or started until it is needed.

    Without arguments it has the settings of the command line: environment, `frazil.yaml` here or above, the user's
    settings file. Arguments are stronger than these.

    Args:
        config: a settings file, instead of `frazil.yaml` here or above.
        home: the folder of log, embedded catalog and warehouse: the setting `home`.
        settings: any settings, nested or dotted: `{"log.broker": "grpc://127.0.0.1:8815", "s3": {"region": "…"}}`.
        catalog: name of the catalog with the tables, if it is not the one of the settings.

    Raises:
        ConfigError: a setting is wrong or unknown.
        NotFoundError: no catalog has that name.
    """
    given = flatten_settings(settings or {}, _CALL)
    if home is not None:
        if "home" in given:
            raise UsageError("home is given twice: as an argument and in settings", hint="one of the two")
        given["home"] = os.fspath(home)
    loaded = load_settings(flags=given, config=None if config is None else Path(config), option=_CALL)
    loaded.catalog(catalog)
    if loaded.model.home == environment.default_home():  # a folder of the user's choice may have other contents
        make_private(loaded.model.home)
    for notice in loaded.notices:
        log.warning(notice.text)
    return Lake(loaded, catalog)


class Lake:
    """Topics, tables, content, documents, backups and replicas.

    Made by `frazil.connect`; close it, or use it in a `with` block.

    Any number of threads and coroutines may share one. A process that was forked needs one of its own.
    """

    def __init__(self, settings: Settings, catalog: str | None = None) -> None:
        self._settings, self._catalog = settings, catalog
        self._lock = threading.RLock()
        self._opened: Connection | None = None
        self._topics: dict[tuple[str, ProducerOptions], Topic] = {}

    @property
    def _connection(self) -> Connection:
        from frazil.lake.connection import Connection

        with self._lock:
            if self._opened is None:
                self._opened = Connection(self._settings, self._catalog)
            return self._opened

    @property
    def home(self) -> Path:
        """The folder of log, embedded catalog and warehouse."""
        return self._settings.model.home

    def __repr__(self) -> str:
        return f"<frazil.Lake {self.home}>"

    # -- topics ------------------------------------------------------------------------------------------------------

    def topics(self) -> list[TopicInfo]:
        """Returns all topics, with `name`, `storage`, `start`, `end`, `size` and more."""
        with self._connection.log_if_any() as access:
            return [] if access is None else access.topics()

    def topic(
        self,
        name: str,
        *,
        producer: str | None = None,
        level: Level | str | None = None,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 0.0,
        patience_s: float = 60.0,
    ) -> Topic:
        """Returns a topic, to publish and to read.

        Without a server, this process opens the log and keeps it open until the lake is closed.

        Args:
            name: the topic's name.
            producer: a name under which this program publishes, across restarts: a retry after a crash is recognised.
                It shuts out an older program of the same name.
            level: how safe a message has to be when it is acknowledged: "memory", "os" or "disk"; by default as the
                setting `log.sync_mode` says.
            batch_bytes: size at which a batch is sent although another one is on its way.
            linger_ms: how long a batch that is not full waits for more messages.
            patience_s: how long a server may be away before a call fails.

        Raises:
            NotFoundError: there is no such topic.
            LockedError: another process has the log open, and is no server.
        """
        from frazil.lake.topic import ProducerOptions, Topic, parse_level

        self._connection.require_open()
        options = ProducerOptions(producer, parse_level(level), batch_bytes, linger_ms, patience_s)
        with self._lock:
            found = self._topics.get((name, options))
            if found is None:
                found = self._topics[name, options] = Topic(self._connection, name, options)
        return found

    def create_topic(
        self,
        name: str,
        *,
        storage: Literal["iceberg", "log"] | None = None,
        keep: timedelta | None = None,
        keep_bytes: int | None = None,
        exist_ok: bool = False,
    ) -> Topic:
        """Creates a topic, and returns it.

        Args:
            name: lower-case letters, digits, "-" and "_".
            storage: "iceberg": the log, and a table that the pipeline fills; "log": the log alone. By default as the
                setting `topics.storage` says.
            keep: messages that are older may leave the log.
            keep_bytes: beyond this size the oldest may leave the log.
            exist_ok: no error if it exists.

        Raises:
            ConflictError: it exists.
        """
        from frazil.topics.admin.create import create_topic

        with self._connection.log() as access:
            create_topic(
                access,
                self._settings,
                name,
                storage=storage,
                retention_age_s=None if keep is None else keep.total_seconds(),
                retention_bytes=keep_bytes,
                exist_ok=exist_ok,
            )
            return self.topic(name)

    def delete_topic(
        self, name: str, *, table: bool = False, force: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Deletes a topic's log with all its messages, and returns what that removes.

        Args:
            name: the topic's name.
            table: delete its table too, with all files.
            force: also if messages are not in the table yet.
            dry_run: only return what would be removed.

        Raises:
            ConflictError: messages are not in the table yet.
            NotAllowedError: another table refers to files of the topic's table.
        """
        from frazil.upkeep.topic_deletion import delete_topic, plan_topic_deletion

        connection = self._connection
        with connection.log() as access:
            plan = plan_topic_deletion(access, self._settings, connection.store, name, with_table=table, force=force)
            if not dry_run:
                delete_topic(access, self._settings, connection.store, plan)
                with self._lock:
                    self._topics = {key: topic for key, topic in self._topics.items() if key[0] != name}
        return plan.to_dict()

    # -- tables ------------------------------------------------------------------------------------------------------

    def sql(
        self, statement: str, *, engine: Literal["auto", "duckdb", "spark"] = "auto", limit: int | None = None
    ) -> pa.Table:
        """Runs one SQL statement, and returns its rows.

        Args:
            statement: SQL; tables as namespace.table or catalog.namespace.table.
            engine: "auto": DuckDB for a SELECT over tables that it can read, else Spark.
            limit: at most so many rows.

        Raises:
            UsageError: the engine does not understand the statement.
            NotFoundError: there is no such table.
        """
        from frazil.query import run_sql

        connection = self._connection
        connection.require_open()
        found = run_sql(
            statement,
            self._settings,
            engine=engine,
            catalog=self._catalog,
            limit=limit,
            spark=lambda: connection.spark,
        )
        return found.table

    def tables(self, namespace: str | None = None) -> list[str]:
        """Returns the names of the catalog's tables, as `namespace.table`."""
        from frazil.catalogs import list_tables

        self._connection.require_open()
        store = self._connection.store.store()
        return [".".join(name) for name in list_tables(store.catalog, store.settings, namespace)]

    def table(self, name: str) -> Table:
        """Returns a table, to read it with PyIceberg and to maintain it.

        Raises:
            NotFoundError: there is no such table; the hint names a similar one.
        """
        from frazil.lake.table import Table

        found = Table(self._connection, name)
        found.iceberg  # noqa: B018 - raises if it does not exist
        return found

    # -- content, documents, backups, replicas, Spark ------------------------------------------------------------------

    @cached_property
    def content(self) -> Content:
        """The metadata of objects in buckets and folders."""
        from frazil.lake.content import Content

        return Content(self._connection)

    @cached_property
    def backup(self) -> Backups:
        """Backups of the tables, in the repository that the setting `backup.bucket` names."""
        from frazil.lake.backup import Backups

        return Backups(self._connection)

    @cached_property
    def replica(self) -> Replicas:
        """Tables that are served from a copy of their storage."""
        from frazil.lake.replica import Replicas

        return Replicas(self._connection)

    @property
    def documents(self) -> DocumentStore:
        """The document store that the setting `database.url` names."""
        return self._connection.documents()

    def spark(self) -> SparkSession:
        """Returns a Spark session with all catalogs and the source `frazil`. It ends with the lake.

        The first call starts it, which takes seconds. Without a server the lake serves its log to Spark's executors.

        Raises:
            SetupError: Java or a jar is missing.
            UsageError: this process has another Spark session.
        """
        return self._connection.spark

    def register_source(self, spark: SparkSession) -> None:
        """Makes `spark.read.format("frazil")` known to a Spark session that you have started yourself."""
        self._connection.register_source(spark)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for messages that are being published, ends reads that follow a topic, and closes all that is open.

        Repeated calls do nothing.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
