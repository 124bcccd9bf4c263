"""What a lake has open: the log, the catalog, Spark and the document store, each opened when it is first needed."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from frazil.content.scan.engine import LazyEngine
from frazil.errors import FrazilError, LockedError, UsageError
from frazil.log.log import Log
from frazil.log.protocol import LogAccess
from frazil.settings import Settings
from frazil.tables.store import LazyStore
from frazil.topics.connection import connect_patiently, has_log, silent
from frazil.topics.sinks.jobs import for_pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from frazil.documents.store import DocumentStore


#: Seconds to wait for another process that has the log open.
_PATIENCE_S = 2.0
#: Seconds after such a wait was in vain, in which reads do not wait again.
_IMPATIENT_S = 10.0


class Connection:
    """The open resources of one lake. Any number of threads may use one, of the process that made it.

    A call that reads or writes content opens the log for its duration. What publishes to topics, and Spark, keep it
    open until the connection is closed.

    Args:
        settings: the settings.
        catalog: name of the catalog; None: the one of the settings.
    """

    def __init__(self, settings: Settings, catalog: str | None) -> None:
        self.settings, self.catalog = settings, catalog
        self.store = LazyStore(settings, catalog)
        self._process = os.getpid()
        self._closed = False
        self._log_lock = threading.RLock()
        self._access: LogAccess | None = None
        self._users = 0
        self._kept = False
        self._impatient_until = 0.0
        self._spark_lock = threading.RLock()
        self._engine: LazyEngine | None = None
        self._registered = self._checked = False
        self._documents: DocumentStore | None = None
        #: What is closed with the connection, the last one first.
        self._opened = ExitStack()
        #: Set for reads that follow a topic, when the connection is closed.
        self._stops: set[threading.Event] = set()
        # Spark and the broker would keep the process from ending, and messages may be on their way.
        self._at_exit = partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)

    def __del__(self) -> None:
        """Closes what nobody can use any more, such as a lake of a notebook whose variable was assigned anew."""
        if not self._closed and os.getpid() == self._process:
            warnings.warn("a lake was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def require_open(self) -> None:
        """Raises UsageError if the connection is closed, or belongs to the process that this one was forked from."""
        if self._closed:
            raise UsageError("the lake is closed", hint="frazil.connect()")
        if os.getpid() != self._process:
            raise UsageError(
                f"the lake was opened by process {self._process}, and this is process {os.getpid()}",
                cause="connections, locks and threads do not survive a fork",
                hint="frazil.connect() in the new process",
            )

    # -- the log -----------------------------------------------------------------------------------------------------

    @contextmanager
    def log(self, *, patience_s: float = _PATIENCE_S) -> Iterator[LogAccess]:
        """Gives access to the log for a block.

        Args:
            patience_s: how long to wait for another process that has it open.

        Raises:
            LockedError: another process has the log open, and serves no clients.
            UnavailableError: the broker does not answer.
        """
        self.require_open()
        with self._log_lock:
            if self._access is None:
                self._access = connect_patiently(
                    self.settings, note=silent, catalog=self.catalog, patience_s=patience_s
                )
            access = self._access
            self._users += 1
        try:
            yield access
        finally:
            with self._log_lock:
                self._users -= 1
                self._close_unused_log()

    @contextmanager
    def log_if_any(self) -> Iterator[LogAccess | None]:
        """The same for a read: None if nothing was ever published, so that a read creates no log."""
        self.require_open()
        if self._access is None and not has_log(self.settings):
            yield None
            return
        # An answer may read several times; it waits once.
        patience_s = 0.0 if time.monotonic() < self._impatient_until else _PATIENCE_S
        with ExitStack() as stack:
            try:
                access = stack.enter_context(self.log(patience_s=patience_s))
            except LockedError:
                self._impatient_until = time.monotonic() + _IMPATIENT_S
                raise
            yield access

    def keep_log(self) -> LogAccess:
        """Opens the log, if it is not open, and keeps it open until the connection is closed."""
        with self._log_lock, self.log() as access:
            self._kept = True
            return access

    def _close_unused_log(self) -> None:
        if self._access is not None and not self._users and (self._closed or not self._kept):
            access, self._access = self._access, None
            access.close()

    # -- Spark: the protocol `Engine` ---------------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """The session, with all catalogs and the source `frazil`. The first use starts it, which takes seconds."""
        with self._spark_lock:
            session = self._served_engine().spark
            if not self._registered:
                from frazil.spark.session import activate_session

                self._register_source(session)
                activate_session(session)  # upkeep may have left another one
                session.catalog.setCurrentCatalog(self.settings.catalog(self.catalog).name)
                self._registered = True
            return session

    @property
    def address(self) -> str:
        """Where Spark's executors reach the log."""
        with self._spark_lock:
            return self._served_engine().serve()

    def require_ready(self) -> None:
        """Raises SetupError if Spark could not start. Starts nothing."""
        from frazil.spark.session import check_ready

        if self._engine is None and not self._checked:
            check_ready(self.settings)
            self._checked = True

    def register_source(self, session: SparkSession) -> None:
        """Makes the format `frazil` known to a session, and serves the log to its executors if no server does."""
        with self._spark_lock:
            self._served_engine()
            self._register_source(session)

    def _served_engine(self) -> LazyEngine:
        self.require_open()
        if self._engine is None:
            engine = LazyEngine(for_pipeline(self.settings), self.keep_log())
            engine.serve()
            self._engine = self._opened.enter_context(engine)
        return self._engine

    def _register_source(self, session: SparkSession) -> None:
        from frazil.topics.source.source import register

        register(session, self.settings)

    # -- documents ---------------------------------------------------------------------------------------------------

    def documents(self) -> DocumentStore:
        """The document store. One in Iceberg works on the log that is open here."""
        from frazil.documents.open import open_store, store_url

        self.require_open()
        with self._log_lock:
            if self._documents is None:
                if store_url(self.settings) == "iceberg":
                    from frazil.documents.iceberg.store import open_iceberg_store

                    access = self.keep_log()
                    opened: DocumentStore = open_iceberg_store(
                        self.settings, access if isinstance(access, Log) else None
                    )
                else:
                    opened = open_store(self.settings)
                self._documents = self._opened.enter_context(opened)
            return self._documents

    # -- the end -----------------------------------------------------------------------------------------------------

    def on_close(self, close: Callable[[], None]) -> None:
        """Calls a function when the connection is closed, before the log is."""
        self._opened.callback(close)

    def guard(self, tables: Iterator[pa.Table], stop: threading.Event) -> Generator[pa.Table]:
        """A read that ends when the connection is closed.

        Args:
            tables: the read.
            stop: ends it soon after it is set.
        """
        self._stops.add(stop)
        try:
            yield from tables
        except FrazilError:
            if not self._closed:
                raise
        finally:
            self._stops.discard(stop)

    def close(self) -> None:
        """Ends reads that follow a topic, and closes all that is open. Repeated calls do nothing."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        for stop in list(self._stops):
            stop.set()
        try:
            self._opened.close()
        finally:
            try:
                with self._log_lock:
                    self._close_unused_log()
            finally:
                self.store.close()


def _close(reference: weakref.ref[Connection]) -> None:
    if (connection := reference()) is not None:
        connection.close()
