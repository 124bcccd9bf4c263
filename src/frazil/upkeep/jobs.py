"""Spark jobs of upkeep, which can be cancelled without touching those of anybody else."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from frazil.upkeep.context import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Inside one pool jobs wait for each other; between two of them the cores are shared, so that batches of sinks go on.
_POOL = "spark.scheduler.pool"


class Jobs:
    """Gives the session; from then on the jobs of the calling thread, and of those it starts, carry a tag.

    Iceberg's actions set the job group of their threads themselves, so that a group would not find them.

    Args:
        start: gives the session; the first call may start a JVM.
    """

    def __init__(self, start: Sessions) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._lock = threading.Lock()
        self._tag = f"frazil-upkeep-{uuid.uuid4().hex}"

    def __call__(self) -> SparkSession:
        session = self._opened()
        session.sparkContext.addJobTag(self._tag)
        session.sparkContext.setLocalProperty(_POOL, "upkeep")
        return session

    def part(self) -> Jobs:
        """Jobs in the same session that can be cancelled for themselves."""
        return Jobs(self._opened)

    def _opened(self) -> SparkSession:
        with self._lock:
            session = self._session = self._session or self._start()
        return session

    def leave(self) -> None:
        """The calling thread goes on with work that is not upkeep."""
        if self._session is not None:
            self._session.sparkContext.removeJobTag(self._tag)
            self._session.sparkContext.setLocalProperty(_POOL, None)

    def cancel(self) -> None:
        """Ends the jobs that run. What they wrote was not committed, and is removed or found as orphans."""
        if self._session is not None:
            with suppress(Exception):  # the JVM may be gone
                self._session.sparkContext.cancelJobsWithTag(self._tag)
