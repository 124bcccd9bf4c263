"""Spark, and the log where executors reach it: started when somebody first needs them, for most looks need neither."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from frazil.log.access import LogAccess
from frazil.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Engine(Protocol):
    @property
    def spark(self) -> SparkSession:
        """The session."""
        ...

    @property
    def address(self) -> str:
        """Where executors reach the log."""
        ...


@dataclass(frozen=True)
class Ready:
    """An engine that runs already."""

    spark: SparkSession
    address: str


class OnDemand:
    """An engine that starts at its first use, which takes some seconds, and ends with its block."""

    def __init__(self, settings: Settings, access: LogAccess) -> None:
        self._settings, self._access = settings, access
        self._stack = ExitStack()
        self._ready: Ready | None = None

    @property
    def runs(self) -> bool:
        return self._ready is not None

    @property
    def spark(self) -> SparkSession:
        return self._started().spark

    @property
    def address(self) -> str:
        return self._started().address

    def _started(self) -> Ready:
        if self._ready is None:
            from frazil.spark import spark_session
            from frazil.topics import flight_address

            address = self._stack.enter_context(flight_address(self._access))
            self._ready = Ready(self._stack.enter_context(spark_session(self._settings)), address)
        return self._ready

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
