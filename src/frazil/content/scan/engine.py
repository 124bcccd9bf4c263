"""Spark, and the address where executors reach the log. Both start at first use, because most scans need neither."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from frazil.log.protocol import LogAccess
from frazil.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine(Protocol):
    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        ...

    @property
    def address(self) -> str:
        """The address where executors reach the log."""
        ...

    def require_ready(self) -> None:
        """Raises SetupError if Spark could not start."""
        ...


@dataclass(frozen=True)
class RunningEngine:
    """A Spark session that is running already."""

    spark: SparkSession
    address: str

    def require_ready(self) -> None:
        pass


class LazyEngine:
    """A Spark session that starts at first use, which takes some seconds, and ends with the block."""

    def __init__(self, settings: Settings, access: LogAccess) -> None:
        self._settings, self._access = settings, access
        self._stack = ExitStack()
        self._served: str | None = None
        self._ready: RunningEngine | None = None
        self._checked = False

    @property
    def runs(self) -> bool:
        return self._ready is not None

    @property
    def spark(self) -> SparkSession:
        return self._started().spark

    @property
    def address(self) -> str:
        return self._started().address

    def serve(self) -> str:
        """Serves the log to executors if no broker does, without starting Spark. Returns its address."""
        if self._served is None:
            from frazil.topics import flight_address

            self._served = self._stack.enter_context(flight_address(self._access))
        return self._served

    def require_ready(self) -> None:
        """Checks Java, the jars and the master, once, without starting anything.

        Raises:
            SetupError: Java or a jar is missing.
            IntegrityError: a jar is not what the lock says.
            UnavailableError: the master does not answer.
        """
        if self._ready is None and not self._checked:
            from frazil.spark.session import check_ready

            check_ready(self._settings)
        self._checked = True

    def _started(self) -> RunningEngine:
        if self._ready is None:
            from frazil.spark import spark_session

            address = self.serve()
            self._ready = RunningEngine(self._stack.enter_context(spark_session(self._settings)), address)
        return self._ready

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
