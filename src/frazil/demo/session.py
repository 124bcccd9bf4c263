"""The demo's Spark session: one for all chapters, started by the first that needs it."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from frazil.demo.stage import Stage
from frazil.settings import Settings
from frazil.spark import spark_session
from frazil.topics.sinks.jobs import for_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SharedSession:
    """Starts Spark once, as a timed step, and ends it with its block.

    Args:
        stage: where the step is shown.
        settings: the demo's; Spark runs with the options of a pipeline.
    """

    def __init__(self, stage: Stage, settings: Settings) -> None:
        self.settings = for_pipeline(settings)
        self._stage = stage
        self._stack = ExitStack()
        self._spark: SparkSession | None = None

    def get(self) -> SparkSession:
        if self._spark is None:
            with self._stage.step("start Spark once for all chapters; separate commands would each start their own"):
                self._spark = self._stack.enter_context(spark_session(self.settings))
        return self._spark

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
