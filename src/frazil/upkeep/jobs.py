"""Spark jobs of upkeep, which can be cancelled without affecting any others."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from frazil.upkeep.context import Sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Jobs of one pool wait for each other; pools share the cores, so that batches of sinks continue.
_POOL = "spark.scheduler.pool"


class Jobs:
    """Returns the session, and tags the jobs of the calling thread, and of threads that it starts, from then on.

    Iceberg's actions set the job group of their threads themselves, so that a group would not find them.

    Args:
        start: returns the session; the first call may start a JVM.
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
        """Returns jobs in the same session that can be cancelled separately."""
        return Jobs(self._opened)

    def _opened(self) -> SparkSession:
        with self._lock:
            session = self._session = self._session or self._start()
        return session

    def leave(self) -> None:
        """Ends the tagging: the calling thread continues with other work."""
        if self._session is not None:
            self._session.sparkContext.removeJobTag(self._tag)
            self._session.sparkContext.setLocalProperty(_POOL, None)

    def cancel(self) -> None:
        """Cancels the running jobs. Their files are not committed, and are removed or found as orphans."""
        if self._session is not None:
            with suppress(Exception):  # the JVM may be gone
                self._session.sparkContext.cancelJobsWithTag(self._tag)
